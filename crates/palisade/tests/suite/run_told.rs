//! `palisade run` hears at once that its lock was taken, and that somebody waits.
//!
//! real time: the margins come from a run in the same test that does not listen.

use std::fs;

use crate::common::{Run, Server, exists, now, status, text, until, until_dead};

fn token(server: &Server, lock: &str) -> String {
    server.show(lock)["holder"]["fencing_token"].to_string()
}

fn break_lock(server: &Server, lock: &str) {
    let token = token(server, lock);
    let broken = server.output(&["break", lock, "--token", &token, "--reason", "maintenance"]);
    assert_eq!(status(&broken), 0, "{}", text(&broken.stderr));
}

/// A job that holds a lock for long, and its process.
fn job(server: &Server, lock: &str, flags: &[&str]) -> (Run, Vec<i32>) {
    let script = format!("echo $$ > {lock}.pid; exec sleep 1000");
    let command = [&["--ttl", "12s"], flags, &["--", "sh", "-c", &script]].concat();
    let run = server.run(&[&[lock], &command[..]].concat());
    let pids = server.pids(&format!("{lock}.pid"), 1);
    (run, pids)
}

#[test]
fn a_break_ends_the_job_at_once_and_without_notices_at_the_next_renewal() {
    let server = Server::start();
    let (mut deaf, deaf_pids) = job(&server, "deaf", &["--no-notices"]);
    let (told, told_pids) = job(&server, "told", &[]);
    let since = now();
    break_lock(&server, "deaf");
    break_lock(&server, "told");
    until_dead(&told_pids);
    let took = now().since(since).to_duration();
    let output = told.end();
    assert!(!deaf.is_over(), "the control does not know yet");
    assert_eq!(status(&output), 123);
    let said = text(&output.stderr);
    assert!(said.contains("revoked by an operator"), "{said}");
    until_dead(&deaf_pids);
    let renewal = now().since(since).to_duration();
    assert_eq!(status(&deaf.end()), 123);
    assert!(
        2 * took < renewal,
        "ended after {took:?}, the control after {renewal:?}"
    );
}

#[test]
fn the_job_gets_the_signal_once_when_somebody_waits_and_the_control_none() {
    let server = Server::start();
    let script = |name: &str| {
        format!(
            "trap 'echo told >> {name}.told' USR1; echo $$ > {name}.pid; while [ ! -e over ]; do sleep 0.05; done"
        )
    };
    let start = |name: &'static str, flags: &[&str]| {
        let script = script(name);
        let run = server.run(&[&[name], flags, &["--", "sh", "-c", &script]].concat());
        server.pids(&format!("{name}.pid"), 1);
        run
    };
    let yields = start("yields", &["--yield-on-wait", "sigusr1"]);
    let control = start("control", &[]);
    let waits = |lock: &str| server.run(&[lock, "--wait", "1m", "--", "true"]);
    let first = [waits("yields"), waits("control")];
    let told = server.file("yields.told");
    until("the signal", || exists(&told));
    let second = waits("yields");
    until("two that wait", || server.show("yields")["waiters"] == 2);
    fs::write(server.file("over"), "").unwrap();
    let output = yields.end();
    assert_eq!(status(&output), 0);
    let said = text(&output.stderr);
    let line = "1 request waits for yields: sent USR1 to the job";
    assert_eq!(said.matches(line).count(), 1, "{said}");
    assert_eq!(fs::read_to_string(told).unwrap(), "told\n");
    let output = control.end();
    assert_eq!((status(&output), text(&output.stderr)), (0, String::new()));
    assert!(!exists(&server.file("control.told")));
    for run in first.into_iter().chain([second]) {
        assert_eq!(status(&run.end()), 0);
    }
}

#[test]
fn a_job_that_yields_with_term_lets_the_next_one_have_the_lock() {
    let server = Server::start();
    let (holder, pids) = job(&server, "shared", &["--yield-on-wait", "TERM"]);
    let next = server.run(&["shared", "--wait", "1m", "--", "true"]);
    assert_eq!(status(&next.end()), 0);
    until_dead(&pids);
    // 128 + SIGTERM: the job ended by the signal, and nothing was lost.
    assert_eq!(status(&holder.end()), 143);
}

#[test]
fn a_signal_that_is_no_job_s_is_refused_with_those_that_are() {
    let server = Server::start();
    for signal in ["KILL", "9", "nonsense", ""] {
        let refused = server.output(&["run", "x", "--yield-on-wait", signal, "--", "true"]);
        assert_eq!(status(&refused), 125, "{signal}");
        let said = text(&refused.stderr);
        assert!(
            said.contains("TERM, INT, HUP, QUIT, USR1, USR2 and WINCH"),
            "{said}"
        );
    }
    let free = server.output(&["run", "x", "--yield-on-wait", "hup", "--", "true"]);
    assert_eq!(
        (status(&free), text(&free.stderr)),
        (0, String::new()),
        "control"
    );
}
