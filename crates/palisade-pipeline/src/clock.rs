//! The only clocks of the server.

use palisade_core::{Span, Timestamp, WallTime};
use rustix::time::{ClockId, clock_gettime};

/// The clock that stamps the log.
#[derive(Debug)]
pub enum LogClock {
    /// CLOCK_BOOTTIME, which counts suspended time, resumed from where the log ended.
    Running(Running),
    /// Moves only when it is set. For tests of expiry in a user's own code.
    Manual(Timestamp),
}

/// A clock that runs by itself.
#[derive(Debug)]
pub struct Running {
    resumed_at: Timestamp,
    boot_then: u64,
}

impl LogClock {
    /// A clock that shows `at` now and runs.
    #[must_use]
    pub fn running_from(at: Timestamp) -> LogClock {
        LogClock::Running(Running {
            resumed_at: at,
            boot_then: boottime(),
        })
    }

    /// A clock that shows `at` until it is moved.
    #[must_use]
    pub fn manual_from(at: Timestamp) -> LogClock {
        LogClock::Manual(at)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.at(boottime())
    }

    /// The time that it shows at this reading of [`boottime`].
    pub(super) fn at(&self, boottime: u64) -> Timestamp {
        match self {
            LogClock::Running(Running {
                resumed_at,
                boot_then,
            }) => resumed_at.after(Span::from_nanos(boottime.saturating_sub(*boot_then))),
            LogClock::Manual(now) => *now,
        }
    }

    /// The value of CLOCK_BOOTTIME when this clock showed `at`; `None` for a manual clock.
    pub(super) fn boottime_at(&self, at: Timestamp) -> Option<u64> {
        match self {
            LogClock::Running(running) => {
                let since = at.since(running.resumed_at).as_nanos();
                Some(running.boot_then.saturating_add(since))
            }
            LogClock::Manual(_) => None,
        }
    }

    /// Moves a manual clock; `None` if this one runs by itself.
    pub(super) fn advance(&mut self, by: Span) -> Option<Timestamp> {
        match self {
            LogClock::Running(_) => None,
            LogClock::Manual(now) => {
                *now = now.after(by);
                Some(*now)
            }
        }
    }

    pub(super) fn is_manual(&self) -> bool {
        matches!(self, LogClock::Manual(_))
    }
}

/// The time on the wall clock: for people, and for a restore, which leaps farther the later it is.
#[must_use]
pub fn wall() -> WallTime {
    let now = clock_gettime(ClockId::Realtime);
    let millis = i128::from(now.tv_sec) * 1_000 + i128::from(now.tv_nsec) / 1_000_000;
    WallTime(u64::try_from(millis).unwrap_or(0))
}

/// The processor time that this thread has used, which is not the time that passed.
///
/// Unlike the other clocks, the kernel shows this one by a system call only. So a reading serves for [`STALE`], which is
/// short beside every pause that matters (rule A7).
#[derive(Debug, Default)]
pub(super) struct ProcessorTime {
    /// [`boottime`] at the last reading.
    read_at: u64,
    used: Span,
}

/// A reading of the processor time is at most this old, in nanoseconds.
const STALE: u64 = 1_000_000;

impl ProcessorTime {
    /// The time used until `now` of [`boottime`], or until less than [`STALE`] before.
    pub(super) fn at(&mut self, now: u64) -> Span {
        if self.used == Span::ZERO || now.saturating_sub(self.read_at) >= STALE {
            let used = Span::from_nanos(nanos(ClockId::ThreadCPUTime));
            (self.read_at, self.used) = (now, used);
        }
        self.used
    }
}

/// Nanoseconds since the machine started, suspended time included.
#[must_use]
pub fn boottime() -> u64 {
    nanos(ClockId::Boottime)
}

fn nanos(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    let Ok(nanos) = u64::try_from(nanos) else {
        unreachable!("a clock of the kernel that began at 0 shows {nanos}");
    };
    nanos
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn time(clock: ClockId) -> Duration {
        Duration::try_from(clock_gettime(clock)).unwrap()
    }

    #[test]
    fn each_clock_shows_what_the_kernel_shows() {
        type Read = fn() -> Duration;
        let clocks: [(ClockId, Read, u128); 3] = [
            (
                ClockId::Realtime,
                || Duration::from_millis(wall().0),
                1_000_000,
            ),
            (
                ClockId::ThreadCPUTime,
                || ProcessorTime::default().at(boottime()).to_duration(),
                1,
            ),
            (ClockId::Boottime, || Duration::from_nanos(boottime()), 1),
        ];
        for (clock, read, unit) in clocks {
            let [before, shown, after] = [time(clock), read(), time(clock)];
            let [before, shown, after] = [before, shown, after].map(|time| time.as_nanos() / unit);
            assert!(before <= shown && shown <= after, "{clock:?}");
            assert!(shown > 0);
        }
    }

    /// The control of each reading: the kernel's own clock has moved on by then.
    #[test]
    fn a_reading_of_the_processor_time_serves_for_a_millisecond() {
        let work_on = |since: Span| while time(ClockId::ThreadCPUTime) <= since.to_duration() {};
        let mut processor = ProcessorTime::default();
        let first = processor.at(7 * STALE);
        work_on(first);
        assert_eq!(processor.at(8 * STALE - 1), first);
        let second = processor.at(8 * STALE);
        assert!(second > first);
        work_on(second);
        assert_eq!(processor.at(9 * STALE - 1), second);
        assert!(processor.at(9 * STALE) > second);
    }

    #[test]
    fn a_running_clock_goes_on_from_where_it_was_and_is_not_moved() {
        let before = time(ClockId::Boottime);
        let mut clock = LogClock::running_from(at(5_000));
        let moves = (0..1_000_000).any(|_| clock.now() > at(5_000));
        assert!(moves);
        assert_eq!(clock.advance(Span::from_millis(1 << 30)), None);
        let shown = clock.now().since(at(5_000)).to_duration();
        assert!(shown <= time(ClockId::Boottime) - before);
        assert!(!clock.is_manual());
    }

    #[test]
    fn a_manual_clock_shows_what_it_was_set_to() {
        let mut clock = LogClock::manual_from(at(5_000));
        assert_eq!(clock.now(), at(5_000));
        assert_eq!(clock.advance(Span::from_millis(7)), Some(at(5_007)));
        assert_eq!(clock.now(), at(5_007));
        assert!(clock.is_manual());
    }
}
