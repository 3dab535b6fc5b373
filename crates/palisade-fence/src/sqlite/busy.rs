//! The process that has the file's write lock: SQLite waits for it `busy_timeout` long, and then says no more than "busy".

use rusqlite::{Connection, ErrorCode};

use crate::error::Error;
use crate::lock_holder::{FileLock, LockHolder, holders, in_the_way};

/// The byte of the file `-shm` that the writer locks in WAL mode, as SQLite's file format says.
const WAL_WRITE_LOCK: u64 = 120;

/// The processes that have the write lock, in either journal mode. The lock file is not opened: closing it would release the
/// locks of this very process.
pub(super) fn writers(db: &Connection) -> Vec<LockHolder> {
    let Some(path) = db.path().filter(|path| !path.is_empty()) else {
        return Vec::new();
    };
    let at = |path: &str, lock| {
        let status = rustix::fs::stat(path).ok();
        status.map_or_else(Vec::new, |status| holders(&status, lock))
    };
    let mut found = at(&format!("{path}-shm"), FileLock::Byte(Some(WAL_WRITE_LOCK)));
    found.extend(at(path, FileLock::Byte(None)));
    found.dedup();
    found
}

/// The error of a statement that takes the write lock; it names the blocking process.
pub(super) fn error(db: &Connection, resource: &str, error: rusqlite::Error) -> Error {
    let busy = error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
    let error = Error::from(error);
    if !busy {
        return error;
    }
    let url = format!("sqlite://{}", db.path().unwrap_or_default());
    let in_the_way = in_the_way(&writers(db), resource, &url);
    Error::Busy(format!("{}; {in_the_way}", error.report()))
}
