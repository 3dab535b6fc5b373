//! The driver's part for tokio-postgres.

use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use super::error::server_fault;
use super::session::{Arg, Row, Value, sealed::Drives};
use crate::sql::Fault;

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
            Some(error) => server_fault(
                error.code().code(),
                error.message(),
                error.detail(),
                error.hint(),
            ),
            None => Fault::Connection(Box::new(error)),
        }
    }
}
