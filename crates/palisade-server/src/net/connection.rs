//! One connection: protocol detection, time-outs, a graceful end.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::{Context, Poll};
use std::{fmt, io};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use http::{Request, Response, Version};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tower::Service as _;

use super::app::{App, Phase};
use super::session;
use super::settings::Settings;

/// What all connections share.
pub(super) struct Connections {
    app: Arc<App>,
    router: Router,
    protocol: Arc<Builder<TokioExecutor>>,
}

impl Connections {
    pub(super) fn new(app: Arc<App>, router: Router) -> Connections {
        let protocol = Arc::new(protocol(&app.settings));
        Connections {
            app,
            router,
            protocol,
        }
    }

    pub(super) fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Serves one connection to its end.
    pub(super) fn serve(&self, stream: TcpStream) -> impl Future<Output = ()> + Send + 'static {
        let app = Arc::clone(&self.app);
        let router = self.router.clone();
        let protocol = Arc::clone(&self.protocol);
        async move {
            // Small frames in both directions: waiting to fill a segment would cost 40 ms each.
            let _ = stream.set_nodelay(true);
            match session::is_plain(&app, &stream).await {
                Some(true) => plain(app, stream).await,
                Some(false) => run(&app, router, &protocol, stream).await,
                None => {}
            }
        }
    }
}

/// Serves a plain session: the first two on the pipeline's own thread, where an answer wakes no other;
/// the rest beside it, where many are read and written while a batch is synced.
async fn plain(app: Arc<App>, stream: TcpStream) {
    if app.meters.sessions_near.fetch_add(1, Relaxed) >= NEAR {
        app.meters.sessions_near.fetch_sub(1, Relaxed);
        return session::serve(app, stream).await;
    }
    let handle = app.handle.clone();
    let near = Arc::clone(&app);
    if let Ok(stream) = stream.into_std() {
        let session = handle.near(async move {
            // Registered with the runtime of that thread.
            match TcpStream::from_std(stream) {
                Ok(stream) => session::serve(near, stream).await,
                Err(error) => tracing::warn!(%error, "a session could not begin"),
            }
        });
        // An error means that the pipeline's thread is gone, and the connection with it.
        let _ = session.await;
    }
    app.meters.sessions_near.fetch_sub(1, Relaxed);
}

/// Sessions on the pipeline's thread. With more than a few, what they read and write there costs more
/// than the waking it saves (docs/performance.md).
const NEAR: u64 = 2;

/// The protocol's bounds.
fn protocol(settings: &Settings) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // Counts from the last response, so it bounds idling; the head's own bound is `Overdue`.
        .header_read_timeout(settings.idle_timeout)
        .max_buf_size(settings.head_bytes);
    builder
        .http2()
        .timer(TokioTimer::new())
        // With the default window, h2 kills a connection that carries 256 tiny calls at once.
        .initial_connection_window_size(WINDOW)
        .initial_stream_window_size(WINDOW)
        .max_concurrent_streams(settings.streams_per_connection)
        .max_header_list_size(u32::try_from(settings.head_bytes).unwrap_or(u32::MAX))
        // A peer that vanished without a word is noticed, and its waiting requests leave the queue.
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    builder
}

async fn run(app: &Arc<App>, router: Router, protocol: &Builder<TokioExecutor>, stream: TcpStream) {
    let activity = Arc::new(Activity::default());
    let io = TokioIo::new(Watched {
        stream,
        activity: Arc::clone(&activity),
    });
    let service = service_fn(|request| {
        app.meters.requests.fetch_add(1, Relaxed);
        answer(router.clone(), request, Activity::begin(&activity))
    });
    let mut connection = pin!(protocol.serve_connection(io, service));
    let mut phase = app.phase();
    let mut overdue = Overdue::new(&app.settings);
    let mut check = tokio::time::interval(app.settings.head_timeout);
    check.tick().await;
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
            }
            _ = check.tick() => match overdue.check(&activity) {
                Verdict::Fine => {}
                Verdict::Idle => connection.as_mut().graceful_shutdown(),
                Verdict::Slow => {
                    tracing::debug!("connection cut: a request's head took too long");
                    return;
                }
            }
        }
    }
}

async fn answer(
    mut router: Router,
    request: Request<Incoming>,
    running: Running,
) -> Result<Response<Tracked>, Infallible> {
    if request.version() == Version::HTTP_2 {
        running.0.http2.store(true, Relaxed);
    }
    let seen = tracing::enabled!(tracing::Level::DEBUG)
        .then(|| (request.method().clone(), request.uri().path().to_owned()));
    let response = router.call(request.map(Body::new)).await?;
    if let Some((method, path)) = seen {
        tracing::debug!(%method, path, status = response.status().as_u16(), "answered");
    }
    Ok(response.map(|body| Tracked {
        body,
        _running: running,
    }))
}

