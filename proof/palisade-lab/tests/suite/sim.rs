//! The simulation: no rule is broken, equal seeds give equal results, and every removed rule is detected.
//!
//! `PALISADE_SIM_SEEDS` runs more seeds than 10,000, `PALISADE_SIM_FROM` starts elsewhere.

use palisade_core::Token;
use palisade_core::fence::{FenceState, Op, Pass, Rearm, Reject, Rule, Sequence, Verdict};
use palisade_lab::sim::mutants::TABLE;
use palisade_lab::sim::{Batch, Fact, Plan, PlannedFault, first_violation, run, run_seed, shrink};

fn number(variable: &str, otherwise: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => otherwise,
    }
}

fn batch(seeds: u64) -> Batch {
    Batch {
        from: number("PALISADE_SIM_FROM", 0),
        seeds,
        threads: std::thread::available_parallelism().unwrap().get(),
    }
}

#[test]
fn ten_thousand_seeds_break_no_rule() {
    let summary = batch(number("PALISADE_SIM_SEEDS", 10_000)).run(|_, _| ());
    println!("{}", summary.counts);
    assert_eq!(
        summary.violations,
        [],
        "replay: palisade-lab sim --seed N --trace"
    );
    let counts = summary.counts;
    for (what, count) in [
        ("an expiry", counts.expired),
        ("a shared grant", counts.shared),
        ("a grant of permits", counts.permits),
        ("a set", counts.sets),
        ("a set that waited", counts.waiting_sets),
        ("a lock that stays closed", counts.closed),
        ("a caller that left its queue", counts.callers_gone),
        ("a place that was reserved", counts.orphaned),
        ("a grant that reached nobody", counts.unclaimed),
        ("a rejected operation", counts.rejected),
        ("a double belief", counts.overlaps),
        ("a restart", counts.restarts),
        ("a restore", counts.restores),
        ("a damaged directory", counts.damaged),
        ("a stall", counts.stalls),
        ("a full disk", counts.full),
        ("a snapshot", counts.snapshots),
        ("a lost fence", counts.fences_lost),
    ] {
        assert!(count > 10, "{what} hardly ever happened: {counts}");
    }
}

/// A caller comes back after its place was lost, and its request says anew how many permits there are. The checker of slots
/// took each of these for a number that had changed by itself.
#[test]
fn a_request_that_comes_back_too_late_names_the_number_anew() {
    for seed in [60_100, 75_192, 97_287] {
        assert_eq!(run_seed(seed).violation, None, "seed {seed}");
    }
}

#[test]
fn equal_seeds_end_in_equal_hashes_on_any_thread() {
    let one = Batch {
        threads: 1,
        ..batch(300)
    };
    let (alone, together) = (one.run(|_, _| ()), batch(300).run(|_, _| ()));
    assert_eq!((alone.hash, alone.counts), (together.hash, together.counts));
    assert_ne!(run_seed(1).hash, run_seed(2).hash);
}

#[test]
fn a_traced_run_equals_the_untraced_one() {
    let (silent, traced) = (run(Plan::of(7), None, false), run(Plan::of(7), None, true));
    assert_eq!(silent.hash, traced.hash);
    assert!(silent.trace.is_empty());
    assert_eq!(traced.trace.len() as u64, traced.counts.facts);
    assert!(matches!(traced.trace.last(), Some((_, Fact::Ended))));
}

/// Control for the whole simulation: each checker finds its violation.
#[test]
fn every_removed_rule_is_detected_within_ten_thousand_seeds() {
    for row in TABLE {
        let (seed, violation) = first_violation(batch(10_000), row.mutant)
            .unwrap_or_else(|| panic!("{} was not found by '{}'", row.mutant, row.checker));
        println!("{}: seed {seed}: {}", row.mutant, violation.what);
        assert_eq!(violation.rule, row.checker, "{}", row.mutant);
        let whole = run(Plan::of(seed), None, false);
        assert_eq!(
            whole.violation, None,
            "seed {seed} breaks a rule without the mutant"
        );
    }
}

#[test]
fn a_shorter_schedule_breaks_the_same_rule() {
    let row = TABLE[0];
    let (seed, violation) = first_violation(batch(10_000), row.mutant).unwrap();
    let (plan, shorter) = shrink(Plan::of(seed), Some(row.mutant));
    assert_eq!(shorter.violation.unwrap().rule, violation.rule);
    assert!(plan.faults.len() < Plan::of(seed).faults.len().max(1));
}

/// A fence admits a jump up to a bound (F10). A resource that saw nothing while the authority was restored again and
/// again still admits it after more restores than a server sees in its life; after too many it rejects the token, and
/// an operator has to help.
#[test]
fn a_resource_admits_tokens_after_many_restores_of_the_authority() {
    let after = |restores: u64| {
        let mut plan = Plan::of(1);
        plan.chaos_ms = 600 + 200 * restores;
        plan.faults = vec![(0, PlannedFault::Isolate(5, plan.chaos_ms))];
        for n in 0..restores {
            plan.faults.push((300 + 200 * n, PlannedFault::Backup));
            plan.faults.push((400 + 200 * n, PlannedFault::Restore(1)));
        }
        run(plan, None, false).violation
    };
    assert_eq!(after(1), None);
    assert_eq!(after(12), None);
    let violation = after(64).expect("64 leaps are too many at once");
    assert!(violation.what.ends_with("jump"), "{}", violation.what);
}

/// A re-armed fence forgets earlier writes, so the floor must be a token that nobody holds: with the current holder's
/// own token as the floor, its late duplicates are admitted again.
#[test]
fn a_floor_at_the_holders_own_token_admits_its_duplicates_again() {
    let token = Token::new(4).unwrap();
    let write = Op::Write(Sequence::new(1));
    let Verdict::Admit(Some(written)) =
        Rule::CLAIM.decide(&FenceState::default(), Pass::new(token), write)
    else {
        panic!("a first write is admitted");
    };
    let again = |state: &FenceState| Rule::CLAIM.decide(state, Pass::new(token), write);
    assert_eq!(again(&written), Verdict::Repeat);
    let armed = |floor: Token| {
        let with = Rearm {
            floor,
            authority: None,
            lower_from: None,
        };
        written.rearmed(&with).unwrap()
    };
    assert!(matches!(again(&armed(token)), Verdict::Admit(_)));
    assert!(matches!(
        again(&armed(token.next().unwrap())),
        Verdict::Reject(Reject::Stale { .. })
    ));
}
