//! Redis: one script takes the lock and draws the token, another releases it; a message wakes waiters.

mod notifications;
mod pipeline;
mod resp;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

use super::{Connection as Any, Terms};
use crate::lane::{Error, LaneFuture, Renewing, random};
use notifications::Notifications;
use pipeline::Pipeline;
use resp::Value;

pub(crate) struct Connection {
    shared: Arc<Shared>,
}

struct Shared {
    pipeline: Pipeline,
    notifications: Option<Notifications>,
    ttl: String,
    take: Vec<u8>,
    renew: Vec<u8>,
    give: Vec<u8>,
}

struct Lane {
    shared: Arc<Shared>,
    lock: Vec<u8>,
    value: [u8; 16],
    /// Notified when another lane releases the lock.
    released: Option<Arc<Notify>>,
}

const TAKE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
    return redis.call('INCR', KEYS[2]) end return 0";
const RENEW: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0";
const GIVE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('DEL', KEYS[1]) end return 0";
const GIVE_AND_NOTIFY: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    redis.call('PUBLISH', KEYS[1], '') return redis.call('DEL', KEYS[1]) end return 0";

impl Connection {
    pub(crate) async fn open(address: &Address, terms: Terms) -> Result<Connection, Error> {
        let pipeline = Pipeline::new(address.connect().await?, terms.alone);
        let give = if terms.contended {
            GIVE_AND_NOTIFY
        } else {
            GIVE
        };
        let notifications = if terms.contended {
            Some(Notifications::new(address.connect().await?))
        } else {
            None
        };
        let shared = Shared {
            notifications,
            ttl: terms.ttl_ms.to_string(),
            take: script(&pipeline, TAKE).await?,
            renew: script(&pipeline, RENEW).await?,
            give: script(&pipeline, give).await?,
            pipeline,
        };
        Ok(Connection {
            shared: Arc::new(shared),
        })
    }
}

/// Where the server listens.
pub(crate) enum Address {
    Port(u16),
    Socket(PathBuf),
}

/// The two directions of a connection.
struct Halves {
    reading: Box<dyn AsyncRead + Send + Unpin>,
    writing: Box<dyn AsyncWrite + Send + Unpin>,
}

impl Address {
    async fn connect(&self) -> Result<Halves, Error> {
        Ok(match self {
            Address::Port(port) => {
                let stream = TcpStream::connect(("127.0.0.1", *port)).await?;
                stream.set_nodelay(true)?;
                let (reading, writing) = stream.into_split();
                Halves {
                    reading: Box::new(reading),
                    writing: Box::new(writing),
                }
            }
            Address::Socket(path) => {
                let (reading, writing) = UnixStream::connect(path).await?.into_split();
                Halves {
                    reading: Box::new(reading),
                    writing: Box::new(writing),
                }
            }
        })
    }
}

/// Loads a script; returns the digest by which it is called.
async fn script(pipeline: &Pipeline, text: &str) -> Result<Vec<u8>, Error> {
    match pipeline.ask(&[b"SCRIPT", b"LOAD", text.as_bytes()]).await? {
        Value::Text(name) => Ok(name),
        other => Err(format!("unexpected answer to SCRIPT LOAD: {other:?}").into()),
    }
}

impl Any for Connection {
    fn lane<'a>(&'a self, lock: &'a str) -> LaneFuture<'a, Box<dyn Renewing>> {
        Box::pin(async move {
            let released = match &self.shared.notifications {
                Some(channel) => Some(channel.subscribe(lock.as_bytes()).await?),
                None => None,
            };
            let lane = Lane {
                shared: Arc::clone(&self.shared),
                lock: lock.as_bytes().to_vec(),
                value: random()?,
                released,
            };
            Ok(Box::new(lane) as Box<dyn Renewing>)
        })
    }
}

impl Lane {
    /// Calls a script on this lock.
    async fn call(&self, script: &[u8]) -> Result<u64, Error> {
        let shared = &self.shared;
        let words: [&[u8]; 7] = [
            b"EVALSHA",
            script,
            b"2",
            &self.lock,
            b"peers:tokens",
            &self.value,
            shared.ttl.as_bytes(),
        ];
        match shared.pipeline.ask(&words).await? {
            Value::Number(number) => Ok(number.unsigned_abs()),
            other => Err(format!("unexpected answer from a script: {other:?}").into()),
        }
    }
}

impl crate::lane::Lane for Lane {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        Box::pin(async move {
            loop {
                match (self.call(&self.shared.take).await?, &self.released) {
                    (0, Some(released)) => released.notified().await,
                    (0, None) => return Err("a lane's own lock is held".into()),
                    (token, _) => return Ok(token),
                }
            }
        })
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move {
            match self.call(&self.shared.give).await? {
                0 => Err("not held".into()),
                _ => Ok(()),
            }
        })
    }
}

impl Renewing for Lane {
    fn renew(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move {
            match self.call(&self.shared.renew).await? {
                0 => Err("not held".into()),
                _ => Ok(()),
            }
        })
    }
}
