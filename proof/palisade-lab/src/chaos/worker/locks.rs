//! The locks that a worker can use: any authority with an adapter, and some without one that demonstrate a failure.

use std::time::Duration;

use palisade_authorities::redlock::{self, Redlock};
use palisade_client::{Client, Error, Lease, Options};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::chaos::kind::PERMITS;
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

/// A worker's request.
pub(super) enum Wish {
    /// A lock, alone.
    Exclusive(String),
    /// A lock, with other readers.
    Shared(String),
    /// A lock, as the reader that may become the writer.
    Update(String),
    /// So many permits of a semaphore.
    Permits(String, u32),
    /// Several locks at once.
    Set(Vec<String>),
}

/// A lock, or several, that the worker believes it holds.
pub(super) struct Grant {
    /// The token that its fences compare.
    pub(super) token: Option<u64>,
    /// The number that names the grant: its token, unless it is a reader's.
    pub(super) number: Option<u64>,
    /// The authority to which the fence is bound.
    pub(super) authority: Option<String>,
    /// The resources that it guards.
    pub(super) resources: Vec<String>,
    hold: Hold,
}

enum Hold {
    /// A guard for each lock of a set; one for any other kind.
    Leases(Vec<Lease>),
    Redlock(redlock::RedlockGuard),
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
            return Ok(Locks::Redlock(
                redlock.map_err(|fault| format!("{fault:#}"))?,
            ));
        }
        let client = palisade_authorities::client(url, Options::default()).await;
        Ok(Locks::Guarded(
            client.map_err(|error| format!("{error:#}"))?,
        ))
    }

    /// Returns the grant, or `None` if somebody else holds the lock the whole time.
    pub(super) async fn acquire(
        &self,
        wish: &Wish,
        ttl: Duration,
    ) -> Result<Option<Grant>, String> {
        let wait = ttl * 20;
        if let Locks::Guarded(client) = self {
            let lease = match wish {
                Wish::Exclusive(name) => client.lock(name).ttl(ttl).wait(wait).acquire().await,
                Wish::Shared(name) => {
                    let reader = client.lock_shared(name);
                    reader.ttl(ttl).wait(wait).acquire().await
                }
                Wish::Update(name) => {
                    let reader = client.lock_shared(name).for_update();
                    reader.ttl(ttl).wait(wait).acquire().await
                }
                Wish::Permits(name, wanted) => {
                    let some = client.semaphore(name, PERMITS).permits(*wanted);
                    some.ttl(ttl).wait(wait).acquire().await
                }
                Wish::Set(names) => {
                    let set = client.locks(names).ttl(ttl).wait(wait);
                    return granted(set.acquire().await);
                }
            };
            return granted(lease.map(|lease| vec![lease]));
        }
        let Wish::Exclusive(name) = wish else {
            return Err("this authority has exclusive locks only".to_owned());
        };
        let grant = |token, hold| Grant {
            token,
            number: token,
            authority: None,
            resources: vec![name.clone()],
            hold,
        };
        match self {
            Locks::Guarded(_) => Ok(None),
            Locks::Redlock(redlock) => {
                let guard = redlock.acquire(name, ttl, wait).await;
                let guard = guard.map_err(|error| format!("{error:#}"))?;
                Ok(guard.map(|guard| grant(None, Hold::Redlock(guard))))
            }
            Locks::Naive(naive) => {
                let hold = naive.acquire(name, ttl).await?;
                Ok(hold.map(|hold| grant(Some(hold.token), Hold::Naive(hold))))
            }
            Locks::Broken(address) => {
                let token = ask(address, name)
                    .await
                    .map_err(|error| error.to_string())?;
                Ok(Some(grant(Some(token), Hold::Nothing)))
            }
        }
    }

    /// The writer that a reader in mode update becomes, or nothing if other readers stay the whole time.
    pub(super) async fn upgrade(
        &self,
        reader: &Grant,
        wait: Duration,
    ) -> Result<Option<Grant>, String> {
        match (self, &reader.hold) {
            (Locks::Guarded(client), Hold::Leases(leases)) if leases.len() == 1 => {
                let writer = client.upgrade(&leases[0], wait).await;
                granted(writer.map(|lease| vec![lease]))
            }
            _ => Ok(None),
        }
    }

    /// The reader that a writer becomes.
    pub(super) async fn downgrade(&self, writer: Grant) -> Result<Option<Grant>, String> {
        let (Locks::Guarded(client), Hold::Leases(mut leases)) = (self, writer.hold) else {
            return Ok(None);
        };
        match leases.pop() {
            Some(lease) => granted(client.downgrade(lease).await.map(|lease| vec![lease])),
            None => Ok(None),
        }
    }
}

/// A grant of these leases; nothing if others hold the locks.
fn granted(leases: Result<Vec<Lease>, Error>) -> Result<Option<Grant>, String> {
    let leases = match leases {
        Err(Error::Held { .. } | Error::Behind { .. }) => return Ok(None),
        leases => leases.map_err(|error| format!("{error:#}"))?,
    };
    let Some(lease) = leases.first() else {
        return Err("granted without a lock".to_owned());
    };
    let token = lease.token().get();
    let resources = if lease.slots().is_empty() {
        leases
            .iter()
            .map(|lease| lease.lock().to_string())
            .collect()
    } else {
        lease.slot_keys().map(|key| key.to_string()).collect()
    };
    Ok(Some(Grant {
        token: Some(token),
        number: Some(lease.grant_id().map_or(token, |id| id.0.get())),
        authority: Some(lease.authority().as_str().to_owned()),
        resources,
        hold: Hold::Leases(leases),
    }))
}

impl Grant {
    /// Whether the worker believes that it holds the lock, or all locks of the set.
    pub(super) fn believes(&self) -> bool {
        match &self.hold {
            Hold::Leases(leases) => leases.iter().all(|lease| lease.check().is_ok()),
            Hold::Redlock(guard) => guard.is_held(),
            Hold::Naive(hold) => hold.believes(),
            Hold::Nothing => true,
        }
    }

    pub(super) async fn release(self) {
        match self.hold {
            Hold::Leases(leases) => {
                for lease in leases {
                    // The lock is no longer held, whatever the answer.
                    drop(lease.release().await);
                }
            }
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
