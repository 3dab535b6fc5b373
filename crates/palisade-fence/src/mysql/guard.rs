//! The guard row: claim it, check it, and commit the effect with it.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Params, Row, Transaction, Value};
use palisade_core::fence::{Mode, Op, Pass, Reject, Rule, Sequence};
use palisade_core::{AuthorityId, LockName, Token};

use super::rows::{bytes, int, number, text};
use super::session::in_transaction;
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::guard_row::{GuardRow, Numbered, Recorded};
use crate::name::ResourceId;
use crate::sql::{StatementError, in_name_order, recordable};

// The procedures of sql/mysql/0004_procedures.sql.

/// Resource, token, authority, lock, whether it is a write, sequence, digest, strict, max_jump.
const JUDGE: &str = "CALL palisade_judge(?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// The authority or lock to which the resource of the last rejection is bound.
const BOUND: &str = "SELECT @palisade_bound";

const FORGET: &str = "CALL palisade_forget(?)";

/// Parameters: resource, token, sequence, result. A plain statement would need the right to change the table, and could
/// then lower a fence.
const RECORD: &str = "CALL palisade_record_for(?, ?, ?, ?)";

/// The SQLSTATE for a result without its write.
const NOT_CLAIMED: &str = "PF004";

/// Claims a resource: from the commit on, no older token is admitted there. It must be the first statement of
/// a transaction, before its first read (rule F2).
///
/// The raise is durable when the transaction commits, together with the transaction's other writes. It takes
/// a token or a whole [`Pass`]. It costs one round trip: the procedure `palisade_judge` of the database.
///
/// # Errors
/// [`Error::Rejected`] if a newer holder has claimed the resource: **roll back**, and write nothing more.
/// [`Error::ReadBeforeClaim`]; errors of the database.
pub async fn claim<'p>(
    tx: &mut Transaction<'_>,
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
pub async fn claim_all(
    tx: &mut Transaction<'_>,
    claims: &[(&str, Pass<'_>)],
) -> Result<Admitted<()>> {
    Guard::CLAIM.claim_all(tx, claims).await
}

/// Guard rows under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The rule by which they decide: [`Mode::Claim`] or [`Mode::Strict`]. The database's procedures know no other
    /// mode.
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
    pub async fn check<'p>(
        &self,
        tx: &mut Transaction<'_>,
        resource: &str,
        pass: impl Into<Pass<'p>>,
        op: Op,
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        self.judge(tx, resource, pass.into(), op, None).await
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
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        let op = Op::Write(Some(write.sequence));
        self.judge(tx, resource, pass.into(), op, Some(write.digest))
            .await
    }

    /// Records the result of a numbered write, in the transaction of that write.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is too long, or if this is not the resource's last numbered write.
    pub async fn record(
        &self,
        tx: &mut Transaction<'_>,
        resource: &str,
        token: Token,
        sequence: Sequence,
        result: &[u8],
    ) -> Result<()> {
        ResourceId::new(resource)?;
        recordable(result, Guard::MAX_RESULT_BYTES)?;
        let arguments = (resource, int(token.get()), int(sequence.get()), result);
        match tx
            .exec_drop(RECORD, arguments)
            .await
            .map_err(StatementError::from)
        {
            Ok(()) => in_transaction(tx),
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
    pub async fn claim_all(
        &self,
        tx: &mut Transaction<'_>,
        claims: &[(&str, Pass<'_>)],
    ) -> Result<Admitted<()>> {
        let claims = in_name_order(claims)?;
        let several = claims.len() > 1;
        if several {
            tx.query_drop("SAVEPOINT palisade_claims").await?;
        }
        let mut admitted = Vec::new();
        for (&resource, &pass) in &claims {
            match self.judge(tx, resource, pass, Op::Claim, None).await {
                Ok(_) => admitted.push(resource),
                Err(error @ Error::Rejected(_)) => {
                    if several {
                        tx.query_drop("ROLLBACK TO SAVEPOINT palisade_claims")
                            .await?;
                    }
                    // Rolling back to a savepoint does not restore session variables: the connection would still
                    // present these tokens.
                    for resource in admitted {
                        tx.exec_drop(FORGET, (resource,)).await?;
                    }
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        let last = claims.values().next_back();
        Ok(Admitted::new((), last.map(|pass| pass.token)))
    }

    async fn judge(
        &self,
        tx: &mut Transaction<'_>,
        resource: &str,
        pass: Pass<'_>,
        op: Op,
        digest: Option<u64>,
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        ResourceId::new(resource)?;
        let strict = match self.rule.mode {
            Mode::Claim => false,
            Mode::Strict => true,
            Mode::Textbook | Mode::DangerUnfenced => {
                let text = "the procedures in the database have the modes claim and strict only";
                return Err(Error::Argument(text.to_owned()));
            }
        };
        let (is_write, sequence) = match op {
            Op::Write(sequence) => (true, sequence),
            Op::Claim | Op::Read => (false, None),
        };
        let arguments: Vec<Value> = vec![
            resource.into(),
            int(pass.token.get()).into(),
            pass.authority.map(AuthorityId::as_str).into(),
            pass.lock.map(LockName::as_str).into(),
            is_write.into(),
            sequence.map(|number| int(number.get())).into(),
            digest.map(u64::cast_signed).into(),
            strict.into(),
            self.rule.max_jump.map(int).into(),
        ];
        match tx.exec_first(JUDGE, Params::Positional(arguments)).await {
            Ok(row) => Ok(admitted(pass.token, row)),
            Err(error) => match whole(tx, resource, error.into()).await {
                StatementError::Rejected { reject, .. } => {
                    let pass = pass.doing(op.word());
                    Err(audit::reject(resource, Some(pass), reject))
                }
                StatementError::Error(error) => Err(error),
            },
        }
    }
}

/// Reads the answer to a write; other operations have none.
fn admitted(token: Token, row: Option<Row>) -> Admitted<Option<Vec<u8>>> {
    let mut row = row;
    let repeat = row.as_mut().is_some_and(|row| number(row, 0) == Ok(1));
    Admitted {
        value: row
            .filter(|_| repeat)
            .and_then(|mut row| bytes(&mut row, 1)),
        highest: Some(token),
        repeat,
    }
}

/// Completes the server's answer, because a message is too short for the full name to which the resource is bound.
async fn whole(tx: &mut Transaction<'_>, resource: &str, answer: StatementError) -> StatementError {
    let state = match &answer {
        StatementError::Error(error) => error.state().unwrap_or_default(),
        StatementError::Rejected { .. } => return answer,
    };
    let reject = match state {
        "PF005" | "PF006" => {
            let is_lock = state == "PF006";
            let bound: Option<String> = match tx.query_first(BOUND).await {
                Ok(bound) => bound,
                Err(error) => return error.into(),
            };
            let bound = bound.unwrap_or_default();
            if is_lock {
                LockName::new(&bound)
                    .map(|bound| Reject::WrongLock { bound })
                    .ok()
            } else {
                AuthorityId::new(&bound)
                    .map(|bound| Reject::WrongAuthority { bound })
                    .ok()
            }
        }
        "PF012" => return StatementError::Error(Error::ReadBeforeClaim(resource.to_owned())),
        "PF013" => return StatementError::Error(Error::NoTransaction),
        _ => None,
    };
    match reject {
        Some(reject) => StatementError::Rejected {
            resource: None,
            reject,
        },
        None => answer,
    }
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
