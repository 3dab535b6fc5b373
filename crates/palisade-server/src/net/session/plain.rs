//! The session as frames on a bare connection: see [`palisade_proto::frames`].
//!
//! ```text
//!            ┌───────────── one task, one poll ─────────────┐
//!   socket ─►│ inbound ─► frames ─► Flow ─► frame ─► outbound │─► socket
//!            └──────────────────────────────────────────────┘
//! ```
//!
//! It reads only while nothing is left to write, so it does not read from a client that does not read its replies. All
//! replies that became ready since the last write leave in one frame, with one system call.

use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BufMut as _;
use palisade_proto::frames::{self, FrameBuilder, TooLong};
use palisade_proto::v1::Requests;
use palisade_proto::{Code, borrowed};
use prost::Message as _;
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::super::convert::{Refusal, grpc as convert};
use super::super::phases::PhaseEnd;
use super::flow::{FRAMES_A_TURN, Flow};
use super::{Sessions, buffers};
use crate::shell::{Peer, Transport};

/// Serves one session to its end; `read` was already read from the stream.
pub(in crate::net) async fn serve<T: Transport>(
    sessions: Arc<Sessions>,
    stream: T,
    read: Vec<u8>,
    peer: Peer,
) {
    let mut cutting = sessions.phases.until_cutting();
    let mut plain = Plain::new(sessions, stream, read, peer);
    let ended = std::future::poll_fn(|cx| match cutting.poll(cx) {
        Poll::Ready(()) => Poll::Ready(Ok(())),
        Poll::Pending => plain.poll(cx),
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "session ended");
    }
}

/// The only frame of a session that is refused before it begins.
pub(in crate::net) fn refused(refusal: &Refusal) -> Vec<u8> {
    let mut outbound = Vec::new();
    let frame = FrameBuilder::at_end(&mut outbound);
    frame.put(&mut outbound, &convert::refused(0, refusal));
    frame.close(&mut outbound);
    outbound
}

/// The operations of any frame.
fn decode(frame: &[u8]) -> Result<Requests, Refusal> {
    let requests = Requests::decode(frame)
        .map_err(|error| Refusal::invalid(format!("a frame that is not a message: {error}")))?;
    if requests.requests.iter().any(|request| request.id == 0) {
        let why = "an operation of a plain session must not have id 0";
        return Err(Refusal::invalid(why));
    }
    Ok(requests)
}

struct Plain<T> {
    flow: Flow,
    /// The peer: its address, and its identity if it has a certificate.
    peer: Peer,
    stream: T,
    inbound: Vec<u8>,
    outbound: Vec<u8>,
    /// How many bytes of `outbound` are written.
    written: usize,
    /// Whether the preface was read.
    opened: bool,
    /// Whether more is read.
    reading: bool,
    /// The number of empty frames to answer.
    pings: usize,
    /// The work of this turn: operations, replies, and bytes weighed like them.
    done: usize,
    /// Why the session ends early; sent after all answers.
    failed: Option<Refusal>,
    draining: PhaseEnd,
    liveness: LivenessCheck,
}

impl<T: Transport> Plain<T> {
    fn new(sessions: Arc<Sessions>, stream: T, inbound: Vec<u8>, peer: Peer) -> Plain<T> {
        Plain {
            draining: sessions.phases.until_draining(),
            flow: Flow::new(sessions),
            peer,
            stream,
            inbound,
            outbound: Vec::new(),
            written: 0,
            opened: false,
            reading: true,
            pings: 0,
            done: 0,
            failed: None,
            liveness: LivenessCheck::new(),
        }
    }

