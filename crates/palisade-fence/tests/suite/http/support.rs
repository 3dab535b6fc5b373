//! A service under test control, and requests to it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum_core::body::Body;
use axum_core::response::Response;
use http::request::Parts;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use palisade_fence::http::{FenceLayer, FenceService, Policy, Problem, Target};
use palisade_fence::{ResourceId, Rule, StoreLimits, memory};
use serde_json::Value;
use tokio::sync::Semaphore;
use tower_layer::Layer;
use tower_service::Service;

pub(crate) type Map = fn(&Parts) -> Result<Option<Target>, Problem>;
pub(crate) type Fenced<S> = FenceService<S, memory::Store, Map>;

/// The first segment of a path is its resource; `/open` is not fenced, `/rpc/read` only reads.
pub(crate) fn by_segment(head: &Parts) -> Result<Option<Target>, Problem> {
    let path = head.uri.path();
    let name = path.trim_start_matches('/').split('/').next().unwrap();
    if name == "open" {
        return Ok(None);
    }
    let target = Target::new(ResourceId::new(name)?);
    Ok(Some(if path.ends_with("/read") {
        target.reading()
    } else {
        target
    }))
}

pub(crate) fn marks(rule: Rule) -> memory::Store {
    memory::Store::new(rule, StoreLimits::DEFAULT)
}

pub(crate) fn fenced<S>(inner: S, policy: Policy) -> Fenced<S> {
    let layer = FenceLayer::new(marks(Rule::CLAIM), by_segment as Map, policy).unwrap();
    layer.layer(inner)
}

/// A policy with a short wait, for tests in which the wait ends in vain.
pub(crate) fn impatient() -> Policy {
    Policy {
        wait: Duration::from_millis(50),
        ..Policy::default()
    }
}

/// A service that answers when the test permits it, and records its effects in order.
#[derive(Clone)]
pub(crate) struct Slow {
    pub(crate) gate: Arc<Semaphore>,
    pub(crate) inside: Arc<AtomicUsize>,
    pub(crate) effects: Arc<Mutex<Vec<String>>>,
}

impl Slow {
    pub(crate) fn new() -> Slow {
        Slow {
            gate: Arc::new(Semaphore::new(0)),
            inside: Arc::default(),
            effects: Arc::default(),
        }
    }

    /// A service that answers at once.
    pub(crate) fn quick() -> Slow {
        let slow = Slow::new();
        slow.gate.add_permits(Semaphore::MAX_PERMITS / 2);
        slow
    }

    pub(crate) fn effects(&self) -> Vec<String> {
        self.effects.lock().unwrap().clone()
    }

    pub(crate) async fn until_inside(&self, count: usize) {
        until("requests at the service", || {
            self.inside.load(Ordering::SeqCst) >= count
        })
        .await;
    }
}

impl Service<Request<Body>> for Slow {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let slow = self.clone();
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            slow.inside.fetch_add(1, Ordering::SeqCst);
            assert!(!path.ends_with("/panic"), "the test requests a panic");
            let passed = slow.gate.acquire().await.unwrap();
            passed.forget();
            let token = request.headers().get("x-fencing-token");
            let token = token.map_or("-", |token| token.to_str().unwrap());
            let effect = format!("{} {path} {token}", request.method());
            slow.effects.lock().unwrap().push(effect);
            let mut response = Response::new(Body::from("done"));
            if path.ends_with("/created") {
                *response.status_mut() = StatusCode::CREATED;
            }
            Ok(response)
        })
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    /// Returns status, code and the whole error.
    pub(crate) fn refusal(&self) -> (u16, String, Value) {
        let body: Value = serde_json::from_str(&self.text).expect(&self.text);
        assert_eq!(body["success"], false, "{body}");
        let error = body["error"].clone();
        assert!(!error["message"].as_str().unwrap().is_empty(), "{body}");
        (
            self.status,
            error["code"].as_str().unwrap().to_owned(),
            error,
        )
    }

    pub(crate) fn code(&self) -> (u16, String) {
        let (status, code, _) = self.refusal();
        (status, code)
    }
}

pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

pub(crate) async fn call<S>(service: &Fenced<S>, request: Request<Body>) -> Reply
where
    Fenced<S>: Service<Request<Body>, Response = Response, Error = Infallible> + Clone,
{
    let mut service = service.clone();
    let Ok(response) = service.call(request).await;
    let (head, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Reply {
        status: head.status.as_u16(),
        headers: head.headers,
        text: String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

pub(crate) async fn send<S>(service: &Fenced<S>, method: &str, path: &str, token: u64) -> Reply
where
    Fenced<S>: Service<Request<Body>, Response = Response, Error = Infallible> + Clone,
{
    let token = token.to_string();
    call(
        service,
        request(method, path, &[("x-fencing-token", &token)]),
    )
    .await
}

/// Waits for a condition, with a bound.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await; // real time: other tasks need it to fulfil the condition
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    waited.unwrap_or_else(|_| panic!("waited in vain for: {what}"));
}
