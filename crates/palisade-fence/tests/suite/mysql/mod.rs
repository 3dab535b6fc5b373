//! The fences of MySQL and MariaDB against a real server. These files are compiled twice, as `mysql` and as `mariadb`,
//! and each test runs against the server that its module is called after: the two differ in character sets, patterns,
//! defaults and error numbers.

mod crash;
mod forms;
mod late;
mod limits;
mod procedures;
mod snapshots;
mod sticky;
mod stopped;
mod subject;
mod vectors;

use std::ops::Deref;
use std::sync::OnceLock;

use palisade_fence::conformance::{self, Habit, TEXTBOOK_FAILS};
use palisade_fence::mysql::Strategy;
use palisade_fence::{Mode, Rule};
use palisade_testbed::{Instance, MariaDb, MySql};

use forms::Form;
use subject::Subject;

/// A bare token column has no numbered writes.
const COLUMN: Habit = Habit {
    authorities: false,
    numbers: false,
    rounds: 200,
    ..Habit::CLAIM
};

const TEXTBOOK: Rule = Rule {
    mode: Mode::Textbook,
    ..Rule::CLAIM
};

/// The server of this module.
pub(crate) enum Server {
    MariaDb(MariaDb),
    MySql(MySql),
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Server {
        if module_path!().contains("mariadb") {
            Server::MariaDb(MariaDb::start(arguments))
        } else {
            Server::MySql(MySql::start(arguments))
        }
    }

    pub(crate) fn shared() -> &'static Server {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| Server::start(&[]))
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Server::MariaDb(server) => server.url(),
            Server::MySql(server) => server.url(),
        }
    }
}

impl Deref for Server {
    type Target = Instance;
    fn deref(&self) -> &Instance {
        match self {
            Server::MariaDb(server) => server,
            Server::MySql(server) => server,
        }
    }
}

async fn shared(form: Form) -> Subject {
    Subject::new(&Server::shared().url(), form).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guard_row_conforms() {
    let subject = shared(Form::Guard(Rule::CLAIM)).await;
    conformance::run(&subject, Habit::CLAIM)
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_strict_guard_row_conforms() {
    let subject = shared(Form::Guard(Rule::STRICT)).await;
    conformance::run(&subject, Habit::STRICT)
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_columns_conform() {
    for form in [
        Form::Column(Strategy::Optimistic),
        Form::Column(Strategy::Pessimistic),
        Form::Records(Strategy::Optimistic),
        Form::Records(Strategy::Pessimistic),
    ] {
        let report = conformance::run(&shared(form).await, COLUMN).await;
        assert!(report.failed().is_empty(), "{form:?}: {report}");
    }
}

/// The control arm: `>=` on writes alone, with the same rows, transactions and locks.
#[tokio::test(flavor = "multi_thread")]
async fn the_textbook_guard_row_fails_where_it_must() {
    let report = conformance::run(&shared(Form::Guard(TEXTBOOK)).await, Habit::CLAIM).await;
    for name in TEXTBOOK_FAILS {
        assert!(report.failed().contains(name), "{name} passed: {report}");
    }
}

/// The other control arm: the check in one transaction, the effect in the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_in_a_transaction_of_its_own_is_found() {
    let report = conformance::run(&shared(Form::TwoSteps).await, Habit::CLAIM).await;
    let found = report.failed().contains(&"a_frozen_writer_loses_nothing");
    assert!(found, "{report}");
}
