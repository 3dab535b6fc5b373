//! The late write of docs/promise/rules.md, really held in flight: a relay holds the old holder's request while the
//! new holder claims and reads, and forwards it before the new holder writes.

use std::time::Duration;

use palisade_core::Token;
use palisade_fence::{Edit, Fence, Pass, Write};
use palisade_testbed::{Direction, Proxy};

const KEY: &str = "/counter";

/// How it is known that the old holder's write was sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Each request has a connection of its own: the relay has accepted one more.
    OnANewConnection,
    /// The connection is kept: it is not known, but nothing leaves the relay before the new holder has read.
    OnTheSameConnection,
}

/// Runs this many rounds with two new tokens each, and returns in how many of them an acknowledged addition
/// was lost. `old` is the resource through the relay, `new` the same one without it.
pub(crate) async fn lost<F: Fence + Clone + 'static>(
    old: &F,
    new: &F,
    relay: &Proxy,
    sent: Sent,
    rounds: u64,
) -> u64 {
    let mut lost = 0;
    for round in 0..rounds {
        let (first, second) = (pass(2 * round + 1), pass(2 * round + 2));
        let before = start(old, first).await;
        relay.hold(Direction::Forth);
        let accepted = relay.accepted();
        let writer = old.clone();
        let late = tokio::spawn(async move { adds(&writer, first, before).await });
        if sent == Sent::OnANewConnection {
            wait_until(|| relay.accepted() > accepted).await;
        }
        let seen = start(new, second).await;
        relay.let_go(Direction::Forth);
        let late = late.await.unwrap();
        assert!(adds(new, second, seen).await, "the newer holder's write");
        let after = counter(new.observe(KEY).await.unwrap());
        lost += (before + u64::from(late) + 1).saturating_sub(after);
    }
    lost
}

async fn wait_until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), wait).await;
    waited.expect("the write was never sent");
}

async fn start<F: Fence>(fence: &F, pass: Pass<'_>) -> u64 {
    assert!(fence.claim(pass).await.is_ok(), "the claim");
    counter(fence.read(pass, KEY).await.unwrap().value)
}

async fn adds<F: Fence>(fence: &F, pass: Pass<'_>, before: u64) -> bool {
    let text = (before + 1).to_string();
    let write = Write::new(KEY, Edit::Put(text.as_bytes()));
    fence.write(pass, write).await.is_ok()
}

fn counter(bytes: Option<Vec<u8>>) -> u64 {
    bytes.map_or(0, |bytes| {
        String::from_utf8(bytes).unwrap().parse().unwrap()
    })
}

fn pass(token: u64) -> Pass<'static> {
    Pass::new(Token::new(token).unwrap())
}
