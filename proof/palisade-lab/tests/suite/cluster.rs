//! The replicated mode in virtual time.

use palisade_lab::cluster::{
    Counts, Failover, Mutant, Quiet, Rule, Steady, TABLE, Terms, failovers, quiet, run, run_on,
    steady,
};
use palisade_replica::Profile;

/// Seeds that the gate runs; `PALISADE_CLUSTER_SEEDS` for more.
fn seeds() -> u64 {
    let wanted = std::env::var("PALISADE_CLUSTER_SEEDS").ok();
    wanted.and_then(|wanted| wanted.parse().ok()).unwrap_or(40)
}

#[test]
fn no_rule_is_broken() {
    if let Ok(seed) = std::env::var("PALISADE_CLUSTER_SEED") {
        let run = run(seed.parse().unwrap(), None, true);
        println!("{}", run.trace.join("\n"));
        assert!(run.violation.is_none(), "{:?}", run.violation);
        return;
    }
    let mut counts = Counts::default();
    for seed in 0..seeds() {
        let run = run(seed, None, false);
        if let Some(violation) = run.violation {
            panic!("seed {seed}: {violation}");
        }
        counts += run.counts;
    }
    // It would be no proof if nothing had happened.
    assert!(
        counts.grants > 10 * seeds() && counts.leaders > 3 * seeds(),
        "{counts:?}"
    );
    assert!(counts.kills > seeds() && counts.pauses > seeds() && counts.cuts > seeds());
    assert!(
        counts.changes > 0 && counts.snapshots > seeds() && counts.full_disks > seeds(),
        "{counts:?}"
    );
}

#[test]
fn equal_seeds_end_equal() {
    let [first, second] = [(), ()].map(|()| run(3, None, true));
    assert_eq!(first.trace, second.trace);
    assert_eq!(first.hash, second.hash);
    assert_ne!(run(4, None, false).hash, first.hash);
}

/// The first seed in which a mutant is found, and the rule that it breaks. Seeds with a scenario come first: most mutants
/// need one.
fn found(mutant: Mutant, within: u64) -> Option<(u64, Rule)> {
    let (scenarios, others): (Vec<u64>, Vec<u64>) = (0..within).partition(|seed| seed % 3 == 2);
    let mut seeds = scenarios.into_iter().chain(others);
    seeds.find_map(|seed| Some((seed, run(seed, Some(mutant), false).violation?.rule)))
}

#[test]
fn every_mutant_is_found() {
    let mut missed = Vec::new();
    for (mutant, rules) in TABLE {
        let found = found(*mutant, 100);
        println!("{mutant:?}: {found:?}");
        if !found.is_some_and(|(_, rule)| rules.contains(&rule)) {
            missed.push((mutant, found));
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// A14 and R8: each change of leader costs a closed lock the time without a leader, and at most a minute. The control is a
/// leader whose stamps do not reach the log: each one takes its five minutes with it.
#[test]
fn a_lock_that_is_closed_for_long_opens_in_time_however_often_leaders_are_killed() {
    /// A minute, and an election.
    const MOST_MS: i64 = 65_000;
    let seed = 7;
    let Quiet { late_ms, changes } = quiet(seed, None).unwrap();
    println!("{late_ms} ms late after {changes} changes");
    assert!(changes >= 3, "{changes}");
    // Clocks of nodes are off by 0.4 % at most.
    assert!(late_ms > -5_000, "{late_ms}");
    let most = changes.cast_signed() * MOST_MS + 5_000;
    assert!(late_ms < most, "{late_ms} ms late after {changes} changes");
    let without = quiet(seed, Some(Mutant::NoStamps));
    println!("without stamps: {without:?}");
    assert!(without.is_err(), "{without:?}");
}

/// Ten minutes in which nothing fails, and in which each sync takes 100 ms: no leader is replaced, with any profile as far
/// apart as it allows. The control is a network that is too slow for the shortest one.
#[test]
fn a_leader_stays_with_each_profile() {
    const SECONDS: u64 = 600;
    for timers in Profile::ALL {
        let steady = steady(Terms::of(timers), 53, SECONDS, 100);
        let expect = Steady {
            elected: 0,
            without: 0,
        };
        assert_eq!(steady, expect, "--timers {timers}");
    }
    let far = Terms {
        timers: Profile::Rack,
        ..Terms::of(Profile::MultiRegion)
    };
    let steady = steady(far, 53, 60, 0);
    assert!(steady.without > 0, "control: {steady:?}");
}

/// Twenty leaders of a rack are killed: another node serves within 0.4 s in the middle and 0.6 s at the longest, and each
/// phase is known. The control is a region, whose timers are longer.
#[test]
fn a_dead_leader_in_a_rack_is_replaced_within_its_time() {
    let replaced = |timers: Profile| {
        let all = failovers(Terms::of(timers), 53, 20, 0).unwrap();
        let mut took: Vec<u64> = all.iter().map(|failover| failover.took_ms).collect();
        took.sort_unstable();
        for Failover { took_ms, phases } in &all {
            println!("--timers {timers}: {took_ms} ms: {phases}");
        }
        for Failover { took_ms, phases } in all {
            let known: u128 = phases.phases().map(|(_, took)| took.as_millis()).sum();
            let heartbeat = timers.timers().heartbeat().as_millis();
            // The kill comes up to a heartbeat after the last message, and clocks of nodes are off by 0.4 %.
            let most = u128::from(took_ms) + heartbeat + 20;
            assert!(known <= most, "{took_ms} ms: {phases}");
        }
        (took[took.len() / 2], took[took.len() - 1])
    };
    let (middle, longest) = replaced(Profile::Rack);
    assert!(middle <= 400 && longest <= 600, "{middle} and {longest} ms");
    let (middle, _) = replaced(Profile::Region);
    assert!(middle > 400, "control: {middle} ms");
}

/// The rules hold with the other profiles as well.
#[test]
fn no_rule_is_broken_with_short_or_long_timers() {
    for (timers, share) in [(Profile::Rack, 2), (Profile::MultiRegion, 8)] {
        for seed in 0..seeds() / share {
            let run = run_on(Terms::of(timers), seed, None, false);
            assert!(
                run.violation.is_none(),
                "--timers {timers}, seed {seed}: {:?}",
                run.violation
            );
        }
    }
}
