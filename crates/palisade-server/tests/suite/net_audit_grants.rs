//! Grants and restores in the audit file.

use std::os::unix::fs::symlink;

use palisade_core::{AuthorityId, GrantOption};
use palisade_pipeline::Identity;
use palisade_server::net::{SequencerKeys, ServeError, Settings};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::net_access::{Closed, closed_with, rules, token};
use crate::net_audit::{audited_with, lines, without_rules};
use crate::net_support::{Server, Wish, hang_up, soon};

const AUDIT: &str = "[[auth.audit]]\nprefix = \"x/\"\n";

async fn post(closed: &Closed, path: &str, body: &Value, principal: &str) -> Value {
    let (token, body) = (token(principal), body.to_string());
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    let answer = closed.server.raw(request.as_bytes()).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.json()
}

async fn acquire(closed: &Closed, lock: &str, client: &str, mode: Value, by: &str) -> Value {
    let mut body = json!({"client_id": client, "lease_duration_ms": 10_000});
    body.as_object_mut()
        .unwrap()
        .extend(mode.as_object().unwrap().clone());
    let path = format!("/v1/locks/{}/acquire", lock.replace('/', "%2F"));
    post(closed, &path, &body, by).await
}

async fn release(closed: &Closed, lock: &str, granted: &Value, by: &str) {
    let body = json!({"lock_token": granted["lock_token"]});
    let path = format!("/v1/locks/{}/release", lock.replace('/', "%2F"));
    post(closed, &path, &body, by).await;
}

/// A line for the grant numbered `n`, the first of its lease.
fn of(n: u64, lock: &str, by: &str, client: &str, mode: &str) -> Value {
    json!({
        "principal": by, "lock": lock, "mode": mode, "fencing_token": n, "lease_id": n, "client_id": client,
    })
}

fn with(mut line: Value, more: Value) -> Value {
    let members = line.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    line
}

/// The lines about grants, without their revisions, which rise.
fn about_grants(lines: &[Value]) -> Vec<Value> {
    let mut last = 0;
    let about = lines
        .iter()
        .filter(|line| line["event"] == "granted" || line["event"] == "ended");
    let lines = about.map(|line| {
        let mut line = line.clone();
        let revision = line.as_object_mut().unwrap().remove("revision");
        let revision = revision.unwrap().as_u64().unwrap();
        assert!(revision > last);
        last = revision;
        line
    });
    lines.collect()
}

#[tokio::test]
async fn each_grant_of_a_prefix_and_its_end_have_a_line_and_so_has_every_supersede() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let closed = audited_with(&file, AUDIT).await;
    let none = || json!({});
    let x1 = acquire(&closed, "x/1", "a", none(), "hold").await;
    release(&closed, "x/1", &x1, "hold").await;
    let two = acquire(&closed, "x/2", "r", json!({"mode": "shared"}), "share").await;
    let permits = json!({"permits": {"count": 2, "of": 3}});
    acquire(&closed, "x/3", "p", permits, "both").await;
    // Nobody asked for these, except that one is superseded.
    let other = acquire(&closed, "other/1", "o", none(), "elsewhere").await;
    acquire(&closed, "other/1", "o", none(), "elsewhere").await;
    acquire(&closed, "x/4", "b", none(), "hold").await;
    let options: Value = GrantOption::all()
        .map(|option| (option.field().to_owned(), json!(option.most())))
        .collect();
    acquire(&closed, "x/4", "b", options.clone(), "hold").await;
    let body = json!({"fencing_token": 7, "reason": "stuck"});
    post(&closed, "/v1/locks/x%2F4/break", &body, "break").await;
    post(
        &closed,
        "/v1/clock/advance",
        &json!({"ms": 20_000}),
        "admin",
    )
    .await;

    let ended = |n, lock, by, client, mode, how: &str| {
        with(
            of(n, lock, by, client, mode),
            json!({"event": "ended", "how": how}),
        )
    };
    let granted = |n, lock, by, client, mode| {
        with(of(n, lock, by, client, mode), json!({"event": "granted"}))
    };
    let shared = json!({"grant_id": 2});
    let slots = json!({"slots": [1, 2]});
    let superseded = |line, new: u64| with(line, json!({"new_fencing_token": new}));
    let expected = [
        granted(1, "x/1", "hold", "a", "exclusive"),
        ended(1, "x/1", "hold", "a", "exclusive", "released"),
        with(granted(2, "x/2", "share", "r", "shared"), shared.clone()),
        with(granted(3, "x/3", "both", "p", "permits"), slots.clone()),
        superseded(
            ended(4, "other/1", "elsewhere", "o", "exclusive", "superseded"),
            5,
        ),
        granted(6, "x/4", "hold", "b", "exclusive"),
        superseded(ended(6, "x/4", "hold", "b", "exclusive", "superseded"), 7),
        with(granted(7, "x/4", "hold", "b", "exclusive"), options),
        with(
            ended(7, "x/4", "hold", "b", "exclusive", "revoked"),
            json!({"reason": "stuck"}),
        ),
        with(ended(2, "x/2", "share", "r", "shared", "expired"), shared),
        with(ended(3, "x/3", "both", "p", "permits", "expired"), slots),
    ];
    let whole = lines(&file, |lines| about_grants(lines).len() >= expected.len()).await;
    assert_eq!(about_grants(&whole), expected);
    let text = std::fs::read_to_string(&file).unwrap();
    for granted in [&x1, &two, &other] {
        let secret = granted["lock_token"].as_str().unwrap();
        assert!(!text.contains(secret), "a lock_token is in the file");
    }
}

