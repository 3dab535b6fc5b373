//! The rules that must hold in every run, one per file. A checker sees only facts, never the code under test.

mod belief;
mod delays;
mod durability;
mod early_expiry;
mod exclusion;
mod fifo;
mod full_disk;
mod late_expiry;
mod liveness;
mod lost_update;
mod permits;
mod phases;
mod presence;
mod refusal;
mod resurrection;
pub(crate) mod rule;
mod sets;
mod slot_table;
mod stop;
mod token_locks;
mod token_order;
mod unclaimed;

use super::plan::Plan;
pub(crate) use rule::Check;

/// All checkers, or the one with this name.
pub(crate) fn all(plan: &Plan, only: Option<&str>) -> Vec<Box<dyn Check>> {
    let mut all: Vec<Box<dyn Check>> = vec![
        Box::<exclusion::Exclusion>::default(),
        Box::<phases::Phases>::default(),
        Box::new(permits::Permits::new(plan)),
        Box::<sets::Sets>::default(),
        Box::<delays::Delays>::default(),
        Box::<token_order::TokenOrder>::default(),
        Box::<early_expiry::EarlyExpiry>::default(),
        Box::<late_expiry::LateExpiry>::default(),
        Box::<stop::Stop>::default(),
        Box::<presence::Presence>::default(),
        Box::new(fifo::Fifo::new(plan)),
        Box::<unclaimed::Unclaimed>::default(),
        Box::<durability::Durability>::default(),
        Box::<full_disk::FullDisk>::default(),
        Box::new(belief::Belief::new(plan.tame)),
        Box::<lost_update::LostUpdate>::default(),
        Box::<resurrection::Resurrection>::default(),
        Box::new(refusal::Refusal::new(plan)),
        Box::new(liveness::Liveness::new(plan.clients)),
    ];
    all.retain(|check| only.is_none_or(|only| check.name() == only));
    all
}
