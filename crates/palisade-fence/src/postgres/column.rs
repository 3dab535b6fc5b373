//! The token as a column of the user's own table: every row is a resource with its own fence.
//!
//! ```text
//!   optimistic     UPDATE … SET …, last_fencing_token = $t WHERE id = $1 AND last_fencing_token <= $t
//!                  └ 0 rows: Column::explain tells stale from missing
//!   pessimistic    SELECT last_fencing_token … FOR UPDATE → Rule::decide → UPDATE
//! ```
//!
//! A column stores one number, so it supports the tokens of one authority and lock, and no numbered writes.

use palisade_core::fence::{Pass, Reject, Rule};

use super::session::{Arg, Session};
use crate::admitted::Admitted;
use crate::audit;
use crate::error::Result;
use crate::guard_row::bigint;
use crate::sql::{bound, check_column, judge, valid_name};

/// The type of a key column. Keys are passed as text and cast to this type, so that queries use its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyType {
    /// `text`, `varchar`
    Text,
    /// `bigint`, `integer`
    BigInt,
    /// `uuid`
    Uuid,
}

impl KeyType {
    const fn name(self) -> &'static str {
        match self {
            KeyType::Text => "text",
            KeyType::BigInt => "bigint",
            KeyType::Uuid => "uuid",
        }
    }
}

/// A table whose rows carry their token: `bigint NOT NULL DEFAULT 0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    raise: String,
    lock: String,
    look: String,
    token: String,
    rule: Rule,
}

impl Column {
    /// Uses this table (`orders` or `shop.orders`), key column and token column.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) with the name that is not valid.
    pub fn new(table: &str, key: &str, key_type: KeyType, token: &str) -> Result<Column> {
        check_column(table, key, token)?;
        let parts: Vec<String> = table.split('.').map(identifier).collect::<Result<_, _>>()?;
        let (table, key, token) = (parts.join("."), identifier(key)?, identifier(token)?);
        let row = format!("{key} = CAST($1::text AS {})", key_type.name());
        Ok(Column {
            raise: format!(
                "UPDATE {table} SET {token} = $2::bigint WHERE {row} AND {token} <= $2::bigint \
                 AND $2::bigint - {token} <= $3::bigint RETURNING 1::bigint"
            ),
            lock: format!("SELECT {token}::bigint FROM {table} WHERE {row} FOR UPDATE"),
            look: format!("SELECT {token}::bigint FROM {table} WHERE {row}"),
            token,
            rule: Rule::CLAIM,
        })
    }

    /// Returns the condition for your own statement, which checks the fence and its jump bound. The statement's
    /// `$parameter` is the token, a `bigint`.
    #[must_use]
    pub fn condition(&self, parameter: usize) -> String {
        let (token, bound) = (&self.token, bound(self.rule));
        format!("{token} <= ${parameter} AND ${parameter} - {token} <= {bound}")
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
    /// [`Error::Rejected`](crate::Error::Rejected): stale, a jump, or [`Reject::Missing`] if there is no such row; errors of the database.
    pub async fn claim<'p, S: Session>(
        &self,
        tx: &mut S,
        key: &str,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("claim");
        let arguments = [
            Arg::Text(Some(key)),
            int(pass.token.get()),
            int(bound(self.rule)),
        ];
        let rows = tx.run(&self.raise, &arguments).await?.len();
        self.explain(tx, key, pass, rows as u64).await
    }

    /// Claims a row pessimistically: locks it until the transaction ends, decides, raises.
    ///
    /// # Errors
    /// As [`Column::claim`].
    pub async fn lock<'p, S: Session>(
        &self,
        tx: &mut S,
        key: &str,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("claim");
        match self.judge(tx, &self.lock, key, pass).await? {
            Some(reject) => Err(audit::reject(key, Some(pass), reject)),
            None => self.claim(tx, key, pass).await,
        }
    }

    /// Judges your own `UPDATE … WHERE … AND last_fencing_token <= $token` by the number of rows that it
    /// matched. One or more means success. Zero never counts as success (rule F8): this finds the reason,
    /// stale or missing.
    ///
    /// ```text
    /// let sql = format!("UPDATE orders SET total = $2, last_fencing_token = $3 WHERE id = $1 AND {}",
    ///                   orders.condition(3));
    /// let hit = tx.execute(&sql, &[…]).await?;
    /// orders.explain(&mut tx, "17", token, hit).await?;
    /// ```
    ///
    /// # Errors
    /// As [`Column::claim`]. A row that would have been admitted, but was not matched, counts as
    /// missing: another condition of the statement was false.
    pub async fn explain<'p, S: Session>(
        &self,
        tx: &mut S,
        key: &str,
        pass: impl Into<Pass<'p>>,
        affected: u64,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("write");
        if affected > 0 {
            return Ok(Admitted::new((), Some(pass.token)));
        }
        let why = self.judge(tx, &self.look, key, pass).await?;
        let reject = why.unwrap_or(Reject::Missing);
        Err(audit::reject(key, Some(pass), reject))
    }

    /// Returns the reason why this row rejects the token; `None` if it admits it.
    async fn judge<S: Session>(
        &self,
        tx: &mut S,
        sql: &str,
        key: &str,
        pass: Pass<'_>,
    ) -> Result<Option<Reject>> {
        let rows = tx.run(sql, &[Arg::Text(Some(key))]).await?;
        match rows.first() {
            Some(row) => Ok(judge(self.rule, row.int(0).unwrap_or(0), pass.token)?),
            None => Ok(Some(Reject::Missing)),
        }
    }
}

pub(super) fn int(number: u64) -> Arg<'static> {
    Arg::Int(Some(bigint(number)))
}

/// Quotes a name for SQL. It refuses a name that PostgreSQL would truncate to 63 bytes.
fn identifier(name: &str) -> Result<String> {
    valid_name(name, 63)?;
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_end_the_statement() {
        let column = Column::new("a\"; DROP TABLE x; --", "id", KeyType::Text, "token").unwrap();
        assert!(column.look.contains("\"a\"\"; DROP TABLE x; --\""));
        for bad in ["", "a\0b", &"x".repeat(64)] {
            assert!(matches!(
                Column::new(bad, "id", KeyType::Text, "token"),
                Err(crate::Error::Argument(_))
            ));
        }
    }
}
