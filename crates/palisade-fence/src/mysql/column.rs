//! The token as a column of the user's own table: every row is a resource with its own fence.
//!
//! ```text
//!   optimistic     UPDATE … SET …, last_fencing_token = ? WHERE id = ? AND ? BETWEEN last_fencing_token AND …
//!                  └ 0 rows: Column::explain tells stale from missing
//!   pessimistic    SELECT last_fencing_token … FOR UPDATE → Rule::decide → UPDATE
//! ```
//!
//! A column stores one number, so it supports the tokens of one authority and lock, and no numbered writes.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Row, Transaction, Value};
use palisade_core::fence::{Pass, Reject, Rule};

use super::rows::{int, number};
use super::session::in_transaction;
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::guard_row::CorruptRow;
use crate::sql::{bound, check_column, judge, valid_name};

/// A table whose rows carry their token: `BIGINT NOT NULL DEFAULT 0`. Its engine must be InnoDB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    raise: String,
    lock: String,
    token: String,
    rule: Rule,
}

impl Column {
    /// Uses this table (`orders` or `shop.orders`), key column and token column.
    ///
    /// # Errors
    /// [`Error::Argument`] with the name that is not valid.
    pub fn new(table: &str, key: &str, token: &str) -> Result<Column> {
        check_column(table, key, token)?;
        let parts: Vec<String> = table.split('.').map(identifier).collect::<Result<_, _>>()?;
        let (table, key, token) = (parts.join("."), identifier(key)?, identifier(token)?);
        Ok(Column {
            raise: format!("UPDATE {table} SET {token} = ? WHERE {key} = ? AND "),
            lock: format!("SELECT {token} FROM {table} WHERE {key} = ? FOR UPDATE"),
            token,
            rule: Rule::CLAIM,
        })
    }

    /// Returns the condition for your own statement, which checks the fence and its jump bound. It has one `?` for the
    /// token.
    #[must_use]
    pub fn condition(&self) -> String {
        let (token, bound) = (&self.token, bound(self.rule));
        format!("{token} >= 0 AND ? BETWEEN {token} AND {token} + {bound}")
    }

    /// Returns the same column with another rule. The optimistic form always raises as [`Rule::CLAIM`] does;
    /// only the rule's jump bound applies there.
    #[must_use]
    pub fn under(self, rule: Rule) -> Column {
        Column { rule, ..self }
    }

    /// Claims a row optimistically: one statement raises its token, unless the token is stale.
    ///
    /// # Errors
    /// [`Error::Rejected`]: stale, a jump, or [`Reject::Missing`] if there is no such row; errors of the database.
    pub async fn claim<'p>(
        &self,
        tx: &mut Transaction<'_>,
        key: impl Into<Value>,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("claim");
        let (key, number) = (key.into(), int(pass.token.get()));
        let sql = format!("{}{}", self.raise, self.condition());
        tx.exec_drop(sql, (number, &key, number)).await?;
        let changed = tx.affected_rows();
        in_transaction(tx)?;
        // A row that already had this token was matched and not changed.
        if changed == 0 && self.judge(tx, &key, pass).await? != number {
            return Err(rejected(&key, pass, Reject::Missing));
        }
        Ok(Admitted::new((), Some(pass.token)))
    }

    /// Claims a row pessimistically: locks it until the transaction ends, decides, raises.
    ///
    /// # Errors
    /// As [`Column::claim`].
    pub async fn lock<'p>(
        &self,
        tx: &mut Transaction<'_>,
        key: impl Into<Value>,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("claim");
        let key = key.into();
        self.judge(tx, &key, pass).await?;
        self.claim(tx, key, pass).await
    }

    /// Judges your own `UPDATE … WHERE … AND condition` by the number of rows that it matched. One or more
    /// means success. Zero never counts as success (rule F8): this finds the reason, stale or missing.
    ///
    /// **Connect with `client_found_rows=true`.** Otherwise MySQL counts the rows that it changed, and a
    /// write of equal values counts zero. If that cannot be distinguished from a missing row, the result is
    /// [`Error::Argument`].
    ///
    /// ```no_run
    /// # use mysql_async::{Transaction, prelude::Queryable as _};
    /// # use palisade_core::Token;
    /// # use palisade_fence::mysql::Column;
    /// # async fn write(mut tx: Transaction<'_>, token: Token) -> Result<(), Box<dyn std::error::Error>> {
    /// let orders = Column::new("orders", "id", "last_fencing_token")?;
    /// let sql = format!("UPDATE orders SET total = ?, last_fencing_token = ? WHERE id = ? AND {}",
    ///                   orders.condition());
    /// tx.exec_drop(sql, (99, token.get(), "17", token.get())).await?;
    /// let hit = tx.affected_rows();
    /// orders.explain(&mut tx, "17", token, hit).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Column::claim`]. A row that would have been admitted, but was not matched, counts as
    /// missing: another condition of the statement was false.
    pub async fn explain<'p>(
        &self,
        tx: &mut Transaction<'_>,
        key: impl Into<Value>,
        pass: impl Into<Pass<'p>>,
        affected: u64,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("write");
        if affected > 0 {
            return Ok(Admitted::new((), Some(pass.token)));
        }
        let (key, found) = (key.into(), tx.opts().client_found_rows());
        if self.judge(tx, &key, pass).await? == int(pass.token.get()) && !found {
            return Err(Error::Argument(
                "0 rows were changed: they may have been missed, or have had these values already; \
                 connect with client_found_rows=true to have hit rows counted"
                    .to_owned(),
            ));
        }
        Err(rejected(&key, pass, Reject::Missing))
    }

    /// Locks the row and decides the token; returns the number in the column.
    async fn judge(&self, tx: &mut Transaction<'_>, key: &Value, pass: Pass<'_>) -> Result<i64> {
        let row: Option<Row> = tx.exec_first(&self.lock, (key,)).await?;
        let Some(mut row) = row else {
            return Err(rejected(key, pass, Reject::Missing));
        };
        let column = number(&mut row, 0).map_err(|holds| CorruptRow {
            column: "last_fencing_token",
            holds,
        })?;
        match judge(self.rule, column, pass.token)? {
            Some(reject) => Err(rejected(key, pass, reject)),
            None => Ok(column),
        }
    }
}

fn rejected(key: &Value, pass: Pass<'_>, reject: Reject) -> Error {
    audit::reject(&key.as_sql(true), Some(pass), reject)
}

/// Quotes a name for SQL. It refuses a name that is too long for MySQL.
fn identifier(name: &str) -> Result<String> {
    valid_name(name, 64)?;
    Ok(format!("`{}`", name.replace('`', "``")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_end_the_statement() {
        let column = Column::new("a`; DROP TABLE x; --", "id", "token").unwrap();
        assert!(column.lock.contains("`a``; DROP TABLE x; --`"));
        for bad in ["", "a\0b", &"x".repeat(65)] {
            let refused = Column::new(bad, "id", "token");
            assert!(matches!(refused, Err(Error::Argument(_))));
        }
    }
}
