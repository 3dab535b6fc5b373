//! One connection: its protocol, time-outs and requests, and a graceful end.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{Request, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use palisade_proto::Code;
use palisade_proto::codes::CodeRow;
use palisade_tls::Certificate;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tonic::metadata::MetadataValue;
use tower::Service as _;
use tracing::{Instrument as _, Span};

use super::activity::{Activity, ConnectionVerdict, Overdue, RunningRequest};
use super::answer::CountedAnswer;
use super::body::{Arriving, BodyError};
use super::budget::ByteBudget;
use super::hosts::Names;
use super::nonce;
use super::state::{Meters, Phase};
use super::tls::{Handshakes, OpenedConnection, farewell};
use super::trace::TraceParent;
use super::{ExchangeKind, Lifetime, Origin, Peer, PeerIdentity, Service, Settings, Transport};

/// The state that all connections of a port share.
pub(super) struct Port<S> {
    service: Arc<S>,
    router: Router,
    settings: Settings,
    names: Names,
    protocol: Builder<TokioExecutor>,
    budget: Arc<ByteBudget>,
    meters: Arc<Meters>,
    phase: watch::Receiver<Phase>,
}

impl<S: Service> Port<S> {
    pub(super) fn new(
        service: Arc<S>,
        router: Router,
        settings: Settings,
        meters: Arc<Meters>,
        phase: watch::Receiver<Phase>,
    ) -> Port<S> {
        Port {
            service,
            router,
            names: Names::new(&settings.hosts),
            protocol: protocol(&settings),
            budget: ByteBudget::new(settings.held_bytes, None),
            settings,
            meters,
            phase,
        }
    }

    /// Serves one connection to its end.
    pub(super) async fn serve<T: Transport>(self: Arc<Self>, mut stream: T, peer: Peer) {
        let mut first = None;
        if S::OWN_PROTOCOL.is_some() {
            first = self.first_byte(&mut stream).await;
            match first {
                None => return,
                Some(byte) if S::OWN_PROTOCOL == Some(byte) => {
                    let service = Arc::clone(&self.service);
                    let read = Bytes::copy_from_slice(&[byte]);
                    // Release the shared state early.
                    drop(self);
                    return service.serve_own(stream, read, peer).await;
                }
                Some(_) => {}
            }
        }
        self.http(stream, first, peer).await;
    }

    /// Does the handshake, and serves the connection inside it.
    pub(super) async fn serve_tls(
        self: Arc<Self>,
        handshakes: Arc<Handshakes>,
        stream: TcpStream,
        peer: Peer,
    ) {
        let mut phase = self.phase.clone();
        let opened = tokio::select! {
            opened = handshakes.open(stream, peer.origin) => opened,
            // An error means that the server is gone.
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => return,
        };
        match opened {
            OpenedConnection::Ready(stream, generation) => {
                let shown = Certificate::of(&stream);
                let caller = shown.map_or(peer.caller, |shown| {
                    let names = shown.names().into();
                    let lifetime = Arc::new(Lifetime::of(shown));
                    handshakes.watch(&lifetime, generation);
                    PeerIdentity::Certificate { names, lifetime }
                });
                let peer = Peer { caller, ..peer };
                self.serve(*stream, peer).await;
            }
            OpenedConnection::PlainText(mut stream, first) => {
                let message = PLAIN_TEXT.to_owned();
                let refused = if S::OWN_PROTOCOL == Some(first) {
                    self.service.refuse_own(Code::Invalid, message)
                } else {
                    in_http1(self.service.refuse(Code::Invalid, message)).await
                };
                let sent = farewell(&mut stream, &refused);
                let _ = tokio::time::timeout(self.settings.head_timeout, sent).await;
            }
            OpenedConnection::Failed => {}
        }
    }

    /// The byte that selects the protocol; `None` if the peer left or took too long.
    async fn first_byte(&self, stream: &mut (impl AsyncRead + Unpin)) -> Option<u8> {
        let mut first = [0];
        let mut phase = self.phase.clone();
        tokio::select! {
            read = stream.read(&mut first) => read.is_ok_and(|read| read == 1).then_some(first[0]),
            () = tokio::time::sleep(self.settings.head_timeout) => None,
            // An error means that the server is gone.
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => None,
        }
    }

