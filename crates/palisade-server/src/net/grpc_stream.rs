//! What goes around every gRPC call: HTTP/2 only, body errors as statuses, and an end when the server stops.

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

use super::app::App;
use super::convert::Refusal;
use super::grpc::status;
use crate::shell::{self, BodyError};

/// Refuses a call that does not come over HTTP/2: over HTTP/1.1 its body would be waited for in vain.
pub(super) async fn over_http2(request: Request, next: Next) -> Response {
    if request.version() == Version::HTTP_2 {
        return next
            .run(request.map(|body| Body::new(Explained(body))))
            .await;
    }
    let message = "gRPC needs HTTP/2; over HTTP/1.1 use the JSON interface, see /openapi.json";
    shell::refusal(Code::HttpVersion, message.to_owned())
}

/// Ends streams when the server goes down: those of the health service and of reflection, which know nothing
/// of that. First the answers end, with the reason; only then the questions, because a service that sees them
/// end says that all went well.
pub(super) async fn until_draining(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Response {
    let (answering, answered) = oneshot::channel::<()>();
    let request = request.map(|body| {
        Body::new(Ending {
            body: Some((body, None)),
            last: None,
            end: Box::pin(async {
                // It is never sent anything: that the sender is gone is the news.
                let _ = answered.await;
            }),
        })
    });
    let stopping = Refusal::new(Code::Unavailable, "the server is stopping");
    let response = next.run(request).await;
    response.map(|body| {
        Body::new(Ending {
            body: Some((body, Some(answering))),
            last: Some(status(&stopping)),
            end: Box::pin(app.draining()),
        })
    })
}

/// The body of a call, whose errors are statuses.
struct Explained(Body);

impl HttpBody for Explained {
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
                error => status(&Refusal::new(error.code(), error.to_string())),
            })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// A stream, until it is ended.
struct Ending {
    /// With the answers, what ends the questions when it goes.
    body: Option<(Body, Option<oneshot::Sender<()>>)>,
    /// How a stream of answers ends then.
    last: Option<Status>,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl HttpBody for Ending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some((body, _)) = &mut self.body else {
            return Poll::Ready(None);
        };
        // What is there goes first: a health watch is told that the server does not serve any more.
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
