//! `palisade run` while the lease holds: the job's status, environment, input, signals and leftover processes.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use crate::common::{
    PRINT_LIVE_PIDS, Run, STUBBORN, STUBBORN_PIDS, Server, is_alive, living, status, text, until,
};
use rustix::process::Signal;

#[test]
fn the_status_is_the_commands() {
    let server = Server::start();
    for code in [0, 1, 42, 255] {
        let output = server.output(&["run", "job", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(
            (status(&output), text(&output.stderr)),
            (code, String::new())
        );
    }
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        let output = server.output(&[
            "run",
            "job",
            "--",
            "sh",
            "-c",
            &format!("kill -{signal} $$"),
        ]);
        assert_eq!(status(&output), code, "{signal}");
    }
}

#[test]
fn a_command_that_cannot_be_executed_has_the_status_that_env_uses() {
    let server = Server::start();
    fs::write(server.file("plain"), "no program\n").unwrap();
    for (program, code) in [
        ("./plain", 126),
        ("/", 126),
        ("./nowhere", 127),
        ("no-such-command-anywhere", 127),
    ] {
        let output = server.output(&["run", "job", "--", program]);
        assert_eq!(status(&output), code, "{program}");
        assert!(text(&output.stderr).contains(program));
    }
    assert!(
        server.show("job")["holder"].is_null(),
        "and the lock is released"
    );
}

#[test]
fn the_environment_is_as_documented_and_without_the_secret() {
    let server = Server::start();
    let mut command = server.palisade(&["run", "my job", "--ttl", "10s", "--", "env"]);
    command.env("PALISADE_LOCK_TOKEN", "00112233445566778899aabbccddeeff");
    let before = crate::common::now();
    let output = command.output().unwrap();
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    let environment = text(&output.stdout);
    let value = |name: &str| {
        environment
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}=")))
    };
    assert_eq!(value("PALISADE_LOCK"), Some("my job"));
    assert_eq!(value("PALISADE_FENCING_TOKEN"), Some("1"));
    assert_eq!(value("PALISADE_AUTHORITY"), Some(&*server.url));
    assert_eq!(value("PALISADE_AUTHORITY_ID").map(str::len), Some(32));
    assert_eq!(value("PALISADE_LOCK_TOKEN"), None);
    let deadline: u64 = value("PALISADE_DEADLINE_MS").unwrap().parse().unwrap();
    let earliest = before.as_nanos() / 1_000_000;
    assert!(
        deadline > earliest + 9_000,
        "1 % of drift and 100 ms of margin come off"
    );
    assert!(
        deadline < crate::common::now().as_nanos() / 1_000_000 + 10_000,
        "counted from before the request"
    );
}

