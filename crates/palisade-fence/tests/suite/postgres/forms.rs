//! A user's code for each form of the fence: one job, one transaction.

use std::future::Future;

use palisade_fence::postgres::{Column, Guard, KeyType, Numbered, Records, Strategy};
use palisade_fence::{Admitted, Error, Reject, Result, Rule};

use super::drivers::Tx;
use crate::sql::{Action, Alter, Done, Lines};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Guard(Rule),
    Column(Strategy),
    Records(Strategy),
}

/// The work in one transaction.
pub(crate) trait Job: Sync {
    type Done: Send;
    fn work<T: Tx>(&self, tx: &mut T) -> impl Future<Output = Result<Self::Done>> + Send;
}

/// The user's own statements, without a fence.
pub(crate) struct Plain<'a>(pub(crate) &'a [(&'a str, &'a [&'a str])]);

impl Job for Plain<'_> {
    type Done = Vec<Option<String>>;
    async fn work<T: Tx>(&self, tx: &mut T) -> Result<Self::Done> {
        let mut last = Vec::new();
        for (sql, arguments) in self.0 {
            last = tx.own(sql, arguments).await?;
        }
        Ok(last)
    }
}

pub(crate) type Operation<'p> = crate::sql::Operation<'p, Form>;

impl Job for Operation<'_> {
    type Done = Done;
    async fn work<T: Tx>(&self, tx: &mut T) -> Result<Done> {
        match self.form {
            Form::Guard(rule) => self.guard(tx, Guard { rule }).await,
            Form::Column(strategy) => self.column(tx, strategy).await,
            Form::Records(strategy) => self.records(tx, Records::new(strategy)).await,
        }
    }
}

impl Operation<'_> {
    async fn guard<T: Tx>(&self, tx: &mut T, guard: Guard) -> Result<Done> {
        let (name, pass) = (&self.resource, self.pass());
        let checked = match self.numbered() {
            None => guard.check(tx, name, pass, self.op()).await,
            Some((sequence, digest)) => {
                let write = Numbered { sequence, digest };
                guard.write(tx, name, pass, write).await
            }
        };
        let checked = checked.map(|answer| answer.map(|_| None))?;
        let value = if checked.repeat {
            None
        } else {
            self.on_table(tx).await?
        };
        Ok(Admitted { value, ..checked })
    }

    async fn on_table<T: Tx>(&self, tx: &mut T) -> Result<Option<String>> {
        let table = &self.table;
        match &self.action {
            Action::Claim => Ok(None),
            Action::Read(key) => {
                let sql = format!("SELECT data FROM {table} WHERE path = $1");
                Ok(tx.own(&sql, &[key]).await?.pop().flatten())
            }
            Action::Write(key, alter, _) => {
                let upsert = format!(
                    "INSERT INTO {table} AS t VALUES ($1, $2) ON CONFLICT (path) DO UPDATE SET data ="
                );
                let hit = match alter {
                    Alter::Put(text) => {
                        let sql = format!("{upsert} $2 RETURNING path");
                        tx.own(&sql, &[key, text]).await?
                    }
                    Alter::Append(text) => {
                        let sql = format!("{upsert} t.data || $2 RETURNING path");
                        tx.own(&sql, &[key, text]).await?
                    }
                    Alter::Delete => {
                        let sql = format!("DELETE FROM {table} WHERE path = $1 RETURNING path");
                        tx.own(&sql, &[key]).await?
                    }
                };
                match hit.len() {
                    0 => Err(Reject::Missing.into()),
                    _ => Ok(None),
                }
            }
        }
    }

    async fn column<T: Tx>(&self, tx: &mut T, strategy: Strategy) -> Result<Done> {
        let column = Column::new("conf_column", "id", KeyType::Text, "last_fencing_token")?;
        let id = &self.resource;
        if strategy == Strategy::Pessimistic {
            column.lock(tx, id, self.pass()).await?;
        }
        let (key, alter) = match &self.action {
            Action::Claim => {
                column.claim(tx, id, self.pass()).await?;
                return Ok(self.done(None));
            }
            Action::Read(key) => {
                column.claim(tx, id, self.pass()).await?;
                let sql = "SELECT data ->> $2 FROM conf_column WHERE id = $1";
                let value = tx.own(sql, &[id, key]).await?.pop().flatten();
                return Ok(self.done(value));
            }
            Action::Write(_, _, Some(_)) => return Err(no_numbers()),
            Action::Write(key, alter, None) => (key, alter),
        };
        // `$4` is in every statement, because all of them get it as an argument.
        let (data, more, text) = match alter {
            Alter::Put(text) => ("data || jsonb_build_object($2, $4)", "", text.as_str()),
            Alter::Append(text) => (
                "data || jsonb_build_object($2, coalesce(data ->> $2, '') || $4)",
                "",
                text.as_str(),
            ),
            Alter::Delete => ("data - $2", "AND data ? $2 AND $4 = ''", ""),
        };
        let condition = column.condition(3).replace("$3", "$3::bigint");
        let sql = format!(
            "UPDATE conf_column SET data = {data}, last_fencing_token = $3::bigint \
             WHERE id = $1 AND {condition} {more} RETURNING id"
        );
        let token = self.token.to_string();
        let hit = tx.own(&sql, &[id, key, &token, text]).await?.len() as u64;
        column.explain(tx, id, self.pass(), hit).await?;
        Ok(self.done(None))
    }

    async fn records<T: Tx>(&self, tx: &mut T, records: Records) -> Result<Done> {
        let (id, pass) = (&self.resource, self.pass());
        let claimed = records.claim(tx, id, pass).await?;
        let written = match self.on_lines(&claimed.value.unwrap_or_default())? {
            Lines::Unchanged(read) => return Ok(self.done(read)),
            Lines::Replaced(text) => records.write(tx, id, pass, &text).await,
            Lines::Deleted => records.delete(tx, id, pass).await,
        };
        written?;
        Ok(self.done(None))
    }
}

fn no_numbers() -> Error {
    Error::Argument("a token column has no numbered writes".to_owned())
}
