//! Locks: acquire, renew, release, break, show, list.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{Extensions, StatusCode};
use axum::response::{IntoResponse, Response};
use palisade_core::{Ending, LockName, Outcome};
use palisade_proto::Code;
use palisade_proto::json::{
    AbandonReply, AcquireBody, AcquireReply, BreakBody, BreakReply, DeniedReply, ErrorReply,
    ListReply, LockReply, Nothing, OpenBody, OpenReply, ProclaimBody, ProclaimReply, RankingReply,
    ReleaseBody, ReleaseReply, RenewBody, RenewReply, ResizeBody, ResizeReply, WaitingReply,
};
use serde::Deserialize;
use tokio::time::timeout;
use utoipa::IntoParams;

use super::input::{Input, LockParam, Params, RequestParam, integer};
use crate::net::calls::Calls;
use crate::net::convert::{self, Refusal, json, refusal};
use crate::net::gate::Who;
use crate::net::ranking::Ranking;
use crate::net::reply::{Json, Problem, Refusals, Reply};
use crate::net::traces::{TracedRequest, Traces};
use palisade_pipeline::{Answer, Request};

/// The lock in the path.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "read by the derive; never built")]
pub(super) struct LockPath {
    /// The lock, percent-encoded.
    #[param(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    resource_id: String,
}

/// Request a lock
///
/// Grants it at once, or waits in its queue for up to `wait_ms`. With `poll_ms` the answer after that time is `waiting`.
/// If the connection of a waiting request is closed, the request leaves the queue; with a `request_id` it keeps its place for
/// 2 s, until it is repeated with it. So does one that was answered `waiting`.
#[utoipa::path(
    post,
    path = "/v1/locks/{resource_id}/acquire",
    tag = "locks",
    params(LockPath),
    request_body = AcquireBody,
    responses(
        (status = 200, description = "The lock is granted.", body = AcquireReply),
        (status = 202, description = "It waits, and `poll_ms` are over: ask again at once, with the same `request_id`.", body = WaitingReply),
        (status = 409, description = "`held`: another client holds it. `delayed`: it is closed after its last grant. `abandoned`: this request was abandoned.", body = DeniedReply),
        (status = 410, description = "`expired`, `revoked`, `superseded`: the grant of this request, or its lease, is over.", body = DeniedReply),
        (status = 429, description = "`queue_full`, `too_many_locks`, `over_quota`: the message names the bound and whose it is.", body = DeniedReply),
        (status = 507, description = "`tokens_exhausted`", body = DeniedReply),
        Refusals,
    )
)]
pub(super) async fn acquire(
    State(calls): State<Arc<Calls>>,
    State(traces): State<Arc<Traces>>,
    who: Who,
    LockParam(lock): LockParam,
    extensions: Extensions,
    Input(body): Input<AcquireBody>,
) -> Result<Acquired, Problem> {
    let poll = json::poll(&body)?;
    let request = json::acquire(lock.clone(), &body)?;
    let asked = TracedRequest::of(&extensions, &request);
    let permitted = calls
        .gate
        .permit(&who, request)
        .map_err(|refusal| match refusal.code {
            Code::OverQuota => Problem::denied(lock.clone(), refusal),
            _ => refusal.into(),
        })?;
    let answered = calls.ask(permitted);
    let answer = match poll {
        // The call ends as if its connection had broken, so that it keeps its place.
        Some(poll) => match timeout(poll, answered).await {
            Ok(answer) => answer,
            Err(_) => return Ok(Acquired::NotYet(lock)),
        },
        None => answered.await,
    };
    match answer {
        Answer::Outcome(Outcome::Granted(granted)) => {
            traces.keep(asked, &granted);
            let reply = json::granted(&lock, &granted, calls.pipeline.identity());
            Ok(Acquired::Granted(reply))
        }
        other => Err(Problem::denied(lock, refusal(other))),
    }
}

/// The answers to an acquire that was not refused.
pub(super) enum Acquired {
    Granted(AcquireReply),
    NotYet(LockName),
}

impl IntoResponse for Acquired {
    fn into_response(self) -> Response {
        match self {
            Acquired::Granted(reply) => Json(reply).into_response(),
            Acquired::NotYet(lock) => {
                let reply = WaitingReply {
                    resource_id: lock.as_str().to_owned(),
                    lock_acquired: false,
                    waiting: true,
                };
                (StatusCode::ACCEPTED, Json(reply)).into_response()
            }
        }
    }
}