    /// `Ready` when the session is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.reading && self.draining.poll(cx).is_ready() {
            let stopping = Refusal::new(Code::Unavailable, "the server is stopping");
            self.close(Some(stopping));
        }
        while self.liveness.poll_tick(cx).is_ready() {
            if self.liveness.is_over(!self.inbound.is_empty()) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        self.done = 0;
        loop {
            ready!(self.poll_flush(cx))?;
            if self.done >= TURN {
                // Other tasks on this thread get their turn; one of them may be the pipeline.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let more = self.poll_inbound(cx).is_ready();
            buffers::take_back(&mut self.inbound);
            let turn = self.gather(cx);
            if !self.outbound.is_empty() {
                continue;
            }
            if turn.is_ready() {
                // The pipeline has no more answers for this session.
                let Some(refusal) = self.failed.take() else {
                    return Pin::new(&mut self.stream).poll_shutdown(cx);
                };
                let frame = FrameBuilder::at_end(&mut self.outbound);
                frame.put(&mut self.outbound, &convert::refused(0, &refusal));
                frame.close(&mut self.outbound);
                continue;
            }
            if more {
                // More is ready: come back after others have had their turn.
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
    }

    /// Accepts no more requests.
    fn close(&mut self, failed: Option<Refusal>) {
        self.reading = false;
        self.flow.close();
        self.failed = self.failed.take().or(failed);
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.outbound.len() {
            let rest = &self.outbound[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        // Sends the bytes that TLS still buffers.
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.written = 0;
        self.outbound.clear();
        buffers::take_back(&mut self.outbound);
        self.flow.sent();
        Poll::Ready(Ok(()))
    }

    /// Reads while the client may have more in flight. `Ready` means: read again after the answers have had their turn.
    fn poll_inbound(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..FRAMES_A_TURN {
            if self.reading
                && let Err(refusal) = self.take_frames(cx)
            {
                self.close(Some(refusal));
            }
            if self.done >= TURN {
                return Poll::Ready(());
            }
            let announced = frames::announced(&self.inbound);
            if !self.reading || !self.flow.has_room() || !self.flow.may_arrive(announced, cx) {
                return Poll::Pending;
            }
            buffers::lend(&mut self.inbound);
            self.inbound.reserve(READ_BYTES);
            let mut room = (&mut self.inbound).limit(READ_BYTES);
            match ready!(pin!(self.stream.read_buf(&mut room)).poll(cx)) {
                Ok(0) | Err(_) => self.close(None),
                Ok(_) => self.liveness.received(),
            }
        }
        Poll::Ready(())
    }

    /// Submits the complete frames while the client may have more in flight.
    fn take_frames(&mut self, cx: &Context<'_>) -> Result<(), Refusal> {
        let inbound = mem::take(&mut self.inbound);
        let mut rest = inbound.as_slice();
        let taken = self.take_from(&mut rest, cx);
        let bytes = inbound.len() - rest.len();
        self.inbound = inbound;
        self.inbound.drain(..bytes);
        taken
    }

    fn take_from(&mut self, inbound: &mut &[u8], cx: &Context<'_>) -> Result<(), Refusal> {
        if !self.opened {
            let Some(preface) = inbound.first_chunk() else {
                return Ok(());
            };
            let mut opening = frames::PREFACE.len();
            let token = match *preface {
                frames::PREFACE => None,
                frames::PREFACE_WITH_TOKEN => {
                    match frames::first(&inbound[opening..], frames::TOKEN_BYTES) {
                        Ok(None) => return Ok(()),
                        Ok(Some(token)) => {
                            opening += frames::HEADER + token.len();
                            Some(str::from_utf8(token).unwrap_or_default())
                        }
                        Err(TooLong { bytes }) => {
                            let why = format!("a token of {bytes} bytes");
                            return Err(Refusal::invalid(why));
                        }
                    }
                }
                _ => {
                    let why = "this server supports only versions 1 and 2 of plain sessions";
                    return Err(Refusal::invalid(why));
                }
            };
            let who = self.flow.sessions.gate.identify(&self.peer, token)?;
            self.flow.open(who)?;
            self.opened = true;
            *inbound = &inbound[opening..];
        }
        let most = self.flow.sessions.frame_bytes;
        let most_operations = self.flow.sessions.frame_operations;
        while self.flow.has_room() && self.done < TURN {
            let frame = match frames::first(inbound, most) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(TooLong { bytes }) => {
                    let message = format!("a frame of {bytes} bytes; at most {most} are allowed");
                    return Err(Refusal::invalid(message));
                }
            };
            let length = frame.len();
            if length == 0 {
                self.pings += 1;
                self.done += 1;
            } else {
                let operations = frames::check_count(frame, most_operations)
                    .map_err(|error| Refusal::invalid(error.to_string()))?;
                if !self.flow.may_take(operations, cx) {
                    return Ok(());
                }
                self.done += operations + length / BYTES_AS_ONE;
                match borrowed::operations(frame, operations) {
                    Some(borrowed) => {
                        let convert = |(id, operation)| (id, convert::borrowed(operation));
                        self.flow.submit_all(borrowed.into_iter().map(convert));
                    }
                    None => self.flow.submit(decode(frame)?),
                }
            }
            self.liveness.completed();
            *inbound = &inbound[frames::HEADER + length..];
        }
        Ok(())
    }

    /// Puts all ready replies into one frame; `Ready` with an empty frame at the session's end.
    fn gather(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        buffers::lend(&mut self.outbound);
        for _ in 0..mem::take(&mut self.pings) {
            frames::put_empty(&mut self.outbound);
        }
        let (outbound, done) = (&mut self.outbound, &mut self.done);
        let frame = FrameBuilder::at_end(outbound);
        let turn = self.flow.poll_replies(cx, |reply| {
            *done += 1;
            frame.put(outbound, &reply);
        });
        self.done += frame.len(&self.outbound) / BYTES_AS_ONE;
        frame.close(&mut self.outbound);
        if self.outbound.is_empty() {
            buffers::take_back(&mut self.outbound);
        }
        turn
    }
}

/// Checks that the client is alive and not stuck in a frame.
struct LivenessCheck {
    interval: Interval,
    /// How many checks in a row found that nothing was received.
    silent: u32,
    /// How many checks in a row found the same frame unfinished.
    stuck: u32,
}

impl LivenessCheck {
    fn new() -> LivenessCheck {
        let mut interval = interval(frames::SILENCE);
        // The first check comes after one period, not at once.
        interval.reset();
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        LivenessCheck {
            interval,
            silent: 0,
            stuck: 0,
        }
    }

    fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        self.interval.poll_tick(cx)
    }

    fn received(&mut self) {
        self.silent = 0;
    }

    fn completed(&mut self) {
        self.stuck = 0;
    }

    /// One check: whether the session should end.
    fn is_over(&mut self, in_a_frame: bool) -> bool {
        self.silent += 1;
        self.stuck = if in_a_frame { self.stuck + 1 } else { 0 };
        self.silent > 2 || self.stuck > 1
    }
}

/// The number of operations and replies after which other tasks on the thread get their turn, and how many bytes weigh
/// as much as one of them: together some milliseconds.
const TURN: usize = 4_096;
const BYTES_AS_ONE: usize = 256;

/// The most that is read at once.
const READ_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_silent_or_stuck_client_is_dropped() {
        let mut liveness = LivenessCheck::new();
        assert!(!liveness.is_over(false) && !liveness.is_over(false) && liveness.is_over(false));
        liveness.received();
        assert!(!liveness.is_over(true));
        liveness.received();
        assert!(
            liveness.is_over(true),
            "bytes arrived, but the frame is still unfinished"
        );
        liveness.received();
        liveness.completed();
        assert!(!liveness.is_over(true));
    }
}
