//! The workloads, the same for each system.

/// A row of the comparison.
pub(crate) struct Workload {
    /// The id that selects it.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) work: Work,
    pub(crate) connections: usize,
    /// Lanes per connection, with one operation in flight each.
    pub(crate) lanes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Acquire and release; each lane has its own lock.
    Pairs,
    /// Renew; each lane has its own lease.
    Renewals,
    /// All lanes contend for these locks, equally many for each; a holder keeps a lock for this time.
    Contended { locks: usize, hold_ms: u64 },
    /// Acquisitions begin at this rate whether or not the previous ones were answered.
    Open { per_second: u64 },
}

impl Workload {
    pub(crate) fn contended(&self) -> bool {
        matches!(self.work, Work::Contended { .. })
    }

    /// The operation whose latency is measured.
    pub(crate) fn measured(&self) -> &'static str {
        match self.work {
            Work::Pairs => "acquire",
            Work::Renewals => "renew",
            Work::Contended { .. } => "hand-off: call of release to next grant seen",
            Work::Open { .. } => "acquire, from the instant it was due",
        }
    }

    /// The unit of the count.
    pub(crate) fn unit(&self) -> &'static str {
        match self.work {
            Work::Renewals => "renewals",
            Work::Pairs | Work::Contended { .. } | Work::Open { .. } => "pairs",
        }
    }

    /// Whether it measures how long something takes, not how often it happens.
    pub(crate) fn is_about_time(&self) -> bool {
        match self.work {
            Work::Pairs => self.connections * self.lanes == 1,
            Work::Renewals => false,
            Work::Contended { locks, .. } => locks == 1,
            Work::Open { .. } => true,
        }
    }
}

const fn pairs(
    id: &'static str,
    title: &'static str,
    connections: usize,
    lanes: usize,
) -> Workload {
    Workload {
        id,
        title,
        work: Work::Pairs,
        connections,
        lanes,
    }
}

const fn hand_off(id: &'static str, title: &'static str, lanes: usize, hold_ms: u64) -> Workload {
    Workload {
        id,
        title,
        work: Work::Contended { locks: 1, hold_ms },
        connections: lanes,
        lanes: 1,
    }
}

pub(crate) const ALL: [Workload; 12] = [
    pairs("pairs-1", "1 client, own lock", 1, 1),
    pairs("pairs-16", "16 clients, own locks", 16, 1),
    pairs("pairs-64", "64 clients, own locks", 64, 1),
    pairs("pairs-256", "256 clients, own locks", 256, 1),
    pairs("pairs-16x64", "16 connections × 64 in flight", 16, 64),
    Workload {
        id: "renewals-16x64",
        title: "renewals, 16 connections × 64 in flight",
        work: Work::Renewals,
        connections: 16,
        lanes: 64,
    },
    hand_off("hand-off-2-hold-0", "hand-off, 2 clients, hold 0", 2, 0),
    hand_off("hand-off-2-hold-5", "hand-off, 2 clients, hold 5 ms", 2, 5),
    hand_off("hand-off-64-hold-0", "hand-off, 64 clients, hold 0", 64, 0),
    hand_off(
        "hand-off-64-hold-5",
        "hand-off, 64 clients, hold 5 ms",
        64,
        5,
    ),
    Workload {
        id: "contended-1000",
        title: "1,000 contended locks, 2 clients each, on 16 connections",
        work: Work::Contended {
            locks: 1_000,
            hold_ms: 0,
        },
        connections: 16,
        lanes: 125,
    },
    Workload {
        id: "open-5000",
        title: "open loop, 5,000 acquisitions per second",
        work: Work::Open { per_second: 5_000 },
        connections: 64,
        lanes: 4,
    },
];
