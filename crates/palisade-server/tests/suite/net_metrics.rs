//! The metrics in both formats, and their users: the alerts and the dashboard in deploy/.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::net_access::{closed_by, rules, token};
use crate::net_support::{Server, Wish};
use palisade_core::{
    Acquire, ClientId, Command as Entered, Entry, LeaseKey, LockName, Machine, Principal,
    Timestamp, Ttl, Under, WallTime,
};
use serde_json::{Value, json};

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .join(name)
}

#[tokio::test]
async fn metrics_come_in_the_format_that_is_asked_for() {
    let server = Server::start().await;
    server.lock("x", "a").await;
    let get = async |accept: &str| {
        let headers = match accept {
            "" => String::new(),
            accept => format!("Accept: {accept}\r\n"),
        };
        server.send("GET", "/metrics", &headers, "").await
    };
    let open = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let plain = "text/plain; version=0.0.4; charset=utf-8";
    // The headers that Prometheus 2.42 and 3, curl, a browser and a client that prefers plain text
    // send.
    for (accept, expected) in [
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            open,
        ),
        ("application/openmetrics-text", open),
        (
            "application/openmetrics-text; version=1.0.0, */*;q=0.1",
            open,
        ),
        ("", plain),
        ("*/*", plain),
        ("text/html,application/xhtml+xml,*/*;q=0.8", plain),
        ("text/plain;version=0.0.4", plain),
        ("text/plain, application/openmetrics-text;q=0.5", plain),
        ("text/plain;q=0.5, application/openmetrics-text;q=0", plain),
        ("application/openmetrics-text;version=2.0.0", plain),
    ] {
        let metrics = get(accept).await;
        assert_eq!(
            (metrics.status, metrics.header("content-type")),
            (200, Some(expected)),
            "{accept}"
        );
        assert_eq!(metrics.header("vary"), Some("accept"));
        let is_open = expected == open;
        let counter = if is_open {
            "palisade_granted"
        } else {
            "palisade_granted_total"
        };
        for line in [
            &*format!("# TYPE {counter} counter"),
            &*format!("# HELP {counter} Grants issued"),
            "palisade_granted_total 1",
            "# TYPE palisade_locks gauge",
            "palisade_locks 1",
            "# TYPE palisade_wait_seconds histogram",
            "palisade_wait_seconds_bucket{le=\"0.0\"} 1",
            "palisade_wait_seconds_bucket{le=\"+Inf\"} 1",
            "palisade_wait_seconds_sum 0",
            "palisade_wait_seconds_count 1",
            "palisade_batch_operations_bucket{le=\"1.0\"} 1",
            "palisade_sync_seconds_count 1",
        ] {
            assert!(
                metrics.body.lines().any(|seen| seen == line),
                "{accept}: {line}\n{}",
                metrics.body
            );
        }
        assert_eq!(metrics.body.ends_with("# EOF\n"), is_open, "{accept}");
    }
}

/// The value of a sample; `None` if there is no such sample.
async fn sample(server: &Server, name: &str) -> Option<f64> {
    let metrics = server.get("/metrics").await;
    assert_eq!(metrics.status, 200, "{}", metrics.body);
    let mut lines = metrics.body.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(value.parse().unwrap())
}

