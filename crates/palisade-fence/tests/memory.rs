//! The suite on the store in memory, and the arms that must fail it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use palisade_fence::conformance::{self, Habit, Subject, TEXTBOOK_FAILS, UNFENCED_FAILS};
use palisade_fence::{Fault, Limits, Mode, Rule, memory};

struct Memory(memory::Store);

impl Memory {
    fn new(mode: Mode) -> Memory {
        Memory(memory::Store::new(
            Rule {
                mode,
                ..Rule::CLAIM
            },
            Limits::DEFAULT,
        ))
    }
}

impl Subject for Memory {
    type Fence = memory::Resource;

    async fn fresh(&self, name: &str) -> Result<memory::Resource, Fault> {
        self.0.resource(name)
    }
}

#[tokio::test]
async fn the_claim_fence_conforms() {
    conformance::run(&Memory::new(Mode::Claim), Habit::CLAIM)
        .await
        .assert_passed();
}

#[tokio::test]
async fn the_strict_fence_conforms() {
    conformance::run(&Memory::new(Mode::Strict), Habit::STRICT)
        .await
        .assert_passed();
}

#[tokio::test]
async fn the_textbook_fence_fails_where_it_must() {
    let report = conformance::run(&Memory::new(Mode::Textbook), Habit::CLAIM).await;
    assert_eq!(report.failed(), TEXTBOOK_FAILS, "{report}");
}

#[tokio::test]
async fn no_fence_fails_where_it_must() {
    let report = conformance::run(&Memory::new(Mode::DangerUnfenced), Habit::CLAIM).await;
    assert_eq!(report.failed(), UNFENCED_FAILS, "{report}");
}

#[tokio::test]
async fn the_late_write_is_lost_every_time_by_the_textbook_and_never_by_the_claim() {
    let lost = async |mode| {
        conformance::late_writes(&Memory::new(mode), 1_000)
            .await
            .unwrap()
            .lost
    };
    assert_eq!(lost(Mode::Claim).await, 0);
    assert_eq!(lost(Mode::Strict).await, 0);
    assert_eq!(lost(Mode::Textbook).await, 1_000);
    assert_eq!(lost(Mode::DangerUnfenced).await, 1_000);
}
