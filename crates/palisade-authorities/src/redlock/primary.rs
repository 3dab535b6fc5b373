//! One of the primaries.

use std::time::Duration;

use palisade_core::{LockName, Ttl};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, FromRedisValue, RedisResult, Script};

use palisade_client::{Fault, Reason};

/// A connection that is opened on demand and reopened after a break.
pub(super) struct Primary {
    connection: ConnectionManager,
    extend: Script,
    delete: Script,
}

impl Primary {
    pub(super) fn at(host: &str) -> Result<Primary, Fault> {
        let client = Client::open(format!("redis://{host}"))
            .map_err(|error| Fault::invalid(Reason::new(host).because(error)))?;
        let settings = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE))
            .set_number_of_retries(0);
        // An unreachable primary counts as one that does not grant, at start-up too.
        let connection = ConnectionManager::new_lazy_with_config(client, settings)
            .map_err(|error| Fault::unavailable(Reason::new(host).because(error)))?;
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

    /// Tries to set the lock; returns whether the primary granted it.
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

    /// Extends the lock; returns whether it still had our value.
    pub(super) async fn extend(&self, lock: &LockName, value: &str, ttl: Ttl) -> bool {
        let mut connection = self.connection.clone();
        let mut call = self.extend.key(key(lock));
        call.arg(value).arg(ttl.as_millis());
        is_yes(call.invoke_async::<u32>(&mut connection).await, |done| {
            done == 1
        })
    }

    /// Deletes the lock; returns whether it still had our value.
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

/// The time limit for one primary, short compared with any time to live: an unreachable primary must not use
/// up the time of the others.
const PATIENCE: Duration = Duration::from_millis(50);
