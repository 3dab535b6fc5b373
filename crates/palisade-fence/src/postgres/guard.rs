//! The guard row: claim it, check it, and commit the effect with it.

use palisade_core::Token;
use palisade_core::fence::{Mode, Op, Pass, Rule, Sequence};

use super::session::{Arg, Row, Session};
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::guard_row::{GuardRow, Numbered, Recorded, bigint};
use crate::name::ResourceId;
use crate::sql::{StatementError, in_name_order, recordable};

// The functions of sql/postgres/0004_functions.sql. Arguments: resource, token, authority, lock, strict, max_jump.

const CLAIM: &str = "SELECT palisade_claim($1, $2, $3, $4, $5 <> 0, $6)";

/// Claims in name order, as the lists are sorted, so that no two transactions deadlock.
const CLAIM_ALL: &str =
    "SELECT palisade_claim(c.resource, c.token::bigint, c.authority, c.lock, $5 <> 0, $6)
FROM unnest($1, $2, $3, $4) AS c (resource, token, authority, lock)";

const CHECK: &str = "SELECT palisade_check($1, $2, $3, $4, $5 <> 0, $6)";

const WRITE: &str =
    "SELECT repeated::int::bigint, result FROM palisade_write($1, $2, $7, $8, $3, $4, $5 <> 0, $6)";

const RECORD: &str = "SELECT palisade_record($1, $2, $3, $4)::text";

/// The SQLSTATE for a result without its write.
const NOT_CLAIMED: &str = "PF004";

/// Claims a resource: from the commit on, no older token is admitted there. It must be the first statement of
/// a transaction, before its first read (rule F2).
///
/// The raise is durable when the transaction commits, together with the transaction's other writes. It takes
/// a token or a whole [`Pass`]. It costs one round trip: the function `palisade_claim` of the database.
///
/// # Errors
/// [`Error::Rejected`] if a newer holder has claimed the resource. The database has then aborted the transaction: **roll
/// back**, and write nothing more. Errors of the database.
pub async fn claim<'p, S: Session>(
    tx: &mut S,
    resource: &str,
    pass: impl Into<Pass<'p>>,
) -> Result<Admitted<()>> {
    let claimed = Guard::CLAIM.check(tx, resource, pass, Op::Claim).await?;
    Ok(claimed.map(drop))
}

