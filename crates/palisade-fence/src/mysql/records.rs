//! The ready-made store `resource_records`: a text for each resource, and its token in the same row.
//!
//! The number of affected rows proves nothing in MySQL, because it counts changed rows. The proof of a write
//! is the row itself, read under the lock that the statement took: it has our token.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Error, Params, Row, Transaction};
use palisade_core::Token;
use palisade_core::fence::{Pass, Reject, Rule};

use super::rows::{int, number, text};
use super::session::in_transaction;
use crate::guard_row::Corrupt;
use crate::sql::{Fault, Refused, Strategy, admit, bound, valid_id};

const CLAIM: &str = "UPDATE resource_records SET last_fencing_token = :token
WHERE resource_id = :id AND :token BETWEEN last_fencing_token AND last_fencing_token + :bound";

const WRITE: &str = "UPDATE resource_records SET resource_data = :data, last_fencing_token = :token
WHERE resource_id = :id AND :token BETWEEN last_fencing_token AND last_fencing_token + :bound";

const CREATE: &str = "INSERT INTO resource_records (resource_id, resource_data, last_fencing_token)
VALUES (:id, :data, :token)";

const LOCK: &str = "SELECT last_fencing_token, resource_data FROM resource_records WHERE resource_id = :id FOR UPDATE";

const DUPLICATE: u16 = 1062;

/// The store: table `resource_records`, keys of 1 – 100 characters.
///
/// Two transactions that create the same missing row at the same time may deadlock: one of them must then
/// begin again ([`Fault::is_retryable`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    /// How rows are locked.
    pub strategy: Strategy,
    /// The jump bound in force.
    pub rule: Rule,
}

impl Records {
    /// The store under [`Rule::CLAIM`].
    #[must_use]
    pub const fn new(strategy: Strategy) -> Records {
        Records {
            strategy,
            rule: Rule::CLAIM,
        }
    }

    /// Claims a resource and reads it in one step (rules F2 and F3). A missing row is created, empty.
    ///
    /// # Errors
    /// [`Refused::Rejected`] for a stale token or a jump; faults of the database.
    pub async fn claim(
        &self,
        tx: &mut Transaction<'_>,
        id: &str,
        token: Token,
    ) -> Result<Option<String>, Refused> {
        self.begin(tx, id, token).await?;
        tx.exec_drop(CLAIM, self.arguments(id, token, None)).await?;
        in_transaction(tx)?;
        self.settle(tx, id, token, None).await
    }

    /// Writes a resource's text. A missing row is created; a higher token is claimed in the same step.
    ///
    /// # Errors
    /// As [`Records::claim`].
    pub async fn write(
        &self,
        tx: &mut Transaction<'_>,
        id: &str,
        token: Token,
        data: &str,
    ) -> Result<(), Refused> {
        self.begin(tx, id, token).await?;
        let arguments = self.arguments(id, token, Some(data));
        tx.exec_drop(WRITE, arguments).await?;
        let changed = tx.affected_rows();
        in_transaction(tx)?;
        match changed {
            0 => self.settle(tx, id, token, Some(data)).await.map(drop),
            _ => Ok(()),
        }
    }

    /// Empties a resource. Its row stays, because it contains the fence (rule F4).
    ///
    /// # Errors
    /// The same as [`Records::claim`]; [`Reject::Missing`] if there is nothing to delete (rule F8).
    pub async fn delete(
        &self,
        tx: &mut Transaction<'_>,
        id: &str,
        token: Token,
    ) -> Result<(), Refused> {
        valid_id(id)?;
        match self.judged(tx, id, token).await? {
            Some((_, Some(_))) => self.empty(tx, id, token).await,
            _ => Err(missing(id, token)),
        }
    }

    async fn empty(&self, tx: &mut Transaction<'_>, id: &str, token: Token) -> Result<(), Refused> {
        let arguments = self.arguments(id, token, None);
        tx.exec_drop(WRITE, arguments).await?;
        Ok(in_transaction(tx)?)
    }

    fn arguments(&self, id: &str, token: Token, data: Option<&str>) -> Params {
        Params::from(vec![
            ("id", mysql_async::Value::from(id)),
            ("data", data.into()),
            ("token", int(token.get()).into()),
            ("bound", int(bound(self.rule)).into()),
        ])
    }

    async fn begin(&self, tx: &mut Transaction<'_>, id: &str, token: Token) -> Result<(), Refused> {
        valid_id(id)?;
        if self.strategy == Strategy::Pessimistic {
            self.judged(tx, id, token).await?;
        }
        Ok(())
    }

    fn admit(&self, id: &str, highest: i64, token: Token) -> Result<(), Refused> {
        let judged = admit(self.rule, highest, token);
        judged.map_err(|refused| refused.noted(id, Pass::new(token)))
    }

    /// Locks the row until the transaction ends, and decides the token; returns its number and text, if it
    /// exists.
    async fn judged(
        &self,
        tx: &mut Transaction<'_>,
        id: &str,
        token: Token,
    ) -> Result<Option<(i64, Option<String>)>, Refused> {
        let row: Option<Row> = tx.exec_first(LOCK, Params::from(vec![("id", id)])).await?;
        let Some(mut row) = row else {
            self.admit(id, 0, token)?;
            return Ok(None);
        };
        let highest = number(&mut row, 0).map_err(|holds| Corrupt {
            column: "last_fencing_token",
            holds,
        })?;
        self.admit(id, highest, token)?;
        Ok(Some((highest, text(&mut row, 1))))
    }

    /// Finds the outcome of a conditional statement: the row has our token, or is created, or there is a
    /// reason for the failure.
    async fn settle(
        &self,
        tx: &mut Transaction<'_>,
        id: &str,
        token: Token,
        data: Option<&str>,
    ) -> Result<Option<String>, Refused> {
        match self.judged(tx, id, token).await? {
            Some((highest, data)) if highest == int(token.get()) => Ok(data),
            Some(_) => Err(missing(id, token)),
            None => {
                let arguments = self.arguments(id, token, data);
                tx.exec_drop(CREATE, arguments).await.map_err(begin_again)?;
                Ok(None)
            }
        }
    }
}

fn missing(id: &str, token: Token) -> Refused {
    Refused::from(Reject::Missing).noted(id, Pass::new(token))
}

/// The fault for another transaction that created the same row at the same time.
fn begin_again(error: Error) -> Fault {
    match error {
        Error::Server(error) if error.code == DUPLICATE => Fault::Database {
            state: error.code.to_string(),
            message: error.message,
            retryable: true,
        },
        other => other.into(),
    }
}
