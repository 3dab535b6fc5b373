//! What a shell serves, over what, and to whom.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use palisade_proto::Code;
use palisade_proto::codes::Row;
use palisade_proto::json::{ErrorBody, ErrorReply};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// What answers on a port, beside its router.
pub trait Service: Send + Sync + 'static {
    /// The byte that opens a connection of the service's own protocol. No HTTP request begins with it.
    const OWN_PROTOCOL: Option<u8> = None;

    /// What may come and go under this request.
    fn exchange(&self, head: &Parts) -> Exchange;

    /// A refusal of the shell, in the form of this service's other refusals.
    fn refuse(&self, code: Code, message: String) -> Response {
        refusal(code, message)
    }

    /// Serves a connection that opened with [`OWN_PROTOCOL`](Service::OWN_PROTOCOL), to its end; `read`
    /// was read from it already.
    fn serve_own<T: Transport>(
        self: Arc<Self>,
        stream: T,
        read: Bytes,
        peer: Peer,
    ) -> impl Future<Output = ()> + Send {
        let _ = (stream, read, peer);
        async {}
    }
}

/// What may come and go under one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// One body, one answer: both have bounds in bytes and in time.
    Unary,
    /// One body, bounded, and an answer that has no end (a watch).
    Watch,
    /// gRPC messages in both directions without an end. Each message has the bounds of a body's time and
    /// the budget's bytes; how long one may be is the service's. Between messages there may be any pause.
    Session,
    /// Bytes that go on to somebody else; their handler bounds them.
    Proxied,
}

/// What a connection is carried by: a TCP socket, or TLS on one.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Takes the connection off this runtime. What it returns puts it on the runtime that calls it.
    ///
    /// # Errors
    /// What the system said.
    fn detach(self) -> io::Result<impl FnOnce() -> io::Result<Self> + Send + 'static>
    where
        Self: Sized;
}

impl Transport for TcpStream {
    fn detach(self) -> io::Result<impl FnOnce() -> io::Result<TcpStream> + Send + 'static> {
        let stream = self.into_std()?;
        Ok(move || TcpStream::from_std(stream))
    }
}

/// Who is at the other end. Every request carries it among its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where the connection comes from.
    pub address: SocketAddr,
    /// Who it is.
    pub caller: Caller,
}

/// Who a peer has shown to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Caller {
    /// It has not said, and was not asked.
    Anonymous,
}

/// A refusal as JSON, as `docs/errors.md` shows it.
#[must_use]
pub fn refusal(code: Code, message: String) -> Response {
    let body = ErrorReply {
        error: ErrorBody::new(code, message),
    };
    let body = serde_json::to_vec(&body).unwrap_or_default();
    let status =
        StatusCode::from_u16(Row::of(code).http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = HeaderValue::from_static("application/json");
    (status, [(CONTENT_TYPE, json)], body).into_response()
}
