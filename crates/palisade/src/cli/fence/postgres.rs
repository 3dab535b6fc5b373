//! Fences in a PostgreSQL database.

use std::path::PathBuf;

use palisade_fence::postgres::{Blocker, MIGRATIONS, Operator, UNINSTALL};
use palisade_fence::{Admin as _, Door, Error, FenceState, FencedTable, Listed, Rearm};
use palisade_proto::Code;
use percent_encoding::percent_decode_str;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls, Transaction};

use super::super::failure::{FAILED, Failure};
use super::kind::{InstallStep, PAGE, UserTable};
use super::tls;

pub(super) struct Database(Client);

/// The statements that install the fence, with fenced tables and roles that may use it.
pub(super) fn steps(tables: &[UserTable], roles: &[String]) -> Vec<InstallStep> {
    let files = MIGRATIONS
        .iter()
        .map(|(name, sql)| ((*name).to_owned(), (*sql).to_owned()));
    let sticky = tables.iter().map(|UserTable { name, resource }| {
        let (table, resource) = (quoted(name), quoted(resource));
        let sql = format!("SELECT palisade_sticky({table}, {resource});\n");
        (format!("fenced table {name}"), sql)
    });
    let granted = roles.iter().map(|role| {
        let sql = format!("SELECT palisade_grant({});\n", quoted(role));
        (format!("role {role}"), sql)
    });
    let all = files.chain(sticky).chain(granted);
    all.map(|(name, sql)| InstallStep { name, sql }).collect()
}

/// The statements that take the fence away from these tables, or from the database.
pub(super) fn removal(tables: &[UserTable]) -> Vec<InstallStep> {
    let one = |UserTable { name, .. }: &UserTable| InstallStep {
        name: format!("the fence of table {name}"),
        sql: format!("SELECT palisade_unstick({});\n", quoted(name)),
    };
    if tables.is_empty() {
        vec![InstallStep {
            name: "the fence".to_owned(),
            sql: UNINSTALL.to_owned(),
        }]
    } else {
        tables.iter().map(one).collect()
    }
}

/// A string literal that is valid under every setting of the server.
fn quoted(text: &str) -> String {
    let text = text.replace('\'', "''");
    if text.contains('\\') {
        format!("E'{}'", text.replace('\\', "\\\\"))
    } else {
        format!("'{text}'")
    }
}

