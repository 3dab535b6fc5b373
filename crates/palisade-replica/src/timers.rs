//! The times of a cluster, as profiles. Every node of a cluster has the same one.
//!
//! ```text
//!   at a follower   last heartbeat ──lease: no vote for another──► ──election, at random──► pre-vote, vote
//!   at a leader     last quorum    ──patience──► serves no longer (R5), silent for `silence` (R6), tries again, …
//! ```
//!
//! No time decides whether an answer is right: each rests on a committed entry, or on a quorum that was asked (rule R4). The
//! times decide how soon a dead leader is replaced, and whether a healthy one is left in place.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::codec::Malformed;

/// How far apart the nodes of a cluster are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profile {
    /// In one rack or data centre: round trips up to 5 ms.
    Rack,
    /// In one region: round trips up to 20 ms.
    #[default]
    Region,
    /// In several regions: round trips up to 200 ms.
    MultiRegion,
}

impl Profile {
    /// All of them, the shortest times first.
    pub const ALL: [Profile; 3] = [Profile::Rack, Profile::Region, Profile::MultiRegion];

    /// The name, as `--timers` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Rack => "rack",
            Profile::Region => "region",
            Profile::MultiRegion => "multi-region",
        }
    }

    /// Its times.
    #[must_use]
    pub const fn timers(self) -> Timers {
        match self {
            Profile::Rack => RACK,
            Profile::Region => REGION,
            Profile::MultiRegion => MULTI_REGION,
        }
    }

    /// Why nodes with this profile and this round trip do not belong together, and what to do; `None` if they do.
    #[must_use]
    pub fn contradicts(self, round_trip: Duration) -> Option<String> {
        (round_trip > self.timers().round_trip()).then(|| self.advice(round_trip))
    }

    /// A round trip that is too long, and what to do.
    pub(crate) fn advice(self, round_trip: Duration) -> String {
        let longest = self.timers().round_trip();
        let fits = |profile: &Profile| round_trip <= profile.timers().round_trip();
        let next = match Profile::ALL.into_iter().find(fits) {
            Some(profile) => format!("start every node with --timers {profile}"),
            None => "no --timers allow for that: move the nodes closer to each other".to_owned(),
        };
        format!(
            "a round trip takes {:.1} ms, and --timers {self} allows {} ms: {next}",
            round_trip.as_secs_f64() * 1e3,
            longest.as_millis()
        )
    }

    pub(crate) fn code(self) -> u8 {
        match self {
            Profile::Rack => 0,
            Profile::Region => 1,
            Profile::MultiRegion => 2,
        }
    }

    pub(crate) fn of_code(code: u8) -> Result<Profile, Malformed> {
        let of = |profile: &Profile| profile.code() == code;
        let known = Profile::ALL.into_iter().find(of);
        known.ok_or(Malformed("a node has timers that are not known here"))
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(name: &str) -> Result<Profile, String> {
        let named = |profile: &Profile| profile.name() == name;
        let known = Profile::ALL.into_iter().find(named);
        known.ok_or_else(|| "one of rack, region and multi-region".to_owned())
    }
}

/// The times, in milliseconds of each node's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The longest round trip between two nodes for which the others are made.
    pub round_trip: u64,
    /// A leader is heard from at least this often. An append that is not answered within three quarters of it is sent again.
    pub heartbeat: u64,
    /// A node that hears from no leader stands for election after a random time between these, once the lease is over. The
    /// shorter one is also what a round of votes may take, with a sync at each voter.
    pub election: (u64, u64),
    /// A leader that hears no quorum for so long stops serving (rule R5), and then sends nothing (rule R6).
    pub patience: u64,
    /// For how long it sends nothing before it tries again (rule R6).
    pub silence: u64,
}

const RACK: Timers = Timers::of_profile(Times {
    round_trip: 5,
    heartbeat: 40,
    election: (100, 160),
    patience: 400,
    silence: 400,
});

const REGION: Timers = Timers::of_profile(Times {
    round_trip: 20,
    heartbeat: 50,
    election: (200, 340),
    patience: 680,
    silence: 750,
});

const MULTI_REGION: Timers = Timers::of_profile(Times {
    round_trip: 200,
    heartbeat: 350,
    election: (900, 1_400),
    patience: 2_800,
    silence: 3_400,
});

/// How much a node's clock may be fast or slow, in percent.
const DRIFT: u64 = 1;

