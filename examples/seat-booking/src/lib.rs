//! Two customers, one seat, and a payment that takes longer than the lease.
//!
//! ```text
//!   Alice  lock ─ claim ─ seat free? ─ pays ············· (her bank is slow) ············· book ✗ refund
//!                                          lease expires │
//!   Bob                                                  lock ─ claim ─ seat free? ─ pays ─ book ✓
//! ```
//!
//! Alice's process is not wrong to continue: it cannot know in time that its lease has ended. Only the database
//! can refuse her booking, and it does, because Bob's claim raised the seat's fence. A payment is an effect
//! outside the database, so it is not rolled back; it is compensated.

mod desk;
mod scenario;

use std::error::Error;

pub use desk::{Desk, Ticket};
pub use scenario::{Outcome, run};

/// Whether bookings are fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A lock and nothing else, which is how most programs start.
    Unfenced,
    /// The lock's token is claimed at the seat, in the transaction that reads or writes it.
    Fenced,
}

/// An error other than a booking that came too late.
pub type Failure = Box<dyn Error + Send + Sync>;
