//! A connection to another node, for this node's calls.
//!
//! ```text
//!   idle ──call──► connecting ──► up ──it ends──► resting ──after the backoff──► idle
//!                      └──────── it fails ──────────┘
//! ```
//!
//! A call waits while a connection is being made, and fails at once while the link rests.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};

use super::handshake::Lane;
use super::secure::Halves;
use super::{LONGEST_MESSAGE, Shared, frame, hold};
use crate::entry::NodeId;

/// Calls that wait to be written.
const WAITING: usize = 64;

/// The first byte of an answer.
pub(super) const ANSWERED: u8 = 0;
pub(super) const NOT_READY: u8 = 1;

/// See the module.
pub(super) struct PeerLink {
    to: NodeId,
    address: String,
    lane: Lane,
    phase: watch::Sender<Phase>,
    /// In a row.
    failures: AtomicU32,
}

#[derive(Clone)]
enum Phase {
    Idle,
    Connecting,
    Up(Arc<Line>),
    Resting,
}

impl PeerLink {
    pub(super) fn new(to: NodeId, address: &str, lane: Lane) -> PeerLink {
        PeerLink {
            to,
            address: address.to_owned(),
            lane,
            phase: watch::Sender::new(Phase::Idle),
            failures: AtomicU32::new(0),
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Sends a message and waits for its answer, however long that takes.
    pub(super) async fn call(
        self: &Arc<PeerLink>,
        shared: &Arc<Shared>,
        message: Vec<u8>,
    ) -> io::Result<Vec<u8>> {
        let line = self.line(shared).await?;
        let answer = line.call(message).await?;
        match answer.split_first() {
            Some((&ANSWERED, answer)) => Ok(answer.to_vec()),
            Some((&NOT_READY, _)) => Err(self.unreachable("is not ready")),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn unreachable(&self, why: &str) -> io::Error {
        let why = format!("node {} at {} {why}", self.to, self.address);
        io::Error::new(io::ErrorKind::ConnectionRefused, why)
    }

    async fn line(self: &Arc<PeerLink>, shared: &Arc<Shared>) -> io::Result<Arc<Line>> {
        let mut phase = self.phase.subscribe();
        loop {
            let now = phase.borrow_and_update().clone();
            match now {
                Phase::Up(line) => return Ok(line),
                Phase::Resting => return Err(self.unreachable("cannot be reached")),
                Phase::Connecting => {}
                Phase::Idle => self.connect(shared),
            }
            let gone = |_| io::Error::from(io::ErrorKind::ConnectionRefused);
            phase.changed().await.map_err(gone)?;
        }
    }

    /// Starts to connect, if nobody does.
    fn connect(self: &Arc<PeerLink>, shared: &Arc<Shared>) {
        let begin = |phase: &mut Phase| {
            let idle = matches!(phase, Phase::Idle);
            if idle {
                *phase = Phase::Connecting;
            }
            idle
        };
        if self.phase.send_if_modified(begin) {
            let (link, shared) = (Arc::clone(self), Arc::clone(shared));
            tokio::spawn(async move {
                tokio::select! {
                    () = link.run(&shared) => {}
                    () = shared.until_stopped() => {}
                }
                // After a stop, callers fail as unreachable, and nothing is tried again.
                if link.lane == Lane::Short {
                    shared.set_connected(link.to, false);
                }
                if *shared.stopped.borrow() {
                    link.phase.send_replace(Phase::Resting);
                }
            });
        }
    }

    /// Connects once, carries calls while the connection lasts, and rests.
    async fn run(&self, shared: &Shared) {
        let dialed = shared.dial(Some(self.to), &self.address, self.lane).await;
        if let Ok((connection, _)) = dialed {
            self.failures.store(0, Ordering::Relaxed);
            let (line, outgoing) = Line::new();
            let line = Arc::new(line);
            if self.lane == Lane::Short {
                shared.set_connected(self.to, true);
            }
            self.phase.send_replace(Phase::Up(Arc::clone(&line)));
            line.carry(connection.split(), outgoing).await;
            if self.lane == Lane::Short {
                shared.set_connected(self.to, false);
            }
        }
        self.phase.send_replace(Phase::Resting);
        let (least, most) = shared.settings.backoff;
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let rest = least.saturating_mul(1 << failures.min(16)).min(most);
        tokio::time::sleep(rest).await;
        self.phase.send_replace(Phase::Idle);
    }
}

/// A call, numbered.
type Outgoing = (u64, Vec<u8>);

struct Line {
    outgoing: mpsc::Sender<Outgoing>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Vec<u8>>>>,
    next: AtomicU64,
}

/// Forgets a call that is given up.
struct WaitingCall<'a> {
    line: &'a Line,
    number: u64,
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        hold(&self.line.waiting).remove(&self.number);
    }
}

impl Line {
    fn new() -> (Line, mpsc::Receiver<Outgoing>) {
        let (outgoing, queue) = mpsc::channel(WAITING);
        let line = Line {
            outgoing,
            waiting: Mutex::default(),
            next: AtomicU64::new(0),
        };
        (line, queue)
    }

    async fn call(&self, message: Vec<u8>) -> io::Result<Vec<u8>> {
        let ended = || io::Error::from(io::ErrorKind::ConnectionReset);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, is_answered) = oneshot::channel();
        hold(&self.waiting).insert(number, answer);
        let _waiting = WaitingCall { line: self, number };
        let sent = self.outgoing.send((number, message)).await;
        sent.map_err(|_| ended())?;
        is_answered.await.map_err(|_| ended())
    }

    /// Writes calls and reads answers until either fails; then every caller gets an error.
    async fn carry(&self, (from, to): Halves, outgoing: mpsc::Receiver<Outgoing>) {
        tokio::select! {
            _ = write_all(outgoing, to) => {}
            _ = self.read_all(from) => {}
        }
        hold(&self.waiting).clear();
    }

    async fn read_all(&self, mut from: impl AsyncRead + Unpin) -> io::Result<()> {
        while let Some(frame) = frame::read(&mut from, LONGEST_MESSAGE).await? {
            let (number, answer) = numbered(frame)?;
            // It may have been given up.
            if let Some(caller) = hold(&self.waiting).remove(&number) {
                let _ = caller.send(answer);
            }
        }
        Ok(())
    }
}

/// Writes the queue.
pub(super) async fn write_all(
    mut queue: mpsc::Receiver<Outgoing>,
    mut to: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    while let Some((number, message)) = queue.recv().await {
        frame::write(&mut to, &number.to_le_bytes(), &message).await?;
    }
    Ok(())
}

/// The number at the beginning of a frame, and the rest.
pub(super) fn numbered(mut frame: Vec<u8>) -> io::Result<(u64, Vec<u8>)> {
    let number = frame.first_chunk::<8>().copied();
    let number = number.ok_or(io::ErrorKind::InvalidData)?;
    frame.drain(..8);
    Ok((u64::from_le_bytes(number), frame))
}

/// Small frames go at once, and a peer that acknowledges nothing for `silence` is gone.
pub(super) fn prepare(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    let millis = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(stream, millis)?)
}
