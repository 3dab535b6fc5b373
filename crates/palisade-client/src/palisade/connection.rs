//! One open connection: a plain session, see [`palisade_proto::frames`].
//!
//! ```text
//!   queue ─► ids (Table) ─► outbound ─► socket ─► inbound ─► Table ─► callers
//! ```
//!
//! One task polls one object, so nothing is shared. All queued operations leave in one frame, with one system call.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use palisade_core::Timestamp;
use palisade_proto::borrowed::{Reply, replies};
use palisade_proto::frames::{self, FrameBuilder, TooLong};
use palisade_proto::v1 as pb;
use palisade_tls::Io;
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::listening::NoticeSender;
use super::request::Request;
use super::table::{InFlightTable, ReplyTo};
use super::wire;
use crate::clock::{BootClock, Clock as _};
use crate::fault::{Fault, Reason};
use crate::options::BearerToken;

/// A request that waits for a connection.
pub(super) struct QueuedRequest {
    request: Request,
    pub(super) reply: ReplyTo,
    /// For a request with a wait: when it entered this queue. The time here is part of its wait.
    since: Option<Timestamp>,
}

impl QueuedRequest {
    pub(super) fn new(request: Request, reply: ReplyTo) -> QueuedRequest {
        let since = request.waits().then(|| BootClock.now());
        QueuedRequest {
            request,
            reply,
            since,
        }
    }
}

/// The queue of a link. It outlives connections: an operation that was not sent on one is sent on the next.
pub(super) type RequestQueue = mpsc::UnboundedReceiver<QueuedRequest>;

pub(super) struct Connection {
    stream: Io,
    inbound: BytesMut,
    outbound: Vec<u8>,
    /// How many bytes of `outbound` have been written.
    written: usize,
    table: InFlightTable,
    taken: Vec<QueuedRequest>,
    arrived: Vec<(u64, Reply)>,
    /// Whether the task has yielded once, so that a burst becomes one frame.
    rested: bool,
    liveness: Liveness,
    /// Whether the next connection may present a newer token.
    renewed: bool,
    /// The server's refusal of this connection's token, once it has expired.
    expired: Option<Fault>,
    /// Where notices go. It goes with the connection.
    ear: Option<NoticeSender>,
    /// How often grants were named.
    listened: u64,
    /// Set when the server answers that it does not lead: the leader that it named, if any.
    elsewhere: Option<Option<Box<str>>>,
}

/// The reason why a connection ended.
pub(super) struct ConnectionEnd {
    pub(super) why: Fault,
    /// The URL of the leader, if the server named another node.
    pub(super) leader: Option<Box<str>>,
    /// Whether the server has stopped answering.
    pub(super) silent: bool,
}

impl From<Fault> for ConnectionEnd {
    fn from(why: Fault) -> ConnectionEnd {
        ConnectionEnd {
            why,
            leader: None,
            silent: false,
        }
    }
}

impl Connection {
    /// Opens a session on a socket. The connection is closed if the server is silent for two to three times `ping`.
    pub(super) fn new(stream: Io, ping: Duration, token: Option<&BearerToken>) -> Connection {
        let outbound = match token {
            None => frames::PREFACE.to_vec(),
            Some(token) => {
                let mut opening = frames::PREFACE_WITH_TOKEN.to_vec();
                frames::put_token(&mut opening, token.expose());
                opening
            }
        };
        Connection {
            stream,
            inbound: BytesMut::new(),
            outbound,
            written: 0,
            table: InFlightTable::default(),
            taken: Vec::new(),
            arrived: Vec::new(),
            rested: false,
            liveness: Liveness::new(ping),
            renewed: token.is_some_and(BearerToken::is_renewed),
            expired: None,
            ear: None,
            listened: 0,
            elsewhere: None,
        }
    }

    /// Takes in what a listener hears: notices, and the refusal to send any. Returns whether the reply is for it.
    fn hear(&mut self, id: u64, outcome: &mut pb::reply::Outcome) -> bool {
        let heard = match outcome {
            pb::reply::Outcome::Notice(notice) => Ok(std::mem::take(notice)),
            pb::reply::Outcome::Error(error) if id >= LISTENING => {
                Err(wire::refusal(std::mem::take(error)))
            }
            _ => return id >= LISTENING,
        };
        let refused = heard.is_err();
        if let Some(ear) = &self.ear
            && (ear.send(heard).is_err() || refused)
        {
            self.ear = None;
        }
        true
    }

    /// Puts a listener's grants into the frame, unless the listener was that of an earlier connection.
    fn listen(
        &mut self,
        listen: pb::ListenRequest,
        ear: Option<NoticeSender>,
        frame: &FrameBuilder,
    ) {
        self.ear = ear.or(self.ear.take());
        if self.ear.is_some() {
            let id = LISTENING + self.listened;
            self.listened += 1;
            Request::Listen(listen, None).put(id, None, frame, &mut self.outbound);
        }
    }

