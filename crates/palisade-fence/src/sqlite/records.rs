//! The ready-made store `resource_records`: a text for each resource, and its token in the same row.

use palisade_core::fence::{Pass, Reject, Rule};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::rows::{in_transaction, int};
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::sql::{Strategy, bound, judge, valid_id};

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
    /// [`Error::Rejected`] for a stale token and a jump; errors of the database; an id or a transaction that cannot be used.
    pub fn claim<'p>(
        &self,
        tx: &Connection,
        id: &str,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<Option<String>>> {
        let pass = pass.into().doing("claim");
        self.begin(tx, id, pass)?;
        let mut statement = tx.prepare_cached(CLAIM)?;
        let arguments = params![id, int(pass.token.get()), int(bound(self.rule))];
        match statement
            .query_row(arguments, |row| row.get(0))
            .optional()?
        {
            Some(data) => Ok(Admitted::new(data, Some(pass.token))),
            None => Ok(self.create(tx, id, pass, None)?.map(|()| None)),
        }
    }

    /// Writes a resource's text. A missing row is created; a higher token is claimed in the same step.
    ///
    /// # Errors
    /// As [`Records::claim`].
    pub fn write<'p>(
        &self,
        tx: &Connection,
        id: &str,
        pass: impl Into<Pass<'p>>,
        data: &str,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("write");
        self.begin(tx, id, pass)?;
        let arguments = params![id, int(pass.token.get()), int(bound(self.rule)), data];
        match tx.prepare_cached(WRITE)?.execute(arguments)? {
            1 => Ok(Admitted::new((), Some(pass.token))),
            _ => self.create(tx, id, pass, Some(data)),
        }
    }

    /// Empties a resource. Its row stays, because it contains the fence (rule F4).
    ///
    /// # Errors
    /// As [`Records::claim`]; [`Reject::Missing`] if there is nothing to delete (rule F8).
    pub fn delete<'p>(
        &self,
        tx: &Connection,
        id: &str,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<()>> {
        let pass = pass.into().doing("write");
        ready(tx, id)?;
        self.lock(tx, id, pass)?;
        let arguments = params![id, int(pass.token.get())];
        match tx.prepare_cached(DELETE)?.execute(arguments)? {
            1 => Ok(Admitted::new((), Some(pass.token))),
            _ => Err(rejected(id, pass, Reject::Missing)),
        }
    }

    /// Checks the id and the transaction, and locks if that is the strategy.
    fn begin(&self, tx: &Connection, id: &str, pass: Pass<'_>) -> Result<()> {
        ready(tx, id)?;
        match self.strategy {
            Strategy::Optimistic => Ok(()),
            Strategy::Pessimistic => self.lock(tx, id, pass),
        }
    }

    /// Takes the write lock until the transaction ends, and decides the token.
    fn lock(&self, tx: &Connection, id: &str, pass: Pass<'_>) -> Result<()> {
        tx.prepare_cached(LOCK)?.execute([id])?;
        let highest = highest(tx, id)?.unwrap_or(0);
        match judge(self.rule, highest, pass.token)? {
            Some(reject) => Err(rejected(id, pass, reject)),
            None => Ok(()),
        }
    }

    /// Handles a statement that matched no row: creates the missing row, or returns the reason why an
    /// existing one was not matched. We have the write lock.
    fn create(
        &self,
        tx: &Connection,
        id: &str,
        pass: Pass<'_>,
        data: Option<&str>,
    ) -> Result<Admitted<()>> {
        let highest = highest(tx, id)?;
        let why = judge(self.rule, highest.unwrap_or(0), pass.token)?;
        if let Some(reject) = why.or(highest.map(|_| Reject::Missing)) {
            return Err(rejected(id, pass, reject));
        }
        let arguments = params![id, int(pass.token.get()), data];
        tx.prepare_cached(CREATE)?.execute(arguments)?;
        Ok(Admitted::new((), Some(pass.token)))
    }
}

fn ready(tx: &Connection, id: &str) -> Result<()> {
    valid_id(id)?;
    in_transaction(tx)
}

fn highest(tx: &Connection, id: &str) -> Result<Option<i64>> {
    let mut statement = tx.prepare_cached(LOOK)?;
    Ok(statement.query_row([id], |row| row.get(0)).optional()?)
}

fn rejected(id: &str, pass: Pass<'_>, reject: Reject) -> Error {
    audit::reject(id, Some(pass), reject)
}
