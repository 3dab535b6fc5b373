//! A user's code for each form of the fence: one job, one transaction.

use std::collections::BTreeMap;

use palisade_core::{AuthorityId, LockName, Token};
use palisade_fence::sqlite::{Column, Fault, Guard, Numbered, Records, Strategy, why};
use palisade_fence::{Admitted, Change, Op, Pass, Reject, Rule, Sequence};
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::refused::{OrRefused as _, Refused};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Guard(Rule),
    /// Broken on purpose: it checks as the guard does, and writes in another transaction.
    TwoSteps,
    Column(Strategy),
    Records(Strategy),
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Claim,
    Read(String),
    Write(String, Alter, Option<Sequence>),
}

#[derive(Clone, Debug)]
pub(crate) enum Alter {
    Put(String),
    Append(String),
    Delete,
}

impl From<Change<'_>> for Alter {
    fn from(change: Change<'_>) -> Alter {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        match change {
            Change::Put(bytes) => Alter::Put(text(bytes)),
            Change::Append(bytes) => Alter::Append(text(bytes)),
            Change::Delete => Alter::Delete,
        }
    }
}

#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) form: Form,
    pub(crate) resource: String,
    pub(crate) table: String,
    pub(crate) token: Token,
    pub(crate) authority: Option<AuthorityId>,
    pub(crate) lock: Option<LockName>,
    pub(crate) what: What,
}

pub(crate) type Done = Admitted<Option<String>>;

impl Ask {
    pub(crate) fn work(&self, tx: &Connection) -> Result<Done, Refused> {
        match self.form {
            Form::Guard(_) | Form::TwoSteps => {
                let checked = self.check(tx)?;
                let value = match checked.repeat {
                    true => None,
                    false => self.on_table(tx)?,
                };
                Ok(Admitted { value, ..checked })
            }
            Form::Column(strategy) => self.column(tx, strategy),
            Form::Records(strategy) => self.records(tx, Records::new(strategy)),
        }
    }

    pub(crate) fn done(&self, value: Option<String>) -> Done {
        Admitted {
            value,
            highest: Some(self.token),
            repeat: false,
        }
    }

    pub(crate) fn check(&self, tx: &Connection) -> Result<Done, Refused> {
        let pass = Pass {
            token: self.token,
            authority: self.authority.as_ref(),
            lock: self.lock.as_ref(),
        };
        let rule = match self.form {
            Form::Guard(rule) => rule,
            _ => Rule::CLAIM,
        };
        let (guard, name) = (Guard { rule }, &self.resource);
        let checked = match &self.what {
            What::Claim => guard.check(tx, name, pass, Op::Claim),
            What::Read(_) => guard.check(tx, name, pass, Op::Read),
            What::Write(_, _, None) => guard.check(tx, name, pass, Op::Write(None)),
            What::Write(key, alter, Some(sequence)) => {
                let write = Numbered {
                    sequence: *sequence,
                    digest: digest(&format!("{key} {alter:?}")),
                };
                guard.write(tx, name, pass, write)
            }
        };
        let Admitted {
            highest, repeat, ..
        } = checked.or_refused()?;
        Ok(Admitted {
            value: None,
            highest,
            repeat,
        })
    }

    pub(crate) fn on_table(&self, tx: &Connection) -> Result<Option<String>, Refused> {
        let table = &self.table;
        let upsert =
            format!("INSERT INTO {table} VALUES (?1, ?2) ON CONFLICT DO UPDATE SET data =");
        let hit = match &self.what {
            What::Claim => return Ok(None),
            What::Read(key) => {
                let sql = format!("SELECT data FROM {table} WHERE path = ?1");
                let read = tx.query_one(&sql, [key], |row| row.get(0));
                return Ok(read.optional()?);
            }
            What::Write(key, Alter::Put(text), _) => {
                tx.execute(&format!("{upsert} ?2"), [key, text])
            }
            What::Write(key, Alter::Append(text), _) => {
                tx.execute(&format!("{upsert} data || ?2"), [key, text])
            }
            What::Write(key, Alter::Delete, _) => {
                tx.execute(&format!("DELETE FROM {table} WHERE path = ?1"), [key])
            }
        };
        let hit = match hit {
            Ok(hit) => hit,
            Err(error) => return Err(why(tx, &self.resource, error)?.into()),
        };
        match hit {
            0 => Err(Reject::Missing.into()),
            _ => Ok(None),
        }
    }

    fn column(&self, tx: &Connection, strategy: Strategy) -> Result<Done, Refused> {
        let column = Column::new("conf_column", "id", "last_fencing_token")?;
        let id = &self.resource;
        if strategy == Strategy::Pessimistic {
            column.lock(tx, id, self.token).or_refused()?;
        }
        let (key, alter) = match &self.what {
            What::Claim => {
                column.claim(tx, id, self.token).or_refused()?;
                return Ok(self.done(None));
            }
            What::Read(key) => {
                column.claim(tx, id, self.token).or_refused()?;
                let sql = "SELECT data ->> ?2 FROM conf_column WHERE id = ?1";
                let read = tx.query_one(sql, params![id, path(key)], |row| row.get(0));
                return Ok(self.done(read.optional()?.flatten()));
            }
            What::Write(_, _, Some(_)) => return Err(no_numbers()),
            What::Write(key, alter, None) => (key, alter),
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
        column.explain(tx, id, self.token, hit).or_refused()?;
        Ok(self.done(None))
    }

    /// The keys of a resource are lines `key<TAB>text` of its single text.
    fn records(&self, tx: &Connection, records: Records) -> Result<Done, Refused> {
        let (id, token) = (&self.resource, self.token);
        let claimed = records.claim(tx, id, token).or_refused()?;
        let data = claimed.value.unwrap_or_default();
        let lines = data.lines().filter_map(|line| line.split_once('\t'));
        let mut map: BTreeMap<&str, String> = lines.map(|(k, v)| (k, v.to_owned())).collect();
        match &self.what {
            What::Claim => return Ok(self.done(None)),
            What::Read(key) => return Ok(self.done(map.remove(key.as_str()))),
            What::Write(_, _, Some(_)) => return Err(no_numbers()),
            What::Write(key, Alter::Put(text), None) => {
                map.insert(key, text.clone());
            }
            What::Write(key, Alter::Append(text), None) => {
                map.entry(key).or_default().push_str(text);
            }
            What::Write(key, Alter::Delete, None) => {
                map.remove(key.as_str()).ok_or(Reject::Missing)?;
            }
        }
        if map.is_empty() {
            records.delete(tx, id, token).or_refused()?;
        } else {
            let text: Vec<String> = map.iter().map(|(k, v)| format!("{k}\t{v}")).collect();
            records
                .write(tx, id, token, &text.join("\n"))
                .or_refused()?;
        }
        Ok(self.done(None))
    }
}

/// The name of a key in JSON functions.
pub(crate) fn path(key: &str) -> String {
    format!("$.\"{key}\"")
}

fn no_numbers() -> Refused {
    Fault::Argument("a token column has no numbered writes".to_owned()).into()
}

/// FNV-1a, which suffices to distinguish two writes of a test.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
