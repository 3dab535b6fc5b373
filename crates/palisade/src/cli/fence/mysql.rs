//! Fences in a MySQL or MariaDB database.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error as DriverError, Opts, OptsBuilder, TxOpts};
use palisade_fence::mysql::{
    Blocker, MIGRATIONS, Operator, UNINSTALL, blockers, sticky, unblock, unstick,
};
use palisade_fence::{Admin as _, Door, Error, FenceState, FencedTable, Listed, Rearm};
use palisade_proto::Code;

use super::super::failure::{FAILED, Failure};
use super::kind::{InstallStep, PAGE, UserTable};
use super::tls;

pub(super) struct Database {
    db: Conn,
    opts: Opts,
}

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

/// The statements that take the fence away from these tables, or from the database.
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

/// The SQLSTATE with which the fence refuses an older token.
const STALE: &str = "PF001";

impl Database {
    pub(super) async fn open(url: &str) -> Result<Database, Failure> {
        let url = url.replacen("mariadb://", "mysql://", 1);
        let opts = Opts::from_url(&url).map_err(|error| {
            Failure::usage(format!("--url: {error}"))
                .hint("for example mysql://app@127.0.0.1:3306/shop")
        })?;
        let password = match opts.pass() {
            Some(given) => Some(given.to_owned()),
            None => std::env::var("MYSQL_PWD").ok(),
        };
        // `?require_ssl=true` encrypts and checks the certificate.
        let tls = opts.ssl_opts().cloned().map(|tls| match tls::ca() {
            Some(ca) => tls.with_root_certs(vec![ca.into()]),
            None => tls,
        });
        let opts: Opts = OptsBuilder::from_opts(opts)
            .pass(password)
            .ssl_opts(tls)
            .into();
        let connected = Conn::new(opts.clone()).await.map_err(Error::from);
        connected.map(|db| Database { db, opts }).map_err(|error| {
            Failure::new(FAILED, Code::Unavailable, error.report())
                .hint("is the database running there, is the password in MYSQL_PWD, and does it demand TLS (?require_ssl=true)?")
        })
    }

    /// Runs the steps. MySQL commits after each statement, so the steps before an error stay.
    pub(super) async fn run(&mut self, steps: &[InstallStep], done: &str) -> Result<(), Failure> {
        for (at, InstallStep { name, sql }) in steps.iter().enumerate() {
            self.db.query_drop(sql).await.map_err(|error| {
                let why = Error::from(error).report();
                let text = format!("{name}: {why}; {at} of {} parts were {done}", steps.len());
                Failure::local(text).hint("fix the cause, then run this command again")
            })?;
        }
        Ok(())
    }

    /// Runs the steps, and tries a claim, which leaves no trace.
    pub(super) async fn install(&mut self, steps: &[InstallStep]) -> Result<(), Failure> {
        self.run(steps, "installed").await?;
        let mut tx = self.begin().await?;
        let tried = async {
            tx.query_drop("CALL palisade_claim('palisade install', 2, NULL, NULL)")
                .await?;
            tx.query_drop("CALL palisade_check_token('palisade install')")
                .await?;
            tx.query_drop("CALL palisade_claim('palisade install', 1, NULL, NULL)")
                .await
        };
        let why = match tried.await {
            Err(DriverError::Server(answer)) if answer.state == STALE => None,
            Err(error) => Some(format!("a claim failed: {}", Error::from(error).report())),
            Ok(()) => Some("an older token was admitted".to_owned()),
        };
        tx.rollback().await.map_err(Error::from)?;
        match why {
            None => Ok(()),
            Some(why) => Err(Failure::local(format!(
                "the fence is installed but does not work: {why}. Nobody can write to the fenced tables"
            ))
            .hint("undo it with `palisade fence uninstall mysql`, and report the server's version")),
        }
    }

    pub(super) async fn doors(&mut self) -> Result<Vec<Door>, Failure> {
        let mut tx = self.begin().await?;
        Ok(Operator::new(&mut tx).doors().await?)
    }

    pub(super) async fn blockers(&mut self, resource: &str) -> Result<Vec<Blocker>, Failure> {
        let probe = self.another().await?;
        let found = blockers(&mut self.db, probe, resource).await;
        found.map_err(rights)
    }

    pub(super) async fn unblock(
        &mut self,
        resource: &str,
        blocker: &Blocker,
    ) -> Result<bool, Failure> {
        let probe = self.another().await?;
        let ended = unblock(&mut self.db, probe, resource, blocker).await;
        ended.map_err(rights)
    }

    async fn another(&self) -> Result<Conn, Failure> {
        Ok(Conn::new(self.opts.clone()).await.map_err(Error::from)?)
    }

    pub(super) async fn tables(&mut self) -> Result<Vec<FencedTable>, Failure> {
        let mut tx = self.begin().await?;
        Ok(Operator::new(&mut tx).tables().await?)
    }

    pub(super) async fn show(&mut self, resource: &str) -> Result<Option<FenceState>, Failure> {
        let mut tx = self.begin().await?;
        Ok(Operator::new(&mut tx).show(resource).await?)
    }

    pub(super) async fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Vec<Listed>, Failure> {
        let mut tx = self.begin().await?;
        Ok(Operator::new(&mut tx).list(prefix, after, PAGE).await?)
    }

    pub(super) async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<(), Failure> {
        let mut tx = self.begin().await?;
        Operator::new(&mut tx).rearm(resource, with).await?;
        Ok(tx.commit().await.map_err(Error::from)?)
    }

    async fn begin(&mut self) -> Result<mysql_async::Transaction<'_>, Failure> {
        let begun = self.db.start_transaction(TxOpts::default()).await;
        Ok(begun.map_err(Error::from)?)
    }
}

/// Adds the missing grant to an error about rights: no PROCESS, no table of `performance_schema`, another user's connection.
fn rights(error: Error) -> Failure {
    let is_denied = matches!(error.state(), Some("1227" | "1142" | "1095"));
    let failure = Failure::from(error);
    if is_denied {
        failure.hint(
            "to see and end other users' transactions, its user needs PROCESS and CONNECTION ADMIN; in MySQL PROCESS, \
             CONNECTION_ADMIN and SELECT on performance_schema.*",
        )
    } else {
        failure
    }
}
