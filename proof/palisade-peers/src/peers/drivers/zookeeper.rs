//! ZooKeeper: an ephemeral node is the lock, the transaction that created it is the token. With waiters: the queue of
//! sequential nodes.

use zookeeper_client::{Acls, Client, CreateMode, Error as Refused};

use super::{Connection as Any, Terms};
use crate::bare;
use crate::lane::{Error, LaneFuture, Renewing};

pub(crate) struct Connection {
    client: Client,
    contended: bool,
}

/// A lock without contention.
struct Own {
    client: Client,
    path: String,
}

/// A position in the queue.
struct Queued(bare::zookeeper::Lane);

impl Connection {
    pub(crate) async fn open(port: u16, terms: Terms) -> Result<Connection, Error> {
        let ttl = std::time::Duration::from_millis(terms.ttl_ms.min(LONGEST_MS));
        let client = Client::connector()
            .with_session_timeout(ttl)
            .connect(&format!("127.0.0.1:{port}"))
            .await?;
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        match client.create(PARENT, b"", &persistent).await {
            Ok(_) | Err(Refused::NodeExists) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Connection {
            client,
            contended: terms.contended,
        })
    }
}

impl Any for Connection {
    fn lane<'a>(&'a self, lock: &'a str) -> LaneFuture<'a, Box<dyn Renewing>> {
        Box::pin(async move {
            let client = self.client.clone();
            if self.contended {
                let lane = bare::zookeeper::Lane::new(client, lock).await?;
                return Ok(Box::new(Queued(lane)) as Box<dyn Renewing>);
            }
            let path = format!("{PARENT}/{}", lock.replace('/', "-"));
            Ok(Box::new(Own { client, path }) as Box<dyn Renewing>)
        })
    }
}

impl crate::lane::Lane for Own {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        Box::pin(async move {
            let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
            let (stat, _) = self.client.create(&self.path, b"", &ephemeral).await?;
            Ok(stat.czxid.unsigned_abs())
        })
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move { Ok(self.client.delete(&self.path, None).await?) })
    }
}

impl Renewing for Own {
    fn renew(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async { Err(SESSIONS.into()) })
    }
}

impl crate::lane::Lane for Queued {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        crate::lane::Lane::acquire(&mut self.0)
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        crate::lane::Lane::release(&mut self.0)
    }
}

impl Renewing for Queued {
    fn renew(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async { Err(SESSIONS.into()) })
    }
}

const PARENT: &str = "/peers";
const SESSIONS: &str = "ZooKeeper keeps sessions alive, not locks";
/// The testbed's server allows no longer sessions.
const LONGEST_MS: u64 = 60_000;
