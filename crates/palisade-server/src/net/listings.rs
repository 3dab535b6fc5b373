//! Bounds the listings by calls: the settings limit how many exist at once, from before a page is made until its caller
//! has read it. Sessions have their own bound.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use palisade_proto::Code;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::app::App;
use super::convert::Refusal;
use super::http::reply;

/// Applies the bound to every route of `router`.
pub(super) fn bounded<S: Clone + Send + Sync + 'static>(
    app: &Arc<App>,
    router: Router<S>,
) -> Router<S> {
    router.layer(from_fn_with_state(Arc::clone(app), admit))
}

async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let slot = timeout(
        app.settings.shell.head_timeout,
        Arc::clone(&app.listings).acquire_owned(),
    );
    let Ok(Ok(slot)) = slot.await else {
        let most = app.settings.listings;
        let message = format!(
            "{most} listings are being made or read, which is the limit; nothing happened, try again later"
        );
        return reply::refused(request.headers(), &Refusal::new(Code::Unavailable, message));
    };
    let answer = next.run(request).await;
    answer.map(|body| Body::new(SlotBody { body, _slot: slot }))
}

/// An answer's body, which keeps its slot until it is dropped.
struct SlotBody {
    body: Body,
    _slot: OwnedSemaphorePermit,
}

impl HttpBody for SlotBody {
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
