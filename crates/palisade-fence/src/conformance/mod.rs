//! The suite that every fence must pass.
//!
//! A backend implements [`Subject`], which creates fresh resources, and calls [`run`]:
//!
//! ```
//! # use palisade_fence::conformance::{self, Habit, Subject};
//! # use palisade_fence::{StoreLimits, Result, Rule, memory};
//! struct Memory(memory::Store);
//!
//! impl Subject for Memory {
//!     type Fence = memory::Resource;
//!     async fn fresh(&self, name: &str) -> Result<memory::Resource> {
//!         self.0.resource(name)
//!     }
//! }
//!
//! # async fn test() {
//! let store = memory::Store::new(Rule::CLAIM, StoreLimits::DEFAULT);
//! conformance::run(&Memory(store), Habit::CLAIM).await.assert_passed();
//! # }
//! ```
//!
//! A control arm lacks a check on purpose: compare [`Report::failed`] with the failures that you expect.
//!
//! A resource that can crash, or lose its fence and keep its data (rules F4 and F7), implements
//! [`Subject::crash`] and [`Subject::lose_fence`]; [`Report::left_out`] names the checks that were left out.
//! Tokens outside `1 ..= 2^53 - 1` cannot be expressed here and are tested at each wire.

mod checks;
mod frozen;
mod losses;
mod race;
mod steps;

use std::fmt;
use std::future::Future;

use crate::error::Result;
use crate::fence::Fence;

pub use race::{LateWrites, late_writes};

/// A backend under test.
pub trait Subject: Sync {
    /// The type of its resources.
    type Fence: Fence;

    /// Returns a new resource. The requested names differ within one run.
    fn fresh(&self, name: &str) -> impl Future<Output = Result<Self::Fence>> + Send;

    /// Kills the resources' server as hard as possible, and starts it again. Returns `false` if there is no server to
    /// kill; the check is then left out.
    ///
    /// # Errors
    /// The reason why that failed.
    fn crash(&self) -> impl Future<Output = Result<bool, String>> + Send {
        async { Ok(false) }
    }

    /// Removes the fence of the resource with this name and leaves its data, as a partial restore does. Returns `false`
    /// if the fence cannot be lost alone; the check is then left out.
    ///
    /// # Errors
    /// The reason why that failed.
    fn lose_fence(&self, name: &str) -> impl Future<Output = Result<bool, String>> + Send {
        let _ = name;
        async { Ok(false) }
    }
}

/// The properties of the backend under test, which follow from its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Habit {
    /// Whether a grant writes only once (strict), or equal tokens are admitted repeatedly.
    pub one_write_per_grant: bool,
    /// The largest jump of a token; `None` if it is not bounded.
    pub max_jump: Option<u64>,
    /// Whether it can append.
    pub appends: bool,
    /// Whether writes can be numbered, and so repeated (rule F5).
    pub numbers: bool,
    /// Whether its tokens name their authority (rule F6).
    pub authorities: bool,
    /// Whether a pass reaches the fence as it is, with its reporter; otherwise a refusal has to be reported behind the wire.
    pub reports: bool,
    /// The number of rounds of the races.
    pub rounds: u64,
}

impl Habit {
    /// [`Rule::CLAIM`](crate::Rule::CLAIM) with all features.
    pub const CLAIM: Habit = Habit {
        one_write_per_grant: false,
        max_jump: Some(crate::DEFAULT_MAX_JUMP),
        appends: true,
        numbers: true,
        authorities: true,
        reports: true,
        rounds: 1_000,
    };

    /// [`Rule::STRICT`](crate::Rule::STRICT) with all features.
    pub const STRICT: Habit = Habit {
        one_write_per_grant: true,
        ..Habit::CLAIM
    };
}

