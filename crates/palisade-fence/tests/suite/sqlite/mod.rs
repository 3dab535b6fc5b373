//! The fences of SQLite on real files, over several connections.

mod crash;
mod forms;
mod late;
mod limits;
mod reports;
mod sticky;
mod stopped;
mod subject;
mod vectors;

use palisade_fence::conformance::{self, Habit, TEXTBOOK_FAILS};
use palisade_fence::sqlite::Strategy;
use palisade_fence::{Mode, Rule};

use forms::Form;
use subject::{Journal, Subject};

/// A bare token column has no numbered writes.
const COLUMN: Habit = Habit {
    authorities: false,
    numbers: false,
    ..CLAIM
};

/// The subject calls the fence on another thread, without the reporter; [`reports`] has one.
const CLAIM: Habit = Habit {
    reports: false,
    ..Habit::CLAIM
};

const TEXTBOOK: Rule = Rule {
    mode: Mode::Textbook,
    ..Rule::CLAIM
};

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_row_conforms_in_both_journal_modes() {
    for (journal, rounds) in [(Journal::Wal, 1_000), (Journal::Rollback, 100)] {
        let subject = Subject::new(Form::Guard(Rule::CLAIM), journal);
        let habit = Habit { rounds, ..CLAIM };
        conformance::run(&subject, habit).await.assert_passed();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_strict_guard_row_conforms() {
    let subject = Subject::new(Form::Guard(Rule::STRICT), Journal::Wal);
    let habit = Habit {
        reports: false,
        ..Habit::STRICT
    };
    conformance::run(&subject, habit).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_columns_conform() {
    for form in [
        Form::Column(Strategy::Optimistic),
        Form::Column(Strategy::Pessimistic),
        Form::Records(Strategy::Optimistic),
        Form::Records(Strategy::Pessimistic),
    ] {
        let subject = Subject::new(form, Journal::Wal);
        conformance::run(&subject, COLUMN).await.assert_passed();
    }
}

/// The control arm: `>=` on writes alone, with the same rows, transactions and locks.
#[tokio::test(flavor = "multi_thread")]
async fn the_textbook_guard_row_fails_where_it_must() {
    let subject = Subject::new(Form::Guard(TEXTBOOK), Journal::Wal);
    let report = conformance::run(&subject, CLAIM).await;
    for name in TEXTBOOK_FAILS {
        assert!(report.failed().contains(name), "{name} passed: {report}");
    }
}

/// The other control arm: the check in one transaction, the effect in the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_in_a_transaction_of_its_own_is_found() {
    let subject = Subject::new(Form::TwoSteps, Journal::Wal);
    let report = conformance::run(&subject, CLAIM).await;
    let found = report.failed().contains(&"a_frozen_writer_loses_nothing");
    assert!(found, "{report}");
}