    /// Sends one question before any other operation.
    pub(super) async fn ask(&mut self, request: Request) -> Result<Reply, Fault> {
        // The answer to an earlier question says nothing about this one.
        self.elsewhere = None;
        let (reply, mut answer) = oneshot::channel();
        let (asking, mut queue) = mpsc::unbounded_channel();
        let sent = asking.send(QueuedRequest::new(request, reply));
        assert!(sent.is_ok(), "the receiver is in this function");
        tokio::select! {
            answer = &mut answer => answer.unwrap_or_else(|_| Err(wire::empty())),
            // The answer itself may have ended it.
            ended = self.run(&mut queue) => answer.try_recv().unwrap_or(Err(ended.why)),
        }
    }

    /// Carries operations until the connection breaks, its server does not lead, or no caller is left. Returns the
    /// reason.
    pub(super) async fn run(&mut self, queue: &mut RequestQueue) -> ConnectionEnd {
        std::future::poll_fn(|cx| self.poll(cx, queue)).await
    }

    /// Reports an unknown outcome for every operation that was sent and not answered.
    pub(super) fn abandon(self, why: &Fault) {
        self.table.close(why);
    }

    fn poll(&mut self, cx: &mut Context<'_>, queue: &mut RequestQueue) -> Poll<ConnectionEnd> {
        while self.liveness.poll_tick(cx).is_ready() {
            match self.liveness.check() {
                LivenessStep::Fine => {}
                LivenessStep::Ask => frames::put_empty(&mut self.outbound),
                LivenessStep::Gone => {
                    return Poll::Ready(ConnectionEnd {
                        silent: true,
                        ..Fault::unavailable("the server stopped answering").into()
                    });
                }
            }
        }
        if let Poll::Ready(Err(why)) = self.poll_inbound(cx) {
            return Poll::Ready(why.into());
        }
        if let Some(why) = self.expired.take() {
            return Poll::Ready(why.into());
        }
        if let Some(leader) = self.elsewhere.take() {
            let why = Fault::unavailable("the server does not lead");
            return Poll::Ready(ConnectionEnd {
                leader,
                ..why.into()
            });
        }
        // From now on, incoming data wakes this task.
        loop {
            if self.outbound.is_empty() && self.poll_queue(cx, queue).is_ready() {
                return Poll::Ready(Fault::unavailable("no caller is left").into());
            }
            if self.outbound.is_empty() {
                return Poll::Pending;
            }
            match ready!(self.poll_flush(cx)) {
                Ok(()) => self.liveness.sent(),
                Err(error) => {
                    // A server that refuses a client sends the reason and stops reading.
                    let said = match self.poll_inbound(cx) {
                        Poll::Ready(Err(said)) if !said.is_transient() => said,
                        _ => broke(error),
                    };
                    return Poll::Ready(said.into());
                }
            }
        }
    }

    /// Delivers every reply that has arrived. `Ready` means that no more can come.
    fn poll_inbound(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        loop {
            self.inbound.reserve(READ_BYTES);
            match ready!(pin!(self.stream.read_buf(&mut self.inbound)).poll(cx)) {
                Ok(0) => {
                    let why = "the server ended the connection";
                    return Poll::Ready(Err(Fault::unavailable(why)));
                }
                Ok(_) => self.liveness.heard(),
                Err(error) => return Poll::Ready(Err(broke(error))),
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
                Err(TooLong { .. }) => return Err(no_palisade(&self.inbound)),
            };
            let length = frame.len();
            let read = replies(frame, &mut self.arrived);
            read.map_err(|_| no_palisade(&self.inbound))?;
            self.inbound.advance(frames::HEADER + length);
            let mut arrived = std::mem::take(&mut self.arrived);
            for (id, mut reply) in arrived.drain(..) {
                if let Reply::Other(outcome) = &mut reply {
                    if let (0, pb::reply::Outcome::Error(error)) = (id, &mut **outcome) {
                        return Err(wire::refusal(std::mem::take(error)));
                    }
                    if self.renewed {
                        self.expired = wire::expired(outcome).or(self.expired.take());
                    }
                    let elsewhere = wire::leads_elsewhere(outcome);
                    self.elsewhere = elsewhere.or(self.elsewhere.take());
                    if self.hear(id, outcome) {
                        continue;
                    }
                }
                self.table.settle(id, reply);
            }
            self.arrived = arrived;
        }
    }

