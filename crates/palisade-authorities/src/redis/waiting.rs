//! Acquires: the request is repeated until it is granted or the wait is over.

use palisade_core::{Granted, LeaseId, LeaseKey, Span};

use super::Redis;
use super::answer::OPENED;
use crate::notifications::RequestTimes;
use crate::wall_clock::wall;
use palisade_client::Fault;
use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::service::{AcquireRequest, Acquired, Under};

pub(super) async fn acquire(redis: &Redis, request: AcquireRequest) -> Result<Acquired, Fault> {
    redis.pending_locks.begin(request.request, &request.lock);
    let id = request.request;
    let answer = stand(redis, request).await;
    if !matches!(answer, Err(Fault::UnknownOutcome(_))) {
        redis.pending_locks.forget(&id);
    }
    answer
}

async fn stand(redis: &Redis, request: AcquireRequest) -> Result<Acquired, Fault> {
    let called = BootClock.now();
    let Under::New { ttl, .. } = request.under else {
        return Err(Fault::unsupported("put several locks under one lease"));
    };
    let (id, millis) = (request.request.to_hex(), ttl.as_millis().to_string());
    let metadata = request.metadata.as_deref().unwrap_or_default();
    let until = called.after(request.wait.unwrap_or(Span::ZERO));
    let mut waiting = match request.wait {
        Some(_) => Some(redis.listener.listen(request.request).await),
        None => None,
    };
    loop {
        let sent = BootClock.now();
        let channel = if sent < until {
            redis.listener.channel()
        } else {
            ""
        };
        let at = wall();
        let wish = format!(" {} {millis}\n{}\n{metadata}\n", at.0, request.client);
        let asked = [&*id, &wish, &millis, channel];
        let answer = redis
            .run(&redis.scripts.acquire, &request.lock, &asked)
            .await?;
        let look = match answer.how() {
            OPENED | "granted" => {
                redis.replicated().await?;
                // A grant for an earlier request (this is a repeat, or the waiter was not notified) has its
                // own times; the remaining time counts from when this request was sent.
                let (ttl, left, acquired_at) = match answer.how() {
                    OPENED => (ttl, ttl.span(), at),
                    _ => (answer.ttl()?, answer.left(), answer.acquired_at()?),
                };
                let waited = sent.since(called);
                return Ok(Acquired::Granted(Granted {
                    token: answer.token()?,
                    shared: None,
                    slots: palisade_core::Slots::NONE,
                    lease: LeaseId(answer.token()?),
                    key: LeaseKey::from_bytes(*request.request.as_bytes()),
                    ttl,
                    valid_for: waited.plus(left),
                    waited,
                    acquired_at,
                }));
            }
            // An expiry wakes no waiter by itself, so the first waiter asks again when the holder's lease is due.
            "first" => LOOK.min(answer.left().plus(TICK)),
            "queued" => ttl.span(),
            "held" => return Ok(Acquired::Held(answer.holder()?)),
            "full" => return Ok(Acquired::QueueFull(FULL.into())),
            "exhausted" => return Ok(Acquired::TokensExhausted),
            "abandoned" => return Ok(Acquired::Abandoned),
            _ => return Ok(Acquired::Over(Some(answer.ending()?))),
        };
        // A waiter shows that it is alive at a third of its time.
        let next = look.min(Span::from_nanos(ttl.span().as_nanos() / 3));
        let notified = match &mut waiting {
            Some(waiting) => waiting.wait_until(sent.after(next).min(until)).await,
            None => None,
        };
        // The number of replicas that have the grant is known only by asking.
        if let Some(notified) = notified.filter(|_| redis.replicas == 0)
            && let Some(granted) =
                notified.granted(request.request, ttl, RequestTimes { called, sent })
        {
            return Ok(Acquired::Granted(granted));
        }
    }
}

const FULL: &str = "1024 requests wait for this lock, the largest number allowed";

/// How often the first in a queue asks without a notification.
const LOOK: Span = Span::from_millis(1_000);
/// The resolution of the server's clock, which counts in milliseconds.
const TICK: Span = Span::from_millis(1);
