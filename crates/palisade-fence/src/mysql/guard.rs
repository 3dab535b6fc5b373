//! The guard row: claim it, check it, and commit the effect with it.

use std::collections::BTreeMap;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Params, Row, Transaction, Value};
use palisade_core::Token;
use palisade_core::fence::{Op, Pass, Rule, Sequence};

use super::rows::{bytes, int, number, text};
use super::session::{ShownTokens, in_transaction};
use crate::checked::Checked;
use crate::guard_row::{GuardRow, Numbered, Recorded};
use crate::name::ResourceId;
use crate::sql::{Fault, decide_all, in_name_order, recordable};

/// Locks the rows in the order of the list, so that no two transactions wait for each other, and creates
/// missing rows. Existing rows are not changed: the snapshot must still show the previous holder.
const LOCK: &str = "INSERT INTO palisade_fence (resource) VALUES (?)";
const LOCK_MORE: &str = ", (?)";
const LOCK_END: &str = " ON DUPLICATE KEY UPDATE rearmed = palisade_fence.rearmed";

/// The rows as they are, and their versions as seen by this transaction's plain reads.
const READ: &str = "SELECT g.resource, g.authority, g.`lock`, g.token, g.written, g.sequence, g.digest,
    g.result, g.version, (SELECT s.version FROM palisade_fence s WHERE s.resource = g.resource), @palisade_tokens
FROM palisade_fence g WHERE g.resource IN (?";
const READ_MORE: &str = ", ?";
const READ_END: &str = ") FOR UPDATE";

const STORE: &str = "UPDATE palisade_fence SET authority = ?, `lock` = ?, token = ?, written = ?,
    sequence = ?, digest = ?, result = ?, version = version + 1 WHERE resource = ?";

const RECORD: &str = "UPDATE palisade_fence SET result = ?, version = version + 1
WHERE resource = ? AND token = ? AND sequence = ?";

/// Claims a resource: from the commit on, no older token is admitted there. It must be the first statement of
/// a transaction, before its first read (rule F2).
///
/// The raise is durable when the transaction commits, together with the transaction's other writes. It takes
/// a token or a whole [`Pass`]. It costs three round trips, and a fourth when the connection shows a new
/// token.
///
/// If a newer holder has claimed the resource, the answer is [`Checked::Rejected`]: **roll back**, and write
/// nothing more.
///
/// # Errors
/// [`Fault::ReadBeforeClaim`]; faults of the database.
pub async fn claim<'p>(
    tx: &mut Transaction<'_>,
    resource: &str,
    pass: impl Into<Pass<'p>>,
) -> Result<Checked<()>, Fault> {
    let checked = Guard::CLAIM.check(tx, resource, pass, Op::Claim).await?;
    Ok(checked.map(drop))
}

