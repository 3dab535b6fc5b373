//! `palisade history`, from real servers that are killed.

use serde_json::{Value, json};

use crate::common::{Server, json as parse, status, text, until};
use crate::gateway::support::Caller;

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

/// What was not yet in the file when the server was killed comes from the log. The control is a server whose file was
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
