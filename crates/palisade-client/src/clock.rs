//! The holder's clock: one that does not stop while the machine is suspended.

use std::pin::Pin;

use palisade_core::Timestamp;

/// A time that comes.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a holder reads to know whether it still holds.
///
/// It is a seam: tests put a clock here that moves only when told.
pub trait Clock: Send + Sync + 'static {
    /// How long the machine has been up, **suspend included** (CLOCK_BOOTTIME on Linux). An instant
    /// of this clock means nothing to any other.
    fn now(&self) -> Timestamp;

    /// Completes when [`Clock::now`] has reached `at`: also right after the machine was suspended or
    /// the process was stopped past it. Lost leases are announced by it.
    fn alarm(&self, at: Timestamp) -> Sleep;

    /// Like [`Clock::alarm`], but it may be late by as long as the machine was suspended, and in
    /// return costs no system call. For time-outs and pauses between retries.
    fn sleep_until(&self, at: Timestamp) -> Sleep {
        self.alarm(at)
    }
}

/// The machine's wall clock, for people to read: nothing is decided by it (rule A11).
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
#[expect(
    clippy::disallowed_methods,
    reason = "these systems do not tell the time of a grant; this one is only printed"
)]
pub(crate) fn wall() -> palisade_core::WallTime {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let millis = since.map_or(0, |since| since.as_millis());
    palisade_core::WallTime(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// The machine's own clock.
///
/// [`std::time::Instant`] is no substitute: on Linux it reads CLOCK_MONOTONIC, which stands still in
/// suspend (rust-lang/rust#87906), and a holder that slept through its lease would believe in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Timestamp {
        let time = rustix::time::clock_gettime(CLOCK);
        // Both parts are never negative on a clock that counts from boot.
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        Timestamp::from_nanos(
            seconds
                .saturating_mul(NANOS_PER_SECOND)
                .saturating_add(nanos),
        )
    }

    fn alarm(&self, at: Timestamp) -> Sleep {
        let clock = *self;
        Box::pin(async move {
            #[cfg(target_os = "linux")]
            if timer::wait_until(at).await.is_ok() {
                return;
            }
            // No timer to be had (no descriptors left): less exact beats not at all.
            clock.sleep_until(at).await;
        })
    }

    fn sleep_until(&self, at: Timestamp) -> Sleep {
        let clock = *self;
        Box::pin(async move {
            loop {
                let left = at.since(clock.now());
                if left == palisade_core::Span::ZERO {
                    return;
                }
                tokio::time::sleep(left.to_duration()).await;
            }
        })
    }
}

#[cfg(target_os = "linux")]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// Elsewhere the monotonic clock is the best there is; on macOS it counts suspend.
#[cfg(not(target_os = "linux"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

#[cfg(target_os = "linux")]
mod timer {
    //! A kernel timer on CLOCK_BOOTTIME: Tokio's own timers stand still in suspend.

    use std::io;

    use palisade_core::Timestamp;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use super::NANOS_PER_SECOND;

    pub(super) async fn wait_until(at: Timestamp) -> io::Result<()> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &once(at))?;
        // SAFETY: the AsyncFd owns the descriptor, which stays open and the same until it is dropped.
        let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE)? };
        timer.readable().await.map(drop)
    }

    /// One expiry. All zero would disarm the timer, so the first nanosecond stands for the past.
    fn once(at: Timestamp) -> Itimerspec {
        let nanos = at.as_nanos().max(1);
        let seconds = i64::try_from(nanos / NANOS_PER_SECOND).unwrap_or(i64::MAX);
        let rest = i64::try_from(nanos % NANOS_PER_SECOND).unwrap_or(0);
        Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: seconds,
                tv_nsec: rest,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::Span;

    use super::*;

    #[tokio::test]
    async fn an_alarm_in_the_past_rings_at_once_and_one_ahead_not_before() {
        let clock = BootClock;
        clock.alarm(Timestamp::ZERO).await;
        // real time: this is the clock that tests elsewhere replace.
        let at = clock.now().after(Span::from_millis(5));
        clock.alarm(at).await;
        assert!(clock.now() >= at);
        let at = at.after(Span::from_millis(5));
        clock.sleep_until(at).await;
        assert!(clock.now() >= at);
    }
}
