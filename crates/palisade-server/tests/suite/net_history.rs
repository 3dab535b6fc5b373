//! The history of locks, and reports of refused late writes.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{Command, Entry, Machine, Principal, Timestamp, WallTime};
use palisade_pipeline::replay::Told;
use palisade_server::net::{HistorySettings, PastEvents, Settings};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::net_access::{closed_with, token};
use crate::net_support::{Server, Wish, soon};

fn kept_in(dir: &Path) -> HistorySettings {
    HistorySettings {
        file: dir.join("history.redb"),
        age: Duration::from_secs(86_400),
        bytes: 1 << 30,
        leaves_free: Some(0),
        past: None,
    }
}

async fn server_in(history: HistorySettings) -> Server {
    let settings = Settings {
        history: Some(history),
        ..Settings::default()
    };
    Server::with(Wish::net(settings)).await
}

async fn server() -> (Server, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (server_in(kept_in(dir.path())).await, dir)
}

/// Asks until the history has so many grants.
async fn told(server: &Server, path: &str, headers: &str, count: usize) -> Value {
    soon(async {
        loop {
            let page = server.send("GET", path, headers, "").await.json();
            match page["grants"].as_array() {
                Some(grants) if grants.len() == count => return page,
                _ => tokio::task::yield_now().await,
            }
        }
    })
    .await
}

fn late(token: u64, highest: u64) -> String {
    let body = json!({"fencing_token": token, "resource": "orders", "highest": highest, "operation": "PUT"});
    body.to_string()
}

async fn metric(server: &Server, name: &str) -> String {
    let text = server.get("/metrics").await.body;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().to_owned()
}

/// The control is each report of a token that is not late, or that nobody had.
#[tokio::test]
async fn a_report_is_kept_with_the_grant_that_it_is_of() {
    let (server, _dir) = server().await;
    let (_, first) = server.lock("a", "x").await;
    server.advance(10_000).await;
    let (_, second) = server.lock("a", "y").await;
    let path = "/v1/locks/a/rejections";
    for (token, highest, recorded) in [
        (first, second, true),
        (first, second, true),
        (second, first, false),
        (second, second, false),
        (second + 1, second + 2, false),
    ] {
        let answer = server.post(path, &late(token, highest)).await;
        assert_eq!(answer.json(), json!({"recorded": recorded}), "{token}");
    }
    let other = server
        .post("/v1/locks/b/rejections", &late(first, second))
        .await;
    assert_eq!(other.json(), json!({"recorded": false}));
    let page = told(&server, "/v1/history?lock=a", "", 2).await;
    let of = |token| {
        let grants = page["grants"].as_array().unwrap();
        let found = grants.iter().find(|row| row["fencing_token"] == token);
        found.unwrap()["rejections"].clone()
    };
    assert_eq!(of(second), Value::Null);
    assert_eq!(
        (&of(first)[0]["times"], &of(first)[0]["highest"]),
        (&json!(2), &json!(second))
    );
    let counts = &server.get("/v1/status").await.json()["counts"];
    assert_eq!(
        (
            &counts["rejections_reported"],
            &counts["rejections_unknown"]
        ),
        (&json!(2), &json!(4))
    );
    for (name, count) in [("reported", "2"), ("unknown", "4")] {
        let name = format!("palisade_rejections_{name}_total");
        assert_eq!(metric(&server, &name).await, count, "{name}");
    }
}

/// The history is asked once after each change, also where another question was answered just before. The control is the
/// question before the change.
#[tokio::test]
async fn an_answer_has_every_change_that_was_acknowledged_before_the_question() {
    let (server, _dir) = server().await;
    for n in 0..10 {
        let lock = format!("a{n}");
        let path = format!("/v1/history?lock={lock}");
        let page = server.get(&path).await.json();
        assert_eq!(page["grants"], json!([]));
        let (key, token) = server.lock(&lock, "x").await;
        let page = server.get(&path).await.json();
        assert_eq!(page["grants"][0]["fencing_token"], token, "{page}");
        assert_eq!(page["grants"][0]["ended"], Value::Null);
        let body = json!({"lock_token": key, "fencing_token": token}).to_string();
        let path_of_release = format!("/v1/locks/{lock}/release");
        let released = server.post(&path_of_release, &body).await;
        assert_eq!(released.status, 200, "{}", released.body);
        let page = server.get(&path).await.json();
        assert_eq!(page["grants"][0]["ended"]["how"], "released", "{page}");
    }
}

