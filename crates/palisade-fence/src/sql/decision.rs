//! Decisions on guard rows.

use std::collections::BTreeMap;

use palisade_core::fence::Pass;
#[cfg(feature = "sqlite")]
use palisade_core::fence::{Op, Rule, Verdict};

use crate::error::{Error, Result};
use crate::name::ResourceId;
#[cfg(feature = "sqlite")]
use crate::{admitted::Admitted, audit, guard_row::GuardRow};

/// How a row is protected from others while it is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// One conditional statement; it waits only for a writer of the same row in mid-statement.
    Optimistic,
    /// The row is locked and read, then written: for a decision of your own in between.
    Pessimistic,
}

/// A guard row after an operation.
#[cfg(feature = "sqlite")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DecidedRow<'a> {
    pub(crate) resource: &'a str,
    pub(crate) row: GuardRow,
    /// Whether it differs from the stored row.
    pub(crate) changed: bool,
}

/// The next rows, and the answer.
#[cfg(feature = "sqlite")]
type RowsAndAnswer<'a> = (Vec<DecidedRow<'a>>, Admitted<Option<Vec<u8>>>);

/// Returns the claims in name order, each resource once.
pub(crate) fn in_name_order<'a, 'p>(
    claims: &[(&'a str, Pass<'p>)],
) -> Result<BTreeMap<&'a str, Pass<'p>>> {
    let mut in_order = BTreeMap::new();
    for (resource, pass) in claims {
        ResourceId::new(resource)?;
        if in_order.insert(*resource, *pass).is_some() {
            let text = format!("{resource} is claimed twice in one step");
            return Err(Error::Argument(text));
        }
    }
    Ok(in_order)
}

/// Decides an operation on all these resources and returns the next rows and the answer, if all are admitted. A rejection is
/// recorded for the operator. The answer is that of the last resource;
/// its value is the recorded result of a repeat.
#[cfg(feature = "sqlite")]
pub(crate) fn decide_all<'a>(
    rule: Rule,
    claims: &BTreeMap<&'a str, Pass<'_>>,
    rows: &BTreeMap<String, GuardRow>,
    op: Op,
    digest: Option<u64>,
) -> Result<RowsAndAnswer<'a>> {
    let mut all = Vec::with_capacity(claims.len());
    let mut answer = Admitted::new(None, None);
    for (&resource, pass) in claims {
        let before = rows.get(resource).cloned().unwrap_or_default();
        let (row, changed, result) = match before.decide(rule, Some(*pass), op, digest)? {
            Verdict::Reject(reject) => {
                let pass = pass.doing(op.word());
                return Err(audit::reject(resource, Some(pass), reject));
            }
            Verdict::Admit(Some(next)) => (next, true, None),
            Verdict::Admit(None) => (before, false, None),
            Verdict::Repeat => {
                let result = before.recorded.result.clone();
                (before, false, Some(result))
            }
        };
        answer = Admitted {
            highest: row.state()?.highest(),
            repeat: result.is_some(),
            value: result.flatten(),
        };
        all.push(DecidedRow {
            resource,
            row,
            changed,
        });
    }
    Ok((all, answer))
}

/// Checks that a result is short enough to be recorded.
pub(crate) fn recordable(result: &[u8], longest: usize) -> Result<()> {
    match result.len() {
        bytes if bytes > longest => Err(Error::Argument(format!(
            "the result has {bytes} bytes; 0 ..= {longest} are allowed"
        ))),
        _ => Ok(()),
    }
}
