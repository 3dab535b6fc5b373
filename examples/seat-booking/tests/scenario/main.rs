//! Without the fence both customers get seat 12A; with it exactly one does, and the other gets a refund.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod first_page;

use palisade_testbed::Postgres;
use seat_booking::{Mode, Outcome, Ticket, run};

async fn outcome(mode: Mode) -> Outcome {
    let server = Postgres::start(&[]);
    run(&server.url(), mode, |_| {}).await.unwrap()
}

#[tokio::test]
async fn without_the_fence_both_get_the_seat() {
    let outcome = outcome(Mode::Unfenced).await;
    assert_eq!(
        (outcome.alice, outcome.bob),
        (Ticket::Booked, Ticket::Booked)
    );
    assert_eq!(outcome.charged, ["Alice", "Bob"], "one seat, paid twice");
}

#[tokio::test]
async fn with_the_fence_one_does_and_the_other_is_refunded() {
    let outcome = outcome(Mode::Fenced).await;
    assert_eq!(
        (outcome.alice, outcome.bob),
        (Ticket::Refunded, Ticket::Booked)
    );
    assert_eq!(outcome.seated.as_deref(), Some("Bob"));
    assert_eq!(outcome.charged, ["Bob"]);
}
