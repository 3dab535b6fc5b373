//! Replication: several nodes keep one log, and one of them leads.
//!
//! Internal to Palisade, without a promise of compatibility: programs use `palisade-client`, `palisade-authorities` and
//! `palisade-fence`.
//!
//! ```text
//!   pipeline: order → stamp → apply ──batch──► lead::Leadership
//!                                                │ one entry
//!                                                ▼
//!                         engine (Raft) ──► store ──► wal: one frame, one fdatasync ┐
//!                                │                                                  ├ quorum ─► committed
//!                                └── transport ──► follower: engine ─► store ─► wal ┘
//!                                                        │ committed entries
//!                                                        ▼
//!                                                  applier ──► Machine, always up to date
//! ```
//!
//! A leader's machine is the pipeline's; a follower's machine belongs to its [`Applier`], which applies every
//! committed entry to it. When a node begins to lead, the applier lends its machine to a pipeline, and gets it back
//! when the node leads no longer. So taking over costs no replay.
//!
//! The consensus engine is openraft. Only the folder `engine` names it; everything else here is written in terms of
//! [`LogId`], [`Entry`], [`Vote`] and [`Members`].
//!
//! The engine's runtime and the [`Transport`] between nodes are given, so that the lab runs the same nodes in virtual
//! time. Only the folder `peers`, which is the transport over TCP, opens a socket or reads a clock.

mod applier;
mod codec;
mod directory;
mod engine;
mod entry;
pub mod forming;
mod lead;
mod log;
pub mod mark;
mod message;
pub mod node;
mod past;
pub mod peers;
mod record;
pub mod recovery;
mod state;
mod store;
mod takeover;
mod timers;

pub use applier::{Applier, Lent};
pub use directory::{Directory, DirectoryError, Founding};
pub use engine::{
    Engine, EngineStart, EngineWatch, NotCommitted, Progress, Refused, Role, Runtime, Settings,
    Tokio, Transport, Unsound,
};
pub use entry::{Entry, Leader, LogId, Members, NodeId, Payload, Vote};
pub use lead::Leadership;
pub use log::{Log, LogGap};
pub use node::Node;
pub use past::events_after;
pub use record::{Record, read as records_of};
pub use state::{State, StateError};
pub use store::{Sink, Store, Stored, Work, Writer};
pub use takeover::Takeover;
pub use timers::{Contradiction, Profile, Timers, Times};
