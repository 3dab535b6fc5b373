//! Fences in a PostgreSQL database.

use palisade_fence::postgres::{Fault, MIGRATIONS, Operator, UNINSTALL};
use palisade_fence::{Admin as _, FenceState, FencedTable, Listed, Rearm};
use palisade_proto::Code;
use tokio_postgres::{Client, Config, NoTls};

use super::super::failure::{FAILED, Failure};
use super::kind::{PAGE, Step, Table, failed, too_low};

pub(super) struct Database(Client);

/// The statements that install the fence, with fenced tables and roles that may use it.
pub(super) fn steps(tables: &[Table], roles: &[String]) -> Vec<Step> {
    let files = MIGRATIONS
        .iter()
        .map(|(name, sql)| ((*name).to_owned(), (*sql).to_owned()));
    let sticky = tables.iter().map(|Table { name, resource }| {
        let (table, resource) = (quoted(name), quoted(resource));
        let sql = format!("SELECT palisade_sticky({table}, {resource});\n");
        (format!("fenced table {name}"), sql)
    });
    let granted = roles.iter().map(|role| {
        let name = format!("\"{}\"", role.replace('"', "\"\""));
        let sql = format!(
            "GRANT SELECT, INSERT, UPDATE ON palisade_fence, resource_records TO {name};\n"
        );
        (format!("role {role}"), sql)
    });
    let all = files.chain(sticky).chain(granted);
    all.map(|(name, sql)| Step { name, sql }).collect()
}

/// The statements that take the fence away from these tables, or from the database.
pub(super) fn removal(tables: &[Table]) -> Vec<Step> {
    let one = |Table { name, .. }: &Table| Step {
        name: format!("the fence of table {name}"),
        sql: format!("SELECT palisade_unstick({});\n", quoted(name)),
    };
    match tables.is_empty() {
        false => tables.iter().map(one).collect(),
        true => vec![Step {
            name: "the fence".to_owned(),
            sql: UNINSTALL.to_owned(),
        }],
    }
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

    /// Runs everything or nothing.
    pub(super) async fn run(&mut self, steps: &[Step], done: &str) -> Result<(), Failure> {
        let tx = self.0.transaction().await.map_err(Fault::from)?;
        for Step { name, sql } in steps {
            tx.batch_execute(sql).await.map_err(|error| {
                let fault = Fault::from(error);
                Failure::local(format!(
                    "{name}: {}; nothing was {done}",
                    with_causes(&fault)
                ))
            })?;
        }
        Ok(tx.commit().await.map_err(Fault::from)?)
    }

    pub(super) async fn tables(&mut self) -> Result<Vec<FencedTable>, Failure> {
        let mut tx = self.0.transaction().await.map_err(Fault::from)?;
        Ok(Operator::new(&mut tx).tables().await?)
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
                "no fence, or an older one, is installed in this database",
            )
            .hint("palisade fence install postgres|mysql|sqlite URL TABLE"),
            other => failed(other.kind(), with_causes(&other)),
        }
    }
}
