//! `palisade run` while it waits, when the authority is unreachable, and when the command takes too long.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::fs::{self, File};
use std::process::Stdio;

use crate::common::{
    Run, STUBBORN, STUBBORN_PIDS, Server, json, living, palisade, status, text, until,
};

const HOLD: [&str; 4] = ["--", "sh", "-c", "echo $$ >> pids; exec sleep 1000"];

/// A server, and a run that holds `job` under the client id `me`.
fn held() -> (Server, Run) {
    let server = Server::start();
    let run = server.run(&[&["job", "--client-id", "me"], &HOLD[..]].concat());
    server.pids("pids", 1);
    (server, run)
}

#[test]
fn run_waits_for_an_authority_that_restarts() {
    let mut server = Server::start();
    server.kill();
    let said = || fs::read_to_string(server.file("said")).unwrap_or_default();
    let waiting = server
        .palisade(&["run", "job", "-w", "1m", "--", "echo", "ran"])
        .stdout(Stdio::piped())
        .stderr(File::create(server.file("said")).unwrap())
        .spawn()
        .unwrap();
    let waiting = Run::keep(waiting);
    until("a message", || said().contains("trying again for"));
    server.restart();
    let output = waiting.end();
    assert_eq!((status(&output), text(&output.stdout)), (0, "ran\n".into()));
    // With --no-wait it does not retry.
    server.kill();
    let output = server.output(&["run", "job", "-n", "--", "true"]);
    assert_eq!(status(&output), 125);
    let said = text(&output.stderr);
    assert!(!said.contains("trying again"), "{said}");
}

