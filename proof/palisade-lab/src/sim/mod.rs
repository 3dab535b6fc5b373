//! Deterministic simulation: the real parts in virtual time, one seed for everything.
//!
//! ```text
//!   seed ──► plan: clients, clocks, network, disks, faults
//!              │
//!              ▼
//!            world ── steps ──► facts ──► hash · trace · checkers (one rule per file)
//!            ├ clients:   palisade-client (guard, renewal, schedule, retries) on a simulated clock
//!            ├ authority: the server's orderer, codec and replay, palisade-core Machine, palisade-wal
//!            └ resource:  palisade-core fence Rule, palisade-wal
//! ```
//!
//! The network, the disks below the log, every clock, and the scheduling are simulated. The server's driver (`server`:
//! inbox, alarm, log) and the order of the store's writer (`resource`) are *repeated* here instead of run: both own a
//! thread in the product.
//!
//! Equal seeds end in equal hashes. Nothing in the hash depends on the kernel: request ids and lease keys are numbered
//! in order of appearance.

mod authority;
mod batch;
mod check;
mod clock;
pub mod command;
mod counts;
mod drive;
mod fact;
mod locks;
pub mod mutants;
mod nemesis;
mod network;
mod observer;
mod plan;
mod port;
mod queue;
mod resource;
pub(crate) mod rng;
mod shrink;
mod target;
mod worker;
mod world;

pub use batch::{Batch, Summary, first_violation};
pub use counts::Counts;
pub use fact::{ChangeKind, Fact, LockChange, Orphan};
pub use locks::Locks;
pub use mutants::Mutant;
pub use observer::{Run, Violation};
pub use plan::{Plan, PlannedFault};
pub use shrink::shrink;
pub use world::run;

/// Runs a seed without changes.
#[must_use]
pub fn run_seed(seed: u64) -> Run {
    run(Plan::of(seed), None, false)
}