/// The controls are a grant without one, and a question of another kind.
#[tokio::test]
async fn grants_with_late_writes_are_asked_for_and_counted_by_prefix() {
    let (server, _dir) = server().await;
    for lock in ["jobs%2F1", "jobs%2F2", "orders", "fine"] {
        let (_, first) = server.lock(lock, "x").await;
        server.advance(10_000).await;
        let (_, second) = server.lock(lock, "y").await;
        if lock != "fine" {
            let path = format!("/v1/locks/{lock}/rejections");
            let answer = server.post(&path, &late(first, second)).await;
            assert_eq!(answer.json(), json!({"recorded": true}), "{lock}");
        }
    }
    let (mut found, mut cursor) = (Vec::new(), String::new());
    told(&server, "/v1/history?refused=true", "", 3).await;
    loop {
        let path = format!("/v1/history?refused=true&limit=1{cursor}");
        let page = server.get(&path).await.json();
        for grant in page["grants"].as_array().unwrap() {
            found.push(grant["resource_id"].as_str().unwrap().to_owned());
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found, ["orders", "jobs/2", "jobs/1"]);
    told(&server, "/v1/history?refused=true&prefix=jobs%2F", "", 2).await;
    told(&server, "/v1/history?refused=false", "", 8).await;
    for wrong in ["refused=yes", "refused=true&cursor=e:1"] {
        let answer = server.get(&format!("/v1/history?{wrong}")).await;
        assert_eq!(answer.status, 400, "{wrong}");
    }
    for (prefix, count) in [("jobs/", "2"), ("orders", "1")] {
        let name = format!("palisade_rejections_by_prefix_total{{prefix=\"{prefix}\"}}");
        assert_eq!(metric(&server, &name).await, count, "{prefix}");
    }
}

/// The control is one page with all of it.
#[tokio::test]
async fn pages_join_by_their_cursors() {
    let (server, _dir) = server().await;
    for n in 0..4 {
        // Each takes its own lock again, so all but the last grant of a lock have ended.
        for lock in ["a", "b%3A1", "c"] {
            server.lock(lock, "x").await;
        }
        server.lock(&format!("once%2F{n}"), "x").await;
    }
    for (path, count) in [
        ("/v1/history?", 16),
        ("/v1/history?prefix=b%3A&", 4),
        ("/v1/history?lock=a&", 4),
    ] {
        let whole = told(&server, path.trim_end_matches(['?', '&']), "", count).await;
        let (mut joined, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let page = server.get(&format!("{path}limit=3{cursor}")).await.json();
            joined.extend(page["grants"].as_array().unwrap().clone());
            pages += 1;
            match page["next_cursor"].as_str() {
                // A lock's name may have a colon.
                Some(next) => cursor = format!("&cursor={}", next.replace(':', "%3A")),
                None => break,
            }
        }
        assert!(pages > 1, "{path}");
        assert_eq!(json!(joined), whole["grants"], "{path}");
    }
    for wrong in ["e:", "t:1", "l:1", "x:1", "1", "e:-1", "r:1"] {
        let answer = server.get(&format!("/v1/history?cursor={wrong}")).await;
        assert_eq!(answer.status, 400, "{wrong}");
    }
}

/// The controls are callers with other rights.
#[tokio::test]
async fn a_caller_reads_the_history_of_the_locks_that_it_may_observe() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings {
        history: Some(kept_in(dir.path())),
        ..Settings::default()
    };
    let closed = closed_with(&crate::net_access::rules(), settings).await;
    let server = &closed.server;
    let shown = |name: &str| format!("Authorization: Bearer {}\r\n", token(name));
    for (lock, name) in [("x%2F1", "hold"), ("other%2F1", "elsewhere")] {
        let body = r#"{"client_id": "c", "lease_duration_ms": 10000}"#;
        let path = format!("/v1/locks/{lock}/acquire");
        let granted = server.send("POST", &path, &shown(name), body).await;
        assert_eq!(granted.status, 200, "{}", granted.body);
    }
    let page = told(server, "/v1/history", &shown("observe"), 2).await;
    assert_eq!(page["grants"][0]["principal"], "elsewhere");
    for (name, lock) in [("both", "x/1"), ("elsewhere", "other/1")] {
        let page = told(server, "/v1/history", &shown(name), 1).await;
        assert_eq!(page["grants"][0]["resource_id"], lock, "{name}");
    }
    let refused = server.send("GET", "/v1/history", &shown("hold"), "").await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (403, "forbidden")
    );
}

