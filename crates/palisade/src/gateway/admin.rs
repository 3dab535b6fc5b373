//! The operator's interface of a gateway. It has its own port, so it hides no path of the upstream.

use palisade_proto::Code;
use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use palisade_client::Client;
use palisade_fence::http::{FenceLayer, Problem, Routes};
use palisade_fence::store::Store;
use palisade_fence::{FenceState, ResourceId, Written};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::store::{exposition, mode_name, percent_encoded};

#[derive(Debug)]
struct App {
    store: Store,
    layer: FenceLayer<Store, Routes>,
    reporter: Option<Client>,
}

pub(super) fn router(
    store: Store,
    layer: FenceLayer<Store, Routes>,
    reporter: Option<Client>,
) -> Router {
    Router::new()
        .route("/healthz", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/fences", get(list))
        .route("/v1/fences/{resource}", get(show))
        .fallback(not_found)
        .layer(from_fn(plain_address))
        .with_state(Arc::new(App {
            store,
            layer,
            reporter,
        }))
}

async fn plain_address(request: Request, next: Next) -> Response {
    match percent_encoded(request.uri()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    app.store.list("", None, 1).await?;
    Ok(Json(
        json!({ "status": "ok", "fence": mode_name(app.store.mode()) }),
    ))
}

async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    use std::fmt::Write as _;

    let counts = app.layer.counts();
    let mut text = exposition(
        "palisade_gateway",
        &app.store.counts(),
        counts.refused,
        app.reporter.as_ref(),
    );
    for (name, kind, help, value) in [
        (
            "passed_total",
            "counter",
            "Requests let through without a check.",
            counts.passed,
        ),
        (
            "unknown_total",
            "counter",
            "Writes whose end the gateway did not see.",
            counts.unknown,
        ),
        (
            "in_flight",
            "gauge",
            "Writes in flight or settling.",
            counts.in_flight,
        ),
    ] {
        let name = format!("palisade_gateway_{name}");
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
        );
    }
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    #[serde(default)]
    prefix: String,
    after: Option<String>,
    limit: Option<usize>,
}

async fn list(
    State(app): State<Arc<App>>,
    page: Result<Query<Page>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(page) = page.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
    let limit = page.limit.unwrap_or(100);
    if !(1..=1_000).contains(&limit) {
        return Err(Problem::invalid("limit must be an integer in 1 ..= 1000"));
    }
    let found = app.store.list(&page.prefix, page.after.as_deref(), limit);
    let fences: Vec<Value> = found
        .await?
        .iter()
        .map(|(resource, view)| fence(resource, &view.fence))
        .collect();
    Ok(Json(json!({ "fences": fences })))
}

async fn show(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    let resource = app.store.resource(&name)?;
    match resource.view().await? {
        Some(view) => Ok(Json(fence(resource.id(), &view.fence))),
        None => {
            let message = format!("{name} was never fenced");
            Err(Problem::new(StatusCode::NOT_FOUND, Code::NotFound, message))
        }
    }
}

fn fence(resource: &ResourceId, state: &FenceState) -> Value {
    let sequence = state.mark.and_then(|mark| match mark.written {
        Written::Through(sequence) => Some(sequence.get()),
        Written::Nothing | Written::Unnumbered => None,
    });
    json!({
        "resource_id": resource.as_str(),
        "highest": state.highest().map(|token| token.get()),
        "sequence": sequence,
        "authority": state.authority.as_ref().map(|authority| authority.as_str()),
        "lock": state.lock.as_ref().map(|lock| lock.as_str()),
    })
}

async fn not_found(uri: Uri) -> Problem {
    let message = format!("there is nothing at {}", uri.path());
    Problem::new(StatusCode::NOT_FOUND, Code::NotFound, message)
}