/// Claims several resources at once, in name order: all are admitted or none is raised.
///
/// # Errors
/// As [`claim`]; naming a resource twice is a fault.
pub async fn claim_all(
    tx: &mut Transaction<'_>,
    claims: &[(&str, Pass<'_>)],
) -> Result<Checked<()>, Fault> {
    Guard::CLAIM.claim_all(tx, claims).await
}

/// Guard rows under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The rule by which they decide.
    pub rule: Rule,
}

impl Guard {
    /// The claim fence, which is the one to use.
    pub const CLAIM: Guard = Guard { rule: Rule::CLAIM };

    /// The longest result that is recorded with a numbered write, in bytes.
    pub const MAX_RESULT_BYTES: usize = 65_536;

    /// Checks any operation that carries a token, and raises the fence if necessary. The value is the recorded
    /// result of a repeat.
    ///
    /// # Errors
    /// As [`claim`].
    pub async fn check<'p>(
        &self,
        tx: &mut Transaction<'_>,
        resource: &str,
        pass: impl Into<Pass<'p>>,
        op: Op,
    ) -> Result<Checked<Option<Vec<u8>>>, Fault> {
        let claims = [(resource, pass.into())];
        self.judge(tx, &claims, op, None).await
    }

    /// Checks a numbered write: a repeat is recognised, and its value is the recorded result.
    ///
    /// Another write under the same number is rejected.
    ///
    /// # Errors
    /// As [`claim`].
    pub async fn write<'p>(
        &self,
        tx: &mut Transaction<'_>,
        resource: &str,
        pass: impl Into<Pass<'p>>,
        write: Numbered,
    ) -> Result<Checked<Option<Vec<u8>>>, Fault> {
        let (claims, op) = ([(resource, pass.into())], Op::Write(Some(write.sequence)));
        self.judge(tx, &claims, op, Some(write.digest)).await
    }

    /// Records the result of a numbered write, in the transaction that carried it out.
    ///
    /// # Errors
    /// [`Fault::Argument`] if it is too long, or if this is not the resource's last numbered write.
    pub async fn record(
        &self,
        tx: &mut Transaction<'_>,
        resource: &str,
        token: Token,
        sequence: Sequence,
        result: &[u8],
    ) -> Result<(), Fault> {
        ResourceId::new(resource)?;
        recordable(result, Guard::MAX_RESULT_BYTES)?;
        let arguments = (result, resource, int(token.get()), int(sequence.get()));
        tx.exec_drop(RECORD, arguments).await?;
        let recorded = tx.affected_rows();
        in_transaction(tx)?;
        match recorded {
            1 => Ok(()),
            _ => Err(Fault::Argument(format!(
                "{resource}: the last write there is not number {sequence} of token {token}"
            ))),
        }
    }

    /// See [`claim_all`].
    ///
    /// # Errors
    /// As [`claim_all`].
    pub async fn claim_all(
        &self,
        tx: &mut Transaction<'_>,
        claims: &[(&str, Pass<'_>)],
    ) -> Result<Checked<()>, Fault> {
        let checked = self.judge(tx, claims, Op::Claim, None).await?;
        Ok(checked.map(drop))
    }

    async fn judge(
        &self,
        tx: &mut Transaction<'_>,
        claims: &[(&str, Pass<'_>)],
        op: Op,
        digest: Option<u64>,
    ) -> Result<Checked<Option<Vec<u8>>>, Fault> {
        let claims = in_name_order(claims)?;
        let names: Vec<&str> = claims.keys().copied().collect();
        let (rows, mut shown) = take(tx, &names).await?;
        let (decided, checked) = decide_all(self.rule, &claims, &rows, op, digest)?;
        let mut changed = false;
        for (resource, pass) in &claims {
            changed |= shown.set(resource, checked.is_admitted().then_some(pass.token));
        }
        for one in &decided {
            store(tx, one.resource, &one.row).await?;
        }
        if changed {
            shown.send(tx).await?;
        }
        Ok(checked)
    }
}

/// Locks the rows of these resources until the transaction ends, and creates missing rows.
pub(super) async fn take(
    tx: &mut Transaction<'_>,
    names: &[&str],
) -> Result<(BTreeMap<String, GuardRow>, ShownTokens), Fault> {
    let mut rows = BTreeMap::new();
    let mut shown = ShownTokens::default();
    let Some(more) = names.len().checked_sub(1) else {
        return Ok((rows, shown));
    };
    let arguments = || Params::Positional(names.iter().map(Value::from).collect());
    let lock = format!("{LOCK}{}{LOCK_END}", LOCK_MORE.repeat(more));
    tx.exec_drop(lock, arguments()).await?;
    in_transaction(tx)?;
    let read = format!("{READ}{}{READ_END}", READ_MORE.repeat(more));
    for mut row in tx.exec::<Row, _, _>(read, arguments()).await? {
        let resource = text(&mut row, 0).unwrap_or_default();
        if number(&mut row, 8) != number(&mut row, 9) {
            return Err(Fault::ReadBeforeClaim(resource));
        }
        shown = ShownTokens::parse(&text(&mut row, 10).unwrap_or_default());
        rows.insert(resource, guard_row(&mut row));
    }
    Ok((rows, shown))
}

/// Parses the columns after the resource's.
pub(super) fn guard_row(row: &mut Row) -> GuardRow {
    GuardRow {
        authority: text(row, 1),
        lock: text(row, 2),
        token: number(row, 3).ok(),
        written: number(row, 4) == Ok(1),
        sequence: number(row, 5).ok(),
        recorded: Recorded {
            digest: number(row, 6).ok(),
            result: bytes(row, 7),
        },
    }
}

/// Increments the row's version in any case, so that a transaction with an older snapshot notices the claim.
async fn store(tx: &mut Transaction<'_>, resource: &str, row: &GuardRow) -> Result<(), Fault> {
    let arguments = (
        row.authority.as_deref(),
        row.lock.as_deref(),
        row.token,
        i64::from(row.written),
        row.sequence,
        row.recorded.digest,
        row.recorded.result.as_deref(),
        resource,
    );
    tx.exec_drop(STORE, arguments).await?;
    match tx.affected_rows() {
        1 => Ok(()),
        _ => Err(Fault::Argument(format!(
            "{resource}: the guard row could not be written"
        ))),
    }
}
