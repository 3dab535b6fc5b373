//! Any form with any driver, with the suite's interface.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

use palisade_fence::conformance;
use palisade_fence::postgres::MIGRATIONS;
use palisade_fence::{Admitted, Edit, Fence, Mode, Pass, Result, Rule, Write};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use super::drivers::Driver;
use super::forms::{Form, Job, Operation, Plain};
use crate::sql::{Action, on_line};

/// Free connections; each job takes one, or opens one.
pub(crate) struct Pool<D: Driver> {
    url: String,
    free: Mutex<Vec<D::Connection>>,
}

impl<D: Driver> Pool<D> {
    pub(crate) fn new(url: &str) -> Arc<Pool<D>> {
        Arc::new(Pool {
            url: url.to_owned(),
            free: Mutex::new(Vec::new()),
        })
    }

    pub(crate) async fn carry_out<J: Job>(&self, job: &J) -> Result<J::Done> {
        let free = self.free.lock().unwrap().pop();
        let mut connection = match free {
            Some(connection) => connection,
            None => D::connect(&self.url).await?,
        };
        let done = D::carry_out(&mut connection, job).await;
        self.free.lock().unwrap().push(connection);
        done
    }
}

/// Runs SQL of several statements.
pub(crate) async fn script(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    connection.execute(AssertSqlSafe(sql)).await.unwrap();
}

/// Creates a database with the schema; returns its URL.
pub(crate) async fn database(server: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
    script(
        server,
        &format!("CREATE DATABASE {name} TEMPLATE template0"),
    )
    .await;
    let (server, _) = server.rsplit_once('/').unwrap();
    let url = format!("{server}/{name}");
    // The migrations run twice: running them again changes nothing.
    for (_, sql) in MIGRATIONS.iter().chain(MIGRATIONS) {
        script(&url, sql).await;
    }
    url
}

pub(crate) struct Subject<D: Driver> {
    pub(crate) url: String,
    form: Form,
    driver: PhantomData<fn() -> D>,
}

const COLUMN: &str =
    "CREATE TABLE conf_column (id text PRIMARY KEY, data jsonb NOT NULL DEFAULT '{}',
    last_fencing_token bigint NOT NULL DEFAULT 0);
SELECT palisade_sticky_column('conf_column', 'last_fencing_token');
SELECT palisade_sticky_column('resource_records', 'last_fencing_token')";

/// The textbook decision instead of the fence's: it checks writes only.
fn textbook() -> String {
    let (_, functions) = MIGRATIONS
        .iter()
        .find(|(file, _)| *file == "0004_functions.sql")
        .unwrap();
    let (before, after) = functions.split_once("    -- The decision.").unwrap();
    let (_, after) = after.split_once("    -- The row is written").unwrap();
    let decision = "IF p_write AND p_token < g.token THEN
            RAISE EXCEPTION 'token % is stale: % < %', p_token, p_token, g.token USING ERRCODE = 'PF001', DETAIL = g.token::text;
        END IF;
        p_authority := NULL;
        p_lock := NULL;
        IF p_write THEN
            g.token := p_token;
            g.written := true;
        END IF;
    END IF;";
    // The triggers compare with the highest token, which a holder of this fence may be below.
    let after = after.replace("p_token::text", "coalesce(g.token, p_token)::text");
    format!("{before}{decision}    -- The row is written{after}")
}

impl<D: Driver> Subject<D> {
    pub(crate) async fn new(server: &str, form: Form) -> Subject<D> {
        let url = database(server).await;
        script(&url, COLUMN).await;
        let form = match form {
            Form::Guard(rule) if rule.mode == Mode::Textbook => {
                script(&url, &textbook()).await;
                Form::Guard(Rule::CLAIM)
            }
            other => other,
        };
        Subject {
            url,
            form,
            driver: PhantomData,
        }
    }

    /// Returns a resource whose connections go to `url`.
    pub(crate) async fn resource(&self, name: &str, url: &str) -> Resource<D> {
        let table = format!("t_{}", name.replace(['-', '~'], "_"));
        let sql = match self.form {
            Form::Guard(_) => format!(
                "CREATE TABLE {table} (path text PRIMARY KEY, data text NOT NULL);
                 SELECT palisade_sticky('{table}', '{name}')"
            ),
            Form::Column(_) => format!("INSERT INTO conf_column (id) VALUES ('{name}')"),
            Form::Records(_) => String::new(),
        };
        script(&self.url, &sql).await;
        Resource {
            pool: Pool::new(url),
            form: self.form,
            name: name.to_owned(),
            table,
        }
    }
}

impl<D: Driver> conformance::Subject for Subject<D> {
    type Fence = Resource<D>;

    async fn fresh(&self, name: &str) -> Result<Resource<D>> {
        Ok(self.resource(name, &self.url).await)
    }
}

#[derive(Clone)]
pub(crate) struct Resource<D: Driver> {
    pool: Arc<Pool<D>>,
    form: Form,
    name: String,
    table: String,
}

impl<D: Driver> Resource<D> {
    /// Returns the same resource over other connections.
    pub(crate) fn over(&self, url: &str) -> Resource<D> {
        Resource {
            pool: Pool::new(url),
            name: self.name.clone(),
            table: self.table.clone(),
            ..*self
        }
    }

    async fn run(&self, pass: Pass<'_>, action: Action) -> Result<Admitted<Option<String>>> {
        let operation = Operation::new(self.form, &self.name, &self.table, pass, action);
        self.pool.carry_out(&operation).await
    }
}

impl<D: Driver> Fence for Resource<D> {
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

    /// A program without a token; the trigger stops it.
    async fn write_tokenless(&self, key: &str, _: Edit<'_>) -> Result<Admitted<()>> {
        let (name, table) = (self.name.as_str(), &self.table);
        let put = format!(
            "INSERT INTO {table} VALUES ($1, $2) ON CONFLICT (path) DO UPDATE SET data = $2"
        );
        let statement = match self.form {
            Form::Guard(_) => (put.as_str(), &[key, "forgot"][..]),
            Form::Column(_) => (
                "UPDATE conf_column SET data = '{}' WHERE id = $1",
                &[name][..],
            ),
            Form::Records(_) => (
                "UPDATE resource_records SET resource_data = 'forgot' WHERE resource_id = $1",
                &[name][..],
            ),
        };
        let written = self.pool.carry_out(&Plain(&[statement])).await;
        written.map(|_| Admitted::new((), None))
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let name = self.name.as_str();
        let sql = format!("SELECT data FROM {} WHERE path = $1", self.table);
        let statement = match self.form {
            Form::Guard(_) => (sql.as_str(), &[key][..]),
            Form::Column(_) => (
                "SELECT data ->> $2 FROM conf_column WHERE id = $1",
                &[name, key][..],
            ),
            Form::Records(_) => (
                "SELECT resource_data FROM resource_records WHERE resource_id = $1",
                &[name][..],
            ),
        };
        let mut seen = self.pool.carry_out(&Plain(&[statement])).await?;
        let seen = seen.pop().flatten();
        let value = match self.form {
            Form::Records(_) => seen.and_then(|text| on_line(&text, key)),
            Form::Guard(_) | Form::Column(_) => seen,
        };
        Ok(value.map(String::into_bytes))
    }
}
