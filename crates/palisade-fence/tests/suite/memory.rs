//! The suite on the store in memory, and the control arms that must fail it.

use palisade_core::Token;
use palisade_fence::conformance::{self, Habit, Subject, TEXTBOOK_FAILS, UNFENCED_FAILS};
use palisade_fence::{
    Edit, Fence as _, Mode, Pass, Reject, Result, Rule, StoreLimits, Write, enter_all, memory,
};

struct Memory(memory::Store);

impl Memory {
    fn new(mode: Mode) -> Memory {
        Memory(memory::Store::new(
            Rule {
                mode,
                ..Rule::CLAIM
            },
            StoreLimits::DEFAULT,
        ))
    }
}

impl Subject for Memory {
    type Fence = memory::Resource;

    async fn fresh(&self, name: &str) -> Result<memory::Resource> {
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

/// All slots of a semaphore under one ratchet, as in a program that claims the lock's name.
struct OneKey(Memory);

impl Subject for OneKey {
    type Fence = memory::Resource;

    async fn fresh(&self, name: &str) -> Result<memory::Resource> {
        let lock = name.split_once('~').map_or(name, |(lock, _slot)| lock);
        self.0.fresh(lock).await
    }
}

#[tokio::test]
async fn one_ratchet_for_all_slots_refuses_live_holders() {
    let report = conformance::run(&OneKey(Memory::new(Mode::Claim)), Habit::CLAIM).await;
    let expected = ["a_slots_zombie_is_rejected_beside_live_holders"];
    assert_eq!(report.failed(), expected, "{report}");
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

#[tokio::test]
async fn several_are_claimed_before_any_is_read() {
    let store = memory::Store::new(Rule::CLAIM, StoreLimits::DEFAULT);
    let [a, b, c] = ["a", "b", "c"].map(|name| store.resource(name).unwrap());
    let pass = |token| Pass::new(Token::new(token).unwrap());
    let _ = b.claim(pass(9)).await.unwrap();
    let claims = |token| {
        [
            ("c", &c, pass(token)),
            ("a", &a, pass(token)),
            ("b", &b, pass(token)),
        ]
    };
    let late = enter_all(claims(8)).await.unwrap_err();
    let highest = Token::new(9).unwrap();
    assert_eq!(
        late.rejected(),
        Some(&Reject::Stale {
            presented: Token::new(8).unwrap(),
            highest
        })
    );
    assert_eq!(
        a.view().unwrap().fence.highest(),
        Some(pass(8).token),
        "a precedes b"
    );
    assert!(c.view().is_none(), "c follows b");
    let all = enter_all(claims(10)).await.unwrap();
    assert_eq!(all.keys().copied().collect::<Vec<_>>(), ["a", "b", "c"]);
    for (resource, claimed) in [(&a, &all["a"]), (&b, &all["b"]), (&c, &all["c"])] {
        let late = resource
            .write(pass(9), Write::new("/x", Edit::Put(b"late")))
            .await;
        assert!(late.unwrap_err().rejected().is_some());
        claimed.read("/x").await.unwrap();
    }
}
