//! The guard row: claim it, check it, and commit the effect with it.

use std::collections::BTreeMap;

use palisade_core::Token;
use palisade_core::fence::{Op, Pass, Rule, Sequence};

use super::session::{Arg, Row, Session};
use crate::checked::Checked;
use crate::guard_row::{GuardRow, Numbered, Recorded};
use crate::sql::{Fault, decide_all, in_name_order, recordable};

/// Locks the rows in name order, so that no two transactions wait for each other; returns none unless all
/// exist. It **writes** them: see the module's section on isolation. The setting is for the trigger.
const TAKE: &str = "WITH claims AS MATERIALIZED (
    SELECT resource FROM palisade_fence WHERE resource = ANY($1)
        AND (SELECT count(*) FROM palisade_fence WHERE resource = ANY($1)) = cardinality($1)
    ORDER BY resource FOR UPDATE)
UPDATE palisade_fence AS g SET updated_at = clock_timestamp() FROM claims WHERE g.resource = claims.resource
RETURNING g.resource::text, g.authority::text, g.lock::text, g.token, g.written::int::bigint, g.sequence,
    g.digest, g.result, set_config('palisade.tokens',
        (coalesce(nullif(current_setting('palisade.tokens', true), ''), '{}')::jsonb
            || jsonb_object($1, $2))::text, true)";

const CREATE: &str = "INSERT INTO palisade_fence (resource)
SELECT name FROM unnest($1) AS name ORDER BY name COLLATE \"C\" ON CONFLICT (resource) DO NOTHING";

const STORE: &str =
    "UPDATE palisade_fence SET authority = $2, lock = $3, token = $4, written = $5 <> 0,
    sequence = $6, digest = $7, result = $8, updated_at = clock_timestamp()
WHERE resource = $1 RETURNING 1::bigint";

const RECORD: &str = "UPDATE palisade_fence SET result = $4, updated_at = clock_timestamp()
WHERE resource = $1 AND token = $2 AND sequence = $3 RETURNING 1::bigint";

const FORGET: &str = "SELECT set_config('palisade.tokens', '', true)";

/// Claims a resource: from the commit on, no older token is admitted there. It must be the first statement of
/// a transaction, before its first read (rule F2).
///
/// The raise is durable when the transaction commits, together with the transaction's other writes. It takes
/// a token or a whole [`Pass`]. It costs one round trip, and a second one when it raises.
///
/// If a newer holder has claimed the resource, the answer is [`Checked::Rejected`]: **roll back**, and write
/// nothing more.
///
/// # Errors
/// Faults of the database.
pub async fn claim<'p, S: Session>(
    tx: &mut S,
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
pub async fn claim_all<S: Session>(
    tx: &mut S,
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
    pub async fn check<'p, S: Session>(
        &self,
        tx: &mut S,
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
    pub async fn write<'p, S: Session>(
        &self,
        tx: &mut S,
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
    pub async fn record<S: Session>(
        &self,
        tx: &mut S,
        resource: &str,
        token: Token,
        sequence: Sequence,
        result: &[u8],
    ) -> Result<(), Fault> {
        recordable(result, Guard::MAX_RESULT_BYTES)?;
        let arguments = [
            Arg::Text(Some(resource)),
            int(token.get()),
            int(sequence.get()),
            Arg::Bytes(Some(result)),
        ];
        match tx.run(RECORD, &arguments).await?.len() {
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
    pub async fn claim_all<S: Session>(
        &self,
        tx: &mut S,
        claims: &[(&str, Pass<'_>)],
    ) -> Result<Checked<()>, Fault> {
        let checked = self.judge(tx, claims, Op::Claim, None).await?;
        Ok(checked.map(drop))
    }

    async fn judge<S: Session>(
        &self,
        tx: &mut S,
        claims: &[(&str, Pass<'_>)],
        op: Op,
        digest: Option<u64>,
    ) -> Result<Checked<Option<Vec<u8>>>, Fault> {
        let claims = in_name_order(claims)?;
        let rows = take(tx, &claims).await?;
        let (decided, checked) = decide_all(self.rule, &claims, &rows, op, digest)?;
        for one in decided.iter().filter(|one| one.changed) {
            store(tx, one.resource, &one.row).await?;
        }
        if !checked.is_admitted() {
            tx.run(FORGET, &[]).await?;
        }
        Ok(checked)
    }
}

/// Locks the rows of these resources until the transaction ends, and creates missing rows.
async fn take<S: Session>(
    tx: &mut S,
    claims: &BTreeMap<&str, Pass<'_>>,
) -> Result<BTreeMap<String, GuardRow>, Fault> {
    let names: Vec<String> = claims.keys().map(|name| (*name).to_owned()).collect();
    let tokens = claims.values().map(|pass| pass.token.to_string()).collect();
    let arguments = [Arg::Texts(names.clone()), Arg::Texts(tokens)];
    let mut rows = tx.run(TAKE, &arguments).await?;
    if rows.len() < claims.len() {
        tx.run(CREATE, &[Arg::Texts(names)]).await?;
        rows = tx.run(TAKE, &arguments).await?;
    }
    if rows.len() < claims.len() {
        let text = "a guard row vanished: is row level security hiding it?";
        return Err(Fault::Argument(text.to_owned()));
    }
    Ok(rows.into_iter().filter_map(named).collect())
}

fn named(mut row: Row) -> Option<(String, GuardRow)> {
    Some((row.text(0)?, guard_row(&mut row)))
}

/// Parses the columns after the resource's.
pub(super) fn guard_row(row: &mut Row) -> GuardRow {
    GuardRow {
        authority: row.text(1),
        lock: row.text(2),
        token: row.int(3),
        written: row.int(4) == Some(1),
        sequence: row.int(5),
        recorded: Recorded {
            digest: row.int(6),
            result: row.bytes(7),
        },
    }
}

async fn store<S: Session>(tx: &mut S, resource: &str, row: &GuardRow) -> Result<(), Fault> {
    let arguments = [
        Arg::Text(Some(resource)),
        Arg::Text(row.authority.as_deref()),
        Arg::Text(row.lock.as_deref()),
        Arg::Int(row.token),
        Arg::Int(Some(i64::from(row.written))),
        Arg::Int(row.sequence),
        Arg::Int(row.recorded.digest),
        Arg::Bytes(row.recorded.result.as_deref()),
    ];
    match tx.run(STORE, &arguments).await?.len() {
        1 => Ok(()),
        _ => Err(Fault::Argument(format!(
            "{resource}: the guard row could not be written"
        ))),
    }
}

fn int(number: u64) -> Arg<'static> {
    Arg::Int(Some(crate::guard_row::bigint(number)))
}
