//! Fences for data in Redis: one Lua script checks and writes, in one round trip on the user's own
//! connection.
//!
//! ```text
//!   Resource ──► EVALSHA fence.lua   palisade:fence:{orders}   token, written, digest, authority, lock, result
//!                  │  one step          {orders}:total         the user's own keys, same slot
//!                  ├ judge the mark: reject, repeat, or
//!                  ├ store the mark, then
//!                  └ SET HSET HDEL DEL APPEND, or the user's own script
//! ```
//!
//! ```
//! use palisade_fence::redis::{Resource, Script, probe};
//! # use palisade_core::Token;
//! # use palisade_testbed::Redis;
//!
//! # async fn add(con: &mut redis::aio::MultiplexedConnection, token: Token) -> palisade_fence::Result<u64> {
//! probe(con).await?; // once for each server: could it evict fences?
//! let orders = Resource::new("orders")?.guarding(&["{orders}:total"])?;
//! orders.claim(con, token).await?; // first: raise the fence
//! let add = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])")?;
//! let total = orders.write(token).run(con, &add, &["{orders}:total"], &[b"5"]).await?;
//! Ok(total.value)
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! # let server = Redis::start(&[]);
//! # let client = redis::Client::open(server.url()).unwrap();
//! # let mut con = client.get_multiplexed_async_connection().await.unwrap();
//! # let mut token = |number| Token::new(number).unwrap();
//! # assert_eq!(add(&mut con, token(7)).await.unwrap(), 5);
//! # assert!(add(&mut con, token(6)).await.unwrap_err().rejected().is_some());
//! # }
//! ```
//!
//! # Guarantees
//!
//! * A script is one step at the server, in memory, in its log and at its replicas: data of a new token never
//!   exists under an old mark (rule F1). The mark is stored first, the effect second.
//! * [`Writing::set`] and the other commands are all or nothing: a command that fails also restores the mark.
//!   **A script of the user is not**: Redis rolls nothing back, so when it fails, the raised fence stays and
//!   so do the script's earlier writes. A numbered run that failed gets the same answer again, and never runs
//!   twice.
//! * Marks never expire and are never collected. Tokens are compared as Lua's numbers, which are exact up to
//!   2^53, and are never formatted by Lua, which would write 1e+15.
//! * The decision is that of [`palisade_core::fence`]; tests compare the two, by `vectors/fence.json` and by random
//!   operations.
//!
//! # Limitations
//!
//! * **Code that writes with plain `SET` is not stopped**: Redis has no trigger, and its access rules apply
//!   inside scripts as well as outside. Rule F9 binds only code that writes through this module.
//! * **Redis answers before data is on disk.** With `appendfsync everysec` a crash loses up to two seconds of
//!   marks and data, with `always` nothing that was answered, without a log everything since the snapshot.
//!   Mark and data go back *together*: a holder that was refused before the crash may be admitted after it.
//!   The same holds for a **failover** (data that the replica had not received is lost; `WAIT` narrows that),
//!   for a **restored snapshot** and for `FLUSHALL`. Redis cannot detect it: after each of these, let the
//!   authority issue a token and re-arm with that floor ([`Operator`]).
//! * Redis detects a missing mark whose data is still there: [`Error::FenceLost`]. An operation looks at its own
//!   keys and at those of [`Resource::guarding`].
//! * Eviction could remove a mark: [`probe`] refuses `allkeys-*` policies.
//! * A replica may lag, and would answer a read with a token from old data: [`probe`] refuses it. A plain
//!   read there is for observers.
//! * In a cluster several resources cannot be claimed in one step: claim one after the other, in name order,
//!   all before the first read.

mod answer;
mod library;
mod objects;
mod operator;
mod probe;
mod resource;
mod script;
mod slot;

pub use library::{LIBRARY_VERSION, install, installed, library, uninstall};
pub use objects::Objects;
pub use operator::Operator;
pub use probe::probe;
pub use resource::{Resource, Writing};
pub use script::Script;
pub use slot::slot;

use crate::error::{Error, ErrorKind};

/// Redis refused, or the outcome is unknown because the connection broke after the script was sent.
impl From<redis::RedisError> for Error {
    fn from(error: redis::RedisError) -> Error {
        Error::failed(ErrorKind::Unknown, "Redis failed", error)
    }
}
