//! The driver's part for sqlx.

use sqlx::postgres::{PgArguments, PgConnection, PgDatabaseError, PgRow, Postgres};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Column as _, Connection as _, Row as _, Transaction, TypeInfo as _};

use super::error::Report;
use super::session::{Arg, Row, Value, sealed::Drives};
use crate::sql::Fault;

impl Drives for PgConnection {
    async fn run(&mut self, sql: &str, arguments: &[Arg<'_>]) -> Result<Vec<Row>, Fault> {
        if !self.is_in_transaction() {
            return Err(Fault::NoTransaction);
        }
        // Safe: the text is our own, and its identifiers were quoted by `identifier`.
        let query = sqlx::query::<Postgres>(AssertSqlSafe(sql));
        let query = arguments.iter().fold(query, bind);
        let rows = query.fetch_all(self).await?;
        rows.iter().map(row).collect()
    }
}

impl Drives for Transaction<'_, Postgres> {
    async fn run(&mut self, sql: &str, arguments: &[Arg<'_>]) -> Result<Vec<Row>, Fault> {
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

fn row(row: &PgRow) -> Result<Row, Fault> {
    let value = |column: &sqlx::postgres::PgColumn| {
        let at = column.ordinal();
        Ok(match column.type_info().name() {
            "INT8" => Value::Int(row.try_get(at)?),
            "BYTEA" => Value::Bytes(row.try_get(at)?),
            _ => Value::Text(row.try_get(at)?),
        })
    };
    let values = row.columns().iter().map(value);
    values.collect::<Result<_, Fault>>().map(Row)
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Fault {
        let database = error.as_database_error();
        match database.and_then(|error| error.try_downcast_ref::<PgDatabaseError>()) {
            Some(error) => Fault::from(Report {
                state: error.code(),
                message: error.message(),
                detail: error.detail(),
                hint: error.hint(),
                constraint: error.constraint(),
            }),
            None => Fault::Connection(Box::new(error)),
        }
    }
}