/// What has been going on on a connection, for [`Overdue`].
#[derive(Default)]
struct Activity {
    /// Whether anything was read yet.
    opened: AtomicBool,
    /// Whether the peer speaks HTTP/2.
    http2: AtomicBool,
    /// Requests begun.
    begun: AtomicU64,
    /// Requests whose answers are complete.
    ended: AtomicU64,
    /// Whether bytes have come in since the last request began or ended: the start of a head.
    reading: AtomicBool,
}

impl Activity {
    fn begin(activity: &Arc<Activity>) -> Running {
        activity.begun.fetch_add(1, Relaxed);
        activity.reading.store(false, Relaxed);
        Running(Arc::clone(activity))
    }

    fn heard(&self, bytes: &[u8]) {
        // A preface that comes in pieces counts only with its first request.
        if !self.opened.swap(true, Relaxed) && bytes.starts_with(PREFACE) {
            self.http2.store(true, Relaxed);
        }
        self.reading.store(true, Relaxed);
    }
}

/// A request whose answer is not complete yet.
struct Running(Arc<Activity>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Relaxed);
        self.0.reading.store(false, Relaxed);
    }
}

/// Finds connections that take too long over a head, or do nothing. Asked once per head time-out.
struct Overdue {
    begun: u64,
    reading: bool,
    idle_checks: u128,
    most_idle_checks: u128,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    Idle,
    Slow,
}

impl Overdue {
    fn new(settings: &Settings) -> Overdue {
        let head = settings.head_timeout.as_nanos().max(1);
        let most_idle_checks = settings.idle_timeout.as_nanos().div_ceil(head);
        Overdue {
            begun: 0,
            reading: false,
            idle_checks: 0,
            most_idle_checks,
        }
    }

    fn check(&mut self, activity: &Activity) -> Verdict {
        let begun = activity.begun.load(Relaxed);
        let in_flight = begun != activity.ended.load(Relaxed);
        let reading = activity.reading.load(Relaxed);
        let same = begun == self.begun && !in_flight;
        // The first head is due one time-out after the connection; a later one is found by the
        // second check that meets it unfinished.
        let slow = same && (begun == 0 || (reading && self.reading));
        self.idle_checks = if same { self.idle_checks + 1 } else { 0 };
        (self.begun, self.reading) = (begun, reading && !in_flight);
        if slow && !activity.http2.load(Relaxed) {
            Verdict::Slow
        } else if self.idle_checks >= self.most_idle_checks {
            Verdict::Idle
        } else {
            Verdict::Fine
        }
    }
}

/// A socket that notes when something is read.
struct Watched {
    stream: TcpStream,
    activity: Arc<Activity>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.heard(&buf.filled()[before..]);
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
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

/// An answer's body; the request counts as in flight until it is gone.
struct Tracked {
    body: Body,
    _running: Running,
}

impl HttpBody for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Debug for Tracked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tracked")
    }
}

/// What an HTTP/2 client says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// 4 MiB, for a connection and for a stream.
const WINDOW: u32 = 4 << 20;

/// How often a silent HTTP/2 peer is asked whether it is there, and how long it may take to answer.
const KEEP_ALIVE: std::time::Duration = std::time::Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn overdue() -> Overdue {
        Overdue::new(&Settings {
            head_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(15),
            ..Settings::default()
        })
    }

    #[test]
    fn a_connection_that_never_sends_a_head_is_slow_at_the_first_check() {
        let activity = Activity::default();
        assert_eq!(overdue().check(&activity), Verdict::Slow);
        activity.heard(b"GET / HTT");
        assert_eq!(overdue().check(&activity), Verdict::Slow);
    }

    #[test]
    fn an_http2_connection_may_be_opened_ahead_of_its_first_request() {
        let activity = Activity::default();
        activity.heard(PREFACE);
        let mut overdue = overdue();
        let verdicts = [(); 3].map(|()| overdue.check(&activity));
        assert_eq!(verdicts, [Verdict::Fine, Verdict::Fine, Verdict::Idle]);
    }

    #[test]
    fn a_request_in_flight_is_neither_idle_nor_slow() {
        let activity = Arc::new(Activity::default());
        activity.heard(b"GET /v1/watch HTTP/1.1\r\n\r\n");
        let running = Activity::begin(&activity);
        let mut overdue = overdue();
        for _ in 0..10 {
            assert_eq!(overdue.check(&activity), Verdict::Fine);
        }
        drop(running);
        let verdicts = [(); 3].map(|()| overdue.check(&activity));
        assert_eq!(verdicts, [Verdict::Fine, Verdict::Fine, Verdict::Idle]);
    }

    #[test]
    fn a_second_head_that_stalls_is_slow_at_the_second_check_that_sees_it() {
        let activity = Arc::new(Activity::default());
        drop(Activity::begin(&activity));
        let mut overdue = overdue();
        assert_eq!(overdue.check(&activity), Verdict::Fine);
        activity.heard(b"GET /");
        assert_eq!(overdue.check(&activity), Verdict::Fine);
        assert_eq!(overdue.check(&activity), Verdict::Slow);
    }
}
