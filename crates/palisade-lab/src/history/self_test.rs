//! The checker on trial: clean histories must pass, and every one that was made illegal must be found.

use std::collections::BTreeMap;

use super::event::Header;
use super::generate::{Shape, clean};
use super::mutate::{Kind, mutate};
use super::read::History;
use super::{Report, check};

/// How the trial ended.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Trial {
    /// Clean histories checked.
    pub clean: u64,
    /// Seeds of clean ones in which a violation was seen.
    pub false_alarms: Vec<u64>,
    /// Made illegal and checked, by kind.
    pub mutated: BTreeMap<&'static str, u64>,
    /// Kind and seed of those that passed.
    pub missed: Vec<(&'static str, u64)>,
}

impl Trial {
    /// All illegal histories tried.
    #[must_use]
    pub fn tried(&self) -> u64 {
        self.mutated.values().sum()
    }

    /// No false alarm, and at least 99 in a hundred found.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.false_alarms.is_empty() && self.missed.len() as u64 * 100 <= self.tried()
    }
}

/// The size of a history in a trial.
pub const SHAPE: Shape = Shape {
    clients: 6,
    locks: 3,
    operations: 160,
};

/// Checks `rounds` clean histories from seed `from` on, and one that was made illegal from each.
#[must_use]
pub fn run(from: u64, rounds: u64) -> Trial {
    let mut trial = Trial::default();
    for seed in from..from.saturating_add(rounds) {
        let events = clean(seed, SHAPE);
        trial.clean += 1;
        if report(&events).is_none_or(|report| !report.violations.is_empty()) {
            trial.false_alarms.push(seed);
        }
        if let Some((kind, mutated)) = mutate(&events, seed) {
            *trial.mutated.entry(kind.name()).or_default() += 1;
            if report(&mutated).is_some_and(|report| report.violations.is_empty()) {
                trial.missed.push((kind.name(), seed));
            }
        }
    }
    trial
}

/// Every kind of mutation, for those who want to see each one tried.
#[must_use]
pub fn kinds() -> Vec<&'static str> {
    Kind::ALL.iter().map(|kind| kind.name()).collect()
}

fn report(events: &[super::Event]) -> Option<Report> {
    let history = History::from_events(Header::default(), events.iter().cloned());
    history.ok().map(|history| check(&history))
}
