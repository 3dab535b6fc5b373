//! Forwards the unary requests of a node that does not lead.
//!
//! ```text
//!   request ─► who leads? ── this node ──────────────────────────────────► handler
//!                  │  ├──── another ─► HTTP/2 to the leader ─► its answer, as it is
//!                  │  └──── none ─► wait for a leader, at most 2 s
//!                  └─ forwarded already, or no leader in 2 s ─► handler, which answers `not_leader`
//! ```
//!
//! JSON and gRPC are forwarded in the same way: three HTTP/2 connections to the leader, one for acquires, which may wait for
//! hours, one for holders that listen, and one for everything else. Ending a request is then a message, not the end of a connection. A body is read
//! completely before it is sent, and an answer before it is passed on, so a slow caller never blocks the shared connections.
//!
//! The node that executes the request authenticates the caller by its token. It ignores the certificate of the connection,
//! which belongs to the forwarding node. A stranger can set `x-palisade-forwarded`. It only has these effects: this node does
//! not forward the request, it ignores a certificate, and the effects described below.
//!
//! If a node dies, stops, or is cut off while a request that it has sent on waits, the caller may repeat the request at
//! another node. So a request with an id keeps its place for a while when the way to its caller breaks (rule R16), here as
//! on any connection (`places`). The leader cannot tell that from a caller that hung up; a caller that gives a request up says
//! so, with `Abandon`.

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http::header::{EXPECT, HOST, ORIGIN, TE};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Uri, Version};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use palisade_proto::Code;
use palisade_tls::{Connector, Flags};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;

use super::budget::{BudgetShare, OPERATION_BYTES, SessionBudget};
use super::convert::{Refusal, not_leader};
use super::gate::{self, FORWARDED, Gate, GatedPipeline};
use super::phases::Phases;
use super::reply;
use super::settings::Settings;
use crate::shell::{self, remove_hop_by_hop};
use palisade_pipeline::Leading;

/// Those of a node, which shows its own certificate to the leader.
const FLAGS: Flags = Flags {
    ca: "--peer-ca (or --tls-client-ca)",
    own: "--tls-cert and --tls-key",
    plain: "start every node of the cluster with --tls-cert, or none",
};

/// The way to the leader.
pub(super) struct Forwarder {
    /// The value of [`FORWARDED`].
    node: HeaderValue,
    /// Whether the nodes have TLS.
    secure: bool,
    acquires: LeaderConnection,
    listens: LeaderConnection,
    others: LeaderConnection,
    gate: Arc<Gate>,
    pipeline: GatedPipeline,
    /// The memory for requests on their way, which sessions share.
    budget: Arc<SessionBudget>,
    phases: Phases,
}

/// One connection to the leader, and how many requests may be in flight on it.
struct LeaderConnection {
    client: Client<Connector, Body>,
    places: Semaphore,
}

/// The kind of a request, as far as forwarding distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForwardKind {
    /// It may wait in a queue.
    Acquire,
    /// It waits for news of the caller's grants; it can be sent twice.
    Listen,
    /// It changes nothing, so it can be sent twice.
    Read,
    /// It may change something.
    Change,
}

/// Why there is no answer of the leader.
enum ForwardFailure {
    /// Nothing was sent.
    NotSent(String),
    /// It was sent, and may have happened.
    Unknown(String),
}

