//! `palisade run` when the lease is lost: no process of the job is alive when somebody else can be granted the lock.

use std::fs;
use std::time::Duration;

use crate::common::proxy::Proxy;
use crate::common::{
    PRINT_LIVE_PIDS, Run, STUBBORN, STUBBORN_PIDS, Server, exists, is_alive, living, now, send,
    stat, status, stop, text, until, until_dead, until_time,
};
use palisade_core::Timestamp;
use rustix::process::Signal;
use serde_json::Value;

const TTL: Duration = Duration::from_millis(1_500);

fn after(at: Timestamp, duration: Duration) -> Timestamp {
    at.after(duration.into())
}

/// A stubborn job behind a network that can be frozen.
fn stubborn(server: &Server, url: &str) -> (Run, Vec<i32>) {
    let mut command = server.palisade(&["run", "job", "--ttl", "1500ms", "--json"]);
    command.args([
        "--on-lost",
        "env | grep PALISADE_ > lost",
        "--",
        "sh",
        "-c",
        STUBBORN,
    ]);
    let run = Run::start(command.env("PALISADE_AUTHORITY", url));
    let pids = server.pids("pids", STUBBORN_PIDS);
    (run, pids)
}

/// Another client in the queue; its command prints which processes of the first job are alive when it is granted.
fn next_holder(server: &Server) -> Run {
    let next = server.run(&["job", "--wait", "1m", "--", "sh", "-c", PRINT_LIVE_PIDS]);
    until("the next to wait", || server.show("job")["waiters"] == 1);
    next
}

#[test]
fn when_the_network_freezes_the_job_is_dead_before_the_next_grant() {
    let server = Server::start();
    let proxy = Proxy::to(&server.url);
    let (run, pids) = stubborn(&server, &proxy.url);
    let next = next_holder(&server);
    proxy.freeze();
    let next = next.end();
    assert_eq!(
        (status(&next), text(&next.stdout)),
        (0, String::new()),
        "processes alive when it was granted"
    );
    let output = run.end();
    assert_eq!(status(&output), 123);
    // The first message says that renewals fail, long before the end.
    let said = text(&output.stderr);
    let said: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [late, end] = &*said else {
        panic!("{said:?}");
    };
    let late = late["warning"]["message"].as_str().unwrap();
    assert!(late.contains("a renewal of job"), "{late}");
    assert_eq!(end["error"]["code"], "expired");
    let lost = fs::read_to_string(server.file("lost")).unwrap();
    for line in [
        "PALISADE_LOCK=job",
        "PALISADE_FENCING_TOKEN=1",
        "PALISADE_LOST_REASON=expired",
    ] {
        assert!(lost.lines().any(|seen| seen == line), "{line} in {lost}");
    }
    assert!(!lost.contains("PALISADE_LOCK_TOKEN"));
    assert_eq!(living(&pids), [0; 0]);
}

#[test]
fn control_without_wrapper_and_watchdog_the_job_is_alive_at_the_next_grant() {
    let server = Server::start();
    let proxy = Proxy::to(&server.url);
    let (run, pids) = stubborn(&server, &proxy.url);
    let next = next_holder(&server);
    let watchdog = run.watchdog();
    stop(run.pid());
    stop(watchdog);
    let next = next.end();
    assert_eq!(
        text(&next.stdout).lines().count(),
        STUBBORN_PIDS,
        "the same check finds live processes here"
    );
    // It continues past its deadline and kills at once: there is no grace left.
    run.send(Signal::CONT);
    until_dead(&pids);
    send(watchdog, Signal::CONT);
    assert_eq!(status(&run.end()), 123);
}

#[test]
fn when_the_server_stops_the_job_is_dead_within_the_ttl() {
    let server = Server::start();
    let (run, pids) = stubborn(&server, &server.url);
    // No acknowledged renewal was sent later than this.
    let last = now();
    stop(server.pid());
    until_dead(&pids);
    assert!(
        now() < after(last, TTL),
        "dead after {:?}",
        now().since(last)
    );
    assert_eq!(status(&run.end()), 123);
    assert!(exists(&server.file("lost")), "the hook ran");
}

#[test]
fn a_wrapper_stopped_past_its_ttl_loses_its_job_in_time() {
    let server = Server::start();
    let (run, pids) = stubborn(&server, &server.url);
    // The watchdog kills the group at the deadline; it cannot reach a process that left the group.
    let group = [pids[0], pids[2], pids[3]];
    let group: Vec<i32> = group
        .into_iter()
        .filter(|pid| in_group(*pid, pids[0]))
        .collect();
    let last = now();
    stop(run.pid());
    until_dead(&group);
    assert!(
        now() < after(last, TTL),
        "dead after {:?}",
        now().since(last)
    );
    until_time(after(last, TTL)); // real time: the lease is over
    run.send(Signal::CONT);
    assert_eq!(status(&run.end()), 123);
    assert_eq!(living(&pids), [0; 0], "the wrapper also kills the others");
    assert!(exists(&server.file("lost")));
}

fn in_group(pid: i32, group: i32) -> bool {
    stat(pid).is_some_and(|it| it.group == group)
}

