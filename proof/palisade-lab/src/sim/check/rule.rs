//! The trait of a rule, and the names of all rules.

use crate::sim::fact::Fact;

/// A rule that watches a run.
pub(crate) trait Check {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// Handles one fact at a virtual instant; an error describes the violation.
    fn see(&mut self, now: u64, fact: &Fact) -> Result<(), String>;
}

pub(crate) const EXCLUSION: &str = "mutual exclusion in the log";
pub(crate) const PHASES: &str = "phases and their tokens";
pub(crate) const PERMITS: &str = "slots of a semaphore";
pub(crate) const SETS: &str = "all locks of a set or none";
pub(crate) const DELAYS: &str = "closed for its time";
pub(crate) const TOKEN_ORDER: &str = "token order";
pub(crate) const EARLY_EXPIRY: &str = "no early expiry";
pub(crate) const LATE_EXPIRY: &str = "no lease without end";
pub(crate) const STOP: &str = "a stop grants nothing";
pub(crate) const PRESENCE: &str = "work is not absence";
pub(crate) const FIFO: &str = "first come, first served";
pub(crate) const UNCLAIMED: &str = "what nobody takes up is given back";
pub(crate) const DURABILITY: &str = "durability of acknowledged grants";
pub(crate) const FULL_DISK: &str = "a full disk stops nothing";
pub(crate) const BELIEF: &str = "one believer";
pub(crate) const LOST_UPDATE: &str = "fence: no lost update";
pub(crate) const RESURRECTION: &str = "fence: no resurrection";
pub(crate) const REFUSAL: &str = "fence: the newest is not refused";
/// Of the code under test, before any checker has seen what came of it.
pub(crate) const ASSERTION: &str = "an assertion";
pub(crate) const LIVENESS: &str = "liveness after the faults";
