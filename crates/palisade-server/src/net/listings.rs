//! Bounds the listings that calls ask for: the settings limit how many exist at once, from just before a page is made
//! until its caller has read it. Sessions have a bound of their own.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use palisade_proto::Code;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::convert::Refusal;
use super::reply;
use super::settings::Settings;

/// Slots for listings that are being made or read.
pub(super) struct Listings {
    slots: Arc<Semaphore>,
    most: usize,
    /// How long a listing waits for a slot.
    patience: Duration,
}

impl Listings {
    pub(super) fn new(settings: &Settings) -> Listings {
        Listings {
            slots: Arc::new(Semaphore::new(
                settings.listings.min(Semaphore::MAX_PERMITS),
            )),
            most: settings.listings,
            patience: settings.shell.head_timeout,
        }
    }
}

/// Applies the bound to every route of `router`.
pub(super) fn bounded<S: Clone + Send + Sync + 'static>(
    listings: &Arc<Listings>,
    router: Router<S>,
) -> Router<S> {
    router.layer(from_fn_with_state(Arc::clone(listings), admit))
}

async fn admit(State(listings): State<Arc<Listings>>, request: Request, next: Next) -> Response {
    let slot = timeout(
        listings.patience,
        Arc::clone(&listings.slots).acquire_owned(),
    );
    let Ok(Ok(slot)) = slot.await else {
        let most = listings.most;
        let message = format!(
            "{most} listings are being made or read, which is the limit; nothing happened, try again later"
        );
        return reply::refused(request.headers(), &Refusal::new(Code::Unavailable, message));
    };
    with_slot(next.run(request).await, slot)
}

/// An answer that keeps its slot until its body is dropped.
pub(super) fn with_slot<S: Send + Unpin + 'static>(answer: Response, slot: S) -> Response {
    answer.map(|body| Body::new(SlotBody { body, _slot: slot }))
}

struct SlotBody<S> {
    body: Body,
    _slot: S,
}

impl<S: Unpin> HttpBody for SlotBody<S> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
