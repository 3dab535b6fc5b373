//! The transactions that have a guard row, and their end.
//!
//! ```text
//!   probe    SELECT … FOR UPDATE ─ waits ────────────────────────┐ is closed
//!   watch                 └ for whom does the probe wait? ─ KILL ─┘
//! ```
//!
//! MariaDB lists a lock only while somebody waits for it. So one connection waits, and another one looks.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Row};
use tokio::time::sleep;

use super::rows::{number, text};
use crate::error::{Error, Result};
use crate::name::ResourceId;

/// The bound ends a probe that nobody ends. Its locks are those of rows alone.
const BEGIN: [&str; 3] = [
    "SET SESSION innodb_lock_wait_timeout = 15",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "START TRANSACTION",
];

const PROBE: &str = "SELECT 1 FROM palisade_fence WHERE resource = ? FOR UPDATE";

/// The first pause; each is twice as long. InnoDB looks anew only if nobody has asked for a tenth of a second, and others may
/// ask, too.
const LOOK: Duration = Duration::from_millis(150);

const SHOWN: &str = "SELECT DISTINCT CAST(t.trx_mysql_thread_id AS SIGNED), CAST(t.trx_id AS CHAR), CAST(t.trx_started AS CHAR),
    CONCAT(p.USER, '@', p.HOST), p.COMMAND, CAST(p.TIME AS SIGNED) FROM information_schema.INNODB_TRX me";

/// A transaction that waits for the row itself does not have it.
const OF_MARIADB: &str = "JOIN information_schema.INNODB_LOCK_WAITS w ON w.requesting_trx_id = me.trx_id
JOIN information_schema.INNODB_TRX t ON t.trx_id = w.blocking_trx_id AND NOT t.trx_requested_lock_id <=> w.blocking_lock_id";

const OF_MYSQL: &str =
    "JOIN performance_schema.data_lock_waits w ON w.REQUESTING_ENGINE_TRANSACTION_ID = me.trx_id
JOIN performance_schema.data_locks l ON l.ENGINE_LOCK_ID = w.BLOCKING_ENGINE_LOCK_ID AND l.LOCK_STATUS = 'GRANTED'
JOIN information_schema.INNODB_TRX t ON t.trx_id = w.BLOCKING_ENGINE_TRANSACTION_ID";

const OF_PROBE: &str = "LEFT JOIN information_schema.PROCESSLIST p ON p.ID = t.trx_mysql_thread_id
WHERE me.trx_mysql_thread_id = ? ORDER BY 1";

/// A transaction that has a guard row.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocker {
    /// The number of its connection; 0 after `XA PREPARE`, when no connection has it.
    pub connection: i64,
    /// InnoDB's number of the transaction.
    pub transaction: String,
    /// When it began, as the server writes it. A later transaction of the connection began at another time.
    pub started: String,
    /// The user and the host of its program; empty if there is no connection.
    pub user: String,
    /// The connection's current command, for example `Sleep` between two statements.
    pub command: String,
    /// For how long it has been doing that.
    pub since: Duration,
}

impl Blocker {
    /// A row without what identifies the transaction is an error: two such rows would be equal, and one of them ended.
    fn of(mut row: Row) -> Result<Blocker> {
        let unknown = |what: &str| {
            Error::Unsuitable(format!(
                "the server lists a transaction without its {what}, so none was ended"
            ))
        };
        let connection = number(&mut row, 0).map_err(|_| unknown("connection"))?;
        // Without a connection there are no seconds, no user and no command.
        let seconds = number(&mut row, 5).unwrap_or_default();
        let mut word = |at| text(&mut row, at);
        Ok(Blocker {
            connection,
            transaction: word(1).ok_or_else(|| unknown("number"))?,
            started: word(2).ok_or_else(|| unknown("start"))?,
            user: word(3).unwrap_or_default(),
            command: word(4).unwrap_or_default(),
            since: Duration::from_secs(seconds.try_into().unwrap_or(0)),
        })
    }

    fn is(&self, other: &Blocker) -> bool {
        let key = |one: &Blocker| {
            let Blocker {
                transaction,
                started,
                ..
            } = one;
            (one.connection, transaction.clone(), started.clone())
        };
        key(self) == key(other)
    }
}

/// The transactions that have the guard row of a resource now, so that a claim would wait for them. `probe` is another
/// connection to the same server: it waits as a claim does, and is closed.
///
/// # Errors
/// Errors of the database: this needs the right `PROCESS`, and in MySQL to read `performance_schema`.
pub async fn blockers(watch: &mut Conn, probe: Conn, resource: &str) -> Result<Vec<Blocker>> {
    look(watch, probe, resource, None)
        .await
        .map(|(found, _)| found)
}

/// Ends the connection of such a transaction, which is rolled back. Returns whether that was done: a transaction that has
/// ended meanwhile, that is another one of the same connection, or that has not this row, is left alone.
///
/// # Errors
/// As [`blockers`]; the connection of another user needs `CONNECTION ADMIN` (MySQL: `CONNECTION_ADMIN`).
/// [`Error::Unsuitable`] for a transaction without a connection.
pub async fn unblock(
    watch: &mut Conn,
    probe: Conn,
    resource: &str,
    blocker: &Blocker,
) -> Result<bool> {
    if blocker.connection == 0 {
        return Err(Error::Unsuitable(
            "XA PREPARE left this transaction, and no connection has it: XA RECOVER lists it, and XA ROLLBACK ends it"
                .to_owned(),
        ));
    }
    look(watch, probe, resource, Some(blocker))
        .await
        .map(|(_, ended)| ended)
}

/// Finds the transactions, and ends the named one while the probe still waits for it.
async fn look(
    watch: &mut Conn,
    mut probe: Conn,
    resource: &str,
    end: Option<&Blocker>,
) -> Result<(Vec<Blocker>, bool)> {
    ResourceId::new(resource)?;
    let version: Option<String> = watch.query_first("SELECT VERSION()").await?;
    let waits = if version.is_some_and(|version| version.contains("MariaDB")) {
        OF_MARIADB
    } else {
        OF_MYSQL
    };
    let sql = format!("{SHOWN} {waits} {OF_PROBE}");
    let number = probe.id();
    for sql in BEGIN {
        probe.query_drop(sql).await?;
    }
    let found = {
        let mut waits = pin!(probe.exec_drop(PROBE, (resource,)));
        let mut pause = LOOK;
        loop {
            if let Either::Left((done, _)) = select(&mut waits, pin!(sleep(pause))).await {
                done?;
                break Vec::new();
            }
            pause *= 2;
            let found = watch.exec::<Row, _, _>(&sql, (number,)).await?;
            if !found.is_empty() {
                break found.into_iter().map(Blocker::of).collect::<Result<_>>()?;
            }
        }
    };
    let is_there = end.is_some_and(|end| found.iter().any(|one| one.is(end)));
    if let (Some(end), true) = (end, is_there) {
        watch.query_drop(format!("KILL {}", end.connection)).await?;
    }
    if found.is_empty() {
        probe.query_drop("ROLLBACK").await?
    } else {
        watch.query_drop(format!("KILL {number}")).await?
    }
    Ok((found, is_there))
}
