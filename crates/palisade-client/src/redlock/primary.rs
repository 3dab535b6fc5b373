//! One of the primaries.

use std::time::Duration;

use palisade_core::{LockName, Ttl};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, FromRedisValue, RedisResult, Script};

use crate::fault::Fault;

/// A connection that is made when it is needed, and again when it broke.
pub(super) struct Primary {
    connection: ConnectionManager,
    extend: Script,
    delete: Script,
}

impl Primary {
    pub(super) fn at(host: &str) -> Result<Primary, Fault> {
        let client = Client::open(format!("redis://{host}"))
            .map_err(|error| Fault::invalid(format!("{host}: {error}")))?;
        let settings = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE))
            .set_number_of_retries(0);
        // A primary that is away counts as one that does not grant, also now.
        let connection = ConnectionManager::new_lazy_with_config(client, settings)
            .map_err(|error| Fault::unavailable(format!("{host}: {error}")))?;
        Ok(Primary {
            connection,
            extend: Script::new(
                "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                 return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0",
            ),
            delete: Script::new(
                "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                 return redis.call('DEL', KEYS[1]) end return 0",
            ),
        })
    }

    pub(super) async fn answers(&self) -> bool {
        let mut connection = self.connection.clone();
        let ping = redis::cmd("PING");
        is_yes(ping.query_async::<String>(&mut connection).await, |_| true)
    }

    /// Whether it granted.
    pub(super) async fn set(&self, lock: &LockName, value: &str, ttl: Ttl) -> bool {
        let set = redis::cmd("SET")
            .arg(key(lock))
            .arg(value)
            .arg("NX")
            .arg("PX")
            .arg(ttl.as_millis())
            .to_owned();
        let mut connection = self.connection.clone();
        is_yes(
            set.query_async::<Option<String>>(&mut connection).await,
            |set| set.is_some(),
        )
    }

    /// Whether it was still ours, and lasts.
    pub(super) async fn extend(&self, lock: &LockName, value: &str, ttl: Ttl) -> bool {
        let mut connection = self.connection.clone();
        let mut call = self.extend.key(key(lock));
        call.arg(value).arg(ttl.as_millis());
        is_yes(call.invoke_async::<u32>(&mut connection).await, |done| {
            done == 1
        })
    }

    /// Whether it was still ours, and is free.
    pub(super) async fn delete(&self, lock: &LockName, value: &str) -> bool {
        let mut connection = self.connection.clone();
        let mut call = self.delete.key(key(lock));
        call.arg(value);
        is_yes(call.invoke_async::<u32>(&mut connection).await, |done| {
            done == 1
        })
    }
}

fn is_yes<T: FromRedisValue>(answer: RedisResult<T>, yes: impl FnOnce(T) -> bool) -> bool {
    match answer {
        Ok(answer) => yes(answer),
        Err(error) => {
            tracing::debug!(%error, "a primary did not answer");
            false
        }
    }
}

fn key(lock: &LockName) -> String {
    format!("palisade:redlock:{lock}")
}

/// Short beside any time to live: a primary that is down must not cost the others' time.
const PATIENCE: Duration = Duration::from_millis(50);
