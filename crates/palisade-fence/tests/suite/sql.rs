//! The common part of the tests of PostgreSQL, MySQL and SQLite: an operation in one transaction of a user, and
//! resources that are lines of one text.

use std::collections::BTreeMap;

use palisade_core::{AuthorityId, LockName, Token};
use palisade_fence::{Admitted, Edit, Op, Pass, Reject, Report, Sequence};

/// An operation in one transaction, with one of the database's forms of the fence.
#[derive(Clone)]
pub(crate) struct Operation<'p, F> {
    pub(crate) form: F,
    pub(crate) resource: String,
    pub(crate) table: String,
    pub(crate) token: Token,
    authority: Option<AuthorityId>,
    lock: Option<LockName>,
    report: Report<'p>,
    pub(crate) action: Action,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
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

impl From<Edit<'_>> for Alter {
    fn from(change: Edit<'_>) -> Alter {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        match change {
            Edit::Put(bytes) => Alter::Put(text(bytes)),
            Edit::Append(bytes) => Alter::Append(text(bytes)),
            Edit::Delete => Alter::Delete,
        }
    }
}

pub(crate) type Done = Admitted<Option<String>>;

/// The effect of an operation on a text of lines.
pub(crate) enum Lines {
    /// The text is unchanged; this was read.
    Unchanged(Option<String>),
    Replaced(String),
    Deleted,
}

impl<'p, F> Operation<'p, F> {
    pub(crate) fn new(
        form: F,
        resource: &str,
        table: &str,
        pass: Pass<'p>,
        action: Action,
    ) -> Operation<'p, F> {
        Operation {
            form,
            resource: resource.to_owned(),
            table: table.to_owned(),
            token: pass.token,
            authority: pass.authority.cloned(),
            lock: pass.lock.cloned(),
            report: pass.report,
            action,
        }
    }

    pub(crate) fn pass(&self) -> Pass<'_> {
        Pass {
            authority: self.authority.as_ref(),
            lock: self.lock.as_ref(),
            report: self.report,
            ..Pass::new(self.token)
        }
    }

    /// The same operation for another thread, where its reporter cannot go.
    pub(crate) fn detached(self) -> Operation<'static, F> {
        Operation {
            form: self.form,
            resource: self.resource,
            table: self.table,
            token: self.token,
            authority: self.authority,
            lock: self.lock,
            report: Report::NONE,
            action: self.action,
        }
    }

    /// The operation as a write without a number.
    pub(crate) fn op(&self) -> Op {
        match self.action {
            Action::Claim => Op::Claim,
            Action::Read(_) => Op::Read,
            Action::Write(..) => Op::Write(None),
        }
    }

    /// The number of a numbered write, and its digest.
    pub(crate) fn numbered(&self) -> Option<(Sequence, u64)> {
        match &self.action {
            Action::Write(key, alter, Some(sequence)) => {
                Some((*sequence, digest(&format!("{key} {alter:?}"))))
            }
            _ => None,
        }
    }

    pub(crate) fn done(&self, value: Option<String>) -> Done {
        Admitted {
            value,
            highest: Some(self.token),
            repeat: false,
        }
    }

    /// Carries out the operation on a text whose lines are `key<TAB>text`.
    pub(crate) fn on_lines(&self, text: &str) -> Result<Lines, Reject> {
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        let mut map: BTreeMap<&str, String> = lines.map(|(k, v)| (k, v.to_owned())).collect();
        match &self.action {
            Action::Claim => return Ok(Lines::Unchanged(None)),
            Action::Read(key) => return Ok(Lines::Unchanged(map.remove(key.as_str()))),
            Action::Write(key, Alter::Put(text), _) => {
                map.insert(key, text.clone());
            }
            Action::Write(key, Alter::Append(text), _) => {
                map.entry(key).or_default().push_str(text);
            }
            Action::Write(key, Alter::Delete, _) => {
                map.remove(key.as_str()).ok_or(Reject::Missing)?;
            }
        }
        if map.is_empty() {
            return Ok(Lines::Deleted);
        }
        let lines: Vec<String> = map.iter().map(|(k, v)| format!("{k}\t{v}")).collect();
        Ok(Lines::Replaced(lines.join("\n")))
    }
}

/// The text of a key in a text of lines.
pub(crate) fn on_line(text: &str, key: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once('\t'));
    lines.find(|(k, _)| *k == key).map(|(_, v)| v.to_owned())
}

/// The number of rounds of late writes, unless `PALISADE_LATE_WRITES` overrides it: 1,000 is the full battery for every
/// form.
pub(crate) fn rounds(usual: u64) -> u64 {
    let setting = std::env::var("PALISADE_LATE_WRITES").ok();
    setting.map_or(usual, |text| text.parse().unwrap())
}

/// FNV-1a, which suffices to distinguish two writes of a test.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
