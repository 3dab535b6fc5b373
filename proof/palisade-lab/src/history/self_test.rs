//! Tests the checker: clean histories must pass, and every illegal one must be found.

use std::collections::BTreeMap;

use super::event::Header;
use super::generate::{Shape, clean};
use super::mutate::{Kind, mutate};
use super::read::History;
use super::{Report, check};

/// The result of a test.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct SelfTest {
    /// Clean histories checked.
    pub clean: u64,
    /// Seeds of clean histories that were reported as illegal.
    pub false_alarms: Vec<u64>,
    /// Illegal histories checked, by kind.
    pub mutated: BTreeMap<&'static str, u64>,
    /// Kind and seed of those that were missed.
    pub missed: Vec<(&'static str, u64)>,
}

impl SelfTest {
    /// The number of illegal histories checked.
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

/// The size of a history in a test.
pub const SHAPE: Shape = Shape {
    clients: 6,
    locks: 3,
    operations: 160,
    kinds: true,
};

/// Every other history has exclusive and shared grants only.
fn shape(seed: u64) -> Shape {
    Shape {
        kinds: seed.is_multiple_of(2),
        ..SHAPE
    }
}

/// Checks `rounds` clean histories from seed `from` on, and an illegal mutation of each.
#[must_use]
pub fn run(from: u64, rounds: u64) -> SelfTest {
    let mut trial = SelfTest::default();
    for seed in from..from.saturating_add(rounds) {
        let events = clean(seed, shape(seed));
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

/// The names of all kinds of mutation.
#[must_use]
pub fn kinds() -> Vec<&'static str> {
    Kind::ALL.iter().map(|kind| kind.name()).collect()
}

fn report(events: &[super::Event]) -> Option<Report> {
    let history = History::from_events(Header::default(), events.iter().cloned());
    history.ok().map(|history| check(&history))
}
