//! How long each phase of a take-over took.
//!
//! ```text
//!   last word of the leader ──silence──► votes asked for ──vote──► elected ──log──► machine lent ──grace──► serves
//! ```

use std::fmt;
use std::time::Duration;

/// This node's latest take-over, by its own clock. Each phase begins where the one before ends; a caller's own search for
/// the leader comes on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// The term in which it leads.
    pub term: u64,
    /// From the last message of the former leader until this node asked for votes: that leader's lease, and the random time
    /// after it. `None` if no leader was heard since this node started.
    pub silence: Option<Duration>,
    /// Until a majority had voted, in as many rounds as that took. `None` if nobody had to vote.
    pub vote: Option<Duration>,
    /// Until an entry of its own term was committed and everything before it applied (rule R9).
    pub log: Duration,
    /// Until the batch that gives every live lease its full time was committed (rule R10): it serves.
    pub grace: Duration,
}

impl Takeover {
    /// The phases by name, in their order, those that took place.
    pub fn phases(self) -> impl Iterator<Item = (&'static str, Duration)> {
        let Takeover {
            term: _,
            silence,
            vote,
            log,
            grace,
        } = self;
        [
            ("silence", silence),
            ("vote", vote),
            ("log", Some(log)),
            ("grace", Some(grace)),
        ]
        .into_iter()
        .filter_map(|(name, took)| Some((name, took?)))
    }
}

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, took)) in self.phases().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {} ms", took.as_millis())?;
        }
        Ok(())
    }
}