/// The control is the same server with room.
#[tokio::test]
async fn a_history_without_room_stops_and_no_lock_does() {
    for room in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let server = server_in(HistorySettings {
            leaves_free: Some(if room { 0 } else { u64::MAX }),
            ..kept_in(dir.path())
        });
        let server = server.await;
        server.lock("a", "x").await;
        let gauge = "palisade_history_unwritable";
        if room {
            told(&server, "/v1/history", "", 1).await;
            assert_eq!(metric(&server, gauge).await, "0");
            continue;
        }
        soon(async {
            while metric(&server, gauge).await != "1" {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let refused = server.get("/v1/history").await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (503, "unavailable")
        );
        let report = server.post("/v1/locks/a/rejections", &late(1, 2)).await;
        assert_eq!(report.status, 503, "{}", report.body);
        server.lock("b", "x").await;
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

/// A machine that knows of no grant, at this revision.
fn machine_at(revision: u64) -> Machine {
    let mut machine = Machine::new(1);
    let leap = Entry {
        at: Timestamp::ZERO,
        wall: WallTime(1),
        by: Principal::ANONYMOUS,
        command: Command::Leap { by: revision },
    };
    machine.apply(leap, &mut Vec::new());
    assert_eq!(machine.revision(), revision);
    machine
}

/// The server was away for some changes, and its log no longer has them. The control is one that was away for none.
#[tokio::test]
async fn changes_that_nobody_saw_are_a_gap_and_grants_that_ended_in_it_are_over() {
    for revision in [1, 100] {
        let dir = tempfile::tempdir().unwrap();
        let mut server = server_in(kept_in(dir.path())).await;
        server.lock("a", "x").await;
        told(&server, "/v1/history", "", 1).await;
        server.ask_to_stop();
        server.ended().await.unwrap();
        let past = PastEvents(Arc::new(move |_, each| {
            each(Told::Begins(revision));
            each(Told::Now(&machine_at(revision)));
            Ok(())
        }));
        let settings = Settings {
            history: Some(HistorySettings {
                past: Some(past),
                ..kept_in(dir.path())
            }),
            ..Settings::default()
        };
        let server = Server::with(Wish {
            machine: Some(machine_at(revision)),
            ..Wish::net(settings)
        })
        .await;
        let over = async {
            loop {
                let page = told(&server, "/v1/history", "", 1).await;
                if page["grants"][0]["ended"] != Value::Null {
                    return page;
                }
            }
        };
        if revision == 1 {
            let page = told(&server, "/v1/history", "", 1).await;
            assert_eq!(page["gaps"], Value::Null);
            continue;
        }
        let page = soon(over).await;
        let (gap, grant) = (&page["gaps"][0], &page["grants"][0]);
        assert_eq!(
            (&gap["from_revision"], &gap["to_revision"]),
            (&json!(2), &json!(100))
        );
        assert_eq!(
            gap["why"],
            "the history missed them, and the log no longer has them"
        );
        assert_eq!(grant["ended"]["how"], "unseen");
        assert_eq!(metric(&server, "palisade_history_gaps_total").await, "1");
    }
}
