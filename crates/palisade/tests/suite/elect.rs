//! `palisade elect`, `observe` and `proclaim` against a real server.

use std::fs::{self, File};

use crate::common::{Run, Server, json, status, text, until};
use rustix::process::Signal;
use serde_json::Value;

/// An observer's output so far: the values, `null` where nobody led.
fn printed(server: &Server) -> Vec<Value> {
    let lines = fs::read_to_string(server.file("observed")).unwrap_or_default();
    let whole = lines
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    whole
        .map(|line| json(line.as_bytes())["value"].clone())
        .collect()
}

fn candidate(server: &Server, value: &str) -> Run {
    Run::start(&mut server.palisade(&[
        "elect", "primary", "--value", value, "--ttl", "5s", "--", "sleep", "1000",
    ]))
}

#[test]
fn an_observer_follows_the_leader_over_a_restart_and_its_death() {
    let mut server = Server::start();
    let output = server.output(&["observe", "primary", "--once"]);
    assert_eq!(status(&output), 1);
    assert!(text(&output.stdout).contains("nobody leads primary"));

    let mut observe = server.palisade(&["observe", "primary", "--json"]);
    observe.stdout(File::create(server.file("observed")).unwrap());
    let _observer = Run::keep(observe.spawn().unwrap());
    until("the present state", || printed(&server) == [Value::Null]);
    let first = candidate(&server, "one");
    until("the first leader", || {
        printed(&server).last() == Some(&"one".into())
    });
    let _second = candidate(&server, "two");
    until("the waiter", || server.show("primary")["waiters"] == 1);
    let once = json(
        &server
            .output(&["observe", "primary", "--once", "--json"])
            .stdout,
    );
    assert_eq!(
        (&once["value"], &once["fencing_token"]),
        (&"one".into(), &1.into())
    );

    server.kill();
    server.restart();
    until("the waiter again", || {
        server.show("primary")["waiters"] == 1
    });
    first.send(Signal::KILL);
    until("the next leader", || {
        printed(&server).last() == Some(&"two".into())
    });
    // In order, and nobody twice.
    let mut values = printed(&server);
    values.retain(|value| !value.is_null());
    assert_eq!(values, ["one", "two"]);
}

#[test]
fn a_value_changes_with_the_secret_and_only_while_the_lock_is_held() {
    let server = Server::start();
    let held = ["acquire", "primary", "--metadata", "one", "--json"];
    let held = json(&server.output(&held).stdout);
    let secret = held["lock_token"].as_str().unwrap();
    let proclaim = |value: &str, secret: &str| {
        let mut command = server.palisade(&["proclaim", "primary", "--value", value]);
        command.env("PALISADE_LOCK_TOKEN", secret).output().unwrap()
    };
    let output = proclaim("two", secret);
    assert_eq!(
        (status(&output), text(&output.stdout)),
        (0, "primary now says: two\n".into())
    );
    assert_eq!(server.show("primary")["holder"]["metadata"], "two");
    let stranger = proclaim("mine", &"0".repeat(32));
    assert_eq!(status(&stranger), 123);
    let long = proclaim(&"x".repeat(257), secret);
    assert_eq!(status(&long), 2, "{}", text(&long.stderr));
    assert_eq!(server.show("primary")["holder"]["metadata"], "two");
    let mut release = server.palisade(&["release", "primary"]);
    release.env("PALISADE_LOCK_TOKEN", secret).output().unwrap();
    let late = proclaim("late", secret);
    assert_eq!(status(&late), 123);
    assert!(
        text(&late.stderr).contains("released"),
        "{}",
        text(&late.stderr)
    );
}

#[test]
fn a_candidate_says_a_value_once() {
    let server = Server::start();
    let twice = [
        "elect",
        "x",
        "--value",
        "a",
        "--metadata",
        "b",
        "--",
        "true",
    ];
    assert_eq!(status(&server.output(&twice)), 2);
    let none = server.output(&["elect", "x", "--", "true"]);
    assert_eq!(status(&none), 2);
    assert!(
        text(&none.stderr).contains("--value"),
        "{}",
        text(&none.stderr)
    );
    let led = server.output(&["elect", "x", "--value", "a", "--", "echo", "led"]);
    assert_eq!((status(&led), text(&led.stdout)), (0, "led\n".into()));
}
