//! Palisade's deterministic core.
//!
//! This crate is internal and may change in any release. Programs use `palisade-client`, `palisade-authorities` and
//! `palisade-fence`, which re-export the types of this crate in their interfaces.
//!
//! ```text
//!   Entry { at, command } ──► Machine::apply ──► Outcome          (the caller's answer)
//!                                   │
//!                                   └──────────► Effect…          (waiters settled, events)
//! ```
//!
//! Commands and timestamps go in, outcomes and effects come out. The crate has no I/O, no async, no clock, no
//! randomness, no serialisation format and no iteration order that could reach an effect. The server, the simulator and
//! a replay run the same code and end in equal states. The compiler enforces this, because the crate is `no_std`:
//! without an operating system there is no clock to read and no file to open.
//!
//! * [`machine`] decides which lease holds which lock: the rules A1–A14 of the authority.
//! * [`fence`] decides which operations a resource admits: the rules F5, F6 and F10.
//! * [`holder`] computes the instant until which a client may act on its lock.

#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod code;
pub mod command;
pub mod fence;
pub mod holder;
pub mod id;
pub mod invalid;
pub mod invariants;
pub mod limits;
pub mod machine;
pub mod name;
pub mod options;
pub mod outcome;
pub mod permits;
pub mod time;
pub mod token;

pub use code::Code;
pub use command::{Acquire, Away, Command, Entry, GrantRef, LockMode, Others, Under, Wish, set_of};
pub use id::{GrantId, LeaseId, LeaseKey, Principal, RequestId};
pub use invalid::Invalid;
pub use limits::Limits;
pub use machine::Machine;
pub use name::{AuthorityId, ClientId, LockName};
pub use options::{GrantOption, GrantOptions};
pub use outcome::{
    Ahead, Change, Delayed, Detail, Effect, Ending, Event, GrantState, Granted, Holder, LockView,
    Outcome, QueueBound, Queued, Reader, Renewed,
};
pub use permits::{Permits, Slots, slot_key};
pub use time::{InWords, Span, Timestamp, Ttl, WallTime};
pub use token::Token;