/// The grant counts from the attempt that is answered: a wait that outlasts the lease must not use it up.
#[test]
fn a_wait_that_a_restart_cut_ends_with_a_lease_that_lasts() {
    let mut server = Server::start();
    let holder = ["acquire", "job", "--ttl", "1h", "--json"];
    let held = json(&server.output(&holder).stdout);
    // The control below has token 2.
    let script = "test $PALISADE_FENCING_TOKEN = 3 && sleep 1 && echo ran";
    let flags = ["run", "job", "--ttl", "2s", "-w", "1m"];
    let waiting =
        Run::start(&mut server.palisade(&[&flags[..], &["--", "sh", "-c", script]].concat()));
    let waits = |server: &Server| until("the waiter", || server.show("job")["waiters"] == 1);
    waits(&server);
    server.kill();
    server.restart();
    waits(&server);
    // The control: a longer lease that begins now, and that nobody renews, is over before the wait is.
    let control = server.output(&["acquire", "control", "--ttl", "3s"]);
    assert_eq!(status(&control), 0, "{}", text(&control.stderr));
    until("the end of a lease", || {
        server.show("control")["holder"].is_null()
    });
    let mut release = server.palisade(&["release", "job", "--token", "1"]);
    release.env("PALISADE_LOCK_TOKEN", held["lock_token"].as_str().unwrap());
    assert_eq!(status(&release.output().unwrap()), 0);
    let output = waiting.end();
    assert_eq!(
        (status(&output), text(&output.stdout)),
        (0, "ran\n".into()),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_waiting_run_names_the_holder() {
    let (server, _run) = held();
    let output = server.output(&["-v", "run", "job", "-w", "2500ms", "--", "true"]);
    assert_eq!(status(&output), 124);
    let said = text(&output.stderr);
    assert_eq!(
        said.matches("waiting for job: held by me").count(),
        1,
        "{said}"
    );
    let output = server.output(&["run", "job", "-w", "1500ms", "--", "true"]);
    let said = text(&output.stderr);
    assert!(
        !said.contains("waiting for"),
        "not without a terminal: {said}"
    );
}

#[test]
fn a_client_id_in_use_takes_over_with_a_warning() {
    let (server, first) = held();
    let second = server.output(&["run", "job", "--client-id", "me", "--", "true"]);
    assert_eq!(status(&second), 0);
    assert!(text(&second.stderr).contains("client id me already holds"));
    assert_eq!(status(&first.end()), 123);
    let third = server.output(&["run", "job", "--client-id", "me", "--", "true"]);
    assert_eq!(text(&third.stderr), "", "nobody holds it any more");
}

#[test]
fn a_conflict_obeys_the_status_and_quiet_flags() {
    let (server, _run) = held();
    let output = server.output(&["run", "job", "-n", "-E", "7", "--", "true"]);
    assert_eq!(status(&output), 7);
    assert!(text(&output.stderr).contains("job is held by"));
    let output = server.output(&["run", "job", "-n", "-q", "-E", "0", "--", "true"]);
    assert_eq!((status(&output), text(&output.stderr)), (0, String::new()));
    // Other failures are still reported, with their own status.
    let output = server.output(&["run", "free", "-q", "-E", "7", "--", "/nowhere"]);
    assert_eq!(status(&output), 127);
    assert!(text(&output.stderr).contains("/nowhere"));
    let output = server.output(&["run", "job", "-E", "256", "--", "true"]);
    assert_eq!(status(&output), 125);
}

#[test]
fn a_command_that_exceeds_its_timeout_is_ended_and_the_lock_released() {
    let server = Server::start();
    let run = server.run(&[
        "job",
        "--timeout",
        "1s",
        "--grace",
        "100ms",
        "--json",
        "--",
        "sh",
        "-c",
        STUBBORN,
    ]);
    let pids = server.pids("pids", STUBBORN_PIDS);
    let output = run.end();
    assert_eq!(status(&output), 122, "{}", text(&output.stderr));
    assert_eq!(living(&pids), [0; 0]);
    assert!(server.show("job")["holder"].is_null());
    // Control: a command that ends in time keeps its status.
    let output = server.output(&["run", "job", "--timeout", "1m", "--", "sh", "-c", "exit 3"]);
    assert_eq!(status(&output), 3);
}

#[test]
fn a_command_without_dashes_gets_a_hint_where_they_go() {
    for words in [
        &["run", "x", "echo", "hi"][..],
        &["run", "x", "--json", "echo"],
    ] {
        let output = palisade().args(words).output().unwrap();
        assert_eq!(status(&output), 125);
        assert!(text(&output.stderr).contains("comes after `--`"));
    }
    let output = palisade()
        .args(["run", "x", "--nonsense", "--", "true"])
        .output()
        .unwrap();
    assert!(text(&output.stderr).contains("--nonsense"));
}

#[test]
fn logs_in_a_file_have_no_colours_and_address_errors_have_hints() {
    let server = Server::start();
    let output = server.output(&["-vv", "run", "job", "--", "true"]);
    assert!(!text(&output.stderr).contains('\u{1b}'));
    for (listen, tip) in [
        ("localhost:7420", "127.0.0.1:7420"),
        ("7420", "an IP address and a port"),
        (server.address(), "choose another port with --listen"),
        ("192.0.2.1:7420", "no such address"),
    ] {
        let data = server.file("other").display().to_string();
        let flags = ["serve", "--insecure", "--listen", listen, "--data", &data];
        let output = server.output(&flags);
        assert_ne!(status(&output), 0);
        let said = text(&output.stderr);
        assert!(said.contains(tip), "{listen}: {said}");
    }
    assert!(!server.file("other").exists());
}

/// The machine sleeps while the request waits: it is granted, and its lease is over before anybody wakes.
#[test]
fn a_wait_that_was_granted_while_suspended_goes_on() {
    let server = Server::start();
    let held = server.output(&["acquire", "job", "--ttl", "2s"]);
    assert_eq!(status(&held), 0);
    let run = ["job", "--ttl", "500ms", "--wait", "1m", "--", "echo", "ran"];
    let waiting = server.run(&run);
    until("the waiter", || server.show("job")["waiters"] == 1);
    crate::common::stop(waiting.pid());
    until("the end of its grant", || {
        let view = server.show("job");
        view["waiters"] == 0 && view["holder"].is_null()
    });
    waiting.send(rustix::process::Signal::CONT);
    let output = waiting.end();
    let said = text(&output.stderr);
    assert_eq!(
        (status(&output), text(&output.stdout)),
        (0, "ran\n".into()),
        "{said}"
    );
}
