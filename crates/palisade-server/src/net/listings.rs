//! Listings by calls: as many at once as the settings allow, from before a page is made until its caller has
//! read it. A session has its own bound.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use hyper::body::{Frame, SizeHint};
use palisade_proto::Code;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::app::App;
use super::convert::Refusal;
use super::{grpc, http as json};

/// Puts the bound around every route of `router`.
pub(super) fn bounded<S: Clone + Send + Sync + 'static>(
    app: &Arc<App>,
    router: Router<S>,
) -> Router<S> {
    router.layer(from_fn_with_state(Arc::clone(app), admit))
}

async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let place = timeout(
        app.settings.shell.head_timeout,
        Arc::clone(&app.listings).acquire_owned(),
    );
    let Ok(Ok(place)) = place.await else {
        let most = app.settings.listings;
        let message = format!(
            "{most} listings are being made or read, as many as may; nothing happened, try again later"
        );
        return refused(request.headers(), &Refusal::new(Code::Unavailable, message));
    };
    let answer = next.run(request).await;
    answer.map(|body| {
        Body::new(Placed {
            body,
            _place: place,
        })
    })
}

fn refused(headers: &HeaderMap, refusal: &Refusal) -> Response {
    let grpc = headers.get(CONTENT_TYPE);
    if grpc.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")) {
        return grpc::status(refusal).into_http();
    }
    json::refused(refusal.clone())
}

/// An answer's body; the place is taken until it is gone.
struct Placed {
    body: Body,
    _place: OwnedSemaphorePermit,
}

impl HttpBody for Placed {
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
