//! A worker's client of the resources: each request is one attempt, and a missing answer means an unknown outcome.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use super::locks::Grant;

/// The object that holds a resource's set: one element per line.
const FILE: &str = "/set";

/// The server whose resources have a set each.
#[derive(Clone)]
pub(super) struct Store {
    client: Client<HttpConnector, Full<Bytes>>,
    address: String,
}

/// The outcome of an operation.
pub(super) enum Answer<T> {
    Admitted(T),
    Rejected { highest: Option<u64> },
    Unknown(String),
}

/// The elements of a set in the resource's format.
fn elements(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let words = text.split_ascii_whitespace();
    words.map(str::to_owned).collect()
}

/// For locks without tokens: the resource requires a number even if it checks none.
const NO_TOKEN: u64 = 1;

impl Store {
    pub(super) fn new(address: &str) -> Store {
        // The client must not repeat a request by itself: the first one may have arrived.
        let client = Client::builder(TokioExecutor::new())
            .retry_canceled_requests(false)
            .build_http();
        Store {
            client,
            address: address.to_owned(),
        }
    }

    /// Raises a resource's fence to the token, before any read.
    pub(super) async fn claim(&self, name: &str, grant: &Grant) -> Answer<()> {
        let answer = self.post("claim", pass(name, grant)).await;
        answer.of(|_| Some(()))
    }

    /// Reads a resource's set; with a grant, only if its token is not stale.
    pub(super) async fn read(&self, name: &str, grant: Option<&Grant>) -> Answer<Vec<String>> {
        let uri = format!("http://{}/v1/storage/{name}/files{FILE}", self.address);
        let mut request = Request::get(uri);
        if let Some(grant) = grant {
            request = request.header("X-Fencing-Token", grant.token.unwrap_or(NO_TOKEN));
            if let Some(authority) = &grant.authority {
                request = request.header("X-Fencing-Authority", authority);
            }
        }
        let answer = self.send(request.body(Full::default())).await;
        match answer {
            // Nobody has written it yet.
            Ok(Reply { status: 404, .. }) => Answer::Admitted(Vec::new()),
            answer => answer.of(|body| Some(elements(body))),
        }
    }

    /// Replaces a resource's set.
    pub(super) async fn write(
        &self,
        name: &str,
        grant: &Grant,
        sequence: Option<u64>,
        set: &[String],
    ) -> Answer<()> {
        let mut body = pass(name, grant);
        body["write_payload"] = json!({
            "file_path": FILE, "mutation_type": "PUT", "bytes": STANDARD.encode(set.join("\n")),
        });
        if let Some(sequence) = sequence {
            body["sequence"] = sequence.into();
        }
        self.post("write", body).await.of(|_| Some(()))
    }

    async fn post(&self, what: &str, body: Value) -> Result<Reply, String> {
        let uri = format!("http://{}/v1/storage/{what}", self.address);
        let request = Request::post(uri).header("Content-Type", "application/json");
        self.send(request.body(Full::from(body.to_string()))).await
    }

    async fn send(
        &self,
        request: Result<Request<Full<Bytes>>, hyper::http::Error>,
    ) -> Result<Reply, String> {
        let request = request.map_err(|error| error.to_string())?;
        let asking = async {
            let answer = self.client.request(request).await;
            let answer = answer.map_err(|error| error.to_string())?;
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            Ok(Reply { status, body })
        };
        let patient = tokio::time::timeout(PATIENCE, asking).await;
        patient.unwrap_or_else(|_| Err("no answer in time".to_owned()))
    }
}

/// The fields of every request.
fn pass(name: &str, grant: &Grant) -> Value {
    let mut body = json!({
        "resource_id": name, "fencing_token": grant.token.unwrap_or(NO_TOKEN),
    });
    if let Some(authority) = &grant.authority {
        body["authority"] = authority.as_str().into();
    }
    body
}

/// A received answer.
struct Reply {
    status: u16,
    body: Bytes,
}

/// Turns an answer into an outcome.
trait IntoAnswer {
    fn of<T>(self, value: impl FnOnce(&[u8]) -> Option<T>) -> Answer<T>;
}

impl IntoAnswer for Result<Reply, String> {
    fn of<T>(self, value: impl FnOnce(&[u8]) -> Option<T>) -> Answer<T> {
        let reply = match self {
            Ok(reply) => reply,
            Err(why) => return Answer::Unknown(why),
        };
        if reply.status == 200 {
            return match value(&reply.body) {
                Some(value) => Answer::Admitted(value),
                None => Answer::Unknown("the answer cannot be read".to_owned()),
            };
        }
        let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        let error = &body["error"];
        match error["code"].as_str() {
            Some("stale") => Answer::Rejected {
                highest: error["highest"].as_u64(),
            },
            code => Answer::Unknown(format!("{} {}", reply.status, code.unwrap_or_default())),
        }
    }
}

/// Longer than any pause of the resource.
const PATIENCE: Duration = Duration::from_secs(30);
