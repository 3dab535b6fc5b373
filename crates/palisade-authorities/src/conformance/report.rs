//! The report of the suite.

use std::fmt;

/// The names of the checks, and the reason for each one that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    passed: Vec<&'static str>,
    failed: Vec<(&'static str, String)>,
    not_applicable: Vec<(&'static str, &'static str)>,
}

/// The outcome of one check.
pub(super) enum CheckOutcome {
    Passed,
    /// The authority does not claim this property; the text says why.
    NotApplicable(&'static str),
}

impl Report {
    /// The checks that passed, by name.
    #[must_use]
    pub fn passed(&self) -> &[&'static str] {
        &self.passed
    }

    /// The checks that failed, by name.
    #[must_use]
    pub fn failed(&self) -> Vec<&'static str> {
        self.failed.iter().map(|(name, _)| *name).collect()
    }

    /// The checks that do not apply to this authority, by name.
    #[must_use]
    pub fn not_applicable(&self) -> Vec<&'static str> {
        self.not_applicable.iter().map(|(name, _)| *name).collect()
    }

    /// Fails the calling test if any check failed.
    ///
    /// # Panics
    /// With every failed check and the reason.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.failed.is_empty(), "{self}");
        assert!(!self.passed.is_empty(), "no check was run");
    }

    pub(super) fn note(&mut self, name: &'static str, result: Result<CheckOutcome, String>) {
        match result {
            Ok(CheckOutcome::Passed) => self.passed.push(name),
            Ok(CheckOutcome::NotApplicable(why)) => self.not_applicable.push((name, why)),
            Err(saw) => self.failed.push((name, saw)),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed) = (self.passed.len(), self.failed.len());
        write!(f, "{passed} checks passed, {failed} failed")?;
        for (name, saw) in &self.failed {
            write!(f, "\n  {name}: {saw}")?;
        }
        for (name, why) in &self.not_applicable {
            write!(f, "\n  {name} does not apply: {why}")?;
        }
        Ok(())
    }
}