/// The middleware around the handlers that need the leader. On a node that leads it costs one look.
pub(super) async fn to_leader(
    State(forwarder): State<Arc<Forwarder>>,
    request: Request,
    next: Next,
) -> Response {
    if forwarder.pipeline.leader() == Leading::Here
        || request.headers().contains_key(&FORWARDED)
        || !gate::goes_with(&forwarder.gate, request.headers())
        || !gate::is_known(request.extensions())
        || is_stream(&request)
    {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    let body = match shell::read(body).await {
        Ok(body) => body,
        Err(error) => {
            let refusal = Refusal::new(error.code(), error.to_string());
            return reply::refused(&head.headers, &refusal);
        }
    };
    match forwarder.settle(&head, &body).await {
        Ok(Some(answer)) => answer,
        // The handler answers: this node leads now, or it says that it does not.
        Ok(None) => next.run(Request::from_parts(head, Body::from(body))).await,
        Err(refusal) => reply::refused(&head.headers, &refusal),
    }
}

/// Streams are served at every node.
fn is_stream(request: &Request) -> bool {
    STREAMS.contains(&request.uri().path())
}

impl Forwarder {
    /// # Errors
    /// The certificates for the way to the leader cannot be used.
    pub(super) fn new(
        settings: &Settings,
        gate: Arc<Gate>,
        pipeline: GatedPipeline,
        budget: Arc<SessionBudget>,
        phases: Phases,
    ) -> Result<Forwarder, palisade_tls::Error> {
        let node = settings.node.as_deref().unwrap_or("node");
        let secure = node.starts_with("https://");
        let tls = secure.then(|| palisade_tls::TlsClient::new(&settings.to_leader));
        let tls = tls.transpose()?.map(|tls| tls.http2());
        Ok(Forwarder {
            secure,
            node: HeaderValue::from_str(node).unwrap_or(HeaderValue::from_static("node")),
            acquires: LeaderConnection::new(tls.clone()),
            listens: LeaderConnection::new(tls.clone()),
            others: LeaderConnection::new(tls),
            gate,
            pipeline,
            budget,
            phases,
        })
    }

    /// The leader's answer; `None` if the handler of this node is to answer.
    async fn settle(&self, head: &Parts, body: &Bytes) -> Result<Option<Response>, Refusal> {
        let kind = ForwardKind::of(head);
        let lane = match kind {
            ForwardKind::Acquire => &self.acquires,
            ForwardKind::Listen => &self.listens,
            ForwardKind::Read | ForwardKind::Change => &self.others,
        };
        let bytes = OPERATION_BYTES + body.len();
        let (Ok(_place), Some(_share)) = (
            lane.places.try_acquire(),
            BudgetShare::of(&self.budget, bytes),
        ) else {
            let why = "too many requests are on their way to the leader; nothing happened";
            return Err(Refusal::new(Code::Unavailable, why));
        };
        let mut leading = self.pipeline.leading();
        let mut patience = pin!(sleep(PATIENCE));
        loop {
            let leader = leading.borrow_and_update().clone();
            if let Leading::At(url) = &leader {
                match self.ask(lane, kind, url, head, body).await {
                    Ok(answer) => return Ok(Some(answer)),
                    Err(ForwardFailure::Unknown(why)) if !kind.changes_nothing() => {
                        return Err(Refusal::new(Code::UnknownOutcome, why));
                    }
                    Err(ForwardFailure::NotSent(why) | ForwardFailure::Unknown(why)) => {
                        tracing::debug!(leader = &**url, why, "a request was not forwarded");
                    }
                }
            }
            if leader == Leading::Here {
                return Ok(None);
            }
            if patience.is_elapsed() {
                return match leader {
                    Leading::At(url) => Err(not_leader(Some(url))),
                    _ => Ok(None),
                };
            }
            tokio::select! {
                // An error means that the pipeline is gone, which its handler reports.
                changed = leading.changed() => if changed.is_err() { return Ok(None) },
                () = sleep(AGAIN), if leader != Leading::Nowhere => {}
                () = &mut patience => {}
            }
        }
    }

    /// Sends the request to the leader and reads its answer to the end. Dropping this ends the request there.
    async fn ask(
        &self,
        lane: &LeaderConnection,
        kind: ForwardKind,
        url: &Arc<str>,
        head: &Parts,
        body: &Bytes,
    ) -> Result<Response, ForwardFailure> {
        let request = self.rewritten(url, head, body)?;
        let answered = async {
            let answer = lane.client.request(request).await.map_err(|error| {
                let why = format!("the leader, {url}: {}", causes(&error));
                if error.is_connect() {
                    ForwardFailure::NotSent(why)
                } else {
                    ForwardFailure::Unknown(format!("{why}, before its answer came"))
                }
            })?;
            let (mut head, body) = answer.into_parts();
            remove_hop_by_hop(&mut head.headers);
            head.version = Version::default();
            let body = body.collect().await.map_err(|error| {
                ForwardFailure::Unknown(format!("the leader's answer broke off: {error}"))
            })?;
            Ok(Response::from_parts(head, Body::new(body)))
        };
        tokio::select! {
            answer = answered => answer,
            () = deposed(self.pipeline.leading(), url) => {
                Err(ForwardFailure::Unknown(format!("{url} no longer leads and gave no answer")))
            }
            () = self.phases.draining(), if matches!(kind, ForwardKind::Acquire | ForwardKind::Listen) => {
                Err(ForwardFailure::Unknown("the server is stopping; the wait is over".to_owned()))
            }
        }
    }

    /// The request as it is sent to the leader.
    fn rewritten(
        &self,
        url: &str,
        head: &Parts,
        body: &Bytes,
    ) -> Result<http::Request<Body>, ForwardFailure> {
        let unfit = || ForwardFailure::NotSent(format!("{url:?} is not the address of a leader"));
        let leader: Uri = url.parse().map_err(|_| unfit())?;
        let authority = leader.authority().ok_or_else(unfit)?;
        let scheme = leader.scheme_str().ok_or_else(unfit)?;
        if (scheme == "https") != self.secure {
            return Err(unfit());
        }
        let path = head.uri.path_and_query().cloned();
        let uri = Uri::builder()
            .scheme(scheme)
            .authority(authority.clone())
            .path_and_query(path.unwrap_or(PathAndQuery::from_static("/")));
        let mut request = http::Request::new(Body::from(body.clone()));
        *request.uri_mut() = uri.build().map_err(|_| unfit())?;
        *request.version_mut() = Version::HTTP_2;
        request.method_mut().clone_from(&head.method);
        let headers = request.headers_mut();
        headers.clone_from(&head.headers);
        remove_hop_by_hop(headers);
        headers.remove(EXPECT);
        // HTTP/2 names the host in the URI.
        headers.remove(HOST);
        if headers.contains_key(ORIGIN) {
            // This node has compared it with its own name; the leader would compare it with the leader's.
            let origin = HeaderValue::from_str(&format!("{scheme}://{authority}"));
            headers.insert(ORIGIN, origin.map_err(|_| unfit())?);
        }
        if head.uri.path().starts_with(GRPC) {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        headers.insert(FORWARDED, self.node.clone());
        Ok(request)
    }
}

impl LeaderConnection {
    fn new(tls: Option<palisade_tls::TlsClient>) -> LeaderConnection {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        let client = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            // If the leader's machine is gone, nothing answers; requests that wait there must not wait for ever.
            .http2_keep_alive_interval(KEEP_ALIVE)
            .http2_keep_alive_timeout(KEEP_ALIVE)
            .build(Connector::new(connector, tls).naming(&FLAGS));
        LeaderConnection {
            client,
            places: Semaphore::new(PLACES),
        }
    }
}

impl ForwardKind {
    fn of(head: &Parts) -> ForwardKind {
        let path = head.uri.path();
        if let Some(method) = path.strip_prefix(GRPC) {
            return match method {
                "Acquire" => ForwardKind::Acquire,
                "Show" | "List" | "Status" => ForwardKind::Read,
                _ => ForwardKind::Change,
            };
        }
        match head.method {
            Method::GET | Method::HEAD => ForwardKind::Read,
            _ if path.ends_with("/acquire") => ForwardKind::Acquire,
            _ if path == LISTEN => ForwardKind::Listen,
            _ => ForwardKind::Change,
        }
    }

    fn changes_nothing(self) -> bool {
        matches!(self, ForwardKind::Read | ForwardKind::Listen)
    }
}

/// Waits until another node leads, or none, and the former leader has had some time to answer on its own.
async fn deposed(mut leading: watch::Receiver<Leading>, url: &Arc<str>) {
    let here = |leading: &Leading| matches!(leading, Leading::At(leader) if leader == url);
    loop {
        // An error means that the pipeline is gone, and this server with it.
        if leading.wait_for(|leading| !here(leading)).await.is_err() {
            return;
        }
        sleep(GRACE).await;
        if !here(&leading.borrow_and_update()) {
            return;
        }
    }
}

/// An error with its causes, which carry the meaning.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

const LISTEN: &str = "/v1/listen";
const GRPC: &str = "/palisade.v1.Locks/";
const STREAMS: [&str; 2] = ["/palisade.v1.Locks/Session", "/palisade.v1.Locks/Watch"];

/// How many requests may be in flight on one connection to the leader: fewer than the leader takes by default
/// ([`shell::Settings::streams_per_connection`]), so that none waits for another.
const PLACES: usize = 1_000;

/// How long a request waits for a leader that can be reached.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long until a leader that could not be reached is tried again.
const AGAIN: Duration = Duration::from_millis(250);

/// How long a leader may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(1);

/// How long a former leader may take to answer forwarded requests.
const GRACE: Duration = Duration::from_millis(500);

/// How often a silent leader is asked for a sign, and how long it may take to give one.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
