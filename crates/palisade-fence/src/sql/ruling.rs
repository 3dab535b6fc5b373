//! Decisions on guard rows.

use std::collections::BTreeMap;

use palisade_core::Token;
use palisade_core::fence::{Op, Pass, Rule};

use super::fault::{Fault, Refused};
use crate::guard_row::{Decision, GuardRow};
use crate::name::ResourceId;

/// An admitted operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The operation is new: carry it out in this transaction.
    First {
        /// The highest token from now on; `None` if the check is off.
        highest: Option<Token>,
    },
    /// This same write was already carried out: do nothing, and return this answer.
    Repeat {
        /// The result that `Guard::record` was given then.
        result: Option<Vec<u8>>,
    },
}

/// How a row is protected from others while it is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// One conditional statement; it waits only for a writer of the same row in mid-statement.
    Optimistic,
    /// The row is locked and read, then written: for a decision of your own in between.
    Pessimistic,
}

/// A guard row after an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ruled<'a> {
    pub(crate) resource: &'a str,
    pub(crate) row: GuardRow,
    /// Whether it differs from the stored row.
    pub(crate) changed: bool,
}

/// Returns the claims in name order, each resource once.
pub(crate) fn asked<'a, 'p>(
    claims: &[(&'a str, Pass<'p>)],
) -> Result<BTreeMap<&'a str, Pass<'p>>, Fault> {
    let mut asked = BTreeMap::new();
    for (resource, pass) in claims {
        ResourceId::new(resource)?;
        if asked.insert(*resource, *pass).is_some() {
            let text = format!("{resource} is claimed twice in one step");
            return Err(Fault::Argument(text));
        }
    }
    Ok(asked)
}

/// Decides an operation on all these resources. Either all are admitted, or it is refused, which is recorded
/// for the operator. The returned entry is that of the last resource.
pub(crate) fn rule_on<'a>(
    rule: Rule,
    asked: &BTreeMap<&'a str, Pass<'_>>,
    rows: &BTreeMap<String, GuardRow>,
    op: Op,
    digest: Option<u64>,
) -> Result<(Vec<Ruled<'a>>, Entry), Refused> {
    let mut all = Vec::with_capacity(asked.len());
    let mut entry = Entry::First { highest: None };
    for (&resource, pass) in asked {
        let before = rows.get(resource).cloned().unwrap_or_default();
        let (row, changed) = match before.decide(rule, *pass, op, digest)? {
            Decision::Reject(reject) => return Err(Refused::from(reject).noted(resource, *pass)),
            Decision::Admit(next) => {
                let changed = next.is_some();
                let row = next.unwrap_or(before);
                let highest = row.state()?.highest();
                entry = Entry::First { highest };
                (row, changed)
            }
            Decision::Repeat(result) => {
                entry = Entry::Repeat { result };
                (before, false)
            }
        };
        all.push(Ruled {
            resource,
            row,
            changed,
        });
    }
    Ok((all, entry))
}

/// Checks that a result is short enough to be recorded.
pub(crate) fn recordable(result: &[u8], longest: usize) -> Result<(), Fault> {
    match result.len() {
        bytes if bytes > longest => Err(Fault::Argument(format!(
            "the result has {bytes} bytes; 0 ..= {longest} are allowed"
        ))),
        _ => Ok(()),
    }
}
