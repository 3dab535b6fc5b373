//! A user's code for each form of the fence: one job, one transaction.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Transaction, params};
use palisade_fence::mysql::{Column, Guard, Numbered, Records, Strategy, show_token};
use palisade_fence::{Admitted, Error, Reject, Result, Rule};

use crate::sql::{Action, Alter, Done, Lines};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Guard(Rule),
    /// Broken on purpose: it checks as the guard does, and writes in another transaction.
    TwoSteps,
    Column(Strategy),
    Records(Strategy),
}

pub(crate) type Operation<'p> = crate::sql::Operation<'p, Form>;

impl Operation<'_> {
    pub(crate) async fn work(&self, tx: &mut Transaction<'_>) -> Result<Done> {
        match self.form {
            Form::Guard(_) | Form::TwoSteps => {
                let checked = self.check(tx).await?;
                let value = if checked.repeat {
                    None
                } else {
                    self.on_table(tx).await?
                };
                Ok(Admitted { value, ..checked })
            }
            Form::Column(strategy) => self.column(tx, strategy).await,
            Form::Records(strategy) => self.records(tx, Records::new(strategy)).await,
        }
    }

    pub(crate) async fn check(&self, tx: &mut Transaction<'_>) -> Result<Done> {
        let rule = match self.form {
            Form::Guard(rule) => rule,
            _ => Rule::CLAIM,
        };
        let (guard, name, pass) = (Guard { rule }, &self.resource, self.pass());
        let checked = match self.numbered() {
            None => guard.check(tx, name, pass, self.op()).await,
            Some((sequence, digest)) => {
                let write = Numbered { sequence, digest };
                guard.write(tx, name, pass, write).await
            }
        };
        checked.map(|answer| answer.map(|_| None))
    }

    pub(crate) async fn on_table(&self, tx: &mut Transaction<'_>) -> Result<Option<String>> {
        let table = &self.table;
        let upsert = format!("INSERT INTO {table} VALUES (?, ?) ON DUPLICATE KEY UPDATE data =");
        match &self.action {
            Action::Claim => return Ok(None),
            Action::Read(key) => {
                let sql = format!("SELECT data FROM {table} WHERE path = ?");
                return Ok(tx.exec_first(sql, (key,)).await?);
            }
            Action::Write(key, Alter::Put(text), _) => {
                tx.exec_drop(format!("{upsert} VALUES(data)"), (key, text))
                    .await?;
            }
            Action::Write(key, Alter::Append(text), _) => {
                let sql = format!("{upsert} CONCAT(data, VALUES(data))");
                tx.exec_drop(sql, (key, text)).await?;
            }
            Action::Write(key, Alter::Delete, _) => {
                let sql = format!("DELETE FROM {table} WHERE path = ?");
                tx.exec_drop(sql, (key,)).await?;
                if tx.affected_rows() == 0 {
                    return Err(Reject::Missing.into());
                }
            }
        }
        Ok(None)
    }

    async fn column(&self, tx: &mut Transaction<'_>, strategy: Strategy) -> Result<Done> {
        let column = Column::new("conf_column", "id", "last_fencing_token")?;
        let id = &self.resource;
        show_token(tx, self.token).await?;
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
                let sql =
                    "SELECT JSON_UNQUOTE(JSON_EXTRACT(data, ?)) FROM conf_column WHERE id = ?";
                let read: Option<Option<String>> = tx.exec_first(sql, (path(key), id)).await?;
                return Ok(self.done(read.flatten()));
            }
            Action::Write(_, _, Some(_)) => return Err(no_numbers()),
            Action::Write(key, alter, None) => (key, alter),
        };
        let (data, more, text) = match alter {
            Alter::Put(text) => ("JSON_SET(data, :key, :text)", "", text.as_str()),
            Alter::Append(text) => (
                "JSON_SET(data, :key, CONCAT(IFNULL(JSON_UNQUOTE(JSON_EXTRACT(data, :key)), ''), :text))",
                "",
                text.as_str(),
            ),
            Alter::Delete => (
                "JSON_REMOVE(data, :key)",
                "AND JSON_UNQUOTE(JSON_EXTRACT(data, :key)) IS NOT NULL AND :text = ''",
                "",
            ),
        };
        let condition = column.condition().replace('?', ":token");
        let sql = format!(
            "UPDATE conf_column SET data = {data}, last_fencing_token = :token \
             WHERE id = :id AND {condition} {more}"
        );
        let arguments = params! {
            "id" => id, "key" => path(key), "token" => self.token.get(), "text" => text,
        };
        tx.exec_drop(sql, arguments).await?;
        let hit = tx.affected_rows();
        column.explain(tx, id, self.pass(), hit).await?;
        Ok(self.done(None))
    }

    async fn records(&self, tx: &mut Transaction<'_>, records: Records) -> Result<Done> {
        let (id, pass) = (&self.resource, self.pass());
        show_token(tx, self.token).await?;
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

/// The name of a key in JSON functions.
pub(crate) fn path(key: &str) -> String {
    format!("$.\"{key}\"")
}

fn no_numbers() -> Error {
    Error::Argument("a token column has no numbered writes".to_owned())
}
