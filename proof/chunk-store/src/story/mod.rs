//! The story: real processes, a real lock server, real signals, and a picture of their records.
//!
//! ```text
//!   server a  primary, version 2 ─ a1 ─ (stopped) ························· a2 ✗ stale ─ collected ─ made anew
//!                                   lease expires │
//!   server b                                      primary, version 4 ─ b1 ─────── b2 ─────────────── snapshot ─ c1
//!   server c  replica ──── (stopped) ──────────────────── stale ─ collected ─ made anew
//! ```
//!
//! `a` is not wrong to send a2: its lease was valid when it looked. Only the replicas can refuse it, and they do,
//! because they have recorded a later version. Without the check they take it, and b1 is overwritten.

mod chart;
mod picture;
mod process;
mod recorder;
mod schedule;

use palisade_client::Token;

use crate::Checks;
use crate::event::Record;
use crate::name::ServerId;

pub use picture::svg;
pub use process::die_with_parent;
pub use schedule::run;

/// One run of the schedule.
#[derive(Clone, Debug)]
pub struct Act {
    /// Whether the replicas checked versions.
    pub checks: Checks,
    /// The events of the processes; times are milliseconds since the start of the act.
    pub records: Vec<Record>,
    /// The lock server's record of the leases.
    pub leases: Vec<LeaseOf>,
    /// When a server was stopped by a signal, and when it was continued, ms.
    pub pauses: Vec<(ServerId, f64, f64)>,
    /// The result.
    pub outcome: Outcome,
}

/// The lease of a primary, as the lock server reported it.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseOf {
    /// The holder: a chunk server, or the master during a snapshot.
    pub holder: String,
    /// The fencing token.
    pub token: Token,
    /// When it was granted, ms.
    pub from_ms: f64,
    /// When it ended, ms, and how; `None` if it did not.
    pub ended: Option<(f64, String)>,
}

/// The acknowledgements that clients got, and the chunk's final content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The acknowledged records, in that order.
    pub acknowledged: Vec<String>,
    /// The records that were refused because of a later version.
    pub refused: Vec<String>,
    /// The records of the chunk.
    pub content: Vec<String>,
    /// Whether all current replicas have the same content, and how many there are.
    pub replicas_agree: bool,
    /// How many current replicas there are.
    pub replicas: usize,
    /// The records of the snapshot.
    pub snapshot: Vec<String>,
    /// The servers that look-ups named while c was back and stale.
    pub named_while_stale: Vec<String>,
}

impl Outcome {
    /// The acknowledged records that are not in the chunk.
    #[must_use]
    pub fn lost(&self) -> Vec<&str> {
        let gone = |record: &&String| !self.content.contains(record);
        let lost = self.acknowledged.iter().filter(gone);
        lost.map(String::as_str).collect()
    }
}

/// The heading of an act.
#[must_use]
pub fn title(checks: Checks) -> &'static str {
    match checks {
        Checks::DangerUnfenced => "Replicas that check nothing",
        Checks::Versions => "Replicas that admit only their own version",
    }
}
