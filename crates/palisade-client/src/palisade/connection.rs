//! One connection that is open: a plain session, see [`palisade_proto::frames`].
//!
//! ```text
//!   queue ─► ids (Table) ─► outbound ─► socket ─► inbound ─► Table ─► callers
//! ```
//!
//! One object, polled by one task, does all of it, so nothing here is shared. Everything queued leaves
//! as one frame, with one system call.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use palisade_proto::frames::{self, Open, TooLong};
use palisade_proto::v1 as pb;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::table::{ReplyTo, Table};
use super::wire;
use crate::fault::Fault;

/// An operation on its way to whichever connection comes next.
pub(super) type Queued = (pb::request::Operation, ReplyTo);

/// The queue of a link. It outlives its connections: what was not sent on one goes out on the next.
pub(super) type Queue = mpsc::UnboundedReceiver<Queued>;

pub(super) struct Connection {
    stream: TcpStream,
    inbound: BytesMut,
    outbound: Vec<u8>,
    /// How much of `outbound` is on its way.
    written: usize,
    table: Table,
    taken: Vec<Queued>,
    /// Whether the queue was left alone for a turn, so that a burst becomes one frame.
    rested: bool,
    vigil: Vigil,
}

impl Connection {
    /// Takes over a socket, and opens a session on it.
    pub(super) fn new(stream: TcpStream) -> Connection {
        Connection {
            stream,
            inbound: BytesMut::new(),
            outbound: frames::PREFACE.to_vec(),
            written: 0,
            table: Table::default(),
            taken: Vec::new(),
            rested: false,
            vigil: Vigil::new(),
        }
    }

    /// Asks one question before anybody else may.
    pub(super) async fn ask(
        &mut self,
        operation: pb::request::Operation,
    ) -> Result<pb::reply::Outcome, Fault> {
        let (reply, answer) = oneshot::channel();
        let (asking, mut queue) = mpsc::unbounded_channel();
        let _ = asking.send((operation, reply));
        tokio::select! {
            answer = answer => answer.unwrap_or_else(|_| Err(wire::empty())),
            why = self.run(&mut queue) => Err(why),
        }
    }

    /// Carries operations until the connection breaks, and says why it did. Also ends when nobody is
    /// left who could ask.
    pub(super) async fn run(&mut self, queue: &mut Queue) -> Fault {
        std::future::poll_fn(|cx| self.poll(cx, queue)).await
    }

    /// What was sent and not answered may have happened.
    pub(super) fn abandon(self, why: &Fault) {
        self.table.close(why);
    }

    fn poll(&mut self, cx: &mut Context<'_>, queue: &mut Queue) -> Poll<Fault> {
        while self.vigil.poll_tick(cx).is_ready() {
            match self.vigil.look() {
                Look::Fine => {}
                Look::Ask => frames::put_empty(&mut self.outbound),
                Look::Gone => return Poll::Ready(Fault::unavailable("nothing is heard any more")),
            }
        }
        loop {
            if let Poll::Ready(Err(why)) = self.poll_inbound(cx) {
                return Poll::Ready(why);
            }
            if self.outbound.is_empty() && self.poll_queue(cx, queue).is_ready() {
                return Poll::Ready(Fault::unavailable("nobody asks any more"));
            }
            if self.outbound.is_empty() {
                return Poll::Pending;
            }
            match ready!(self.poll_flush(cx)) {
                Ok(()) => self.vigil.sent(),
                Err(error) => return Poll::Ready(broke(&error)),
            }
        }
    }

    /// Hands out every reply that is there. `Ready` only with the reason why no more can come.
    fn poll_inbound(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        loop {
            self.inbound.reserve(READ_BYTES);
            match ready!(pin!(self.stream.read_buf(&mut self.inbound)).poll(cx)) {
                Ok(0) => {
                    let why = "the server ended the connection";
                    return Poll::Ready(Err(Fault::unavailable(why)));
                }
                Ok(_) => self.vigil.heard(),
                Err(error) => return Poll::Ready(Err(broke(&error))),
            }
            if let Err(why) = self.take_frames() {
                return Poll::Ready(Err(why));
            }
        }
    }

