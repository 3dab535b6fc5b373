//! The driver's part for tokio-postgres.

use futures_util::future::{join4, try_join};
use palisade_core::fence::{Op, Pass};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Statement, Transaction};

use super::guard::{Guard, WRITE};

use super::error::ErrorFields;
use super::session::{Arg, Row, Value, sealed::Drives};
use crate::admitted::Admitted;
use crate::error::Error;
use crate::name::ResourceId;
use crate::sql::{StatementError, unreachable};

/// A statement of one connection, and the claim before it, both prepared: see [`Guard::prepare`].
#[derive(Clone)]
pub struct PreparedWrite {
    guard: Guard,
    claim: Statement,
    statement: Statement,
}

impl Guard {
    /// Prepares a statement on this connection, to be carried out under a claim with one round trip each time.
    ///
    /// The statement must not depend on data that was read before the claim (rule F2): `total = total + $1` is right, a total
    /// that was read and added to is not.
    ///
    /// # Errors
    /// [`Error::Argument`] for a mode that the database's functions do not have; errors of the database.
    pub async fn prepare(&self, client: &Client, sql: &str) -> crate::Result<PreparedWrite> {
        self.rule()?;
        let claim = client.prepare_typed(WRITE, &WRITE_TYPES);
        let (claim, statement) = try_join(claim, client.prepare(sql)).await?;
        Ok(PreparedWrite {
            guard: *self,
            claim,
            statement,
        })
    }
}

impl PreparedWrite {
    /// Carries out the statement under a claim, in a transaction of its own, in **one round trip**: BEGIN, claim, statement
    /// and COMMIT are sent together. If the claim is rejected, the database runs nothing else of it. Returns the number of
    /// rows that the statement changed.
    ///
    /// `client` is the connection on which it was prepared, and is not in a transaction.
    ///
    /// # Errors
    /// [`Error::Rejected`]; errors of the database. Nothing took effect; after [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) it may have.
    pub async fn execute<'p>(
        &self,
        client: &Client,
        resource: &str,
        pass: impl Into<Pass<'p>>,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> crate::Result<Admitted<u64>> {
        // From here on the claim is sent in any case: without it, the statement would run unfenced.
        ResourceId::new(resource)?;
        let mut pipeline = Pipelined {
            client,
            claim: &self.claim,
        };
        // Each of them is sent when it is first polled, and they are polled in this order.
        let (begun, claimed, done, committed) = join4(
            client.batch_execute("BEGIN"),
            self.guard
                .check(&mut pipeline, resource, pass, Op::Write(None)),
            client.execute(&self.statement, parameters),
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

/// The types of [`WRITE`]'s arguments.
const WRITE_TYPES: [Type; 8] = [
    Type::TEXT,
    Type::INT8,
    Type::TEXT,
    Type::TEXT,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8,
];

/// A connection on which BEGIN was sent before, and a claim prepared.
struct Pipelined<'a> {
    client: &'a Client,
    claim: &'a Statement,
}

impl Drives for Pipelined<'_> {
    async fn run(&mut self, sql: &str, arguments: &[Arg<'_>]) -> Result<Vec<Row>, StatementError> {
        assert_eq!(sql, WRITE, "another statement than the prepared one");
        let values: Vec<&(dyn ToSql + Sync)> = arguments.iter().map(|it| typed(it).0).collect();
        let rows = self.client.query(self.claim, &values).await?;
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
