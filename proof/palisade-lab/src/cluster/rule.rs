//! The rules that a run can break.

/// A rule that a run can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Two clients never believe at once that they hold a lock.
    OneHolder,
    /// A token is issued once.
    OneToken,
    /// A request that is repeated gets its first answer, from any leader.
    OneAnswer,
    /// A request that is sent after a token was seen gets a higher one.
    TokenOrder,
    /// Every acknowledged entry is in the log of every node in the end.
    Durable,
    /// The committed parts of all logs are the same.
    SameLog,
    /// Nodes that applied the same entries have the same machine.
    SameState,
    /// A read shows every change that was acknowledged before it was sent.
    StaleRead,
    /// A leader change shortens no lease.
    FullTime,
    /// Once nothing fails any more, everybody is served.
    Serves,
    /// A node does not fail by itself.
    Sound,
}
