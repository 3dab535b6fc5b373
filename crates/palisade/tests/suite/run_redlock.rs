//! `palisade run` with Redlock: the job runs without a token, and all other commands say why they cannot run.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::common::{Run, is_alive, json, palisade, status, text, until, until_dead};
use palisade_testbed::Redis;

/// Five primaries, and a folder for the jobs' files.
struct Primaries {
    servers: Vec<Redis>,
    dir: tempfile::TempDir,
}

impl Primaries {
    fn start() -> Primaries {
        Primaries {
            servers: (0..5).map(|_| Redis::start(&[])).collect(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn palisade(&self, arguments: &[&str]) -> Command {
        let hosts: Vec<_> = self
            .servers
            .iter()
            .map(|one| one.address().to_string())
            .collect();
        let mut command = palisade();
        command
            .args(arguments)
            .env(
                "PALISADE_AUTHORITY",
                format!("redlock://{}", hosts.join(",")),
            )
            .current_dir(self.dir.path());
        command
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A job that writes its process id to a file and keeps running.
    fn holder(&self) -> (Run, i32) {
        let stay = "echo $$ > pid.part && mv pid.part pid; exec sleep 600";
        let arguments = ["run", "job", "--ttl", "3s", "--wait", "20s", "--json"];
        let mut command = self.palisade(&arguments);
        let run = Run::start(command.args(["--on-lost", "env > lost", "--", "sh", "-c", stay]));
        until("the job to run", || self.file("pid").exists());
        let pid = fs::read_to_string(self.file("pid")).unwrap();
        (run, pid.trim().parse().unwrap())
    }
}

#[test]
fn the_job_runs_without_a_token_and_with_a_warning() {
    let primaries = Primaries::start();
    let mut command = primaries.palisade(&["run", "job", "--", "sh", "-c", "env; exit 7"]);
    // Variables of an outer lock.
    command.env("PALISADE_FENCING_TOKEN", "34");
    command.env("PALISADE_AUTHORITY_ID", "other");
    let output = command.output().unwrap();
    assert_eq!(status(&output), 7, "{}", text(&output.stderr));
    let environment = text(&output.stdout);
    for name in [
        "PALISADE_LOCK=job",
        "PALISADE_AUTHORITY=redlock://",
        "PALISADE_DEADLINE_MS=",
    ] {
        assert!(environment.contains(name), "{name} in {environment}");
    }
    for name in ["FENCING_TOKEN", "AUTHORITY_ID", "LOCK_TOKEN"] {
        assert!(
            !environment.contains(&format!("PALISADE_{name}")),
            "{environment}"
        );
    }
    let warning = text(&output.stderr);
    assert!(
        warning.contains("WARNING") && warning.contains("no fencing tokens"),
        "{warning}"
    );
}

#[test]
fn a_second_client_is_denied_or_waits_and_two_primaries_may_be_down() {
    let primaries = Primaries::start();
    primaries.servers[0].kill();
    primaries.servers[1].kill();
    let (holder, pid) = primaries.holder();
    let denied = primaries
        .palisade(&["run", "job", "-n", "--", "touch", "ran"])
        .output()
        .unwrap();
    assert_eq!(status(&denied), 124, "{}", text(&denied.stderr));
    assert!(text(&denied.stderr).contains("job is held"));
    assert!(!primaries.file("ran").exists());
    let waiter = Run::start(&mut primaries.palisade(&["run", "job", "--", "touch", "ran"]));
    assert!(is_alive(pid));
    crate::common::send(holder.pid(), rustix::process::Signal::TERM);
    assert_eq!(status(&holder.end()), 128 + 15);
    let waited = waiter.end();
    assert_eq!(status(&waited), 0, "{}", text(&waited.stderr));
    assert!(primaries.file("ran").exists());
}

#[test]
fn when_most_primaries_are_lost_the_job_is_ended_and_the_hook_runs_without_a_token() {
    let primaries = Primaries::start();
    let (run, pid) = primaries.holder();
    for server in &primaries.servers[..3] {
        server.kill();
    }
    until_dead(&[pid]);
    let output = run.end();
    assert_eq!(status(&output), 123, "{}", text(&output.stderr));
    let said = text(&output.stderr);
    let last = said.lines().last().unwrap();
    assert_eq!(json(last.as_bytes())["error"]["code"], "expired");
    let lost = fs::read_to_string(primaries.file("lost")).unwrap();
    assert!(lost.contains("PALISADE_LOST_REASON=expired"), "{lost}");
    assert!(!lost.contains("PALISADE_FENCING_TOKEN"), "{lost}");
}

#[test]
fn other_commands_say_why_they_cannot_run() {
    let primaries = Primaries::start();
    for arguments in [
        &["acquire", "job"][..],
        &["show", "job"],
        &["ls"],
        &["watch"],
        &["break", "job", "--token", "1", "--reason", "test"],
    ] {
        let output = primaries.palisade(arguments).output().unwrap();
        assert_eq!(status(&output), 125, "{arguments:?}");
        let why = text(&output.stderr);
        assert!(why.contains("supports `palisade run` only"), "{why}");
    }
    for arguments in [["release", "job"], ["renew", "job"]] {
        let mut command = primaries.palisade(&arguments);
        command.env("PALISADE_LOCK_TOKEN", "00".repeat(16));
        let output = command.output().unwrap();
        assert_eq!(status(&output), 125, "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("no fencing token that names a grant"));
    }
    let mut command = primaries.palisade(&["run", "job", "--client-id", "me", "--", "true"]);
    let output = command.output().unwrap();
    assert_eq!(status(&output), 125);
    assert!(text(&output.stderr).contains("neither a client id nor metadata"));
}
