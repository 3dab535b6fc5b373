//! The only clocks of the server.

use std::time::Duration;

use palisade_core::{Span, Timestamp, WallTime};
use rustix::time::{ClockId, clock_gettime};

/// The clock that stamps the log.
#[derive(Debug)]
pub enum Clock {
    /// CLOCK_BOOTTIME, which counts suspended time, resumed from where the log ended.
    Running(Running),
    /// Moves only when it is set. For tests of expiry in a user's own code.
    Manual(Timestamp),
}

/// A clock that goes on by itself.
#[derive(Debug)]
pub struct Running {
    resumed_at: Timestamp,
    boot_then: u64,
}

impl Clock {
    /// A clock that shows `at` now and runs.
    #[must_use]
    pub fn running_from(at: Timestamp) -> Clock {
        Clock::Running(Running {
            resumed_at: at,
            boot_then: boottime(),
        })
    }

    /// A clock that shows `at` until it is moved.
    #[must_use]
    pub fn manual_from(at: Timestamp) -> Clock {
        Clock::Manual(at)
    }

    pub(super) fn now(&self) -> Timestamp {
        match self {
            Clock::Running(Running {
                resumed_at,
                boot_then,
            }) => resumed_at.after(Span::from_nanos(boottime().saturating_sub(*boot_then))),
            Clock::Manual(now) => *now,
        }
    }

    /// How long to sleep until the clock shows `due`, at most `longest`. Waiting does not move a manual clock.
    pub(super) fn until(&self, due: Option<Timestamp>, longest: Duration) -> Duration {
        match (self, due) {
            (Clock::Running(_), Some(due)) => longest.min(due.since(self.now()).to_duration()),
            (Clock::Manual(now), Some(due)) if due <= *now => Duration::ZERO,
            _ => longest,
        }
    }

    /// Moves a manual clock; `None` if this one runs by itself.
    pub(super) fn advance(&mut self, by: Span) -> Option<Timestamp> {
        match self {
            Clock::Running(_) => None,
            Clock::Manual(now) => {
                *now = now.after(by);
                Some(*now)
            }
        }
    }

    pub(super) fn is_manual(&self) -> bool {
        matches!(self, Clock::Manual(_))
    }
}

/// The time on the wall clock: for people, and for a restore, which leaps farther the later it is.
pub(crate) fn wall() -> WallTime {
    let now = clock_gettime(ClockId::Realtime);
    let millis = i128::from(now.tv_sec) * 1_000 + i128::from(now.tv_nsec) / 1_000_000;
    WallTime(u64::try_from(millis).unwrap_or(0))
}

/// The processor time that this thread has used, which is not the time that passed.
pub(super) fn processor_time() -> Span {
    Span::from_nanos(nanos(ClockId::ThreadCPUTime))
}

fn boottime() -> u64 {
    nanos(ClockId::Boottime)
}

fn nanos(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}
