//! The driver's part for sqlx.

use sqlx::postgres::{PgArguments, PgConnection, PgDatabaseError, PgRow, Postgres};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Column as _, Connection as _, Row as _, Transaction, TypeInfo as _};

use super::error::ErrorFields;
use super::session::{Arg, Row, Value, sealed::Drives};
use crate::error::Error;
use crate::sql::{StatementError, unreachable};

impl Drives for PgConnection {
    async fn run(&mut self, sql: &str, arguments: &[Arg<'_>]) -> Result<Vec<Row>, StatementError> {
        if !self.is_in_transaction() {
            return Err(StatementError::Error(Error::NoTransaction));
        }
        // Safe: the text is our own, and its identifiers were quoted by `identifier`.
        let query = sqlx::query::<Postgres>(AssertSqlSafe(sql));
        let query = arguments.iter().fold(query, bind);
        let rows = query.fetch_all(self).await?;
        rows.iter().map(row).collect()
    }
}

impl Drives for Transaction<'_, Postgres> {
    async fn run(&mut self, sql: &str, arguments: &[Arg<'_>]) -> Result<Vec<Row>, StatementError> {
        PgConnection::run(self, sql, arguments).await
    }
}

fn bind<'q>(
    query: Query<'q, Postgres, PgArguments>,
    argument: &Arg<'_>,
) -> Query<'q, Postgres, PgArguments> {
    match argument {
        Arg::Text(text) => query.bind(text.map(str::to_owned)),
        Arg::Texts(texts) => query.bind(texts.clone()),
        Arg::Int(number) => query.bind(*number),
        Arg::Bytes(bytes) => query.bind(bytes.map(<[u8]>::to_vec)),
    }
}

fn row(row: &PgRow) -> Result<Row, StatementError> {
    let value = |column: &sqlx::postgres::PgColumn| {
        let at = column.ordinal();
        Ok(match column.type_info().name() {
            "INT8" => Value::Int(row.try_get(at)?),
            "BYTEA" => Value::Bytes(row.try_get(at)?),
            _ => Value::Text(row.try_get(at)?),
        })
    };
    let values = row.columns().iter().map(value);
    values.collect::<Result<_, StatementError>>().map(Row)
}

impl From<sqlx::Error> for StatementError {
    fn from(error: sqlx::Error) -> StatementError {
        let database = error.as_database_error();
        let report = database.and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
        let report = report.map(|error| ErrorFields {
            state: error.code().to_owned(),
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
impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Error {
        StatementError::from(error).into()
    }
}
