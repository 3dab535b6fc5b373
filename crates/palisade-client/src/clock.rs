//! The holder's clock, which does not stop while the machine is suspended.

use std::pin::Pin;

pub use palisade_core::Timestamp;

/// A future that completes at a given instant.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The clock by which a holder checks its deadline.
///
/// It is a trait so that tests can supply a clock that they move themselves.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time since boot, **suspend included** (CLOCK_BOOTTIME on Linux). Compare it only with instants of
    /// the same clock.
    fn now(&self) -> Timestamp;

    /// Completes when [`Clock::now`] has reached `at`. If the machine was suspended or the process stopped past that
    /// instant, it completes right afterwards. It announces lost leases.
    fn alarm(&self, at: Timestamp) -> Sleep;

    /// Like [`Clock::alarm`], without its system call, but it may be late by as long as the machine was suspended. Use
    /// it for time-outs and pauses between retries.
    fn sleep_until(&self, at: Timestamp) -> Sleep {
        self.alarm(at)
    }
}

/// The machine's own clock.
///
/// [`std::time::Instant`] is no substitute: on Linux it reads CLOCK_MONOTONIC, which stops during suspend
/// (rust-lang/rust#87906), so a holder that was suspended past its lease would still believe that it holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Timestamp {
        let time = rustix::time::clock_gettime(CLOCK);
        // On a clock that counts from boot, neither part is negative.
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
            // Without a free descriptor there is no timer; use the less exact sleep.
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
/// Other systems use the monotonic clock, the best one there; on macOS it includes suspend.
#[cfg(not(target_os = "linux"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

#[cfg(target_os = "linux")]
mod timer {
    //! A kernel timer on CLOCK_BOOTTIME, because Tokio's own timers stop during suspend.

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
        // SAFETY: the AsyncFd owns the descriptor, which stays open and unchanged until it is dropped.
        let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE)? };
        timer.readable().await.map(drop)
    }

    /// A single expiry. All zero would disarm the timer, so the first nanosecond stands for the past.
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
    async fn an_alarm_in_the_past_fires_at_once_and_a_later_one_not_early() {
        let clock = BootClock;
        clock.alarm(Timestamp::ZERO).await;
        // real time: other tests replace this clock.
        let at = clock.now().after(Span::from_millis(5));
        clock.alarm(at).await;
        assert!(clock.now() >= at);
        let at = at.after(Span::from_millis(5));
        clock.sleep_until(at).await;
        assert!(clock.now() >= at);
    }
}
