//! The session as a gRPC stream. One object does both directions inside the response's poll, messages and their framing, so that
//! an idle session has no buffers, as in the plain form.

use std::convert::Infallible;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use hyper::body::Frame;
use palisade_proto::Code;
use palisade_proto::frames;
use palisade_proto::v1::{Replies, Requests};
use prost::Message as _;
use tonic::Status;

use super::super::convert::Refusal;
use super::super::gate;
use super::super::grpc_status::status;
use super::flow::{FRAMES_A_TURN, Flow};
use super::{Sessions, buffers};

/// The answer to a call that opens a session.
pub(in crate::net) async fn open(sessions: Arc<Sessions>, request: Request) -> Response {
    match ReplyStream::new(sessions, request) {
        Ok(replies) => {
            let mut response = Response::new(Body::new(replies));
            let grpc = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert(CONTENT_TYPE, grpc);
            response
        }
        Err(refusal) => status(&refusal).into_http(),
    }
}

/// A session's replies, as the body of the response.
struct ReplyStream {
    flow: Flow,
    /// The frames of requests; `None` when the client sends no more.
    frames: Option<GrpcFrames>,
    /// Why the session ends early; sent after all answers.
    failed: Option<Status>,
    draining: Pin<Box<dyn Future<Output = ()> + Send>>,
    ended: bool,
}

impl ReplyStream {
    /// # Errors
    /// The caller is unknown, the messages are compressed, or a quota is used up.
    fn new(sessions: Arc<Sessions>, request: Request) -> Result<ReplyStream, Refusal> {
        let encoding = request.headers().get("grpc-encoding");
        if let Some(encoding) = encoding
            && encoding != "identity"
        {
            let why = format!("a session compressed with {encoding:?}; send it as it is");
            return Err(Refusal::new(Code::NotFound, why));
        }
        let who = gate::who(request.extensions())?;
        let mut flow = Flow::new(Arc::clone(&sessions));
        flow.open(who)?;
        Ok(ReplyStream {
            draining: Box::pin(sessions.phases.draining()),
            frames: Some(GrpcFrames::new(request.into_body(), &sessions)),
            flow,
            failed: None,
            ended: false,
        })
    }

    /// Takes no more requests.
    fn close(&mut self, failed: Option<Status>) {
        self.frames = None;
        self.flow.close();
        self.failed = self.failed.take().or(failed);
    }

    /// Reads frames while the client may have more in flight. `Ready` means: read again after the answers have had
    /// their turn.
    fn poll_frames(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..FRAMES_A_TURN {
            let Some(frames) = &mut self.frames else {
                return Poll::Pending;
            };
            if !self.flow.has_room() {
                return Poll::Pending;
            }
            match frames.operations() {
                Ok(Some(operations)) if !self.flow.may_take(operations, cx) => {
                    return Poll::Pending;
                }
                Ok(Some(_)) => match frames.take() {
                    Ok(frame) => self.flow.submit(frame),
                    Err(refusal) => self.close(Some(status(&refusal))),
                },
                Ok(None) if !self.flow.may_arrive(frames.announced(), cx) => {
                    return Poll::Pending;
                }
                Ok(None) => match ready!(frames.poll_piece(cx)) {
                    Ok(true) => {}
                    Ok(false) => self.close(None),
                    Err(failed) => self.close(Some(failed)),
                },
                Err(refusal) => self.close(Some(status(&refusal))),
            }
        }
        Poll::Ready(())
    }

