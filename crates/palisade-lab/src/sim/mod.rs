//! Deterministic simulation: the real parts in virtual time, one seed for everything.
//!
//! ```text
//!   seed ──► plan: clients, clocks, network, disks, strikes
//!              │
//!              ▼
//!            world ── steps ──► facts ──► hash · trace · checkers (one rule a file)
//!            ├ clients:   palisade-client (guard, keeper, schedule, retries, errands) on a simulated clock
//!            ├ authority: the server's orderer, codec and replay, palisade-core Machine, palisade-wal
//!            └ resource:  palisade-core fence Rule, palisade-wal
//! ```
//!
//! What is simulated is the network, the disks below the log, every clock, and who runs when. What is
//! *repeated* instead of run is the server's driver (`server`: inbox, alarm, log) and the order of the store's
//! writer (`resource`): both own a thread in the product.
//!
//! Equal seeds end in equal hashes. Nothing the hash sees depends on the kernel: request ids and lease
//! keys are numbered in order of appearance.

mod batch;
mod check;
mod clock;
pub mod command;
mod counts;
mod drive;
mod fact;
pub mod mutants;
mod nemesis;
mod network;
mod observer;
mod plan;
mod port;
mod queue;
mod resource;
mod rng;
mod server;
mod shrink;
mod worker;
mod world;

pub use batch::{Batch, Summary, first_violation};
pub use counts::Counts;
pub use fact::{Fact, Turn, What};
pub use mutants::Mutant;
pub use observer::Violation;
pub use plan::{Plan, Strike};
pub use shrink::shrink;

use world::World;

/// How one run ended.
#[derive(Clone, Debug)]
pub struct Run {
    /// Equal for equal seeds.
    pub hash: u64,
    /// What was broken, if anything.
    pub violation: Option<Violation>,
    /// Everything that happened, with its virtual time in nanoseconds; empty unless asked for.
    pub trace: Vec<(u64, Fact)>,
    /// How often what happened.
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

/// Runs a seed as it is.
#[must_use]
pub fn run_seed(seed: u64) -> Run {
    run(Plan::of(seed), None, false)
}
