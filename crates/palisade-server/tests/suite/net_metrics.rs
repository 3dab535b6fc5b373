//! The metrics in both formats, and what is made of them: the alerts and the dashboard of deploy/.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::net_support::Server;
use serde_json::Value;

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
    // What Prometheus 2.42 and 3 send, curl, a browser, and who would rather have plain text.
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
