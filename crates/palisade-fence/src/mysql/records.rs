//! The ready-made store `resource_records`: a text for each resource, and its token in the same row.
//!
//! The number of affected rows proves nothing in MySQL, because it counts changed rows. The proof of a write
//! is the row itself, read under the lock that the statement took: it has our token.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Params, Row, Transaction};
use palisade_core::fence::{Pass, Reject, Rule};

use super::rows::{int, number, text};
use super::session::in_transaction;
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, ErrorKind, Result};
use crate::guard_row::CorruptRow;
use crate::sql::{Strategy, bound, judge, valid_id};

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
/// begin again ([`ErrorKind::Retry`]).
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
    /// [`Error::Rejected`] for a stale token and a jump; errors of the database; an id that is not valid.
    pub async fn claim<'p>(
        &self,
        tx: &mut Transaction<'_>,
        id: &str,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<Option<String>>> {
        let pass = pass.into().doing("claim");
        self.begin(tx, id, pass).await?;
        tx.exec_drop(CLAIM, self.arguments(id, pass, None)).await?;
        in_transaction(tx)?;
        self.settle(tx, id, pass, None).await
    }

    /// Writes a resource's text. A missing row is created; a higher token is claimed in the same step.
    ///
    /// # Errors
    /// As [`Records::claim`].
    pub async fn write<'p>(
        &self,
        tx: &mut Transaction<'_>,
        id: &str,
        pass: impl Into<Pass<'p>>,
        data: &str,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("write");
        self.begin(tx, id, pass).await?;
        let arguments = self.arguments(id, pass, Some(data));
        tx.exec_drop(WRITE, arguments).await?;
        let changed = tx.affected_rows();
        in_transaction(tx)?;
        match changed {
            0 => Ok(self.settle(tx, id, pass, Some(data)).await?.map(drop)),
            _ => Ok(Admitted::new((), Some(pass.token))),
        }
    }

    /// Empties a resource. Its row stays, because it contains the fence (rule F4).
    ///
    /// # Errors
    /// As [`Records::claim`]; [`Reject::Missing`] if there is nothing to delete (rule F8).
    pub async fn delete<'p>(
        &self,
        tx: &mut Transaction<'_>,
        id: &str,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("write");
        valid_id(id)?;
        match self.judge(tx, id, pass).await? {
            Some((_, Some(_))) => {
                let arguments = self.arguments(id, pass, None);
                tx.exec_drop(WRITE, arguments).await?;
                in_transaction(tx)?;
                Ok(Admitted::new((), Some(pass.token)))
            }
            _ => Err(rejected(id, pass, Reject::Missing)),
        }
    }

    fn arguments(&self, id: &str, pass: Pass<'_>, data: Option<&str>) -> Params {
        Params::from(vec![
            ("id", mysql_async::Value::from(id)),
            ("data", data.into()),
            ("token", int(pass.token.get()).into()),
            ("bound", int(bound(self.rule)).into()),
        ])
    }

    /// Checks the id, and locks and decides if that is the strategy.
    async fn begin(&self, tx: &mut Transaction<'_>, id: &str, pass: Pass<'_>) -> Result<()> {
        valid_id(id)?;
        if self.strategy == Strategy::Pessimistic {
            self.judge(tx, id, pass).await?;
        }
        Ok(())
    }

    /// Locks the row until the transaction ends, and decides the token; returns the row, if it exists.
    async fn judge(
        &self,
        tx: &mut Transaction<'_>,
        id: &str,
        pass: Pass<'_>,
    ) -> Result<Option<StoredRow>> {
        let row: Option<Row> = tx.exec_first(LOCK, Params::from(vec![("id", id)])).await?;
        let stored = match row {
            None => None,
            Some(mut row) => {
                let highest = number(&mut row, 0).map_err(|holds| CorruptRow {
                    column: "last_fencing_token",
                    holds,
                })?;
                Some((highest, text(&mut row, 1)))
            }
        };
        let highest = stored.as_ref().map_or(0, |(highest, _)| *highest);
        match judge(self.rule, highest, pass.token)? {
            Some(reject) => Err(rejected(id, pass, reject)),
            None => Ok(stored),
        }
    }

    /// Finds the outcome of a conditional statement: the row has our token, or is created, or the token is rejected.
    async fn settle(
        &self,
        tx: &mut Transaction<'_>,
        id: &str,
        pass: Pass<'_>,
        data: Option<&str>,
    ) -> Result<Admitted<Option<String>>> {
        match self.judge(tx, id, pass).await? {
            Some((highest, data)) if highest == int(pass.token.get()) => {
                Ok(Admitted::new(data, Some(pass.token)))
            }
            Some(_) => Err(rejected(id, pass, Reject::Missing)),
            None => {
                let arguments = self.arguments(id, pass, data);
                tx.exec_drop(CREATE, arguments).await.map_err(begin_again)?;
                Ok(Admitted::new(None, Some(pass.token)))
            }
        }
    }
}

/// The token and the text of a row.
type StoredRow = (i64, Option<String>);

fn rejected(id: &str, pass: Pass<'_>, reject: Reject) -> Error {
    audit::reject(id, Some(pass), reject)
}

/// Another transaction that created the same row at the same time is no reason to give up.
fn begin_again(error: mysql_async::Error) -> Error {
    let duplicate = matches!(&error, mysql_async::Error::Server(error) if error.code == DUPLICATE);
    let mut error = error.into();
    if let Error::Database { kind, .. } = &mut error
        && duplicate
    {
        *kind = ErrorKind::Retry;
    }
    error
}