    /// The next replies; `None` when there are no more, or the reason why the session ends early.
    fn poll_replies(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Replies, Status>>> {
        // The connection takes the next frame only after it has passed on the last one.
        self.flow.sent();
        if self.frames.is_some() && self.draining.as_mut().poll(cx).is_ready() {
            self.close(Some(Status::unavailable("the server is stopping")));
        }
        let more = self.poll_frames(cx).is_ready();
        let mut replies = Vec::new();
        let turn = self.flow.poll_replies(cx, |reply| replies.push(reply));
        if !replies.is_empty() {
            return Poll::Ready(Some(Ok(Replies { replies })));
        }
        if turn.is_ready() {
            // The pipeline has no more answers for this session.
            return Poll::Ready(self.failed.take().map(Err));
        }
        if more {
            // More frames are ready: come back after others have had their turn.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl HttpBody for ReplyStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let last = match ready!(self.poll_replies(cx)) {
            Some(Ok(replies)) => return Poll::Ready(Some(Ok(Frame::data(message(&replies))))),
            Some(Err(failed)) => failed,
            None => Status::ok(""),
        };
        self.ended = true;
        let mut trailers = HeaderMap::new();
        let added = last.add_header(&mut trailers);
        assert!(added.is_ok(), "a status is encoded for its headers");
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

/// A message as gRPC sends it.
fn message(replies: &Replies) -> Bytes {
    let length = replies.encoded_len();
    let mut bytes = Vec::with_capacity(PREFIX + length);
    let Ok(announced) = u32::try_from(length) else {
        unreachable!("a frame of replies has {length} bytes");
    };
    bytes.push(0);
    bytes.extend_from_slice(&announced.to_be_bytes());
    replies.encode_raw(&mut bytes);
    bytes.into()
}

/// Before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The messages of a request's body. A frame's operations are counted before it is decoded.
struct GrpcFrames {
    body: Body,
    /// The bytes that have arrived, and how many of them are done with.
    arrived: Vec<u8>,
    done: usize,
    most_bytes: usize,
    most_operations: usize,
}

impl GrpcFrames {
    fn new(body: Body, sessions: &Sessions) -> GrpcFrames {
        GrpcFrames {
            body,
            arrived: Vec::new(),
            done: 0,
            most_bytes: sessions.frame_bytes,
            most_operations: sessions.frame_operations,
        }
    }

    /// The length that the first frame announces; 0 if that is not known yet.
    fn announced(&self) -> usize {
        match self.arrived[self.done..].first_chunk() {
            Some(&[_, a, b, c, d]) => u32::from_be_bytes([a, b, c, d]) as usize,
            None => 0,
        }
    }

    /// Waits for more bytes; `false` when the client sends no more, or has gone.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Status>> {
        self.arrived.drain(..mem::take(&mut self.done));
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_pending() {
            buffers::take_back(&mut self.arrived);
        }
        Poll::Ready(match ready!(polled) {
            Some(Ok(frame)) => {
                if let Some(piece) = frame.data_ref() {
                    buffers::lend(&mut self.arrived);
                    self.arrived.extend_from_slice(piece);
                }
                Ok(true)
            }
            Some(Err(error)) => match Status::from_error(error.into()) {
                gone if gone.code() == tonic::Code::Cancelled => Ok(false),
                failed => Err(failed),
            },
            None if self.arrived.is_empty() => Ok(false),
            None => {
                let cut = Refusal::invalid("the stream ended within a message");
                Err(status(&cut))
            }
        })
    }

    /// How many operations the first frame has, if all of it is there.
    fn operations(&self) -> Result<Option<usize>, Refusal> {
        let Some(frame) = self.first()? else {
            return Ok(None);
        };
        let counted = frames::check_count(frame, self.most_operations);
        counted
            .map(Some)
            .map_err(|error| Refusal::invalid(error.to_string()))
    }

    /// The first frame, if all of it is there.
    fn first(&self) -> Result<Option<&[u8]>, Refusal> {
        let arrived = &self.arrived[self.done..];
        let Some((prefix, rest)) = arrived.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        if prefix[0] != 0 {
            let why = "a message that is compressed; send it as it is";
            return Err(Refusal::invalid(why));
        }
        let (length, most) = (self.announced(), self.most_bytes);
        if length > most {
            let why = format!("a frame of {length} bytes; at most {most} are allowed");
            return Err(Refusal::new(Code::TooLarge, why));
        }
        Ok(rest.get(..length))
    }

    /// Takes the first frame, whose operations were counted.
    fn take(&mut self) -> Result<Requests, Refusal> {
        let Some(frame) = self.first()? else {
            unreachable!("a frame that was counted has arrived");
        };
        let bytes = PREFIX + frame.len();
        let frame = Requests::decode(frame)
            .map_err(|error| Refusal::invalid(format!("a frame that is not a message: {error}")))?;
        self.done += bytes;
        Ok(frame)
    }
}
