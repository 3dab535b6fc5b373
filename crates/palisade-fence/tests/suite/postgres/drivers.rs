//! The two drivers as their users have them: a connection, a transaction, the user's own statements.

use std::future::Future;

use palisade_fence::Result;
use palisade_fence::postgres::Session;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres, Row as _};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls};

use super::forms::Job;

/// A user's transaction, with statements that do not concern the fence.
pub(crate) trait Tx: Session {
    /// Runs a statement. All arguments are text, and so is the first column of each row.
    fn own(
        &mut self,
        sql: &str,
        arguments: &[&str],
    ) -> impl Future<Output = Result<Vec<Option<String>>>> + Send;
}

pub(crate) trait Driver: Clone + Send + Sync + 'static {
    type Connection: Send + 'static;

    fn connect(url: &str) -> impl Future<Output = Result<Self::Connection>> + Send;

    /// Carries out a job in its own transaction.
    fn carry_out<J: Job>(
        connection: &mut Self::Connection,
        job: &J,
    ) -> impl Future<Output = Result<J::Done>> + Send;
}

#[derive(Clone)]
pub(crate) struct Tokio;
#[derive(Clone)]
pub(crate) struct Sqlx;

impl Tx for tokio_postgres::Transaction<'_> {
    async fn own(&mut self, sql: &str, arguments: &[&str]) -> Result<Vec<Option<String>>> {
        let typed: Vec<(&(dyn ToSql + Sync), Type)> = arguments
            .iter()
            .map(|text| (text as &(dyn ToSql + Sync), Type::TEXT))
            .collect();
        let rows = self.query_typed(sql, &typed).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

impl Driver for Tokio {
    type Connection = Client;

    async fn connect(url: &str) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn carry_out<J: Job>(client: &mut Client, job: &J) -> Result<J::Done> {
        let mut tx = client.transaction().await?;
        let done = job.work(&mut tx).await;
        match &done {
            Ok(_) => tx.commit().await?,
            Err(_) => tx.rollback().await?,
        }
        done
    }
}

impl Tx for sqlx::Transaction<'_, Postgres> {
    async fn own(&mut self, sql: &str, arguments: &[&str]) -> Result<Vec<Option<String>>> {
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for argument in arguments {
            query = query.bind((*argument).to_owned());
        }
        let rows = query.fetch_all(&mut **self).await?;
        rows.iter()
            .map(|row| Ok(row.try_get(0)?))
            .collect::<Result<_>>()
    }
}

impl Driver for Sqlx {
    type Connection = PgConnection;

    async fn connect(url: &str) -> Result<PgConnection> {
        Ok(PgConnection::connect(url).await?)
    }

    async fn carry_out<J: Job>(connection: &mut PgConnection, job: &J) -> Result<J::Done> {
        let mut tx = connection.begin().await?;
        let done = job.work(&mut tx).await;
        match &done {
            Ok(_) => tx.commit().await?,
            Err(_) => tx.rollback().await?,
        }
        done
    }
}
