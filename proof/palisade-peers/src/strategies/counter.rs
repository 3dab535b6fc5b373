//! A counter in a PostgreSQL row, with different ways to write to it.

use std::time::Duration;

use palisade_core::Token;
use tokio_postgres::{Client, NoTls, Row};

use crate::lane::Error;

/// How a write is protected, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Read, write.
    Plain,
    /// A write below the highest token is rejected.
    Textbook,
    /// The token is raised before the read; then as in the textbook.
    Claim,
    /// The same, with the row locked from the check to the end of its transaction.
    ForUpdate,
    /// No token: a write fails if the version has changed since the read.
    Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Acknowledged,
    Rejected,
}

pub(super) struct Counter {
    client: Client,
    name: String,
    mode: Mode,
}

async fn client(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

fn number(row: &Row, column: &str) -> Result<i64, Error> {
    Ok(row.try_get(column)?)
}

impl Counter {
    pub(super) async fn create(url: &str, name: &str) -> Result<(), Error> {
        let client = client(url).await?;
        let table = "CREATE TABLE IF NOT EXISTS counters (name text PRIMARY KEY, total bigint NOT NULL, \
                     last_fencing_token bigint NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0)";
        client.batch_execute(table).await?;
        let insert = "INSERT INTO counters (name, total) VALUES ($1, 0)";
        client.execute(insert, &[&name]).await?;
        Ok(())
    }

    pub(super) async fn total(url: &str, name: &str) -> Result<u64, Error> {
        let client = client(url).await?;
        let row = client
            .query_one("SELECT total FROM counters WHERE name = $1", &[&name])
            .await?;
        Ok(number(&row, "total")?.unsigned_abs())
    }

    pub(super) async fn connect(url: &str, name: &str, mode: Mode) -> Result<Counter, Error> {
        Ok(Counter {
            client: client(url).await?,
            name: name.to_owned(),
            mode,
        })
    }

    /// Reads, thinks, and writes the value plus one.
    pub(super) async fn add(
        &mut self,
        token: Option<Token>,
        think: Duration,
    ) -> Result<Written, Error> {
        let token = token.map_or(0, Token::get).cast_signed();
        if matches!(self.mode, Mode::Claim | Mode::ForUpdate) {
            let claim = "UPDATE counters SET last_fencing_token = $2 \
                         WHERE name = $1 AND last_fencing_token <= $2";
            if self.client.execute(claim, &[&self.name, &token]).await? == 0 {
                return Ok(Written::Rejected);
            }
        }
        let read = "SELECT total, version FROM counters WHERE name = $1";
        let row = self.client.query_one(read, &[&self.name]).await?;
        let (total, version) = (number(&row, "total")? + 1, number(&row, "version")?);
        tokio::time::sleep(think).await;
        let written = match self.mode {
            Mode::Plain => {
                let write = "UPDATE counters SET total = $2 WHERE name = $1";
                self.client.execute(write, &[&self.name, &total]).await?
            }
            Mode::Textbook | Mode::Claim => {
                let write = "UPDATE counters SET total = $2, last_fencing_token = $3 \
                             WHERE name = $1 AND last_fencing_token <= $3";
                let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                    [&self.name, &total, &token];
                self.client.execute(write, &values).await?
            }
            Mode::ForUpdate => self.locked(total, token).await?,
            Mode::Version => {
                let write = "UPDATE counters SET total = $2, version = version + 1 \
                             WHERE name = $1 AND version = $3";
                let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                    [&self.name, &total, &version];
                self.client.execute(write, &values).await?
            }
        };
        Ok(match written {
            0 => Written::Rejected,
            _ => Written::Acknowledged,
        })
    }

    async fn locked(&mut self, total: i64, token: i64) -> Result<u64, Error> {
        let transaction = self.client.transaction().await?;
        let check = "SELECT last_fencing_token FROM counters WHERE name = $1 FOR UPDATE";
        let row = transaction.query_one(check, &[&self.name]).await?;
        if number(&row, "last_fencing_token")? > token {
            transaction.rollback().await?;
            return Ok(0);
        }
        let write = "UPDATE counters SET total = $2, last_fencing_token = $3 WHERE name = $1";
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [&self.name, &total, &token];
        let written = transaction.execute(write, &values).await?;
        transaction.commit().await?;
        Ok(written)
    }
}
