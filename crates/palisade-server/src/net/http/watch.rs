//! The watch, as server-sent events.

use std::convert::Infallible;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse as _, Response};
use palisade_proto::json::MissedBody;
use serde::{Deserialize, Serialize};
use tokio_stream::StreamExt as _;

use super::input::{Params, integer};
use crate::net::convert::{self, json};
use crate::net::gate::{Gate, Who};
use crate::net::notice::Notice;
use crate::net::reply::{Problem, Refusals};
use crate::net::watch::Watches;

/// The parameters of a watch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Watching {
    prefix: Option<String>,
    after_revision: Option<String>,
}

/// Watch changes as they become durable
///
/// Server-sent events named `granted`, `proclaimed`, `opened`, `released`, `expired`, `revoked` and `superseded`, whose id is the
/// revision, and `missed` if this watcher was too slow or disconnected. Comments keep the connection open.
///
/// A watcher that reconnects first gets the changes that it missed: about ten thousand of the latest, and the number of
/// those before them. Revisions never go back, not even after a restore, so a revision above the authority's latest is
/// refused as `invalid`: it came from another authority.
#[utoipa::path(
    get,
    path = "/v1/watch",
    tag = "locks",
    params(
        ("prefix" = Option<String>, Query, description = "Only locks whose names start with this."),
        ("after_revision" = Option<u64>, Query, description = "The last change seen. Later changes are sent at once; those that are no longer known are counted in a `missed` event. Browsers send it by themselves, in `Last-Event-ID`."),
    ),
    responses(
        (status = 200, description = "Events without end.", content_type = "text/event-stream", body = palisade_proto::json::EventBody),
        Refusals,
    )
)]
pub(super) async fn watch(
    State(gate): State<Arc<Gate>>,
    State(watches): State<Arc<Watches>>,
    who: Who,
    Params(watching): Params<Watching>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let prefix = convert::prefix(watching.prefix.as_deref().unwrap_or_default())?;
    // A browser that reconnects repeats the first URL; the header has the last event that it saw.
    let after = match headers.get(LAST_EVENT_ID) {
        Some(id) => integer(LAST_EVENT_ID, Some(id.to_str().unwrap_or_default()))?,
        None => integer("after_revision", watching.after_revision.as_deref())?,
    };
    let observed = gate.observe(&who, &prefix)?;
    let batches = watches.watch(observed, after)?;
    let mut quiet = tokio::time::interval(KEEP_ALIVE);
    // The first tick comes after one period, not at once.
    quiet.reset();
    let bytes = batches.timeout_repeating(quiet).map(|batch| {
        Ok::<_, Infallible>(match batch {
            Ok(batch) => batch.encoded(encode),
            Err(_) => Bytes::from_static(b":\n\n"),
        })
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache"),
        // By default nginx gathers 4 KiB before it hands anything on, and an event has a tenth of that.
        (X_ACCEL_BUFFERING, "no"),
    ];
    Ok((headers, Body::from_stream(bytes)).into_response())
}

const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const LAST_EVENT_ID: &str = "last-event-id";

/// Encodes notices as a stream: each field on a line, and an empty line after each event.
fn encode(notices: &[Notice]) -> Bytes {
    let mut bytes = Vec::new();
    for notice in notices {
        // Neither the name nor the id contains a line break, and compact JSON does not either. Writing to memory cannot
        // fail.
        let _ = match notice {
            Notice::Change(change) => {
                let (name, body) = json::event(change);
                write_event(&mut bytes, name, change.revision, &body)
            }
            Notice::Missed { missed, upto } => {
                let body = MissedBody { missed: *missed };
                write_event(&mut bytes, "missed", *upto, &body)
            }
        };
    }
    bytes.into()
}

fn write_event(bytes: &mut Vec<u8>, name: &str, id: u64, body: &impl Serialize) -> io::Result<()> {
    write!(bytes, "event: {name}\nid: {id}\ndata: ")?;
    serde_json::to_writer(&mut *bytes, body)?;
    bytes.write_all(b"\n\n")
}

/// Shorter than the idle time-outs of common proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
