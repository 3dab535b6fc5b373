//! A chunk store as in the Google File System (Ghemawat, Gobioff, Leung 2003): a master, chunk servers and clients.
//! A chunk's replicas follow the server that has the chunk's lease, its primary. The lease's fencing token is the
//! chunk's version, and replicas refuse every mutation of another version.
//!
//! ```text
//!            who has it? ┌────────┐ heartbeat: (chunk, version)
//!   client ─────────────►│ master │◄─────────────────────────────┐
//!     │                  └────────┘ install · publish · collect  │
//!     │ append           ┌─────────┐ apply (version, serial) ┌───┴─────┐
//!     └─────────────────►│ primary │────────────────────────►│ replica │  refuses a version that is not its own
//!                        └────┬────┘                         └─────────┘
//!                             │ lock chunk/… → token = version
//!                        ┌────▼────┐
//!                        │ palisade│
//!                        └─────────┘
//! ```
//!
//! [`story`] plays the dangerous case: the primary is paused past its lease, and continues.

pub mod client;
mod durable;
pub mod event;
mod http;
pub mod master;
pub mod name;
pub mod server;
pub mod story;
pub mod version;
pub mod wire;

use std::error::Error;

pub use server::Checks;

/// An error other than a refusal.
pub type Failure = Box<dyn Error + Send + Sync>;
