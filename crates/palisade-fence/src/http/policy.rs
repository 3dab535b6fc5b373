//! The settings of a fence in front of a service.

use std::time::Duration;

/// The settings of a fence in front of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long a request waits for older ones to end. After that it is `unavailable`, and the mark was not raised.
    pub wait: Duration,
    /// How long a write may still take effect if its end was not seen. The promise after a time-out or a crash
    /// depends on this bound: choose it longer than the service ever works on one request.
    pub settle: Duration,
    /// Whether writes of one token run one at a time. Numbered writes always do.
    pub one_at_a_time: bool,
    /// How to treat writes without a token.
    pub tokenless: Tokenless,
    /// How the previous process ended.
    pub start: LastRun,
    /// The largest body of a write; a larger one is `too_large`. The body is read to its end before the write starts,
    /// so that no request waits for a slow client (rule F12).
    pub request_bytes: usize,
    /// How long the body of a write may take to arrive. Then the write is `request_timeout`.
    pub request_time: Duration,
    /// How long a write may take from its admission to the end of the service's answer. Then it is cut off,
    /// and settles. Afterwards its client has the same time again to read the answer.
    pub flight: Duration,
    /// The largest part of a write's answer that is buffered for a client that does not read it. Beyond that, the
    /// service waits for the client, until [`Policy::flight`] ends.
    pub answer_bytes: usize,
    /// The number of bytes that may be buffered for all requests together. If there is no room, a write is
    /// `unavailable`, and an answer waits.
    pub held_bytes: usize,
    /// Whether every answer comes from the service that carries out the writes, without a proxy in between. By
    /// default 408, 499, 502, 503, 504 and 520 – 530 do not end a write: a proxy may have sent them while the
    /// service continues.
    pub answers_for_itself: bool,
}

/// How to treat writes without a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokenless {
    /// They are refused, even before the resource is fenced, so that a forgotten token shows with the first write.
    Refused,
    /// They pass until the resource is fenced (rule F9), for services that are migrated gradually.
    UntilFenced,
}

/// How the previous process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastRun {
    /// There was none, or it ended with no write in progress.
    Clean,
    /// The last run may have ended with writes in progress, so no mark is raised before [`Policy::settle`] is over.
    Unclean,
}

impl Policy {
    /// The longest value of every time.
    pub const MAX: Duration = Duration::from_secs(24 * 3600);

    /// The shortest [`Policy::request_time`] and [`Policy::flight`].
    pub const MIN: Duration = Duration::from_millis(1);

    /// The largest [`Policy::held_bytes`], which bounds the other two sizes.
    pub const MAX_BYTES: usize = 1 << 40;

    /// Checks that every setting is in its range.
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
    /// Waits 10 s, settles in 30 s, allows concurrent writes under one token, refuses writes without a token, and
    /// assumes a clean start. Bodies of writes up to 16 MiB in 30 s; answers in 2 min, of which 64 MiB are buffered;
    /// 256 MiB for all.
    fn default() -> Policy {
        Policy {
            wait: Duration::from_secs(10),
            settle: Duration::from_secs(30),
            one_at_a_time: false,
            tokenless: Tokenless::Refused,
            start: LastRun::Clean,
            request_bytes: 16 << 20,
            request_time: Duration::from_secs(30),
            flight: Duration::from_secs(120),
            answer_bytes: 64 << 20,
            held_bytes: 256 << 20,
            answers_for_itself: false,
        }
    }
}

/// An invalid policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadPolicy {
    /// A time is out of its range.
    #[error("{name} = {given:?} is outside {min} ..= 24h")]
    Range {
        /// The setting.
        name: &'static str,
        /// The requested value.
        given: Duration,
        /// The smallest value.
        min: &'static str,
    },
    /// A size is out of its range.
    #[error("{name} = {given} is outside 1 ..= {max}")]
    Bytes {
        /// The setting.
        name: &'static str,
        /// The requested value.
        given: usize,
        /// The largest value; for the size of one body, [`Policy::held_bytes`].
        max: usize,
    },
    /// [`LastRun::Unclean`] needs a Tokio runtime, to wait until the writes have settled.
    #[error("an unclean start needs a Tokio runtime")]
    NoRuntime,
}