    async fn http(self: Arc<Self>, stream: impl Transport, first: Option<u8>, peer: Peer) {
        let activity = Arc::new(Activity::default());
        let most = self.settings.held_bytes_per_connection;
        let budget = ByteBudget::new(most, Some(Arc::clone(&self.budget)));
        let io = TokioIo::new(MonitoredSocket {
            stream,
            first,
            activity: Arc::clone(&activity),
        });
        let service = service_fn(|request: Request<Incoming>| {
            let running = activity.begin(request.version() == Version::HTTP_2);
            Arc::clone(&self).answer(request, peer.clone(), running, Arc::clone(&budget))
        });
        let mut connection = pin!(self.protocol.serve_connection(io, service));
        let mut phase = self.phase.clone();
        let mut overdue = Overdue::new(&self.settings);
        let mut check = tokio::time::interval(self.settings.head_timeout);
        check.tick().await;
        let mut identity_ends = pin!(async {
            match peer.caller.remaining() {
                Some(remaining) => tokio::time::sleep(remaining).await,
                None => std::future::pending().await,
            }
        });
        let mut identified = true;
        let (mut draining, mut stillness) = (false, tokio::time::interval(QUIET_TIMEOUT));
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "connection ended");
                    }
                    return;
                }
                changed = phase.changed() => {
                    if changed.is_err() || *phase.borrow_and_update() == Phase::Cutting {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                    draining = true;
                    stillness.reset();
                    activity.is_quiet();
                }
                _ = stillness.tick(), if draining => if activity.is_quiet() {
                    tracing::debug!(peer = %peer.origin, "connection cut: its peer did not close it");
                    return;
                },
                // Its peer opens another connection, with the certificate that it has by then. Answers in flight leave.
                () = &mut identity_ends, if identified => {
                    identified = false;
                    connection.as_mut().graceful_shutdown();
                }
                _ = check.tick() => match overdue.check(&activity) {
                    // The wall clock may have been set.
                    ConnectionVerdict::Fine if peer.caller.check_time().is_err() => {
                        connection.as_mut().graceful_shutdown();
                    }
                    ConnectionVerdict::Fine => {}
                    ConnectionVerdict::Idle => connection.as_mut().graceful_shutdown(),
                    ConnectionVerdict::Slow(why) => {
                        tracing::debug!(peer = %peer.origin, "connection cut: {why} in time");
                        return;
                    }
                }
            }
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Peer,
        running: RunningRequest,
        budget: Arc<ByteBudget>,
    ) -> Result<Response<CountedAnswer>, Infallible> {
        self.meters.requests.fetch_add(1, Relaxed);
        let (mut head, body) = request.into_parts();
        let exchange = self.service.exchange(&head);
        let seen = tracing::enabled!(tracing::Level::DEBUG)
            .then(|| (head.method.clone(), head.uri.path().to_owned()));
        // A forwarded exchange is a talk between its caller and the service behind.
        let nonce = match exchange {
            ExchangeKind::Proxied => Ok(None),
            _ => nonce::of(&head.headers),
        };
        let over = peer.caller.check_time();
        let over = over.map_err(|over| (Code::Unauthenticated, over.to_string()));
        let (nonce, admitted) = match nonce {
            Ok(nonce) => (
                nonce,
                over.and_then(|()| self.admit(&head, exchange, peer.origin)),
            ),
            Err(malformed) => (None, Err(malformed)),
        };
        let mut response = match admitted {
            Ok(()) => {
                head.extensions.insert(peer);
                let span = TraceParent::of(&head.headers).map_or(Span::none(), |parent| {
                    head.extensions.insert(parent);
                    parent.span(&head)
                });
                let body = Arriving::new(body, exchange, &self.settings, budget.charge());
                let request = Request::from_parts(head, Body::new(body));
                self.router.clone().call(request).instrument(span).await?
            }
            Err((code, message)) if is_grpc(&head) => grpc_refusal(code, message),
            Err((code, message)) => self.service.refuse(code, message),
        };
        if let Some(nonce) = nonce {
            response.headers_mut().insert(nonce::NONCE, nonce);
        }
        if let Some((method, path)) = seen {
            tracing::debug!(%method, path, status = response.status().as_u16(), "answered");
        }
        Ok(response.map(|body| CountedAnswer::new(body, exchange, running, &budget)))
    }

    /// Whether the handler may answer the request; otherwise the refusal.
    fn admit(
        &self,
        head: &Parts,
        exchange: ExchangeKind,
        from: Origin,
    ) -> Result<(), (Code, String)> {
        // A browser cannot connect to a Unix socket, so no web page can point a name there.
        if let Origin::Address(_) = from {
            self.names.check(head)?;
        }
        let declared = head.headers.get(CONTENT_LENGTH);
        let declared = declared.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let most = self.settings.body_bytes;
        if matches!(exchange, ExchangeKind::Unary | ExchangeKind::Watch)
            && declared.is_some_and(|bytes| bytes > most as u64)
        {
            let refused = BodyError::TooLarge { most };
            return Err((refused.code(), refused.to_string()));
        }
        Ok(())
    }
}

