//! The fence around the files of a folder, on a real file system and with real processes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod child;
mod crash;
mod limits;
mod naive;
mod subject;

use palisade_core::Token;
use palisade_fence::conformance::{self, Habit, TEXTBOOK_FAILS, UNFENCED_FAILS};
use palisade_fence::{Mode, Rule};

use naive::Naive;
use subject::Places;
use tempfile::TempDir;

fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

/// A temporary place in memory, where there is one: for what asks for no disk.
fn quick_place() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

const fn rule(mode: Mode) -> Rule {
    Rule {
        mode,
        ..Rule::CLAIM
    }
}

#[tokio::test]
async fn the_files_of_a_folder_conform() {
    // Each round is some dozen syncs of the disk.
    let habit = Habit {
        rounds: 200,
        ..Habit::CLAIM
    };
    let report = conformance::run(&Places::on_disk(Rule::CLAIM), habit).await;
    report.assert_passed();
    // What a crash leaves is asked at every step, in the module `crash`.
    assert_eq!(
        report.left_out(),
        ["what_was_acknowledged_survives_a_crash"]
    );
}

#[tokio::test]
async fn the_strict_fence_conforms() {
    let places = Places::new(Rule::STRICT);
    conformance::run(&places, Habit::STRICT)
        .await
        .assert_passed();
}

#[tokio::test]
async fn without_a_bound_the_last_token_is_a_token() {
    let habit = Habit {
        max_jump: None,
        ..Habit::CLAIM
    };
    let places = Places::new(Rule::CLAIM.unbounded());
    conformance::run(&places, habit).await.assert_passed();
}

#[tokio::test]
async fn the_textbook_and_no_fence_fail_where_they_must() {
    for (mode, expected) in [
        (Mode::Textbook, TEXTBOOK_FAILS),
        (Mode::DangerUnfenced, UNFENCED_FAILS),
    ] {
        let report = conformance::run(&Places::new(rule(mode)), Habit::CLAIM).await;
        for name in expected {
            assert!(report.failed().contains(name), "{name} passed: {report}");
        }
    }
}

/// Checked and then written, with the same files: a writer that is frozen in between overwrites its
/// successor.
#[tokio::test]
async fn a_check_before_the_write_fails() {
    let habit = Habit {
        numbers: false,
        authorities: false,
        ..Habit::CLAIM
    };
    let report = conformance::run(&Naive::default(), habit).await;
    let frozen = "a_frozen_writer_loses_nothing";
    assert!(report.failed().contains(&frozen), "{report}");
}

#[tokio::test]
async fn the_late_write_is_lost_every_time_by_the_textbook_and_never_by_the_claim() {
    let lost = async |mode| {
        let places = Places::new(rule(mode));
        conformance::late_writes(&places, 1_000).await.unwrap().lost
    };
    assert_eq!(lost(Mode::Claim).await, 0);
    assert_eq!(lost(Mode::Textbook).await, 1_000);
}
