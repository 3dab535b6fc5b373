//! The body of an answer while it is sent.

use std::fmt;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::{Buf, Bytes};
use hyper::body::{Frame, SizeHint};

use super::ExchangeKind;
use super::activity::RunningRequest;
use super::budget::{ByteBudget, Charge};

/// An answer's body. Its request counts as in flight, and its bytes as held, until the last piece is in the socket:
/// HTTP/2 takes pieces from here before its peer allows it to send them.
pub(super) struct CountedAnswer {
    body: Body,
    running: Arc<RunningRequest>,
    /// The budget for its pieces; `None` for an answer without an end.
    budget: Option<Arc<ByteBudget>>,
}

impl CountedAnswer {
    pub(super) fn new(
        body: Body,
        exchange: ExchangeKind,
        mut running: RunningRequest,
        budget: &Arc<ByteBudget>,
    ) -> CountedAnswer {
        let bounded = exchange == ExchangeKind::Unary;
        if bounded {
            running.answering();
        }
        CountedAnswer {
            body,
            running: Arc::new(running),
            budget: bounded.then(|| Arc::clone(budget)),
        }
    }

    fn piece(&self, bytes: Bytes) -> Result<AnswerPiece, axum::Error> {
        let mut charge = self.budget.as_ref().map(ByteBudget::charge);
        if let Some(charge) = &mut charge
            && !charge.add(bytes.len())
        {
            return Err(axum::Error::new(TooMuchUnread));
        }
        Ok(AnswerPiece {
            bytes,
            _charge: charge,
            _running: Arc::clone(&self.running),
        })
    }
}

/// Too many bytes of answers wait for their reader, on this connection or on all.
#[derive(Debug, thiserror::Error)]
#[error("too many bytes of answers are unread")]
struct TooMuchUnread;

impl HttpBody for CountedAnswer {
    type Data = AnswerPiece;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<AnswerPiece>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        polled.map(|frame| {
            Some(match frame? {
                Ok(frame) => match frame.into_data() {
                    Ok(bytes) => self.piece(bytes).map(Frame::data),
                    Err(frame) => match frame.into_trailers() {
                        Ok(trailers) => Ok(Frame::trailers(trailers)),
                        // A frame has no third kind.
                        Err(_) => return None,
                    },
                },
                Err(error) => Err(error),
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Debug for CountedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

/// A piece of an answer, charged until it is in the socket.
pub(super) struct AnswerPiece {
    bytes: Bytes,
    _charge: Option<Charge>,
    _running: Arc<RunningRequest>,
}

impl Buf for AnswerPiece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.bytes.chunks_vectored(slices)
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}
