//! Leases with fencing tokens from a system that you already run: etcd, ZooKeeper, PostgreSQL or Redis.
//!
//! Each of them is an *authority*: it grants locks and issues tokens. The guard, its renewal and its deadline come from
//! [`palisade_client`], and fences work with the tokens of every authority.
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
//! | URL | the token is | limits |
//! |---|---|---|
//! | `etcd://a:2379,b:2379[/root]` | the create revision of the request's key | across locks, tokens are not in the order of grants; leases in whole seconds, 2 or more |
//! | `zookeeper://a:2181,b:2181[/root]` | the transaction id (czxid) of the request's node | across locks, as etcd; leases of at least two ticks, 4 s by default |
//! | `postgres://user@host/database` | a counter row, drawn in the transaction that grants | leases expire by the database's wall clock; a lagging standby or a restore goes back to old tokens |
//! | `redis://host[/0][?replicas=N]` | a counter, drawn in the script that grants | a crash without `appendfsync always`, or a failover, loses grants **and tokens** |
//! | `palisade://`, `http://`, `https://`, `unix:` | a Palisade server's counter | see [`palisade_client`] |
//!
//! Only a Palisade server supports semaphores, readers, several locks at once and watches; the others return
//! [`Fault::Unsupported`](palisade_client::Fault::Unsupported). The page of each module lists its authority's
//! guarantees and limitations.
//!
//! Two kinds of locks **have no token**: the module `redlock`, over several Redis primaries, and `postgres::advisory`.
//! `connect` does not support them, and no fence accepts their guards.
//!
//! # Features
//!
//! No feature is on by default.
//!
//! | feature | contents |
//! |---|---|
//! | `etcd`, `zookeeper`, `postgres`, `redis` | the module of that name, and its URLs |
//! | `redlock` | the module `redlock`, with `redis` |
//! | `palisade` | the URLs of Palisade's own servers |
//! | `conformance` | the suite that every authority must pass, including your own |
//!
//! # An authority of your own
//!
//! Implement [`LockService`](palisade_client::LockService), whose page lists the rules, run the suite `conformance` on
//! it, and pass it to [`Client::new`](palisade_client::Client::new). The modules here use only public items of the
//! client:
//!
//! | item of [`palisade_client`] | use |
//! |---|---|
//! | [`service`](palisade_client::service) | the trait, its requests and outcomes; [`fresh_request_id`](palisade_client::service::fresh_request_id) for an unguessable value |
//! | [`Fault`](palisade_client::Fault), [`Reason`](palisade_client::Reason) | the reason why there is no outcome, with the driver's error as its source |
//! | [`clock`](palisade_client::clock) | the holder's clock, on which every deadline counts |
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
