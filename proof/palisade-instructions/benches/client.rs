//! The client's side of an acquire and its release, so often that connecting does not count: `client STEP TIMES`.
//!
//! `cargo xtask bench instructions` runs it under callgrind, like the benchmark of the server beside it.
//!
//! ```text
//!   callers ──► Palisade ──► Unix socket ──► peer: prepared replies, whenever the client has nothing left to do
//! ```
//!
//! Client and peer share one thread, so counts do not depend on which of them the system runs first. The counts do not
//! include the kernel's work, nor the cost of the clock outside callgrind.
//!
//! A turn is one acquire and one release: `client-pair` with nothing else in flight, `client-batch` with 64 in flight on
//! one connection, `client-guard` as `client-pair` with a guard. Without arguments it names its steps.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement ends by panicking"
)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

use palisade_client::palisade::Palisade;
use palisade_client::service::{AcquireRequest, Acquired, LockService, Under};
use palisade_client::{Client, secs};
use palisade_core::{ClientId, GrantRef, LockName, RequestId, Ttl};
use palisade_instructions::Step;
use palisade_proto::frames::{self, FrameBuilder};
use palisade_proto::v1 as pb;
use pb::reply::Outcome;

const STEPS: [(&str, Step); 3] = [
    ("client-pair", pair),
    ("client-batch", batch),
    ("client-guard", guard),
];

/// Operations in flight in a batch.
const IN_FLIGHT: u64 = 64;

fn main() {
    palisade_instructions::run(&STEPS);
}

fn pair(times: u64) {
    with_peer(1, async |service| {
        tokio::spawn(pairs(service, 0, times)).await.unwrap();
    });
}

/// In whole rounds of one turn for each caller.
fn batch(times: u64) {
    with_peer(IN_FLIGHT, async |service| {
        let callers = (0..IN_FLIGHT).map(|caller| {
            let service = Arc::clone(&service);
            tokio::spawn(pairs(service, caller, times / IN_FLIGHT))
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
    });
}

async fn pairs(service: Arc<dyn LockService>, caller: u64, times: u64) {
    let lock = LockName::new(&format!("bench/7f3a/12/{caller}")).unwrap();
    let client = ClientId::new(&format!("bench-7f3a-12-{caller}")).unwrap();
    let ttl = Ttl::from_millis(10_000).unwrap();
    for number in 0..times {
        let acquired = service.acquire(AcquireRequest::new(
            lock.clone(),
            client.clone(),
            Under::new(ttl),
            RequestId::from_bytes(u128::from(number).to_be_bytes()),
        ));
        let Acquired::Granted(granted) = acquired.await.unwrap() else {
            panic!("the peer grants everything");
        };
        let grant = GrantRef {
            lock: lock.clone(),
            key: granted.key,
            token: Some(granted.number()),
        };
        service.release(grant).await.unwrap();
    }
}

fn guard(times: u64) {
    with_peer(1, async |service| {
        let client = Client::new(service).unwrap();
        let caller = tokio::spawn(async move {
            for _ in 0..times {
                let lock = client.lock("bench/7f3a/12/40").ttl(secs(10));
                let lease = lock.acquire().await.unwrap();
                lease.release().await.unwrap();
            }
        });
        caller.await.unwrap();
    });
}

/// Runs a step against a peer that expects this many operations in each frame.
fn with_peer(operations: u64, step: impl AsyncFnOnce(Arc<dyn LockService>)) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("peer");
    let peer = Mutex::new(Peer::new(UnixListener::bind(&socket).unwrap(), operations));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || peer.lock().unwrap().turn())
        .build();
    runtime.unwrap().block_on(async {
        let url = format!("unix://{}", socket.display());
        step(Arc::new(Palisade::connect(&url, 1).await.unwrap())).await;
    });
}

/// Answers the first question with a status, and from then on every frame in turn with grants and with releases.
struct Peer {
    listener: UnixListener,
    session: Option<UnixStream>,
    inbound: Vec<u8>,
    operations: usize,
    status: Vec<u8>,
    granted: Vec<u8>,
    released: Vec<u8>,
}

impl Peer {
    fn new(listener: UnixListener, operations: u64) -> Peer {
        listener.set_nonblocking(true).unwrap();
        let status = Outcome::Status(pb::Status {
            authority: "7f3a".to_owned(),
            ..Default::default()
        });
        let granted = Outcome::Granted(pb::Granted {
            fencing_token: 123_456,
            lock_token: vec![7; 16],
            lease_id: 123_456,
            lease_duration_ms: 10_000,
            valid_for_ms: 10_000,
            acquired_at_ms: 1_764_201_600_000,
            ..Default::default()
        });
        let released = Outcome::Released(pb::Released {
            fencing_token: 123_456,
            delayed_ms: 0,
        });
        Peer {
            listener,
            session: None,
            inbound: vec![0; 64 << 10],
            operations: usize::try_from(operations).unwrap(),
            status: replies(1, &status),
            granted: replies(operations, &granted),
            released: replies(operations, &released),
        }
    }

    fn turn(&mut self) {
        let Some(session) = &mut self.session else {
            self.session = self.listener.accept().ok().map(|(session, _)| session);
            if let Some(session) = &self.session {
                session.set_nonblocking(true).unwrap();
                self.turn();
            }
            return;
        };
        let read = match session.read(&mut self.inbound) {
            Ok(read) => &self.inbound[..read],
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        };
        if read.starts_with(&frames::PREFACE) {
            return session.write_all(&self.status).unwrap();
        }
        // One frame with all of them, so that their ids are those of the replies.
        let frame = frames::first(read, read.len()).unwrap().unwrap();
        assert_eq!(frames::HEADER + frame.len(), read.len());
        assert_eq!(
            frames::check_count(frame, self.operations),
            Ok(self.operations)
        );
        session.write_all(&self.granted).unwrap();
        std::mem::swap(&mut self.granted, &mut self.released);
    }
}

/// A frame of replies to this many operations.
fn replies(operations: u64, outcome: &Outcome) -> Vec<u8> {
    let mut bytes = Vec::new();
    let frame = FrameBuilder::at_end(&mut bytes);
    for id in 1..=operations {
        let outcome = Some(outcome.clone());
        frame.put(&mut bytes, &pb::Reply { id, outcome });
    }
    frame.close(&mut bytes);
    bytes
}
