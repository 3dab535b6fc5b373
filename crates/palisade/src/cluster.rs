//! Asks the nodes of a cluster about it, over HTTP.

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::future::join_all;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use palisade_client::{BearerToken, TlsFiles};
use palisade_proto::json::{ClusterReply, ClusterRole, ErrorReply};
use palisade_tls::Connector;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

/// A node that does not show its view within this time hangs: all nodes are asked at once.
const LOOK: Duration = Duration::from_secs(2);

/// A change that takes longer than this does not come: a new node has two minutes to catch up.
const PATIENCE: Duration = Duration::from_secs(130);

/// After a change, the leader is waited for no longer than this: it may be another one by then.
const SHOWN: Duration = Duration::from_secs(5);

/// No answer is larger.
const ANSWER_BYTES: usize = 1 << 20;

/// A change is asked for again at another node, for so long and so often, while none leads.
const AGAIN: Duration = Duration::from_millis(250);
const TRIES: usize = 40;

/// The reason why a node did not carry out a request.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Error {
    /// It cannot be reached, or is not a lock server.
    #[error("{0}")]
    Unreachable(String),
    /// It answered, and this is why not.
    #[error("{message}")]
    Refused { code: String, message: String },
}

/// The reason for the missing connection: a certificate, or no server.
fn not_connected(error: &hyper_util::client::legacy::Error) -> String {
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(inner) = cause {
        if inner.source().is_none() && inner.downcast_ref::<std::io::Error>().is_none() {
            return inner.to_string();
        }
        cause = inner.source();
    }
    "nothing listens there; is a node running?".to_owned()
}

/// The nodes of one cluster that can be asked.
pub(crate) struct Nodes {
    client: Client<Connector, Body>,
    token: Option<BearerToken>,
    urls: Vec<String>,
}

