//! Health, metrics and the OpenAPI description.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use palisade_client::Client;
use palisade_fence::audit;
use palisade_fence::http::Problem;
use palisade_fence::store::Counts;
use palisade_server::net::ShownCounter;
use serde_json::{Value, json};

use crate::store::app::{App, mode_name};

/// `GET /healthz`: whether the store still works.
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    app.store.list("", None, 1).await?;
    Ok(Json(
        json!({ "status": "ok", "fence": mode_name(app.store.mode()) }),
    ))
}

/// `GET /metrics`, for Prometheus.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let text = exposition(
        "palisade_store",
        &app.store.counts(),
        Default::default(),
        app.reporter.as_ref(),
    );
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
}

/// `GET /openapi.json`: a description of this interface.
pub(super) async fn openapi() -> impl IntoResponse {
    (
        [(CONTENT_TYPE, "application/json")],
        include_str!("openapi.json"),
    )
}

/// The metrics of a store and of the refusals in front of it; their names begin with `prefix`.
pub(crate) fn exposition(
    prefix: &str,
    counts: &Counts,
    refused: audit::RejectionCounts,
    reporter: Option<&Client>,
) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, rows: &[(String, u64)]| {
        let name = format!("{prefix}_{name}");
        // Writing to a string cannot fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (labels, value) in rows {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let plain = |value| [(String::new(), value)];
    let counter = "counter";
    metric(
        "admitted_total",
        counter,
        "Operations executed.",
        &plain(counts.admitted),
    );
    metric(
        "repeats_total",
        counter,
        "Repeated writes answered as before.",
        &plain(counts.repeats),
    );
    let rejected: Vec<_> = counts
        .rejected
        .0
        .iter()
        .zip(refused.0)
        .map(|((reason, rejected), (_, refused))| {
            (format!("{{reason=\"{reason}\"}}"), rejected + refused)
        })
        .collect();
    metric(
        "rejected_total",
        counter,
        "Operations rejected by the fence or refused in front of it, by reason.",
        &rejected,
    );
    metric(
        "commits_total",
        counter,
        "Frames made durable.",
        &plain(counts.commits),
    );
    metric(
        "bytes",
        "gauge",
        "What the store holds.",
        &plain(counts.bytes),
    );
    metric(
        "resources",
        "gauge",
        "Resources with a fence.",
        &plain(counts.resources),
    );
    if let Some(reporter) = reporter {
        metric(
            "reports_dropped_total",
            counter,
            "Refused late writes of which --report-to did not hear.",
            &plain(reporter.reports_dropped()),
        );
    }
    for ShownCounter { name, help, value } in crate::export::counters() {
        let (name, value) = (format!("{name}_total"), value.load(Relaxed));
        metric(&name, counter, &format!("{help}."), &plain(value));
    }
    text
}
