//! The ready-made store `resource_records`: a text for each resource, and its token in the same row.

use palisade_core::Token;
use palisade_core::fence::{Pass, Reject, Rule};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::rows::{in_transaction, int};
use crate::sql::{Fault, Refused, Strategy, admit, bound, valid_id};

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
    /// # Errors
    /// [`Refused::Rejected`] for a stale token or a jump; faults of the database.
    pub fn claim(
        &self,
        tx: &Connection,
        id: &str,
        token: Token,
    ) -> Result<Option<String>, Refused> {
        ready(tx, id)?;
        if self.strategy == Strategy::Pessimistic {
            self.lock(tx, id, token)?;
        }
        let mut statement = tx.prepare_cached(CLAIM)?;
        let arguments = params![id, int(token.get()), int(bound(self.rule))];
        match statement
            .query_row(arguments, |row| row.get(0))
            .optional()?
        {
            Some(data) => Ok(data),
            None => self.create(tx, id, token, None).map(|()| None),
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
    ) -> Result<(), Refused> {
        ready(tx, id)?;
        if self.strategy == Strategy::Pessimistic {
            self.lock(tx, id, token)?;
        }
        let arguments = params![id, int(token.get()), int(bound(self.rule)), data];
        match tx.prepare_cached(WRITE)?.execute(arguments)? {
            1 => Ok(()),
            _ => self.create(tx, id, token, Some(data)),
        }
    }

    /// Empties a resource. Its row stays, because it contains the fence (rule F4).
    ///
    /// # Errors
    /// The same as [`Records::claim`]; [`Reject::Missing`] if there is nothing to delete (rule F8).
    pub fn delete(&self, tx: &Connection, id: &str, token: Token) -> Result<(), Refused> {
        ready(tx, id)?;
        self.lock(tx, id, token)?;
        let arguments = params![id, int(token.get())];
        match tx.prepare_cached(DELETE)?.execute(arguments)? {
            1 => Ok(()),
            _ => Err(missing(id, token)),
        }
    }

    /// Takes the write lock until the transaction ends, and decides the token.
    fn lock(&self, tx: &Connection, id: &str, token: Token) -> Result<(), Refused> {
        tx.prepare_cached(LOCK)?.execute([id])?;
        self.admit(id, highest(tx, id)?.unwrap_or(0), token)
    }

    fn admit(&self, id: &str, highest: i64, token: Token) -> Result<(), Refused> {
        let judged = admit(self.rule, highest, token);
        judged.map_err(|refused| refused.noted(id, Pass::new(token)))
    }

    /// Handles a statement that matched no row: creates the missing row, or returns the reason why an
    /// existing one was not matched. We have the write lock.
    fn create(
        &self,
        tx: &Connection,
        id: &str,
        token: Token,
        data: Option<&str>,
    ) -> Result<(), Refused> {
        let highest = highest(tx, id)?;
        self.admit(id, highest.unwrap_or(0), token)?;
        if highest.is_some() {
            return Err(missing(id, token));
        }
        let arguments = params![id, int(token.get()), data];
        tx.prepare_cached(CREATE)?.execute(arguments)?;
        Ok(())
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

fn missing(id: &str, token: Token) -> Refused {
    Refused::from(Reject::Missing).noted(id, Pass::new(token))
}
