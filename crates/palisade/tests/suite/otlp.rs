//! Spans: real servers, and an OpenTelemetry collector that stores all spans.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use rustix::process::Signal;
use serde_json::json;
use tokio::net::TcpListener;

use crate::common::{palisade, status, text};
use crate::gateway::support::{self, Caller, until_async};
use crate::gateway::upstream::Upstream;
use crate::traces::{OTHER, TRACE, acquire, command, logged, parent, start, write};

/// The requests that a collector received, and its answers.
#[derive(Default)]
struct Got {
    spans: Mutex<Vec<Span>>,
    services: Mutex<Vec<String>>,
    is_away: AtomicBool,
    hangs: AtomicBool,
    asked: AtomicBool,
}

/// A collector on a free port, for the time of its test.
struct Collector {
    url: String,
    got: Arc<Got>,
}

impl Collector {
    async fn start() -> Collector {
        let got = Arc::<Got>::default();
        let router = Router::new().route("/v1/traces", post(take));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = router.with_state(Arc::clone(&got));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Collector { url, got }
    }

    fn spans(&self) -> Vec<Span> {
        self.got.spans.lock().unwrap().clone()
    }

    /// Waits until the collector has this many spans.
    async fn wait_for(&self, count: usize) -> Vec<Span> {
        until_async("spans", async || self.spans().len() >= count).await;
        self.spans()
    }
}

async fn take(State(got): State<Arc<Got>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    got.asked.store(true, Ordering::SeqCst);
    if got.hangs.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
    if got.is_away.load(Ordering::SeqCst) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    for of_resource in request.resource_spans {
        let resource = of_resource.resource.unwrap();
        let service = resource
            .attributes
            .iter()
            .find(|pair| pair.key == "service.name");
        let service = said(service.and_then(|pair| pair.value.as_ref()?.value.as_ref()));
        got.services.lock().unwrap().push(service);
        for of_scope in of_resource.scope_spans {
            got.spans.lock().unwrap().extend(of_scope.spans);
        }
    }
    StatusCode::OK
}

