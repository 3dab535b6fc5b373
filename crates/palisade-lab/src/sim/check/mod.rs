//! The rules that must hold in every run, one per file. A checker sees only facts, never the code under test.

mod belief;
mod delays;
mod durability;
mod early_expiry;
mod exclusion;
mod fifo;
mod full_disk;
mod liveness;
mod lost_update;
mod permits;
mod phases;
mod presence;
mod refusal;
mod resurrection;
mod sets;
mod slot_table;
mod token_locks;
mod token_order;

use super::fact::Fact;
use super::plan::Plan;

/// A rule that watches a run.
pub(crate) trait Check {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// Handles one fact at a virtual instant; an error says what is wrong.
    fn see(&mut self, now: u64, fact: &Fact) -> Result<(), String>;
}

pub(crate) const EXCLUSION: &str = "mutual exclusion in the log";
pub(crate) const PHASES: &str = "phases and their tokens";
pub(crate) const PERMITS: &str = "slots of a semaphore";
pub(crate) const SETS: &str = "all locks of a set or none";
pub(crate) const DELAYS: &str = "closed for its time";
pub(crate) const TOKEN_ORDER: &str = "token order";
pub(crate) const EARLY_EXPIRY: &str = "no early expiry";
pub(crate) const PRESENCE: &str = "work is not absence";
pub(crate) const FIFO: &str = "first come, first served";
pub(crate) const DURABILITY: &str = "durability of acknowledged grants";
pub(crate) const FULL_DISK: &str = "a full disk stops nothing";
pub(crate) const BELIEF: &str = "one believer";
pub(crate) const LOST_UPDATE: &str = "fence: no lost update";
pub(crate) const RESURRECTION: &str = "fence: no resurrection";
pub(crate) const REFUSAL: &str = "fence: the newest is not refused";
pub(crate) const LIVENESS: &str = "liveness after the faults";

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
        Box::<presence::Presence>::default(),
        Box::new(fifo::Fifo::new(plan)),
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
