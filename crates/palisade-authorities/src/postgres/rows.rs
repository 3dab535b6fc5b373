//! Conversion of the results of `setup.sql` into the client's types.

use palisade_core::{
    ClientId, Ending, Holder, LeaseId, LockName, LockView, Renewed, Span, Token, Ttl, WallTime,
};
use tokio_postgres::Row;

use palisade_client::service::{Acquired, Cursor, Page, Released, Renewal, Revocation};
use palisade_client::{Fault, Reason};

/// The answers to one `palisade.acquire`.
pub(super) enum AcquireAnswer {
    Granted(Grant),
    /// The request waits; `first` means that it is first in the queue.
    Queued {
        first: bool,
        holder: Holder,
    },
    Other(Acquired),
}

pub(super) struct Grant {
    pub(super) token: Token,
    /// The remaining time, counted from when the statement was executed.
    pub(super) remaining: Span,
    pub(super) acquired_at: WallTime,
}

pub(super) fn asked(row: &Row) -> Result<AcquireAnswer, Fault> {
    let outcome = text(row, "outcome")?;
    Ok(match outcome {
        "granted" => AcquireAnswer::Granted(Grant {
            token: token(row)?,
            remaining: span(row)?,
            acquired_at: wall(row)?,
        }),
        "queued" => AcquireAnswer::Queued {
            first: row.try_get("o_first").map_err(unexpected)?,
            holder: holder(row)?,
        },
        "held" => AcquireAnswer::Other(Acquired::Held(holder(row)?)),
        "queue_full" => AcquireAnswer::Other(Acquired::QueueFull(
            "1024 requests wait for this lock, the largest number allowed".into(),
        )),
        "tokens_exhausted" => AcquireAnswer::Other(Acquired::TokensExhausted),
        "abandoned" => AcquireAnswer::Other(Acquired::Abandoned),
        over => AcquireAnswer::Other(Acquired::Over(Some(ending(over)?))),
    })
}

pub(super) fn renewal(row: &Row) -> Result<Renewal, Fault> {
    Ok(match text(row, "outcome")? {
        "renewed" => {
            let ttl: i64 = row.try_get("o_ttl_ms").map_err(unexpected)?;
            let ttl = Ttl::from_millis(u64::try_from(ttl).map_err(unexpected)?)?;
            Renewal::Renewed(Renewed {
                token: token(row)?,
                ttl,
                valid_for: ttl.span(),
                near_deadline: false,
                waiters: 0,
            })
        }
        "not_held" => Renewal::NotHeld,
        "stale" => Renewal::Stale {
            highest: token(row)?,
        },
        over => Renewal::Ended(ending(over)?),
    })
}

pub(super) fn released(row: &Row) -> Result<Released, Fault> {
    Ok(match text(row, "outcome")? {
        "done" => Released::Released,
        "not_held" => Released::NotHeld,
        "stale" => Released::Stale {
            highest: token(row)?,
        },
        over => Released::Ended(ending(over)?),
    })
}

pub(super) fn revocation(row: &Row) -> Result<Revocation, Fault> {
    Ok(match text(row, "outcome")? {
        "done" => Revocation::Revoked,
        "not_held" => Revocation::NotHeld,
        "stale" => Revocation::Stale {
            highest: token(row)?,
        },
        over => Revocation::Ended(ending(over)?),
    })
}

pub(super) fn view(row: &Row) -> Result<LockView, Fault> {
    let lock = LockName::new(text(row, "o_lock")?)?;
    let waiters: i64 = row.try_get("o_waiters").map_err(unexpected)?;
    let held = row
        .try_get::<_, Option<i64>>("o_token")
        .map_err(unexpected)?;
    let holder = held.map(|_| holder(row)).transpose()?;
    let metadata: Option<&str> = row.try_get("o_metadata").map_err(unexpected)?;
    Ok(LockView {
        lease: holder.as_ref().map(|holder| LeaseId(holder.token)),
        acquired_at: holder.as_ref().map(|_| wall(row)).transpose()?,
        holder,
        metadata: metadata.map(Box::from),
        waiters: u32::try_from(waiters).unwrap_or(u32::MAX),
        ..LockView::free(lock)
    })
}

pub(super) fn page(found: &[Row], limit: i64) -> Result<Page, Fault> {
    let full = i64::try_from(found.len()).is_ok_and(|found| found >= limit);
    let mut locks = found.iter().map(view).collect::<Result<Vec<_>, _>>()?;
    let next = locks.last().filter(|_| full);
    let next = next.map(|last| Cursor(last.lock.as_str().into()));
    // A lock that was released between the statement's two reads is not held.
    locks.retain(|view| view.holder.is_some());
    Ok(Page { locks, next })
}

fn holder(row: &Row) -> Result<Holder, Fault> {
    Ok(Holder {
        client: ClientId::new(text(row, "o_client")?)?,
        token: token(row)?,
        remaining: span(row)?,
    })
}

fn ending(how: &str) -> Result<Ending, Fault> {
    match how {
        // An abandoned grant counts as released.
        "released" | "abandoned" => Ok(Ending::Released),
        "expired" => Ok(Ending::Expired),
        "revoked" => Ok(Ending::Revoked),
        "superseded" => Ok(Ending::Superseded),
        other => Err(Fault::unknown_outcome(format!(
            "the database's answer does not match the question: {other}"
        ))),
    }
}

fn token(row: &Row) -> Result<Token, Fault> {
    let token: i64 = row.try_get("o_token").map_err(unexpected)?;
    Ok(Token::new(u64::try_from(token).unwrap_or(0))?)
}

fn span(row: &Row) -> Result<Span, Fault> {
    let micros: i64 = row.try_get("o_micros").map_err(unexpected)?;
    let micros = u64::try_from(micros).unwrap_or(0);
    Ok(Span::from_nanos(micros.saturating_mul(1_000)))
}

fn wall(row: &Row) -> Result<WallTime, Fault> {
    let millis: i64 = row.try_get("o_wall_ms").map_err(unexpected)?;
    Ok(WallTime(u64::try_from(millis).unwrap_or(0)))
}

fn text<'a>(row: &'a Row, column: &str) -> Result<&'a str, Fault> {
    row.try_get(column).map_err(unexpected)
}

/// A token has 53 bits.
pub(super) fn number(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// The fault of an answer that `setup.sql` cannot have given.
pub(super) fn unexpected(error: impl std::error::Error + Send + Sync + 'static) -> Fault {
    Fault::unknown_outcome(Reason::new("the lock table gave an unexpected answer").because(error))
}
