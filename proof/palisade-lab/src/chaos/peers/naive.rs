//! A lock on Redis as people often write it: it draws the token before it wins the lock.
//!
//! ```text
//!   INCR lock:token ─► SET lock NX PX ttl ─► …work… ─► delete if the value is still ours
//! ```
//!
//! Two clients may win in the opposite order of their tokens: the lock is granted with token 2, then with token 1, and
//! the fence rejects its live holder. The remedy is one script that does both, as in `palisade_authorities::redis`.

use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::{Span, Timestamp};
use redis::aio::MultiplexedConnection;

/// A connection for requests.
pub(crate) struct Naive {
    connection: MultiplexedConnection,
}

/// A lock that is held until its time is over, without renewal.
pub(crate) struct Hold {
    connection: MultiplexedConnection,
    key: String,
    pub(crate) token: u64,
    until: Timestamp,
}

impl Naive {
    pub(crate) async fn connect(url: &str) -> Result<Naive, String> {
        let client = redis::Client::open(url).map_err(words)?;
        let connection = client.get_multiplexed_async_connection().await;
        Ok(Naive {
            connection: connection.map_err(words)?,
        })
    }

    /// One try with a new token; `None` after a short pause if somebody else holds the lock.
    pub(crate) async fn acquire(&self, name: &str, ttl: Duration) -> Result<Option<Hold>, String> {
        let mut connection = self.connection.clone();
        let sent = BootClock.now();
        let token: u64 = redis::cmd("INCR")
            .arg(format!("{name}:token"))
            .query_async(&mut connection)
            .await
            .map_err(words)?;
        let mut set = redis::cmd("SET");
        set.arg(name)
            .arg(token)
            .arg("NX")
            .arg("PX")
            .arg(millis(ttl));
        let won: Option<String> = set.query_async(&mut connection).await.map_err(words)?;
        if won.is_none() {
            tokio::time::sleep(RETRY_PAUSE).await;
            return Ok(None);
        }
        Ok(Some(Hold {
            connection,
            key: name.to_owned(),
            token,
            until: sent.after(Span::from_millis(millis(ttl))),
        }))
    }
}

impl Hold {
    pub(crate) fn believes(&self) -> bool {
        BootClock.now() < self.until
    }

    pub(crate) async fn release(mut self) {
        let script = redis::Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
        );
        let mut call = script.key(&self.key);
        call.arg(self.token);
        // The lock expires by itself if this does not arrive.
        let _: redis::RedisResult<u32> = call.invoke_async(&mut self.connection).await;
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn words(error: redis::RedisError) -> String {
    error.to_string()
}

/// The pause between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(3);
