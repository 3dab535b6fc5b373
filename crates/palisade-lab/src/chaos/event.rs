//! What a worker tells, and what was done to whom.
//!
//! A worker prints one line of JSON for each step, before it takes the next one: what it was told is out of its
//! hands when it is stopped or killed. Times are the director's, on one clock, when the line reached it: faults
//! of the workers' clocks do not reach the record.

use serde::{Deserialize, Serialize};

/// One line of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Said {
    /// Which of the world's locks, each with a set of its own at the resource.
    pub(super) lane: usize,
    /// Nanoseconds on the worker's own clock, which a nemesis may have set wrong.
    pub(super) own_ns: u64,
    /// The fencing token of the grant, where the lock has one.
    pub(super) token: Option<u64>,
    /// The step.
    #[serde(flatten)]
    pub(super) what: What,
}

/// A step of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(super) enum What {
    /// The lock is its own, it believes.
    Granted,
    /// The resource's fence stands at its token.
    Claimed,
    /// It has read the set, still believes in its lock, and begins to think.
    Read,
    /// It has thought, and sends the set with this element added.
    Sent { element: String },
    /// The resource says that the set with this element is durable.
    Acknowledged { element: String },
    /// The resource refused the token.
    Rejected { step: Step, highest: Option<u64> },
    /// No answer: it may have happened.
    Unknown { step: Step, why: String },
    /// The lease was over when it looked; it does not write.
    Lost,
    /// The lock is given up.
    Released,
    /// The authority did not answer, or not with a grant.
    Fault { why: String },
}

/// An operation at the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Step {
    Claim,
    Read,
    Write,
}

/// What a worker said, and when it was heard.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Event {
    /// Milliseconds since the world began.
    pub(super) at_ms: f64,
    pub(super) worker: usize,
    #[serde(flatten)]
    pub(super) said: Said,
}

/// A fault that was made.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fault {
    pub(super) from_ms: f64,
    pub(super) to_ms: f64,
    pub(super) target: Target,
    /// In words.
    pub(super) what: String,
}

/// Who it was done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    Worker(usize),
    Authority,
    Resource,
    Network,
    Clocks,
}
