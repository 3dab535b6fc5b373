//! The event log of one world, on one clock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::Timestamp;

use super::event::{Event, Fault, ResourceLine, Target, WorkerLine, WorkerStep};
use super::kind::LockKind;
use super::lock::lock;

/// All events in the order in which the director received them.
#[derive(Debug)]
pub(super) struct EventLog {
    origin: Timestamp,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) events: Vec<Event>,
    pub(super) faults: Vec<Fault>,
    /// The lines of the history of resources.
    pub(super) resources: Vec<String>,
    /// For each kind of lock, the acknowledged adds, and the second reads.
    pub(super) done: BTreeMap<LockKind, (u64, u64)>,
    /// For each worker, the lanes on which it has read but not written yet.
    thinking: BTreeMap<usize, BTreeSet<usize>>,
    /// How many processes of a worker have ended.
    ended: BTreeMap<usize, u32>,
}

impl EventLog {
    pub(super) fn new() -> EventLog {
        EventLog {
            origin: BootClock.now(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn now_ms(&self) -> f64 {
        BootClock.now().since(self.origin).as_nanos() as f64 / 1e6
    }

    /// Takes a worker's line; `None` is the end of its process.
    pub(super) fn receive(&self, worker: usize, line: Option<&str>) {
        let at_ms = self.now_ms();
        let mut state = lock(&self.state);
        match line.map(serde_json::from_str::<WorkerLine>) {
            Some(Ok(line)) => state.take(Event {
                at_ms,
                worker,
                line,
            }),
            // Ignores a line that a kill cut off.
            Some(Err(_)) => {
                let whole = line.filter(|line| serde_json::from_str::<ResourceLine>(line).is_ok());
                state.resources.extend(whole.map(str::to_owned));
            }
            None => {
                state.thinking.remove(&worker);
                *state.ended.entry(worker).or_default() += 1;
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Records a fault that is over.
    pub(super) fn note(&self, from_ms: f64, target: Target, what: String) {
        let to_ms = self.now_ms();
        lock(&self.state).faults.push(Fault {
            from_ms,
            to_ms,
            target,
            what,
        });
    }

    /// For each kind of lock, the acknowledged adds so far, and the second reads.
    pub(super) fn done(&self) -> BTreeMap<LockKind, (u64, u64)> {
        lock(&self.state).done.clone()
    }

    /// The worker, other than `but`, that is between read and write on the most lanes; waits briefly for one.
    pub(super) fn thinker(&self, workers: Range<usize>, but: Option<usize>) -> Option<usize> {
        let most = |state: &State| {
            let lanes = |worker: &usize| state.thinking.get(worker).map_or(0, BTreeSet::len);
            let others = workers.clone().filter(|worker| Some(*worker) != but);
            let most = others.max_by_key(lanes)?;
            (lanes(&most) > 0).then_some(most)
        };
        let state = self.wait(THINKER_TIMEOUT, |state| most(state).is_some());
        most(&state)
    }

    /// Waits until this many processes of a worker have ended; returns whether they have.
    pub(super) fn ended(&self, worker: usize, processes: u32, patience: Duration) -> bool {
        let over = |state: &State| state.ended.get(&worker).copied().unwrap_or(0) >= processes;
        over(&self.wait(patience, over))
    }

    fn wait(&self, patience: Duration, holds: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let state = lock(&self.state);
        let waited = self
            .changed
            .wait_timeout_while(state, patience, |state| !holds(state));
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
    }

    /// Takes all events at the end.
    pub(super) fn take(&self) -> State {
        std::mem::take(&mut lock(&self.state))
    }
}

impl State {
    fn take(&mut self, event: Event) {
        let thinking = self.thinking.entry(event.worker).or_default();
        match event.line.what {
            WorkerStep::Read => drop(thinking.insert(event.line.lane)),
            WorkerStep::Sent { .. } | WorkerStep::ReadAgain { .. } | WorkerStep::Released => {
                thinking.remove(&event.line.lane);
            }
            _ => {}
        }
        let (adds, reads) = self.done.entry(event.line.kind).or_default();
        match event.line.what {
            WorkerStep::Acknowledged { .. } => *adds += 1,
            WorkerStep::ReadAgain { .. } => *reads += 1,
            _ => {}
        }
        self.events.push(event);
    }
}

/// How long to wait for a worker between read and write.
const THINKER_TIMEOUT: Duration = Duration::from_millis(50);
