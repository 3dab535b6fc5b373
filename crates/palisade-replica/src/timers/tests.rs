//! Times that fit together, and what goes wrong with others.

use super::*;

/// A small generator: a test of this file depends on its seed alone.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }

    fn times(&mut self) -> Times {
        let round_trip = self.below(30);
        let soonest = 1 + self.below(400);
        Times {
            round_trip,
            heartbeat: 1 + self.below(120),
            election: (soonest, soonest + self.below(400)),
            patience: 1 + self.below(2_000),
            silence: 1 + self.below(2_500),
        }
    }
}

/// A leader that is healthy, and one that hears nobody, by clocks that differ by a percent and messages that take up to
/// half a round trip each way. Gives what goes wrong.
fn simulate(times: Times, draw: &mut Draw) -> Option<&'static str> {
    // Microseconds of true time; a node's clock runs fast or slow.
    let rates = [9_950_u64, 10_050].map(|rate| {
        if draw.below(2) == 0 {
            rate
        } else {
            20_000 - rate
        }
    });
    let [at_leader, at_follower] = rates.map(|rate| move |ms: u64| ms * 1_000 * 10_000 / rate);
    let one_way = |draw: &mut Draw| draw.below(times.round_trip * 500 + 1);
    let lease = times.election.1;
    let gap = at_leader(times.heartbeat + tick(times.heartbeat));
    // Three heartbeats in a row are lost, or four without a vote being granted.
    let (heard, next) = (one_way(draw), 4 * gap + one_way(draw));
    if heard + at_follower(lease + times.election.0) < next {
        return Some("a healthy leader is challenged");
    }
    if heard + at_follower(lease) < 2 * gap + one_way(draw) {
        return Some("a voter is free although one heartbeat was lost");
    }
    // The leader counts from when it sent, and stands in the way of a candidate until then.
    let stands = at_follower(lease + times.election.0);
    if at_leader(lease) >= stands {
        return Some("an election begins before the lease at the leader is over");
    }
    if at_leader(times.patience) <= at_follower(lease) {
        return Some("a leader gives up within its lease");
    }
    // The last entries leave at `patience`. A follower that heard them at the latest stands, and is elected.
    let (latest, silent) = (
        lease + times.election.1,
        at_leader(times.patience + times.silence),
    );
    let heard = at_leader(times.patience) + times.round_trip * 500;
    if heard + at_follower(latest) > silent + at_leader(tick(times.heartbeat) + times.round_trip) {
        return Some("nobody is elected while the leader is silent");
    }
    None
}

#[test]
fn times_that_are_admitted_keep_a_healthy_leader_and_replace_a_deaf_one() {
    let mut draw = Draw(53);
    let (mut admitted, mut wrong) = (0, 0);
    while admitted < 2_000 {
        let times = draw.times();
        let fault = simulate(times, &mut draw);
        match Timers::new(times) {
            Ok(_) => {
                assert_eq!(fault, None, "{times:?}");
                admitted += 1;
            }
            Err(_) => wrong += u32::from(fault.is_some()),
        }
    }
    assert!(
        wrong > 1_000,
        "control: of those that are refused, {wrong} go wrong"
    );
}

/// Each relation refuses something that all others admit.
#[test]
fn each_contradiction_is_found() {
    let fits = Times {
        round_trip: 5,
        heartbeat: 40,
        election: (100, 160),
        patience: 400,
        silence: 400,
    };
    assert_eq!(Timers::new(fits), Ok(Profile::Rack.timers()), "control");
    let election = |soonest, latest| Times {
        election: (soonest, latest),
        patience: 2_000,
        silence: 5_000,
        ..fits
    };
    let early = Times {
        round_trip: 0,
        heartbeat: 2,
        ..election(3, 200)
    };
    for (times, expect) in [
        (
            Times {
                round_trip: 30,
                ..fits
            },
            Contradiction::Repeats,
        ),
        (
            Times {
                heartbeat: 100,
                ..fits
            },
            Contradiction::ShortLease,
        ),
        (early, Contradiction::EarlyElection),
        (election(155, 160), Contradiction::Collisions),
        (
            Times {
                patience: 200,
                ..fits
            },
            Contradiction::Impatient,
        ),
        (
            Times {
                silence: 330,
                ..fits
            },
            Contradiction::NotSilent,
        ),
        (
            Times {
                patience: 600,
                ..fits
            },
            Contradiction::NotSilent,
        ),
    ] {
        assert_eq!(Timers::new(times), Err(expect), "{times:?}");
    }
}

#[test]
fn a_round_trip_that_is_too_long_is_told_with_the_profile_that_suits_it() {
    let ms = Duration::from_millis;
    assert_eq!(Profile::Rack.contradicts(ms(5)), None);
    assert_eq!(
        Profile::Rack.contradicts(ms(38)).as_deref(),
        Some(
            "a round trip takes 38.0 ms, and --timers rack allows 5 ms: start every node with --timers multi-region"
        )
    );
    let beyond = Profile::MultiRegion.contradicts(ms(201)).unwrap();
    assert!(beyond.contains("closer to each other"), "{beyond}");
}

#[test]
fn a_profile_is_read_as_it_is_named() {
    for profile in Profile::ALL {
        assert_eq!(profile.name().parse(), Ok(profile));
        assert_eq!(Profile::of_code(profile.code()), Ok(profile));
    }
    assert!("regions".parse::<Profile>().is_err());
    assert!(Profile::of_code(3).is_err());
}
