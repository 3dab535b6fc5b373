//! The suite over real HTTP: a small key-value service, written with axum, behind the layer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode};
use axum::routing::any;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use palisade_core::{AuthorityId, LockName, Token};
use palisade_fence::conformance::{self, Habit, Subject, TEXTBOOK_FAILS, late_writes};
use palisade_fence::http::{FenceLayer, Policy, Tokenless};
use palisade_fence::{
    Admitted, Edit, Error, ErrorKind, Fence, Mode, Pass, Reject, Result, Rule, Sequence, Write,
};
use serde_json::Value;

use super::support::{Map, by_segment, marks};

type Table = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// A key-value service that does not use the fence.
async fn key_value(
    State(table): State<Table>,
    method: Method,
    Path(key): Path<String>,
    body: Bytes,
) -> (StatusCode, Vec<u8>) {
    let mut table = table.lock().unwrap();
    match method.as_str() {
        "GET" => match table.get(&key) {
            Some(bytes) => (StatusCode::OK, bytes.clone()),
            None => (StatusCode::NOT_FOUND, Vec::new()),
        },
        "PUT" => {
            table.insert(key, body.to_vec());
            (StatusCode::OK, Vec::new())
        }
        "POST" => {
            table.entry(key).or_default().extend_from_slice(&body);
            (StatusCode::OK, Vec::new())
        }
        "DELETE" if table.remove(&key).is_some() => (StatusCode::OK, Vec::new()),
        _ => (StatusCode::NOT_FOUND, Vec::new()),
    }
}

struct Served {
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Served {
    async fn start(rule: Rule) -> Served {
        let policy = Policy {
            tokenless: Tokenless::UntilFenced,
            ..Policy::default()
        };
        let layer = FenceLayer::new(marks(rule), by_segment as Map, policy).unwrap();
        let router = Router::new()
            .route("/{*key}", any(key_value))
            .with_state(Table::default())
            .layer(layer);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::builder(TokioExecutor::new()).build_http();
        Served { url, client }
    }
}

impl Subject for Served {
    type Fence = Resource;

    async fn fresh(&self, name: &str) -> Result<Resource> {
        Ok(Resource {
            url: format!("{}/{name}", self.url),
            client: self.client.clone(),
        })
    }
}

/// One resource, used over HTTP.
struct Resource {
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::failed(ErrorKind::Unknown, "HTTP", error)
}

struct Answer {
    status: u16,
    repeat: bool,
    body: Vec<u8>,
}

impl Resource {
    async fn send(
        &self,
        method: &str,
        key: &str,
        by: Option<Pass<'_>>,
        headers: &[(&str, String)],
        body: &[u8],
    ) -> Result<Answer> {
        let mut request = http::Request::builder().method(method).uri(format!(
            "{}/{}",
            self.url,
            key.trim_start_matches('/')
        ));
        if let Some(pass) = by {
            request = request.header("x-fencing-token", pass.token.get());
            if let Some(authority) = pass.authority {
                request = request.header("x-fencing-authority", authority.as_str());
            }
            if let Some(lock) = pass.lock {
                request = request.header("x-fencing-lock", lock.as_str());
            }
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request
            .body(Full::new(Bytes::copy_from_slice(body)))
            .unwrap();
        let response = self.client.request(request).await.map_err(broken)?;
        let status = response.status().as_u16();
        let repeat = response.headers().contains_key("x-fencing-repeat");
        let body = response.into_body().collect().await.map_err(broken)?;
        Ok(Answer {
            status,
            repeat,
            body: body.to_bytes().to_vec(),
        })
    }

    fn checked(by: Option<Pass<'_>>, answer: &Answer) -> Result<Admitted<()>> {
        let highest = by.map(|pass| pass.token);
        match answer.status {
            200 => Ok(Admitted {
                value: (),
                highest,
                repeat: answer.repeat,
            }),
            404 => Err(Error::Rejected(Reject::Missing)),
            _ => Err(Error::Rejected(reject(&answer.body)?)),
        }
    }
}

/// Parses a refusal.
fn reject(body: &[u8]) -> Result<Reject> {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = &value["error"];
    let token = |name: &str| {
        error[name]
            .as_u64()
            .and_then(|number| Token::new(number).ok())
    };
    let last = || Sequence::new(error["last"].as_u64().unwrap()).unwrap();
    let text = |name: &str| error[name].as_str().unwrap();
    let reject = match error["code"].as_str().unwrap_or_default() {
        "stale" => Reject::Stale {
            presented: token("token").unwrap(),
            highest: token("highest").unwrap(),
        },
        "tokenless" => Reject::Tokenless {
            highest: token("highest").unwrap(),
        },
        "jump" => Reject::Jump {
            highest: token("highest"),
            bound: error["bound"].as_u64().unwrap(),
        },
        "sequence_stale" => Reject::SequenceStale { last: last() },
        "sequence_reused" => Reject::SequenceReused { last: last() },
        "already_written" => Reject::AlreadyWritten,
        "wrong_authority" => Reject::WrongAuthority {
            bound: AuthorityId::new(text("authority")).unwrap(),
        },
        "wrong_lock" => Reject::WrongLock {
            bound: LockName::new(text("lock")).unwrap(),
        },
        _ => return Err(broken(String::from_utf8_lossy(body))),
    };
    match text("message") {
        said if said == reject.to_string() => Ok(reject),
        said => Err(broken(said.to_owned())),
    }
}

impl Fence for Resource {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        let claim = [("x-fencing-operation", "claim".to_owned())];
        let answer = self.send("POST", "/", Some(pass), &claim, b"").await?;
        Resource::checked(Some(pass), &answer)
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        let answer = self.send("GET", key, Some(pass), &[], b"").await?;
        match answer.status {
            404 => Ok(Admitted::new(None, Some(pass.token))),
            _ => Ok(Resource::checked(Some(pass), &answer)?.map(|()| Some(answer.body))),
        }
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        let (method, body) = change(write.change);
        let sequence = write
            .sequence
            .map(|n| ("x-fencing-sequence", n.to_string()));
        let headers: Vec<_> = sequence.into_iter().collect();
        let answer = self
            .send(method, write.key, Some(pass), &headers, body)
            .await?;
        Resource::checked(Some(pass), &answer)
    }

