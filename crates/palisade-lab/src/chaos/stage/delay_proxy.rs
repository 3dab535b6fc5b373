//! A proxy before the resource that delivers whole requests late, twice, or out of order.
//!
//! ```text
//!   worker ──request──► proxy ──┬─ at once ──────────────► resource
//!                               ├─ after a while ────────►            a late write
//!                               └─ at once, and again ───►            a duplicate; its answer is thrown away
//! ```

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::chaos::event::Target;
use crate::chaos::ledger::Ledger;
use crate::chaos::server::lock;

/// The proxy; it ends with this value.
pub(crate) struct DelayProxy {
    address: SocketAddr,
    _runtime: Runtime,
}

struct Shared {
    client: Client<HttpConnector, Full<Bytes>>,
    resource: SocketAddr,
    ttl: Duration,
    random: Mutex<fastrand::Rng>,
    ledger: Arc<Ledger>,
}

/// What the proxy does with a request.
#[derive(Clone, Copy)]
enum Fate {
    AtOnce,
    After(Duration),
    AgainAfter(Duration),
}

impl DelayProxy {
    pub(crate) fn open(
        resource: SocketAddr,
        ttl: Duration,
        seed: u64,
        ledger: Arc<Ledger>,
    ) -> Result<DelayProxy, String> {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let shared = Arc::new(Shared {
            client: Client::builder(TokioExecutor::new())
                .retry_canceled_requests(false)
                .build_http(),
            resource,
            ttl,
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            ledger,
        });
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                let service = service_fn(move |request| {
                    let shared = Arc::clone(&shared);
                    async move { Ok::<_, hyper::Error>(shared.take(request).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Ok(DelayProxy {
            address,
            _runtime: runtime,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Shared {
    async fn take(self: Arc<Shared>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let Ok(body) = body.collect().await else {
            return nothing();
        };
        let body = body.to_bytes();
        let mut copy = Request::new(Full::from(body));
        *copy.method_mut() = head.method;
        copy.headers_mut().clone_from(&head.headers);
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let Ok(uri) = format!("http://{}{path}", self.resource).parse() else {
            return nothing();
        };
        *copy.uri_mut() = uri;
        let changes = copy.method() == Method::POST;
        match self.fate(changes) {
            Fate::AtOnce => {}
            Fate::After(time) => self.wait(time, "a request held back").await,
            Fate::AgainAfter(time) => {
                let (shared, again) = (Arc::clone(&self), copy.clone());
                tokio::spawn(async move {
                    shared
                        .wait(time, "a request sent twice, the second time")
                        .await;
                    let _ = shared.client.request(again).await;
                });
            }
        }
        match self.client.request(copy).await {
            Ok(answer) => {
                let (head, body) = answer.into_parts();
                match body.collect().await {
                    Ok(body) => Response::from_parts(head, Full::from(body.to_bytes())),
                    Err(_) => nothing(),
                }
            }
            Err(_) => nothing(),
        }
    }

    fn fate(&self, changes: bool) -> Fate {
        let mut random = lock(&self.random);
        let time = self.ttl.mul_f64(random.f64() * 2.0);
        match random.u8(0..100) {
            0..15 => Fate::After(time),
            15..40 if changes => Fate::AgainAfter(time),
            _ => Fate::AtOnce,
        }
    }

    async fn wait(&self, time: Duration, what: &str) {
        let from_ms = self.ledger.now_ms();
        tokio::time::sleep(time).await;
        let what = format!("{what} for {:.0} ms", time.as_secs_f64() * 1e3);
        self.ledger.note(from_ms, Target::Network, what);
    }
}

/// The answer if there was none from the resource.
fn nothing() -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::BAD_GATEWAY;
    answer
}
