//! Traces: real servers, their logs as JSON, and requests with and without `traceparent`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Run, json, palisade, status};
use crate::gateway::support::{self, Caller, until_async};
use crate::gateway::upstream::Upstream;

pub(crate) const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
pub(crate) const OTHER: &str = "0af7651916cd43dd8448eb211c80319c";

/// The header of a request in a trace that is recorded.
pub(crate) fn parent(trace: &str) -> String {
    format!("00-{trace}-00f067aa0ba902b7-01")
}

/// A server that logs into a file, and a client of it.
pub(crate) fn start(mut command: Command, log: &Path) -> (Run, Caller) {
    command
        .stdout(Stdio::piped())
        .stderr(fs::File::create(log).unwrap());
    let mut child = command.spawn().unwrap();
    let started = support::started(&mut child);
    let caller = Caller::of(started["url"].as_str().unwrap());
    (Run::keep(child), caller)
}

pub(crate) fn command(server: &str, dir: &Path) -> Command {
    let mut command = palisade();
    command
        .args([server, "--json", "--listen", "127.0.0.1:0", "--data"])
        .arg(dir);
    command
}

/// The trace of each logged event of this name, and the event's fields.
pub(crate) fn logged(log: &Path, message: &str) -> Vec<(Value, Value)> {
    let log = fs::read_to_string(log).unwrap();
    let lines = log.lines().map(|line| json(line.as_bytes()));
    let named = lines.filter(|line| line["fields"]["message"] == message);
    named
        .map(|line| (line["span"]["trace_id"].clone(), line["fields"].clone()))
        .collect()
}

pub(crate) async fn acquire(
    caller: &Caller,
    lock: &str,
    client: &str,
    parent: Option<String>,
) -> Value {
    let body = json!({"client_id": client, "lease_duration_ms": 60_000, "wait_ms": 60_000});
    let path = format!("/v1/locks/{lock}/acquire");
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(parent.as_deref().map(|parent| ("traceparent", parent)));
    let reply = caller.call("POST", &path, &headers, body.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

async fn shown(caller: &Caller, lock: &str) -> Value {
    let path = format!("/v1/locks/{lock}");
    caller.observe(&path).await.json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_and_the_log_name_the_trace_in_which_it_was_granted() {
    let dir = tempfile::tempdir().unwrap();
    let (data, log) = (dir.path().join("data"), dir.path().join("log"));
    let (server, caller) = start(command("serve", &data), &log);
    // Controls: without a header, and with one that is not valid, there is no trace.
    acquire(&caller, "plain", "a", None).await;
    acquire(&caller, "invalid", "a", Some(parent(&TRACE.to_uppercase()))).await;
    let held = acquire(&caller, "orders", "a", Some(parent(TRACE))).await;
    assert_eq!(shown(&caller, "orders").await["trace_id"], TRACE);
    for lock in ["plain", "invalid", "free"] {
        let trace = &shown(&caller, lock).await["trace_id"];
        assert_eq!(*trace, Value::Null, "{lock}");
    }
    // A grant after a wait is of the trace that waited.
    let waits = tokio::spawn({
        let caller = caller.clone();
        async move { acquire(&caller, "orders", "b", Some(parent(OTHER))).await }
    });
    until_async("a request that waits", async || {
        shown(&caller, "orders").await["waiters"] == 1
    })
    .await;
    let release = json!({"lock_token": held["lock_token"]}).to_string();
    let headers = [("content-type", "application/json")];
    let released = caller.call("POST", "/v1/locks/orders/release", &headers, release);
    assert_eq!(released.await.status, 200);
    let next = waits.await.unwrap();
    assert_eq!(shown(&caller, "orders").await["trace_id"], OTHER);
    server.send(Signal::TERM);
    assert_eq!(status(&server.end()), 0);
    let granted: Vec<_> = logged(&log, "granted")
        .into_iter()
        .map(|(trace, fields)| (trace, fields["fencing_token"].clone()))
        .collect();
    let expected = [(TRACE, &held), (OTHER, &next)];
    let expected = expected.map(|(trace, grant)| (json!(trace), grant["fencing_token"].clone()));
    assert_eq!(granted, expected);
    // No trace is in the authority's own log: a restarted server has the lock without one.
    let (_server, caller) = start(command("serve", &data), &log);
    let after = shown(&caller, "orders").await;
    assert_eq!(after["holder"]["client_id"], "b");
    assert_eq!(after["trace_id"], Value::Null);
}

/// A request of a holder at a fence; its status.
pub(crate) async fn write(caller: &Caller, at: &str, token: u64, trace: Option<&str>) -> u16 {
    let (number, parent) = (token.to_string(), trace.map(parent));
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(parent.as_deref().map(|parent| ("traceparent", parent)));
    let reply = if at == "store" {
        let claim = json!({"resource_id": "account:7", "fencing_token": token}).to_string();
        caller.call("POST", "/v1/storage/claim", &headers, claim)
    } else {
        headers.push(("x-fencing-token", &number));
        caller.call("PUT", "/accounts/7", &headers, "5".to_owned())
    };
    reply.await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_write_of_a_late_holder_leads_to_its_trace() {
    let (_upstream, upstream) = Upstream::start().await;
    for at in ["gateway", "store"] {
        let dir = tempfile::tempdir().unwrap();
        let (data, log) = (dir.path().join("data"), dir.path().join("log"));
        let command = match at {
            "store" => command("store", &data),
            _ => {
                let mut command = support::command(&upstream, &data);
                command.args(["--route", "/accounts/{id:uint}=account:{id}"]);
                command
            }
        };
        let (_fence, caller) = start(command, &log);
        assert_eq!(write(&caller, at, 2, None).await, 200);
        // Control: without a header, the rejection is logged and leads nowhere.
        assert_eq!(write(&caller, at, 1, None).await, 412);
        assert_eq!(write(&caller, at, 1, Some(TRACE)).await, 412);
        let rejected = logged(&log, "rejected");
        let traces: Vec<_> = rejected.iter().map(|(trace, _)| trace).collect();
        assert_eq!(traces, [&Value::Null, &json!(TRACE)], "{at}");
        for (_, fields) in &rejected {
            let fields = ["resource", "token", "highest", "reason"].map(|name| &fields[name]);
            assert_eq!(json!(fields), json!(["account:7", 1, 2, "stale"]), "{at}");
        }
    }
}
