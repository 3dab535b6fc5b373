//! Conversion of a pipeline's answers into the outcomes of a [`LockService`](crate::service::LockService).
//!
//! [`InProcess`](crate::in_process::InProcess) and the simulator use it.

use palisade_core::{Outcome, QueueBound};
use palisade_pipeline::{Answer, Failure};

use crate::fault::Fault;
use crate::service::{Acquired, Proclamation, Released, Renewal, Reopened, Resized, Revocation};

/// The outcome of an operation.
///
/// # Errors
/// A fault, by what the caller may do next: [`Fault::Invalid`] for a request that the authority refused as wrong.
pub fn outcome(answer: Answer) -> Result<Outcome, Fault> {
    match answer {
        Answer::Outcome(Outcome::Invalid(invalid)) => Err(invalid.into()),
        Answer::Outcome(outcome) => Ok(outcome),
        other => Err(refused(other)),
    }
}

/// Returns the answer to an acquire.
///
/// # Errors
/// As [`outcome`].
pub fn acquired(answer: Answer) -> Result<Acquired, Fault> {
    Ok(match outcome(answer)? {
        Outcome::Granted(granted) => Acquired::Granted(granted),
        Outcome::Held(holder) => Acquired::Held(holder),
        Outcome::Behind(ahead) => Acquired::Behind(ahead),
        Outcome::Delayed(delayed) => Acquired::Delayed(delayed),
        Outcome::QueueFull(bound) => Acquired::QueueFull(queue_full(bound)),
        Outcome::TooManyLocks { max } => Acquired::TooManyLocks(
            format!("{max} locks are held, the largest number allowed").into(),
        ),
        Outcome::Ended { how, .. } => Acquired::Over(Some(how)),
        Outcome::NotHeld => Acquired::Over(None),
        Outcome::Abandoned => Acquired::Abandoned,
        Outcome::TokensExhausted => Acquired::TokensExhausted,
        other => return Err(misplaced(&other)),
    })
}

/// Returns the answer to a renewal.
///
/// # Errors
/// As [`outcome`].
pub fn renewed(answer: Answer) -> Result<Renewal, Fault> {
    Ok(match outcome(answer)? {
        Outcome::Renewed(renewed) => Renewal::Renewed(renewed),
        Outcome::Ended { how, .. } => Renewal::Ended(how),
        Outcome::NotHeld => Renewal::NotHeld,
        Outcome::Stale { highest, .. } => Renewal::Stale { highest },
        other => return Err(misplaced(&other)),
    })
}

/// Returns the answer to a change of a grant's metadata.
///
/// # Errors
/// As [`outcome`].
pub fn proclaimed(answer: Answer) -> Result<Proclamation, Fault> {
    Ok(match outcome(answer)? {
        Outcome::Proclaimed { revision, .. } => Proclamation::Proclaimed { revision },
        Outcome::Ended { how, .. } => Proclamation::Ended(how),
        Outcome::NotHeld => Proclamation::NotHeld,
        Outcome::Stale { highest, .. } => Proclamation::Stale { highest },
        other => return Err(misplaced(&other)),
    })
}

/// Returns the answer to a release.
///
/// # Errors
/// As [`outcome`].
pub fn released(answer: Answer) -> Result<Released, Fault> {
    Ok(match outcome(answer)? {
        Outcome::Released { delayed, .. } => Released::new(delayed),
        Outcome::Ended { how, .. } => Released::Ended(how),
        Outcome::NotHeld => Released::NotHeld,
        Outcome::Stale { highest, .. } => Released::Stale { highest },
        other => return Err(misplaced(&other)),
    })
}

/// Returns the answer to a revocation.
///
/// # Errors
/// As [`outcome`].
pub fn revoked(answer: Answer) -> Result<Revocation, Fault> {
    Ok(match outcome(answer)? {
        Outcome::Revoked { .. } => Revocation::Revoked,
        Outcome::Ended { how, .. } => Revocation::Ended(how),
        Outcome::NotHeld => Revocation::NotHeld,
        Outcome::Stale { highest, .. } => Revocation::Stale { highest },
        other => return Err(misplaced(&other)),
    })
}

/// Returns the answer to the opening of a closed lock.
///
/// # Errors
/// As [`outcome`].
pub fn reopened(answer: Answer) -> Result<Reopened, Fault> {
    Ok(match outcome(answer)? {
        Outcome::Done => Reopened::Reopened,
        Outcome::NotHeld => Reopened::NotClosed,
        other => return Err(misplaced(&other)),
    })
}

/// Returns the answer to a change of a semaphore's number of permits.
///
/// # Errors
/// As [`outcome`].
pub fn resized(answer: Answer) -> Result<Resized, Fault> {
    Ok(match outcome(answer)? {
        Outcome::Done => Resized::Resized,
        Outcome::NotHeld => Resized::NotInUse,
        other => return Err(misplaced(&other)),
    })
}

/// Converts an answer that does not match the question into a fault, by what the caller may do next.
pub(crate) fn refused(answer: Answer) -> Fault {
    match answer {
        Answer::Failed(Failure::Unavailable(why)) => Fault::unavailable(why),
        Answer::Failed(Failure::NotLeader { leader }) => {
            let leader = leader.as_deref().unwrap_or("not known");
            Fault::unavailable(format!("this node does not lead; the leader is {leader}"))
        }
        Answer::Failed(Failure::UnknownOutcome(why)) => Fault::unknown_outcome(why),
        Answer::Failed(Failure::Refused(why)) => Fault::unsupported(format!("do this: {why}")),
        Answer::Outcome(outcome) => misplaced(&outcome),
        _ => Fault::unknown_outcome("the authority's answer does not match the question"),
    }
}

fn misplaced(outcome: &Outcome) -> Fault {
    Fault::unknown_outcome(format!(
        "the authority's answer does not match the question: {outcome:?}"
    ))
}

fn queue_full(bound: QueueBound) -> Box<str> {
    use QueueBound::{Client, Lock};
    match bound {
        Lock { max } => format!("{max} requests wait for this lock, the largest number allowed"),
        Client { max } => format!("{max} requests of this client wait, the largest number allowed"),
    }
    .into()
}
