//! The fences of Redis against a real server.

mod crash;
mod late;
mod library;
mod limits;
mod naive;
mod rule;
mod script;
mod strings;
mod subject;
mod vectors;

use palisade_fence::conformance::{self, Habit, TEXTBOOK_FAILS, UNFENCED_FAILS};
use palisade_fence::{Mode, Rule};
use palisade_testbed::Redis;

use subject::{Form, Subject};

const fn rule(mode: Mode) -> Rule {
    Rule {
        mode,
        ..Rule::CLAIM
    }
}

/// Runs the suite with every answer on disk, so that it may kill the server.
async fn conforms(form: Form, habit: Habit) {
    let server = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let subject = Subject::new(&server, form).await;
    let report = conformance::run(&subject, habit).await;
    report.assert_passed();
    assert!(report.left_out().is_empty(), "{report}");
}

#[tokio::test]
async fn objects_in_a_hash_conform() {
    conforms(Form::Objects(Rule::CLAIM), Habit::CLAIM).await;
}

#[tokio::test]
async fn strings_of_the_users_own_conform() {
    conforms(Form::Strings(Rule::CLAIM), Habit::CLAIM).await;
}

#[tokio::test]
async fn strict_objects_conform() {
    conforms(Form::Objects(Rule::STRICT), Habit::STRICT).await;
}

#[tokio::test]
async fn strict_strings_conform() {
    conforms(Form::Strings(Rule::STRICT), Habit::STRICT).await;
}

#[tokio::test]
async fn without_a_bound_the_last_token_is_a_token() {
    let habit = Habit {
        max_jump: None,
        ..Habit::CLAIM
    };
    conforms(Form::Strings(Rule::CLAIM.unbounded()), habit).await;
}

/// The control arm: `>=` on writes alone, by the same script.
#[tokio::test]
async fn the_textbook_fails_where_it_must() {
    let server = Redis::start(&[]);
    for form in [Form::Objects, Form::Strings] {
        let subject = Subject::new(&server, form(rule(Mode::Textbook))).await;
        let report = conformance::run(&subject, Habit::CLAIM).await;
        for name in TEXTBOOK_FAILS {
            assert!(report.failed().contains(name), "{name} passed: {report}");
        }
    }
}

#[tokio::test]
async fn no_fence_fails_where_it_must() {
    let server = Redis::start(&[]);
    let subject = Subject::new(&server, Form::Strings(rule(Mode::DangerUnfenced))).await;
    let report = conformance::run(&subject, Habit::CLAIM).await;
    for name in UNFENCED_FAILS {
        assert!(report.failed().contains(name), "{name} passed: {report}");
    }
}
