//! `palisade history`, from real servers that are killed.

use std::net::TcpStream;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::common::cluster::Cluster;
use crate::common::{Server, json as parse, status, text, until};
use crate::gateway::support::{self, Caller};
use crate::gateway::upstream::Upstream;
use crate::traces;

/// The history as lines of JSON.
fn told(server: &Server, arguments: &[&str]) -> Vec<Value> {
    let output = server.output(&[&["history", "--json"], arguments].concat());
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    lines.lines().map(|line| parse(line.as_bytes())).collect()
}

/// A commit comes once a second.
fn until_told(server: &Server, arguments: &[&str], count: usize) -> Vec<Value> {
    until("the history", || told(server, arguments).len() == count);
    told(server, arguments)
}

fn acquire(server: &Server, lock: &str, client: &str, more: &[&str]) -> Value {
    let words = ["acquire", lock, "--client-id", client, "--json"];
    parse(&server.output(&[&words, more].concat()).stdout)
}

async fn report(server: &Server, lock: &str, token: u64) -> Value {
    let body = json!({"fencing_token": token, "resource": "orders", "highest": 9, "operation": "PUT /total"});
    let caller = Caller::of(&server.url);
    let path = format!("/v1/locks/{lock}/rejections");
    let headers = [("content-type", "application/json")];
    caller
        .call("POST", &path, &headers, body.to_string())
        .await
        .json()
}