#[tokio::test]
async fn requests_and_holds_are_told_apart_by_how_they_ended() {
    let server = Server::start().await;
    let ask = async |lock: &str, what: &str, body: Value| {
        let path = format!("/v1/locks/{lock}/{what}");
        server.post(&path, &body.to_string()).await.status
    };
    let want = json!({"client_id": "b", "lease_duration_ms": 10_000});
    let (key, _) = server.lock("x", "a").await;
    let key = json!({ "lock_token": key });
    assert_eq!(ask("x", "acquire", want.clone()).await, 409);
    for (passed, near) in [(7_500, 0.0), (7_501, 1.0), (1, 1.0)] {
        server.advance(passed).await;
        assert_eq!(ask("x", "renew", key.clone()).await, 200);
        let counted = sample(&server, "palisade_renewed_near_deadline_total").await;
        assert_eq!(counted, Some(near), "{passed} ms of 10,000");
    }
    let holds = async || {
        let mut holds = Vec::new();
        for how in ["released", "expired", "revoked", "superseded"] {
            let name = format!("palisade_hold_seconds_count{{how=\"{how}\"}}");
            holds.push(sample(&server, &name).await);
        }
        holds
    };
    assert_eq!(holds().await, [Some(0.0); 4]);
    assert_eq!(ask("x", "release", key).await, 200);
    server.lock("x", "a").await;
    let (_, token) = server.lock("x", "a").await;
    let reason = json!({"fencing_token": token, "reason": "test"});
    assert_eq!(ask("x", "break", reason).await, 200);
    server.lock("x", "a").await;
    server.advance(10_000).await;
    assert_eq!(
        server.get("/v1/locks/x").await.json()["holder"],
        Value::Null
    );
    assert_eq!(holds().await, [Some(1.0); 4]);
    assert_eq!(server.get("/v1/locks").await.status, 200);
    for (operation, outcome, count) in [
        ("acquire", "ok", Some(4.0)),
        ("acquire", "denied", Some(1.0)),
        ("acquire", "failed", None),
        ("renew", "ok", Some(3.0)),
        ("release", "ok", Some(1.0)),
        ("break", "ok", Some(1.0)),
        ("proclaim", "ok", None),
    ] {
        let labels = format!("{{operation=\"{operation}\",outcome=\"{outcome}\"}}");
        let seen = sample(&server, &format!("palisade_request_seconds_count{labels}")).await;
        assert_eq!(seen, count, "{labels}");
    }
}

/// The controls: requests in time, a release that is repeated, and a key that never held the lock.
#[tokio::test]
async fn holders_that_come_back_late_are_counted() {
    let server = Server::start().await;
    let ask = async |what: &str, key: &str| {
        let path = format!("/v1/locks/x/{what}");
        let body = json!({ "lock_token": key }).to_string();
        server.post(&path, &body).await.status
    };
    let late = async || {
        let renewals = sample(&server, "palisade_late_renewals_total").await;
        let releases = sample(&server, "palisade_late_releases_total").await;
        (renewals.unwrap(), releases.unwrap())
    };
    let (first, _) = server.lock("x", "a").await;
    let (other, _) = server.lock("y", "a").await;
    assert_eq!(ask("renew", &first).await, 200);
    assert_eq!(ask("renew", &other).await, 409);
    assert_eq!(ask("release", &first).await, 200);
    assert_eq!(ask("release", &first).await, 200);
    assert_eq!(late().await, (0.0, 0.0), "the controls");

    let (expired, _) = server.lock("x", "a").await;
    server.advance(10_000).await;
    assert_eq!(ask("renew", &expired).await, 410);
    assert_eq!(late().await, (1.0, 0.0));
    let (revoked, token) = server.lock("x", "a").await;
    let reason = json!({"fencing_token": token, "reason": "test"}).to_string();
    assert_eq!(server.post("/v1/locks/x/break", &reason).await.status, 200);
    assert_eq!(ask("release", &revoked).await, 410);
    let (superseded, _) = server.lock("x", "a").await;
    server.lock("x", "a").await;
    assert_eq!(ask("renew", &superseded).await, 410);
    assert_eq!(late().await, (2.0, 1.0));
}

#[tokio::test]
async fn every_kind_of_lock_is_counted() {
    let server = Server::start().await;
    let ask = async |lock: &str, client: &str, more: Value| {
        let mut body = json!({"client_id": client, "lease_duration_ms": 10_000});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let path = format!("/v1/locks/{lock}/acquire");
        server.post(&path, &body.to_string()).await
    };
    for (lock, client, more) in [
        ("report", "a", json!({"mode": "shared"})),
        ("report", "b", json!({"mode": "update"})),
        ("gpu", "a", json!({"permits": {"count": 2, "of": 3}})),
        ("gpu", "b", json!({"permits": {"count": 1, "of": 3}})),
        ("a", "a", json!({"also": ["b", "c"]})),
    ] {
        let granted = ask(lock, client, more).await;
        assert_eq!(granted.status, 200, "{}", granted.body);
    }
    let count = async |name: &str| sample(&server, &format!("palisade_{name}")).await;
    assert_eq!(count("readers").await, Some(4.0));
    assert_eq!(count("locks").await, Some(5.0));
    assert_eq!(count("held_total").await, Some(0.0));
    for (lock, more) in [
        ("report", json!({"mode": "exclusive"})),
        ("report", json!({"mode": "update"})),
        ("gpu", json!({"permits": {"count": 1, "of": 3}})),
        ("c", json!({"also": ["d"]})),
    ] {
        let denied = ask(lock, "c", more).await;
        assert_eq!(denied.code(), "held", "{}", denied.body);
    }
    let closed = ask("x", "a", json!({"lock_delay_ms": 1_000})).await.json();
    let reason = json!({"fencing_token": closed["fencing_token"], "reason": "test"});
    let broken = server.post("/v1/locks/x/break", &reason.to_string()).await;
    assert_eq!(broken.status, 200, "{}", broken.body);
    assert_eq!(ask("x", "b", json!({})).await.code(), "delayed");
    assert_eq!(count("held_total").await, Some(5.0));
}

