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
mod server;
mod shrink;
mod target;
mod worker;
mod world;

pub use batch::{Batch, Summary, first_violation};
pub use counts::Counts;
pub use fact::{ChangeKind, Fact, LockChange, Orphan};
pub use locks::Locks;
pub use mutants::Mutant;
pub use observer::Violation;
pub use plan::{Plan, PlannedFault};
pub use shrink::shrink;

use world::World;

/// The result of one run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Equal for equal seeds.
    pub hash: u64,
    /// The broken rule, if any.
    pub violation: Option<Violation>,
    /// All events with their virtual times in nanoseconds; empty unless requested.
    pub trace: Vec<(u64, Fact)>,
    /// Event counts.
    pub counts: Counts,
}

/// Runs a plan, with one rule removed or none.
///
/// A machine that cannot even start a run ends in a violation that says so.
#[must_use]
pub fn run(plan: Plan, mutant: Option<Mutant>, trace: bool) -> Run {
    match World::new(plan, mutant, trace) {
        Ok(world) => world.run().into_run(),
        Err(what) => Run {
            hash: 0,
            violation: Some(Violation {
                rule: "the simulation itself",
                what,
                at: 0,
            }),
            trace: Vec::new(),
            counts: Counts::default(),
        },
    }
}

/// Runs a seed without changes.
#[must_use]
pub fn run_seed(seed: u64) -> Run {
    run(Plan::of(seed), None, false)
}
