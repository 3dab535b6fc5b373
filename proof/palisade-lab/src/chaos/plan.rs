//! The settings of a world.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::kind::LockKind;

/// The settings of a world; the same for all arms.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The program under test.
    pub(super) program: PathBuf,
    pub(super) ttl: Duration,
    /// The shortest and the longest thinking time, in leases.
    pub(super) think: (f64, f64),
    pub(super) teams: usize,
    /// Workers in a team.
    pub(super) workers: usize,
    /// Lanes of a team.
    pub(super) lanes: usize,
    /// The kinds of locks, one lane after the other.
    pub(super) kinds: Vec<LockKind>,
    pub(super) adds_per_grant: u64,
    /// The extra bytes of each element.
    pub(super) padding: usize,
    /// How many acknowledged adds the run needs.
    pub(super) adds: u64,
    /// How many faults of a cluster the run needs.
    pub(super) faults: u64,
    pub(super) seed: u64,
    /// Whether histories of locks and resources are recorded.
    pub(super) records: bool,
}

impl Plan {
    pub(super) fn all_workers(&self) -> std::ops::Range<usize> {
        0..self.teams * self.workers
    }

    /// The lanes of these teams, with their kinds of locks.
    pub(super) fn lanes_of(
        &self,
        teams: std::ops::Range<usize>,
    ) -> impl Iterator<Item = (usize, LockKind)> {
        let lanes = teams.start * self.lanes..teams.end * self.lanes;
        lanes.map(|lane| (lane, self.kinds[lane % self.kinds.len()]))
    }

    /// How many adds each kind of lock must have, and readers second reads.
    pub(super) fn least_of_kind(&self) -> u64 {
        self.adds / 20
    }

    /// The kinds that have too little in this: acknowledged adds and second reads.
    pub(super) fn lacking<'a>(
        &'a self,
        done: &'a BTreeMap<LockKind, (u64, u64)>,
    ) -> impl Iterator<Item = LockKind> + 'a {
        let least = self.least_of_kind();
        let lacks = move |kind: &&LockKind| {
            let (adds, reads) = done.get(kind).copied().unwrap_or_default();
            adds < least || (**kind == LockKind::Readers && reads < least)
        };
        self.kinds.iter().filter(lacks).copied()
    }
}
