//! The fence's interface to a driver: one statement, its arguments, its rows.

use std::future::Future;

use crate::sql::StatementError;

/// A transaction of the user, with any driver.
///
/// `tokio_postgres::Transaction` and sqlx's `PgConnection` and `Transaction` implement it. An sqlx connection outside a
/// transaction is [`Error::NoTransaction`](crate::Error::NoTransaction), because check and effect would be two steps.
pub trait Session: Send + sealed::Drives {}

impl<S: sealed::Drives + Send> Session for S {}

pub(crate) mod sealed {
    use super::{Arg, Future, Row, StatementError};

    /// The driver's interface. It is sealed, because an implementation promises to be in a transaction.
    pub trait Drives {
        /// Runs one statement and returns all its rows.
        #[doc(hidden)]
        fn run(
            &mut self,
            sql: &str,
            arguments: &[Arg<'_>],
        ) -> impl Future<Output = Result<Vec<Row>, StatementError>> + Send;
    }
}

/// An argument of a statement.
#[derive(Clone, Debug)]
pub enum Arg<'a> {
    /// `text`
    Text(Option<&'a str>),
    /// `text[]`
    Texts(Vec<Option<String>>),
    /// `bigint`
    Int(Option<i64>),
    /// `bytea`
    Bytes(Option<&'a [u8]>),
}

/// A row: its columns are cast to `text`, `bigint` or `bytea` by the statement.
#[derive(Clone, Debug)]
pub struct Row(pub(super) Vec<Value>);

/// The value of a column.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(Option<String>),
    Int(Option<i64>),
    Bytes(Option<Vec<u8>>),
}

impl Row {
    pub(super) fn text(&mut self, at: usize) -> Option<String> {
        match self.0.get_mut(at) {
            Some(Value::Text(text)) => text.take(),
            _ => None,
        }
    }

    pub(super) fn int(&self, at: usize) -> Option<i64> {
        match self.0.get(at) {
            Some(Value::Int(number)) => *number,
            _ => None,
        }
    }

    pub(super) fn bytes(&mut self, at: usize) -> Option<Vec<u8>> {
        match self.0.get_mut(at) {
            Some(Value::Bytes(bytes)) => bytes.take(),
            _ => None,
        }
    }
}
