//! Observes every fact: hashes it, keeps it for the trace, passes it to the checkers.

use std::hash::{Hash as _, Hasher};

use super::check::{self, Check};
use super::counts::Counts;
use super::fact::Fact;
use super::mutants::Mutant;
use super::plan::Plan;

/// A broken rule, and the fact that broke it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule's name.
    pub rule: &'static str,
    /// The observation that breaks it.
    pub what: String,
    /// The virtual time in nanoseconds.
    pub at: u64,
}

/// The result of one run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Equal for equal seeds.
    pub hash: u64,
    /// The broken rule, if any.
    pub violation: Option<Violation>,
    /// All events with their virtual times in nanoseconds; empty unless requested.
    pub trace: Vec<(u64, Fact)>,
    /// Event counts.
    pub counts: Counts,
}

pub(crate) struct Observer {
    hash: Mix,
    counts: Counts,
    trace: Option<Vec<(u64, Fact)>>,
    checks: Vec<Box<dyn Check>>,
    pub(crate) violation: Option<Violation>,
}

impl Observer {
    pub(crate) fn new(plan: &Plan, mutant: Option<Mutant>, trace: bool) -> Observer {
        Observer {
            hash: Mix(plan.seed),
            counts: Counts::default(),
            trace: trace.then(Vec::new),
            checks: check::all(plan, mutant.map(|mutant| mutant.row().checker)),
            violation: None,
        }
    }

    pub(crate) fn see(&mut self, now: u64, fact: Fact) {
        if self.violation.is_some() {
            return;
        }
        self.hash.write_u64(now);
        fact.hash(&mut self.hash);
        self.counts.see(&fact);
        for check in &mut self.checks {
            if let Err(what) = check.see(now, &fact) {
                self.violation = Some(Violation {
                    rule: check.name(),
                    what,
                    at: now,
                });
                break;
            }
        }
        if let Some(trace) = &mut self.trace {
            trace.push((now, fact));
        }
    }

    pub(crate) fn into_run(self) -> Run {
        Run {
            hash: self.hash.finish(),
            violation: self.violation,
            trace: self.trace.unwrap_or_default(),
            counts: self.counts,
        }
    }
}

/// A hash that is the same on every machine and with every version of Rust's library.
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
