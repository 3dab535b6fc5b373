//! Forwards requests to the upstream and returns its answers.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::header::CONNECTION;
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderValue, StatusCode, Uri, Version};
use axum::response::{IntoResponse, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use palisade_fence::http::{IdleBody, Problem, UpstreamOutcome};
use palisade_server::shell::{Peer, remove_hop_by_hop};
use palisade_tls::{ClientFiles, Connector, Flags};
use tower_service::Service;

use super::headers;

/// Those of a gateway, which has no certificate of its own for an upstream.
const FLAGS: Flags = Flags {
    ca: "--upstream-ca-file",
    own: "a proxy between them, because a gateway shows none",
    plain: "for an upstream without TLS, write http:// in --upstream",
};

/// The upstream's time limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// To accept a connection.
    pub(crate) connect: Duration,
    /// To begin its answer, after the last piece of the request.
    pub(crate) answer: Duration,
    /// Between two pieces of a body, in either direction.
    pub(crate) idle: Duration,
}

/// Where requests go.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    scheme: Scheme,
    /// For `https`.
    tls: Option<palisade_tls::TlsClient>,
    /// `http` or `https`: how the gateway's own clients connect.
    clients: &'static str,
    authority: Authority,
    host: HeaderValue,
    /// The path before that of every request; without a slash at its end.
    base: String,
    timeouts: Timeouts,
}

impl Upstream {
    /// Reads an address: `http://HOST[:PORT][/BASE]`, or `https://…`. The certificate of an upstream with TLS must be of
    /// this CA, or of one that this machine trusts. `clients` is the scheme by which the gateway's own clients connect.
    ///
    /// # Errors The mistake in the address or the CA.
    pub(crate) fn new(
        url: &Uri,
        ca: Option<&Path>,
        clients: &'static str,
        timeouts: Timeouts,
    ) -> Result<Upstream, String> {
        let scheme = url
            .scheme()
            .filter(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
        let scheme =
            scheme.ok_or("the upstream must be http://HOST[:PORT] or https://HOST[:PORT]")?;
        let files = ClientFiles {
            ca: ca.map(Path::to_owned),
            own: None,
        };
        let tls = match (*scheme == Scheme::HTTPS, ca) {
            (true, _) => {
                Some(palisade_tls::TlsClient::new(&files).map_err(|error| error.to_string())?)
            }
            (false, None) => None,
            (false, Some(_)) => {
                return Err("a CA is for an upstream with TLS: write https://".to_owned());
            }
        };
        if url.query().is_some() {
            return Err("the upstream must not have a query".to_owned());
        }
        let authority = url.authority().ok_or("the upstream has no host")?.clone();
        if authority.as_str().contains('@') {
            return Err("the upstream's address must not contain a user".to_owned());
        }
        let host = HeaderValue::from_str(authority.as_str());
        Ok(Upstream {
            scheme: scheme.clone(),
            tls: tls.map(|tls| tls.http1()),
            clients,
            host: host.map_err(|_| "the upstream's host is not a valid header".to_owned())?,
            authority,
            base: url.path().trim_end_matches('/').to_owned(),
            timeouts,
        })
    }

    /// The service that sends requests there.
    pub(crate) fn service(self) -> Forward {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(self.timeouts.connect));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION)
            .build(Connector::new(connector, self.tls.clone()).naming(&FLAGS));
        Forward(Arc::new(Inner {
            upstream: self,
            client,
        }))
    }

    fn uri(&self, of: &Uri) -> Option<Uri> {
        let path = of.path_and_query()?;
        let path = if self.base.is_empty() {
            path.clone()
        } else {
            PathAndQuery::try_from(format!("{}{path}", self.base)).ok()?
        };
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path);
        uri.build().ok()
    }
}

/// Sends requests to the upstream.
#[derive(Clone, Debug)]
pub(crate) struct Forward(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    upstream: Upstream,
    client: Client<Connector, Body>,
}

impl Service<Request> for Forward {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let inner = self.0.clone();
        Box::pin(async move { Ok(inner.send(request).await) })
    }
}

impl Inner {
    async fn send(&self, request: Request) -> Response {
        let Timeouts { answer, idle, .. } = self.upstream.timeouts;
        let (mut head, body) = request.into_parts();
        let Some(uri) = self.upstream.uri(&head.uri) else {
            let message = format!("{} {} cannot be forwarded", head.method, head.uri);
            return answered(Problem::invalid(message), UpstreamOutcome::NotSent);
        };
        (head.uri, head.version) = (uri, Version::HTTP_11);
        let peer = head.extensions.get::<Peer>();
        let client = headers::OriginalClient {
            address: peer.and_then(|peer| peer.origin.ip()),
            scheme: self.upstream.clients,
        };
        headers::for_upstream(&mut head.headers, &self.upstream.host, client);
        if !body.is_end_stream() {
            // If the upstream answers without reading the body, it must not take the body for its next request.
            let close = HeaderValue::from_static("close");
            head.headers.insert(CONNECTION, close);
        }
        let frames = Arc::new(AtomicU64::new(0));
        let body = Body::new(IdleBody::new(body, idle, frames.clone()));
        let mut sent = pin!(self.client.request(Request::from_parts(head, body)));
        let received = loop {
            let before = frames.load(Ordering::Relaxed);
            match tokio::time::timeout(answer, &mut sent).await {
                Ok(received) => break received,
                // The request may still have been on its way.
                Err(_) if frames.load(Ordering::Relaxed) != before => {}
                Err(_) => return late(answer),
            }
        };
        match received {
            Ok(response) => {
                let (mut head, body) = response.into_parts();
                remove_hop_by_hop(&mut head.headers);
                head.version = Version::HTTP_11;
                let body = IdleBody::new(Body::new(body), idle, Arc::default());
                Response::from_parts(head, Body::new(body))
            }
            Err(error) if error.is_connect() => answered(
                Problem::unavailable(format!(
                    "the upstream cannot be reached, nothing was sent: {}",
                    causes(&error)
                ))
                .with_status(StatusCode::BAD_GATEWAY),
                UpstreamOutcome::NotSent,
            ),
            Err(error) => answered(
                Problem::unknown_outcome(format!(
                    "the connection to the upstream broke before the answer was complete: {}",
                    causes(&error)
                ))
                .with_status(StatusCode::BAD_GATEWAY),
                UpstreamOutcome::Unknown,
            ),
        }
    }
}

fn late(after: Duration) -> Response {
    let message = format!("the upstream did not answer within {after:?}");
    answered(Problem::unknown_outcome(message), UpstreamOutcome::Unknown)
}

fn answered(problem: Problem, outcome: UpstreamOutcome) -> Response {
    let mut response = problem.into_response();
    response.extensions_mut().insert(outcome);
    response
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

/// Shorter than services usually keep an idle connection open.
const IDLE_CONNECTION: Duration = Duration::from_secs(20);
