//! An operator's commands: show fences, and re-arm one (rule F7).

use std::time::Duration;

use palisade_core::AuthorityId;
use palisade_core::Token;
use palisade_core::fence::{FenceState, FloorTooLow, Rearm};

use super::guard::guard_row;
use super::session::{Arg, Row, Session};
use crate::admin::{Admin, Door, FencedTable, Listed};
use crate::error::Result;
use crate::guard_row::bigint;
use crate::name::ResourceId;

const SHOW: &str =
    "SELECT resource::text, authority::text, lock::text, token, written::int::bigint,
    sequence, digest, NULL::bytea FROM palisade_fence WHERE resource = $1";

const LIST: &str =
    "SELECT resource::text, authority::text, lock::text, token, written::int::bigint,
    sequence, digest, NULL::bytea FROM palisade_fence
WHERE starts_with(resource, $1) AND ($2::text IS NULL OR resource > $2 COLLATE \"C\")
ORDER BY resource LIMIT $3";

const TABLES: &str = "SELECT \"table\"::text, resource::text FROM palisade_tables ORDER BY 1, 2";

const DOORS: &str = "SELECT \"table\"::text, door::text FROM palisade_doors ORDER BY 1, 2";

const BLOCKERS: &str = "SELECT pid::bigint, started::text, coalesce(state, ''),
    coalesce(floor(extract(epoch FROM clock_timestamp() - since) * 1000), 0)::bigint, application::text
FROM palisade_blockers($1) ORDER BY 1";

const UNBLOCK: &str = "SELECT palisade_unblock($1, $2::int, $3::timestamptz)::int::bigint";

const ALLOW: &str = "SELECT set_config('palisade.rearm', $1, true)";

const REARM: &str = "INSERT INTO palisade_fence (resource, token, floor, authority) VALUES ($1, $2, $2, $3)
ON CONFLICT (resource) DO UPDATE SET token = $2, floor = $2, authority = $3, lock = NULL, written = false,
    sequence = NULL, digest = NULL, result = NULL, updated_at = clock_timestamp()
WHERE palisade_fence.token <= $2 OR palisade_fence.token = $4
RETURNING resource::text";

/// The fences of a database, in a transaction of the caller: a re-arming is durable once the caller commits.
///
/// ```no_run
/// # use palisade_fence::{Admin, postgres::{Operator, Session}};
/// # async fn show<S: Session>(mut tx: S) -> palisade_fence::Result<()> {
/// let fence = Operator::new(&mut tx).show("orders").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Operator<'a, S>(&'a mut S);

impl<'a, S: Session> Operator<'a, S> {
    /// Creates the handle for this transaction.
    pub const fn new(tx: &'a mut S) -> Operator<'a, S> {
        Operator(tx)
    }

    /// The tables with the trigger of `palisade_sticky`, in name order; also those whose resource has no token yet.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn tables(&mut self) -> Result<Vec<FencedTable>> {
        let rows = self.0.run(TABLES, &[]).await?;
        let table = |mut row: Row| FencedTable {
            table: row.text(0).unwrap_or_default(),
            resource: row.text(1).unwrap_or_default(),
        };
        Ok(rows.into_iter().map(table).collect())
    }
}

/// A connection whose transaction holds a guard row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The server process of the connection.
    pub process: i64,
    /// When it began, as the server writes it. A later process with the same number began at another time.
    pub started: String,
    /// Its state, for example `idle in transaction`; empty if this role may not see it.
    pub state: String,
    /// How long it has been in that state.
    pub since: Duration,
    /// The application name that its program set.
    pub application: String,
}

impl<S: Session> Operator<'_, S> {
    /// Returns the ways to write past the fence: partitions, roles, disabled triggers, replicas.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn doors(&mut self) -> Result<Vec<Door>> {
        let rows = self.0.run(DOORS, &[]).await?;
        let door = |mut row: Row| Door {
            table: row.text(0).filter(|table| !table.is_empty()),
            door: row.text(1).unwrap_or_default(),
        };
        Ok(rows.into_iter().map(door).collect())
    }

    /// Returns the connections whose transactions hold a resource's guard row now. A claim would wait for them.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn blockers(&mut self, resource: &str) -> Result<Vec<Blocker>> {
        ResourceId::new(resource)?;
        let rows = self.0.run(BLOCKERS, &[Arg::Text(Some(resource))]).await?;
        let blocker = |mut row: Row| Blocker {
            process: row.int(0).unwrap_or_default(),
            started: row.text(1).unwrap_or_default(),
            state: row.text(2).unwrap_or_default(),
            since: Duration::from_millis(row.int(3).and_then(|ms| ms.try_into().ok()).unwrap_or(0)),
            application: row.text(4).unwrap_or_default(),
        };
        Ok(rows.into_iter().map(blocker).collect())
    }

    /// Ends such a connection and rolls back its transaction. Returns whether it did: it spares a process that has
    /// ended, that has released the row, or that is a later one with the same number.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn unblock(&mut self, resource: &str, blocker: &Blocker) -> Result<bool> {
        ResourceId::new(resource)?;
        let arguments = [
            Arg::Text(Some(resource)),
            Arg::Int(Some(blocker.process)),
            Arg::Text(Some(&blocker.started)),
        ];
        let rows = self.0.run(UNBLOCK, &arguments).await?;
        Ok(rows.first().is_some_and(|row| row.int(0) == Some(1)))
    }
}

impl<S: Session> Admin for Operator<'_, S> {
    async fn show(&mut self, resource: &str) -> Result<Option<FenceState>> {
        ResourceId::new(resource)?;
        let rows = self.0.run(SHOW, &[Arg::Text(Some(resource))]).await?;
        let state = rows
            .into_iter()
            .next()
            .map(|mut row| guard_row(&mut row).state());
        Ok(state.transpose()?)
    }

    async fn list(&mut self, prefix: &str, after: Option<&str>, limit: u32) -> Result<Vec<Listed>> {
        let limit = Arg::Int(Some(i64::from(limit)));
        let arguments = [Arg::Text(Some(prefix)), Arg::Text(after), limit];
        let mut listed = Vec::new();
        for mut row in self.0.run(LIST, &arguments).await? {
            let resource = row.text(0).unwrap_or_default();
            let state = guard_row(&mut row).state()?;
            listed.push(Listed { resource, state });
        }
        Ok(listed)
    }

    async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<()> {
        ResourceId::new(resource)?;
        self.0.run(ALLOW, &[Arg::Text(Some("on"))]).await?;
        let number = |token: Token| bigint(token.get());
        let arguments = [
            Arg::Text(Some(resource)),
            Arg::Int(Some(number(with.floor))),
            Arg::Text(with.authority.map(AuthorityId::as_str)),
            Arg::Int(with.lower_from.map(number)),
        ];
        let done = self.0.run(REARM, &arguments).await?;
        self.0.run(ALLOW, &[Arg::Text(Some(""))]).await?;
        if !done.is_empty() {
            return Ok(());
        }
        let stands = self.show(resource).await?.unwrap_or_default();
        let (floor, highest) = (with.floor, stands.highest().unwrap_or(with.floor));
        Err(FloorTooLow { floor, highest }.into())
    }
}
