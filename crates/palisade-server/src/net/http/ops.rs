//! For operators and testers: status, health, metrics, the manual clock.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE, VARY};
use axum::response::IntoResponse;
use palisade_proto::Code;
use palisade_proto::json::{AdvanceBody, ClockReply, HealthReply, StatusReply, WhoamiReply};

use super::input::{AdminCaller, Input};
use crate::net::calls::Calls;
use crate::net::convert::{Refusal, json, refusal};
use crate::net::gate::{Gate, GatedPipeline, Who};
use crate::net::metrics::{Format, Metrics};
use crate::net::ranking::Ranking;
use crate::net::reply::{Json, Problem, Refusals, Reply};
use palisade_pipeline::clock::wall;
use palisade_pipeline::{Answer, Identity, Request};

/// Show the authority's state
#[utoipa::path(
    get,
    path = "/v1/status",
    tag = "operation",
    responses((status = 200, description = "Its state.", body = StatusReply), Refusals)
)]
pub(super) async fn status(
    State(calls): State<Arc<Calls>>,
    State(metrics): State<Arc<Metrics>>,
    who: Who,
) -> Reply<StatusReply> {
    match calls.ask(calls.gate.permit(&who, Request::Status)?).await {
        Answer::Status(status) => Ok(Json(json::status(
            &status,
            calls.pipeline.identity(),
            calls.pipeline.stats().log_full.get() > 0,
            metrics.counts(),
        ))),
        other => Err(refusal(other).into()),
    }
}

/// Show who the caller is, and which server answers
///
/// Every node of a cluster answers for itself. It says nothing about locks, so it needs no right; where there is an
/// access file, an unknown caller is refused.
#[utoipa::path(
    get,
    path = "/v1/whoami",
    tag = "operation",
    responses((status = 200, description = "The caller and the server.", body = WhoamiReply), Refusals)
)]
pub(super) async fn whoami(
    State(gate): State<Arc<Gate>>,
    State(pipeline): State<GatedPipeline>,
    who: Who,
) -> Reply<WhoamiReply> {
    let principal = gate.principal(&who)?;
    let Identity {
        authority,
        incarnation,
    } = pipeline.identity();
    Ok(Json(WhoamiReply {
        principal: principal.map(|principal| principal.name().to_owned()),
        authority: authority.as_str().to_owned(),
        incarnation: incarnation.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        time: json::wall_time(wall()),
    }))
}

/// Advance a manual clock
///
/// For testing your own code against expiry without sleeping. Only a server that was started with `--clock manual`
/// accepts it; any other answers `refused`.
#[utoipa::path(
    post,
    path = "/v1/clock/advance",
    tag = "operation",
    request_body = AdvanceBody,
    responses(
        (status = 200, description = "The clock's new time. Leases that were due have expired.", body = ClockReply),
        (status = 409, description = "`refused`: the clock is not manual.", body = palisade_proto::json::ErrorReply),
        Refusals,
    )
)]
pub(super) async fn advance(
    State(calls): State<Arc<Calls>>,
    _: AdminCaller,
    who: Who,
    Input(body): Input<AdvanceBody>,
) -> Reply<ClockReply> {
    match calls
        .ask(calls.gate.permit(&who, json::advance(&body)?)?)
        .await
    {
        Answer::Clock(now) => Ok(Json(ClockReply {
            now_ms: now.as_millis(),
        })),
        other => Err(refusal(other).into()),
    }
}

/// Check that the server works
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "operation",
    responses((status = 200, description = "It works.", body = HealthReply), Refusals)
)]
pub(super) async fn health(
    State(pipeline): State<GatedPipeline>,
    State(metrics): State<Arc<Metrics>>,
) -> Reply<HealthReply> {
    if pipeline.stopped().borrow().is_some() {
        return Err(Refusal::new(Code::Unavailable, "the authority has stopped").into());
    }
    let log_full = pipeline.stats().log_full.get() > 0;
    Ok(Json(HealthReply {
        status: "serving".to_owned(),
        log_full,
        certificate_expires_at: metrics.certificate_expires(),
    }))
}

/// Read counters and gauges for Prometheus
///
/// In Prometheus' own text format, or in OpenMetrics if `Accept` asks for it.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "operation",
    responses(
        (status = 200, description = "The metrics.", content(
            (String = "text/plain"),
            (String = "application/openmetrics-text"),
        )),
        Refusals,
    )
)]
pub(super) async fn metrics(
    State(gate): State<Arc<Gate>>,
    State(ranking): State<Arc<Ranking>>,
    State(metrics): State<Arc<Metrics>>,
    who: Who,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    let observed = gate.observe_all(&who)?;
    let oldest = ranking.oldest(&who).await;
    let accept = headers.get_all(ACCEPT).iter();
    let accept: Vec<_> = accept.filter_map(|value| value.to_str().ok()).collect();
    let format = Format::asked_for(&accept.join(","));
    let headers = [(CONTENT_TYPE, format.content_type()), (VARY, "Accept")];
    Ok((headers, metrics.text(&observed, oldest, format)))
}
