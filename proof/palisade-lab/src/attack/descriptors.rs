//! Rows 8 and 14: limits of the kernel that a server reaches.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::json;

use super::harness::{Harness, Start, until};
use super::http::{Connection, JSON};
use super::outcome::{Attack, Outcome};
use super::plain::{Session, acquire};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "descriptors-exhausted",
        row: 8,
        does: "1,100 idle connections at ulimit -n 1024, then work until the log needs its next files; server and store",
        bounds: "60 s, 40 MiB of log each",
        run: descriptors_exhausted,
    },
    Attack {
        name: "one-peer-takes-all",
        row: 12,
        does: "one address holds all connections that ulimit -n 1024 allows; another address sends a request",
        bounds: "10 s, 1,100 connections",
        run: one_peer_takes_all,
    },
    Attack {
        name: "file-size-limit",
        row: 14,
        does: "the log reaches ulimit -f: the server must not be killed without a message",
        bounds: "20 s",
        run: file_size_limit,
    },
];

const DESCRIPTORS: &str = "--nofile=1024:1024";

/// Connections that have had an answer and stay silent, and some more that wait to be accepted.
fn idle(address: std::net::SocketAddr) -> Vec<Connection> {
    let mut open = Vec::new();
    let mut unanswered = 0;
    for _ in 0..1_100 {
        let Ok(mut connection) = Connection::to(address) else {
            break;
        };
        let asked = connection.send("GET", "/healthz", &[], "");
        // A server without descriptors no longer answers: a few such connections are enough.
        unanswered += u32::from(asked.is_err() || connection.line(Duration::from_secs(1)).is_err());
        open.push(connection);
        if unanswered == 5 {
            break;
        }
    }
    open
}

/// Acquires locks again and again, each with 350 bytes in the log, until 40 MiB are full or the server fails.
fn fill_log(session: &mut Session) -> Result<(), String> {
    let metadata = "x".repeat(256);
    for _ in 0..60 {
        let again = |at| acquire(format!("again-{at}"), "filler", &metadata);
        session.all((0..2_000).map(again).collect())?;
    }
    Ok(())
}

fn descriptors_exhausted(harness: &Harness) -> Result<Outcome, String> {
    let server = Start::new("serve", &harness.path("data")).limited(DESCRIPTORS);
    let mut server = harness.start(&server)?;
    let mut session = Session::to(server.address)?;
    session.all(vec![acquire("first".to_owned(), "c", "")])?;
    let connections = idle(server.address);
    let worked = fill_log(&mut session);
    let (server_works, server_figure) = still_works(worked, server.process.is_over());
    drop(connections);

    let store = Start::new("store", &harness.path("stored")).limited(DESCRIPTORS);
    let mut store = harness.start(&store)?;
    let mut writer = Connection::to(store.address)?;
    write(&mut writer, 0)?;
    let connections = idle(store.address);
    let worked = (1..=60).try_for_each(|at| write(&mut writer, at));
    let (store_works, store_figure) = still_works(worked, store.process.is_over());
    drop(connections);
    Ok(Outcome::measured(
        server_works && store_works,
        format!("the server {server_figure}, the store {store_figure}"),
        "both still work",
    ))
}

fn still_works(worked: Result<(), String>, is_over: bool) -> (bool, String) {
    match (worked, is_over) {
        (_, true) => (false, "is gone".to_owned()),
        (Ok(()), false) => (true, "still works".to_owned()),
        (Err(why), false) => (false, format!("no longer works: {why}")),
    }
}

/// Writes an object of 512 KiB.
fn write(store: &mut Connection, at: u32) -> Result<(), String> {
    let content = "QUFB".repeat(128 << 10);
    let body = json!({
        "resource_id": "r", "fencing_token": 1,
        "write_payload": {"mutation_type": "PUT", "file_path": format!("/f{}", at % 4), "bytes": content},
    });
    let reply = store.ask("POST", "/v1/storage/write", &JSON, &body.to_string())?;
    match reply.status {
        200 => Ok(()),
        other => Err(format!("a write got {other}: {}", reply.body)),
    }
}

fn one_peer_takes_all(harness: &Harness) -> Result<Outcome, String> {
    let server = Start::new("serve", &harness.path("data")).limited(DESCRIPTORS);
    let server = harness.start(&server)?;
    let connections = idle(server.address);
    let held = connections.len();
    let mut other = Connection::from(Ipv4Addr::new(127, 0, 0, 2), server.address)?;
    other.send("GET", "/healthz", &[], "")?;
    let answered = other.line(Duration::from_secs(5)).is_ok();
    drop(connections);
    Ok(Outcome::measured(
        answered,
        format!(
            "besides {held} connections of one address, another one gets an answer: {answered}"
        ),
        "it gets an answer",
    ))
}

fn file_size_limit(harness: &Harness) -> Result<Outcome, String> {
    // The first segment has 1 MiB, the next 16.
    let server = Start::new("serve", &harness.path("data")).limited("--fsize=4194304");
    let mut server = harness.start(&server)?;
    let mut session = Session::to(server.address)?;
    let metadata = "x".repeat(256);
    let again = |at| acquire(format!("again-{at}"), "filler", &metadata);
    for _ in 0..10 {
        if session.all((0..1_000).map(again).collect()).is_err() {
            break;
        }
    }
    until(Duration::from_secs(10), || server.process.is_over());
    let status = server.process.status();
    let said = server.log().lines().any(|line| {
        line.contains("WARN")
            || line.contains("ERROR")
            || line.contains("file size")
            || line.contains("File too large")
    });
    let killed = status
        .is_some_and(|status| std::os::unix::process::ExitStatusExt::signal(&status).is_some());
    let word = match status {
        None => "the server runs".to_owned(),
        Some(status) => format!("the server is gone ({status})"),
    };
    Ok(Outcome::measured(
        said && !killed,
        format!("{word}; its log says why: {said}"),
        "not killed by a signal, and the log says why",
    ))
}
