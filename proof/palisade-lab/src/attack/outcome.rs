//! An attack and its outcome.

use super::harness::Harness;

/// One attack.
pub(super) struct Attack {
    pub(super) name: &'static str,
    /// Its row in the table of attacks (docs/reports/2026-11-lab.md).
    pub(super) row: u8,
    /// Its description, in one line.
    pub(super) does: &'static str,
    /// Its bounds in time and amount, in words.
    pub(super) bounds: &'static str,
    pub(super) run: fn(&Harness) -> Result<Outcome, String>,
}

/// How an attack ended.
pub(super) enum Outcome {
    /// It measured something.
    Measured {
        figure: String,
        limit: String,
        held: bool,
    },
    /// This machine does not allow the attack, so it proves nothing.
    NotRun { because: String },
}

impl Outcome {
    pub(super) fn measured(
        held: bool,
        figure: impl Into<String>,
        limit: impl Into<String>,
    ) -> Outcome {
        Outcome::Measured {
            figure: figure.into(),
            limit: limit.into(),
            held,
        }
    }

    pub(super) fn not_run(because: impl Into<String>) -> Outcome {
        Outcome::NotRun {
            because: because.into(),
        }
    }
}

/// The names after a count, if there are any.
pub(super) fn named(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        names => format!(": {}", names.join(" ")),
    }
}