    async fn write_tokenless(&self, key: &str, by: Edit<'_>) -> Result<Admitted<()>> {
        let (method, body) = change(by);
        let answer = self.send(method, key, None, &[], body).await?;
        Resource::checked(None, &answer)
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let answer = self.send("GET", key, None, &[], b"").await?;
        Ok((answer.status == 200).then_some(answer.body))
    }
}

fn change(change: Edit<'_>) -> (&'static str, &[u8]) {
    match change {
        Edit::Put(bytes) => ("PUT", bytes),
        Edit::Append(bytes) => ("POST", bytes),
        Edit::Delete => ("DELETE", b""),
    }
}

/// The holder's pass ends at the wire.
const CLAIM: Habit = Habit {
    reports: false,
    ..Habit::CLAIM
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_claim_fence_conforms() {
    let served = Served::start(Rule::CLAIM).await;
    conformance::run(&served, CLAIM).await.assert_passed();
}

/// The mark is set before the service sees the write. If the service then refuses it, the grant's one write is
/// used up: a fence in front of a service cannot undo that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_strict_fence_conforms_except_for_a_write_that_the_service_refused() {
    let served = Served::start(Rule::STRICT).await;
    let report = conformance::run(
        &served,
        Habit {
            reports: false,
            ..Habit::STRICT
        },
    )
    .await;
    assert_eq!(
        report.failed(),
        ["deleting_nothing_did_not_succeed"],
        "{report}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_textbook_fence_fails_where_it_must() {
    let rule = Rule {
        mode: Mode::Textbook,
        ..Rule::CLAIM
    };
    let served = Served::start(rule).await;
    let report = conformance::run(&served, CLAIM).await;
    let failed = report.failed();
    for expected in TEXTBOOK_FAILS {
        assert!(failed.contains(expected), "{expected} passed: {report}");
    }
}

/// The late write of the old holder between the new holder's read and its write, forced 1,000 times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_late_write_is_lost_every_time_by_the_textbook_and_never_by_the_claim() {
    let textbook = Rule {
        mode: Mode::Textbook,
        ..Rule::CLAIM
    };
    for (rule, lost) in [(textbook, 1_000), (Rule::CLAIM, 0)] {
        let served = Served::start(rule).await;
        let seen = late_writes(&served, 1_000).await.unwrap();
        assert_eq!((seen.rounds, seen.lost), (1_000, lost), "{rule:?}");
    }
}
