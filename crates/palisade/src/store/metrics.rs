//! Health, counters and the description of the interface.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use palisade_fence::audit;
use palisade_fence::http::Problem;
use palisade_fence::store::Counts;
use serde_json::{Value, json};

use crate::store::{App, mode_name};

/// `GET /healthz`: whether the store still answers.
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    app.store.list("", None, 1).await?;
    Ok(Json(
        json!({ "status": "ok", "fence": mode_name(app.store.mode()) }),
    ))
}

/// `GET /metrics`: what Prometheus reads.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let text = exposition("palisade_store", &app.store.counts(), Default::default());
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
}

/// `GET /openapi.json`: this interface, for tools.
pub(super) async fn openapi() -> impl IntoResponse {
    (
        [(CONTENT_TYPE, "application/json")],
        include_str!("openapi.json"),
    )
}

/// What a store has done, and what was refused in front of it, under names that begin with `whose`.
pub(crate) fn exposition(whose: &str, counts: &Counts, refused: audit::Counts) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, rows: &[(String, u64)]| {
        let name = format!("{whose}_{name}");
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
        "Operations carried out.",
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
    text
}
