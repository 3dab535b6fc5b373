//! Fences for data in this process.
//!
//! | type | use |
//! |---|---|
//! | [`Ratchet`] | the bare check, lock-free: where check and effect are one step anyway (an actor, the caller's own lock or transaction) |
//! | [`Guarded`] | a value; check and effect are one step under its own lock |
//! | [`Store`] | objects under keys, as the durable store has them; for tests, and for trying the fences out |
//!
//! All of them lose their data on exit, and the fence with it.

mod guarded;
mod ratchet;
mod store;

pub use guarded::Guarded;
pub use ratchet::Ratchet;
pub use store::{Resource, Store};
