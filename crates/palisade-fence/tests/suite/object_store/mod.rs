//! The suite on S3 as served by `moto` and on the store in memory; late writes held in flight; stores that
//! must be refused or fail; operators.
//!
//! `PALISADE_OBJECT_ROUNDS` sets the rounds of the races and of the late writes on S3 (default 100, about
//! half a minute; 1,000 is the full battery).

mod faulty_store;
mod limits;
mod operator;
mod s3;

use std::sync::Arc;

use crate::held;
use faulty_store::{Behaviour, FaultyStore};
use object_store::ObjectStore;
use object_store::path::Path;
use palisade_core::Token;
use palisade_fence::conformance::{self, Habit, Subject};
use palisade_fence::object_store::{Resource, Store};
use palisade_fence::{Edit, Error, Fence, Mode, Pass, Result, Rule, Write};
use s3::bucket;

const TEXTBOOK: Rule = Rule {
    mode: Mode::Textbook,
    ..Rule::CLAIM
};

struct Objects {
    store: Store,
    objects: Arc<dyn ObjectStore>,
}

impl Objects {
    async fn open(objects: Arc<dyn ObjectStore>) -> Objects {
        let store = Store::open(Arc::clone(&objects), root(), Rule::CLAIM).await;
        Objects {
            store: store.unwrap(),
            objects,
        }
    }

    fn unprobed(objects: Arc<dyn ObjectStore>, rule: Rule) -> Objects {
        Objects {
            store: Store::open_unprobed(Arc::clone(&objects), root(), rule),
            objects,
        }
    }
}

impl Subject for Objects {
    type Fence = Resource;

    async fn fresh(&self, name: &str) -> Result<Resource> {
        self.store.resource(name)
    }
}

fn root() -> Path {
    Path::from("fenced")
}

fn manifest(resource: &str) -> Path {
    root().join("resources").join(resource).join("fence.json")
}

fn rounds() -> u64 {
    std::env::var("PALISADE_OBJECT_ROUNDS").map_or(100, |text| text.parse().unwrap())
}

fn pass(token: u64) -> Pass<'static> {
    Pass::new(Token::new(token).unwrap())
}

fn put(text: &str) -> Write<'_> {
    Write::new("/a", Edit::Put(text.as_bytes()))
}

/// Makes a write that must be admitted.
async fn puts(resource: &Resource, token: u64, text: &str) {
    let answer = resource.write(pass(token), put(text)).await;
    assert!(answer.is_ok(), "token {token}: {answer:?}");
}

async fn in_memory() -> Objects {
    Objects::open(Arc::new(FaultyStore::new(Behaviour::KeepsItsWord))).await
}

#[tokio::test]
async fn s3_conforms() {
    let objects = Objects::open(bucket("conforms").await).await;
    let habit = Habit {
        rounds: rounds(),
        ..Habit::CLAIM
    };
    let report = conformance::run(&objects, habit).await;
    report.assert_passed();
    // `moto` keeps everything in memory, so no data is left after a kill. The fence is in the manifest and
    // cannot be lost alone; see `operator`.
    assert_eq!(
        report.left_out(),
        [
            "acknowledged_writes_survive_a_crash",
            "data_without_its_fence_is_refused"
        ]
    );
}

#[tokio::test]
async fn the_store_in_memory_conforms() {
    let report = conformance::run(&in_memory().await, Habit::CLAIM).await;
    report.assert_passed();
}

#[tokio::test]
async fn one_write_a_grant_conforms() {
    let objects = Arc::new(FaultyStore::new(Behaviour::KeepsItsWord));
    let strict = Objects::unprobed(objects, Rule::STRICT);
    let report = conformance::run(&strict, Habit::STRICT).await;
    report.assert_passed();
}

#[tokio::test]
async fn a_store_that_checks_and_then_writes_fails_the_suite() {
    let objects = Arc::new(FaultyStore::new(Behaviour::ChecksThenWrites));
    let report = conformance::run(&Objects::unprobed(objects, Rule::CLAIM), Habit::CLAIM).await;
    assert!(
        report.failed().contains(&"a_frozen_writer_loses_nothing"),
        "{report}"
    );
}

#[tokio::test]
async fn a_store_that_ignores_conditions_is_refused() {
    for how in [
        Behaviour::IgnoresCreate,
        Behaviour::IgnoresETag,
        Behaviour::ChecksThenWrites,
    ] {
        let objects = Arc::new(FaultyStore::new(how));
        let refused = Store::open(objects, root(), Rule::CLAIM).await;
        assert!(
            matches!(refused, Err(Error::Unsuitable(_))),
            "{how:?}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn a_put_whose_answer_was_lost_is_recognised() {
    let objects = Objects::unprobed(
        Arc::new(FaultyStore::new(Behaviour::LosesAnswers)),
        Rule::CLAIM,
    );
    let resource = objects.store.resource("r").unwrap();
    for (token, text) in [(1, "one"), (2, "two"), (3, "three")] {
        resource.claim(pass(token)).await.unwrap();
        puts(&resource, token, text).await;
        let seen = resource.observe("/a").await.unwrap();
        assert_eq!(seen.as_deref(), Some(text.as_bytes()));
    }
}
