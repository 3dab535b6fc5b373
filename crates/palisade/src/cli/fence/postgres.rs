//! Fences in a PostgreSQL database.

use palisade_fence::postgres::{Fault, MIGRATIONS, Operator};
use palisade_fence::{Admin as _, FenceState, Listed, Rearm};
use palisade_proto::Code;
use tokio_postgres::{Client, Config, NoTls};

use super::super::failure::{FAILED, Failure};
use super::{PAGE, failed, too_low};

pub(super) struct Database(Client);

/// What to run: names and SQL.
pub(super) fn steps(tables: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let files = MIGRATIONS.iter();
    let mut steps: Vec<_> = files
        .map(|(n, s)| ((*n).to_owned(), (*s).to_owned()))
        .collect();
    for given in tables {
        let (table, resource) = given.split_once('=').unwrap_or((given, given));
        if table.is_empty() || table.contains('\0') {
            let text = format!("--table {given:?}: write TABLE or TABLE=RESOURCE");
            return Err(Failure::usage(text));
        }
        palisade_fence::ResourceId::new(resource)
            .map_err(|invalid| Failure::usage(format!("--table {given}: {invalid}")))?;
        let sql = format!(
            "SELECT palisade_sticky({}, {});\n",
            quoted(table),
            quoted(resource)
        );
        steps.push((format!("sticky table {table}"), sql));
    }
    Ok(steps)
}

/// A string literal that is valid under every setting of the server.
fn quoted(text: &str) -> String {
    let text = text.replace('\'', "''");
    match text.contains('\\') {
        true => format!("E'{}'", text.replace('\\', "\\\\")),
        false => format!("'{text}'"),
    }
}

impl Database {
    pub(super) async fn open(url: &str) -> Result<Database, Failure> {
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            Failure::usage(format!("--url: {error}"))
                .hint("for example postgres://app@127.0.0.1:5432/shop")
        })?;
        if config.get_password().is_none()
            && let Ok(password) = std::env::var("PGPASSWORD")
        {
            config.password(password);
        }
        let (client, connection) = config.connect(NoTls).await.map_err(|error| {
            let fault = Fault::from(error);
            Failure::new(FAILED, Code::Unavailable, with_causes(&fault))
                .hint("is the database running there, and is the password in PGPASSWORD?")
        })?;
        // The connection task ends with the client; queries report its errors.
        tokio::spawn(connection);
        Ok(Database(client))
    }

    /// Installs everything or nothing.
    pub(super) async fn install(&mut self, steps: &[(String, String)]) -> Result<(), Failure> {
        let tx = self.0.transaction().await.map_err(Fault::from)?;
        for (name, sql) in steps {
            let done = tx.batch_execute(sql).await;
            done.map_err(|error| {
                let fault = Fault::from(error);
                Failure::local(format!(
                    "{name}: {}; nothing was installed",
                    with_causes(&fault)
                ))
            })?;
        }
        Ok(tx.commit().await.map_err(Fault::from)?)
    }

    pub(super) async fn show(&mut self, resource: &str) -> Result<Option<FenceState>, Failure> {
        let mut tx = self.0.transaction().await.map_err(Fault::from)?;
        Ok(Operator::new(&mut tx).show(resource).await?)
    }

    pub(super) async fn list(
        &mut self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Vec<Listed>, Failure> {
        let mut tx = self.0.transaction().await.map_err(Fault::from)?;
        Ok(Operator::new(&mut tx).list(prefix, after, PAGE).await?)
    }

    pub(super) async fn rearm(&mut self, resource: &str, with: &Rearm<'_>) -> Result<(), Failure> {
        let mut tx = self.0.transaction().await.map_err(Fault::from)?;
        Operator::new(&mut tx).rearm(resource, with).await?;
        Ok(tx.commit().await.map_err(Fault::from)?)
    }
}

/// The fault with its deeper causes, which the driver's own message omits.
fn with_causes(fault: &Fault) -> String {
    let mut text = fault.to_string();
    let mut below = std::error::Error::source(fault).and_then(std::error::Error::source);
    while let Some(error) = below {
        text = format!("{text}: {error}");
        below = error.source();
    }
    text
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        match fault {
            Fault::FloorTooLow(floor) => too_low(floor),
            Fault::NotInstalled(_) => Failure::new(
                FAILED,
                Code::Invalid,
                "no fence is installed in this database",
            )
            .hint("palisade fence install postgres --url URL"),
            other => failed(other.kind(), with_causes(&other)),
        }
    }
}
