//! Shortens a failing schedule: removes everything from the plan that the violation does not need.

use super::mutants::Mutant;
use super::observer::Run;
use super::plan::{LOCKS, Plan};
use super::world::run;

/// The shortest plan found that breaks the same rule, with its traced run.
#[must_use]
pub fn shrink(plan: Plan, mutant: Option<Mutant>) -> (Plan, Run) {
    let mut best = plan;
    let mut found = run(best.clone(), mutant, true);
    let Some(rule) = found.violation.as_ref().map(|violation| violation.rule) else {
        return (best, found);
    };
    let mut again = true;
    while again {
        again = false;
        for candidate in smaller(&best) {
            let tried = run(candidate.clone(), mutant, true);
            let same = tried
                .violation
                .as_ref()
                .is_some_and(|violation| violation.rule == rule);
            if same && weight(&candidate, &tried) < weight(&best, &found) {
                (best, found) = (candidate, tried);
                again = true;
                break;
            }
        }
    }
    (best, found)
}

/// Prefers fewer faults and less noise, then fewer facts.
fn weight(plan: &Plan, run: &Run) -> (usize, u64, usize) {
    let noise = [plan.loss, plan.duplication, plan.spikes];
    let noisy = noise.iter().filter(|permille| **permille > 0).count();
    let kinds = [plan.delays, plan.readers, plan.sets].into_iter();
    let kinds = kinds.chain(plan.permits.map(u64::from));
    let kinds = kinds.filter(|kind| *kind > 0).count() as u64;
    let people = u64::from(plan.clients) + u64::from(plan.locks);
    (plan.faults.len() + noisy, people + kinds, run.trace.len())
}

/// Plans that are smaller by one thing.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut found = Vec::new();
    let mut with = |change: &dyn Fn(&mut Plan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        found.push(smaller);
    };
    for index in 0..plan.faults.len() {
        with(&|plan| {
            plan.faults.remove(index);
        });
    }
    with(&|plan| plan.loss = 0);
    with(&|plan| plan.duplication = 0);
    with(&|plan| plan.spikes = 0);
    with(&|plan| plan.locks = 1);
    if plan.locks > 2 {
        with(&|plan| plan.locks -= 1);
    }
    with(&|plan| plan.sets = 0);
    with(&|plan| plan.permits = [0; LOCKS]);
    with(&|plan| plan.delays = 0);
    with(&|plan| plan.readers = 0);
    with(&|plan| plan.updates = 0);
    if plan.clients > 2 {
        with(&|plan| plan.clients -= 1);
    }
    // Another seed for the choices during the run may fail earlier.
    for other in 1..=24 {
        with(&|plan| plan.seed = plan.seed.wrapping_add(other << 40));
    }
    found
}