fn said(value: Option<&Value>) -> String {
    match value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|pair| pair.key == key);
    said(found.and_then(|pair| pair.value.as_ref()?.value.as_ref()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that a span is a child of the caller's, and is one that OpenTelemetry takes.
fn assert_child(span: &Span, trace: &str) {
    assert_eq!(hex(&span.trace_id), trace);
    assert_eq!(hex(&span.parent_span_id), "00f067aa0ba902b7");
    assert_eq!(span.span_id.len(), 8);
    assert_ne!(span.span_id, [0; 8]);
    assert!(span.start_time_unix_nano > 0);
    assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
}

fn unsampled() -> String {
    parent(TRACE).replace("-01", "-00")
}

async fn release(caller: &Caller, lock: &str, held: &serde_json::Value) {
    let body = json!({"lock_token": held["lock_token"]}).to_string();
    let headers = [("content-type", "application/json")];
    let path = format!("/v1/locks/{lock}/release");
    assert_eq!(caller.call("POST", &path, &headers, body).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_a_span_of_its_callers_trace_and_only_if_that_is_recorded() {
    let collector = Collector::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (data, log) = (dir.path().join("data"), dir.path().join("log"));
    let mut serve = command("serve", &data);
    // Spans do not depend on the log's filter.
    serve
        .args(["--otlp", &collector.url])
        .env("PALISADE_LOG", "off");
    let (server, caller) = start(serve, &log);
    // Controls: no trace, and a trace that is not recorded.
    for (lock, trace) in [("plain", None), ("unsampled", Some(unsampled()))] {
        let held = acquire(&caller, lock, "a", trace).await;
        release(&caller, lock, &held).await;
    }
    let held = acquire(&caller, "orders", "a", Some(parent(TRACE))).await;
    assert_eq!(collector.spans(), [], "a grant that lasts has no span yet");
    release(&caller, "orders", &held).await;
    let spans = collector.wait_for(1).await;
    let [span] = &*spans else {
        panic!("{spans:?}");
    };
    assert_child(span, TRACE);
    assert_eq!(span.name, "grant");
    for (key, value) in [
        ("palisade.lock", "orders".to_owned()),
        ("palisade.client_id", "a".to_owned()),
        ("palisade.fencing_token", held["fencing_token"].to_string()),
        ("palisade.ending", "released".to_owned()),
    ] {
        assert_eq!(attribute(span, key), value, "{key}");
    }
    // A grant that outlives the server has its span when the server stops.
    acquire(&caller, "nightly", "b", Some(parent(OTHER))).await;
    server.send(Signal::TERM);
    assert_eq!(status(&server.end()), 0);
    let spans = collector.spans();
    assert_eq!(spans.len(), 2, "{spans:?}");
    assert_child(&spans[1], OTHER);
    assert_eq!(attribute(&spans[1], "palisade.lock"), "nightly");
    assert_eq!(attribute(&spans[1], "palisade.ending"), "server_stopped");
    let services = collector.got.services.lock().unwrap().clone();
    assert!(
        services.iter().all(|name| name == "palisade-serve"),
        "{services:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_write_is_a_span_of_the_late_holders_trace() {
    let (_upstream, upstream) = Upstream::start().await;
    for at in ["gateway", "store"] {
        let collector = Collector::start().await;
        let dir = tempfile::tempdir().unwrap();
        let (data, log) = (dir.path().join("data"), dir.path().join("log"));
        let mut command = match at {
            "store" => command("store", &data),
            _ => {
                let mut command = support::command(&upstream, &data);
                command.args(["--route", "/accounts/{id:uint}=account:{id}"]);
                command
            }
        };
        // The usual variable of OpenTelemetry.
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url);
        let (fence, caller) = start(command, &log);
        // Controls: an admitted write, and a rejected one in no trace.
        assert_eq!(write(&caller, at, 2, Some(OTHER)).await, 200);
        assert_eq!(write(&caller, at, 1, None).await, 412);
        assert_eq!(write(&caller, at, 1, Some(TRACE)).await, 412);
        let spans = collector.wait_for(1).await;
        fence.send(Signal::TERM);
        assert_eq!(status(&fence.end()), 0, "{at}");
        assert_eq!(collector.spans().len(), 1, "{at}: {spans:?}");
        let span = &spans[0];
        assert_child(span, TRACE);
        assert_eq!(span.name, "rejected");
        assert_eq!(span.status.as_ref().unwrap().message, "stale");
        for (key, value) in [
            ("palisade.resource", "account:7"),
            ("palisade.reason", "stale"),
            ("palisade.fencing_token", "1"),
            ("palisade.highest_token", "2"),
        ] {
            assert_eq!(attribute(span, key), value, "{at}: {key}");
        }
        let services = collector.got.services.lock().unwrap().clone();
        assert_eq!(services, [format!("palisade-{at}")]);
    }
}

/// A counter in the metrics of a store.
async fn counter(caller: &Caller, name: &str) -> u64 {
    let metrics = caller.observe("/metrics").await.text();
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{name} is missing: {metrics}"))
        .trim()
        .parse()
        .unwrap()
}

const SENT: &str = "palisade_store_spans_sent_total ";
const DROPPED: &str = "palisade_store_spans_dropped_total ";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_beyond_the_queue_are_dropped_and_counted_while_the_collector_is_away() {
    let collector = Collector::start().await;
    collector.got.is_away.store(true, Ordering::SeqCst);
    let dir = tempfile::tempdir().unwrap();
    let (data, log) = (dir.path().join("data"), dir.path().join("log"));
    let mut store = command("store", &data);
    store.args(["--otlp", &collector.url]);
    let (server, caller) = start(store, &log);
    assert_eq!(write(&caller, "store", 2, None).await, 200);
    let mut writes = 0_u64;
    while counter(&caller, DROPPED).await == 0 {
        assert!(writes < 20_000, "the queue has no bound");
        for _ in 0..500 {
            assert_eq!(write(&caller, "store", 1, Some(TRACE)).await, 412);
            writes += 1;
        }
    }
    // Control: it dropped no more than did not fit, and sent none.
    let dropped = counter(&caller, DROPPED).await;
    assert!(dropped < writes, "{dropped} of {writes}");
    assert_eq!(counter(&caller, SENT).await, 0);
    collector.got.is_away.store(false, Ordering::SeqCst);
    let kept = usize::try_from(writes - dropped).unwrap();
    let spans = collector.wait_for(kept).await;
    assert_eq!(spans.len(), kept);
    until_async("the count of what was sent", async || {
        counter(&caller, SENT).await == kept as u64
    })
    .await;
    server.send(Signal::TERM);
    assert_eq!(status(&server.end()), 0);
    // Said once when it began, and once when it ended.
    assert_eq!(
        logged(
            &log,
            "spans cannot be sent; locks and fences work as before, and palisade counts the spans that are lost"
        )
        .len(),
        1
    );
    assert_eq!(logged(&log, "spans are sent again").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_never_answers_keeps_no_server_from_granting_and_stopping() {
    let collector = Collector::start().await;
    collector.got.hangs.store(true, Ordering::SeqCst);
    let dir = tempfile::tempdir().unwrap();
    let (data, log) = (dir.path().join("data"), dir.path().join("log"));
    let mut serve = command("serve", &data);
    serve.args(["--otlp", &collector.url]);
    let (server, caller) = start(serve, &log);
    let held = acquire(&caller, "orders", "a", Some(parent(TRACE))).await;
    release(&caller, "orders", &held).await;
    until_async("a request to the collector", async || {
        collector.got.asked.load(Ordering::SeqCst)
    })
    .await;
    let held = acquire(&caller, "orders", "b", Some(parent(TRACE))).await;
    release(&caller, "orders", &held).await;
    server.send(Signal::TERM);
    assert_eq!(status(&server.end()), 0);
    let slow = "the collector is too slow: spans of the last seconds were not sent";
    assert_eq!(
        logged(&log, slow).len(),
        1,
        "{}",
        fs::read_to_string(&log).unwrap()
    );
}

#[test]
fn a_bad_url_is_refused_before_anything_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    for (url, why) in [
        ("ftp://localhost", "write http://HOST:PORT"),
        ("localhost:4318", "write http://HOST:PORT"),
        ("http://user@localhost:4318", "must not contain a user"),
        ("http://localhost:4318/v1/traces", "leave /v1/traces out"),
    ] {
        // Our own variable; that of other programs is only warned of.
        for from_environment in [false, true] {
            let data = dir.path().join("data");
            let mut serve = palisade();
            serve.args(["serve", "--listen", "127.0.0.1:0", "--data"]);
            serve.arg(&data);
            if from_environment {
                serve.env("PALISADE_OTLP", url);
            } else {
                serve.args(["--otlp", url]);
            }
            let output = serve.output().unwrap();
            assert_eq!(status(&output), 2, "{url}");
            let message = text(&output.stderr);
            assert!(message.contains(why), "{url}: {message}");
            if from_environment {
                assert!(message.contains("PALISADE_OTLP"), "{message}");
            }
            assert!(!data.exists(), "{url}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_variable_of_other_programs_that_names_no_collector_stops_no_server_and_no_job() {
    const VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let dir = tempfile::tempdir().unwrap();
    for (at, url) in [
        ("serve", "localhost:4318"),
        ("store", "http://u:secret@h:1"),
    ] {
        let (data, log) = (dir.path().join(at), dir.path().join(format!("{at}.log")));
        let mut serve = command(at, &data);
        serve.env(VARIABLE, url);
        serve.env("PALISADE_LOG", "info,[");
        let (server, caller) = start(serve, &log);
        if at == "serve" {
            for words in [&["run", "orders", "--", "true"][..], &["show", "orders"]] {
                let mut job = palisade();
                job.env(VARIABLE, url)
                    .env("PALISADE_AUTHORITY", &caller.base);
                let output = job.args(words).output().unwrap();
                assert_eq!(status(&output), 0, "{words:?}: {}", text(&output.stderr));
                assert_eq!(text(&output.stderr), "", "{words:?}");
            }
        }
        server.send(Signal::TERM);
        assert_eq!(status(&server.end()), 0, "{at}");
        let log = fs::read_to_string(&log).unwrap();
        assert_eq!(log.matches(VARIABLE).count(), 1, "{at}: {log}");
        assert!(
            log.contains("write http") || log.contains("a user or a password"),
            "{log}"
        );
        assert!(!log.contains("secret"), "{log}");
        assert_eq!(log.matches("PALISADE_LOG").count(), 1, "{at}: {log}");
    }
}
