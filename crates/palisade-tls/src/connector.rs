//! A connector for HTTP clients: TLS for `https`, a bare connection for `http` or to a Unix socket.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::sleep;
use tower_service::Service;

use crate::explain::{CLIENT, Flags, explain_to};
use crate::{Stream, TlsClient};

/// Connects as the URI says.
#[derive(Clone, Debug)]
pub struct Connector {
    http: HttpConnector,
    tls: Option<TlsClient>,
    /// The Unix socket to connect to instead of the URI's host.
    socket: Option<PathBuf>,
    /// Those of the program, for its messages.
    flags: &'static Flags,
}

impl Connector {
    /// Connections are opened by `http`. Without `tls`, `https` is refused.
    #[must_use]
    pub fn new(mut http: HttpConnector, tls: Option<TlsClient>) -> Connector {
        http.enforce_http(false);
        Connector {
            http,
            tls,
            socket: None,
            flags: &CLIENT,
        }
    }

    /// Its messages name these flags, in place of those of a client.
    #[must_use]
    pub fn naming(self, flags: &'static Flags) -> Connector {
        Connector { flags, ..self }
    }

    /// Connects to this Unix socket instead of the URI's host.
    #[must_use]
    pub fn to_socket(path: &Path) -> Connector {
        Connector {
            socket: Some(path.to_owned()),
            ..Connector::new(HttpConnector::new(), None)
        }
    }
}

/// A connection, with TLS or without.
#[derive(Debug)]
pub enum Io {
    /// Without.
    Plain(TcpStream),
    /// With.
    Tls(Box<Stream<TcpStream>>),
    /// A Unix socket, which needs none.
    Unix(UnixStream),
}

impl Io {
    /// Connects to a Unix socket. If many others are just connecting there, it waits for its turn; bound the time.
    ///
    /// # Errors
    /// The operating system's error.
    pub async fn to_socket(path: &Path) -> io::Result<Io> {
        loop {
            match UnixStream::connect(path).await {
                // Unlike TCP, the kernel does not wait while the server's queue is full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(AGAIN).await,
                connected => return connected.map(Io::Unix),
            }
        }
    }
}

/// The pause before it is tried again to connect.
const AGAIN: Duration = Duration::from_millis(5);

impl Service<Uri> for Connector {
    type Response = TokioIo<Io>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.http.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        if let Some(path) = self.socket.clone() {
            return Box::pin(async move { Ok(TokioIo::new(Io::to_socket(&path).await?)) });
        }
        let https = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().to_owned();
        let (tls, flags) = (self.tls.clone(), self.flags);
        let connecting = self.http.call(uri);
        Box::pin(async move {
            let stream = connecting.await?.into_inner();
            if !https {
                return Ok(TokioIo::new(Io::Plain(stream)));
            }
            let tls = tls.ok_or("https:// needs certificates, and none are set up here")?;
            let stream = tls.connect(&host, stream).await;
            let stream =
                stream.map_err(|error| explain_to(&error, flags).unwrap_or(error.to_string()))?;
            Ok(TokioIo::new(Io::Tls(Box::new(stream))))
        })
    }
}

impl Connection for Io {
    fn connected(&self) -> Connected {
        match self {
            Io::Plain(_) | Io::Unix(_) => Connected::new(),
            Io::Tls(stream) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
                Connected::new().negotiated_h2()
            }
            Io::Tls(_) => Connected::new(),
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Io::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

// hyper's traits are implemented for `TokioIo<Io>`; this asserts that it is one of its connections.
const _: fn() = || {
    fn is_io<T: rt::Read + rt::Write + Connection + Send + Unpin>() {}
    is_io::<TokioIo<Io>>();
};
