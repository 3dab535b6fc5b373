//! The fences of PostgreSQL against a real server, with both drivers.

mod crash;
mod doors;
mod drivers;
mod forms;
mod functions;
mod late;
mod limits;
mod sticky;
mod stopped;
pub(crate) mod subject;
mod transact;
mod vectors;
// npm has these servers for this processor.
#[cfg(target_arch = "x86_64")]
mod versions;

use palisade_fence::conformance::{self, Habit, TEXTBOOK_FAILS};
use palisade_fence::postgres::Strategy;
use palisade_fence::{Mode, Rule};
use palisade_testbed::Postgres;

use drivers::{Sqlx, Tokio};
use forms::Form;
use subject::Subject;

/// A bare token column has no numbered writes.
const COLUMN: Habit = Habit {
    authorities: false,
    numbers: false,
    rounds: 200,
    ..Habit::CLAIM
};

async fn guard<D: drivers::Driver>(rule: Rule) -> Subject<D> {
    Subject::<D>::new(&Postgres::shared().url(), Form::Guard(rule)).await
}

async fn columns_conform<D: drivers::Driver>() {
    for form in [
        Form::Column(Strategy::Optimistic),
        Form::Column(Strategy::Pessimistic),
        Form::Records(Strategy::Optimistic),
        Form::Records(Strategy::Pessimistic),
    ] {
        let subject = Subject::<D>::new(&Postgres::shared().url(), form).await;
        conformance::run(&subject, COLUMN).await.assert_passed();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_row_conforms_through_tokio_postgres() {
    let subject = guard::<Tokio>(Rule::CLAIM).await;
    conformance::run(&subject, Habit::CLAIM)
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_row_conforms_through_sqlx() {
    let subject = guard::<Sqlx>(Rule::CLAIM).await;
    conformance::run(&subject, Habit::CLAIM)
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_strict_guard_row_conforms() {
    let subject = guard::<Tokio>(Rule::STRICT).await;
    conformance::run(&subject, Habit::STRICT)
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_columns_conform_through_tokio_postgres() {
    columns_conform::<Tokio>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_columns_conform_through_sqlx() {
    columns_conform::<Sqlx>().await;
}

/// The control arm: `>=` on writes alone, with the same rows, transactions and locks.
#[tokio::test(flavor = "multi_thread")]
async fn the_textbook_guard_row_fails_where_it_must() {
    let rule = Rule {
        mode: Mode::Textbook,
        ..Rule::CLAIM
    };
    let report = conformance::run(&guard::<Tokio>(rule).await, Habit::CLAIM).await;
    for name in TEXTBOOK_FAILS {
        assert!(report.failed().contains(name), "{name} passed: {report}");
    }
}