/// Renew a lease
///
/// Every grant under the lease is extended; their fencing tokens stay the same.
#[utoipa::path(
    post,
    path = "/v1/locks/{resource_id}/renew",
    tag = "locks",
    params(LockPath),
    request_body = RenewBody,
    responses(
        (status = 200, description = "The lease has its full time again.", body = RenewReply),
        (status = 409, description = "`not_held`", body = ErrorReply),
        (status = 410, description = "`expired`, `revoked`, `superseded`", body = ErrorReply),
        (status = 412, description = "`stale`", body = ErrorReply),
        Refusals,
    )
)]
pub(super) async fn renew(
    State(calls): State<Arc<Calls>>,
    who: Who,
    LockParam(lock): LockParam,
    Input(body): Input<RenewBody>,
) -> Reply<RenewReply> {
    match calls
        .ask(calls.gate.permit(&who, json::renew(lock.clone(), &body)?)?)
        .await
    {
        Answer::Outcome(Outcome::Renewed(renewed)) => Ok(Json(json::renewed(
            &lock,
            &renewed,
            calls.pipeline.identity(),
        ))),
        other => Err(refusal(other).into()),
    }
}

/// Proclaim a value
///
/// The leader of an election changes its value, which replaces the `metadata` of its acquire. The fencing token stays.
/// Observers of the lock get the new value. An empty value removes the old one.
#[utoipa::path(
    post,
    path = "/v1/locks/{resource_id}/proclaim",
    tag = "locks",
    params(LockPath),
    request_body = ProclaimBody,
    responses(
        (status = 200, description = "The value is in force.", body = ProclaimReply),
        (status = 409, description = "`not_held`", body = ErrorReply),
        (status = 410, description = "`expired`, `revoked`, `superseded`", body = ErrorReply),
        (status = 412, description = "`stale`", body = ErrorReply),
        Refusals,
    )
)]
pub(super) async fn proclaim(
    State(calls): State<Arc<Calls>>,
    who: Who,
    LockParam(lock): LockParam,
    Input(body): Input<ProclaimBody>,
) -> Reply<ProclaimReply> {
    let request = json::proclaim(lock.clone(), &body)?;
    match calls.ask(calls.gate.permit(&who, request)?).await {
        Answer::Outcome(Outcome::Proclaimed { token, revision }) => Ok(Json(ProclaimReply {
            resource_id: lock.as_str().to_owned(),
            fencing_token: token.get(),
            revision,
        })),
        other => Err(refusal(other).into()),
    }
}

/// Release a lock
///
/// The next request in its queue gets it. A repeated release gets 200 with `already_released`.
#[utoipa::path(
    post,
    path = "/v1/locks/{resource_id}/release",
    tag = "locks",
    params(LockPath),
    request_body = ReleaseBody,
    responses(
        (status = 200, description = "The lock is released.", body = ReleaseReply),
        (status = 409, description = "`not_held`", body = ErrorReply),
        (status = 410, description = "`expired`, `revoked`, `superseded`", body = ErrorReply),
        (status = 412, description = "`stale`", body = ErrorReply),
        Refusals,
    )
)]
pub(super) async fn release(
    State(calls): State<Arc<Calls>>,
    who: Who,
    LockParam(lock): LockParam,
    Input(body): Input<ReleaseBody>,
) -> Reply<ReleaseReply> {
    let (token, already_released, delayed) = match calls
        .ask(
            calls
                .gate
                .permit(&who, json::release(lock.clone(), &body)?)?,
        )
        .await
    {
        Answer::Outcome(Outcome::Released { token, delayed }) => (token, false, delayed),
        Answer::Outcome(Outcome::Ended {
            token,
            how: Ending::Released,
        }) => (token, true, None),
        other => return Err(refusal(other).into()),
    };
    Ok(Json(ReleaseReply {
        resource_id: lock.as_str().to_owned(),
        released: true,
        already_released,
        fencing_token: token.get(),
        authority: calls.pipeline.identity().authority.as_str().to_owned(),
        delayed_ms: delayed.map(palisade_core::Span::as_millis),
    }))
}

