//! `palisade run` without a job: lock not acquired, no server, a wrong command line.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::time::Duration;

use crate::common::{Server, now, palisade, status, text, until};

/// A server, and a run that holds `job`.
fn held() -> (Server, crate::common::Run) {
    let server = Server::start();
    let run = server.run(&["job", "--", "sh", "-c", "echo $$ >> pids; exec sleep 1000"]);
    server.pids("pids", 1);
    (server, run)
}

#[test]
fn without_a_wait_a_held_lock_is_124_at_once() {
    let (server, _run) = held();
    // The control waits for ten seconds, which is less than most waits.
    let mut control = server.run(&["job", "--wait", "10s", "--", "true"]);
    until("the control", || server.show("job")["waiters"] == 1);
    for flags in [&["-n"][..], &["--no-wait"], &["--wait", "0"], &["-w", "0s"]] {
        let output = server.output(&[&["run", "job"], flags, &["--", "touch", "ran"]].concat());
        assert_eq!(status(&output), 124);
        assert!(
            text(&output.stderr).contains("job is held by"),
            "{}",
            text(&output.stderr)
        );
    }
    assert!(!control.is_over(), "a wait was shorter than these");
    assert!(!server.file("ran").exists());
}

#[test]
fn a_wait_that_elapses_is_124_and_not_before() {
    let (server, _run) = held();
    let before = now();
    let output = server.output(&[
        "run", "job", "--wait", "300ms", "--json", "--", "touch", "ran",
    ]);
    assert_eq!(status(&output), 124);
    assert!(now().since(before).to_duration() >= Duration::from_millis(300));
    let error = &crate::common::json(&output.stderr)["error"];
    assert_eq!(
        (&error["code"], &error["holder"]["fencing_token"]),
        (&"held".into(), &1.into())
    );
    assert!(!server.file("ran").exists());
}

#[test]
fn no_server_is_125_and_says_how_to_start_one() {
    // A port that was free a moment ago, so nothing listens on it.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let url = format!("http://127.0.0.1:{port}");
    for command in [
        &["run", "job", "-n", "--", "true"][..],
        &["acquire", "job"],
        &["ls"],
        &["show", "job"],
    ] {
        let output = palisade()
            .args(command)
            .env("PALISADE_AUTHORITY", &url)
            .output()
            .unwrap();
        assert_eq!(status(&output), 125, "{command:?}");
        let message = text(&output.stderr);
        assert!(
            message.contains("palisade serve") && message.contains(&url),
            "{message}"
        );
    }
}

#[test]
fn an_invalid_address_is_refused() {
    for url in [
        "",
        "nonsense",
        "ftp://host",
        "http://",
        "http://user:secret@host",
        "http://host:0",
        "http://host/path",
    ] {
        let output = palisade()
            .args(["show", "job", "--authority", url])
            .output()
            .unwrap();
        assert_eq!(status(&output), 2, "{url}: {}", text(&output.stderr));
        let output = palisade()
            .args(["run", "job", "--authority", url, "--", "true"])
            .output()
            .unwrap();
        assert_eq!(status(&output), 125, "{url}: {}", text(&output.stderr));
    }
}

#[test]
fn a_wrong_command_line_of_run_is_125_because_2_may_be_the_jobs() {
    let server = Server::start();
    for (arguments, message) in [
        (&["job"][..], "<CMD>"),
        (&["job", "--"], "<CMD>"),
        (&["job", "true"], "comes after `--`"),
        (&["--", "true"], "<LOCK>"),
        (&["", "--", "true"], "lock name is empty"),
        (
            &["job", "--ttl", "0", "--", "true"],
            "not between 100 ms and 24 h",
        ),
        (
            &["job", "--ttl", "-5s", "--", "true"],
            "lasts 100 ms to 24 h",
        ),
        (
            &["job", "--ttl", "soon", "--", "true"],
            "lasts 100 ms to 24 h",
        ),
        (
            &["job", "--wait", "25h", "--", "true"],
            "not between 0 and 24 h",
        ),
        (
            &["job", "-n", "-w", "1s", "--", "true"],
            "cannot be used with",
        ),
        (
            &["job", "--grace", "8s", "--", "true"],
            "between 0 and 7.5 s",
        ),
        (&["job", "--grace", "-1s", "--", "true"], "negative"),
        (&["job", "--nonsense", "--", "true"], "--nonsense"),
        (&["job", "--lock-token", "00", "--", "true"], "--lock-token"),
    ] {
        let output = server.output(&[&["run"], arguments].concat());
        let said = text(&output.stderr);
        assert_eq!(status(&output), 125, "{arguments:?}: {said}");
        assert!(said.contains(message), "{arguments:?}: {said}");
    }
    assert!(
        server.output(&["ls", "--json"]).stdout.is_empty(),
        "and nothing is held"
    );
}

/// Without it neither the watchdog nor the job's leftover processes could be found.
#[test]
fn without_proc_nothing_runs_and_the_message_says_why() {
    let server = Server::start();
    let script = r#"mount -t tmpfs none /proc && "$1" run job -- touch "$2""#;
    let ran = server.file("ran");
    let output = std::process::Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
            env!("CARGO_BIN_EXE_palisade"),
        ])
        .arg(&ran)
        .env("PALISADE_AUTHORITY", &server.url)
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(status(&output), 125, "{said}");
    assert!(
        said.contains("no /proc/self/exe: is /proc mounted?"),
        "{said}"
    );
    assert!(!ran.exists());
    assert!(server.show("job")["holder"].is_null());
}
