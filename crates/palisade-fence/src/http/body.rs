//! Bodies: one that ends a flight, and one that does not idle for ever.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep, timeout};

use crate::http::flight::{End, Flight};

/// The body of the answer to a write: the write has ended when this has. A client that does not want the
/// rest changes nothing of that; it is read to its end without it.
pub(super) struct FlightBody {
    body: Body,
    flight: Option<(Flight, End)>,
}

impl FlightBody {
    pub(super) fn around(body: Body, flight: Flight, end: End) -> Body {
        if body.is_end_stream() {
            flight.ended(end);
            return body;
        }
        Body::new(FlightBody {
            body,
            flight: Some((flight, end)),
        })
    }

    fn end(&mut self) {
        if let Some((flight, end)) = self.flight.take() {
            flight.ended(end);
        }
    }
}

impl HttpBody for FlightBody {
    type Data = Bytes;
    type Error = axum_core::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum_core::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(_)) if !self.body.is_end_stream() => {}
            Some(Ok(_)) | None => self.end(),
            // It broke off: dropped unended, so that it settles.
            Some(Err(_)) => drop(self.flight.take()),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for FlightBody {
    fn drop(&mut self) {
        let Some((flight, end)) = self.flight.take() else {
            return;
        };
        let mut body = std::mem::take(&mut self.body);
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let rest = async {
                loop {
                    match body.frame().await {
                        Some(Ok(_)) => {}
                        Some(Err(_)) => return false,
                        None => return true,
                    }
                }
            };
            if timeout(flight.settle(), rest).await == Ok(true) {
                flight.ended(end);
            }
        });
    }
}

/// A body that fails when nothing of it comes for a while, and counts what comes.
#[derive(Debug)]
pub struct IdleBody {
    body: Body,
    idle: Duration,
    frames: Arc<AtomicU64>,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl IdleBody {
    /// `frames` counts up with every piece that comes.
    #[must_use]
    pub fn new(body: Body, idle: Duration, frames: Arc<AtomicU64>) -> IdleBody {
        IdleBody {
            body,
            idle,
            frames,
            waiting: None,
        }
    }
}

impl HttpBody for IdleBody {
    type Data = Bytes;
    type Error = axum_core::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum_core::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.waiting = None;
            self.frames.fetch_add(1, Ordering::Relaxed);
            return Poll::Ready(frame);
        }
        let idle = self.idle;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(idle)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Some(Err(axum_core::Error::new(Idle(idle)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Nothing came.
#[derive(Debug, thiserror::Error)]
#[error("nothing of the body came for {0:?}")]
struct Idle(Duration);