#[test]
fn the_command_reads_standard_input() {
    let server = Server::start();
    let mut command = server.palisade(&["run", "job", "--", "cat"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"as it was\n")
        .unwrap();
    assert_eq!(
        text(&child.wait_with_output().unwrap().stdout),
        "as it was\n"
    );
}

#[test]
fn the_next_run_gets_the_lock_with_a_higher_token() {
    let server = Server::start();
    for expected in 1..=3 {
        let output = server.output(&[
            "run",
            "-n",
            "job",
            "--",
            "sh",
            "-c",
            "echo $PALISADE_FENCING_TOKEN",
        ]);
        assert_eq!(
            text(&output.stdout),
            format!("{expected}\n"),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn a_lease_shorter_than_the_job_is_renewed() {
    let server = Server::start();
    let run = server.run(&[
        "job",
        "--ttl",
        "1500ms",
        "--",
        "sh",
        "-c",
        "while ! [ -e stop ]; do sleep 0.01; done; exit 7",
    ]);
    until("the lock to be held", || {
        !server.show("job")["holder"].is_null()
    });
    // The control: twice in this time, a lease of this length that nobody renews comes to its end.
    for _ in 0..2 {
        let control = server.output(&["acquire", "control", "--ttl", "1500ms"]);
        assert_eq!(status(&control), 0, "{}", text(&control.stderr));
        until("the end of a lease", || {
            server.show("control")["holder"].is_null()
        });
    }
    fs::write(server.file("stop"), "").unwrap();
    assert_eq!(status(&run.end()), 7);
}

#[test]
fn leftover_processes_are_dead_before_the_lock_is_released() {
    let server = Server::start();
    // The command ends; three other processes that ignore SIGTERM would go on, one of them outside the group.
    let leaving = STUBBORN.replace(
        "while :; do sleep 1000; done",
        "while ! [ -e stop ]; do sleep 0.01; done; exit 5",
    );
    let first = server.run(&["job", "--grace", "300ms", "--", "sh", "-c", &leaving]);
    let pids = server.pids("pids", STUBBORN_PIDS);
    let second = server.run(&["job", "--", "sh", "-c", PRINT_LIVE_PIDS]);
    until("the second to wait", || server.show("job")["waiters"] == 1);
    assert_eq!(
        living(&pids).len(),
        STUBBORN_PIDS,
        "control: the check finds live processes"
    );
    fs::write(server.file("stop"), "").unwrap();
    let second = second.end();
    assert_eq!(
        (status(&second), text(&second.stdout)),
        (0, String::new()),
        "no process was alive when it was granted"
    );
    assert_eq!(status(&first.end()), 5, "leftovers are no loss");
    assert_eq!(living(&pids), [0; 0]);
}

/// Writes down which signals arrive.
const LISTENER: &str = r#"
    for signal in TERM INT HUP QUIT USR1 USR2 WINCH; do trap "echo $signal >> heard" $signal; done
    echo $$ >> pids
    while ! [ -e stop ]; do sleep 0.01; done
"#;

#[test]
fn signals_are_passed_on() {
    let server = Server::start();
    let run = server.run(&["job", "--", "sh", "-c", LISTENER]);
    server.pids("pids", 1);
    let signals = [
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("WINCH", Signal::WINCH),
        ("HUP", Signal::HUP),
        ("QUIT", Signal::QUIT),
        ("INT", Signal::INT),
        ("TERM", Signal::TERM),
    ];
    for (name, signal) in signals {
        run.send(signal);
        let heard = || fs::read_to_string(server.file("heard")).unwrap_or_default();
        until(name, || heard().lines().any(|line| line == name));
    }
    fs::write(server.file("stop"), "").unwrap();
    assert_eq!(status(&run.end()), 0, "the job decided to go on");
}

#[test]
fn stop_and_continue_are_passed_on() {
    let server = Server::start();
    let run = server.run(&[
        "job",
        "--ttl",
        "1h",
        "--",
        "sh",
        "-c",
        "echo $$ >> pids; exec sleep 1000",
    ]);
    let job = server.pids("pids", 1)[0];
    run.send(Signal::TSTP);
    until("both processes to stop", || {
        crate::common::is_stopped(job) && crate::common::is_stopped(run.pid())
    });
    run.send(Signal::CONT);
    until("both processes to continue", || {
        !crate::common::is_stopped(job) && !crate::common::is_stopped(run.pid())
    });
    run.send(Signal::TERM);
    assert_eq!(status(&run.end()), 143);
}

#[test]
fn a_command_that_ignores_terminate_keeps_its_lock() {
    let server = Server::start();
    let run = server.run(&["job", "--", "sh", "-c", STUBBORN]);
    let pids = server.pids("pids", STUBBORN_PIDS);
    run.send(Signal::TERM);
    run.send(Signal::TERM);
    assert!(!server.show("job")["holder"].is_null());
    assert_eq!(living(&pids).len(), STUBBORN_PIDS);
    drop(run);
    until("the group to die with palisade", || !is_alive(pids[0]));
    // palisade was killed, so the process that left the group is out of reach, as documented.
    for pid in living(&pids) {
        crate::common::send(pid, Signal::KILL);
    }
}

#[test]
fn a_signal_while_waiting_leaves_the_queue() {
    let server = Server::start();
    let holder = server.run(&["job", "--", "sh", "-c", "echo $$ >> pids; exec sleep 1000"]);
    server.pids("pids", 1);
    let waiting = Run::start(&mut server.palisade(&["run", "job", "--", "touch", "ran"]));
    until("the second to wait", || server.show("job")["waiters"] == 1);
    waiting.send(Signal::TERM);
    assert_eq!(status(&waiting.end()), 143);
    until("the queue to be empty", || {
        server.show("job")["waiters"] == 0
    });
    assert!(!server.file("ran").exists());
    drop(holder);
}

#[test]
fn jobs_run_together_under_a_shared_lock_and_know_their_grants() {
    let server = Server::start();
    let inner = "\"$PALISADE\" run job --shared -n -- sh -c 'echo $PALISADE_FENCING_TOKEN $PALISADE_GRANT_ID'";
    let script = format!(
        "echo $PALISADE_FENCING_TOKEN $PALISADE_GRANT_ID; {inner}; \"$PALISADE\" run job -n -E 7 -- true"
    );
    let mut command = server.palisade(&["run", "job", "--shared", "--", "sh", "-c", &script]);
    command.env("PALISADE", env!("CARGO_BIN_EXE_palisade"));
    let output = command.output().unwrap();
    assert_eq!(
        text(&output.stdout),
        "1 1\n1 2\n",
        "{}",
        text(&output.stderr)
    );
    assert_eq!(status(&output), 7, "a writer is kept out");
    assert!(
        server.show("job")["holder"].is_null(),
        "and the lock is released"
    );
}

#[test]
fn a_job_does_not_run_twice_within_the_time_it_asked_for() {
    let server = Server::start();
    let once = ["run", "job", "-n", "--at-least-for", "1h", "--", "true"];
    let first = server.palisade(&once).output().unwrap();
    assert_eq!(first.status.code(), Some(0), "{first:?}");
    let second = server.palisade(&once).output().unwrap();
    assert_eq!(second.status.code(), Some(124), "{second:?}");
    // Control: without it the job runs again at once.
    for _ in 0..2 {
        let plain = ["run", "other", "-n", "--", "true"];
        let plain = server.palisade(&plain).output().unwrap();
        assert_eq!(plain.status.code(), Some(0), "{plain:?}");
    }
}

#[test]
fn after_a_job_that_lost_its_lock_nobody_runs_until_the_lock_delay_is_over() {
    let server = Server::start();
    let taken =
        "\"$PALISADE\" break job --token $PALISADE_FENCING_TOKEN --reason test; exec sleep 1000";
    let lose = |delay: &str| {
        let mut job = server.palisade(&[
            "run",
            "job",
            "-n",
            "--ttl",
            "2s",
            "--lock-delay",
            delay,
            "--",
            "sh",
            "-c",
            taken,
        ]);
        job.env("PALISADE", env!("CARGO_BIN_EXE_palisade"));
        status(&job.output().unwrap())
    };
    let next = || {
        server
            .palisade(&["run", "job", "-n", "--", "true"])
            .output()
    };
    // Control: without it the next job runs at once.
    assert_eq!(lose("0s"), 123);
    assert_eq!(status(&next().unwrap()), 0);
    assert_eq!(lose("60s"), 123);
    let closed = next().unwrap();
    assert_eq!(status(&closed), 124, "{closed:?}");
    assert!(text(&closed.stderr).contains("closed for"), "{closed:?}");
}

#[test]
fn as_many_jobs_run_together_as_there_are_permits_and_know_their_slots() {
    let server = Server::start();
    let inner = "\"$PALISADE\" run job --permits 1/3 -n -- sh -c 'echo $PALISADE_FENCING_TOKEN $PALISADE_SLOTS'";
    let script = format!(
        "echo $PALISADE_FENCING_TOKEN $PALISADE_SLOTS; {inner}; \"$PALISADE\" run job --permits 2/3 -n -E 7 -- true"
    );
    let mut command =
        server.palisade(&["run", "job", "--permits", "2/3", "--", "sh", "-c", &script]);
    command.env("PALISADE", env!("CARGO_BIN_EXE_palisade"));
    let output = command.output().unwrap();
    assert_eq!(
        text(&output.stdout),
        "1 1,2\n2 3\n",
        "{}",
        text(&output.stderr)
    );
    assert_eq!(
        status(&output),
        7,
        "one of three is free, and two are wanted"
    );
    assert!(
        server.show("job")["holder"].is_null(),
        "and the permits are free"
    );
}

/// A stopped process handles no signal, not even one that would end it.
#[test]
fn a_stopped_job_ends_with_each_ending_signal() {
    let signals = [
        (Signal::TERM, 143),
        (Signal::INT, 130),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ];
    for (signal, code) in signals {
        let server = Server::start();
        let job = "ulimit -c 0; echo $$ >> pids; exec sleep 1000";
        let run = server.run(&["job", "--ttl", "1h", "--", "sh", "-c", job]);
        let job = server.pids("pids", 1)[0];
        crate::common::stop(job);
        run.send(signal);
        assert_eq!(status(&run.end()), code, "{signal:?}");
    }
}

#[test]
fn a_command_that_ignores_terminate_is_killed_when_its_time_is_over() {
    let server = Server::start();
    let limit = ["job", "--ttl", "1h", "--kill-after", "300ms"];
    let run = server.run(&[&limit[..], &["--", "sh", "-c", STUBBORN]].concat());
    let pids = server.pids("pids", STUBBORN_PIDS);
    run.send(Signal::TERM);
    let output = run.end();
    let said = text(&output.stderr);
    assert_eq!(status(&output), 137, "{said}");
    assert!(said.contains("did not end within 300 ms"), "{said}");
    assert_eq!(living(&pids), [0; 0]);
    assert!(server.show("job")["holder"].is_null(), "it is released");
}

#[test]
fn what_a_command_leaves_behind_is_named_and_ended() {
    let server = Server::start();
    let daemon = "setsid sh -c 'echo $$ >> pids; exec sleep 1000' &";
    let job = format!("{daemon} while ! [ -s pids ]; do sleep 0.01; done; exit 4");
    let output = server.output(&["run", "job", "--", "sh", "-c", &job]);
    let said = text(&output.stderr);
    assert_eq!(status(&output), 4);
    let pid = server.pids("pids", 1)[0];
    assert!(said.contains(&format!("(process {pid})")), "{said}");
    assert!(!is_alive(pid));
    fs::remove_file(server.file("pids")).unwrap();
    let output = server.output(&["run", "job", "--quiet", "--", "sh", "-c", &job]);
    assert_eq!(text(&output.stderr), "", "control: not with --quiet");
}
