//! Any form over connections to one file, with the suite's interface.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use palisade_fence::conformance;
use palisade_fence::sqlite::{Column, MIGRATIONS, sticky, why};
use palisade_fence::{Admitted, Edit, Fence, Pass, Result, Write};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use tempfile::TempDir;

use super::forms::{Form, Operation, path};
use crate::sql::{Action, Done, on_line};
use crate::two_steps::between_check_and_effect;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Journal {
    Wal,
    Rollback,
}

/// A file with the schema; its folder is removed when this value is dropped.
pub(crate) struct File {
    folder: TempDir,
}

impl File {
    pub(crate) fn new(journal: Journal) -> File {
        let file = File {
            folder: tempfile::tempdir().unwrap(),
        };
        let db = file.open();
        let mode = match journal {
            Journal::Wal => "WAL",
            Journal::Rollback => "DELETE",
        };
        db.pragma_update(None, "journal_mode", mode).unwrap();
        // The migrations run twice: running them again changes nothing.
        for (_, sql) in MIGRATIONS.iter().chain(MIGRATIONS) {
            db.execute_batch(sql).unwrap();
        }
        file
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("db")
    }

    pub(crate) fn open(&self) -> Connection {
        open(&self.path())
    }
}

pub(crate) fn open(path: &Path) -> Connection {
    let db = Connection::open(path).unwrap();
    db.pragma_update(None, "synchronous", "FULL").unwrap();
    db
}

/// Completes a future that never waits, because all calls on a file block.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("a call on a file must not wait"),
    }
}

/// Carries out a job in its own transaction.
pub(crate) fn carry_out<T>(
    db: &mut Connection,
    job: impl FnOnce(&Connection) -> Result<T>,
) -> Result<T> {
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = job(&tx)?;
    tx.commit()?;
    Ok(done)
}

pub(crate) struct Subject {
    file: File,
    form: Form,
}

const TABLE: &str =
    "CREATE TABLE conf_column (id TEXT PRIMARY KEY, data TEXT NOT NULL DEFAULT '{}',
    last_fencing_token INTEGER NOT NULL DEFAULT 0)";

impl Subject {
    pub(crate) fn new(form: Form, journal: Journal) -> Subject {
        let file = File::new(journal);
        let db = file.open();
        db.execute_batch(TABLE).unwrap();
        for column in [own_column(), records_column()] {
            db.execute_batch(column.sticky()).unwrap();
            db.execute_batch(column.sticky()).unwrap();
        }
        Subject { file, form }
    }

    pub(crate) fn resource(&self, name: &str) -> Resource {
        let table = format!("t_{}", name.replace(['-', '~'], "_"));
        let db = self.file.open();
        match self.form {
            Form::Guard(_) | Form::TwoSteps => {
                let sql =
                    format!("CREATE TABLE {table} (path TEXT PRIMARY KEY, data TEXT NOT NULL)");
                db.execute_batch(&sql).unwrap();
                db.execute_batch(&sticky(&table, name).unwrap()).unwrap();
            }
            Form::Column(_) => {
                let sql = "INSERT INTO conf_column (id) VALUES (?1)";
                db.execute(sql, [name]).unwrap();
            }
            Form::Records(_) => {}
        }
        Resource {
            pool: Arc::new(Pool {
                path: self.file.path(),
                free: Mutex::default(),
            }),
            form: self.form,
            name: name.to_owned(),
            table,
        }
    }
}

fn own_column() -> Column {
    Column::new("conf_column", "id", "last_fencing_token").unwrap()
}

fn records_column() -> Column {
    Column::new("resource_records", "resource_id", "last_fencing_token").unwrap()
}

impl conformance::Subject for Subject {
    type Fence = Resource;

    async fn fresh(&self, name: &str) -> Result<Resource> {
        Ok(self.resource(name))
    }
}

struct Pool {
    path: PathBuf,
    free: Mutex<VecDeque<Connection>>,
}

