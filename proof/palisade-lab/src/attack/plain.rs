//! The plain session for attacks.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use palisade_proto::frames::{HEADER, PREFACE};
use palisade_proto::v1::{self, request::Operation};
use prost::Message as _;

use super::failure::text;

/// A session that sends frames and reads answers only on request.
pub(super) struct Session {
    pub(super) stream: TcpStream,
}

impl Session {
    pub(super) fn to(address: SocketAddr) -> Result<Session, String> {
        let mut stream = TcpStream::connect(address).map_err(text)?;
        let time = Some(Duration::from_secs(20));
        stream.set_read_timeout(time).map_err(text)?;
        stream.set_write_timeout(time).map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        stream.write_all(&PREFACE).map_err(text)?;
        Ok(Session { stream })
    }

    /// Sends a frame of these bytes, valid or not.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<(), String> {
        let length = u32::try_from(message.len()).map_err(text)?;
        self.stream.write_all(&length.to_be_bytes()).map_err(text)?;
        self.stream.write_all(message).map_err(text)
    }

    /// Reads one frame of answers.
    pub(super) fn receive(&mut self) -> Result<Vec<v1::Reply>, String> {
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header).map_err(text)?;
        let mut message = vec![0; u32::from_be_bytes(header) as usize];
        self.stream.read_exact(&mut message).map_err(text)?;
        let replies = v1::Replies::decode(&*message).map_err(text)?;
        Ok(replies.replies)
    }

    /// Sends operations and reads all answers; returns how many were granted.
    pub(super) fn all(&mut self, operations: Vec<Operation>) -> Result<usize, String> {
        let count = operations.len();
        self.send(&frame(operations))?;
        let (mut answered, mut granted) = (0, 0);
        while answered < count {
            let replies = self.receive()?;
            answered += replies.len();
            let is_grant =
                |reply: &&v1::Reply| matches!(reply.outcome, Some(v1::reply::Outcome::Granted(_)));
            granted += replies.iter().filter(is_grant).count();
        }
        Ok(granted)
    }

    /// Reads and discards, on its own thread, until the connection ends.
    pub(super) fn discard(&self) -> Result<(), String> {
        let mut stream = self.stream.try_clone().map_err(text)?;
        std::thread::spawn(move || {
            let mut bytes = vec![0; 1 << 20];
            while matches!(stream.read(&mut bytes), Ok(1..)) {}
        });
        Ok(())
    }
}

/// The message with these operations, numbered from 1.
pub(super) fn frame(operations: Vec<Operation>) -> Vec<u8> {
    let requests = operations
        .into_iter()
        .zip(1..)
        .map(|(operation, id)| v1::Request {
            id,
            operation: Some(operation),
        });
    let requests = requests.collect();
    v1::Requests { requests }.encode_to_vec()
}

pub(super) fn acquire(lock: String, client: &str, metadata: &str) -> Operation {
    Operation::Acquire(v1::AcquireRequest {
        lock,
        client_id: client.to_owned(),
        lease_duration_ms: 3_600_000,
        metadata: metadata.to_owned(),
        ..v1::AcquireRequest::default()
    })
}

/// A release of a lock that nobody holds, by somebody who never did.
pub(super) fn stranger(number: usize) -> Operation {
    Operation::Release(v1::ReleaseRequest {
        lock: format!("{number:0>40}"),
        lock_token: vec![7; 16],
        fencing_token: 1,
    })
}

/// Waits for the lock `held` for a moment.
pub(super) fn waiter() -> Operation {
    Operation::Acquire(v1::AcquireRequest {
        lock: "held".to_owned(),
        client_id: "waiter".to_owned(),
        lease_duration_ms: 10_000,
        wait_ms: 1,
        ..v1::AcquireRequest::default()
    })
}

/// A listing of the maximum size.
pub(super) fn listing() -> Operation {
    Operation::List(v1::ListRequest {
        limit: 1_000,
        ..v1::ListRequest::default()
    })
}

/// Holds a thousand locks with long names, so that a page of the listing is large.
pub(super) fn fill(address: SocketAddr) -> Result<(), String> {
    let lock = |at| acquire(format!("{:0>200}", at), "filler", "");
    let granted = Session::to(address)?.all((0..1_000).map(lock).collect())?;
    match granted {
        1_000 => Ok(()),
        other => Err(format!("{other} of 1,000 locks were granted")),
    }
}
