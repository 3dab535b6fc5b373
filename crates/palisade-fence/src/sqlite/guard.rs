//! The guard row: claim it, check it, and commit the effect with it.

use std::collections::BTreeMap;

use palisade_core::Token;
use palisade_core::fence::{FenceState, Op, Pass, Rule, Sequence};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::busy;
use super::rows::{in_transaction, int};
use super::token_function::show_token;
use crate::admitted::Admitted;
use crate::error::{Error, Result};
use crate::guard_row::{GuardRow, Numbered, Recorded};
use crate::name::ResourceId;
use crate::sql::{decide_all, in_name_order, recordable};

// Name the file itself, because a temporary table or an attached file of that name would have another mark.

/// Takes the write lock, whether the row exists or not; only then is the row read.
const TAKE: &str =
    "UPDATE main.palisade_fence SET updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE resource = ?1
RETURNING resource, authority, lock, token, written, sequence, digest, result";

const SHOW: &str = "SELECT resource, authority, lock, token, written, sequence, digest, NULL
FROM main.palisade_fence WHERE resource = ?1";

const CREATE: &str = "INSERT INTO main.palisade_fence (resource) VALUES (?1)";

const STORE: &str =
    "UPDATE main.palisade_fence SET authority = ?2, lock = ?3, token = ?4, written = ?5,
    sequence = ?6, digest = ?7, result = ?8 WHERE resource = ?1";

const RECORD: &str =
    "UPDATE main.palisade_fence SET result = ?4, updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
WHERE resource = ?1 AND token = ?2 AND sequence = ?3";

/// Claims a resource: from the commit on, no older token is admitted there. It must be the first statement of
/// a transaction, before its first read (rule F2).
///
/// The raise is durable when the transaction commits, together with the transaction's other writes. It takes
/// a token or a whole [`Pass`].
///
/// # Errors
/// [`Error::Rejected`] if a newer holder has claimed the resource: **roll back**, and write nothing more. Errors of the
/// database.
pub fn claim<'p>(
    tx: &Connection,
    resource: &str,
    pass: impl Into<Pass<'p>>,
) -> Result<Admitted<()>> {
    let claimed = Guard::CLAIM.check(tx, resource, pass, Op::Claim)?;
    Ok(claimed.map(drop))
}

