//! NATS JetStream: a key of a bucket for each lock; every change names the revision that it follows, and the revision
//! of the change is the token. Waiters watch the key.
//!
//! A lane remembers the last revision of its key, so that an uncontended lock takes one operation. A bucket has no
//! leases: a dead holder's key disappears with the bucket's maximum age.

use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::kv::{Store, UpdateErrorKind, Watch};
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use futures_util::{FutureExt as _, StreamExt as _};

use super::{Connection as Any, Terms};
use crate::lane::{Error, LaneFuture, Renewing};

pub(crate) struct Connection {
    store: Store,
    contended: bool,
}

struct Lane {
    store: Store,
    key: String,
    /// The last known revision of the key; 0 if there is none.
    revision: u64,
    watch: Option<Watch>,
}

const BUCKET: &str = "peers";
const HELD: &[u8] = b"held";
const FREE: &[u8] = b"free";

pub(crate) async fn prepare(port: u16) -> Result<(), Error> {
    // Creates a bucket as the library does. The library itself would first ask for the account, and does not
    // understand the answer of Debian's server.
    let config = Config {
        name: format!("KV_{BUCKET}"),
        subjects: vec![format!("$KV.{BUCKET}.>")],
        max_messages_per_subject: 1,
        max_age: Duration::from_secs(3_600),
        storage: StorageType::File,
        num_replicas: 1,
        discard: DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..Config::default()
    };
    context(port).await?.create_stream(config).await?;
    Ok(())
}

async fn context(port: u16) -> Result<jetstream::Context, Error> {
    let client = async_nats::connect(format!("127.0.0.1:{port}")).await?;
    let mut context = jetstream::new(client);
    // On a busy machine, a thousand watches take longer to set up than its default of 5 s.
    context.set_timeout(Duration::from_secs(60));
    Ok(context)
}

impl Connection {
    pub(crate) async fn open(port: u16, terms: Terms) -> Result<Connection, Error> {
        let store = context(port).await?.get_key_value(BUCKET).await?;
        Ok(Connection {
            store,
            contended: terms.contended,
        })
    }
}

impl Any for Connection {
    fn lane<'a>(&'a self, lock: &'a str) -> LaneFuture<'a, Box<dyn Renewing>> {
        Box::pin(async move {
            let watch = if self.contended {
                Some(self.store.watch_with_history(lock).await?)
            } else {
                None
            };
            let lane = Lane {
                store: self.store.clone(),
                key: lock.to_owned(),
                revision: 0,
                watch,
            };
            Ok(Box::new(lane) as Box<dyn Renewing>)
        })
    }
}

impl Lane {
    /// The new revision, or `None` if the key is not at the known one.
    async fn put(&mut self, value: &'static [u8]) -> Result<Option<u64>, Error> {
        match self
            .store
            .update(&self.key, value.into(), self.revision)
            .await
        {
            Ok(revision) => {
                self.revision = revision;
                Ok(Some(revision))
            }
            Err(error) if error.kind() == UpdateErrorKind::WrongLastRevision => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Waits until the key is free and no newer revision is known.
async fn free(watch: &mut Watch, after: u64) -> Result<u64, Error> {
    let mut found = None;
    loop {
        let entry = match (found, watch.next().now_or_never()) {
            (Some(revision), None) => return Ok(revision),
            (_, Some(entry)) => entry,
            (None, None) => watch.next().await,
        };
        let entry = entry.ok_or("the watch ended")??;
        let is_free = entry.value == FREE && entry.revision > after;
        found = is_free.then_some(entry.revision);
    }
}

impl crate::lane::Lane for Lane {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        Box::pin(async move {
            loop {
                if let Some(token) = self.put(HELD).await? {
                    return Ok(token);
                }
                let watch = self.watch.as_mut().ok_or("a lane's own lock is held")?;
                self.revision = free(watch, self.revision).await?;
            }
        })
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move { Ok(self.put(FREE).await?.map(drop).ok_or("not held")?) })
    }
}

impl Renewing for Lane {
    /// The token stays; only the key's revision advances.
    fn renew(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move { Ok(self.put(HELD).await?.map(drop).ok_or("not held")?) })
    }
}