/// An answer as HTTP/1.1 sends it, for a client that speaks without TLS.
async fn in_http1(response: Response) -> Vec<u8> {
    let (head, body) = response.into_parts();
    // The body of a refusal is one short text.
    let body = axum::body::to_bytes(body, 64 << 10)
        .await
        .unwrap_or_default();
    let content_type = head.headers.get(CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let head = format!(
        "HTTP/1.1 {}\r\ncontent-type: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        head.status,
        content_type.unwrap_or("text/plain"),
        body.len(),
    );
    [head.as_bytes(), &body].concat()
}

/// The protocol's bounds.
fn protocol(settings: &Settings) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // Counts from the last response, so it bounds idle time; `Overdue` bounds the head.
        .header_read_timeout(settings.idle_timeout)
        .max_buf_size(settings.head_bytes);
    if !settings.http2 {
        return builder.http1_only();
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        // With the default window, h2 kills a connection that carries 256 tiny calls at once. A peer can leave at most
        // one window of the connection unread, not one for each stream.
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_concurrent_streams(settings.streams_per_connection)
        .max_header_list_size(u32::try_from(settings.head_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(SEND_BUFFER)
        // Detects a peer that vanished, so that its waiting requests leave the queue.
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    builder
}

fn is_grpc(head: &Parts) -> bool {
    let content_type = head.headers.get(CONTENT_TYPE);
    let grpc = content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    grpc && head.version == Version::HTTP_2
}

/// A refusal in gRPC's form: a status without a message.
fn grpc_refusal(code: Code, message: String) -> Response {
    let mut status = tonic::Status::new(CodeRow::of(code).grpc, message);
    let name = MetadataValue::from_static(code.name());
    status.metadata_mut().insert("palisade-code", name);
    status.into_http()
}

/// A socket that records reads and writes.
struct MonitoredSocket<T> {
    stream: T,
    /// The bytes that were read to detect the protocol.
    first: Option<u8>,
    activity: Arc<Activity>,
}

impl<T> MonitoredSocket<T> {
    fn note(&self, written: &Poll<io::Result<usize>>) {
        if matches!(written, Poll::Ready(Ok(_))) {
            self.activity.sent();
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for MonitoredSocket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if let Some(first) = self.first.take() {
            buf.put_slice(&[first]);
        }
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.received(&buf.filled()[before..]);
            if polled.is_pending() {
                return Poll::Ready(Ok(()));
            }
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for MonitoredSocket<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.note(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The answer to a client without TLS on a port with TLS.
const PLAIN_TEXT: &str = "this port speaks TLS only; write https:// in place of http:// or palisade://, and name the server's CA with --ca-file";

/// During shutdown: how long an HTTP/2 peer without requests may ignore the announcement.
const QUIET_TIMEOUT: Duration = Duration::from_millis(500);

/// 1 MiB for a connection, 64 KiB for a stream.
const CONNECTION_WINDOW: u32 = 1 << 20;
const STREAM_WINDOW: u32 = 64 << 10;

/// How much of an answer HTTP/2 buffers before its peer allows it to send.
const SEND_BUFFER: usize = 64 << 10;

/// How often a silent HTTP/2 peer is pinged, and how long it may take to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
