//! Sees every fact: hashes it, keeps it for the trace, shows it to the checkers.

use std::hash::{Hash as _, Hasher};

use super::check::{self, Check};
use super::fact::{Fact, What};
use super::plan::Plan;

/// A rule that was broken, and the fact that broke it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule's name.
    pub rule: &'static str,
    /// What is wrong.
    pub what: String,
    /// When, in virtual nanoseconds.
    pub at: u64,
}

pub(crate) struct Observer {
    hash: Mix,
    pub(crate) facts: u64,
    pub(crate) grants: u64,
    pub(crate) added: u64,
    pub(crate) rejected: u64,
    trace: Option<Vec<(u64, Fact)>>,
    checks: Vec<Box<dyn Check>>,
    pub(crate) violation: Option<Violation>,
}

impl Observer {
    pub(crate) fn new(plan: &Plan, trace: bool) -> Observer {
        Observer {
            hash: Mix(plan.seed),
            facts: 0,
            grants: 0,
            added: 0,
            rejected: 0,
            trace: trace.then(Vec::new),
            checks: check::all(plan),
            violation: None,
        }
    }

    pub(crate) fn see(&mut self, now: u64, fact: Fact) {
        if self.violation.is_some() {
            return;
        }
        self.hash.write_u64(now);
        fact.hash(&mut self.hash);
        self.count(&fact);
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

    fn count(&mut self, fact: &Fact) {
        self.facts += 1;
        match fact {
            Fact::Published(turn) if matches!(turn.what, What::Granted(_)) => self.grants += 1,
            Fact::Added { .. } => self.added += 1,
            Fact::Rejected { .. } => self.rejected += 1,
            _ => {}
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    pub(crate) fn into_parts(self) -> (Option<Violation>, Vec<(u64, Fact)>) {
        (self.violation, self.trace.unwrap_or_default())
    }
}

/// A hash that is the same on every machine and in every version of Rust's library.
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
