//! Services without a fence: a table of numbers that can answer slowly and at length, and one that closes connections
//! early.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{any, get, post, put};
use http_body_util::BodyExt;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

#[derive(Clone, Default)]
pub(crate) struct Upstream {
    table: Arc<Mutex<BTreeMap<String, String>>>,
    /// Writes to `/slow/{id}` that have arrived.
    pub(crate) arrived: Arc<AtomicUsize>,
    gate: Arc<Mutex<Option<Arc<Semaphore>>>>,
}

pub(crate) const MIB: usize = 1 << 20;

impl Upstream {
    pub(crate) async fn start() -> (Upstream, String) {
        let upstream = Upstream::default();
        *upstream.gate.lock().unwrap() = Some(Arc::new(Semaphore::new(0)));
        let router = Router::new()
            .route("/accounts/{id}", get(read).put(write))
            .route("/slow/{id}", put(slow))
            .route("/proxied/{status}/{id}", put(proxied))
            .route("/headers", any(headers))
            .route(
                "/teapot",
                any(|| async { (StatusCode::IM_A_TEAPOT, "short and stout") }),
            )
            .route("/count", post(count))
            .route("/ticks", any(ticks))
            .route("/big/{mib}", get(big))
            .with_state(upstream.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (upstream, url)
    }

    pub(crate) fn value(&self, id: &str) -> Option<String> {
        self.table.lock().unwrap().get(id).cloned()
    }

    /// Lets this many slow writes take effect.
    pub(crate) fn release_writes(&self, count: usize) {
        self.semaphore().add_permits(count);
    }

    fn semaphore(&self) -> Arc<Semaphore> {
        self.gate.lock().unwrap().clone().unwrap()
    }

    pub(crate) fn has_arrived(&self, count: usize) -> bool {
        self.arrived.load(Ordering::SeqCst) >= count
    }
}

async fn read(State(upstream): State<Upstream>, Path(id): Path<String>) -> impl IntoResponse {
    upstream.value(&id).ok_or(StatusCode::NOT_FOUND)
}

async fn write(State(upstream): State<Upstream>, Path(id): Path<String>, text: String) {
    upstream.table.lock().unwrap().insert(id, text);
}

/// A write that takes effect even if its client is gone.
async fn slow(State(upstream): State<Upstream>, Path(id): Path<String>, text: String) {
    upstream.arrived.fetch_add(1, Ordering::SeqCst);
    let working = tokio::spawn(async move {
        upstream.semaphore().acquire().await.unwrap().forget();
        upstream.table.lock().unwrap().insert(id, text);
    });
    working.await.unwrap();
}

/// A write as behind an impatient proxy: answered at once, executed when the test releases it.
async fn proxied(
    State(upstream): State<Upstream>,
    Path((status, id)): Path<(u16, String)>,
    text: String,
) -> StatusCode {
    upstream.arrived.fetch_add(1, Ordering::SeqCst);
    tokio::spawn(async move {
        upstream.semaphore().acquire().await.unwrap().forget();
        upstream.table.lock().unwrap().insert(id, text);
    });
    StatusCode::from_u16(status).unwrap()
}

async fn headers(headers: HeaderMap) -> impl IntoResponse {
    let mut text = String::new();
    for (name, value) in &headers {
        text.push_str(&format!("{name}: {}\n", value.to_str().unwrap()));
    }
    let hop_by_hop = [("keep-alive", "timeout=5"), ("x-upstream", "yes")];
    (hop_by_hop, text)
}

/// The number of bytes and of pieces in the body.
async fn count(mut body: Body) -> String {
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        bytes += frame.unwrap().into_data().map_or(0, |data| data.len());
    }
    bytes.to_string()
}

/// A body with one piece for each release by the test.
async fn ticks(State(upstream): State<Upstream>) -> Body {
    let (send, receive) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            upstream.semaphore().acquire().await.unwrap().forget();
            if send.send(Bytes::from_static(b"tick")).await.is_err() {
                return;
            }
        }
    });
    channel(receive)
}

async fn big(Path(mib): Path<usize>) -> Body {
    pieces(mib)
}

/// A body of this many MiB, made piece by piece, of unknown length.
pub(crate) fn pieces(mib: usize) -> Body {
    let (send, receive) = tokio::sync::mpsc::channel::<Bytes>(1);
    tokio::spawn(async move {
        let piece = Bytes::from(vec![7; 64 << 10]);
        for _ in 0..mib * 16 {
            if send.send(piece.clone()).await.is_err() {
                return;
            }
        }
    });
    channel(receive)
}

/// A body whose pieces come through a channel.
pub(crate) fn channel(receive: tokio::sync::mpsc::Receiver<Bytes>) -> Body {
    let next = |mut receive: tokio::sync::mpsc::Receiver<Bytes>| async move {
        let piece = receive.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(piece), receive))
    };
    Body::from_stream(futures_util::stream::unfold(receive, next))
}

/// A service that reads the head of each request and hangs up.
pub(crate) async fn crashing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 64];
            let _ = stream.read(&mut head).await;
        }
    });
    url
}