    fn take_frames(&mut self) -> Result<(), Fault> {
        loop {
            let frame = match frames::first(&self.inbound, LARGEST_FRAME) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(TooLong { .. }) => return Err(no_palisade()),
            };
            let length = frame.len();
            let replies = pb::Replies::decode(frame)
                .map_err(|_| no_palisade())?
                .replies;
            self.inbound.advance(frames::HEADER + length);
            for reply in replies {
                match (reply.id, reply.outcome) {
                    (0, Some(pb::reply::Outcome::Error(error))) => {
                        return Err(wire::refusal(error));
                    }
                    (id, Some(outcome)) => self.table.settle(id, outcome),
                    (_, None) => {}
                }
            }
        }
    }

    /// Puts everything queued into one frame. `Ready` when nobody is left who could ask.
    fn poll_queue(&mut self, cx: &mut Context<'_>, queue: &mut Queue) -> Poll<()> {
        if !self.rested && !self.table.is_empty() && !queue.is_empty() {
            // The first caller of a burst wakes this task before the others have run. One turn of the
            // scheduler later they have queued theirs, and one frame carries them all.
            self.rested = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.rested = false;
        if ready!(queue.poll_recv_many(cx, &mut self.taken, FRAME)) == 0 {
            return Poll::Ready(());
        }
        let frame = Open::at_end(&mut self.outbound);
        for (operation, reply) in self.taken.drain(..) {
            // A caller that is gone before its operation was sent wants nothing any more.
            if !reply.is_closed() {
                let id = self.table.enter(reply);
                let operation = Some(operation);
                frame.put(&mut self.outbound, &pb::Request { id, operation });
            }
        }
        frame.close(&mut self.outbound);
        if self.outbound.is_empty() {
            // All of them had gone; the queue has to be asked again to wake this task.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.outbound.len() {
            let rest = &self.outbound[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        self.written = 0;
        self.outbound.clear();
        self.outbound.shrink_to(KEEP_BYTES);
        Poll::Ready(Ok(()))
    }
}

fn broke(error: &io::Error) -> Fault {
    Fault::unavailable(format!("the connection broke: {error}"))
}

fn no_palisade() -> Fault {
    Fault::invalid("what answers there is no Palisade server")
}

/// Looks whether the server is still there. A connection that died without a word must not cost a
/// lease of ordinary length.
struct Vigil {
    interval: Interval,
    heard: bool,
    sent: bool,
    /// Looks in a row that found nothing heard.
    misses: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Look {
    Fine,
    /// Say something that is answered.
    Ask,
    Gone,
}

impl Vigil {
    fn new() -> Vigil {
        let mut interval = interval(PING);
        // The first look is one period from now, not at once.
        interval.reset();
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Vigil {
            interval,
            heard: false,
            sent: false,
            misses: 0,
        }
    }

    fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        self.interval.poll_tick(cx)
    }

    fn heard(&mut self) {
        self.heard = true;
    }

    fn sent(&mut self) {
        self.sent = true;
    }

    fn look(&mut self) -> Look {
        self.misses = if self.heard { 0 } else { self.misses + 1 };
        let spoke = self.sent;
        (self.heard, self.sent) = (false, false);
        match self.misses {
            0 if spoke => Look::Fine,
            0 | 1 => Look::Ask,
            _ => Look::Gone,
        }
    }
}

/// How often is looked. A silent server is given up at the second look.
const PING: Duration = Duration::from_secs(3);

/// Operations in one frame at most. With the longest names and texts that is under 1 MiB, a quarter
/// of what a server takes.
const FRAME: usize = 1_024;

/// A frame of replies may carry many pages of a listing.
const LARGEST_FRAME: usize = 64 * 1024 * 1024;

/// Room made for each read.
const READ_BYTES: usize = 4 << 10;

/// Room kept between bursts.
const KEEP_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_silent_server_is_asked_once_and_then_given_up() {
        let mut vigil = Vigil::new();
        assert_eq!(vigil.look(), Look::Ask);
        vigil.heard();
        assert_eq!([vigil.look(), vigil.look()], [Look::Ask, Look::Ask]);
        assert_eq!(vigil.look(), Look::Gone);
    }

    #[tokio::test]
    async fn a_client_that_only_listens_says_something_all_the_same() {
        let mut vigil = Vigil::new();
        vigil.heard();
        vigil.sent();
        assert_eq!(vigil.look(), Look::Fine);
        vigil.heard();
        assert_eq!(vigil.look(), Look::Ask);
    }
}
