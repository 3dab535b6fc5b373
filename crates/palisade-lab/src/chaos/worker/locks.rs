//! The locks that a worker can use: any authority with an adapter, and some without one that demonstrate a failure.

use std::time::Duration;

use palisade_client::redlock::{self, Redlock};
use palisade_client::{Attempt, Client, Lease};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::chaos::peers::naive::{self, Naive};

/// A client for locks, by URL.
pub(super) enum Locks {
    /// An authority behind the guard: Palisade, or another system through its adapter.
    Guarded(Client),
    /// `redlock://`: a lock without tokens.
    Redlock(Redlock),
    /// `naive+redis://`: INCR, then SET NX.
    Naive(Naive),
    /// `broken://`: grants everything.
    Broken(String),
}

/// A lock that the worker believes to hold.
pub(super) struct Grant {
    pub(super) token: Option<u64>,
    /// The authority to which the fence is bound.
    pub(super) authority: Option<String>,
    hold: Hold,
}

enum Hold {
    Lease(Lease),
    Redlock(redlock::Guard),
    Naive(naive::Hold),
    Nothing,
}

impl Locks {
    pub(super) async fn connect(url: &str) -> Result<Locks, String> {
        if let Some(address) = url.strip_prefix("broken://") {
            return Ok(Locks::Broken(address.to_owned()));
        }
        if let Some(url) = url.strip_prefix("naive+") {
            return Ok(Locks::Naive(Naive::connect(url).await?));
        }
        if url.starts_with("redlock://") {
            let redlock = Redlock::connect(url).await;
            return Ok(Locks::Redlock(redlock.map_err(|fault| fault.to_string())?));
        }
        let client = Client::connect(url).await;
        Ok(Locks::Guarded(client.map_err(|error| error.to_string())?))
    }

    /// The lock, or nothing if somebody else holds it the whole time.
    pub(super) async fn acquire(&self, name: &str, ttl: Duration) -> Result<Option<Grant>, String> {
        let wait = ttl * 20;
        match self {
            Locks::Guarded(client) => {
                let attempt = client.lock(name).ttl(ttl).wait(wait).attempt().await;
                match attempt.map_err(|error| error.to_string())? {
                    Attempt::Granted(lease) => Ok(Some(Grant {
                        token: Some(lease.token().get()),
                        authority: Some(lease.authority().as_str().to_owned()),
                        hold: Hold::Lease(lease),
                    })),
                    Attempt::Held(_) => Ok(None),
                    other => Err(format!("{other:?}")),
                }
            }
            Locks::Redlock(redlock) => {
                let guard = redlock.acquire(name, ttl, wait).await;
                let guard = guard.map_err(|error| error.to_string())?;
                Ok(guard.map(|guard| Grant {
                    token: None,
                    authority: None,
                    hold: Hold::Redlock(guard),
                }))
            }
            Locks::Naive(naive) => {
                let hold = naive.acquire(name, ttl).await?;
                Ok(hold.map(|hold| Grant {
                    token: Some(hold.token),
                    authority: None,
                    hold: Hold::Naive(hold),
                }))
            }
            Locks::Broken(address) => {
                let token = ask(address, name)
                    .await
                    .map_err(|error| error.to_string())?;
                Ok(Some(Grant {
                    token: Some(token),
                    authority: None,
                    hold: Hold::Nothing,
                }))
            }
        }
    }
}

impl Grant {
    /// Whether the worker believes that it holds the lock.
    pub(super) fn believes(&self) -> bool {
        match &self.hold {
            Hold::Lease(lease) => lease.check().is_ok(),
            Hold::Redlock(guard) => guard.is_held(),
            Hold::Naive(hold) => hold.believes(),
            Hold::Nothing => true,
        }
    }

    pub(super) async fn release(self) {
        match self.hold {
            // The lock is no longer held, whatever the answer.
            Hold::Lease(lease) => drop(lease.release().await),
            Hold::Redlock(guard) => drop(guard.release().await),
            Hold::Naive(hold) => hold.release().await,
            Hold::Nothing => {}
        }
    }
}

async fn ask(address: &str, name: &str) -> std::io::Result<u64> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    stream.write_all(format!("{name}\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_line(&mut answer).await?;
    answer.trim().parse().map_err(std::io::Error::other)
}
