//! Posts spans to the collector, some at a time.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use palisade_tls::{ClientFiles, Connector};
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};

use super::Endpoint;
use super::counters::{DROPPED, SENT};
use super::span::text;

/// The way to a collector.
pub(super) struct Sender {
    client: Client<Connector, Full<Bytes>>,
    endpoint: Endpoint,
    resource: Resource,
    /// While it cannot send: the count of dropped spans when that began.
    down_since: Option<u64>,
}

/// Why spans were not taken.
#[derive(Debug, thiserror::Error)]
enum SendRefused {
    /// The same spans would be refused again.
    #[error("the collector answers {0}")]
    ForGood(StatusCode),
    #[error("{0}")]
    ForNow(String),
}

impl Sender {
    pub(super) fn new(endpoint: &Endpoint, command: &str) -> Result<Sender, palisade_tls::Error> {
        let tls = endpoint
            .is_secure()
            .then(|| palisade_tls::TlsClient::new(&ClientFiles::default()));
        let tls = tls.transpose()?.map(|tls| tls.http1());
        let connector = Connector::new(HttpConnector::new(), tls);
        Ok(Sender {
            client: Client::builder(TokioExecutor::new()).build(connector),
            endpoint: endpoint.clone(),
            resource: Resource {
                attributes: vec![
                    text("service.name", format!("palisade-{command}")),
                    text("service.version", env!("CARGO_PKG_VERSION")),
                ],
                ..Resource::default()
            },
            down_since: None,
        })
    }

    /// Sends spans until `stop`; then the remaining ones.
    pub(super) async fn run(
        mut self,
        mut queue: mpsc::Receiver<Span>,
        mut stop: oneshot::Receiver<()>,
    ) {
        let mut batch = Vec::new();
        let mut stopping = false;
        loop {
            tokio::select! {
                taken = queue.recv_many(&mut batch, BATCH) => if taken == 0 {
                    return;
                },
                _ = &mut stop, if !stopping => {
                    stopping = true;
                    queue.close();
                    continue;
                }
            }
            // Spans come together: a job's grant ends, and its write is rejected.
            if !stopping && wait(GATHER, &mut stop).await {
                stopping = true;
                queue.close();
            }
            while batch.len() < BATCH
                && let Ok(span) = queue.try_recv()
            {
                batch.push(span);
            }
            loop {
                match self.post(&batch).await {
                    Ok(taken) => {
                        SENT.fetch_add(taken, Relaxed);
                        DROPPED.fetch_add((batch.len() as u64).saturating_sub(taken), Relaxed);
                        self.is_up();
                        break;
                    }
                    Err(why @ SendRefused::ForGood(_)) => {
                        DROPPED.fetch_add(batch.len() as u64, Relaxed);
                        self.is_down(&why);
                        break;
                    }
                    Err(why) => self.is_down(&why),
                }
                if stopping {
                    let left = batch.len() + queue.len();
                    DROPPED.fetch_add(left as u64, Relaxed);
                    tracing::warn!(spans = left, "the last spans were not sent");
                    return;
                }
                if wait(AGAIN, &mut stop).await {
                    stopping = true;
                    queue.close();
                }
            }
            batch.clear();
        }
    }

    /// Sends these spans; the number that the collector took.
    async fn post(&self, spans: &[Span]) -> Result<u64, SendRefused> {
        let message = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(InstrumentationScope {
                        name: "palisade".to_owned(),
                        ..InstrumentationScope::default()
                    }),
                    spans: spans.to_vec(),
                    ..ScopeSpans::default()
                }],
                ..ResourceSpans::default()
            }],
        };
        let mut request = Request::new(Full::new(Bytes::from(message.encode_to_vec())));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.endpoint.traces().clone();
        let protobuf = axum::http::HeaderValue::from_static("application/x-protobuf");
        request.headers_mut().insert(CONTENT_TYPE, protobuf);
        let asked = async {
            let answer = self.client.request(request).await;
            let answer = answer.map_err(|error| SendRefused::ForNow(chain(&error)))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES)
                .collect()
                .await;
            // An answer that cannot be read is an answer.
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            Ok((status, body))
        };
        let answer = tokio::time::timeout(PATIENCE, asked).await;
        let (status, body) = answer.unwrap_or_else(|_| {
            let why = format!("no answer within {} s", PATIENCE.as_secs());
            Err(SendRefused::ForNow(why))
        })?;
        match status.as_u16() {
            200..300 => {
                let answer = ExportTraceServiceResponse::decode(body).unwrap_or_default();
                let rejected = answer.partial_success.map_or(0, |part| part.rejected_spans);
                let rejected = u64::try_from(rejected).unwrap_or_default();
                Ok((spans.len() as u64).saturating_sub(rejected))
            }
            // The statuses for which OTLP asks to try again.
            429 | 502 | 503 | 504 => Err(SendRefused::ForNow(format!(
                "the collector answers {status}"
            ))),
            _ => Err(SendRefused::ForGood(status)),
        }
    }

    /// Says it when it begins.
    fn is_down(&mut self, why: &SendRefused) {
        if self.down_since.is_none() {
            self.down_since = Some(DROPPED.load(Relaxed));
            tracing::warn!(
                collector = %self.endpoint, %why,
                "spans cannot be sent; locks and fences work as before, and palisade counts the spans that are lost"
            );
        }
    }

    /// Says it when it ends.
    fn is_up(&mut self) {
        if let Some(before) = self.down_since.take() {
            let dropped = DROPPED.load(Relaxed).saturating_sub(before);
            tracing::info!(collector = %self.endpoint, dropped, "spans are sent again");
        }
    }
}

/// Waits, and returns whether it was asked to stop meanwhile.
async fn wait(time: Duration, stop: &mut oneshot::Receiver<()>) -> bool {
    tokio::select! {
        () = tokio::time::sleep(time) => false,
        _ = stop => true,
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let said: Vec<String> = causes.map(ToString::to_string).collect();
    said.join(": ")
}

/// How many spans one request has at most.
const BATCH: usize = 512;

/// How long spans gather before they are sent.
const GATHER: Duration = Duration::from_millis(200);

/// How long the collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait before spans are sent again that were not taken.
const AGAIN: Duration = Duration::from_secs(1);

/// An answer has some bytes; more are not read.
const ANSWER_BYTES: usize = 64 << 10;
