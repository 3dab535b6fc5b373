//! The comparison on a tiny scale with every real server: the report has its form, every token was checked, nothing
//! failed. Speeds do not matter here.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const WORKLOADS: [&str; 5] = [
    "pairs-1",
    "pairs-16x64",
    "renewals-16x64",
    "hand-off-2-hold-5",
    "open-5000",
];

const SYSTEMS: [&str; 13] = [
    "palisade",
    "palisade-socket",
    "palisade-3",
    "redis-always",
    "redis-socket",
    "redis-everysec",
    "redis-none",
    "etcd",
    "etcd-3",
    "zookeeper",
    "postgres",
    "nats",
    "echo",
];

/// The folder for this test's servers and reports.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn peers(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_palisade-peers"))
        .arg("peers")
        .args([
            "--rounds",
            "1",
            "--millis",
            "40",
            "--warm-up",
            "20",
            "--report",
        ])
        .arg(folder)
        .arg("--data")
        .arg(folder.join("data"))
        .args(arguments)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn report(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("peers.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn every_workload_on_every_system_is_in_the_report() {
    let folder = folder("rates");
    let output = peers(&folder, &["--workloads", &WORKLOADS.join(",")]);
    assert!(output.status.success(), "{}", said(&output));
    let report = report(&folder);
    assert_eq!(report["failures"], Value::Array(Vec::new()));
    assert!(report["machine"].as_str().unwrap().contains("fdatasync"));
    let rows = report["rows"].as_array().unwrap();
    for workload in WORKLOADS {
        for system in SYSTEMS {
            let row = rows
                .iter()
                .find(|row| row["workload"] == workload && row["system"] == system);
            // ZooKeeper keeps sessions alive, not locks; the echo knows neither locks nor pipelines.
            let not_offered = match system {
                "zookeeper" => workload == "renewals-16x64",
                "echo" => workload != "pairs-1",
                _ => false,
            };
            if not_offered {
                assert!(row.is_none());
                continue;
            }
            let row = row.unwrap_or_else(|| panic!("{workload} on {system} is missing"));
            for figure in ["per_second", "p50_us", "p99_us", "p999_us"] {
                assert!(row[figure]["median"].as_f64() > Some(0.0), "{row}");
                assert_eq!(row[figure]["rounds"].as_array().unwrap().len(), 1);
            }
            assert_eq!(row["tokens"], "checked");
            let ratio = row["palisade_over_this"]["per_second"].as_f64();
            assert!(ratio > Some(0.0), "{row}");
            assert!(system != "palisade" || ratio == Some(1.0));
        }
    }
    let page = std::fs::read_to_string(folder.join("peers.md")).unwrap();
    assert!(page.contains("16 connections × 64 in flight") && page.contains("ZooKeeper"));
    let picture = std::fs::read_to_string(folder.join("peers.svg")).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert!(!picture.contains("NaN") && !picture.contains("inf"));
}

#[test]
fn held_locks_are_measured_and_survive() {
    let folder = folder("held");
    let systems = "palisade,redis-always,postgres";
    let few = [
        "--million",
        "--locks",
        "3000",
        "--no-rates",
        "--systems",
        systems,
    ];
    let output = peers(&folder, &few);
    assert!(output.status.success(), "{}", said(&output));
    assert!(!folder.join("peers.svg").exists(), "no rate to draw");
    let report = report(&folder);
    let held = report["held"].as_array().unwrap();
    assert_eq!(held.len(), 3);
    for row in held {
        for figure in [
            "fill_per_second",
            "renewals_per_second",
            "restart_at_work_ms",
            "restart_at_rest_ms",
        ] {
            assert!(row[figure].as_f64() > Some(0.0), "{row}");
        }
        // PostgreSQL counts per lock, so another lock's first token says nothing.
        assert!(
            row["system"] == "postgres" || row["token_rose"] == true,
            "{row}"
        );
    }
}

#[test]
fn an_unknown_name_is_reported() {
    let output = peers(&folder("none"), &["--systems", "oracle"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("`oracle`"), "{}", said(&output));
    let output = peers(&folder("none"), &["--locks", "1"]);
    assert!(
        said(&output).contains("100..=10000000"),
        "{}",
        said(&output)
    );
}

/// No operation fails that its caller repeats for a while. The control is callers that give up after 10 ms: another node
/// leads later than that.
#[test]
fn members_come_and_go_under_load_and_nothing_fails() {
    let members = |patience: &str| {
        Command::new(env!("CARGO_BIN_EXE_palisade-peers"))
            .args(["members", "--loops", "8", "--seconds", "1", "--json"])
            .args(["--patience", patience])
            .output()
            .unwrap()
    };
    let failed = |output: &Output| {
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let phases = report["phases"].as_array().unwrap().clone();
        assert_eq!(phases.len(), 7);
        for phase in &phases {
            assert!(phase["operations"].as_u64() > Some(0), "{phase}");
        }
        let failed: Vec<u64> = phases
            .iter()
            .map(|phase| phase["failed"].as_u64().unwrap())
            .collect();
        (failed, report)
    };
    // A machine that does much else may take long to elect a leader.
    let patient = members("60000");
    assert!(patient.status.success(), "{}", said(&patient));
    let (failures, report) = failed(&patient);
    assert_eq!(failures, [0; 7], "{report}");
    let control = members("10");
    assert!(!control.status.success());
    let (failures, report) = failed(&control);
    assert!(failures[5] > 0, "the leader is removed: {report}");
}

/// Each kill is followed by a grant with a higher token, which another node gives, and so later than one by a leader that
/// lives; those are the control.
#[test]
fn a_killed_leader_is_followed_by_a_grant() {
    let failover = Command::new(env!("CARGO_BIN_EXE_palisade-peers"))
        // Other tests run beside this one: however long it waited, the machine would not be idle.
        .args(["failover", "--times", "3", "--held", "100", "--json"])
        .args(["--rest", "0"])
        .output()
        .unwrap();
    assert!(failover.status.success(), "{}", said(&failover));
    let report: Value = serde_json::from_slice(&failover.stdout).unwrap();
    let took = report["took_ms"].as_array().unwrap();
    assert_eq!(took.len(), 3, "{report}");
    let steady = report["steady_ms"].as_f64();
    assert!(steady.is_some(), "{report}");
    assert!(took.iter().all(|ms| ms.as_f64() > steady), "{report}");
}
