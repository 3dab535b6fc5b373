//! What must hold in every run, one rule a file. A checker knows facts only, none of the code under
//! test.

mod belief;
mod durability;
mod early_expiry;
mod exclusion;
mod fence_safety;
mod fifo;
mod liveness;
mod token_order;

use super::fact::Fact;
use super::plan::Plan;

/// A rule that watches a run.
pub(crate) trait Check: Send {
    /// What it is called in reports.
    fn name(&self) -> &'static str;

    /// Takes in one fact, at a virtual instant; says what is wrong.
    fn see(&mut self, now: u64, fact: &Fact) -> Result<(), String>;
}

/// All of them.
pub(crate) fn all(plan: &Plan) -> Vec<Box<dyn Check>> {
    vec![
        Box::<exclusion::Exclusion>::default(),
        Box::<token_order::TokenOrder>::default(),
        Box::<early_expiry::EarlyExpiry>::default(),
        Box::<fifo::Fifo>::default(),
        Box::<durability::Durability>::default(),
        Box::new(belief::Belief::new(plan.tame)),
        Box::<fence_safety::FenceSafety>::default(),
        Box::new(liveness::Liveness::new(plan.clients)),
    ]
}
