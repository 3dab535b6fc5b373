//! Tracks the activity of a connection and detects when something takes too long.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use super::Settings;

/// The activity of a connection, for [`Overdue`].
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Whether anything was read yet.
    opened: AtomicBool,
    /// Whether the peer speaks HTTP/2.
    http2: AtomicBool,
    /// Requests begun.
    begun: AtomicU64,
    /// Requests whose answers were sent.
    ended: AtomicU64,
    /// Whether bytes arrived since the last request began or ended: the start of a head.
    reading: AtomicBool,
    /// Whether bytes moved in either direction since the last check.
    bytes_moved: AtomicBool,
    /// Unsent answers, by the period in which they began: even or odd.
    answers: [AtomicU64; 2],
    /// The current period, even or odd.
    period: AtomicUsize,
}

impl Activity {
    pub(super) fn begin(self: &Arc<Activity>, http2: bool) -> RunningRequest {
        self.begun.fetch_add(1, Relaxed);
        self.reading.store(false, Relaxed);
        if http2 {
            self.http2.store(true, Relaxed);
        }
        RunningRequest {
            activity: Arc::clone(self),
            answering: None,
        }
    }

    pub(super) fn received(&self, bytes: &[u8]) {
        // A preface that arrives in pieces is recognised only at its first request.
        if !self.opened.swap(true, Relaxed) && bytes.starts_with(PREFACE) {
            self.http2.store(true, Relaxed);
        }
        self.reading.store(true, Relaxed);
        self.bytes_moved.store(true, Relaxed);
    }

    pub(super) fn sent(&self) {
        self.bytes_moved.store(true, Relaxed);
    }

    /// Whether no request is in flight and no byte moved in either direction since the last call.
    pub(super) fn is_quiet(&self) -> bool {
        let bytes_moved = self.bytes_moved.swap(false, Relaxed);
        !bytes_moved && self.begun.load(Relaxed) == self.ended.load(Relaxed)
    }

    /// Begins a new period; returns whether unsent answers from before the last period are left.
    fn turn(&self) -> bool {
        let next = 1 - self.period.load(Relaxed);
        let left = self.answers[next].load(Relaxed) > 0;
        self.period.store(next, Relaxed);
        left
    }
}

/// A request whose answer is not sent yet.
#[derive(Debug)]
pub(super) struct RunningRequest {
    activity: Arc<Activity>,
    /// The period in which its answer began, if the answer has a time limit.
    answering: Option<usize>,
}

impl RunningRequest {
    /// From now on the time limit of the answer applies.
    pub(super) fn answering(&mut self) {
        let period = self.activity.period.load(Relaxed);
        self.activity.answers[period].fetch_add(1, Relaxed);
        self.answering = Some(period);
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        if let Some(period) = self.answering {
            self.activity.answers[period].fetch_sub(1, Relaxed);
        }
        self.activity.ended.fetch_add(1, Relaxed);
        self.activity.reading.store(false, Relaxed);
    }
}

/// Finds connections that take too long over a head or an answer, or do nothing. Called once per head time-out.
pub(super) struct Overdue {
    begun: u64,
    reading: bool,
    idle_checks: u128,
    most_idle_checks: u128,
    /// Checks in the current period, and checks per period.
    period_checks: u128,
    most_period_checks: u128,
}

/// The decision about a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ConnectionVerdict {
    /// Nothing to do.
    Fine,
    /// Close it gracefully: it is idle.
    Idle,
    /// Cut it; the text names the step that took too long.
    Slow(&'static str),
}

impl Overdue {
    pub(super) fn new(settings: &Settings) -> Overdue {
        let head = settings.head_timeout.as_nanos().max(1);
        Overdue {
            begun: 0,
            reading: false,
            idle_checks: 0,
            most_idle_checks: settings.idle_timeout.as_nanos().div_ceil(head),
            period_checks: 0,
            most_period_checks: settings.answer_timeout.as_nanos().div_ceil(head),
        }
    }

