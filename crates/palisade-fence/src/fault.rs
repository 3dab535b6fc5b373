//! The kinds of faults, by the caller's next step.

/// The kind of a fault: what the caller should do next. Every fault of a fence has one.
///
/// A rejection is not a fault: it is a value, [`Checked::Rejected`](crate::Checked::Rejected).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Nothing took effect, and the same call may succeed: make it again.
    Retry,
    /// It is unknown whether a write took effect: repeat it under its sequence number, or look.
    Unknown,
    /// The call cannot succeed as it is: change it. Nothing took effect, except what a script of the user in
    /// Redis wrote before it failed.
    Invalid,
    /// Nothing took effect, and nothing will until an operator acts; the message says how.
    Operator,
}
