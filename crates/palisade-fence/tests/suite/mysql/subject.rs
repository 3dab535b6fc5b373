//! Any form over connections to one server, with the suite's interface.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, TxOpts};
use palisade_fence::conformance;
use palisade_fence::mysql::MIGRATIONS;
use palisade_fence::{Admitted, Edit, Error, ErrorKind, Fence, Mode, Pass, Result, Rule, Write};

use super::forms::{Form, Operation, path};
use crate::sql::{Action, Done, on_line};
use crate::two_steps::between_check_and_effect;

/// Connects through the port, where a relay can stand; without `found`, changed rows are counted, not matched
/// ones.
pub(crate) async fn connect(url: &str, found: bool) -> Result<Conn> {
    let url = format!("{url}?prefer_socket=false&client_found_rows={found}");
    Ok(Conn::new(Opts::from_url(&url).unwrap()).await?)
}

/// Runs SQL of several statements.
pub(crate) async fn script(url: &str, sql: &str) {
    let mut db = connect(url, false).await.unwrap();
    db.query_drop(sql).await.unwrap();
    db.disconnect().await.unwrap();
}

/// Creates a database with the schema; returns its URL.
pub(crate) async fn database(server: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
    script(server, &format!("CREATE DATABASE {name}")).await;
    let (server, _) = server.rsplit_once('/').unwrap();
    let url = format!("{server}/{name}");
    // The migrations run twice: running them again changes nothing.
    for (_, sql) in MIGRATIONS.iter().chain(MIGRATIONS) {
        script(&url, sql).await;
    }
    url
}

/// The triggers that make a table sticky, as the SQL file describes them.
pub(crate) fn sticky(table: &str, resource: &str) -> String {
    let one = |event: &&str| {
        format!(
            "CREATE TRIGGER {table}_{event} BEFORE {event} ON {table} FOR EACH ROW \
             CALL palisade_check_token('{resource}');"
        )
    };
    ["insert", "update", "delete"].iter().map(one).collect()
}

pub(crate) fn sticky_column(table: &str, key: &str) -> String {
    format!(
        "CREATE TRIGGER {table}_update BEFORE UPDATE ON {table} FOR EACH ROW \
             CALL palisade_check_column(OLD.last_fencing_token, IF(NEW.{key} <=> OLD.{key}, NEW.last_fencing_token, NULL));
         CREATE TRIGGER {table}_delete BEFORE DELETE ON {table} FOR EACH ROW \
             CALL palisade_check_column(OLD.last_fencing_token, NULL);"
    )
}

const TABLE: &str = "CREATE TABLE conf_column (id VARBINARY(255) PRIMARY KEY,
    data LONGTEXT NOT NULL DEFAULT ('{}'), last_fencing_token BIGINT NOT NULL DEFAULT 0) ENGINE = InnoDB;";

/// The textbook decision instead of the fence's: it checks writes only.
fn textbook() -> String {
    let (_, procedures) = MIGRATIONS
        .iter()
        .find(|(file, _)| *file == "0004_procedures.sql")
        .unwrap();
    let (before, after) = procedures.split_once("    -- The decision.").unwrap();
    let (_, after) = after.split_once("    -- The version rises").unwrap();
    let decision = "IF p_write AND p_token < stands THEN
            SET words = CONCAT('token ', p_token, ' is stale: ', p_token, ' < ', stands);
            SIGNAL SQLSTATE 'PF001' SET MESSAGE_TEXT = words;
        END IF;
        IF p_write THEN
            SET was_written = TRUE, stands = p_token;
        END IF;";
    // The triggers compare with the highest token, which a holder of this fence may be below.
    let after = after
        .replace("g.token = p_token", "g.token = stands")
        .replace("CHAR(9), p_token", "CHAR(9), IFNULL(stands, p_token)");
    format!("{before}{decision}    -- The version rises{after}")
}

pub(crate) struct Subject {
    pub(crate) url: String,
    form: Form,
}

impl Subject {
    pub(crate) async fn new(server: &str, form: Form) -> Subject {
        let url = database(server).await;
        let triggers =
            sticky_column("conf_column", "id") + &sticky_column("resource_records", "resource_id");
        script(&url, &format!("{TABLE}{triggers}")).await;
        let form = match form {
            Form::Guard(rule) if rule.mode == Mode::Textbook => {
                script(&url, &textbook()).await;
                Form::Guard(Rule::CLAIM)
            }
            other => other,
        };
        Subject { url, form }
    }

    /// Returns a resource whose connections go to `url`.
    pub(crate) async fn resource(&self, name: &str, url: &str) -> Resource {
        let table = format!("t_{}", name.replace(['-', '~'], "_"));
        match self.form {
            Form::Guard(_) | Form::TwoSteps => {
                let sql = format!(
                    "CREATE TABLE {table} (path VARBINARY(255) PRIMARY KEY, data LONGTEXT NOT NULL)
                     ENGINE = InnoDB; {}",
                    sticky(&table, name)
                );
                script(&self.url, &sql).await;
            }
            Form::Column(_) => {
                let sql = format!("INSERT INTO conf_column (id) VALUES ('{name}')");
                script(&self.url, &sql).await;
            }
            Form::Records(_) => {}
        }
        Resource {
            pool: Arc::new(Pool {
                url: url.to_owned(),
                // The user's own statements with a token column need this setting; the others must work
                // without it.
                found: matches!(self.form, Form::Column(_)),
                free: Mutex::default(),
            }),
            form: self.form,
            name: name.to_owned(),
            table,
        }
    }
}

impl conformance::Subject for Subject {
    type Fence = Resource;

