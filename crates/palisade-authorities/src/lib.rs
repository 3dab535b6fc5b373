//! Leases with fencing tokens from a system that you already run: etcd, ZooKeeper, PostgreSQL or Redis.
//!
//! Each of them is an *authority*: it grants locks and issues the tokens. The guard, its renewal and its deadline are
//! [`palisade_client`]'s, and the fence at the resource compares the tokens whichever authority issued them.
//!
//! ```no_run
//! # async fn work() -> Result<(), palisade_client::Error> {
//! use palisade_client::{Options, secs};
//!
//! let client = palisade_authorities::client("etcd://127.0.0.1:2379", Options::default()).await?;
//! let lease = client.lock("orders").ttl(secs(10)).wait(secs(30)).acquire().await?;
//! // It renews itself. Claim at the fence before the first read: it refuses every lower token from then on.
//! println!("token {}", lease.token());
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Authorities
//!
//! [`client()`] and [`connect()`] take these addresses:
//!
//! | URL | the token is | what it cannot promise |
//! |---|---|---|
//! | `etcd://a:2379,b:2379[/root]` | the create revision of the request's key | tokens of two locks are not in the order of grants; leases of whole seconds, 2 or more |
//! | `zookeeper://a:2181,b:2181[/root]` | the transaction id (czxid) of the request's node | as etcd; a lease lasts two ticks or more, 4 s by default |
//! | `postgres://user@host/database` | a counter row, drawn in the transaction that grants | leases end by the database's wall clock; a lagging standby, or a restore, goes back to old tokens |
//! | `redis://host[/0][?replicas=N]` | a counter, drawn in the script that grants | a crash without `appendfsync always`, or a failover, loses grants **and tokens** |
//! | `palisade://`, `http://`, `https://`, `unix:` | a Palisade server's counter | see [`palisade_client`] |
//!
//! Semaphores, readers, several locks at once and watches are a Palisade server's alone: the others answer
//! [`Fault::Unsupported`](palisade_client::Fault::Unsupported). The page of each module says what its authority guarantees,
//! and what it does not.
//!
//! Two kinds of locks **have no token**, so no fence takes their guards, and `connect` refuses them: the module `redlock`,
//! over several Redis primaries, and `postgres::advisory`.
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | what is there |
//! |---|---|
//! | `etcd`, `zookeeper`, `postgres`, `redis` | the module of that name, and its URLs |
//! | `redlock` | the module `redlock`, with `redis` |
//! | `palisade` | the URLs of Palisade's own servers |
//! | `conformance` | the suite that every authority passes, also one of your own |
//!
//! # An authority of your own
//!
//! Implement [`LockService`](palisade_client::LockService), whose page has the rules, and run the suite `conformance` over
//! it. [`Client::new`](palisade_client::Client::new) takes it as it takes these. The modules here use no more of the client
//! than any other program can:
//!
//! | of [`palisade_client`] | what for |
//! |---|---|
//! | [`service`](palisade_client::service) | the trait, its requests and outcomes; [`fresh_request_id`](palisade_client::service::fresh_request_id) for a value that nobody guesses |
//! | [`Fault`](palisade_client::Fault), [`Reason`](palisade_client::Reason) | why there is no outcome, with the driver's error as its source |
//! | [`clock`](palisade_client::clock) | the holder's clock, from which every validity counts |
//! | [`hold`](palisade_client::hold) | the deadline of a guard without a token |

#![cfg_attr(docsrs, feature(doc_cfg))]

mod connect;
#[cfg(any(
    feature = "etcd",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]
mod exclusive;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod notifications;
#[cfg(any(feature = "etcd", feature = "redlock", feature = "zookeeper"))]
mod url;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
mod wall_clock;

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redlock")]
pub mod redlock;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use connect::{client, connect};