/// Times that fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers(Times);

/// Times that do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// An append would be sent again before its answer can be there.
    #[error("an append is repeated before its answer can arrive")]
    Repeats,
    /// A voter would elect another leader after two lost heartbeats, or a follower stand for election after four.
    #[error("lost heartbeats end the lease of a healthy leader")]
    ShortLease,
    /// A node would stand while a former leader, with the slower clock, still counts its own lease, and refuses to vote.
    #[error("an election may begin before the lease at the leader is over")]
    EarlyElection,
    /// Nodes that stand at random times would often meet.
    #[error("two elections begin within one round trip of each other")]
    Collisions,
    /// A leader would stop serving while its followers keep its lease.
    #[error("a leader stops serving although its lease lasts")]
    Impatient,
    /// Nobody would be elected while a leader that hears nobody is silent, or it would not be silent at all.
    #[error("a leader that hears no quorum is not silent for as long as an election takes")]
    NotSilent,
}

impl Timers {
    /// Times that fit together: `lease` is the longest election time-out.
    ///
    /// # Errors
    /// [`Contradiction`], the first one.
    pub const fn new(times: Times) -> Result<Timers, Contradiction> {
        let Times {
            round_trip,
            heartbeat,
            election: (soonest, latest),
            patience,
            silence,
        } = times;
        let lease = latest;
        // The engine looks at its timers in steps of this length.
        let gap = heartbeat + tick(heartbeat);
        if heartbeat * 3 / 4 <= round_trip {
            return Err(Contradiction::Repeats);
        }
        let healthy = is_over(2 * gap + round_trip, lease);
        if !healthy || !is_over(4 * gap + round_trip, lease + soonest) {
            return Err(Contradiction::ShortLease);
        }
        // The leader counts from when it sent what a quorum acknowledged, the others from when they heard it, which is later.
        if !is_over(lease, lease + soonest) {
            return Err(Contradiction::EarlyElection);
        }
        if latest < soonest + 2 * round_trip || soonest * 3 / 4 < 2 * round_trip {
            return Err(Contradiction::Collisions);
        }
        if !is_over(lease + 2 * gap + round_trip, patience) {
            return Err(Contradiction::Impatient);
        }
        // The engine's own pauses begin with the end of the lease. A pre-vote and a vote take a round trip each.
        let elected = lease + latest + tick(heartbeat) + 2 * round_trip;
        if !is_over(elected, silence) || patience - lease >= silence {
            return Err(Contradiction::NotSilent);
        }
        Ok(Timers(times))
    }

    /// A profile with a contradiction does not compile.
    #[expect(clippy::panic, reason = "the profiles are constants")]
    const fn of_profile(times: Times) -> Timers {
        match Timers::new(times) {
            Ok(timers) => timers,
            Err(_) => panic!("a profile contradicts itself"),
        }
    }

    /// The longest round trip between two nodes.
    #[must_use]
    pub const fn round_trip(self) -> Duration {
        Duration::from_millis(self.0.round_trip)
    }

    /// A leader is heard from at least this often.
    #[must_use]
    pub const fn heartbeat(self) -> Duration {
        Duration::from_millis(self.0.heartbeat)
    }

    /// For how long a node that heard a leader votes for no other one.
    #[must_use]
    pub const fn lease(self) -> Duration {
        Duration::from_millis(self.0.election.1)
    }

    /// The shortest and the longest time after the end of the lease until a node stands for election.
    #[must_use]
    pub const fn election(self) -> (Duration, Duration) {
        let (soonest, latest) = self.0.election;
        (
            Duration::from_millis(soonest),
            Duration::from_millis(latest),
        )
    }

    /// A leader that hears no quorum for so long serves no longer (rule R5).
    #[must_use]
    pub const fn patience(self) -> Duration {
        Duration::from_millis(self.0.patience)
    }

    /// For how long it sends nothing then, before it tries again (rule R6).
    #[must_use]
    pub const fn silence(self) -> Duration {
        Duration::from_millis(self.0.silence)
    }
}

/// Whether the first time, by a slow clock, is over when the second one is, by a fast clock.
const fn is_over(first: u64, second: u64) -> bool {
    first * (100 + DRIFT) < second * (100 - DRIFT)
}

/// The step in which the engine looks at its timers.
const fn tick(heartbeat: u64) -> u64 {
    let step = heartbeat * 13 / 64;
    if step == 0 { 1 } else { step }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