    async fn fresh(&self, name: &str) -> Result<Resource> {
        Ok(self.resource(name, &self.url).await)
    }
}

/// Free connections; each transaction takes one, or opens one.
struct Pool {
    url: String,
    found: bool,
    free: Mutex<Vec<Conn>>,
}

impl Pool {
    async fn take(&self) -> Result<Conn> {
        let free = self.free.lock().unwrap().pop();
        match free {
            Some(connection) => Ok(connection),
            None => connect(&self.url, self.found).await,
        }
    }

    fn give_back(&self, connection: Conn) {
        self.free.lock().unwrap().push(connection);
    }
}

#[derive(Clone)]
pub(crate) struct Resource {
    pool: Arc<Pool>,
    form: Form,
    name: String,
    table: String,
}

impl Resource {
    /// Returns the same resource over other connections.
    pub(crate) fn over(&self, url: &str) -> Resource {
        Resource {
            pool: Arc::new(Pool {
                url: url.to_owned(),
                found: self.pool.found,
                free: Mutex::default(),
            }),
            form: self.form,
            name: self.name.clone(),
            table: self.table.clone(),
        }
    }

    async fn run(&self, pass: Pass<'_>, action: Action) -> Result<Admitted<Option<String>>> {
        let operation = Operation::new(self.form, &self.name, &self.table, pass, action);
        loop {
            let done = match self.form {
                Form::TwoSteps => self.in_two_steps(&operation).await,
                _ => self.in_one_step(&operation).await,
            };
            match done {
                Err(fault) if self.begins_again(&fault) => {}
                done => return done,
            }
        }
    }

    /// As the documentation asks. Two transactions may create the same missing row at once, and other tests replace
    /// procedures on the same server; no other form may have to begin again for another reason.
    fn begins_again(&self, fault: &Error) -> bool {
        (fault.state() == Some("1615") || matches!(self.form, Form::Records(_)))
            && fault.kind() == ErrorKind::Retry
    }

    async fn in_one_step(&self, operation: &Operation<'_>) -> Result<Done> {
        let mut db = self.pool.take().await?;
        let mut tx = db.start_transaction(TxOpts::default()).await?;
        let done = operation.work(&mut tx).await;
        match &done {
            Ok(_) => tx.commit().await?,
            Err(_) => tx.rollback().await?,
        }
        self.pool.give_back(db);
        done
    }

    async fn in_two_steps(&self, operation: &Operation<'_>) -> Result<Done> {
        let mut db = self.pool.take().await?;
        let mut tx = db.start_transaction(TxOpts::default()).await?;
        let entry = operation.check(&mut tx).await;
        match &entry {
            Ok(_) => tx.commit().await?,
            Err(_) => tx.rollback().await?,
        }
        let done = match entry? {
            done if done.repeat => Ok(done),
            _ => {
                between_check_and_effect().await;
                // Like a user who forgot why the trigger is there.
                let sql = "SET @palisade_tokens = NULL, @palisade_token = (
                    SELECT token FROM palisade_fence WHERE resource = ?)";
                db.exec_drop(sql, (&self.name,)).await?;
                let mut tx = db.start_transaction(TxOpts::default()).await?;
                let done = operation.on_table(&mut tx).await;
                tx.commit().await?;
                done.map(|value| operation.done(value))
            }
        };
        self.pool.give_back(db);
        done
    }
}

impl Fence for Resource {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        Ok(self.run(pass, Action::Claim).await?.map(|_| ()))
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        let read = self.run(pass, Action::Read(key.to_owned())).await?;
        Ok(read.map(|text| text.map(String::into_bytes)))
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        let action = Action::Write(write.key.to_owned(), write.change.into(), write.sequence);
        Ok(self.run(pass, action).await?.map(|_| ()))
    }

    /// A program without a token; the triggers stop it.
    async fn write_tokenless(&self, key: &str, _: Edit<'_>) -> Result<Admitted<()>> {
        let mut db = connect(&self.pool.url, false).await?;
        let name = self.name.as_str();
        let (sql, argument) = match self.form {
            Form::Guard(_) | Form::TwoSteps => (
                format!("REPLACE INTO {} VALUES (?, 'forgot')", self.table),
                key,
            ),
            Form::Column(_) => (
                "UPDATE conf_column SET data = '{}' WHERE id = ?".to_owned(),
                name,
            ),
            Form::Records(_) => (
                "UPDATE resource_records SET resource_data = 'forgot' WHERE resource_id = ?"
                    .to_owned(),
                name,
            ),
        };
        let written = db.exec_drop(sql, (argument,)).await.map_err(Error::from);
        db.disconnect().await?;
        written.map(|()| Admitted::new((), None))
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let name = self.name.as_str();
        let mut db = self.pool.take().await?;
        let seen: Option<Option<String>> = match self.form {
            Form::Guard(_) | Form::TwoSteps => {
                let sql = format!("SELECT data FROM {} WHERE path = ?", self.table);
                db.exec_first(sql, (key,)).await?
            }
            Form::Column(_) => {
                let sql =
                    "SELECT JSON_UNQUOTE(JSON_EXTRACT(data, ?)) FROM conf_column WHERE id = ?";
                db.exec_first(sql, (path(key), name)).await?
            }
            Form::Records(_) => {
                let sql = "SELECT resource_data FROM resource_records WHERE resource_id = ?";
                db.exec_first(sql, (name,)).await?
            }
        };
        self.pool.give_back(db);
        let value = match self.form {
            Form::Records(_) => seen.flatten().and_then(|text| on_line(&text, key)),
            _ => seen.flatten(),
        };
        Ok(value.map(String::into_bytes))
    }
}