impl Database {
    pub(super) async fn open(url: &str) -> Result<Database, Failure> {
        let (url, encrypted) = encryption(url)?;
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            Failure::usage(format!("--url: {error}"))
                .hint("for example postgres://app@127.0.0.1:5432/shop")
        })?;
        if config.get_password().is_none()
            && let Ok(password) = std::env::var("PGPASSWORD")
        {
            config.password(password);
        }
        // The connection's task ends with the client; queries report its errors.
        let connected = match encrypted {
            Some(ca) => {
                config.ssl_mode(SslMode::Require);
                let connector = tls::PostgresTls(tls::client(ca.or_else(tls::ca))?);
                let connected = config.connect(connector).await;
                connected.map(|(client, connection)| {
                    tokio::spawn(connection);
                    client
                })
            }
            None => {
                let connected = config.connect(NoTls).await;
                connected.map(|(client, connection)| {
                    tokio::spawn(connection);
                    client
                })
            }
        };
        let client = connected.map_err(|error| {
            Failure::new(FAILED, Code::Unavailable, Error::from(error).report()).hint(
                "is the database running there, is the password in PGPASSWORD, and does it demand TLS (?sslmode=verify-full)?",
            )
        })?;
        Ok(Database(client))
    }

    /// Runs everything or nothing.
    pub(super) async fn run(&mut self, steps: &[InstallStep], done: &str) -> Result<(), Failure> {
        let tx = self.0.transaction().await.map_err(Error::from)?;
        run(&tx, steps, done).await?;
        Ok(tx.commit().await.map_err(Error::from)?)
    }

    /// Runs everything, and tries a claim; keeps all of it or nothing.
    pub(super) async fn install(&mut self, steps: &[InstallStep]) -> Result<(), Failure> {
        let tx = self.0.transaction().await.map_err(Error::from)?;
        run(&tx, steps, "installed").await?;
        let tried = InstallStep {
            name: "a claim, to try the fence".to_owned(),
            sql: TRY.to_owned(),
        };
        run(&tx, &[tried], "installed").await?;
        Ok(tx.commit().await.map_err(Error::from)?)
    }

    pub(super) async fn doors(&mut self) -> Result<Vec<Door>, Failure> {
        let mut tx = self.0.transaction().await.map_err(Error::from)?;
        Ok(Operator::new(&mut tx).doors().await?)
    }

    pub(super) async fn blockers(&mut self, resource: &str) -> Result<Vec<Blocker>, Failure> {
        let mut tx = self.0.transaction().await.map_err(Error::from)?;
        Ok(Operator::new(&mut tx).blockers(resource).await?)
    }

    pub(super) async fn unblock(
        &mut self,
        resource: &str,
        blocker: &Blocker,
    ) -> Result<bool, Failure> {
        let mut tx = self.0.transaction().await.map_err(Error::from)?;
        Ok(Operator::new(&mut tx).unblock(resource, blocker).await?)
    }

    pub(super) async fn tables(&mut self) -> Result<Vec<FencedTable>, Failure> {
        let mut tx = self.0.transaction().await.map_err(Error::from)?;
        Ok(Operator::new(&mut tx).tables().await?)
    }

    pub(super) async fn show(&mut self, resource: &str) -> Result<Option<FenceState>, Failure> {
        let mut tx = self.0.transaction().await.map_err(Error::from)?;
        Ok(Operator::new(&mut tx).show(resource).await?)
    }

    pub(super) async fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Vec<Listed>, Failure> {
        let mut tx = self.0.transaction().await.map_err(Error::from)?;
        Ok(Operator::new(&mut tx).list(prefix, after, PAGE).await?)
    }

    pub(super) async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<(), Failure> {
        let mut tx = self.0.transaction().await.map_err(Error::from)?;
        Operator::new(&mut tx).rearm(resource, with).await?;
        Ok(tx.commit().await.map_err(Error::from)?)
    }
}

/// Claims a resource that nobody uses, refuses an older token there, and leaves no trace.
const TRY: &str = "SAVEPOINT palisade_try;
DO $$ BEGIN
    PERFORM palisade_claim('palisade install', 2);
    BEGIN
        PERFORM palisade_claim('palisade install', 1);
        RAISE EXCEPTION 'an older token was admitted';
    EXCEPTION WHEN SQLSTATE 'PF001' THEN NULL;
    END;
END $$;
ROLLBACK TO SAVEPOINT palisade_try";

async fn run(tx: &Transaction<'_>, steps: &[InstallStep], done: &str) -> Result<(), Failure> {
    for InstallStep { name, sql } in steps {
        tx.batch_execute(sql).await.map_err(|error| {
            let why = Error::from(error).report();
            Failure::local(format!("{name}: {why}; nothing was {done}"))
        })?;
    }
    Ok(())
}

/// Takes the parameters for TLS out of a URL. Returns it without them, and with TLS the CA that they name, if they do. The
/// driver knows no `verify-full`, and would encrypt without looking at the certificate.
fn encryption(url: &str) -> Result<(String, Option<Option<PathBuf>>), Failure> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let (mut rest, mut mode, mut ca) = (Vec::new(), "prefer", None);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("sslmode", given)) => mode = given,
            Some(("sslrootcert", path)) => {
                let path = percent_decode_str(path).decode_utf8_lossy();
                ca = Some(PathBuf::from(path.into_owned()));
            }
            _ => rest.push(parameter),
        }
    }
    let url = if rest.is_empty() {
        base.to_owned()
    } else {
        format!("{base}?{}", rest.join("&"))
    };
    match mode {
        "disable" | "allow" | "prefer" => Ok((
            format!(
                "{url}{}sslmode=disable",
                if rest.is_empty() { '?' } else { '&' }
            ),
            None,
        )),
        "require" | "verify-ca" | "verify-full" => Ok((url, Some(ca))),
        other => Err(Failure::usage(format!(
            "--url: sslmode={other}: write verify-full, or disable"
        ))),
    }
}
