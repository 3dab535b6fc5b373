//! Wraps every gRPC call: requires HTTP/2, turns body errors into statuses, bounds the streams, and ends them at shutdown.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Version};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::Frame;
use palisade_proto::Code;
use tokio::sync::oneshot;
use tonic::Status;

use super::convert::Refusal;
use super::grpc_status::status;
use super::listings::with_slot;
use super::phases::Phases;
use super::reply;
use super::shares::Shares;
use crate::shell::{self, BodyError, Peer};

/// Refuses a call that does not use HTTP/2: over HTTP/1.1 the server would wait for its body in vain.
pub(super) async fn over_http2(request: Request, next: Next) -> Response {
    if request.version() == Version::HTTP_2 {
        return next
            .run(request.map(|body| Body::new(CallBody(body))))
            .await;
    }
    let message = "gRPC needs HTTP/2; over HTTP/1.1 use the JSON interface, see /openapi.json";
    shell::refusal(Code::HttpVersion, message.to_owned())
}

/// Ends streams when the server shuts down: health and reflection do not know about the shutdown. The answers end
/// first, with the reason; only then the requests, because a service that sees its requests end reports success.
pub(super) async fn until_draining(
    State(phases): State<Phases>,
    request: Request,
    next: Next,
) -> Response {
    let (answering, answered) = oneshot::channel::<()>();
    let request = request.map(|body| {
        Body::new(EndableStream {
            body: Some((body, None)),
            last: None,
            end: Box::pin(async {
                // Nothing is ever sent on it; only the end of the sender matters.
                let _ = answered.await;
            }),
        })
    });
    let stopping = Refusal::new(Code::Unavailable, "the server is stopping");
    let response = next.run(request).await;
    response.map(|body| {
        Body::new(EndableStream {
            body: Some((body, Some(answering))),
            last: Some(status(&stopping)),
            end: Box::pin(phases.draining()),
        })
    })
}

/// Counts the streams that nothing else bounds: an HTTP/2 connection may have a thousand. A check of the health is no
/// stream, and answered whatever others have open.
pub(super) async fn bounded(
    State(streams): State<Arc<Shares>>,
    request: Request,
    next: Next,
) -> Response {
    if request.uri().path() == "/grpc.health.v1.Health/Check" {
        return next.run(request).await;
    }
    let origin = request.extensions().get::<Peer>().map(|peer| peer.origin);
    match streams.take(origin, 1) {
        Ok(part) => with_slot(next.run(request).await, part),
        Err(full) => reply::refused(request.headers(), &full.of_streams()),
    }
}

/// The body of a call; its errors become statuses.
struct CallBody(Body);

impl HttpBody for CallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.0)
            .poll_frame(cx)
            .map_err(|error| match BodyError::among(&error) {
                BodyError::Broken => Status::cancelled("the call ended early"),
                error => {
                    let mut failed = status(&Refusal::new(error.code(), error.to_string()));
                    failed.set_source(Arc::new(error));
                    failed
                }
            })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// A stream that can be ended early.
struct EndableStream {
    /// For answers: dropping the sender ends the requests.
    body: Option<(Body, Option<oneshot::Sender<()>>)>,
    /// The final status of a stream of answers.
    last: Option<Status>,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl HttpBody for EndableStream {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some((body, _)) = &mut self.body else {
            return Poll::Ready(None);
        };
        // Items that are ready go first: a health watch learns that the server has stopped serving.
        let polled = Pin::new(body).poll_frame(cx);
        if polled.is_ready() || self.end.as_mut().poll(cx).is_pending() {
            return polled;
        }
        self.body = None;
        Poll::Ready(self.last.take().and_then(|status| {
            let mut trailers = HeaderMap::new();
            let added = status.add_header(&mut trailers);
            added.is_ok().then(|| Ok(Frame::trailers(trailers)))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body
            .as_ref()
            .is_none_or(|(body, _)| body.is_end_stream())
    }
}