#[tokio::test]
#[allow(
    clippy::disallowed_methods,
    reason = "the age of a lock is counted by the server's wall clock"
)]
async fn the_oldest_lock_is_found_once_and_looked_at_until_it_ends() {
    const DAY: u64 = 86_400;
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let mut machine = Machine::new(1);
    // More than one page of locks, the two oldest among them in the middle of the listing.
    let locks = (0..2_000).map(|at| (format!("lock-{at:04}"), now));
    let old = [("lock-1000-a", 3 * DAY), ("lock-1000-b", 2 * DAY)];
    let old = old.map(|(lock, age)| (lock.to_owned(), now - age));
    for (at, (lock, wall)) in old.into_iter().chain(locks).enumerate() {
        let under = Under::New {
            key: LeaseKey::from_bytes((at as u128).to_le_bytes()),
            ttl: Ttl::MAX,
        };
        let client = ClientId::new("a").unwrap();
        let acquire = Acquire::new(LockName::new(&lock).unwrap(), client, under, None);
        let entry = Entry {
            at: Timestamp::ZERO,
            wall: WallTime(wall * 1_000),
            by: Principal::ANONYMOUS,
            command: Entered::Acquire(acquire),
        };
        machine.apply(entry, &mut Vec::new());
    }
    let server = Server::with(Wish {
        machine: Some(machine),
        ..Wish::default()
    })
    .await;
    let age = async || loop {
        // A slow machine reads all locks in more time than a scrape waits.
        if let Some(age) = sample(&server, "palisade_oldest_lock_seconds").await {
            return (age / DAY as f64).floor();
        }
    };
    let operations = async || sample(&server, "palisade_operations_total").await.unwrap();
    assert_eq!(age().await, 3.0);
    // From now on one lock is looked at, not thousands.
    let before = operations().await;
    assert_eq!(operations().await - before, 1.0);
    for (lock, token, next) in [("lock-1000-a", 1, 2.0), ("lock-1000-b", 2, 0.0)] {
        let reason = json!({"fencing_token": token, "reason": "test"}).to_string();
        let path = format!("/v1/locks/{lock}/break");
        assert_eq!(server.post(&path, &reason).await.status, 200);
        assert_eq!(age().await, next);
    }
}

#[tokio::test]
async fn without_locks_the_oldest_is_no_time_old() {
    let server = Server::start().await;
    let name = "palisade_oldest_lock_seconds";
    assert_eq!(sample(&server, name).await, Some(0.0));
    server.lock("x", "a").await;
    assert!(sample(&server, name).await.is_some());
}

