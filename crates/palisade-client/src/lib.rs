//! A client for leases with fencing tokens. Request a lock from an authority, hold a lease that renews itself, and pass
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
//! // refuses every lower one: palisade_fence::…::claim(&mut resource, "orders", lease.pass())
//! assert_eq!(lease.token().get(), 1);
//! tokio::select! {
//!     lost = lease.lost() => return Err(lost.into()),
//!     () = async { /* the work, each write with lease.pass() */ } => {}
//! }
//! lease.release().await?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "in-process"))]
//! # fn main() {}
//! ```
//!
//! # Authorities and features
//!
//! | feature | module | authority |
//! |---|---|---|
//! | `palisade` (default) | [`palisade`] | a Palisade server, or a cluster: [`Client::connect`] to `palisade://…`, `http://…`, `https://…`, `unix:…` |
//! | `in-process` | `in_process` | this process, without sockets or disk: `Client::in_process`; for unit tests, `testing` |
//!
//! The crate `palisade-authorities` creates the same [`Client`] for etcd, ZooKeeper, PostgreSQL and Redis. To use any
//! other authority, implement [`LockService`] and pass it to [`Client::new`]. A system that issues no tokens cannot
//! implement `LockService`; it builds its own guard on [`hold`].
//!
//! # The kinds of locks
//!
//! Each kind of request has only the options that make sense for it ([`kind`]).
//!
//! ```no_run
//! # async fn ask(client: palisade_client::Client) -> Result<(), palisade_client::Error> {
//! use palisade_client::secs;
//!
//! let alone = client.lock("printer").lock_delay(secs(15)).acquire().await?;
//! let reader = client.lock_shared("report").acquire().await?; // beside other readers
//! let two_of_four = client.semaphore("gpu", 4).permits(2).acquire().await?;
//! let both = client.locks(["account:7", "account:8"]).acquire().await?; // or none
//! let beside = client.lock("spool").under(&alone).acquire().await?; // one lease, one end
//! # drop((alone, reader, two_of_four, both, beside));
//! # Ok(())
//! # }
//! ```
//!
//! # Denials, losses and faults
//!
//! When another client holds the lock, [`acquire`](LockRequest::acquire) returns an [`Error`],
//! [`try_acquire`](LockRequest::try_acquire) returns `None`, and [`attempt`](LockRequest::attempt) returns the holder
//! as a value:
//!
//! ```no_run
//! # async fn ask(client: palisade_client::Client) -> Result<(), palisade_client::Error> {
//! use palisade_client::{Attempt, secs};
//!
//! match client.lock("orders").wait(secs(2)).attempt().await? {
//!     Attempt::Granted(lease) => println!("token {}", lease.token()),
//!     Attempt::Held(holder) => println!("{} has it, with token {}", holder.client, holder.token),
//!     denied => println!("not now: {denied:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! An error keeps its causes; `{:#}` prints them all on one line:
//!
//! ```no_run
//! # async fn ask(client: palisade_client::Client) {
//! use palisade_client::Error;
//!
//! match client.lock("orders").acquire().await {
//!     Ok(lease) => println!("token {}", lease.token()),
//!     Err(Error::Held { holder, .. }) => println!("{} has it", holder.client),
//!     Err(Error::Fault(fault)) if fault.is_transient() => println!("try again: {fault:#}"),
//!     Err(error) => println!("{error:#}"),
//! }
//! # }
//! ```
//!
//! # Elections and observers
//!
//! The holder of an exclusive lock is the leader. It announces its address, or any other text, as the lock's metadata:
//!
//! ```no_run
//! # async fn lead(client: palisade_client::Client) -> Result<(), palisade_client::Error> {
//! let lease = client.lock("primary").metadata("10.0.0.7:5432").acquire().await?;
//! # drop(lease);
//! let mut observer = client.observe("primary").await?; // in another process
//! loop {
//!     match observer.next().await? {
//!         Some(leader) => println!("{} leads with token {}", leader.client, leader.token),
//!         None => println!("nobody leads"),
//!     }
//! }
//! # }
//! ```
//!
//! # Handing a lease over
//!
//! [`Lease::export`] ends a hold without a release and returns a text, from which [`Client::adopt`] makes a lease with
//! the same token in another process, in any language.
//!
//! # Tests without a server
//!
//! With the feature `in-process`, `testing::MemoryServer` is the double for the unit tests of your program: the server's
//! own code in memory, with the levers `hold`, `expire`, `revoke`, `down`, `stall` and `up`. The client is the real one.
//!
//! ```
//! # #[cfg(feature = "in-process")]
//! # #[tokio::main]
//! # async fn main() -> Result<(), palisade_client::Error> {
//! let server = palisade_client::testing::MemoryServer::new()?;
//! let client = server.client()?; // for the code under test
//! let other = server.hold("orders", "other").await?; // another client has the lock
//! assert!(client.lock("orders").try_acquire().await?.is_none());
//! drop(other);
//! server.down(); // nothing is granted or renewed until `up`
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "in-process"))]
//! # fn main() {}
//! ```
//!
//! [`Client`]s of one `in_process::InProcess` share an authority inside the process. With a manual clock, time advances
//! only when the test says so, and a lease expires without waiting:
//!
//! ```
//! # #[cfg(feature = "in-process")]
//! # #[tokio::main]
//! # async fn main() -> Result<(), palisade_client::Error> {
//! use std::sync::Arc;
//!
//! use palisade_client::in_process::InProcess;
//! use palisade_client::{Client, secs};
//!
//! let authority = Arc::new(InProcess::with_manual_clock()?);
//! let (paused, next) = (Client::new(authority.clone())?, Client::new(authority.clone())?);
//! let lease = paused.lock("orders").ttl(secs(10)).acquire().await?;
//! authority.advance(secs(10).into()).await?;
//! let later = next.lock("orders").acquire().await?;
//! assert!(later.token() > lease.token());
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
//! * [`Lease::check`] returns `Ok` only while the authority cannot have granted the lock to anybody else, as long as
//!   both clocks are at most 1 % fast or slow ([`Caution`] sets another bound). Its deadline counts from before the
//!   acknowledged request was sent, on a clock that continues during suspend. Only an acknowledged renewal of the lease
//!   moves the deadline.
//! * [`Lease::lost`] and [`Lease::cancellation_token`] announce a loss. A lost lease stays lost.
//! * An acquire never leaves a lock behind, whether it is denied, times out, is cancelled or loses its connection: a
//!   request that may have arrived is abandoned in the background.
//!
//! # The limits of a lease
//!
//! A lease does not promise:
//!
//! * That a write made after a successful check arrives before the deadline. The process can pause between the two, and
//!   a network can delay packets for any length of time. Only the resource can refuse a late write, by the token.
//! * Anything if the machine stops without its clocks noticing, such as a virtual machine that its host pauses or
//!   clones. The fence covers this case too.
//! * That work in progress stops. The guard announces the loss; your code must act on it.
//!
//! # Choosing a time to live and a wait
//!
//! The time to live ([`DEFAULT_TTL`]) limits two things: how long others wait after a holder dies without a release,
//! and how long a holder keeps its lock while its authority is unreachable. The wait ([`DEFAULT_WAIT`]) limits how long
//! an [`acquire`](LockRequest::acquire) stays in the queue before it is [denied](Error::Held).
//!
//! # What is public
//!
//! Palisade's Rust API is this crate, `palisade-authorities`, `palisade-fence`, and the types that they re-export from
//! `palisade-core` and `palisade-tls`. The other crates are internal and may change in any release.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod clock;
pub mod hold;
pub mod kind;
pub mod service;

