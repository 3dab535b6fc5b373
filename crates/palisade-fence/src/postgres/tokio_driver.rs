//! The driver's part for tokio-postgres.

use futures_util::future::join4;
use palisade_core::fence::{Op, Pass};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Statement, Transaction};

use super::guard::Guard;

use super::error::ErrorFields;
use super::session::{Arg, Row, Value, sealed::Drives};
use crate::admitted::Admitted;
use crate::error::Error;
use crate::name::ResourceId;
use crate::sql::{StatementError, unreachable};

impl Guard {
    /// Carries out one prepared statement under a claim, in a transaction of its own, in **one round trip**: BEGIN,
    /// claim, statement and COMMIT are sent together. If the claim is rejected, the database runs nothing else of it.
    /// Returns the number of rows that the statement changed.
    ///
    /// The connection must not be in a transaction. The statement must not depend on data that was read before the
    /// claim (rule F2): `total = total + 1` is right, a total that was read and added to is not.
    ///
    /// # Errors
    /// [`Error::Rejected`]; errors of the database. Nothing took effect; after [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) it may have.
    pub async fn execute<'p>(
        &self,
        client: &Client,
        resource: &str,
        pass: impl Into<Pass<'p>>,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> crate::Result<Admitted<u64>> {
        // From here on the claim is sent in any case: without it, the statement would run unfenced.
        ResourceId::new(resource)?;
        self.rule()?;
        let mut pipeline = Pipelined(client);
        // Each of them is sent when it is first polled, and they are polled in this order.
        let (begun, claimed, done, committed) = join4(
            client.batch_execute("BEGIN"),
            self.check(&mut pipeline, resource, pass, Op::Write(None)),
            client.execute(statement, parameters),
            client.batch_execute("COMMIT"),
        )
        .await;
        begun?;
        let claimed = claimed?;
        let rows = done?;
        committed?;
        Ok(claimed.map(|_| rows))
    }
}

/// A connection on which BEGIN was sent before.
struct Pipelined<'a>(&'a Client);

impl Drives for Pipelined<'_> {
    async fn run(&mut self, sql: &str, arguments: &[Arg<'_>]) -> Result<Vec<Row>, StatementError> {
        let typed: Vec<(&(dyn ToSql + Sync), Type)> = arguments.iter().map(typed).collect();
        let rows = self.0.query_typed(sql, &typed).await?;
        rows.iter().map(row).collect()
    }
}

impl Drives for Transaction<'_> {
    async fn run(&mut self, sql: &str, arguments: &[Arg<'_>]) -> Result<Vec<Row>, StatementError> {
        let typed: Vec<(&(dyn ToSql + Sync), Type)> = arguments.iter().map(typed).collect();
        // The types are given, so the statement is not prepared first, which would cost another round trip.
        let rows = self.query_typed(sql, &typed).await?;
        rows.iter().map(row).collect()
    }
}

fn typed<'a>(argument: &'a Arg<'_>) -> (&'a (dyn ToSql + Sync), Type) {
    match argument {
        Arg::Text(text) => (text, Type::TEXT),
        Arg::Texts(texts) => (texts, Type::TEXT_ARRAY),
        Arg::Int(number) => (number, Type::INT8),
        Arg::Bytes(bytes) => (bytes, Type::BYTEA),
    }
}

fn row(row: &tokio_postgres::Row) -> Result<Row, StatementError> {
    let value = |(at, column): (usize, &tokio_postgres::Column)| {
        Ok(match *column.type_() {
            Type::INT8 => Value::Int(row.try_get(at)?),
            Type::BYTEA => Value::Bytes(row.try_get(at)?),
            _ => Value::Text(row.try_get(at)?),
        })
    };
    let values = row.columns().iter().enumerate().map(value);
    values.collect::<Result<_, StatementError>>().map(Row)
}

impl From<tokio_postgres::Error> for StatementError {
    fn from(error: tokio_postgres::Error) -> StatementError {
        let report = error.as_db_error();
        let report = report.map(|error| ErrorFields {
            state: error.code().code().to_owned(),
            message: error.message().to_owned(),
            detail: error.detail().map(str::to_owned),
            hint: error.hint().map(str::to_owned),
            constraint: error.constraint().map(str::to_owned),
        });
        match report {
            Some(report) => report.answer(error),
            None => StatementError::Error(unreachable(error)),
        }
    }
}

/// If the fence rejected the statement, this records the rejection.
impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Error {
        StatementError::from(error).into()
    }
}
