//! A user's code for each form of the fence: one job, one transaction.

use std::collections::BTreeMap;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Transaction, params};
use palisade_core::{AuthorityId, LockName, Token};
use palisade_fence::mysql::{Column, Fault, Guard, Numbered, Records, Strategy, show_token};
use palisade_fence::{Admitted, Change, Op, Pass, Reject, Rule, Sequence};

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
    pub(crate) async fn work(&self, tx: &mut Transaction<'_>) -> Result<Done, Refused> {
        match self.form {
            Form::Guard(_) | Form::TwoSteps => {
                let checked = self.check(tx).await?;
                let value = match checked.repeat {
                    true => None,
                    false => self.on_table(tx).await?,
                };
                Ok(Admitted { value, ..checked })
            }
            Form::Column(strategy) => self.column(tx, strategy).await,
            Form::Records(strategy) => self.records(tx, Records::new(strategy)).await,
        }
    }

    pub(crate) fn done(&self, value: Option<String>) -> Done {
        Admitted {
            value,
            highest: Some(self.token),
            repeat: false,
        }
    }

    pub(crate) async fn check(&self, tx: &mut Transaction<'_>) -> Result<Done, Refused> {
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
            What::Claim => guard.check(tx, name, pass, Op::Claim).await,
            What::Read(_) => guard.check(tx, name, pass, Op::Read).await,
            What::Write(_, _, None) => guard.check(tx, name, pass, Op::Write(None)).await,
            What::Write(key, alter, Some(sequence)) => {
                let write = Numbered {
                    sequence: *sequence,
                    digest: digest(&format!("{key} {alter:?}")),
                };
                guard.write(tx, name, pass, write).await
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

    pub(crate) async fn on_table(
        &self,
        tx: &mut Transaction<'_>,
    ) -> Result<Option<String>, Refused> {
        let table = &self.table;
        let upsert = format!("INSERT INTO {table} VALUES (?, ?) ON DUPLICATE KEY UPDATE data =");
        match &self.what {
            What::Claim => return Ok(None),
            What::Read(key) => {
                let sql = format!("SELECT data FROM {table} WHERE path = ?");
                return Ok(tx.exec_first(sql, (key,)).await?);
            }
            What::Write(key, Alter::Put(text), _) => {
                tx.exec_drop(format!("{upsert} VALUES(data)"), (key, text))
                    .await?;
            }
            What::Write(key, Alter::Append(text), _) => {
                let sql = format!("{upsert} CONCAT(data, VALUES(data))");
                tx.exec_drop(sql, (key, text)).await?;
            }
            What::Write(key, Alter::Delete, _) => {
                let sql = format!("DELETE FROM {table} WHERE path = ?");
                tx.exec_drop(sql, (key,)).await?;
                if tx.affected_rows() == 0 {
                    return Err(Reject::Missing.into());
                }
            }
        }
        Ok(None)
    }

    async fn column(&self, tx: &mut Transaction<'_>, strategy: Strategy) -> Result<Done, Refused> {
        let column = Column::new("conf_column", "id", "last_fencing_token")?;
        let id = &self.resource;
        show_token(tx, self.token).await?;
        if strategy == Strategy::Pessimistic {
            column.lock(tx, id, self.token).await.or_refused()?;
        }
        let (key, alter) = match &self.what {
            What::Claim => {
                column.claim(tx, id, self.token).await.or_refused()?;
                return Ok(self.done(None));
            }
            What::Read(key) => {
                column.claim(tx, id, self.token).await.or_refused()?;
                let sql = "SELECT JSON_VALUE(data, ?) FROM conf_column WHERE id = ?";
                let read: Option<Option<String>> = tx.exec_first(sql, (path(key), id)).await?;
                return Ok(self.done(read.flatten()));
            }
            What::Write(_, _, Some(_)) => return Err(no_numbers()),
            What::Write(key, alter, None) => (key, alter),
        };
        let (data, more, text) = match alter {
            Alter::Put(text) => ("JSON_SET(data, :key, :text)", "", text.as_str()),
            Alter::Append(text) => (
                "JSON_SET(data, :key, CONCAT(IFNULL(JSON_VALUE(data, :key), ''), :text))",
                "",
                text.as_str(),
            ),
            Alter::Delete => (
                "JSON_REMOVE(data, :key)",
                "AND JSON_VALUE(data, :key) IS NOT NULL AND :text = ''",
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
        column.explain(tx, id, self.token, hit).await.or_refused()?;
        Ok(self.done(None))
    }

    /// The keys of a resource are lines `key<TAB>text` of its single text.
    async fn records(&self, tx: &mut Transaction<'_>, records: Records) -> Result<Done, Refused> {
        let (id, token) = (&self.resource, self.token);
        show_token(tx, self.token).await?;
        let claimed = records.claim(tx, id, token).await.or_refused()?;
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
            records.delete(tx, id, token).await.or_refused()?;
        } else {
            let text: Vec<String> = map.iter().map(|(k, v)| format!("{k}\t{v}")).collect();
            let written = records.write(tx, id, token, &text.join("\n")).await;
            written.or_refused()?;
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
