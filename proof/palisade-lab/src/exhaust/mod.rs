//! Exhaustive search at small scope: every schedule of a few clients, grants, writes, resends and one crash, through
//! the real machine and the real fence rule.
//!
//! ```text
//!              ┌ authority   palisade_core::Machine, one lock; equal states are kept once
//!   State ─────┤ clients     ask · claim · read · write · release, each at any time
//!              ├ network     writes in flight; any of them arrives next, or never
//!              └ resources   sets of adds, and palisade_core::fence::Rule in front of each
//!
//!   search: breadth first, so the first losing schedule found is a shortest one
//! ```
//!
//! A lock has one resource, and so has each slot of a semaphore. A client that asks for two locks at once claims both
//! resources, reads both, and writes to both.
//!
//! A reader in mode update that has read may become the writer; it claims again, and writes without another read.
//!
//! No client looks at a deadline: a lease may expire at any moment without its holder knowing, and a client may be
//! paused for ever between any two of its steps. Only the fence keeps the data.
//!
//! An add is *lost* if its holder got an acknowledgement and the set does not contain it. The correct configuration
//! must lose none in all its states; each [`Weakness`] must lose one, or the search proves nothing (control arms). The
//! method is explicit-state model checking as in Holzmann's SPIN and in TLC, on the code itself instead of a model of
//! it.

mod authority;
pub mod command;
mod describe;
mod resource;
mod scope;
mod search;
mod state;
mod step;
mod weakness;

pub use scope::Scope;
pub use search::{Found, search};
pub use weakness::{Weakness, Wrong};