/// Abandon a request
///
/// For a caller that does not know the outcome of its acquire. If the request is waiting, it leaves the queue; if it
/// was granted, the lock is released; if it arrives later, it is refused as `abandoned`. The call may be repeated, and
/// the body may be omitted.
#[utoipa::path(
    post,
    path = "/v1/requests/{request_id}/abandon",
    tag = "locks",
    params((
        "request_id" = String,
        Path,
        pattern = "^([0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$",
        description = "The `request_id` of the acquire."
    )),
    responses(
        (status = 200, description = "The request is gone.", body = AbandonReply),
        Refusals,
    )
)]
pub(super) async fn abandon(
    State(calls): State<Arc<Calls>>,
    who: Who,
    RequestParam(request): RequestParam,
    Input(Nothing {}): Input<Nothing>,
) -> Reply<AbandonReply> {
    match calls
        .ask(calls.gate.permit(&who, Request::Abandon(request))?)
        .await
    {
        Answer::Outcome(Outcome::Done) => Ok(Json(AbandonReply {
            request_id: request.to_hex(),
            abandoned: true,
        })),
        other => Err(refusal(other).into()),
    }
}

/// Revoke a lock
///
/// For operators. Only the fence at the resource can stop the old holder from writing: it rejects the old token once it
/// has seen the next one.
#[utoipa::path(
    post,
    path = "/v1/locks/{resource_id}/break",
    tag = "locks",
    params(LockPath),
    request_body = BreakBody,
    responses(
        (status = 200, description = "The lock is revoked.", body = BreakReply),
        (status = 409, description = "`not_held`: nobody holds it, perhaps because it was already revoked.", body = ErrorReply),
        (status = 412, description = "`stale`: it is held with another token", body = ErrorReply),
        Refusals,
    )
)]
pub(super) async fn revoke(
    State(calls): State<Arc<Calls>>,
    who: Who,
    LockParam(lock): LockParam,
    body: Result<Input<BreakBody>, Problem>,
) -> Reply<BreakReply> {
    calls.gate.operate(&who, &lock)?;
    let Input(body) = body?;
    match calls
        .ask(
            calls
                .gate
                .permit(&who, json::revoke(lock.clone(), &body)?)?,
        )
        .await
    {
        Answer::Outcome(Outcome::Revoked { token }) => Ok(Json(BreakReply {
            resource_id: lock.as_str().to_owned(),
            revoked: true,
            fencing_token: token.get(),
        })),
        // The general message mentions a lock_token, which an operator does not have.
        Answer::Outcome(Outcome::NotHeld) => {
            Err(Refusal::new(Code::NotHeld, "nobody holds this lock").into())
        }
        other => Err(refusal(other).into()),
    }
}

/// Open a lock that is closed after its last grant
///
/// For operators; it needs the right `break`. The lock is closed by a lock-delay or by an at-least-for; now the next request
/// is granted. The former holder may still be working.
#[utoipa::path(
    post,
    path = "/v1/locks/{resource_id}/open",
    tag = "locks",
    params((
        "resource_id" = String,
        Path,
        min_length = 1,
        max_length = 255,
        pattern = "^[ -~]+$",
        description = "The lock, percent-encoded."
    )),
    request_body = OpenBody,
    responses(
        (status = 200, description = "It is open.", body = OpenReply),
        (status = 409, description = "`not_held`: the lock is not closed.", body = ErrorReply),
        Refusals,
    )
)]
pub(super) async fn open(
    State(calls): State<Arc<Calls>>,
    who: Who,
    LockParam(lock): LockParam,
    body: Result<Input<OpenBody>, Problem>,
) -> Reply<OpenReply> {
    calls.gate.operate(&who, &lock)?;
    let Input(body) = body?;
    let request = json::open(lock.clone(), &body)?;
    match calls.ask(calls.gate.permit(&who, request)?).await {
        Answer::Outcome(Outcome::Done) => Ok(Json(OpenReply {
            resource_id: lock.as_str().to_owned(),
            opened: true,
        })),
        Answer::Outcome(Outcome::NotHeld) => Err(Refusal::new(
            Code::NotHeld,
            "this lock is not closed: it is free, or somebody holds it; break takes it from a holder",
        )
        .into()),
        other => Err(refusal(other).into()),
    }
}

