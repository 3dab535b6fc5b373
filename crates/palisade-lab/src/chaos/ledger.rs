//! Everything that was heard in one world, on one clock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::Timestamp;

use super::event::{Event, Fault, Said, Target, What};
use super::server::lock;

/// What happened, in the order in which the director heard of it.
#[derive(Debug)]
pub(super) struct Ledger {
    origin: Timestamp,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) events: Vec<Event>,
    pub(super) faults: Vec<Fault>,
    pub(super) acknowledged: u64,
    /// The lanes on which a worker has read and not written yet.
    thinking: BTreeMap<usize, BTreeSet<usize>>,
    /// How many processes of a worker have ended.
    ended: BTreeMap<usize, u32>,
}

impl Ledger {
    pub(super) fn new() -> Ledger {
        Ledger {
            origin: BootClock.now(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn now_ms(&self) -> f64 {
        BootClock.now().since(self.origin).as_nanos() as f64 / 1e6
    }

    /// A worker's line; `None` is the end of its process.
    pub(super) fn hear(&self, worker: usize, line: Option<&str>) {
        let at_ms = self.now_ms();
        let mut state = lock(&self.state);
        match line.map(serde_json::from_str::<Said>) {
            Some(Ok(said)) => state.take(Event {
                at_ms,
                worker,
                said,
            }),
            // A line that a kill has cut in two was not heard.
            Some(Err(_)) => {}
            None => {
                state.thinking.remove(&worker);
                *state.ended.entry(worker).or_default() += 1;
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A fault that is over.
    pub(super) fn note(&self, from_ms: f64, target: Target, what: String) {
        let to_ms = self.now_ms();
        lock(&self.state).faults.push(Fault {
            from_ms,
            to_ms,
            target,
            what,
        });
    }

    pub(super) fn acknowledged(&self) -> u64 {
        lock(&self.state).acknowledged
    }

    /// Of these workers, but for one, whoever is between read and write on most lanes; waits for it, but not long.
    pub(super) fn thinker(&self, workers: Range<usize>, but: Option<usize>) -> Option<usize> {
        let most = |state: &State| {
            let lanes = |worker: &usize| state.thinking.get(worker).map_or(0, BTreeSet::len);
            let others = workers.clone().filter(|worker| Some(*worker) != but);
            let most = others.max_by_key(lanes)?;
            (lanes(&most) > 0).then_some(most)
        };
        let state = self.wait(LOOK, |state| most(state).is_some());
        most(&state)
    }

    /// Waits until this many processes of a worker have ended; whether they have.
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

    /// Everything, once nobody has anything to say any more.
    pub(super) fn take(&self) -> State {
        std::mem::take(&mut lock(&self.state))
    }
}

impl State {
    fn take(&mut self, event: Event) {
        let thinking = self.thinking.entry(event.worker).or_default();
        match event.said.what {
            What::Read => drop(thinking.insert(event.said.lane)),
            What::Sent { .. } => drop(thinking.remove(&event.said.lane)),
            What::Acknowledged { .. } => self.acknowledged += 1,
            _ => {}
        }
        self.events.push(event);
    }
}

/// How long to look for somebody who thinks.
const LOOK: Duration = Duration::from_millis(50);