/// Claims several resources at once, in name order: all are admitted or none is raised.
///
/// # Errors
/// As [`claim`]; [`Error::Argument`] for a resource that is named twice.
pub fn claim_all(tx: &Connection, claims: &[(&str, Pass<'_>)]) -> Result<Admitted<()>> {
    Guard::CLAIM.claim_all(tx, claims)
}

/// Guard rows under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The rule by which they decide.
    pub rule: Rule,
}

impl Guard {
    /// The claim fence. Use this one.
    pub const CLAIM: Guard = Guard { rule: Rule::CLAIM };

    /// The longest result that is recorded with a numbered write, in bytes.
    pub const MAX_RESULT_BYTES: usize = 65_536;

    /// Checks any operation that carries a token, and raises the fence if necessary. The value is the recorded
    /// result of a repeat.
    ///
    /// # Errors
    /// As [`claim`].
    pub fn check<'p>(
        &self,
        tx: &Connection,
        resource: &str,
        pass: impl Into<Pass<'p>>,
        op: Op,
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        self.judge(tx, &[(resource, pass.into())], op, None)
    }

    /// Checks a numbered write: a repeat is recognised, and its value is the recorded result.
    ///
    /// Another write under the same number is rejected.
    ///
    /// # Errors
    /// As [`claim`].
    pub fn write<'p>(
        &self,
        tx: &Connection,
        resource: &str,
        pass: impl Into<Pass<'p>>,
        write: Numbered,
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        let (claims, op) = ([(resource, pass.into())], Op::Write(Some(write.sequence)));
        self.judge(tx, &claims, op, Some(write.digest))
    }

    /// Records the result of a numbered write, in the transaction of that write.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is too long, or if this is not the resource's last numbered write.
    pub fn record(
        &self,
        tx: &Connection,
        resource: &str,
        token: Token,
        sequence: Sequence,
        result: &[u8],
    ) -> Result<()> {
        ResourceId::new(resource)?;
        recordable(result, Guard::MAX_RESULT_BYTES)?;
        in_transaction(tx)?;
        let arguments = params![resource, int(token.get()), int(sequence.get()), result];
        match tx.prepare_cached(RECORD)?.execute(arguments)? {
            1 => Ok(()),
            _ => Err(Error::Argument(format!(
                "{resource}: the last write there is not number {sequence} of token {token}"
            ))),
        }
    }

    /// See [`claim_all`].
    ///
    /// # Errors
    /// As [`claim_all`].
    pub fn claim_all(&self, tx: &Connection, claims: &[(&str, Pass<'_>)]) -> Result<Admitted<()>> {
        Ok(self.judge(tx, claims, Op::Claim, None)?.map(drop))
    }

    fn judge(
        &self,
        tx: &Connection,
        claims: &[(&str, Pass<'_>)],
        op: Op,
        digest: Option<u64>,
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        let claims = in_name_order(claims)?;
        in_transaction(tx)?;
        let mut rows = BTreeMap::new();
        for resource in claims.keys() {
            rows.insert((*resource).to_owned(), take(tx, resource)?);
        }
        let decided = match decide_all(self.rule, &claims, &rows, op, digest) {
            Err(error) if error.rejected().is_none() => return Err(error),
            decided => decided,
        };
        for one in decided.iter().flat_map(|(rows, _)| rows) {
            if one.changed {
                store(tx, one.resource, &one.row)?;
            }
        }
        // A rejected holder's connection no longer presents its tokens to the triggers.
        for (resource, pass) in &claims {
            show_token(tx, resource, decided.is_ok().then_some(pass.token))?;
        }
        Ok(decided?.1)
    }
}

/// Locks the row of a resource until the transaction ends, and creates it if it is missing.
pub(super) fn take(tx: &Connection, resource: &str) -> Result<GuardRow> {
    let mut statement = tx.prepare_cached(TAKE)?;
    let row = statement.query_row([resource], guard_row).optional();
    if let Some(row) = row.map_err(|error| busy::error(tx, resource, error))? {
        return Ok(row);
    }
    tx.prepare_cached(CREATE)?.execute([resource])?;
    Ok(GuardRow::default())
}

/// Parses the columns after the resource's.
pub(super) fn guard_row(row: &Row<'_>) -> rusqlite::Result<GuardRow> {
    Ok(GuardRow {
        authority: row.get(1)?,
        lock: row.get(2)?,
        token: row.get(3)?,
        written: row.get(4)?,
        sequence: row.get(5)?,
        recorded: Recorded {
            digest: row.get(6)?,
            result: row.get(7)?,
        },
    })
}

/// Returns the fence of one resource; `None` if nothing was ever admitted there.
pub(super) fn show(db: &Connection, resource: &str) -> Result<Option<FenceState>> {
    ResourceId::new(resource)?;
    let mut statement = db.prepare_cached(SHOW)?;
    let row = statement.query_row([resource], guard_row).optional()?;
    Ok(row.map(|row| row.state()).transpose()?)
}

fn store(tx: &Connection, resource: &str, row: &GuardRow) -> Result<()> {
    let arguments = params![
        resource,
        row.authority,
        row.lock,
        row.token,
        row.written,
        row.sequence,
        row.recorded.digest,
        row.recorded.result,
    ];
    match tx.prepare_cached(STORE)?.execute(arguments)? {
        1 => Ok(()),
        _ => Err(Error::Argument(format!(
            "{resource}: the guard row could not be written"
        ))),
    }
}
