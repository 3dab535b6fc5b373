//! An operator's commands: show fences, and re-arm one (rule F7).

use palisade_core::AuthorityId;
use palisade_core::fence::{FenceState, Rearm};
use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use super::busy;
use super::guard::{guard_row, show, take};
use super::rows::int;
use super::sticky::resource_of;
use crate::admin::{Admin, FencedTable, Listed};
use crate::error::Result;
use crate::lock_holder::{LockHolder, end};
use crate::name::ResourceId;

const LIST: &str = "SELECT resource, authority, lock, token, written, sequence, digest, NULL
FROM main.palisade_fence WHERE substr(resource, 1, length(?1)) = ?1 AND (?2 IS NULL OR resource > ?2)
ORDER BY resource LIMIT ?3";

const TABLES: &str = "SELECT tbl_name, sql FROM sqlite_master
WHERE type = 'trigger' AND name LIKE 'palisade\\_sticky\\_update\\_%' ESCAPE '\\' ORDER BY 1";

const REARM: &str =
    "UPDATE main.palisade_fence SET token = ?2, floor = ?2, authority = ?3, lock = NULL,
    written = 0, sequence = NULL, digest = NULL, result = NULL, rearmed = rearmed + 1 WHERE resource = ?1";

/// The fences of a file. A re-arming is its own transaction, durable when it returns; all calls block.
///
/// ```
/// # use palisade_fence::{Admin as _, sqlite::Operator};
/// # async fn look(mut db: rusqlite::Connection) -> palisade_fence::Result<()> {
/// let fence = Operator::new(&mut db).show("orders").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Operator<'a>(&'a mut Connection);

impl<'a> Operator<'a> {
    /// Creates the handle for this connection.
    pub const fn new(connection: &'a mut Connection) -> Operator<'a> {
        Operator(connection)
    }

    /// The tables with the triggers of [`sticky`](super::sticky()), in name order; also those whose resource has no token
    /// yet.
    ///
    /// # Errors
    /// Errors of the database.
    pub fn tables(&mut self) -> Result<Vec<FencedTable>> {
        let mut statement = self.0.prepare_cached(TABLES)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut tables = Vec::new();
        for row in rows {
            let (table, trigger): (String, String) = row?;
            if let Some(resource) = resource_of(&trigger) {
                tables.push(FencedTable { table, resource });
            }
        }
        Ok(tables)
    }

    /// Returns the processes that hold the file's write lock now. Every claim waits for them. Linux only.
    #[must_use]
    pub fn blockers(&self) -> Vec<LockHolder> {
        busy::writers(self.0)
    }

    /// Kills such a process with SIGKILL; its transaction is rolled back. Returns whether it did: it spares a process
    /// that has ended, that has released the lock, or that is a later one with the same number.
    ///
    /// # Errors
    /// This user may not kill that process.
    pub fn unblock(&self, blocker: &LockHolder) -> std::io::Result<bool> {
        end(blocker, || self.blockers())
    }
}

impl Admin for Operator<'_> {
    async fn show(&mut self, resource: &str) -> Result<Option<FenceState>> {
        show(self.0, resource)
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Vec<Listed>> {
        let mut statement = self.0.prepare_cached(LIST)?;
        let rows = statement.query_map(params![prefix, after, limit], |row| {
            Ok((row.get(0)?, guard_row(row)?))
        })?;
        let mut listed = Vec::new();
        for row in rows {
            let (resource, row) = row?;
            let state = row.state()?;
            listed.push(Listed { resource, state });
        }
        Ok(listed)
    }

    async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<()> {
        ResourceId::new(resource)?;
        let begun = Transaction::new_unchecked(self.0, TransactionBehavior::Immediate);
        let tx = begun.map_err(|error| busy::error(self.0, resource, error))?;
        take(&tx, resource)?.state()?.rearmed(with)?;
        let authority = with.authority.map(AuthorityId::as_str);
        let arguments = params![resource, int(with.floor.get()), authority];
        tx.prepare_cached(REARM)?.execute(arguments)?;
        Ok(tx.commit()?)
    }
}
