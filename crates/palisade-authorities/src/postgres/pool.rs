//! A few connections, opened on demand and reopened after a break.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};

use super::fault;
use palisade_client::Fault;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections over which operations are spread. A statement waits while its lock is busy, and later
/// statements on the same connection wait with it. One connection is correct; several are faster.
pub(super) struct ConnectionPool {
    config: Config,
    slots: Vec<Mutex<Option<Arc<Client>>>>,
    next: AtomicUsize,
}

type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

impl ConnectionPool {
    pub(super) fn new(config: Config, connections: usize) -> Result<ConnectionPool, Fault> {
        if connections == 0 {
            return Err(Fault::invalid("a client needs at least 1 connection"));
        }
        Ok(ConnectionPool {
            config,
            slots: (0..connections).map(|_| Mutex::default()).collect(),
            next: AtomicUsize::new(0),
        })
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Runs one unnamed statement in one round trip. Behind a pooler the next statement may go to another
    /// session.
    pub(super) async fn all(
        &self,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Fault> {
        let client = self.client().await?;
        let rows = client.query_typed(statement, parameters).await;
        rows.map_err(fault::of)
    }

    pub(super) async fn one(
        &self,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Row, Fault> {
        let mut rows = self.all(statement, parameters).await?;
        rows.pop()
            .ok_or_else(|| Fault::unknown_outcome("a statement had no answer"))
    }

    pub(super) async fn batch(&self, statements: &str) -> Result<(), Fault> {
        let done = self.client().await?.batch_execute(statements).await;
        done.map_err(fault::of)
    }

    async fn client(&self) -> Result<Arc<Client>, Fault> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        let mut slot = self.slots[turn].lock().await;
        if let Some(client) = &*slot
            && !client.is_closed()
        {
            return Ok(Arc::clone(client));
        }
        let (client, connection) = self
            .config
            .connect(NoTls)
            .await
            .map_err(fault::connecting)?;
        // It ends when the client is dropped or the connection breaks; every statement then reports the
        // break.
        tokio::spawn(async move { drop(connection.await) });
        let client = Arc::new(client);
        *slot = Some(Arc::clone(&client));
        Ok(client)
    }
}

/// The database in a URL. A message never contains the URL's secrets.
pub(super) fn config(url: &str) -> Result<Config, Fault> {
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        Fault::invalid(format!(
            "{} is not the address of a database: {}",
            palisade_client::without_secrets(url),
            cause.unwrap_or_else(|| error.to_string())
        ))
    })?;
    if config.get_hosts().is_empty() {
        return Err(Fault::invalid("the address of a database needs a host"));
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_application_name().is_none() {
        config.application_name("palisade");
    }
    Ok(config)
}