    pub(super) fn check(&mut self, activity: &Activity) -> ConnectionVerdict {
        self.period_checks += 1;
        if self.period_checks >= self.most_period_checks {
            self.period_checks = 0;
            if activity.turn() {
                return ConnectionVerdict::Slow("an answer was not read");
            }
        }
        let begun = activity.begun.load(Relaxed);
        let in_flight = begun != activity.ended.load(Relaxed);
        let reading = activity.reading.load(Relaxed);
        let same = begun == self.begun && !in_flight;
        // The first head is due one time-out after the connection; a later one is overdue at the second check that
        // finds it unfinished.
        let slow = same && (begun == 0 || (reading && self.reading));
        self.idle_checks = if same { self.idle_checks + 1 } else { 0 };
        (self.begun, self.reading) = (begun, reading && !in_flight);
        if slow && !activity.http2.load(Relaxed) {
            ConnectionVerdict::Slow("the head of a request did not arrive")
        } else if self.idle_checks >= self.most_idle_checks {
            ConnectionVerdict::Idle
        } else {
            ConnectionVerdict::Fine
        }
    }
}

/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const HEAD: &str = "the head of a request did not arrive";

    fn overdue() -> Overdue {
        Overdue::new(&Settings {
            head_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(15),
            ..Settings::default()
        })
    }

    #[test]
    fn a_connection_that_never_sends_a_head_is_slow_at_the_first_check() {
        let activity = Activity::default();
        assert_eq!(overdue().check(&activity), ConnectionVerdict::Slow(HEAD));
        activity.received(b"GET / HTT");
        assert_eq!(overdue().check(&activity), ConnectionVerdict::Slow(HEAD));
    }

    #[test]
    fn an_http2_connection_may_be_opened_ahead_of_its_first_request() {
        let activity = Activity::default();
        activity.received(PREFACE);
        let mut overdue = overdue();
        let verdicts = [(); 3].map(|()| overdue.check(&activity));
        assert_eq!(
            verdicts,
            [
                ConnectionVerdict::Fine,
                ConnectionVerdict::Fine,
                ConnectionVerdict::Idle
            ]
        );
    }

    #[test]
    fn a_request_in_flight_is_neither_idle_nor_slow() {
        let activity = Arc::new(Activity::default());
        activity.received(b"GET /v1/watch HTTP/1.1\r\n\r\n");
        let running = activity.begin(false);
        let mut overdue = overdue();
        for _ in 0..10 {
            assert_eq!(overdue.check(&activity), ConnectionVerdict::Fine);
        }
        drop(running);
        let verdicts = [(); 3].map(|()| overdue.check(&activity));
        assert_eq!(
            verdicts,
            [
                ConnectionVerdict::Fine,
                ConnectionVerdict::Fine,
                ConnectionVerdict::Idle
            ]
        );
    }

    #[test]
    fn a_second_head_that_stalls_is_slow_at_the_second_check_that_sees_it() {
        let activity = Arc::new(Activity::default());
        drop(activity.begin(false));
        let mut overdue = overdue();
        assert_eq!(overdue.check(&activity), ConnectionVerdict::Fine);
        activity.received(b"GET /");
        assert_eq!(overdue.check(&activity), ConnectionVerdict::Fine);
        assert_eq!(overdue.check(&activity), ConnectionVerdict::Slow(HEAD));
    }

    #[test]
    fn a_connection_is_quiet_without_requests_and_without_bytes_since_the_last_check() {
        let activity = Arc::new(Activity::default());
        activity.received(PREFACE);
        assert_eq!([(); 2].map(|()| activity.is_quiet()), [false, true]);
        activity.sent();
        assert_eq!([(); 2].map(|()| activity.is_quiet()), [false, true]);
        let running = activity.begin(true);
        assert_eq!([(); 2].map(|()| activity.is_quiet()), [false, false]);
        drop(running);
        assert!(activity.is_quiet());
    }

    #[test]
    fn an_answer_that_is_not_read_is_slow_after_a_whole_period_and_a_watch_never_is() {
        let activity = Arc::new(Activity::default());
        let settings = Settings {
            head_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
            ..Settings::default()
        };
        let mut overdue = Overdue::new(&settings);
        let _watch = activity.begin(false);
        let mut answer = activity.begin(false);
        let mut checks = |count| (0..count).map(|_| overdue.check(&activity)).last().unwrap();
        assert_eq!(checks(7), ConnectionVerdict::Fine);
        answer.answering();
        // The rest of this period, and a whole one.
        assert_eq!(checks(2), ConnectionVerdict::Fine);
        assert_eq!(checks(1), ConnectionVerdict::Slow("an answer was not read"));
        drop(answer);
        assert_eq!(checks(10), ConnectionVerdict::Fine);
    }
}
