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
    /// Longest body of a numbered write that is read before it is let through, so that a number that is
    /// used for another write is noticed. Of a longer one only method, address and length are compared.
    pub compared_bytes: usize,
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
    /// Longest of either time.
    pub const MAX: Duration = Duration::from_secs(24 * 3600);

    /// Says which setting is out of its range.
    ///
    /// # Errors
    /// [`BadPolicy`].
    pub fn check(&self) -> Result<(), BadPolicy> {
        let times = [("wait", self.wait), ("settle", self.settle)];
        match times.into_iter().find(|(_, time)| *time > Policy::MAX) {
            Some((name, given)) => Err(BadPolicy::Range { name, given }),
            None => Ok(()),
        }
    }
}

impl Default for Policy {
    /// Waits 10 s, settles in 30 s, same-token writes at once, no write without a token, a clean start.
    fn default() -> Policy {
        Policy {
            wait: Duration::from_secs(10),
            settle: Duration::from_secs(30),
            one_at_a_time: false,
            tokenless: Tokenless::Refused,
            start: Start::Clean,
            compared_bytes: 64 << 10,
        }
    }
}

/// A policy that is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    /// A setting out of its range.
    #[error("{name} = {given:?} is outside 0s ..= 24h")]
    Range {
        /// Which.
        name: &'static str,
        /// What was given.
        given: Duration,
    },
    /// [`Start::Unclean`] was told outside a Tokio runtime, where nobody can wait for it to settle.
    #[error("an unclean start needs a Tokio runtime to settle in")]
    NoRuntime,
}