/// Claims several resources at once, in name order: all are admitted or none is raised.
///
/// # Errors
/// As [`claim`]; [`Error::Argument`] for a resource that is named twice.
pub async fn claim_all<S: Session>(
    tx: &mut S,
    claims: &[(&str, Pass<'_>)],
) -> Result<Admitted<()>> {
    Guard::CLAIM.claim_all(tx, claims).await
}

/// Guard rows under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The rule by which they decide: [`Mode::Claim`] or [`Mode::Strict`]. The database's functions know no other mode.
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
    pub async fn check<'p, S: Session>(
        &self,
        tx: &mut S,
        resource: &str,
        pass: impl Into<Pass<'p>>,
        op: Op,
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        let pass = pass.into().doing(op.word());
        let admitted = match op {
            Op::Claim => self.run(tx, CLAIM, resource, pass, &[]).await?,
            Op::Read => self.run(tx, CHECK, resource, pass, &[]).await?,
            Op::Write(number) => return self.writes(tx, resource, pass, number, None).await,
        };
        Ok(admitted.map(|_| None))
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
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        let (number, digest) = (Some(write.sequence), Some(write.digest));
        let pass = pass.into().doing("write");
        self.writes(tx, resource, pass, number, digest).await
    }

    /// Records the result of a numbered write, in the transaction of that write under this token.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is too long, or if this is not the transaction's last numbered write there.
    pub async fn record<S: Session>(
        &self,
        tx: &mut S,
        resource: &str,
        token: Token,
        sequence: Sequence,
        result: &[u8],
    ) -> Result<()> {
        ResourceId::new(resource)?;
        recordable(result, Guard::MAX_RESULT_BYTES)?;
        let arguments = [
            Arg::Text(Some(resource)),
            int(sequence.get()),
            Arg::Bytes(Some(result)),
            int(token.get()),
        ];
        match tx.run(RECORD, &arguments).await {
            Ok(_) => Ok(()),
            Err(StatementError::Error(error)) if error.state() == Some(NOT_CLAIMED) => {
                Err(Error::Argument(format!(
                    "{resource}: the last write there is not number {sequence} of token {token}"
                )))
            }
            Err(answer) => Err(answer.into()),
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
    ) -> Result<Admitted<()>> {
        let claims = in_name_order(claims)?;
        let texts =
            |text: fn(&Pass<'_>) -> Option<String>| Arg::Texts(claims.values().map(text).collect());
        let [strict, bound] = self.rule()?;
        let arguments = [
            Arg::Texts(claims.keys().map(|name| Some((*name).to_owned())).collect()),
            texts(|pass| Some(pass.token.to_string())),
            texts(|pass| pass.authority.map(ToString::to_string)),
            texts(|pass| pass.lock.map(ToString::to_string)),
            strict,
            bound,
        ];
        match tx.run(CLAIM_ALL, &arguments).await {
            Ok(_) => {
                let last = claims.values().next_back();
                Ok(Admitted::new((), last.map(|pass| pass.token)))
            }
            Err(StatementError::Rejected { resource, reject }) => {
                let resource = resource.unwrap_or_default();
                let pass = claims.get(resource.as_str());
                let pass = pass.map(|pass| pass.doing("claim"));
                Err(audit::reject(&resource, pass, reject))
            }
            Err(StatementError::Error(error)) => Err(error),
        }
    }

    async fn writes<S: Session>(
        &self,
        tx: &mut S,
        resource: &str,
        pass: Pass<'_>,
        number: Option<Sequence>,
        digest: Option<u64>,
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        let write = [
            Arg::Int(number.map(|number| bigint(number.get()))),
            Arg::Int(digest.map(u64::cast_signed)),
        ];
        let mut rows = self.run(tx, WRITE, resource, pass, &write).await?.value;
        let row = rows.first_mut();
        let repeat = row.as_ref().is_some_and(|row| row.int(0) == Some(1));
        Ok(Admitted {
            value: row.and_then(|row| row.bytes(1)),
            highest: Some(pass.token),
            repeat,
        })
    }

    /// Calls a function with the common arguments, then these.
    async fn run<S: Session>(
        &self,
        tx: &mut S,
        sql: &str,
        resource: &str,
        pass: Pass<'_>,
        more: &[Arg<'_>],
    ) -> Result<Admitted<Vec<Row>>> {
        ResourceId::new(resource)?;
        let [strict, bound] = self.rule()?;
        let mut arguments = vec![
            Arg::Text(Some(resource)),
            int(pass.token.get()),
            Arg::Text(pass.authority.map(|id| id.as_str())),
            Arg::Text(pass.lock.map(|name| name.as_str())),
            strict,
            bound,
        ];
        arguments.extend_from_slice(more);
        match tx.run(sql, &arguments).await {
            Ok(rows) => Ok(Admitted::new(rows, Some(pass.token))),
            Err(StatementError::Rejected { reject, .. }) => {
                Err(audit::reject(resource, Some(pass), reject))
            }
            Err(StatementError::Error(error)) => Err(error),
        }
    }

    /// The arguments `strict` and `max_jump`.
    pub(super) fn rule(&self) -> Result<[Arg<'static>; 2]> {
        let strict = match self.rule.mode {
            Mode::Claim => 0,
            Mode::Strict => 1,
            Mode::Textbook | Mode::DangerUnfenced => {
                let text = "the functions in the database have the modes claim and strict only";
                return Err(Error::Argument(text.to_owned()));
            }
        };
        let bound = Arg::Int(self.rule.max_jump.map(bigint));
        Ok([Arg::Int(Some(strict)), bound])
    }
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

fn int(number: u64) -> Arg<'static> {
    Arg::Int(Some(bigint(number)))
}
