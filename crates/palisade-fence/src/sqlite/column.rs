//! The token as a column of the user's own table: every row is a resource with its own fence.
//!
//! ```text
//!   optimistic     UPDATE … SET …, last_fencing_token = ?t WHERE id = ?1 AND ?t BETWEEN last_fencing_token AND …
//!                  └ 0 rows: Column::explain tells stale from missing
//!   pessimistic    BEGIN IMMEDIATE, SELECT last_fencing_token … → Rule::decide → UPDATE
//! ```
//!
//! A column stores one number, so it supports the tokens of one authority and lock, and no numbered writes.

use palisade_core::Token;
use palisade_core::fence::{Pass, Reject, Rule};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, ToSql, params};

use super::rows::{in_transaction, int};
use super::sticky::{fill, identifier, rejection};
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::guard_row::{CorruptRow, column_state};
use crate::sql::{bound, check_column, judge};

const TEMPLATE: &str = include_str!("../../sql/sqlite/sticky_column.sql");

/// A table whose rows carry their token: `INTEGER NOT NULL DEFAULT 0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    raise: String,
    lock: String,
    look: String,
    sticky: String,
    token: String,
    rule: Rule,
}

impl Column {
    /// Uses this table, key column and token column.
    ///
    /// # Errors
    /// [`Error::Argument`] with the name that is not valid.
    pub fn new(table: &str, key: &str, token: &str) -> Result<Column> {
        check_column(table, key, token)?;
        let trigger = |event: &str| identifier(&format!("palisade_column_{event}_{table}"));
        let names = [
            ("named", trigger("named")?),
            ("moved", trigger("moved")?),
            ("update", trigger("update")?),
            ("delete", trigger("delete")?),
            ("insert", trigger("insert")?),
            ("table", identifier(table)?),
            ("key", identifier(key)?),
            ("token", identifier(token)?),
        ];
        let (table, key, token) = (identifier(table)?, identifier(key)?, identifier(token)?);
        Ok(Column {
            raise: format!("UPDATE {table} SET {token} = ?2 WHERE {key} = ?1 AND "),
            // This changes nothing, but takes the write lock before anything is read.
            lock: format!("UPDATE {table} SET {token} = {token} WHERE {key} = ?1"),
            look: format!("SELECT {token} FROM {table} WHERE {key} = ?1"),
            sticky: fill(TEMPLATE, &names),
            token,
            rule: Rule::CLAIM,
        })
    }

    /// Returns the condition for your own statement, which checks the fence and its jump bound. The statement's
    /// `?parameter` is the token, an integer.
    #[must_use]
    pub fn condition(&self, parameter: usize) -> String {
        let (token, bound) = (&self.token, bound(self.rule));
        format!("{token} >= 0 AND ?{parameter} BETWEEN {token} AND {token} + {bound}")
    }

    /// Returns the same column with another rule. The optimistic form always raises as [`Rule::CLAIM`] does;
    /// only the rule's jump bound applies there.
    #[must_use]
    pub fn under(self, rule: Rule) -> Column {
        Column { rule, ..self }
    }

    /// Returns the SQL that makes the table sticky (rule F9): an UPDATE must name the token column and must
    /// not lower it, and a fenced row cannot be deleted or get another key. Run it with `execute_batch`.
    #[must_use]
    pub fn sticky(&self) -> &str {
        &self.sticky
    }

    /// Converts the error of your own statement, which wrote this token, if it wrote one: [`Error::Rejected`] if a trigger
    /// of [`Column::sticky`] caused it.
    pub fn why(
        &self,
        tx: &Connection,
        key: &dyn ToSql,
        token: Option<Token>,
        error: rusqlite::Error,
    ) -> Error {
        match self.read(tx, key) {
            Ok(Some(number)) => match column_state(number) {
                Ok(state) => rejection(&spelled(key), error, token, state.highest()),
                Err(corrupt) => corrupt.into(),
            },
            _ => error.into(),
        }
    }

