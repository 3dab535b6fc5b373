//! Without the fence both customers get seat 12A; with it exactly one does, and the other gets a refund.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use palisade_testbed::Postgres;
use seat_booking::{Ending, Mode, Ticket, play};

async fn end(mode: Mode) -> Ending {
    let server = Postgres::start(&[]);
    play(&server.url(), mode, |_| {}).await.unwrap()
}

#[tokio::test]
async fn without_the_fence_both_get_the_seat() {
    let ending = end(Mode::Unfenced).await;
    assert_eq!((ending.alice, ending.bob), (Ticket::Booked, Ticket::Booked));
    assert_eq!(ending.charged, ["Alice", "Bob"], "one seat, paid twice");
}

#[tokio::test]
async fn with_the_fence_one_does_and_the_other_is_refunded() {
    let ending = end(Mode::Fenced).await;
    assert_eq!(
        (ending.alice, ending.bob),
        (Ticket::Refunded, Ticket::Booked)
    );
    assert_eq!(ending.seated.as_deref(), Some("Bob"));
    assert_eq!(ending.charged, ["Bob"]);
}
