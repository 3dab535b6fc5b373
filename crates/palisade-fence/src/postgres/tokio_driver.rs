//! The driver's part for tokio-postgres.

use futures_util::future::join4;
use palisade_core::fence::{Op, Pass};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Statement, Transaction};

use super::guard::Guard;

use super::error::Report;
use super::session::{Arg, Row, Value, sealed::Drives};
use crate::checked::Checked;
use crate::name::ResourceId;
use crate::sql::Fault;

impl Guard {
    /// Carries out one prepared statement under a claim, in a transaction of its own, in **one round trip**: BEGIN,
    /// claim, statement and COMMIT are sent together. If the claim is rejected, the database runs nothing else of it.
    /// Returns the number of rows that the statement changed.
    ///
    /// The connection must not be in a transaction. The statement must not depend on what was read before the claim
    /// (rule F2): `total = total + 1` is right, a total that was read and added to is not.
    ///
    /// # Errors
    /// Faults of the database; nothing took effect. After [`FaultKind::Unknown`](crate::FaultKind::Unknown) it may have.
    pub async fn execute<'p>(
        &self,
        client: &Client,
        resource: &str,
        pass: impl Into<Pass<'p>>,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Checked<u64>, Fault> {
        // From here on the claim is sent in any case: without it, the statement would run unfenced.
        ResourceId::new(resource)?;
        self.rule()?;
        let mut pipeline = Pipeline(client);
        // Each of them is sent when it is first polled, and they are polled in this order.
        let (begun, claimed, done, committed) = join4(
            client.batch_execute("BEGIN"),
            self.check(&mut pipeline, resource, pass, Op::Write(None)),
            client.execute(statement, parameters),
            client.batch_execute("COMMIT"),
        )
        .await;
        begun?;
        match claimed? {
            Checked::Rejected(reject) => Ok(Checked::Rejected(reject)),
            Checked::Admitted(admitted) => {
                let rows = done?;
                committed?;
                Ok(Checked::admitted(rows, admitted.highest))
            }
        }
    }
}

/// A connection on which BEGIN was sent before.
struct Pipeline<'a>(&'a Client);

impl Drives for Pipeline<'_> {
    async fn run(&mut self, sql: &str, arguments: &[Arg<'_>]) -> Result<Vec<Row>, Fault> {
        let typed: Vec<(&(dyn ToSql + Sync), Type)> = arguments.iter().map(typed).collect();
        let rows = self.0.query_typed(sql, &typed).await?;
        rows.iter().map(row).collect()
    }
}

impl Drives for Transaction<'_> {
    async fn run(&mut self, sql: &str, arguments: &[Arg<'_>]) -> Result<Vec<Row>, Fault> {
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

fn row(row: &tokio_postgres::Row) -> Result<Row, Fault> {
    let value = |(at, column): (usize, &tokio_postgres::Column)| {
        Ok(match *column.type_() {
            Type::INT8 => Value::Int(row.try_get(at)?),
            Type::BYTEA => Value::Bytes(row.try_get(at)?),
            _ => Value::Text(row.try_get(at)?),
        })
    };
    let values = row.columns().iter().enumerate().map(value);
    values.collect::<Result<_, Fault>>().map(Row)
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Fault {
        match error.as_db_error() {
            Some(error) => Fault::from(Report {
                state: error.code().code(),
                message: error.message(),
                detail: error.detail(),
                hint: error.hint(),
                constraint: error.constraint(),
            }),
            None => Fault::Connection(Box::new(error)),
        }
    }
}
