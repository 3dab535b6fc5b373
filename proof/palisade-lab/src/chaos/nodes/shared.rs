//! The state that the nemesis, the observers and the queues share, and their findings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;

use crate::chaos::lock::lock;
use crate::chaos::stop::Stop;
use crate::history::Event;

/// How long an answer may take beyond the wait that was asked for.
pub(super) const ANSWER: Duration = Duration::from_secs(1);

/// The state that the nemesis and the observers share.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) addresses: Vec<SocketAddr>,
    /// How many faults have begun after which a connection says nothing: pauses and cuts.
    pub(super) silent: AtomicU64,
    /// Wrong, as far as the nemesis saw.
    pub(super) found: Mutex<Vec<String>>,
    /// How long each healing took until every node served, in milliseconds.
    pub(super) healed_ms: Mutex<Vec<f64>>,
}

/// The state that all observers of a cluster share.
pub(super) struct Shared {
    pub(super) watched: Arc<Watched>,
    pub(super) stop: Stop,
    pub(super) queues: Mutex<Count>,
    pub(super) events: Mutex<Vec<Event>>,
    pub(super) calls: Mutex<u64>,
}

impl Shared {
    pub(super) fn next(&self) -> u64 {
        let mut calls = lock(&self.calls);
        *calls += 1;
        *calls
    }

    pub(super) fn record(&self, event: Event) {
        lock(&self.events).push(event);
    }

    /// How many faults have begun after which a connection says nothing.
    pub(super) fn silent(&self) -> u64 {
        self.watched.silent.load(Ordering::SeqCst)
    }
}

/// The results of the queues.
#[derive(Debug, Default)]
pub(super) struct Count {
    pub(super) kept: u64,
    pub(super) void: u64,
    pub(super) wrong: Vec<String>,
}

/// The observations of a cluster.
#[derive(Debug, Default, Serialize)]
pub(in crate::chaos) struct Observed {
    /// Calls of the observers, those without an answer, and grants.
    pub(in crate::chaos) operations: usize,
    pub(in crate::chaos) unknown: usize,
    pub(in crate::chaos) grants: usize,
    /// Grants of each kind.
    pub(in crate::chaos) kinds: BTreeMap<&'static str, u64>,
    /// Queues of three whose grants came in the order of their requests.
    pub(in crate::chaos) queues_kept: u64,
    /// Queues that prove nothing: a waiter was cut off, or came back late.
    pub(in crate::chaos) queues_void: u64,
    /// How often every node served again after a fault, and the longest time that took.
    pub(in crate::chaos) healings: usize,
    pub(in crate::chaos) slowest_healing_ms: f64,
    /// Broken rules.
    pub(in crate::chaos) violations: Vec<String>,
    /// The observers' calls and answers, as `palisade-lab check` reads them.
    #[serde(skip)]
    pub(in crate::chaos) history: String,
}
