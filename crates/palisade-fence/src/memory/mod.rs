//! Fences for data in this process.
//!
//! | type | use |
//! |---|---|
//! | [`Ratchet`] | the bare check, lock-free, for effects that are already ordered (by an actor, your own lock or transaction) |
//! | [`Guarded`] | a value; check and effect are one step under its own lock |
//! | [`Store`] | objects under keys, as in the durable store; for tests, and to try fences out |
//!
//! All of them lose their data and their fence when the process exits.

mod guarded;
mod ratchet;
mod store;

pub use guarded::Guarded;
pub use ratchet::Ratchet;
pub use store::{Resource, Store};
