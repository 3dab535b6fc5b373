//! The fence around the files of a folder, on a real file system and with real processes.

mod child;
mod crash;
mod limits;
mod naive;
mod stopped;
mod subject;

use palisade_core::Token;
use palisade_fence::conformance::{self, Habit, TEXTBOOK_FAILS, UNFENCED_FAILS};
use palisade_fence::{Mode, Rule};

use naive::Naive;
use subject::Folders;
use tempfile::TempDir;

fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

/// A temporary folder in memory, if possible, for tests that need no disk.
fn temporary_dir() -> TempDir {
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
    // Each round costs several dozen disk syncs.
    let habit = Habit {
        rounds: 200,
        ..Habit::CLAIM
    };
    let report = conformance::run(&Folders::on_disk(Rule::CLAIM), habit).await;
    report.assert_passed();
    // The module `crash` tests the state after a crash at every step.
    assert_eq!(report.left_out(), ["acknowledged_writes_survive_a_crash"]);
}

#[tokio::test]
async fn the_strict_fence_conforms() {
    let places = Folders::new(Rule::STRICT);
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
    let places = Folders::new(Rule::CLAIM.unbounded());
    conformance::run(&places, habit).await.assert_passed();
}

#[tokio::test]
async fn the_textbook_and_no_fence_fail_where_they_must() {
    for (mode, expected) in [
        (Mode::Textbook, TEXTBOOK_FAILS),
        (Mode::DangerUnfenced, UNFENCED_FAILS),
    ] {
        let report = conformance::run(&Folders::new(rule(mode)), Habit::CLAIM).await;
        for name in expected {
            assert!(report.failed().contains(name), "{name} passed: {report}");
        }
    }
}

/// A check and a later write, with the same files: a writer that is frozen in between overwrites its
/// successor's write.
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
        let places = Folders::new(rule(mode));
        conformance::late_writes(&places, 1_000).await.unwrap().lost
    };
    assert_eq!(lost(Mode::Claim).await, 0);
    assert_eq!(lost(Mode::Textbook).await, 1_000);
}