/// Change a semaphore's number of permits
///
/// For operators; it needs the right `break`. The number lives while the semaphore is in use: held, or waited for. When it
/// falls, holders keep their slots, and a waiting request for more than there will be is refused.
#[utoipa::path(
    post,
    path = "/v1/locks/{resource_id}/permits",
    tag = "locks",
    params((
        "resource_id" = String,
        Path,
        min_length = 1,
        max_length = 252,
        pattern = "^[ -~]+$",
        description = "The lock, percent-encoded. A semaphore's name is shorter than another lock's may be."
    )),
    request_body = ResizeBody,
    responses(
        (status = 200, description = "It has this many permits.", body = ResizeReply),
        (status = 409, description = "`not_held`: nobody uses the lock, so it has no number to change.", body = ErrorReply),
        Refusals,
    )
)]
pub(super) async fn resize(
    State(calls): State<Arc<Calls>>,
    who: Who,
    LockParam(lock): LockParam,
    body: Result<Input<ResizeBody>, Problem>,
) -> Reply<ResizeReply> {
    calls.gate.operate(&who, &lock)?;
    let Input(body) = body?;
    let request = json::resize(lock.clone(), &body)?;
    match calls.ask(calls.gate.permit(&who, request)?).await {
        Answer::Outcome(Outcome::Done) => Ok(Json(ResizeReply {
            resource_id: lock.as_str().to_owned(),
            // At most 64, or it would not have been done.
            permits: u32::try_from(body.of).unwrap_or(u32::MAX),
        })),
        // The general message mentions a lock_token, which an operator does not have.
        Answer::Outcome(Outcome::NotHeld) => Err(Refusal::new(
            Code::NotHeld,
            "nobody uses this lock, so there is no number to change: the next request for permits sets it",
        )
        .into()),
        other => Err(refusal(other).into()),
    }
}

/// Show a lock
///
/// A lock that nobody ever requested is free, like any other free lock.
#[utoipa::path(
    get,
    path = "/v1/locks/{resource_id}",
    tag = "locks",
    params(LockPath),
    responses(
        (status = 200, description = "The lock's state.", body = LockReply),
        Refusals,
    )
)]
pub(super) async fn show(
    State(calls): State<Arc<Calls>>,
    State(traces): State<Arc<Traces>>,
    who: Who,
    LockParam(lock): LockParam,
) -> Reply<LockReply> {
    match calls
        .ask(calls.gate.permit(&who, Request::Show(lock))?)
        .await
    {
        Answer::Lock(view) => Ok(Json(LockReply {
            trace_id: traces.of(&view).map(|trace| trace.to_string()),
            ..json::lock(&view)
        })),
        other => Err(refusal(other).into()),
    }
}

/// The parameters of a listing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListingParams {
    prefix: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// List the locks that are held
///
/// In pages; locks that are granted or released between two pages may be missing or listed.
#[utoipa::path(
    get,
    path = "/v1/locks",
    tag = "locks",
    params(
        ("prefix" = Option<String>, Query, max_length = 255, pattern = "^[ -~]*$", description = "Only locks whose names start with this."),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The most locks on the page; 100 by default."),
        ("cursor" = Option<String>, Query, pattern = "^a[0-9a-fA-F]{16}$", description = "The `next_cursor` of the previous page."),
    ),
    responses(
        (status = 200, description = "One page.", body = ListReply),
        Refusals,
    )
)]
pub(super) async fn list(
    State(calls): State<Arc<Calls>>,
    who: Who,
    Params(listing): Params<ListingParams>,
) -> Reply<ListReply> {
    let prefix = convert::prefix(listing.prefix.as_deref().unwrap_or_default())?;
    let limit = convert::page_limit(integer("limit", listing.limit.as_deref())?)?;
    let mut next = listing
        .cursor
        .as_deref()
        .map(json::cursor)
        .transpose()?
        .or(Some(0));
    let mut found = Vec::new();
    // The pipeline examines a bounded piece at a time, so that a rare prefix delays nobody else.
    while let Some(cursor) = next
        && found.len() < limit
    {
        let page = Request::List {
            prefix: prefix.clone(),
            cursor,
            limit: limit - found.len(),
        };
        let page = calls.gate.permit(&who, page)?;
        (found, next) = append(found, calls.ask(page).await)?;
    }
    Ok(Json(json::page(&found, next)))
}

/// Rank the locks that are held
///
/// By the length of their queues, and by how long they have been held. All locks are read for it, at most every second,
/// so it may take seconds while there are a million. It needs `observe` for all locks.
#[utoipa::path(
    get,
    path = "/v1/ranking",
    tag = "locks",
    responses((status = 200, description = "The first locks of each order.", body = RankingReply), Refusals)
)]
pub(super) async fn ranking(State(ranking): State<Arc<Ranking>>, who: Who) -> Reply<RankingReply> {
    Ok(Json(json::ranking(&*ranking.ranked(&who).await?)))
}

type Page = (Vec<palisade_core::LockView>, Option<u64>);

fn append(mut found: Vec<palisade_core::LockView>, answer: Answer) -> Result<Page, Refusal> {
    match answer {
        Answer::Locks { locks, next } => {
            found.extend(locks);
            Ok((found, next))
        }
        other => Err(refusal(other)),
    }
}
