//! The forced schedule: the old holder's write is held back, and arrives between the new holder's read
//! and its write.

use palisade_fence::Rule;
use palisade_fence::conformance::late_writes;
use palisade_fence::sqlite::Strategy;

use super::TEXTBOOK;
use super::forms::Form;
use super::subject::{Journal, Subject};
use crate::sql::rounds;

/// Returns how many rounds lost an acknowledged addition. Every step is its own transaction on the file.
/// There is no wire on which to hold the old holder's write, so it begins when the new holder has read.
async fn lost(form: Form) -> u64 {
    let subject = Subject::new(form, Journal::Wal);
    late_writes(&subject, rounds(1_000)).await.unwrap().lost
}

#[tokio::test(flavor = "multi_thread")]
async fn the_textbook_loses_every_late_write() {
    assert_eq!(lost(Form::Guard(TEXTBOOK)).await, rounds(1_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claimed_guard_row_loses_none() {
    assert_eq!(lost(Form::Guard(Rule::CLAIM)).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claimed_columns_lose_none() {
    for strategy in [Strategy::Optimistic, Strategy::Pessimistic] {
        assert_eq!(lost(Form::Column(strategy)).await, 0);
        assert_eq!(lost(Form::Records(strategy)).await, 0);
    }
}
