//! The watch, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use palisade_proto::json::MissedBody;
use serde::{Deserialize, Serialize};
use tokio_stream::{Stream, StreamExt as _};

use super::input::{Params, integer};
use super::openapi::Refusals;
use super::reply::Problem;
use crate::net::app::App;
use crate::net::convert::{self, json};
use crate::net::watch::{self as feed, Notice, Wish};

/// The parameters of a watch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Watching {
    prefix: Option<String>,
    after_revision: Option<String>,
}

/// Changes as they become durable
///
/// Server-sent events named `granted`, `released`, `expired`, `revoked` and `superseded`, whose id is
/// the revision, and `missed` when this watcher was too slow or away. Comments keep the connection
/// open.
///
/// A watcher that comes back is told at once what it missed: the latest changes themselves, some ten
/// thousand, and how many there were before them. Revisions never go back, also over a restore, so one that
/// is higher than the authority's latest is refused as `invalid`: another authority counted it.
#[utoipa::path(
    get,
    path = "/v1/watch",
    tag = "locks",
    params(
        ("prefix" = Option<String>, Query, description = "Only locks whose names start so."),
        ("after_revision" = Option<u64>, Query, description = "The last change seen; what came since is told at once, and what is not known any more is counted in a `missed` event. A browser says it by itself, in `Last-Event-ID`."),
    ),
    responses(
        (status = 200, description = "Events without end.", content_type = "text/event-stream", body = palisade_proto::json::EventBody),
        Refusals,
    )
)]
pub(super) async fn watch(
    State(app): State<Arc<App>>,
    Params(watching): Params<Watching>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let prefix = convert::prefix(watching.prefix.as_deref().unwrap_or_default())?;
    // A browser that reconnects repeats the first URL: what it saw last is in the header.
    let after = match headers.get(LAST_EVENT_ID) {
        Some(id) => integer(LAST_EVENT_ID, Some(id.to_str().unwrap_or_default()))?,
        None => integer("after_revision", watching.after_revision.as_deref())?,
    };
    let notices = feed::watch(&app, Wish { prefix, after })?;
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(notices.map(|notice| Ok(event(&notice)))).keep_alive(keep_alive))
}

const LAST_EVENT_ID: &str = "last-event-id";

fn event(notice: &Notice) -> Event {
    match notice {
        Notice::Change(change) => {
            let (name, body) = json::event(change);
            with_data(
                Event::default().event(name).id(change.revision.to_string()),
                &body,
            )
        }
        Notice::Missed { missed, upto } => {
            let body = MissedBody { missed: *missed };
            with_data(Event::default().event("missed").id(upto.to_string()), &body)
        }
    }
}

fn with_data(event: Event, body: &impl Serialize) -> Event {
    // JSON on one line has no line break that could end the field.
    event.data(serde_json::to_string(body).unwrap_or_default())
}

/// Shorter than the idle time-outs of common proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
