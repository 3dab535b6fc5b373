//! Leases with fencing tokens: request a lock from an authority, hold a lease that renews itself, and pass
//! its token to the fence at the resource.
//!
//! **No lock service can stop two processes from both believing they hold a lock. The lease saves
//! work; the fence keeps data safe.**
//!
//! ```
//! # #[cfg(feature = "in-process")]
//! # #[tokio::main]
//! # async fn main() -> Result<(), palisade_client::Error> {
//! use palisade_client::{Client, secs};
//!
//! // Against a server: Client::connect("http://127.0.0.1:7420").await?
//! let client = Client::in_process()?;
//! let lease = client.lock("orders").ttl(secs(10)).wait(secs(30)).acquire().await?;
//! // It renews itself. Before the first read, the resource learns the token and from then on
//! // refuses every lower one: palisade_fence::…::claim(&mut resource, "orders", lease.token())
//! assert_eq!(lease.token().get(), 1);
//! tokio::select! {
//!     lost = lease.lost() => return Err(lost.into()),
//!     () = async { /* the work, each write with lease.token() */ } => {}
//! }
//! lease.release().await?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "in-process"))]
//! # fn main() {}
//! ```
//!
//! # The promises of a lease
//!
//! * At the authority, at most one lease holds a lock, and every grant has a higher [`Token`] than
//!   all before it, whatever the lock.
//! * [`Lease::check`] returns `Ok` only while the authority cannot have granted the lock to anybody else, as
//!   long as both clocks run at most 1 % wrong (set [`Caution`] for another bound). The deadline behind it
//!   counts from before the acknowledged request was sent, on a clock that continues during suspend, and
//!   moves only on an acknowledged renewal of this very grant.
//! * A loss is announced: [`Lease::lost`], [`Lease::cancellation_token`]. A lost lease stays lost.
//! * However an acquire ends (denied, timed out, cancelled, cut off), no lock stays held without a holder: a
//!   request that may have arrived is abandoned in the background.
//!
//! # The limits of a lease
//!
//! A lease does not promise:
//!
//! * That a write made after a successful check arrives before the deadline. A pause fits between the two,
//!   and a network can delay packets for any length of time. Only the resource can refuse a late write; the
//!   token exists for that.
//! * Anything when the machine is frozen in a way that its clocks do not see (a virtual machine paused or
//!   cloned by its host). The fence covers this case too.
//! * That work in progress stops. The guard announces the loss; the work must listen.
//!
//! # One guard, any authority
//!
//! | feature | module | the authority is |
//! |---|---|---|
//! | `palisade` (default) | [`palisade`] | a Palisade server, over gRPC: [`Client::connect`] |
//! | `in-process` | `in_process` | this process, without sockets or disk: `Client::in_process` |
//! | `etcd` | `etcd` | an etcd cluster: `etcd://…` |
//! | `zookeeper` | `zookeeper` | a ZooKeeper ensemble: `zookeeper://…` |
//! | `postgres` | `postgres` | a table in PostgreSQL: `postgres://…` |
//!
//! The URL selects the authority: [`Client::connect`]. Every implementation of [`LockService`] works with the
//! same guard, through [`Client::new`], and passes the suite in `conformance` (feature `conformance`).
//!
//! # Choosing a time to live and a wait
//!
//! The time to live ([`DEFAULT_TTL`]) is how long others wait when a holder dies without a release, and how
//! long a holder keeps its lock without its authority. The wait ([`DEFAULT_WAIT`]) is how long an
//! [`acquire`](LockRequest::acquire) stays in the queue before it is [denied](Error::Held).
//! [`try_acquire`](LockRequest::try_acquire) does not wait; [`attempt`](LockRequest::attempt) returns a
//! denial as a value.

pub mod clock;
pub mod service;

mod acquire;
mod client;
mod connect;
mod election;
mod error;
mod fault;
mod hold;
mod identity;
mod inner;
mod keeper;
mod lease;
mod listing;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod notifications;
mod options;
mod pending;
mod random;
mod retry;
mod schedule;
mod secrets;
mod state;
#[cfg(any(feature = "etcd", feature = "redlock", feature = "zookeeper"))]
mod url;
mod watch;

#[cfg(feature = "in-process")]
pub mod answers;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "in-process")]
pub mod in_process;
#[cfg(feature = "palisade")]
pub mod palisade;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redlock")]
pub mod redlock;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use std::time::Duration;

pub use acquire::{Attempt, DEFAULT_TTL, DEFAULT_WAIT, LockRequest, PermitsRequest, SetRequest};
pub use client::Client;
pub use connect::connect;
pub use election::{Leader, Observer};
pub use error::{Error, Loss, Lost};
pub use fault::Fault;
pub use lease::Lease;
pub use listing::Listing;
pub use options::{BearerToken, Options};
pub use palisade_core::holder::Caution;
pub use palisade_core::{
    Ahead, AuthorityId, Change, ClientId, Code, Delayed, Ending, GrantId, GrantRef, Holder,
    LeaseId, LeaseKey, LockMode, LockName, LockView, Permits, Queued, Reader, Slots, Token, Ttl,
    slot_key,
};
#[cfg(feature = "palisade")]
pub use palisade_tls::ClientFiles as TlsFiles;
pub use secrets::{without_password, without_secrets};
pub use service::{
    LockService, Notice, Proclamation, Released, Renewal, Reopened, Resized, Revocation, Sequencer,
    Status, WatchEvent,
};
pub use watch::Watch;

/// `n` seconds, a short form of [`Duration::from_secs`].
#[must_use]
pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The README's example, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
