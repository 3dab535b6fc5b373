//! An operator's commands: show fences, and re-arm one (rule F7).

use mysql_async::prelude::Queryable as _;
use mysql_async::{Row, Transaction};
use palisade_core::AuthorityId;
use palisade_core::fence::{FenceState, Rearm};

use super::guard::guard_row;
use super::rows::{int, text};
use super::session::in_transaction;
use super::sticky::resource_of;
use crate::admin::{Admin, Door, FencedTable, Listed};
use crate::error::Result;
use crate::name::ResourceId;

/// Reads the latest commits, even if this transaction has an older snapshot.
const SHOW: &str = "SELECT resource, authority, `lock`, token, written, sequence, digest, NULL
FROM palisade_fence WHERE resource = ? LOCK IN SHARE MODE";

const LIST: &str = "SELECT resource, authority, `lock`, token, written, sequence, digest, NULL
FROM palisade_fence WHERE LEFT(resource, LENGTH(?)) = ? AND resource > ? ORDER BY resource LIMIT ?";

const TABLES: &str = "SELECT EVENT_OBJECT_TABLE, ACTION_STATEMENT FROM information_schema.TRIGGERS
WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME LIKE 'palisade\\_update\\_%' ORDER BY 1";

/// Changes by a foreign key fire no trigger.
const CASCADES: &str =
    "SELECT r.TABLE_NAME, r.REFERENCED_TABLE_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS r
WHERE r.CONSTRAINT_SCHEMA = DATABASE() AND (r.DELETE_RULE NOT IN ('RESTRICT', 'NO ACTION')
    OR r.UPDATE_RULE NOT IN ('RESTRICT', 'NO ACTION')) ORDER BY 1, 2";

/// Creates a missing row.
const LOCK: &str = "INSERT INTO palisade_fence (resource) VALUES (?)
ON DUPLICATE KEY UPDATE rearmed = palisade_fence.rearmed";

const READ: &str = "SELECT resource, authority, `lock`, token, written, sequence, digest, result
FROM palisade_fence WHERE resource = ? FOR UPDATE";

const REARM: &str =
    "UPDATE palisade_fence SET token = ?, floor = ?, authority = ?, `lock` = NULL, written = 0,
    sequence = NULL, digest = NULL, result = NULL, rearmed = rearmed + 1, version = version + 1 WHERE resource = ?";

/// The fences of a database, in a transaction of the caller: a re-arming is durable once the caller commits.
///
/// ```no_run
/// # use mysql_async::Transaction;
/// # use palisade_fence::{Admin as _, mysql::Operator};
/// # async fn show(mut tx: Transaction<'_>) -> palisade_fence::Result<()> {
/// let fence = Operator::new(&mut tx).show("orders").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Operator<'a, 't>(&'a mut Transaction<'t>);

impl<'a, 't> Operator<'a, 't> {
    /// Creates the handle for this transaction.
    pub const fn new(tx: &'a mut Transaction<'t>) -> Operator<'a, 't> {
        Operator(tx)
    }

    /// The tables with the triggers of [`sticky`](super::sticky()), in name order; also those whose resource has no token
    /// yet.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn tables(&mut self) -> Result<Vec<FencedTable>> {
        let mut tables = Vec::new();
        for mut row in self.0.query::<Row, _>(TABLES).await? {
            let statement = text(&mut row, 1).unwrap_or_default();
            if let Some(resource) = resource_of(&statement) {
                let table = text(&mut row, 0).unwrap_or_default();
                tables.push(FencedTable { table, resource });
            }
        }
        Ok(tables)
    }

    /// Returns the ways to write past the fence: changes by foreign keys, and TRUNCATE.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn doors(&mut self) -> Result<Vec<Door>> {
        let fenced = self.tables().await?;
        let mut doors = Vec::new();
        for mut row in self.0.query::<Row, _>(CASCADES).await? {
            let (table, parent) = (text(&mut row, 0), text(&mut row, 1).unwrap_or_default());
            if fenced.iter().any(|one| Some(&one.table) == table.as_ref()) {
                let door = format!(
                    "a foreign key changes its rows with those of {parent}, and no trigger sees it: fence {parent} by the \
                     same resource"
                );
                doors.push(Door { table, door });
            }
        }
        doors.extend(fenced.into_iter().map(|FencedTable { table, .. }| Door {
            table: Some(table),
            door: "TRUNCATE and ALTER TABLE need no token: give DROP and ALTER to no program that writes"
                .to_owned(),
        }));
        Ok(doors)
    }
}

impl Admin for Operator<'_, '_> {
    async fn show(&mut self, resource: &str) -> Result<Option<FenceState>> {
        ResourceId::new(resource)?;
        let row: Option<Row> = self.0.exec_first(SHOW, (resource,)).await?;
        let state = row.map(|mut row| guard_row(&mut row).state());
        Ok(state.transpose()?)
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Vec<Listed>> {
        let arguments = (prefix, prefix, after.unwrap_or_default(), limit);
        let mut listed = Vec::new();
        for mut row in self.0.exec::<Row, _, _>(LIST, arguments).await? {
            let resource = text(&mut row, 0).unwrap_or_default();
            let state = guard_row(&mut row).state()?;
            listed.push(Listed { resource, state });
        }
        Ok(listed)
    }

    async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<()> {
        ResourceId::new(resource)?;
        self.0.exec_drop(LOCK, (resource,)).await?;
        in_transaction(self.0)?;
        let row: Option<Row> = self.0.exec_first(READ, (resource,)).await?;
        let before = row.map(|mut row| guard_row(&mut row)).unwrap_or_default();
        let before = before.state()?;
        before.rearmed(with)?;
        let floor = int(with.floor.get());
        let authority = with.authority.map(AuthorityId::as_str);
        let arguments = (floor, floor, authority, resource);
        Ok(self.0.exec_drop(REARM, arguments).await?)
    }
}
