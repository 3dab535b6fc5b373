//! Asking for a lock, and asking again until it is granted or the wait is over.

use palisade_core::{Granted, LeaseId, LeaseKey, Span};

use super::Redis;
use super::answer::OPENED;
use crate::clock::{BootClock, Clock as _, wall};
use crate::ears::Asked;
use crate::fault::Fault;
use crate::service::{AcquireRequest, Acquired, Under};

pub(super) async fn acquire(redis: &Redis, request: AcquireRequest) -> Result<Acquired, Fault> {
    redis.underway.begin(request.request, &request.lock);
    let id = request.request;
    let answer = stand(redis, request).await;
    if !matches!(answer, Err(Fault::UnknownOutcome(_))) {
        redis.underway.forget(&id);
    }
    answer
}

async fn stand(redis: &Redis, request: AcquireRequest) -> Result<Acquired, Fault> {
    let called = BootClock.now();
    let Under::New(ttl) = request.under else {
        return Err(Fault::unsupported("put several locks under one lease"));
    };
    let (id, millis) = (request.request.to_hex(), ttl.as_millis().to_string());
    let metadata = request.metadata.as_deref().unwrap_or_default();
    let until = called.after(request.wait.unwrap_or(Span::ZERO));
    let mut ear = match request.wait {
        Some(_) => Some(redis.listener.listen(request.request).await),
        None => None,
    };
    loop {
        let sent = BootClock.now();
        let channel = match sent < until {
            true => redis.listener.channel(),
            false => "",
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
                // A grant of an earlier question (this is a repeat, or a waiter that was not told) comes with
                // its own times; what is left counts from when the question was sent.
                let (ttl, left, acquired_at) = match answer.how() {
                    OPENED => (ttl, ttl.span(), at),
                    _ => (answer.ttl()?, answer.left(), answer.acquired_at()?),
                };
                let waited = sent.since(called);
                return Ok(Acquired::Granted(Granted {
                    token: answer.token()?,
                    lease: LeaseId(answer.token()?),
                    key: LeaseKey::from_bytes(*request.request.as_bytes()),
                    ttl,
                    valid_for: waited.plus(left),
                    waited,
                    acquired_at,
                }));
            }
            // Expiry wakes nobody by itself: the first looks when the holder's lease is due.
            "first" => LOOK.min(answer.left().plus(TICK)),
            "queued" => ttl.span(),
            "held" => return Ok(Acquired::Held(answer.holder()?)),
            "full" => return Ok(Acquired::QueueFull(FULL.into())),
            "exhausted" => return Ok(Acquired::TokensExhausted),
            "abandoned" => return Ok(Acquired::Abandoned),
            _ => return Ok(Acquired::Over(Some(answer.ending()?))),
        };
        // A sign of life at a third of the time.
        let next = look.min(Span::from_nanos(ttl.span().as_nanos() / 3));
        let told = match &mut ear {
            Some(ear) => ear.hear(sent.after(next).min(until)).await,
            None => None,
        };
        // How many replicas have it is only learnt by asking.
        if let Some(told) = told.filter(|_| redis.replicas == 0)
            && let Some(granted) = told.granted(request.request, ttl, Asked { called, sent })
        {
            return Ok(Acquired::Granted(granted));
        }
    }
}

const FULL: &str = "1024 requests wait for this lock, as many as may";

/// How often the first in a queue looks when nobody tells it anything.
const LOOK: Span = Span::from_millis(1_000);
/// The server counts in milliseconds.
const TICK: Span = Span::from_millis(1);
