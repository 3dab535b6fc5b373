//! Protects the connections between nodes with the cluster's key and with certificates.
//!
//! ```text
//!   plain   TCP ─────────────────────────────────► handshake (key) ─► messages, which others can read and change
//!   TLS     TCP ─► TLS, both sides show a        ► handshake (key) ─► messages
//!                  certificate of the cluster's CA
//! ```
//!
//! The dialer demands a certificate for the host at which the membership has the other node. The acceptor demands one
//! for the host at which the membership has the dialer, or, for a node that is no member yet, at which it says that it
//! is. The key says that a node belongs to this cluster; a certificate alone does not, because clients may have some of
//! the same CA.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use palisade_tls::{Certificate, FIRST_BYTE, Flags, Server, explain_to};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::handshake::{Failed, Key, refusal};
use super::introduction::{Introduction, Standing};

/// The protocol that nodes name in TLS, so that a connection meant for another port is not taken for theirs.
pub const PROTOCOL: &[u8] = b"palisade-peer";

/// How long a peer that was refused may still send.
const FAREWELL: Duration = Duration::from_millis(500);

const FLAGS: Flags = Flags {
    ca: "--peer-ca (or --tls-client-ca)",
    own: "--tls-cert and --tls-key",
    plain: "start every node of the cluster with --tls-cert, or none",
};

/// The protection of connections.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// The secret that all nodes share.
    pub key: Option<Key>,
    /// This node's certificate and the CA of all of them. With it, connections without TLS are refused.
    pub tls: Option<Arc<Server>>,
}

impl From<Option<Key>> for Security {
    fn from(key: Option<Key>) -> Security {
        Security { key, tls: None }
    }
}

/// An open connection, secured as this node demands it.
pub(super) struct Connection {
    stream: Stream,
    /// The certificate that a dialer has shown. That of an acceptor is checked already.
    certificate: Option<Certificate>,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<dyn Duplex>),
}

/// Any stream.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// The two directions of a connection.
pub(super) type Halves = (
    Box<dyn AsyncRead + Send + Unpin>,
    Box<dyn AsyncWrite + Send + Unpin>,
);

impl Connection {
    pub(super) fn stream(&mut self) -> &mut dyn Duplex {
        match &mut self.stream {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => stream,
        }
    }

    pub(super) fn certificate(&self) -> Option<Certificate> {
        self.certificate.clone()
    }

    pub(super) fn split(self) -> Halves {
        match self.stream {
            Stream::Plain(stream) => {
                let (from, to) = stream.into_split();
                (Box::new(from), Box::new(to))
            }
            Stream::Tls(stream) => {
                let (from, to) = tokio::io::split(stream);
                (Box::new(from), Box::new(to))
            }
        }
    }
}

/// The host of an address with a port.
#[must_use]
pub fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// Why a connection failed, for people; `None` if TLS is not the reason.
pub(super) fn explain(error: &io::Error) -> Option<String> {
    explain_to(error, &FLAGS)
}

impl Security {
    /// Secures a connection to `address`.
    pub(super) async fn dial(&self, stream: TcpStream, address: &str) -> io::Result<Connection> {
        let stream = match &self.tls {
            None => Stream::Plain(stream),
            Some(tls) => {
                let client = tls.client().map_err(io::Error::other)?;
                Stream::Tls(Box::new(client.connect(host(address), stream).await?))
            }
        };
        Ok(Connection {
            stream,
            certificate: None,
        })
    }

    /// Secures a connection that another node has opened.
    pub(super) async fn accept(&self, stream: TcpStream) -> Result<Connection, Failed> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let opens_tls = first[0] == FIRST_BYTE;
        match &self.tls {
            None if opens_tls => {
                // The other side does not recognise this as TLS, and reports that.
                farewell(stream, b"palisade: no TLS between nodes here").await;
                let why = format!(
                    "the other node speaks TLS and this one does not; {}",
                    FLAGS.plain
                );
                Err(Failed::Refused(why))
            }
            None => Ok(Connection {
                stream: Stream::Plain(stream),
                certificate: None,
            }),
            Some(_) if !opens_tls => {
                let why = format!(
                    "this cluster's nodes speak TLS with each other, and a node that connected does not; {}",
                    FLAGS.plain
                );
                farewell(stream, &refusal(&why)).await;
                Err(Failed::Refused(why))
            }
            Some(tls) => match tls.accept(stream).await {
                Ok(stream) => {
                    let none = || Failed::Refused("no certificate was shown".to_owned());
                    Ok(Connection {
                        certificate: Some(Certificate::of(&stream).ok_or_else(none)?),
                        stream: Stream::Tls(Box::new(stream)),
                    })
                }
                Err((error, stream)) => {
                    farewell(stream, &[]).await;
                    Err(error.into())
                }
            },
        }
    }
}

/// Refuses a dialer with a certificate that is not for its host: the host in the membership, or, if it has none, the
/// host that it names.
pub(super) fn certified(
    certificate: Option<&Certificate>,
    own: &Introduction,
    theirs: &Introduction,
) -> Result<(), String> {
    let Some(certificate) = certificate else {
        return Ok(());
    };
    let listed = match &own.standing {
        Standing::Member { members, .. } => members.get(&theirs.node),
        Standing::Blank { .. } | Standing::Single { .. } => None,
    };
    let address = listed.unwrap_or(&theirs.address);
    let host = host(address);
    if certificate.is_for(host) {
        return Ok(());
    }
    Err(format!(
        "node {} is reached at {address}, and the certificate that it showed to node {} is not for {host}: make one with \
         this name (`palisade auth cert {host}`), and start it with that",
        theirs.node, own.node
    ))
}

/// Sends the last bytes and reads those that the other side still sends: closing with unread bytes would take the answer
/// away.
async fn farewell(mut stream: TcpStream, last: &[u8]) {
    let parting = async {
        stream.write_all(last).await?;
        stream.shutdown().await?;
        let mut rest = [0; 1_024];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    // It may be gone.
    let _ = timeout(FAREWELL, parting).await;
}
