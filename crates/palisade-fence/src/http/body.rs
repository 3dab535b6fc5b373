//! Request bodies: one that is read to its end before a write begins, and one that fails when it is idle.

use palisade_core::Code;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum_core::body::Body;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep, timeout};

use crate::http::{Policy, Problem};

/// The whole body of a write, and its share of [`Policy::held_bytes`]. Empty for a claim or a read.
#[derive(Debug, Default)]
pub(super) struct WriteBody {
    pub(super) bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

/// Reads the body of a write to its end, within the policy's bounds, so that requests that wait for the write do
/// not wait for its client.
pub(super) async fn read_whole(
    body: Body,
    policy: &Policy,
    room: &Arc<Semaphore>,
) -> Result<WriteBody, Problem> {
    let within = policy.request_time;
    let reading = collect(body, policy.request_bytes, room);
    timeout(within, reading).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {within:?}; nothing was sent");
        let status = StatusCode::REQUEST_TIMEOUT;
        Err(Problem::new(status, Code::RequestTimeout, message))
    })
}

async fn collect(mut body: Body, most: usize, room: &Arc<Semaphore>) -> Result<WriteBody, Problem> {
    if body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
    }
    let (mut bytes, mut held) = (BytesMut::new(), None::<OwnedSemaphorePermit>);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            Problem::invalid(format!("the body broke off: {error}; nothing was sent"))
        })?;
        // Trailers of a request are dropped.
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        if piece.len() > most - bytes.len() {
            return Err(too_large(most));
        }
        let more = room.clone().try_acquire_many_owned(permits(piece.len()));
        let more = more.map_err(|_| {
            Problem::unavailable(
                "the bodies of other requests use all memory for bodies; nothing was sent",
            )
        })?;
        match &mut held {
            Some(held) => held.merge(more),
            None => held = Some(more),
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(WriteBody {
        bytes: bytes.freeze(),
        _room: held,
    })
}

/// The number of permits for a body: one for each byte.
pub(super) fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn too_large(most: usize) -> Problem {
    let message = format!("the body of a write is larger than {most} bytes; nothing was sent");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, Code::TooLarge, message)
        .with("max_bytes", most as u64)
}

/// A body that fails if no piece of it arrives for some time, and counts the pieces.
#[derive(Debug)]
pub struct IdleBody {
    body: Body,
    idle: Duration,
    frames: Arc<AtomicU64>,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl IdleBody {
    /// Creates a body that fails after `idle` without a piece, and adds 1 to `frames` for every piece.
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

/// The body was idle for too long.
#[derive(Debug, thiserror::Error)]
#[error("no piece of the body arrived for {0:?}")]
struct Idle(Duration);