/// Prometheus' own judge.
fn promtool(words: &[&str], text: &str) -> (bool, String) {
    let mut child = Command::new("promtool")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool, of Debian's package prometheus");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[tokio::test]
async fn promtool_has_nothing_to_say_about_the_metrics() {
    let server = Server::start().await;
    let metrics = server.get("/metrics").await.body;
    assert_eq!(
        promtool(&["check", "metrics"], &metrics),
        (true, String::new())
    );
    // Control: it has an opinion on names, too.
    let (passed, said) = promtool(
        &["check", "metrics"],
        &metrics.replace("palisade_granted_total", "palisade_granted"),
    );
    assert!(!passed && said.contains("palisade_granted"), "{said}");
}

#[test]
fn every_alert_rings_when_it_must_and_not_before() {
    let tests = deploy("alerts_test.yaml");
    let judge = |tests: &Path| promtool(&["test", "rules", tests.to_str().unwrap()], "");
    let (passed, said) = judge(&tests);
    assert!(passed, "{said}");
    // Control: an alert that cannot ring is found.
    let dir = tempfile::tempdir().unwrap();
    let alerts = std::fs::read_to_string(deploy("alerts.yaml")).unwrap();
    let deaf = alerts.replace("palisade_log_full == 1", "palisade_log_full == 2");
    assert_ne!(deaf, alerts);
    std::fs::write(dir.path().join("alerts.yaml"), deaf).unwrap();
    std::fs::copy(tests, dir.path().join("alerts_test.yaml")).unwrap();
    let (passed, said) = judge(&dir.path().join("alerts_test.yaml"));
    assert!(!passed && said.contains("PalisadeLogFull"), "{said}");
}

#[test]
fn every_alert_is_tested() {
    let alerts = std::fs::read_to_string(deploy("alerts.yaml")).unwrap();
    let tests = std::fs::read_to_string(deploy("alerts_test.yaml")).unwrap();
    let names = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let untested: Vec<&str> = names
        .filter(|name| !tests.contains(&format!("\"{name}\"")))
        .collect();
    assert!(untested.is_empty(), "{untested:?}");
}

#[test]
fn prometheus_understands_every_expression_of_the_dashboard() {
    let text = std::fs::read_to_string(deploy("grafana.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let expressions: Vec<String> = targets
        .map(|target| target["expr"].as_str().unwrap())
        .map(|expr| expr.replace("$job", ".*").replace("$__rate_interval", "5m"))
        .collect();
    assert!(expressions.len() > panels.len());
    let judge = |expressions: &[String]| {
        let rules = expressions.iter().enumerate();
        let rules: Vec<Value> = rules
            .map(|(at, expr)| serde_json::json!({"record": format!("r{at}"), "expr": expr}))
            .collect();
        let groups = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]});
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rules.yaml");
        std::fs::write(&file, groups.to_string()).unwrap();
        promtool(&["check", "rules", file.to_str().unwrap()], "")
    };
    let (passed, said) = judge(&expressions);
    assert!(passed, "{said}");
    // Control.
    assert!(!judge(&["sum(rate(palisade_locks)".to_owned()]).0);
}

#[tokio::test]
async fn metrics_say_when_bearer_tokens_end_whatever_their_number() {
    let mut text = rules();
    // Two have ended, and of three to come the next one counts; those without an end count nowhere.
    let ends = [
        "2001-01-01T00:00:00Z",
        "2002-01-01T00:00:00Z",
        "2999-01-01T00:00:00Z",
        "2990-01-01T00:00:00Z",
        "2995-01-01T00:00:00Z",
    ];
    for (seed, end) in (100_u8..).zip(ends) {
        let token = palisade_access::BearerToken::make([seed; 36]).1;
        text.push_str(&format!(
            "[[auth.tokens]]\nid = {:?}\nprincipal = \"hold\"\nsha256 = {:?}\nexpires = {end:?}\n",
            token.id(),
            token.secret().stored(),
        ));
    }
    let world = closed_by(&text).await;
    let bearer = format!("Authorization: Bearer {}\r\n", token("observe"));
    let said = world.server.send("GET", "/metrics", &bearer, "").await;
    assert_eq!(said.status, 200, "{}", said.body);
    let metrics = said.body;
    let next: jiff::Timestamp = ends[3].parse().unwrap();
    for line in [
        format!(
            "palisade_auth_token_expires_timestamp_seconds {}",
            next.as_second()
        ),
        "palisade_auth_tokens_expired 2".to_owned(),
    ] {
        assert!(
            metrics.lines().any(|said| said == line),
            "{line}: {metrics}"
        );
    }
    // Control: without an end, both are 0.
    let world = closed_by(&rules()).await;
    let metrics = world.server.send("GET", "/metrics", &bearer, "").await.body;
    assert!(metrics.contains("palisade_auth_token_expires_timestamp_seconds 0\n"));
    assert!(metrics.contains("palisade_auth_tokens_expired 0\n"));
}