/// The checks that the textbook fence fails: it stops nothing that a claim or a read should have stopped. A
/// control arm with `>=` on writes is compared with this list.
pub const TEXTBOOK_FAILS: &[&str] = &[
    "a_late_write_after_a_claim_is_rejected",
    "a_late_write_after_a_tokened_read_is_rejected",
    "a_stale_read_is_rejected",
    "a_stale_claim_is_rejected",
    "readers_of_one_phase_pass_together_and_a_late_writer_does_not",
    "a_zombie_reader_is_rejected",
    "a_slots_zombie_is_rejected_beside_live_holders",
    "a_write_claims_by_itself",
    "a_released_token_counts_until_a_higher_one_comes",
    "a_leap_beyond_the_bound_is_rejected",
    "another_authority_is_an_error",
    "a_named_authority_binds_and_naming_none_is_an_error",
    "the_forced_schedule_loses_nothing",
    "racing_holders_lose_no_acknowledged_write",
    "a_frozen_writer_loses_nothing",
    "a_repeated_number_is_carried_out_once",
    "a_lower_number_is_rejected",
    "a_number_is_not_reused_for_another_write",
    "an_append_is_repeated_safely",
    "a_write_given_up_and_repeated_is_there_once",
];

/// The checks that a resource without any fence fails.
pub const UNFENCED_FAILS: &[&str] = &[
    "a_zombie_write_is_rejected_and_changes_nothing",
    "a_late_write_after_a_claim_is_rejected",
    "a_late_write_after_a_tokened_read_is_rejected",
    "a_stale_read_is_rejected",
    "a_stale_claim_is_rejected",
    "a_late_write_is_reported_once",
    "readers_of_one_phase_pass_together_and_a_late_writer_does_not",
    "a_zombie_reader_is_rejected",
    "a_slots_zombie_is_rejected_beside_live_holders",
    "a_write_claims_by_itself",
    "a_released_token_counts_until_a_higher_one_comes",
    "keys_of_a_resource_share_its_fence",
    "a_write_without_a_token_is_rejected_once_fenced",
    "a_leap_beyond_the_bound_is_rejected",
    "another_authority_is_an_error",
    "a_named_authority_binds_and_naming_none_is_an_error",
    "the_forced_schedule_loses_nothing",
    "racing_holders_lose_no_acknowledged_write",
    "a_frozen_writer_loses_nothing",
    "a_repeated_number_is_carried_out_once",
    "a_lower_number_is_rejected",
    "numbers_start_again_under_a_higher_token",
    "a_number_is_not_reused_for_another_write",
    "an_append_is_repeated_safely",
    "a_write_given_up_and_repeated_is_there_once",
];

/// The report of the suite.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    passed: Vec<&'static str>,
    failed: Vec<(&'static str, String)>,
    left_out: Vec<&'static str>,
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

    /// The checks that the subject does not support, by name.
    #[must_use]
    pub fn left_out(&self) -> &[&'static str] {
        &self.left_out
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

    fn note(&mut self, name: &'static str, result: Result<(), String>) {
        match result {
            Ok(()) => self.passed.push(name),
            Err(saw) => self.failed.push((name, saw)),
        }
    }

    fn note_if_possible(&mut self, name: &'static str, result: Result<bool, String>) {
        match result {
            Ok(false) => self.left_out.push(name),
            other => self.note(name, other.map(|_| ())),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} checks passed, {} failed, {} left out",
            self.passed.len(),
            self.failed.len(),
            self.left_out.len()
        )?;
        self.failed
            .iter()
            .try_for_each(|(name, saw)| write!(f, "\n  {name}: {saw}"))
    }
}

/// Runs every check that applies, each on new resources.
pub async fn run<S: Subject>(subject: &S, habit: Habit) -> Report {
    let mut report = Report::default();
    checks::common(subject, habit, &mut report).await;
    if habit.one_write_per_grant {
        checks::strict(subject, habit, &mut report).await;
    } else {
        checks::many_writes(subject, habit, &mut report).await;
    }
    losses::run(subject, &mut report).await;
    report
}