impl Pool {
    /// Returns the connection that was used the longest ago, of two at least: holders do not share
    /// connections.
    fn take(&self) -> Connection {
        let mut free = self.free.lock().unwrap();
        let used = match free.len() {
            0 | 1 => None,
            _ => free.pop_front(),
        };
        used.unwrap_or_else(|| open(&self.path))
    }
}

pub(crate) struct Resource {
    pool: Arc<Pool>,
    form: Form,
    name: String,
    table: String,
}

impl Resource {
    async fn on<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let pool = Arc::clone(&self.pool);
        let done = tokio::task::spawn_blocking(move || {
            let mut db = pool.take();
            let done = job(&mut db);
            pool.free.lock().unwrap().push_back(db);
            done
        });
        done.await.unwrap()
    }

    async fn run(&self, pass: Pass<'_>, action: Action) -> Result<Admitted<Option<String>>> {
        let operation = Operation::new(self.form, &self.name, &self.table, pass, action).detached();
        match self.form {
            Form::TwoSteps => self.in_two_steps(operation).await,
            _ => {
                self.on(move |db| carry_out(db, |tx| operation.work(tx)))
                    .await
            }
        }
    }

    async fn in_two_steps(&self, operation: Operation<'static>) -> Result<Done> {
        let first = operation.clone();
        let entry = self.on(move |db| carry_out(db, |tx| first.check(tx)));
        match entry.await? {
            done if done.repeat => Ok(done),
            _ => {
                between_check_and_effect().await;
                self.on(move |db| {
                    // Like a user who forgot why the trigger is there.
                    let set_token =
                        "SELECT palisade_token(?1, token) FROM palisade_fence WHERE resource = ?1";
                    db.query_one(set_token, [&operation.resource], |_| Ok(()))?;
                    carry_out(db, |tx| Ok(operation.done(operation.on_table(tx)?)))
                })
                .await
            }
        }
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
        let (name, key, table, form) = (
            self.name.clone(),
            key.to_owned(),
            self.table.clone(),
            self.form,
        );
        self.on(move |db| {
            let forgot = open(Path::new(db.path().unwrap()));
            let written = match form {
                Form::Guard(_) | Form::TwoSteps => {
                    let sql = format!("INSERT OR REPLACE INTO {table} VALUES (?1, 'forgot')");
                    let done = forgot.execute(&sql, [key]);
                    done.map_err(|error| why(&forgot, &name, error))
                }
                Form::Column(_) => {
                    let sql = "UPDATE conf_column SET data = '{}' WHERE id = ?1";
                    let done = forgot.execute(sql, [&name]);
                    done.map_err(|error| own_column().why(&forgot, &name, None, error))
                }
                Form::Records(_) => {
                    let sql = "UPDATE resource_records SET resource_data = 'forgot' WHERE resource_id = ?1";
                    let done = forgot.execute(sql, [&name]);
                    done.map_err(|error| records_column().why(&forgot, &name, None, error))
                }
            };
            written.map(|_| Admitted::new((), None))
        })
        .await
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let (name, key, form) = (self.name.clone(), key.to_owned(), self.form);
        let sql = match form {
            Form::Guard(_) | Form::TwoSteps => {
                format!(
                    "SELECT data FROM {} WHERE path = ?2 AND ?1 <> ''",
                    self.table
                )
            }
            Form::Column(_) => "SELECT data ->> ?2 FROM conf_column WHERE id = ?1".to_owned(),
            Form::Records(_) => {
                "SELECT resource_data FROM resource_records WHERE resource_id = ?1 AND ?2 <> ''"
                    .to_owned()
            }
        };
        let seen = self.on(move |db| {
            let named = match form {
                Form::Column(_) => path(&key),
                _ => key.clone(),
            };
            let read = db.query_one(&sql, params![name, named], |row| row.get(0));
            let text: Option<String> = read.optional()?.flatten();
            Ok(match form {
                Form::Records(_) => text.and_then(|text| on_line(&text, &key)),
                _ => text,
            })
        });
        Ok(seen.await?.map(String::into_bytes))
    }
}
