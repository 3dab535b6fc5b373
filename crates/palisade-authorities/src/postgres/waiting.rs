//! Acquires: the request is repeated until it is granted or the wait is over.

use palisade_core::{Granted, LeaseId, LeaseKey, Span};
use tokio_postgres::types::Type;

use super::Postgres;
use super::rows::{self, AcquireAnswer};
use crate::notifications;
use palisade_client::Fault;
use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::service::{AcquireRequest, Acquired, Under};

pub(super) async fn acquire(
    postgres: &Postgres,
    request: AcquireRequest,
) -> Result<Acquired, Fault> {
    let called = BootClock.now();
    let Under::New { ttl, .. } = request.under else {
        return Err(Fault::unsupported("put several locks under one lease"));
    };
    let until = called.after(request.wait.unwrap_or(Span::ZERO));
    let mut waiting = match request.wait {
        Some(_) => Some(postgres.listener.listen(request.request).await),
        None => None,
    };
    loop {
        let sent = BootClock.now();
        let wait = sent < until;
        let row = ask(postgres, &request, i64::from(ttl.as_millis()), wait).await?;
        match rows::asked(&row)? {
            AcquireAnswer::Granted(grant) => {
                // The rest of the wait counts from when this statement was sent.
                let waited = sent.since(called);
                return Ok(Acquired::Granted(Granted {
                    token: grant.token,
                    shared: None,
                    slots: palisade_core::Slots::NONE,
                    lease: LeaseId(grant.token),
                    key: LeaseKey::from_bytes(*request.request.as_bytes()),
                    ttl,
                    valid_for: waited.plus(grant.remaining),
                    waited,
                    acquired_at: grant.acquired_at,
                }));
            }
            AcquireAnswer::Queued { first, holder } => {
                // A waiter shows that it is alive at a third of its time. The first in the queue also asks
                // when the holder's lease is due, and every second in case a notification is lost.
                let third = Span::from_nanos(ttl.span().as_nanos() / 3);
                let next = if first {
                    third.min(LOOK).min(holder.remaining.plus(TICK))
                } else {
                    third
                };
                let notified = match &mut waiting {
                    Some(waiting) => waiting.wait_until(sent.after(next).min(until)).await,
                    None => None,
                };
                let asked = notifications::RequestTimes { called, sent };
                if let Some(notified) = notified
                    && let Some(granted) = notified.granted(request.request, ttl, asked)
                {
                    return Ok(Acquired::Granted(granted));
                }
            }
            AcquireAnswer::Other(acquired) => return Ok(acquired),
        }
    }
}

async fn ask(
    postgres: &Postgres,
    request: &AcquireRequest,
    ttl_ms: i64,
    wait: bool,
) -> Result<tokio_postgres::Row, Fault> {
    let id = request.request.to_hex();
    let metadata = request.metadata.as_deref();
    postgres
        .pool
        .one(
            "SELECT * FROM palisade.acquire($1::uuid, $2, $3, $4, $5, $6, $7)",
            &[
                (&id, Type::TEXT),
                (&request.lock.as_str(), Type::TEXT),
                (&request.client.as_str(), Type::TEXT),
                (&ttl_ms, Type::INT8),
                (&metadata, Type::TEXT),
                (&wait, Type::BOOL),
                (&postgres.listener.channel(), Type::TEXT),
            ],
        )
        .await
}

/// How often the first in a queue asks without a notification.
const LOOK: Span = Span::from_millis(1_000);
/// The resolution of the database's clock, which counts in microseconds, rounded up.
const TICK: Span = Span::from_millis(1);
