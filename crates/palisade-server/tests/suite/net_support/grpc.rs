//! A gRPC client and short ways to write messages.

use palisade_proto::v1::locks_client::LocksClient;
use palisade_proto::v1::reply::Outcome;
use palisade_proto::v1::{self, Reply};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::Server;

pub(crate) async fn channel(server: &Server) -> Channel {
    Endpoint::from_shared(format!("http://{}", server.addr))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

pub(crate) async fn client(server: &Server) -> LocksClient<Channel> {
    LocksClient::new(channel(server).await)
}

pub(crate) fn acquire(lock: &str, client: &str, wait_ms: u32) -> v1::AcquireRequest {
    v1::AcquireRequest {
        lock: lock.into(),
        client_id: client.into(),
        lease_duration_ms: 10_000,
        wait_ms,
        ..v1::AcquireRequest::default()
    }
}

pub(crate) fn release(lock: &str, lock_token: &[u8]) -> v1::ReleaseRequest {
    v1::ReleaseRequest {
        lock: lock.into(),
        lock_token: lock_token.to_vec(),
        fencing_token: 0,
    }
}

pub(crate) fn granted(outcome: Option<Outcome>) -> v1::Granted {
    match outcome {
        Some(Outcome::Granted(granted)) => granted,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn error(outcome: Option<Outcome>) -> v1::Error {
    match outcome {
        Some(Outcome::Error(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// The outcome of a unary call.
pub(crate) fn said(reply: Result<tonic::Response<Reply>, Status>) -> Option<Outcome> {
    reply.unwrap().into_inner().outcome
}
