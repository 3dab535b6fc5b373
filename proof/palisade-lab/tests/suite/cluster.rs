//! The replicated mode in virtual time.

use palisade_lab::cluster::{Counts, Mutant, Rule, TABLE, run};

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
