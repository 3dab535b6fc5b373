//! A user's code for each form of the fence: one job, one transaction.

use palisade_fence::sqlite::{Column, Guard, Numbered, Records, Strategy, why};
use palisade_fence::{Admitted, Error, Reject, Result, Rule};
use rusqlite::{Connection, OptionalExtension as _, params};

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
    pub(crate) fn work(&self, tx: &Connection) -> Result<Done> {
        match self.form {
            Form::Guard(_) | Form::TwoSteps => {
                let checked = self.check(tx)?;
                let value = if checked.repeat {
                    None
                } else {
                    self.on_table(tx)?
                };
                Ok(Admitted { value, ..checked })
            }
            Form::Column(strategy) => self.column(tx, strategy),
            Form::Records(strategy) => self.records(tx, Records::new(strategy)),
        }
    }

    pub(crate) fn check(&self, tx: &Connection) -> Result<Done> {
        let rule = match self.form {
            Form::Guard(rule) => rule,
            _ => Rule::CLAIM,
        };
        let (guard, name, pass) = (Guard { rule }, &self.resource, self.pass());
        let checked = match self.numbered() {
            None => guard.check(tx, name, pass, self.op()),
            Some((sequence, digest)) => {
                let write = Numbered { sequence, digest };
                guard.write(tx, name, pass, write)
            }
        };
        checked.map(|answer| answer.map(|_| None))
    }

    pub(crate) fn on_table(&self, tx: &Connection) -> Result<Option<String>> {
        let table = &self.table;
        let upsert =
            format!("INSERT INTO {table} VALUES (?1, ?2) ON CONFLICT DO UPDATE SET data =");
        let hit = match &self.action {
            Action::Claim => return Ok(None),
            Action::Read(key) => {
                let sql = format!("SELECT data FROM {table} WHERE path = ?1");
                let read = tx.query_one(&sql, [key], |row| row.get(0));
                return Ok(read.optional()?);
            }
            Action::Write(key, Alter::Put(text), _) => {
                tx.execute(&format!("{upsert} ?2"), [key, text])
            }
            Action::Write(key, Alter::Append(text), _) => {
                tx.execute(&format!("{upsert} data || ?2"), [key, text])
            }
            Action::Write(key, Alter::Delete, _) => {
                tx.execute(&format!("DELETE FROM {table} WHERE path = ?1"), [key])
            }
        };
        let hit = match hit {
            Ok(hit) => hit,
            Err(error) => return Err(why(tx, &self.resource, error)),
        };
        match hit {
            0 => Err(Reject::Missing.into()),
            _ => Ok(None),
        }
    }

    fn column(&self, tx: &Connection, strategy: Strategy) -> Result<Done> {
        let column = Column::new("conf_column", "id", "last_fencing_token")?;
        let id = &self.resource;
        if strategy == Strategy::Pessimistic {
            column.lock(tx, id, self.pass())?;
        }
        let (key, alter) = match &self.action {
            Action::Claim => {
                column.claim(tx, id, self.pass())?;
                return Ok(self.done(None));
            }
            Action::Read(key) => {
                column.claim(tx, id, self.pass())?;
                let sql = "SELECT data ->> ?2 FROM conf_column WHERE id = ?1";
                let read = tx.query_one(sql, params![id, path(key)], |row| row.get(0));
                return Ok(self.done(read.optional()?.flatten()));
            }
            Action::Write(_, _, Some(_)) => return Err(no_numbers()),
            Action::Write(key, alter, None) => (key, alter),
        };
        let (data, more, text) = match alter {
            Alter::Put(text) => ("json_set(data, ?2, ?4)", "", text.as_str()),
            Alter::Append(text) => (
                "json_set(data, ?2, coalesce(data ->> ?2, '') || ?4)",
                "",
                text.as_str(),
            ),
            Alter::Delete => (
                "json_remove(data, ?2)",
                "AND data ->> ?2 IS NOT NULL AND ?4 = ''",
                "",
            ),
        };
        let condition = column.condition(3);
        let sql = format!(
            "UPDATE conf_column SET data = {data}, last_fencing_token = ?3 \
             WHERE id = ?1 AND {condition} {more}"
        );
        let token = i64::try_from(self.token.get()).unwrap();
        let hit = tx.execute(&sql, params![id, path(key), token, text])?;
        column.explain(tx, id, self.pass(), hit)?;
        Ok(self.done(None))
    }

    fn records(&self, tx: &Connection, records: Records) -> Result<Done> {
        let (id, pass) = (&self.resource, self.pass());
        let claimed = records.claim(tx, id, pass)?;
        let written = match self.on_lines(&claimed.value.unwrap_or_default())? {
            Lines::Unchanged(read) => return Ok(self.done(read)),
            Lines::Replaced(text) => records.write(tx, id, pass, &text),
            Lines::Deleted => records.delete(tx, id, pass),
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
