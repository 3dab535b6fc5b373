//! Virtual time, and the clocks that each process derives from it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use palisade_client::clock::{Clock, Sleep};
use palisade_core::Timestamp;

/// Locks a mutex that only this thread uses.
pub(crate) fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The real time in nanoseconds, which no process can read.
#[derive(Debug, Default)]
pub(crate) struct VirtualTime(AtomicU64);

impl VirtualTime {
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }
}

/// The clock of one machine: it has a rate, it may jump, and it has alarms.
///
/// It implements the real client's [`Clock`]; the authority's stamps come from one, too.
#[derive(Debug)]
pub(crate) struct MachineClock {
    time: Arc<VirtualTime>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// It showed `shown` at the virtual instant `since`.
    since: u64,
    shown: u64,
    rate_ppm: u64,
    alarms: BTreeMap<(u64, u64), Waker>,
    serial: u64,
}

impl MachineClock {
    /// A clock that shows `shown` now and gains `rate_ppm` microseconds per virtual second.
    pub(crate) fn new(time: Arc<VirtualTime>, shown: u64, rate_ppm: u64) -> Arc<MachineClock> {
        let state = State {
            since: time.now(),
            shown,
            rate_ppm,
            alarms: BTreeMap::new(),
            serial: 0,
        };
        Arc::new(MachineClock {
            time,
            state: Mutex::new(state),
        })
    }

    pub(crate) fn nanos(&self) -> u64 {
        hold(&self.state).at(self.time.now())
    }

    /// Steps the clock forwards or backwards.
    pub(crate) fn jump(&self, by: i64) {
        let now = self.time.now();
        let mut state = hold(&self.state);
        state.shown = state.at(now).saturating_add_signed(by).max(1);
        state.since = now;
    }

    /// The virtual instant at which this clock will show `local`.
    pub(crate) fn when(&self, local: u64) -> u64 {
        hold(&self.state).when(local)
    }

    /// When the next alarm is due, in virtual time.
    pub(crate) fn next_alarm(&self) -> Option<u64> {
        let state = hold(&self.state);
        let (local, _) = state.alarms.first_key_value()?.0;
        (*local != u64::MAX).then(|| state.when(*local))
    }

    /// Triggers one alarm that is due; `false` if none is.
    pub(crate) fn ring(&self) -> bool {
        let now = self.time.now();
        let waker = {
            let mut state = hold(&self.state);
            let shows = state.at(now);
            match state.alarms.first_entry() {
                Some(first) if first.key().0 <= shows => first.remove(),
                _ => return false,
            }
        };
        waker.wake();
        true
    }
}

impl State {
    fn at(&self, now: u64) -> u64 {
        let passed = u128::from(now - self.since) * u128::from(self.rate_ppm) / MILLION;
        self.shown + passed as u64
    }

    fn when(&self, local: u64) -> u64 {
        let wanted = u128::from(local.saturating_sub(self.shown)) * MILLION;
        let passed = wanted.div_ceil(u128::from(self.rate_ppm));
        u64::try_from(u128::from(self.since) + passed).unwrap_or(u64::MAX)
    }
}

const MILLION: u128 = 1_000_000;

/// A machine's clock, as the real client uses it.
#[derive(Clone, Debug)]
pub(crate) struct ClientClock(pub(crate) Arc<MachineClock>);

impl Clock for ClientClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.nanos())
    }

    fn alarm(&self, at: Timestamp) -> Sleep {
        Box::pin(Alarm {
            clock: Arc::clone(&self.0),
            at: at.as_nanos(),
            serial: None,
        })
    }
}

struct Alarm {
    clock: Arc<MachineClock>,
    at: u64,
    serial: Option<u64>,
}

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (clock, at) = (Arc::clone(&self.clock), self.at);
        let mut state = hold(&clock.state);
        let serial = match self.serial {
            None if state.at(clock.time.now()) >= at => return Poll::Ready(()),
            None => {
                state.serial += 1;
                state.serial
            }
            // The alarm was triggered. Only this says so: another wake of this task must not overtake the alarm.
            Some(serial) if !state.alarms.contains_key(&(at, serial)) => return Poll::Ready(()),
            Some(serial) => serial,
        };
        self.serial = Some(serial);
        state.alarms.insert((at, serial), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(serial) = self.serial {
            let waker = hold(&self.clock.state).alarms.remove(&(self.at, serial));
            drop(waker);
        }
    }
}
