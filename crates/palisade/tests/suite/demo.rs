//! `palisade demo` with its real processes. The first two acts are the control arms: they must lose an acknowledged
//! update, or the third one proves nothing.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};

fn demo(out: &Path, ttl: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command
        .arg("demo")
        .arg("--out")
        .arg(out)
        .args(["--ttl", ttl])
        .args(more);
    command
}

/// The act with this name.
fn act<'a>(shown: &'a Value, name: &str) -> &'a Value {
    let acts = shown["acts"].as_array().unwrap();
    acts.iter()
        .find(|act| act["name"] == name)
        .unwrap_or_else(|| panic!("no act {name}"))
}

/// The clients of these updates.
fn clients(updates: &Value) -> Vec<&str> {
    updates
        .as_array()
        .unwrap()
        .iter()
        .map(|update| update["client"].as_str().unwrap())
        .collect()
}

/// The write of a client, with all its records.
fn write<'a>(act: &'a Value, client: &str) -> &'a Value {
    let mut events = act["events"].as_array().unwrap().iter();
    events
        .find(|event| event["operation"] == "write" && event["client"] == client)
        .unwrap()
}

/// Whether the process exists and is one of ours: ids are reused.
fn lives(pid: u64) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments
        .split(|byte| *byte == 0)
        .any(|word| word.ends_with(b"palisade"))
}

#[test]
fn of_the_three_acts_only_the_claim_act_loses_nothing() {
    let out = tempfile::tempdir().unwrap();
    let ended = demo(out.path(), "1s", &["--json"]).output().unwrap();
    let complaint = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}: {complaint}", ended.status);
    let shown: Value = serde_json::from_slice(&ended.stdout).unwrap();

    let unfenced = act(&shown, "unfenced");
    assert_eq!(clients(&unfenced["verdict"]["acknowledged"]), ["A", "B"]);
    assert_eq!(
        clients(&unfenced["lost"]),
        ["B"],
        "the control arm must fail"
    );
    assert_eq!(unfenced["verdict"]["content"], json!(["A"]));

    let textbook = act(&shown, "textbook");
    assert_eq!(clients(&textbook["verdict"]["acknowledged"]), ["A", "B"]);
    assert_eq!(
        clients(&textbook["lost"]),
        ["A"],
        "the control arm must fail"
    );
    assert_eq!(write(textbook, "A")["verdict"], "admitted");

    let claim = act(&shown, "claim");
    assert_eq!(clients(&claim["verdict"]["acknowledged"]), ["B"]);
    assert_eq!(clients(&claim["verdict"]["rejected"]), ["A"]);
    assert_eq!(
        (clients(&claim["lost"]), &claim["verdict"]["content"]),
        (vec![], &json!(["B"]))
    );
    let late = write(claim, "A");
    assert_eq!(
        (&late["token"], &late["verdict"]),
        (&json!(1), &json!({ "rejected": 2 }))
    );

    for picture in ["html", "svg"] {
        let path = shown[picture].as_str().unwrap();
        assert_eq!(
            Path::new(path),
            out.path().join(format!("palisade-demo.{picture}"))
        );
        let text = fs::read_to_string(path).unwrap();
        for title in ["Unfenced: ", "Textbook fence: ", "Claim fence: "] {
            assert!(text.contains(title), "{picture} lacks {title}");
        }
    }

    let processes = shown["processes"].as_array().unwrap();
    assert!(
        processes.len() >= 12,
        "two servers and two workers an act: {processes:?}"
    );
    let left: Vec<&Value> = processes
        .iter()
        .filter(|process| lives(process[1].as_u64().unwrap()))
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    assert!(!Path::new(shown["folder"].as_str().unwrap()).exists());
}

/// Starts the demo and reads its output until worker A is stopped; returns the demo and its processes so far.
fn until_a_is_stopped(out: &Path) -> (Child, Vec<OwnedFd>) {
    let mut child = demo(out, "1s", &["--act", "claim"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let stopped = lines
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.contains("SIGSTOP"));
    assert!(stopped.is_some(), "worker A was never stopped");
    // Keep the reader: without it the demo could not print.
    std::thread::spawn(move || lines.count());
    let me = child.id();
    let children = fs::read_to_string(format!("/proc/{me}/task/{me}/children")).unwrap();
    let open = |pid: &str| {
        pidfd_open(
            Pid::from_raw(pid.parse().unwrap()).unwrap(),
            PidfdFlags::empty(),
        )
    };
    let started: Vec<OwnedFd> = children
        .split_whitespace()
        .filter_map(|pid| open(pid).ok())
        .collect();
    assert!(started.len() >= 3, "two servers and a worker: {children}");
    (child, started)
}

fn assert_all_end(started: &[OwnedFd]) {
    let ten_seconds = Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    for process in started {
        let mut ends = [PollFd::new(process, PollFlags::IN)];
        assert_eq!(
            poll(&mut ends, Some(&ten_seconds)).unwrap(),
            1,
            "a process was left behind"
        );
    }
}

#[test]
fn an_interrupt_ends_everything_and_removes_the_folder() {
    let out = tempfile::tempdir().unwrap();
    let (mut child, started) = until_a_is_stopped(out.path());
    let pid = Pid::from_child(&child);
    let own = format!("palisade-demo-{}-", child.id());
    let ours = || {
        let folders = fs::read_dir(std::env::temp_dir()).unwrap();
        folders
            .filter(|entry| {
                entry
                    .as_ref()
                    .unwrap()
                    .file_name()
                    .to_string_lossy()
                    .starts_with(&own)
            })
            .count()
    };
    assert_eq!(ours(), 1);
    kill_process(pid, Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_all_end(&started);
    assert_eq!(ours(), 0);
    assert_eq!(
        fs::read_dir(out.path()).unwrap().count(),
        0,
        "no picture of an interrupted act"
    );
}

#[test]
fn a_killed_demo_leaves_no_process_behind() {
    let out = tempfile::tempdir().unwrap();
    let (mut child, started) = until_a_is_stopped(out.path());
    let own = format!("palisade-demo-{}-", child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_all_end(&started);
    // A killed demo cannot remove its folder.
    let folders = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let left = folders.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own));
    let left: Vec<_> = left.map(|entry| entry.path()).collect();
    assert_eq!(left.len(), 1);
    fs::remove_dir_all(&left[0]).unwrap();
}

#[test]
fn a_ttl_out_of_range_is_refused_with_the_range() {
    let out = tempfile::tempdir().unwrap();
    let ended = demo(out.path(), "100ms", &[]).output().unwrap();
    let complaint = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success() && complaint.contains("200ms"),
        "{complaint}"
    );
}