impl Nodes {
    /// # Errors
    /// A URL has `https://`, and the certificates cannot be used.
    pub(crate) fn new(urls: Vec<String>, tls: &TlsFiles) -> Result<Nodes, palisade_tls::Error> {
        let secure = urls.iter().any(|url| url.starts_with("https://"));
        let tls = secure.then(|| palisade_tls::TlsClient::new(tls));
        let tls = tls.transpose()?.map(|tls| tls.http1());
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(2)));
        let connector = Connector::new(connector, tls);
        Ok(Nodes {
            client: Client::builder(TokioExecutor::new()).build(connector),
            token: None,
            urls,
        })
    }

    /// Shows this token with each request.
    #[must_use]
    pub(crate) fn with_token(self, token: Option<BearerToken>) -> Nodes {
        Nodes { token, ..self }
    }

    /// The cluster as the leader sees it, which knows most; if it cannot be asked, as a node does that knows the members. All
    /// nodes are asked at once, and each has two seconds.
    pub(crate) async fn view(&self) -> Result<ClusterReply, Error> {
        let views = self.views().await;
        // The newest view decides the leader.
        let known = views.iter().filter_map(|(_, view)| view.as_ref().ok());
        let newest = known.filter(|view| view.leader_url.is_some());
        if let Some(newest) = newest.max_by_key(|view| view.term)
            && newest.role != ClusterRole::Leader
            && let Some(leader) = &newest.leader_url
            // A node knows nothing of the Unix sockets of this machine.
            && !leader.starts_with("unix:")
            && let Ok(view) = self.view_of(leader).await
        {
            return Ok(view);
        }
        let worth = |view: &ClusterReply| {
            let leads = view.role == ClusterRole::Leader && view.leader.is_some();
            (leads, view.term, view.members.len())
        };
        let mut views = views.into_iter().map(|(_, view)| view);
        let none = || Err(Error::Unreachable("no address was given".to_owned()));
        let mut best = views.next().unwrap_or_else(none);
        for view in views {
            let is_better = match (&best, &view) {
                (Ok(best), Ok(view)) => worth(best) < worth(view),
                (Ok(_), Err(_)) => false,
                // An answer says more than none.
                (Err(Error::Refused { .. }), Err(_)) => false,
                (Err(_), Ok(_) | Err(Error::Refused { .. })) => true,
                (Err(_), Err(Error::Unreachable(_))) => false,
            };
            if is_better {
                best = view;
            }
        }
        best
    }

    /// Asks every node for its view of the cluster.
    async fn views(&self) -> Vec<(&str, Result<ClusterReply, Error>)> {
        let answers = join_all(self.urls.iter().map(|url| self.view_of(url))).await;
        self.urls.iter().map(String::as_str).zip(answers).collect()
    }

    /// The cluster as this node sees it.
    pub(crate) async fn view_of(&self, url: &str) -> Result<ClusterReply, Error> {
        self.ask(url, Method::GET, "/v1/cluster", None, LOOK).await
    }

    /// The cluster as the leader sees it, which may only be elected by now.
    pub(crate) async fn view_of_leader(&self) -> Result<ClusterReply, Error> {
        let led = async {
            loop {
                let view = self.view().await;
                let leads =
                    |view: &ClusterReply| view.role == ClusterRole::Leader && view.leader.is_some();
                match &view {
                    Ok(view) if !leads(view) => {}
                    Err(Error::Unreachable(_)) => {}
                    Ok(_) | Err(Error::Refused { .. }) => return view,
                }
                sleep(AGAIN).await;
            }
        };
        match timeout(SHOWN, led).await {
            Ok(view) => view,
            Err(_) => self.view().await,
        }
    }

    /// Reads from the first node that answers, in the order of the addresses.
    pub(crate) async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let mut outcome = Err(Error::Unreachable("no address was given".to_owned()));
        for url in &self.urls {
            outcome = self.ask(url, Method::GET, path, None, PATIENCE).await;
            if !matches!(outcome, Err(Error::Unreachable(_))) {
                break;
            }
        }
        outcome
    }

    /// Asks for a change, at whichever node leads; tries again while none does.
    pub(crate) async fn change(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<ClusterReply, Error> {
        let body = serde_json::to_vec(body).unwrap_or_default();
        let mut tries = 0;
        loop {
            let asked = match self.leader().await {
                Ok(url) => {
                    let body = Some(body.clone().into());
                    self.ask(&url, Method::POST, path, body, PATIENCE).await
                }
                Err(error) => Err(error),
            };
            tries += 1;
            let again = match &asked {
                Err(Error::Unreachable(_)) => tries < 2,
                Err(Error::Refused { code, .. }) => code == "not_leader" && tries < TRIES,
                Ok(_) => false,
            };
            if !again {
                return asked;
            }
            sleep(AGAIN).await;
        }
    }

    /// The node to ask for a change: the one that leads, or else one that answers.
    async fn leader(&self) -> Result<String, Error> {
        let views = self.views().await;
        let known = views
            .iter()
            .filter_map(|(url, view)| Some((url, view.as_ref().ok()?)));
        let newest = known.max_by_key(|(_, view)| (view.leader_url.is_some(), view.term));
        if let Some((url, view)) = newest {
            let url = || (*url).to_owned();
            let elsewhere = view
                .leader_url
                .clone()
                .filter(|at| !at.starts_with("unix:"));
            let leads = view.role == ClusterRole::Leader;
            return Ok(elsewhere.filter(|_| !leads).unwrap_or_else(url));
        }
        let answers =
            |view: &Result<ClusterReply, Error>| matches!(view, Err(Error::Refused { .. }));
        match views.iter().find(|(_, view)| answers(view)) {
            // A caller may have the right to change the cluster, and not the right to see it.
            Some((url, _)) => Ok((*url).to_owned()),
            None => Err(views
                .into_iter()
                .find_map(|(_, view)| view.err())
                .unwrap_or_else(|| Error::Unreachable("no address was given".to_owned()))),
        }
    }

    /// The addresses that were given.
    pub(crate) fn urls(&self) -> &[String] {
        &self.urls
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        url: &str,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        patience: Duration,
    ) -> Result<T, Error> {
        let answer = self.exchange(url, method, path, body, patience).await?;
        answer.read(url)
    }

    /// Reads from one node, whatever the answer is.
    pub(crate) async fn get(
        &self,
        url: &str,
        path: &str,
        patience: Duration,
    ) -> Result<Answer, Error> {
        self.exchange(url, Method::GET, path, None, patience).await
    }

    async fn exchange(
        &self,
        url: &str,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        patience: Duration,
    ) -> Result<Answer, Error> {
        let unreachable = |why: String| Error::Unreachable(format!("{url}: {why}"));
        let socket = url.strip_prefix("unix:");
        let (client, origin) = match socket {
            Some(path) => {
                let path = Path::new(path.strip_prefix("//").unwrap_or(path));
                let connector = Connector::to_socket(path);
                let client = Client::builder(TokioExecutor::new()).build(connector);
                (client, "http://localhost")
            }
            None => (self.client.clone(), url.trim_end_matches('/')),
        };
        let uri: Uri = format!("{origin}{path}")
            .parse()
            .map_err(|_| unreachable("not a URL; write http://host:7420".to_owned()))?;
        // A token goes only where nobody on the way can read it.
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let loopback = host
            .parse()
            .is_ok_and(|at: std::net::IpAddr| at.is_loopback());
        let keeps_secrets = uri.scheme_str() == Some("https") || loopback || host == "localhost";
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("content-type", "application/json");
        let request = match &self.token {
            Some(token) if keeps_secrets => {
                request.header("authorization", format!("Bearer {}", token.expose()))
            }
            _ => request,
        };
        let request = request
            .body(Body::from(body.unwrap_or_default()))
            .map_err(|error| unreachable(error.to_string()))?;
        let answered = async {
            let answer = client.request(request).await;
            let answer = answer.map_err(|error| {
                if error.is_connect() {
                    not_connected(&error)
                } else {
                    error.to_string()
                }
            })?;
            let (head, body) = answer.into_parts();
            let bytes = axum::body::to_bytes(Body::new(body), ANSWER_BYTES).await;
            Ok::<_, String>((head.status, bytes.map_err(|error| error.to_string())?))
        };
        match timeout(patience, answered).await {
            Ok(answered) => {
                let (status, bytes) = answered.map_err(unreachable)?;
                Ok(Answer { status, bytes })
            }
            Err(_) => {
                let why = format!("no answer within {} s", patience.as_secs());
                Err(unreachable(why))
            }
        }
    }
}

/// An answer of a node.
pub(crate) struct Answer {
    status: StatusCode,
    bytes: Bytes,
}

impl Answer {
    /// The body of an answer that is not an error; `url` is for messages.
    pub(crate) fn read<T: DeserializeOwned>(&self, url: &str) -> Result<T, Error> {
        match serde_json::from_slice(self.body(url)?) {
            Ok(reply) => Ok(reply),
            Err(_) => Err(self.strange(url)),
        }
    }

    /// The same as text.
    pub(crate) fn text(&self, url: &str) -> Result<String, Error> {
        Ok(String::from_utf8_lossy(self.body(url)?).into_owned())
    }

    fn body(&self, url: &str) -> Result<&[u8], Error> {
        if self.status == StatusCode::OK {
            return Ok(&self.bytes);
        }
        match serde_json::from_slice::<ErrorReply>(&self.bytes) {
            Ok(ErrorReply { error }) => Err(Error::Refused {
                code: error.code,
                message: error.message,
            }),
            Err(_) => Err(self.strange(url)),
        }
    }

    fn strange(&self, url: &str) -> Error {
        let status = self.status;
        Error::Unreachable(format!(
            "{url}: its answer ({status}) is not a lock server's"
        ))
    }
}