mod acquire;
mod client;
mod connect;
mod election;
mod error;
mod fault;
mod handover;
mod identity;
mod inner;
mod keeper;
mod lease;
mod listening;
mod listing;
mod notices;
mod options;
mod pending;
mod random;
mod reports;
mod retry;
mod schedule;
mod secrets;
mod state;
mod watch;

// Public for programs that reach a pipeline without `in_process`, such as the simulator.
#[cfg(feature = "in-process")]
#[doc(hidden)]
pub mod answers;
#[cfg(feature = "in-process")]
pub mod in_process;
#[cfg(feature = "palisade")]
pub mod palisade;
#[cfg(feature = "in-process")]
pub mod testing;

use std::time::Duration;

pub use acquire::{Attempt, DEFAULT_TTL, DEFAULT_WAIT, LockRequest};
pub use client::Client;
pub use connect::connect;
pub use election::{Leader, Observer};
pub use error::{Error, Loss, Lost};
pub use fault::{Fault, Reason};
pub use lease::Lease;
pub use listing::Listing;
pub use notices::{LeaseNotice, Notices};
pub use options::{BearerToken, Options};
pub use palisade_core::fence::{Late, Pass, Reporter};
pub use palisade_core::holder::Caution;
pub use palisade_core::{
    Ahead, AuthorityId, Change, ClientId, Code, Delayed, Ending, GrantId, GrantOption,
    GrantOptions, GrantRef, Holder, LeaseId, LeaseKey, LockMode, LockName, LockView, Permits,
    Queued, Reader, Slots, Span, Token, Ttl, WallTime, slot_key,
};
#[cfg(feature = "palisade")]
pub use palisade_tls::ClientFiles as TlsFiles;
pub use secrets::{without_password, without_secrets};
pub use service::{
    GrantNews, LateWrite, Listened, Listening, LockService, Notice, Proclamation, Released,
    Renewal, Reopened, Resized, Revocation, SequencerAnswer, Status, WatchEvent,
};
pub use watch::Watch;

/// Returns `n` seconds; short for [`Duration::from_secs`].
#[must_use]
pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The README's example, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The page's example, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/use/handing-over.md")]
struct HandingOver;

/// The page's example, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/use/notices.md")]
struct NoticesPage;
