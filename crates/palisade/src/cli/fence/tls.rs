//! TLS to databases and to Redis: the server's certificate must come from a CA in `PALISADE_CA_FILE`, or from one that
//! this machine trusts, and must contain the host of the URL. There is no way to encrypt without that check.

use std::env;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use palisade_tls::{ClientFiles, Stream, TlsClient, explain};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

use super::super::failure::Failure;

/// The CA that was named for all connections of this command.
pub(super) fn ca() -> Option<PathBuf> {
    env::var_os("PALISADE_CA_FILE").map(PathBuf::from)
}

/// The TLS client, with the certificates that it trusts.
pub(super) fn client(ca: Option<PathBuf>) -> Result<TlsClient, Failure> {
    let files = ClientFiles { ca, own: None };
    TlsClient::new(&files).map_err(|error| Failure::usage(error.to_string()))
}

/// Does the handshake, and says in words why it failed.
pub(super) async fn connect<S>(tls: &TlsClient, host: &str, stream: S) -> io::Result<Stream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let connected = tls.connect(host, stream).await;
    connected.map_err(|error| match explain(&error) {
        Some(why) => io::Error::new(error.kind(), why),
        None => error,
    })
}

/// For tokio-postgres.
#[derive(Clone)]
pub(super) struct PostgresTls(pub(super) TlsClient);

/// A handshake with one host.
pub(super) struct Handshake {
    tls: TlsClient,
    host: String,
}

/// An encrypted connection to PostgreSQL.
pub(super) struct Encrypted<S>(Stream<S>);

impl<S> MakeTlsConnect<S> for PostgresTls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        let (tls, host) = (self.0.clone(), host.to_owned());
        Ok(Handshake { tls, host })
    }
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { connect(&self.tls, &self.host, stream).await.map(Encrypted) })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    /// None: the certificate was checked, which is the purpose of the binding.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}