    /// Puts all queued operations into one frame. `Ready` when no caller is left.
    fn poll_queue(&mut self, cx: &mut Context<'_>, queue: &mut RequestQueue) -> Poll<()> {
        if !self.rested && !self.table.is_empty() && !queue.is_empty() {
            // The first caller of a burst wakes this task before the others have run. One turn of the
            // scheduler later they have queued their operations, and one frame carries them all.
            self.rested = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.rested = false;
        if ready!(queue.poll_recv_many(cx, &mut self.taken, FRAME)) == 0 {
            return Poll::Ready(());
        }
        let frame = FrameBuilder::at_end(&mut self.outbound);
        let mut taken = std::mem::take(&mut self.taken);
        for QueuedRequest {
            request,
            reply,
            since,
        } in taken.drain(..)
        {
            let request = match request {
                Request::Listen(listen, ear) => {
                    self.listen(listen, ear, &frame);
                    continue;
                }
                request => request,
            };
            // Skip an operation whose caller has stopped waiting before it was sent.
            if !reply.is_closed() {
                let id = self.table.enter(reply);
                request.put(id, since, &frame, &mut self.outbound);
            }
        }
        self.taken = taken;
        frame.close(&mut self.outbound);
        if self.outbound.is_empty() {
            // All callers had stopped waiting; poll the queue again to register the waker.
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
        // Send the bytes that TLS has buffered.
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.written = 0;
        self.outbound.clear();
        self.outbound.shrink_to(KEEP_BYTES);
        Poll::Ready(Ok(()))
    }
}

fn broke(error: io::Error) -> Fault {
    // A server refuses a client's certificate after the client's part of the handshake.
    if let Some(why) = palisade_tls::explain(&error) {
        return Fault::invalid(Reason::new(why).quoting(error));
    }
    Fault::unreachable(Reason::new("the connection broke").because(error))
}

/// Describes the program that answered instead, by its first bytes. A session is not HTTP, so an HTTP proxy on the way
/// refuses it.
fn no_palisade(answer: &[u8]) -> Fault {
    if answer.starts_with(b"HTTP/") || answer.starts_with(b"<") {
        let line = answer.split(|byte| matches!(byte, b'\r' | b'\n')).next();
        let line = String::from_utf8_lossy(line.unwrap_or_default());
        let line: String = line.chars().filter(|c| !c.is_control()).take(60).collect();
        return Fault::invalid(format!(
            "a web server or an HTTP proxy answers there ({line}), and this client does not speak HTTP. If a reverse \
             proxy or load balancer stands before the Palisade server, let it pass TCP through (nginx: `stream`, haproxy: \
             `mode tcp`), or give the server's own address"
        ));
    }
    if answer.starts_with(&TLS_ALERT) {
        return Fault::invalid("the server there speaks TLS: write https:// in its address");
    }
    Fault::invalid("the server at this address is not Palisade")
}

/// The start of a TLS server's answer to plain text.
const TLS_ALERT: [u8; 2] = [21, 3];

/// Checks whether the server still answers. A lease of ordinary length must outlast a connection that died silently.
struct Liveness {
    interval: Interval,
    heard: bool,
    sent: bool,
    /// The number of checks in a row that found no sign of the server.
    misses: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum LivenessStep {
    Fine,
    /// Send a message that the server answers.
    Ask,
    Gone,
}

impl Liveness {
    fn new(ping: Duration) -> Liveness {
        let mut interval = interval(ping);
        // The first check is one period from now, not immediate.
        interval.reset();
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Liveness {
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

    fn check(&mut self) -> LivenessStep {
        self.misses = if self.heard { 0 } else { self.misses + 1 };
        let spoke = self.sent;
        (self.heard, self.sent) = (false, false);
        match self.misses {
            0 if spoke => LivenessStep::Fine,
            0 | 1 => LivenessStep::Ask,
            _ => LivenessStep::Gone,
        }
    }
}

/// The first id of operations that name grants to hear of. No other operation has one so large.
const LISTENING: u64 = 1 << 63;

/// The largest number of operations in one frame. With the longest names and texts that is under 1 MiB, a
/// quarter of what a server accepts.
const FRAME: usize = 1_024;

/// A frame of replies may carry many pages of a listing.
const LARGEST_FRAME: usize = 64 * 1024 * 1024;

/// The buffer space reserved for each read.
const READ_BYTES: usize = 4 << 10;

/// The buffer space that stays allocated between bursts.
const KEEP_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_silent_server_is_asked_once_and_then_given_up() {
        let mut liveness = Liveness::new(Duration::from_secs(3));
        assert_eq!(liveness.check(), LivenessStep::Ask);
        liveness.heard();
        assert_eq!(
            [liveness.check(), liveness.check()],
            [LivenessStep::Ask, LivenessStep::Ask]
        );
        assert_eq!(liveness.check(), LivenessStep::Gone);
    }

    #[tokio::test]
    async fn a_client_that_only_listens_still_sends_messages() {
        let mut liveness = Liveness::new(Duration::from_secs(3));
        liveness.heard();
        liveness.sent();
        assert_eq!(liveness.check(), LivenessStep::Fine);
        liveness.heard();
        assert_eq!(liveness.check(), LivenessStep::Ask);
    }
}
