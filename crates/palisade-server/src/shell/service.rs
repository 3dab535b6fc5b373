//! The services of a shell, their transports, and the peers that may use them.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use palisade_proto::Code;
use palisade_proto::codes::CodeRow;
use palisade_proto::json::{ErrorBody, ErrorReply};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::Lifetime;
use palisade_pipeline::clock::wall;

/// The part of a port that answers, besides its router.
pub trait Service: Send + Sync + 'static {
    /// The first byte of a connection of the service's own protocol. No HTTP request begins with it.
    const OWN_PROTOCOL: Option<u8> = None;

    /// The kind of exchange that this request starts.
    fn exchange(&self, head: &Parts) -> ExchangeKind;

    /// A refusal by the shell, in the form of this service's other refusals.
    fn refuse(&self, code: Code, message: String) -> Response {
        refusal(code, message)
    }

    /// The same refusal for a client of [`OWN_PROTOCOL`](Service::OWN_PROTOCOL), as bytes on its connection.
    fn refuse_own(&self, code: Code, message: String) -> Vec<u8> {
        let _ = (code, message);
        Vec::new()
    }

    /// Serves a connection that opened with [`OWN_PROTOCOL`](Service::OWN_PROTOCOL) to its end; `read` was already read
    /// from it.
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

/// The kind of exchange of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// One body, one answer: both are bounded in bytes and in time.
    Unary,
    /// One bounded body, and an answer without an end (a watch).
    Watch,
    /// gRPC messages in both directions without an end. Each message has the time limit of a body and counts against
    /// the budget; the service bounds its length. Pauses between messages are not limited.
    Session,
    /// Bytes that are forwarded; their handler bounds them.
    Proxied,
}

/// The carrier of a connection: a TCP socket, TLS on top of one, or a Unix socket.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Whether [`detach`](Transport::detach) can succeed. Encrypting is work for other threads than the pipeline's, so a
    /// connection with TLS stays where it is.
    const MOVES: bool;

    /// Removes the connection from this runtime. The returned function adds it to the runtime that calls it.
    ///
    /// # Errors
    /// The operating system's error.
    fn detach(self) -> io::Result<impl FnOnce() -> io::Result<Self> + Send + 'static>
    where
        Self: Sized;
}

impl Transport for TcpStream {
    const MOVES: bool = true;

    fn detach(self) -> io::Result<impl FnOnce() -> io::Result<TcpStream> + Send + 'static> {
        let stream = self.into_std()?;
        Ok(move || TcpStream::from_std(stream))
    }
}

impl Transport for UnixStream {
    const MOVES: bool = true;

    fn detach(self) -> io::Result<impl FnOnce() -> io::Result<UnixStream> + Send + 'static> {
        let stream = self.into_std()?;
        Ok(move || UnixStream::from_std(stream))
    }
}

impl Transport for palisade_tls::Accepted<TcpStream> {
    const MOVES: bool = false;

    fn detach(self) -> io::Result<impl FnOnce() -> io::Result<Self> + Send + 'static> {
        let refused: io::Result<fn() -> io::Result<Self>> = Err(io::ErrorKind::Unsupported.into());
        refused
    }
}

/// The other end of a connection. Every request carries it among its extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it is.
    pub origin: Origin,
    /// Its identity.
    pub caller: PeerIdentity,
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The network.
    Address(SocketAddr),
    /// A process of this machine, over a Unix socket. This is its effective uid when it connected, by the word of the
    /// kernel.
    Uid(u32),
}

impl Origin {
    /// The unit of counting: an address with any port, for IPv6 its /64; or a user.
    #[must_use]
    pub(crate) fn counted(self) -> Origin {
        match self {
            Origin::Address(address) => {
                Origin::Address(SocketAddr::new(palisade_access::network(address.ip()), 0))
            }
            Origin::Uid(_) => self,
        }
    }

    /// Its IP address.
    #[must_use]
    pub fn ip(self) -> Option<IpAddr> {
        match self {
            Origin::Address(address) => Some(address.ip()),
            Origin::Uid(_) => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Address(address) => address.ip().fmt(f),
            Origin::Uid(uid) => write!(f, "uid {uid}"),
        }
    }
}

impl PeerIdentity {
    /// Whether its identity is over, and since when. A connection may outlive the certificate that opened it; the server's
    /// wall clock decides, as it did in the handshake.
    ///
    /// # Errors [`CertificateOver`] tells the peer's next step.
    pub fn check_time(&self) -> Result<(), CertificateOver> {
        match (self.remaining(), self) {
            (Some(Duration::ZERO), PeerIdentity::Certificate { lifetime, .. })
                if lifetime.is_refused() =>
            {
                Err(CertificateOver::Refused)
            }
            (Some(Duration::ZERO), _) => Err(CertificateOver::Expired),
            _ => Ok(()),
        }
    }

    /// How long its identity is still valid; `None` if it does not expire.
    pub(super) fn remaining(&self) -> Option<Duration> {
        match self {
            PeerIdentity::Certificate { lifetime, .. } => Some(lifetime.remaining(wall())),
            PeerIdentity::Anonymous | PeerIdentity::Uid(_) => None,
        }
    }
}

/// A certificate has ended since its connection was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateOver {
    /// Its time is over.
    #[error(
        "the client certificate of this connection has expired: open a new connection with the new one"
    )]
    Expired,
    /// The files of the port have changed.
    #[error(
        "the client certificate of this connection does not count any more, because its CA has revoked it or was replaced: get a new certificate, and open a new connection with it"
    )]
    Refused,
}

impl Peer {
    /// As it is known when it connects.
    pub(super) fn new(origin: Origin) -> Peer {
        let caller = match origin {
            Origin::Address(_) => PeerIdentity::Anonymous,
            Origin::Uid(uid) => PeerIdentity::Uid(uid),
        };
        Peer { origin, caller }
    }
}

/// The identity that a peer has proved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerIdentity {
    /// None: it was not asked for one.
    Anonymous,
    /// A certificate of the clients' CA.
    Certificate {
        /// Its DNS names and URIs.
        names: Arc<[Box<str>]>,
        /// How long it counts.
        lifetime: Arc<Lifetime>,
    },
    /// A process of this machine with this uid.
    Uid(u32),
}

/// A refusal as JSON, as `docs/reference/errors.md` shows it.
#[must_use]
pub fn refusal(code: Code, message: String) -> Response {
    let body = ErrorReply {
        error: ErrorBody::new(code, message),
    };
    let body = serde_json::to_vec(&body).unwrap_or_default();
    let status =
        StatusCode::from_u16(CodeRow::of(code).http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = HeaderValue::from_static("application/json");
    (status, [(CONTENT_TYPE, json)], body).into_response()
}
