//! Runs many seeds on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::clock::hold;
use super::counts::Counts;
use super::mutants::Mutant;
use super::observer::Violation;
use super::plan::Plan;
use super::run;

/// A range of seeds.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// The first seed.
    pub from: u64,
    /// The number of seeds.
    pub seeds: u64,
    /// The number of threads.
    pub threads: usize,
}

/// The result of a batch.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The number of seeds run.
    pub seeds: u64,
    /// Event counts over all seeds.
    pub counts: Counts,
    /// A hash over all hashes, independent of the threads.
    pub hash: u64,
    /// The violations, by seed.
    pub violations: Vec<(u64, Violation)>,
}

impl Batch {
    /// Runs every seed without a mutant. `each` is called now and then with the number of seeds done and the number of
    /// those that broke a rule.
    pub fn run(self, each: impl Fn(u64, u64) + Sync) -> Summary {
        let total = Mutex::new(Summary::default());
        let (next, broken) = (AtomicU64::new(0), AtomicU64::new(0));
        let work = || {
            let mut mine = Summary::default();
            loop {
                let first = next.fetch_add(CHUNK, Ordering::Relaxed);
                if first >= self.seeds {
                    break;
                }
                let before = mine.violations.len();
                for index in first..self.seeds.min(first + CHUNK) {
                    mine.add(self.from + index);
                }
                let more = (mine.violations.len() - before) as u64;
                each(first, broken.fetch_add(more, Ordering::Relaxed) + more);
            }
            hold(&total).merge(mine);
        };
        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(work);
            }
        });
        let mut total = total.into_inner().unwrap_or_default();
        total.violations.sort_by_key(|(seed, _)| *seed);
        total
    }
}

impl Summary {
    fn add(&mut self, seed: u64) {
        let run = run(Plan::of(seed), None, false);
        self.seeds += 1;
        self.hash ^= run.hash.wrapping_mul(seed | 1);
        self.counts.merge(&run.counts);
        self.violations
            .extend(run.violation.map(|violation| (seed, violation)));
    }

    fn merge(&mut self, other: Summary) {
        self.seeds += other.seeds;
        self.hash ^= other.hash;
        self.counts.merge(&other.counts);
        self.violations.extend(other.violations);
    }
}

/// The first seed of a range that finds a mutant, and its violation.
#[must_use]
pub fn first_violation(batch: Batch, mutant: Mutant) -> Option<(u64, Violation)> {
    let best: Mutex<Option<(u64, Violation)>> = Mutex::new(None);
    let next = AtomicU64::new(0);
    let found = AtomicBool::new(false);
    let work = || {
        while !found.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= batch.seeds {
                break;
            }
            let seed = batch.from + index;
            if let Some(violation) = run(Plan::of(seed), Some(mutant), false).violation {
                found.store(true, Ordering::Relaxed);
                let mut best = hold(&best);
                if best.as_ref().is_none_or(|(other, _)| seed < *other) {
                    *best = Some((seed, violation));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..batch.threads {
            scope.spawn(work);
        }
    });
    best.into_inner().unwrap_or_default()
}

/// How many seeds a thread takes at once.
const CHUNK: u64 = 64;