#[test]
fn when_the_wrapper_is_killed_the_group_dies_and_without_the_watchdog_it_would_not() {
    let server = Server::start();
    let (run, pids) = stubborn(&server, &server.url);
    let group: Vec<i32> = pids
        .iter()
        .copied()
        .filter(|pid| in_group(*pid, pids[0]))
        .collect();
    assert_eq!(group.len(), STUBBORN_PIDS - 1);
    let watchdog = run.watchdog();
    stop(watchdog);
    run.send(Signal::KILL);
    until("the command to die of its parent's death", || {
        !is_alive(pids[0])
    });
    // Control: the parent-death signal reaches only the command, and nothing else is killed while the watchdog stops.
    assert_eq!(living(&group).len(), group.len() - 1);
    send(watchdog, Signal::CONT);
    until_dead(&group);
    until("the watchdog to end", || !is_alive(watchdog));
    for pid in living(&pids) {
        send(pid, Signal::KILL);
    }
}

#[test]
fn a_watchdog_that_is_killed_is_replaced() {
    let server = Server::start();
    let (run, pids) = stubborn(&server, &server.url);
    let group: Vec<i32> = pids
        .iter()
        .copied()
        .filter(|pid| in_group(*pid, pids[0]))
        .collect();
    let first = run.watchdog();
    send(first, Signal::KILL);
    until("another watchdog", || {
        !is_alive(first) && run.watchdog() != first
    });
    until("the new watchdog to be ready", || {
        // It is ready once it has a session of its own.
        let pid = run.watchdog();
        stat(pid).is_some_and(|it| it.session == pid)
    });
    run.send(Signal::KILL);
    until_dead(&group);
    for pid in living(&pids) {
        send(pid, Signal::KILL);
    }
}

#[test]
fn a_revoked_lock_terminates_the_job_at_once() {
    let server = Server::start();
    let job = "trap 'echo told > told; exit 0' TERM; echo $$ >> pids; while :; do sleep 0.01; done";
    let run = server.run(&[
        "job",
        "--ttl",
        "3s",
        "--on-lost",
        "echo $PALISADE_LOST_REASON > lost",
        "--",
        "sh",
        "-c",
        job,
    ]);
    let pids = server.pids("pids", 1);
    let broken = server.output(&["break", "job", "--token", "1", "--reason", "test"]);
    assert_eq!(status(&broken), 0, "{}", text(&broken.stderr));
    // It learns of the loss with the next renewal: long before the deadline.
    let output = run.end();
    assert_eq!(status(&output), 123, "although the command's status was 0");
    assert!(exists(&server.file("told")) && exists(&server.file("lost")));
    assert!(
        text(&output.stderr).contains("revoked by an operator"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(living(&pids), [0; 0]);
}

#[test]
fn a_stubborn_job_of_a_revoked_lock_is_killed_after_the_grace() {
    let server = Server::start();
    let mut command = server.palisade(&["run", "job", "--ttl", "3s", "--grace", "100ms", "--"]);
    let run = Run::start(command.args(["sh", "-c", STUBBORN]));
    let pids = server.pids("pids", STUBBORN_PIDS);
    let last = now();
    server.output(&["break", "job", "--token", "1", "--reason", "test"]);
    until_dead(&pids);
    // The next renewal, at most a third of the lease later, reports the loss; SIGTERM alone would not end this job.
    let took = now().since(last);
    assert!(
        took < Duration::from_secs(2).into(),
        "dead after {took:?}, not only at the deadline"
    );
    assert_eq!(status(&run.end()), 123);
}

#[test]
fn a_loss_that_only_the_release_reports_is_a_loss() {
    let server = Server::start();
    let job = "echo $$ >> pids; while ! [ -e stop ]; do sleep 0.01; done; exit 5";
    // The next renewal is 20 minutes away, and a notice would come before the release.
    let flags = ["job", "--ttl", "1h", "--no-notices"];
    let run = server.run(&[&flags[..], &["--", "sh", "-c", job]].concat());
    server.pids("pids", 1);
    server.output(&["break", "job", "--token", "1", "--reason", "test"]);
    fs::write(server.file("stop"), "").unwrap();
    let output = run.end();
    let said = text(&output.stderr);
    assert_eq!(status(&output), 123, "{said}");
    assert!(said.contains("an operator took it"), "{said}");
}

/// The lease would last for an hour.
#[test]
fn when_the_wrapper_is_killed_the_lock_is_released_as_soon_as_nothing_of_the_job_is_alive() {
    let server = Server::start();
    let job = "echo $$ >> pids; setsid sh -c 'echo $$ >> pids; exec sleep 1000' & exec sleep 1000";
    let run = server.run(&["job", "--ttl", "1h", "--", "sh", "-c", job]);
    let pids = server.pids("pids", 2);
    let watchdog = run.watchdog();
    run.send(Signal::KILL);
    let is_held = || !server.show("job")["holder"].is_null();
    until("the end of the command", || living(&pids).len() == 1);
    // Control: a process that has left the group may belong to the job.
    for _ in 0..20 {
        assert!(is_held() && is_alive(watchdog));
    }
    for pid in living(&pids) {
        send(pid, Signal::KILL);
    }
    until("the release", || !is_held());
    until("the watchdog to end", || !is_alive(watchdog));
}

/// A lock-delay is meant for a holder that died: a release would spare it.
#[test]
fn a_lock_with_a_lock_delay_is_not_released_for_a_wrapper_that_was_killed() {
    let server = Server::start();
    let job = "echo $$ >> pids; exec sleep 1000";
    let delayed = ["job", "--ttl", "1h", "--lock-delay", "1s"];
    let run = server.run(&[&delayed[..], &["--", "sh", "-c", job]].concat());
    let pids = server.pids("pids", 1);
    let watchdog = run.watchdog();
    run.send(Signal::KILL);
    until_dead(&[pids[0], watchdog]);
    assert!(!server.show("job")["holder"].is_null());
}
