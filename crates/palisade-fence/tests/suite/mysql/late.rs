//! The forced schedule: the old holder's write is held back on the wire, and arrives between the new
//! holder's read and its write.

use palisade_fence::Rule;
use palisade_fence::mysql::Strategy;
use palisade_testbed::Proxy;

use super::forms::Form;
use super::subject::Subject;
use super::{Server, TEXTBOOK};
use crate::held::{self, Sent};
use crate::sql::rounds;

/// Returns how many rounds lost an acknowledged addition.
async fn lost(form: Form, rounds: u64) -> u64 {
    let server = Server::shared();
    let subject = Subject::new(&server.url(), form).await;
    let proxy = Proxy::to(server.address());
    let slow = subject
        .url
        .replace(&server.address().to_string(), &proxy.addr().to_string());
    assert_ne!(slow, subject.url, "the old holder goes through the relay");
    let new = subject.resource("late", &subject.url).await;
    let old = new.over(&slow);
    let sent = Sent::OnTheSameConnection;
    held::lost(&old, &new, &proxy, sent, rounds).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_textbook_loses_every_late_write() {
    let rounds = rounds(1_000);
    assert_eq!(lost(Form::Guard(TEXTBOOK), rounds).await, rounds);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claimed_guard_row_loses_none() {
    assert_eq!(lost(Form::Guard(Rule::CLAIM), rounds(1_000)).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claimed_columns_lose_none() {
    for strategy in [Strategy::Optimistic, Strategy::Pessimistic] {
        assert_eq!(lost(Form::Column(strategy), rounds(100)).await, 0);
        assert_eq!(lost(Form::Records(strategy), rounds(100)).await, 0);
    }
}
