//! Leases with fencing tokens: ask an authority for a lock, hold a lease that renews itself, and pass
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
//! # What a lease promises
//!
//! * At the authority, at most one lease holds a lock, and every grant has a higher [`Token`] than
//!   all before it, whatever the lock.
//! * [`Lease::check`] says `Ok` only while the authority cannot have granted the lock to anybody
//!   else, as long as both clocks run at most 1 % wrong ([`Caution`] says otherwise). The deadline
//!   behind it counts from before the acknowledged request was sent, on a clock that goes on in
//!   suspend, and moves only on an acknowledged renewal of this very grant.
//! * Losing it is announced: [`Lease::lost`], [`Lease::cancellation_token`]. What is lost stays lost.
//! * However an acquire ends (denied, timed out, cancelled, cut off), no lock stays behind that nobody
//!   holds: a request that may have arrived is abandoned in the background.
//!
//! # What it does not promise
//!
//! * That a write made after a successful check arrives before the deadline. A pause fits between the
//!   two, and a network in between holds packets back for as long as it likes. Only the resource can
//!   refuse a late write: that is what the token is for.
//! * Anything when the machine is frozen in a way its clocks do not see (a virtual machine paused or
//!   cloned by its host). The fence covers that too.
//! * That work in progress stops. The guard tells; the work must listen.
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
//! The URL selects: [`Client::connect`]. Whatever implements [`LockService`] works with the same guard,
//! through [`Client::new`], and passes the suite in `conformance` (feature `conformance`).
//!
//! # Choosing a time to live and a wait
//!
//! The time to live ([`DEFAULT_TTL`]) is how long others wait when a holder dies without a word, and
//! how long a holder survives without its authority. The wait ([`DEFAULT_WAIT`]) is how long an
//! [`acquire`](LockRequest::acquire) stands in the queue before it is
//! [denied](Error::Held). [`try_acquire`](LockRequest::try_acquire) does not wait;
//! [`attempt`](LockRequest::attempt) answers a denial as a value.

pub mod clock;
pub mod service;

mod acquire;
mod client;
mod connect;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod ears;
mod errand;
mod error;
mod fault;
mod hold;
mod identity;
mod keeper;
mod lease;
mod listing;
mod pending;
mod random;
mod schedule;
#[cfg(any(feature = "etcd", feature = "redlock", feature = "zookeeper"))]
mod url;
mod watch;

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

pub use acquire::{Attempt, DEFAULT_TTL, DEFAULT_WAIT, LockRequest};
pub use client::{Client, Options};
pub use connect::{connect, without_secrets};
pub use error::{Error, Loss, Lost};
pub use fault::Fault;
pub use lease::Lease;
pub use listing::Listing;
pub use palisade_core::holder::Caution;
pub use palisade_core::{
    AuthorityId, Change, ClientId, Ending, GrantRef, Holder, LeaseId, LeaseKey, LockName, LockView,
    Token, Ttl,
};
pub use service::{LockService, Released, Renewal, Revocation, Status, WatchEvent};
pub use watch::Watch;

/// `n` seconds, for the places where [`Duration::from_secs`] is too long a word.
#[must_use]
pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The README's example, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
