//! The steps of both forms: decide on the state that was read, write if it is unchanged, and find out the
//! outcome.

use std::future::Future;

use palisade_core::fence::{Op, Pass, Reject, Rule, Verdict};

use super::location::{Loaded, Location, PutOutcome};
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::guard_row::Numbered;
use crate::stamped::{ATTEMPTS, StampOutcome, Stamped, back_off, contended};

/// An operation at a fence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation<'a> {
    /// `None`: a write by code without a token.
    pub(super) pass: Option<Pass<'a>>,
    pub(super) op: Op,
    pub(super) digest: Option<u64>,
}

impl<'a> Operation<'a> {
    pub(super) fn claim(pass: Pass<'a>) -> Operation<'a> {
        Operation {
            pass: Some(pass),
            op: Op::Claim,
            digest: None,
        }
    }

    pub(super) fn read(pass: Pass<'a>) -> Operation<'a> {
        Operation {
            op: Op::Read,
            ..Operation::claim(pass)
        }
    }

    pub(super) fn write(pass: Option<Pass<'a>>, number: Option<Numbered>) -> Operation<'a> {
        Operation {
            pass,
            op: Op::Write(number.map(|number| number.sequence)),
            digest: number.map(|number| number.digest),
        }
    }
}

/// The effect of an operation, together with the raise of the fence.
pub(super) trait Effect: Sync {
    /// Writes the fence and the effect, if the fence is still the one that was read.
    fn put(&self, seen: &Loaded, next: &Stamped)
    -> impl Future<Output = Result<PutOutcome>> + Send;
}

/// Carries an operation out; `effect` is not called if there is neither a raise nor a write. Returns the
/// state that was read.
pub(super) async fn carry_out(
    location: &Location,
    rule: Rule,
    operation: Operation<'_>,
    effect: &impl Effect,
) -> Result<Admitted<Loaded>> {
    let mut seen = load(location).await?;
    let mut pending: Option<(String, Stamped)> = None;
    for attempt in 0..ATTEMPTS {
        back_off(attempt).await?;
        let fence = seen.fence.clone().unwrap_or_default();
        let verdict = fence
            .guard
            .decide(rule, operation.pass, operation.op, operation.digest);
        let next = match location.or_damaged(verdict)? {
            Verdict::Reject(reject) => {
                return Err(rejected(location, operation, reject));
            }
            Verdict::Repeat => {
                return Ok(Admitted {
                    highest: location.or_damaged(fence.guard.state())?.highest(),
                    value: seen,
                    repeat: true,
                });
            }
            Verdict::Admit(next) => next,
        };
        let guard = next.as_ref().unwrap_or(&fence.guard);
        let highest = location.or_damaged(guard.state())?.highest();
        if next.is_none() && !matches!(operation.op, Op::Write(_)) {
            return Ok(Admitted::new(seen, highest));
        }
        // While the state that was read is still there, an attempt that seemed to fail may still arrive: only
        // repeating the same attempt settles the outcome.
        let (id, stamped) = match pending.take() {
            Some(same) => same,
            None => {
                let mut stamped = fence.clone();
                stamped.guard = guard.clone();
                (stamped.stamp()?, stamped)
            }
        };
        match effect.put(&seen, &stamped).await? {
            PutOutcome::Done => return Ok(Admitted::new(seen, highest)),
            PutOutcome::Missing => {
                return Err(rejected(location, operation, Reject::Missing));
            }
            PutOutcome::Refused => {}
        }
        let now = load(location).await?;
        if now.is_same(&seen) {
            pending = Some((id, stamped));
            continue;
        }
        let outcome = now.fence.as_ref().map_or(StampOutcome::Unknown, |now| {
            now.outcome(&id, seen.fence.as_ref())
        });
        match outcome {
            StampOutcome::TookEffect => return Ok(Admitted::new(seen, highest)),
            StampOutcome::Unknown => {
                let text = "unknown outcome: the write may have taken effect; repeat it with its sequence number";
                return Err(Error::UnknownOutcome(text.to_owned()));
            }
            StampOutcome::DidNot => seen = now,
        }
    }
    Err(contended())
}

fn rejected(location: &Location, operation: Operation<'_>, reject: Reject) -> Error {
    let pass = operation.pass.map(|pass| pass.doing(operation.op.word()));
    audit::reject(&location.name, pass, reject)
}

async fn load(location: &Location) -> Result<Loaded> {
    let seen = location.load().await?;
    match (&seen.fence, &seen.attributes) {
        (None, Some(_)) => Err(Error::FenceLost(format!(
            "{} has data and no fence: restore it or re-arm it with a floor",
            location.name
        ))),
        _ => Ok(seen),
    }
}