/// The control is a report of a token that nobody had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_says_who_held_a_lock_how_it_ended_and_who_wrote_late() {
    let server = Server::start();
    let was = acquire(
        &server,
        "orders",
        "a",
        &["--ttl", "500ms", "--metadata", "nightly"],
    );
    let is = acquire(&server, "orders", "b", &["--ttl", "60s", "--wait", "10s"]);
    assert_eq!(
        (&was["fencing_token"], &is["fencing_token"]),
        (&json!(1), &json!(2))
    );
    let broken = ["break", "orders", "--token", "2", "--reason", "it hangs"];
    assert_eq!(status(&server.output(&broken)), 0);
    let rows = until_told(&server, &["orders"], 2);
    let (revoked, expired) = (&rows[0], &rows[1]);
    assert_eq!(
        (&expired["client_id"], &expired["metadata"]),
        (&json!("a"), &json!("nightly"))
    );
    assert_eq!(expired["ended"]["how"], "expired");
    assert_eq!(
        (&revoked["ended"]["how"], &revoked["ended"]["reason"]),
        (&json!("revoked"), &json!("it hangs"))
    );
    assert!(revoked["waited_ms"].as_u64().unwrap() > 0, "{revoked}");
    assert_eq!(
        report(&server, "orders", 7).await,
        json!({"recorded": false})
    );
    assert_eq!(
        report(&server, "orders", 1).await,
        json!({"recorded": true})
    );
    let late = &told(&server, &["orders", "--token", "1"])[0]["rejections"];
    assert_eq!(
        (
            late.as_array().unwrap().len(),
            &late[0]["resource"],
            &late[0]["highest"]
        ),
        (1, &json!("orders"), &json!(9))
    );
    let said = text(&server.output(&["history", "orders"]).stdout);
    for words in [
        "token 1  a",
        "expired after",
        "revoked after",
        ": it hangs",
        "PUT /total at orders, which had seen token 9",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// Changes that were not yet in the file when the server was killed come from the log. The control is a server whose file was
/// removed, and another one that keeps no history.
#[test]
fn a_history_goes_on_over_a_kill_and_is_made_anew_from_the_log() {
    let mut server = Server::start();
    for lock in ["a", "b"] {
        let held = acquire(&server, lock, "c", &[]);
        let mut release = server.palisade(&[
            "release",
            lock,
            "--token",
            &held["fencing_token"].to_string(),
        ]);
        release.env("PALISADE_LOCK_TOKEN", held["lock_token"].as_str().unwrap());
        assert_eq!(status(&release.output().unwrap()), 0);
    }
    for file in ["kept", "removed"] {
        server.kill();
        if file == "removed" {
            std::fs::remove_file(server.file("data").join("history.redb")).unwrap();
        }
        server.restart();
        let rows = until_told(&server, &[], 2);
        assert!(
            rows.iter().all(|row| row["ended"]["how"] == "released"),
            "{rows:?}"
        );
        let output = server.output(&["history"]);
        assert_eq!(text(&output.stderr), "");
    }
    let none = Server::with(&["--no-history"]);
    let output = none.output(&["history"]);
    assert_ne!(status(&output), 0);
    assert!(
        text(&output.stderr).contains("--no-history"),
        "{}",
        text(&output.stderr)
    );
}

/// Each node answers for the changes that it applied, also one that was killed and missed some. The controls are the nodes
/// that were not.
#[test]
fn every_node_of_a_cluster_has_the_same_history() {
    let mut cluster = Cluster::of(3);
    let leader = cluster.until_ready();
    let follower = (leader + 1) % 3;
    // One client takes its own lock again and again.
    let until_same = |cluster: &Cluster, count: usize| {
        until("the same history at every node", || {
            let told = (0..3).map(|at| cluster.nodes[at].get("/v1/history"));
            let pages: Vec<_> = told.collect();
            let Some((200, page)) = &pages[0] else {
                return false;
            };
            let has_all = page["grants"].as_array().unwrap().len() == count;
            has_all && page["gaps"] == Value::Null && pages.iter().all(|page| *page == pages[0])
        });
    };
    cluster.token(leader, "a");
    cluster.token(leader, "a");
    until_same(&cluster, 2);
    cluster.nodes[follower].kill();
    cluster.token(leader, "a");
    cluster.start(follower);
    cluster.until_ready();
    until_same(&cluster, 3);
}

/// Milliseconds of the wall clock, which this machine's processes share.
fn wall() -> i64 {
    Timestamp::now().as_millisecond()
}

fn ms(instant: &Value) -> i64 {
    let instant: Timestamp = instant.as_str().unwrap().parse().unwrap();
    instant.as_millisecond()
}

/// A holder falls silent, another one takes over, and the first one's late writes are refused: at a gateway, which is
/// reported, and at a store, whose writer dies before it can report. One report is forged, and one comes while the authority
/// is gone. The history alone says who held the lock, since when, why that ended, who waited, and who wrote late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_incident_the_history_answers_the_five_questions() {
    let mut server = Server::start();
    let (_upstream, upstream) = Upstream::start().await;
    let mut gateway = support::command(&upstream, &server.file("gateway"));
    gateway.args(["--route", "/accounts/{id:uint}=account:{id}"]);
    let fences = [
        ("gateway", gateway),
        ("store", traces::command("store", &server.file("store"))),
    ];
    let fences = fences.map(|(at, command)| {
        (
            at,
            traces::start(command, &server.file(&format!("{at}.log"))),
        )
    });
    let began = wall();
    acquire(
        &server,
        "orders",
        "a",
        &["--ttl", "1s", "--metadata", "nightly"],
    );
    let held = wall();
    acquire(&server, "orders", "b", &["--ttl", "60s", "--wait", "20s"]);
    let taken = wall();
    for (at, (_, caller)) in &fences {
        assert_eq!(traces::write(caller, at, 2, None).await, 200, "{at}");
        assert_eq!(traces::write(caller, at, 1, None).await, 412, "{at}");
    }
    let reported = json!({"recorded": true});
    assert_eq!(report(&server, "orders", 1).await, reported);
    let refused = wall();
    for forged in [3, 9] {
        assert_ne!(report(&server, "orders", forged).await, reported);
    }
    server.kill();
    assert!(TcpStream::connect(server.address()).is_err());
    server.restart();
    let rows = until_told(&server, &["orders"], 2);
    let (is, was) = (&rows[0], &rows[1]);
    let within = |instant: &Value, from: i64, to: i64| {
        let instant = ms(instant);
        assert!((from..=to).contains(&instant), "{from} {instant} {to}");
    };
    // The holder, and since when.
    assert_eq!(
        [&was["client_id"], &was["metadata"], &is["client_id"]],
        [&json!("a"), &json!("nightly"), &json!("b")]
    );
    within(&was["granted_at"], began, held);
    within(&is["granted_at"], held, taken);
    // The reason of the end.
    let end = &was["ended"];
    assert_eq!(
        (&end["how"], &is["ended"]),
        (&json!("expired"), &Value::Null)
    );
    assert_eq!(end["at"], is["granted_at"]);
    // Two clocks in whole milliseconds.
    within(&end["renewed_at"], began - 2, held + 2);
    // The client that waited, and how long.
    within(&is["asked_at"], held, taken);
    let waited = ms(&is["granted_at"]) - ms(&is["asked_at"]);
    assert_eq!(is["waited_ms"], json!(waited));
    // The late writer.
    assert_eq!(is["rejections"], Value::Null);
    let late = was["rejections"].as_array().unwrap();
    assert_eq!(late.len(), 1, "{late:?}");
    within(&late[0]["reported_at"], taken, refused);
}
