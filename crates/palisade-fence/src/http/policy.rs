//! How a fence in front of a service behaves. Plain values.

use std::time::Duration;

/// How a fence in front of a service behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long a request waits for older ones to end; then it is `unavailable` and nothing was raised.
    pub wait: Duration,
    /// How long a write may still take effect after its end was not seen. The bound that a promise after
    /// a time-out or a crash rests on: choose it above all that the service does for one request.
    pub settle: Duration,
    /// Whether writes of one token go one at a time. Numbered ones always do.
    pub one_at_a_time: bool,
    /// What becomes of writes without a token.
    pub tokenless: Tokenless,
    /// What became of the process before this one.
    pub start: Start,
    /// Longest body of a write: it is read to its end before the write takes its place, so that nobody waits
    /// for a client that sends slowly (rule F12). A longer one is `too_large`.
    pub request_bytes: usize,
    /// How long the body of a write may take to arrive; then it is `request_timeout`.
    pub request_time: Duration,
    /// How long a write may take from its admission to the end of the service's answer. Then it is cut off,
    /// and settles. Afterwards its client has as long again to read the answer.
    pub flight: Duration,
    /// How much of the answer to a write is kept for a client that does not read it. What the service
    /// sends beyond waits for the client, up to the end of [`Policy::flight`].
    pub answer_bytes: usize,
    /// How many bytes of bodies are kept for all requests together. A write that finds no room is
    /// `unavailable`; an answer waits.
    pub held_bytes: usize,
    /// Whether the service is the one that carries writes out, and no proxy stands before it. By default 408,
    /// 499, 502, 503, 504 and 520 – 530 do not say that a write has ended: a proxy says so while it goes on.
    pub answers_for_itself: bool,
}

/// What becomes of writes without a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokenless {
    /// Refused, also where nothing was fenced yet: whoever forgot it learns it from the first write.
    Refused,
    /// Let through until the resource is fenced (rule F9), for services that are moved over bit by bit.
    UntilFenced,
}

/// What became of the process before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// There was none, or it ended with nothing under way.
    Clean,
    /// It may have ended with writes under way: no mark is raised before [`Policy::settle`] is over.
    Unclean,
}

impl Policy {
    /// Longest of any time.
    pub const MAX: Duration = Duration::from_secs(24 * 3600);

    /// Shortest [`Policy::request_time`] and [`Policy::flight`].
    pub const MIN: Duration = Duration::from_millis(1);

    /// Largest [`Policy::held_bytes`]; the other two are at most that.
    pub const MAX_BYTES: usize = 1 << 40;

    /// Says which setting is out of its range.
    ///
    /// # Errors
    /// [`BadPolicy`].
    pub fn check(&self) -> Result<(), BadPolicy> {
        for (name, given, min) in [
            ("wait", self.wait, Duration::ZERO),
            ("settle", self.settle, Duration::ZERO),
            ("request_time", self.request_time, Policy::MIN),
            ("flight", self.flight, Policy::MIN),
        ] {
            if !(min..=Policy::MAX).contains(&given) {
                let min = if min.is_zero() { "0s" } else { "1ms" };
                return Err(BadPolicy::Range { name, given, min });
            }
        }
        for (name, given, max) in [
            ("held_bytes", self.held_bytes, Policy::MAX_BYTES),
            ("request_bytes", self.request_bytes, self.held_bytes),
            ("answer_bytes", self.answer_bytes, self.held_bytes),
        ] {
            if !(1..=max).contains(&given) {
                return Err(BadPolicy::Bytes { name, given, max });
            }
        }
        Ok(())
    }
}

impl Default for Policy {
    /// Waits 10 s, settles in 30 s, same-token writes at once, no write without a token, a clean start.
    /// Bodies of writes up to 16 MiB in 30 s, answers in 2 min, of which 64 MiB are kept; 256 MiB for all.
    fn default() -> Policy {
        Policy {
            wait: Duration::from_secs(10),
            settle: Duration::from_secs(30),
            one_at_a_time: false,
            tokenless: Tokenless::Refused,
            start: Start::Clean,
            request_bytes: 16 << 20,
            request_time: Duration::from_secs(30),
            flight: Duration::from_secs(120),
            answer_bytes: 64 << 20,
            held_bytes: 256 << 20,
            answers_for_itself: false,
        }
    }
}

/// A policy that is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    /// A setting out of its range.
    #[error("{name} = {given:?} is outside {min} ..= 24h")]
    Range {
        /// Which.
        name: &'static str,
        /// What was given.
        given: Duration,
        /// The shortest it may be.
        min: &'static str,
    },
    /// A size out of its range.
    #[error("{name} = {given} is outside 1 ..= {max}")]
    Bytes {
        /// Which.
        name: &'static str,
        /// What was given.
        given: usize,
        /// The most it may be: nothing is kept beyond what all may keep together.
        max: usize,
    },
    /// [`Start::Unclean`] was told outside a Tokio runtime, where nobody can wait for it to settle.
    #[error("an unclean start needs a Tokio runtime to settle in")]
    NoRuntime,
}
