//! A machine freezes while its nightly job runs, and wakes up after another machine has finished the report:
//! a real lock server, real `palisade run`, real signals.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const FIRST: &str = "store-1,120\nstore-2,80\n";
const REST: &str = "store-3,45\nstore-4,300\nstore-5,12\n";

/// Returns the program `palisade` of this build, and builds it if only this crate is tested.
fn palisade() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let binary = here.parent().unwrap().parent().unwrap().join("palisade");
    if !binary.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--release", "-p", "palisade"]);
        assert!(build.status().unwrap().success(), "palisade does not build");
    }
    binary
}

struct Server {
    process: Child,
    url: String,
    _data: TempDir,
}

impl Server {
    fn start() -> Server {
        let data = tempfile::tempdir().unwrap();
        let mut process = Command::new(palisade())
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data"])
            .arg(data.path().join("data"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let line = next_line(&mut BufReader::new(process.stdout.take().unwrap()));
        let started: serde_json::Value = serde_json::from_str(&line).unwrap();
        Server {
            process,
            url: started["url"].as_str().unwrap().to_owned(),
            _data: data,
        }
    }

    /// Starts the job under `palisade run`.
    fn run(&self, reports: &Path, unfenced: bool) -> Child {
        let mut command = Command::new(palisade());
        command
            .args(["run", "nightly", "--ttl", "3s", "--wait", "60s"])
            .args(["--authority", &self.url, "--"])
            .arg(env!("CARGO_BIN_EXE_nightly-job"))
            .args(unfenced.then_some("--danger-unfenced"))
            .arg(reports);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn next_line(out: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    assert!(out.read_line(&mut line).unwrap() > 0, "it ended early");
    line
}

/// All descendants of a process, from /proc: the job and its watchdog processes.
fn descendants(parent: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap() {
        let name = entry.unwrap().file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit(") ").next().unwrap_or_default();
        let its_parent = rest.split(' ').nth(1).and_then(|field| field.parse().ok());
        if its_parent == Some(parent) {
            found.push(pid);
            found.extend(descendants(pid));
        }
    }
    found
}

fn is_job(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim() == "nightly-job"
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // A process that has ended meanwhile needs no signal.
    let _ = kill_process(pid, signal);
}

/// Whether a process has ended, including one that has not been waited for.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .unwrap_or_default()
        .starts_with('Z')
        || stat.is_empty()
}

/// Polls for a minute at most.
#[expect(
    clippy::disallowed_methods,
    reason = "only a parent can wait for a process"
)]
fn await_end(pid: u32) {
    for _ in 0..6_000 {
        if has_ended(pid) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10)); // real time: another process has to run
    }
    panic!("the job does not end");
}

struct Observed {
    report: String,
    first: ExitStatus,
    first_stderr: String,
    second: Output,
}

fn run(unfenced: bool) -> Observed {
    let (server, reports) = (Server::start(), tempfile::tempdir().unwrap());

    // The first machine writes two lines and freezes: the job, palisade, and the watchdog processes of both.
    let mut first = server.run(reports.path(), unfenced);
    let mut sales = first.stdin.take().unwrap();
    let mut output = BufReader::new(first.stdout.take().unwrap());
    assert_eq!(next_line(&mut output), "there are 0 lines\n");
    sales.write_all(FIRST.as_bytes()).unwrap();
    assert_eq!(next_line(&mut output), "wrote store-1,120\n");
    assert_eq!(next_line(&mut output), "wrote store-2,80\n");
    signal(first.id(), Signal::STOP);
    let frozen = descendants(first.id());
    frozen.iter().for_each(|pid| signal(*pid, Signal::STOP));

    // Its lease expires; the second machine gets the lock and finishes the report.
    let mut second = server.run(reports.path(), unfenced);
    let all = format!("{FIRST}{REST}");
    let input = second.stdin.take().unwrap().write_all(all.as_bytes());
    input.unwrap();
    let second = second.wait_with_output().unwrap();

    // The first machine wakes up, and its job is the first to be scheduled.
    let job = frozen.iter().copied().find(|pid| is_job(*pid)).unwrap();
    sales.write_all(REST.as_bytes()).unwrap();
    drop(sales);
    signal(job, Signal::CONT);
    await_end(job);
    frozen.iter().for_each(|pid| signal(*pid, Signal::CONT));
    signal(first.id(), Signal::CONT);
    let ended = first.wait_with_output().unwrap();
    Observed {
        report: fs::read_to_string(reports.path().join("report.csv")).unwrap(),
        first: ended.status,
        first_stderr: String::from_utf8(ended.stderr).unwrap(),
        second,
    }
}

#[test]
fn without_the_fence_some_stores_are_in_the_report_twice() {
    let seen = run(true);
    assert!(seen.second.status.success());
    assert_eq!(seen.report, format!("{FIRST}{REST}{REST}"));
}

#[test]
fn with_the_fence_the_late_line_is_refused_and_every_store_is_there_once() {
    let seen = run(false);
    assert!(seen.second.status.success(), "{:?}", seen.second);
    assert_eq!(seen.report, format!("{FIRST}{REST}"));
    let output = &seen.first_stderr;
    assert!(output.contains("token 1 is stale: 1 < 2"), "{output}");
    assert!(output.contains("This run had written 2 lines"), "{output}");
    assert!(!seen.first.success());
}

#[test]
fn without_a_token_the_job_explains_how_to_start_it() {
    let reports = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nightly-job"))
        .arg(reports.path())
        .env_remove("PALISADE_FENCING_TOKEN")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let output = String::from_utf8(output.stderr).unwrap();
    assert!(output.contains("palisade run LOCK"), "{output}");
    assert_eq!(fs::read_dir(reports.path()).unwrap().count(), 0);
}
