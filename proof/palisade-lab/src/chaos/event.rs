//! The reports of workers, and the faults that were made.
//!
//! A worker prints one line of JSON for each step before it takes the next one, so a record survives when the worker is
//! stopped or killed. Times are the director's, on one clock, when the line arrived: faults of the workers' clocks do
//! not affect the record.

use serde::{Deserialize, Serialize};

use super::kind::LockKind;

/// One line of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct WorkerLine {
    /// The index of the lock; each has its own set at the resource, or several.
    pub(super) lane: usize,
    pub(super) kind: LockKind,
    /// Nanoseconds on the worker's own clock, which a nemesis may have changed.
    pub(super) own_ns: u64,
    /// The fencing token of the grant, if the lock has one.
    pub(super) token: Option<u64>,
    /// The step.
    #[serde(flatten)]
    pub(super) what: WorkerStep,
}

/// A step of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(super) enum WorkerStep {
    /// It believes that it holds the lock. The number names the grant: its token, unless it is a reader's.
    Granted { number: Option<u64> },
    /// It has claimed: the resource's fence is at its token.
    Claimed,
    /// It has read the set, still believes in its lock, and begins to think.
    Read,
    /// It has thought, and sends the set with this element added.
    Sent { element: String },
    /// The resource acknowledged the set with this element as durable.
    Acknowledged { element: String },
    /// It has read a second time under its grant, or has read its own write after its grant became a reader's.
    ReadAgain { same: bool },
    /// The resource rejected the token.
    Rejected {
        step: Operation,
        highest: Option<u64>,
    },
    /// No answer: the operation may have happened.
    Unknown { step: Operation, why: String },
    /// The lease was over at its check, so it does not write.
    Lost,
    /// It has released the lock.
    Released,
    /// The authority did not answer, or did not grant.
    Fault { why: String },
}

/// An operation at the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Operation {
    Claim,
    Read,
    Write,
}

/// A call to a resource, or its answer: a line of the history of resources (`proof/palisade-lab/porcupine`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResourceLine {
    /// Nanoseconds on the clock of this machine: before the call was sent, or after its answer arrived.
    pub(super) at: u64,
    /// Names the call.
    pub(super) id: String,
    /// Of a call: the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) resource: Option<String>,
    /// Of a call: the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) call: Option<Operation>,
    /// Of a call: its fencing token. The last read of all has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<u64>,
    /// Of an answer: `admitted` or `rejected`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) answer: Option<String>,
    /// The last element of the set that was read or is written: each write adds one that no other write has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<String>,
    /// Of a rejection: the highest token that the resource has seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) highest: Option<u64>,
}

/// A worker's line, and when it arrived.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Event {
    /// Milliseconds since the world began.
    pub(super) at_ms: f64,
    pub(super) worker: usize,
    #[serde(flatten)]
    pub(super) line: WorkerLine,
}

/// A fault that was made.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fault {
    pub(super) from_ms: f64,
    pub(super) to_ms: f64,
    pub(super) target: Target,
    /// A description.
    pub(super) what: String,
}

/// The target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Target {
    Worker(usize),
    Authority,
    Resource,
    Network,
    Clocks,
}