    /// Claims a row optimistically: one statement raises its token, unless the token is stale.
    ///
    /// # Errors
    /// [`Error::Rejected`]: stale, a jump, or [`Reject::Missing`] if there is no such row; errors of the database.
    pub fn claim<'p>(
        &self,
        tx: &Connection,
        key: &dyn ToSql,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("claim");
        in_transaction(tx)?;
        let sql = format!("{}{}", self.raise, self.condition(2));
        let mut statement = tx.prepare_cached(&sql)?;
        let rows = statement.execute(params![key, int(pass.token.get())])?;
        self.explain(tx, key, pass, rows)
    }

    /// Claims a row pessimistically: takes the file's write lock, as `BEGIN IMMEDIATE` does earlier, until
    /// the transaction ends; decides, raises.
    ///
    /// # Errors
    /// As [`Column::claim`].
    pub fn lock<'p>(
        &self,
        tx: &Connection,
        key: &dyn ToSql,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("claim");
        in_transaction(tx)?;
        tx.prepare_cached(&self.lock)?.execute([key])?;
        match self.judge(tx, key, pass)? {
            Some(reject) => Err(rejected(key, pass, reject)),
            None => self.claim(tx, key, pass),
        }
    }

    /// Judges your own `UPDATE … WHERE … AND condition` by the number of rows that it matched, as returned by
    /// `execute`. One or more means success. Zero never counts as success (rule F8): this finds the reason,
    /// stale or missing.
    ///
    /// ```
    /// # use palisade_core::Token;
    /// # use palisade_fence::sqlite::Column;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut db = rusqlite::Connection::open_in_memory()?;
    /// # db.execute_batch("CREATE TABLE orders (id TEXT, total INTEGER, last_fencing_token INTEGER NOT NULL DEFAULT 0);
    /// #     INSERT INTO orders (id) VALUES ('17')")?;
    /// # let (tx, token) = (db.transaction()?, Token::FIRST);
    /// let orders = Column::new("orders", "id", "last_fencing_token")?;
    /// let sql = format!("UPDATE orders SET total = ?2, last_fencing_token = ?3 WHERE id = ?1 AND {}",
    ///                   orders.condition(3));
    /// let hit = tx.execute(&sql, ("17", 99, token.get() as i64))?;
    /// orders.explain(&tx, &"17", token, hit)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Column::claim`]. A row that would have been admitted, but was not matched, counts as
    /// missing: another condition of the statement was false.
    pub fn explain<'p>(
        &self,
        tx: &Connection,
        key: &dyn ToSql,
        pass: impl Into<Pass<'p>>,
        affected: usize,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("write");
        if affected > 0 {
            return Ok(Admitted::new((), Some(pass.token)));
        }
        let why = self.judge(tx, key, pass)?;
        Err(rejected(key, pass, why.unwrap_or(Reject::Missing)))
    }

    /// Returns the reason why this row rejects the token; `None` if it admits it.
    fn judge(&self, tx: &Connection, key: &dyn ToSql, pass: Pass<'_>) -> Result<Option<Reject>> {
        match self.read(tx, key)? {
            Some(number) => Ok(judge(self.rule, number, pass.token)?),
            None => Ok(Some(Reject::Missing)),
        }
    }

    fn read(&self, tx: &Connection, key: &dyn ToSql) -> Result<Option<i64>> {
        let mut statement = tx.prepare_cached(&self.look)?;
        let read = statement.query_row([key], |row| row.get(0)).optional();
        read.map_err(|error| match error {
            // SQLite stores a value of any type in any column.
            rusqlite::Error::InvalidColumnType(_, _, holds) => Error::from(CorruptRow {
                column: "last_fencing_token",
                holds: format!("a value of type {holds}"),
            }),
            other => other.into(),
        })
    }
}

fn rejected(key: &dyn ToSql, pass: Pass<'_>, reject: Reject) -> Error {
    audit::reject(&spelled(key), Some(pass), reject)
}

/// The key in a form for operators.
fn spelled(key: &dyn ToSql) -> String {
    let output = key.to_sql();
    let value = match &output {
        Ok(ToSqlOutput::Borrowed(value)) => *value,
        Ok(ToSqlOutput::Owned(value)) => value.into(),
        _ => ValueRef::Null,
    };
    match value {
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Integer(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}
