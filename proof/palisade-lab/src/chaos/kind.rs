//! The kinds of locks that workers contend for, and the resources that each guards.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A kind of lock. Each lane of a team has one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LockKind {
    /// One holder.
    Exclusive,
    /// Readers that read twice, and writers, some of which were readers in mode update or become readers.
    Readers,
    /// A semaphore with two permits; each slot has a set of its own, and a fence of its own.
    Permits,
    /// Three locks, each with its set; a worker takes one of them, or two at once.
    Sets,
}

/// How many permits a semaphore has: fewer than a team has workers.
pub(super) const PERMITS: u32 = 2;
/// How many locks there are to take sets of.
pub(super) const LOCKS: usize = 3;

impl LockKind {
    /// All kinds.
    pub(super) const ALL: [LockKind; 4] = [
        LockKind::Exclusive,
        LockKind::Readers,
        LockKind::Permits,
        LockKind::Sets,
    ];

    /// Its name on the command line.
    pub(super) fn word(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The locks of a lane.
    pub(super) fn locks(self, lane: usize) -> Vec<String> {
        let lock = lane_name(lane);
        match self {
            LockKind::Sets => (1..=LOCKS).map(|part| format!("{lock}.{part}")).collect(),
            _ => vec![lock],
        }
    }

    /// The resources of a lane, each with a fence of its own.
    pub(super) fn resources(self, lane: usize) -> Vec<String> {
        let locks = self.locks(lane);
        match self {
            LockKind::Permits => {
                let of = |slot| locks.iter().map(move |lock| format!("{lock}~{slot}"));
                (1..=PERMITS).flat_map(of).collect()
            }
            _ => locks,
        }
    }
}

/// The name of a lane: its lock, unless that are several.
pub(super) fn lane_name(lane: usize) -> String {
    format!("set-{lane}")
}