#[tokio::test]
async fn grants_are_recorded_only_where_the_file_asks_for_it_and_new_rules_change_that() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let closed = audited_with(&file, "").await;
    for (more, expected) in [("", 0), (AUDIT, 2), ("", 2)] {
        let before = lines(&file, |_| true).await;
        let reloads =
            |lines: &[Value]| lines.iter().filter(|line| line["event"] == "rules").count();
        std::fs::write(&closed.file, format!("{}{more}", rules())).unwrap();
        // The server receives signals once it answers.
        let x = acquire(&closed, "other/1", "c", json!({}), "elsewhere").await;
        release(&closed, "other/1", &x, "elsewhere").await;
        hang_up().await;
        lines(&file, |lines| reloads(lines) > reloads(&before)).await;
        let x = acquire(&closed, "x/1", "c", json!({}), "hold").await;
        release(&closed, "x/1", &x, "hold").await;
        // A supersede is always recorded: when its line is there, so are those before it.
        let superseded = |lines: &[Value]| {
            let about = about_grants(lines);
            about
                .iter()
                .filter(|line| line["how"] == "superseded")
                .count()
        };
        acquire(&closed, "other/1", "c", json!({}), "elsewhere").await;
        let last = acquire(&closed, "other/1", "c", json!({}), "elsewhere").await;
        let whole = lines(&file, |lines| superseded(lines) > superseded(&before)).await;
        release(&closed, "other/1", &last, "elsewhere").await;
        let about = about_grants(&whole);
        let on_x = about.iter().filter(|line| line["lock"] == "x/1").count();
        assert_eq!(on_x, expected, "{about:?}");
    }
}

#[tokio::test]
async fn a_stop_records_what_happened_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let mut closed = audited_with(&file, AUDIT).await;
    for number in 0..500 {
        let lock = format!("x/{number}");
        acquire(&closed, &lock, "a", json!({}), "hold").await;
    }
    closed.server.ask_to_stop();
    closed.server.ended().await.unwrap();
    let whole = lines(&file, |_| true).await;
    assert_eq!(about_grants(&whole).len(), 500);
}

#[tokio::test]
async fn a_full_disk_delays_no_grant_and_the_lost_lines_of_grants_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    symlink("/dev/full", &file).unwrap();
    let closed = audited_with(&file, AUDIT).await;
    for number in 0..50 {
        let also = json!({"also": [format!("x/also-{number}")]});
        acquire(&closed, &format!("x/{number}"), "a", also, "hold").await;
    }
    let metrics = format!(
        "GET /metrics HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        token("observe")
    );
    soon(async {
        loop {
            let answer = closed.server.raw(metrics.as_bytes()).await.body;
            if answer.contains("palisade_audit_lost_total 100\n") {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_file_that_takes_nothing_more_delays_no_grant() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    // Nobody reads it, so a write waits once 64 KiB are in it.
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let closed = audited_with(&pipe, AUDIT).await;
    for number in 0..1_000 {
        let lock = format!("x/{number}");
        acquire(&closed, &lock, "a", json!({}), "hold").await;
    }
    let held = closed.server.status().await.locks;
    assert_eq!(held, 1_000);
}

#[tokio::test]
async fn a_prefix_to_record_needs_an_audit_file() {
    let dir = tempfile::tempdir().unwrap();
    let access = dir.path().join("access.toml");
    std::fs::write(&access, format!("{}{AUDIT}", rules())).unwrap();
    let mut server = Server::with(Wish::net(Settings {
        access: Some(access),
        ..Settings::default()
    }))
    .await;
    let refused = server.ended().await.unwrap_err();
    assert!(matches!(refused, ServeError::NoAudit { .. }), "{refused}");
    assert!(refused.to_string().contains("--audit FILE"), "{refused}");
    // Control: without the prefix it starts.
    let closed = closed_with(&rules(), Settings::default()).await;
    acquire(&closed, "x/1", "a", json!({}), "hold").await;
}

#[tokio::test]
async fn the_first_start_after_a_restore_has_a_line_and_other_starts_have_none() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("sequencer.keys");
    let file = dir.path().join("audit.jsonl");
    let settings = || Settings {
        sequencer_keys: Some(keys.clone()),
        audit: Some(file.clone()),
        ..Settings::default()
    };
    // The first start of a new directory, and a restart.
    for _ in 0..2 {
        let mut server = Server::with(Wish::net(settings())).await;
        server.lock("orders", "a").await;
        server.ask_to_stop();
        server.ended().await.unwrap();
    }
    assert!(without_rules(&lines(&file, |_| true).await).is_empty());
    // Restored in place: the keys are those of the incarnation before.
    let before = Identity {
        authority: AuthorityId::new("test-authority").unwrap(),
        incarnation: "before".to_owned(),
    };
    SequencerKeys::new(&before).unwrap().write(&keys).unwrap();
    for _ in 0..2 {
        let mut server = Server::with(Wish::net(settings())).await;
        server.lock("orders", "a").await;
        server.ask_to_stop();
        server.ended().await.unwrap();
    }
    let restored = json!({
        "event": "restored", "authority": "test-authority", "incarnation": "first", "previous": "before",
    });
    assert_eq!(without_rules(&lines(&file, |_| true).await), [restored]);
}
