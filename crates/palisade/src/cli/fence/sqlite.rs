//! Fences in a SQLite file.

use std::path::Path;

use palisade_core::Token;
use palisade_fence::sqlite::{MIGRATIONS, Operator, UNINSTALL, claim, sticky, unstick};
use palisade_fence::{Admin as _, Error, FenceState, FencedTable, Listed, LockHolder, Rearm};
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::super::failure::Failure;
use super::kind::{InstallStep, PAGE, UserTable};

pub(super) struct SqliteFile(Connection);

/// The statements that install the fence, with fenced tables.
pub(super) fn steps(tables: &[UserTable]) -> Result<Vec<InstallStep>, Failure> {
    let files = MIGRATIONS.iter().map(|(name, sql)| InstallStep {
        name: (*name).to_owned(),
        sql: (*sql).to_owned(),
    });
    let mut steps: Vec<_> = files.collect();
    for UserTable { name, resource } in tables {
        let sql = sticky(name, resource)?;
        let name = format!("fenced table {name}");
        steps.push(InstallStep { name, sql });
    }
    Ok(steps)
}

/// The statements that take the fence away from these tables, or from the file.
pub(super) fn removal(tables: &[UserTable]) -> Result<Vec<InstallStep>, Failure> {
    let mut steps = Vec::new();
    for UserTable { name, .. } in tables {
        let sql = unstick(name)?;
        let name = format!("the fence of table {name}");
        steps.push(InstallStep { name, sql });
    }
    if tables.is_empty() {
        let (name, sql) = ("the fence".to_owned(), UNINSTALL.to_owned());
        steps.push(InstallStep { name, sql });
    }
    Ok(steps)
}

impl SqliteFile {
    /// Opens an existing file; creates none.
    pub(super) fn open(path: &str) -> Result<SqliteFile, Failure> {
        let hint =
            "for example sqlite:///srv/shop/orders.db, with the absolute path of an existing file";
        if !Path::new(path).is_absolute() {
            let text = format!("--url: {path:?} is not an absolute path");
            return Err(Failure::usage(text).hint(hint));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(path, flags);
        opened
            .map(SqliteFile)
            .map_err(|error| Failure::usage(format!("--url: {path}: {error}")).hint(hint))
    }

    /// Runs everything or nothing.
    pub(super) fn run(&mut self, steps: &[InstallStep], done: &str) -> Result<(), Failure> {
        let begun = self
            .0
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let tx = begun.map_err(Error::from)?;
        for InstallStep { name, sql } in steps {
            tx.execute_batch(sql)
                .map_err(|error| Failure::local(format!("{name}: {error}; nothing was {done}")))?;
        }
        Ok(tx.commit().map_err(Error::from)?)
    }

    /// Tries a claim, which leaves no trace.
    pub(super) fn tries(&mut self) -> Result<(), Failure> {
        let begun = self
            .0
            .transaction_with_behavior(TransactionBehavior::Immediate);
        // Dropped, it rolls back.
        let tx = begun.map_err(Error::from)?;
        match claim(&tx, "palisade install", Token::FIRST) {
            Err(Error::Rejected(reject)) => Err(Failure::local(format!(
                "the fence is installed but does not work: a claim was rejected: {reject}"
            ))),
            answer => Ok(answer.map(drop)?),
        }
    }

    pub(super) fn tables(&mut self) -> Result<Vec<FencedTable>, Failure> {
        Ok(Operator::new(&mut self.0).tables()?)
    }

    pub(super) fn blockers(&mut self) -> Vec<LockHolder> {
        Operator::new(&mut self.0).blockers()
    }

    pub(super) fn unblock(&mut self, blocker: &LockHolder) -> Result<bool, Failure> {
        let ended = Operator::new(&mut self.0).unblock(blocker);
        ended.map_err(|error| Failure::local(format!("end {blocker}: {error}")))
    }

    pub(super) async fn show(&mut self, resource: &str) -> Result<Option<FenceState>, Failure> {
        Ok(Operator::new(&mut self.0).show(resource).await?)
    }

    pub(super) async fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Vec<Listed>, Failure> {
        Ok(Operator::new(&mut self.0).list(prefix, after, PAGE).await?)
    }

    pub(super) async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<(), Failure> {
        Ok(Operator::new(&mut self.0).rearm(resource, with).await?)
    }
}
