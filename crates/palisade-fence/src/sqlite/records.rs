//! The ready-made store `resource_records`: a text for each resource, and its token in the same row.

use palisade_core::Token;
use palisade_core::fence::{Pass, Reject, Rule};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::rows::{in_transaction, int};
use crate::audit;
use crate::checked::Checked;
use crate::sql::{Fault, Strategy, bound, judge, valid_id};

const CLAIM: &str = "UPDATE resource_records SET last_fencing_token = ?2,
    updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE resource_id = ?1 AND ?2 BETWEEN last_fencing_token AND last_fencing_token + ?3 RETURNING resource_data";

const WRITE: &str = "UPDATE resource_records SET last_fencing_token = ?2, resource_data = ?4,
    updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE resource_id = ?1 AND ?2 BETWEEN last_fencing_token AND last_fencing_token + ?3";

const CREATE: &str = "INSERT INTO resource_records (resource_id, last_fencing_token, resource_data)
VALUES (?1, ?2, ?3)";

/// This changes nothing, but takes the write lock before anything is read.
const LOCK: &str =
    "UPDATE resource_records SET last_fencing_token = last_fencing_token WHERE resource_id = ?1";

const LOOK: &str = "SELECT last_fencing_token FROM resource_records WHERE resource_id = ?1";

const DELETE: &str = "UPDATE resource_records SET resource_data = NULL, last_fencing_token = ?2,
    updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE resource_id = ?1 AND resource_data IS NOT NULL";

/// The store: table `resource_records`, keys of 1 – 100 characters.
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
    /// A stale token and a jump are rejected.
    ///
    /// # Errors
    /// Faults of the database; an id or a transaction that cannot be used.
    pub fn claim(
        &self,
        tx: &Connection,
        id: &str,
        token: Token,
    ) -> Result<Checked<Option<String>>, Fault> {
        if let Some(reject) = self.begin(tx, id, token)? {
            return Ok(rejected(id, token, reject));
        }
        let mut statement = tx.prepare_cached(CLAIM)?;
        let arguments = params![id, int(token.get()), int(bound(self.rule))];
        match statement
            .query_row(arguments, |row| row.get(0))
            .optional()?
        {
            Some(data) => Ok(Checked::admitted(data, Some(token))),
            None => Ok(self.create(tx, id, token, None)?.map(|()| None)),
        }
    }

    /// Writes a resource's text. A missing row is created; a higher token is claimed in the same step.
    ///
    /// # Errors
    /// As [`Records::claim`].
    pub fn write(
        &self,
        tx: &Connection,
        id: &str,
        token: Token,
        data: &str,
    ) -> Result<Checked<()>, Fault> {
        if let Some(reject) = self.begin(tx, id, token)? {
            return Ok(rejected(id, token, reject));
        }
        let arguments = params![id, int(token.get()), int(bound(self.rule)), data];
        match tx.prepare_cached(WRITE)?.execute(arguments)? {
            1 => Ok(Checked::admitted((), Some(token))),
            _ => self.create(tx, id, token, Some(data)),
        }
    }

    /// Empties a resource. Its row stays, because it contains the fence (rule F4).
    ///
    /// If there is nothing to delete, it is rejected as [`Reject::Missing`] (rule F8).
    ///
    /// # Errors
    /// As [`Records::claim`].
    pub fn delete(&self, tx: &Connection, id: &str, token: Token) -> Result<Checked<()>, Fault> {
        ready(tx, id)?;
        if let Some(reject) = self.lock(tx, id, token)? {
            return Ok(rejected(id, token, reject));
        }
        let arguments = params![id, int(token.get())];
        match tx.prepare_cached(DELETE)?.execute(arguments)? {
            1 => Ok(Checked::admitted((), Some(token))),
            _ => Ok(rejected(id, token, Reject::Missing)),
        }
    }

    /// Checks the id and the transaction, and locks if that is the strategy.
    fn begin(&self, tx: &Connection, id: &str, token: Token) -> Result<Option<Reject>, Fault> {
        ready(tx, id)?;
        match self.strategy {
            Strategy::Optimistic => Ok(None),
            Strategy::Pessimistic => self.lock(tx, id, token),
        }
    }

    /// Takes the write lock until the transaction ends, and decides the token.
    fn lock(&self, tx: &Connection, id: &str, token: Token) -> Result<Option<Reject>, Fault> {
        tx.prepare_cached(LOCK)?.execute([id])?;
        let highest = highest(tx, id)?.unwrap_or(0);
        Ok(judge(self.rule, highest, token)?)
    }

    /// Handles a statement that matched no row: creates the missing row, or returns the reason why an
    /// existing one was not matched. We have the write lock.
    fn create(
        &self,
        tx: &Connection,
        id: &str,
        token: Token,
        data: Option<&str>,
    ) -> Result<Checked<()>, Fault> {
        let highest = highest(tx, id)?;
        let why = judge(self.rule, highest.unwrap_or(0), token)?;
        if let Some(reject) = why.or(highest.map(|_| Reject::Missing)) {
            return Ok(rejected(id, token, reject));
        }
        let arguments = params![id, int(token.get()), data];
        tx.prepare_cached(CREATE)?.execute(arguments)?;
        Ok(Checked::admitted((), Some(token)))
    }
}

fn ready(tx: &Connection, id: &str) -> Result<(), Fault> {
    valid_id(id)?;
    in_transaction(tx)
}

fn highest(tx: &Connection, id: &str) -> Result<Option<i64>, Fault> {
    let mut statement = tx.prepare_cached(LOOK)?;
    Ok(statement.query_row([id], |row| row.get(0)).optional()?)
}

fn rejected<T>(id: &str, token: Token, reject: Reject) -> Checked<T> {
    audit::reject(id, Some(Pass::new(token)), reject)
}
