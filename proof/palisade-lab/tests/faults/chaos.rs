//! `palisade-lab chaos` with real processes, bounded: the claim fence loses nothing under any fault, and the control
//! arms lose as much as they must.
//!
//! `PALISADE_CHAOS_ADDS=10000` runs the full battery: so many acknowledged adds in each arm under each nemesis.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::porcupine::{judge, judge_illegal};

/// The output of a run of the lab, and its report.
pub(crate) struct Ran {
    output: Output,
    report: Value,
    page: String,
}

pub(crate) fn chaos(arguments: &[&str]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let lab = Path::new(env!("CARGO_BIN_EXE_palisade-lab"));
    assert!(
        lab.with_file_name("palisade").exists(),
        "the program under test is missing: cargo build --release -p palisade"
    );
    let mut command = Command::new(lab);
    command.arg("chaos").args(arguments);
    let output = command.arg("--report").arg(folder.path()).output().unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    Ran {
        report: serde_json::from_str(&read("chaos.json")).unwrap_or_default(),
        page: read("chaos.html"),
        output,
    }
}

impl Ran {
    pub(crate) fn printed(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        text(&self.output.stdout) + &text(&self.output.stderr)
    }

    pub(crate) fn arm(&self, run: usize, arm: &str) -> &Value {
        let arms = self.report["runs"][run]["arms"].as_array();
        let found = arms.into_iter().flatten().find(|found| found["arm"] == arm);
        found.unwrap_or_else(|| panic!("no arm {arm} in {}", self.printed()))
    }

    fn lost(&self, run: usize, arm: &str) -> usize {
        self.arm(run, arm)["lost"].as_array().unwrap().len()
    }

    pub(crate) fn expect(&self, code: i32) -> &Ran {
        assert_eq!(self.output.status.code(), Some(code), "{}", self.printed());
        self
    }
}

#[test]
fn holders_paused_past_their_lease_lose_nothing_behind_the_claim_fence_alone() {
    let ran = chaos(&["--nemesis", "holder"]);
    ran.expect(0);
    assert_eq!(ran.lost(0, "claim"), 0);
    assert!(ran.lost(0, "unfenced") > 0 && ran.lost(0, "textbook") > 0);
    for kind in ["exclusive", "readers", "permits", "sets"] {
        let of = |arm, what: &str| ran.arm(0, arm)["kinds"][kind][what].as_u64().unwrap();
        assert!(of("claim", "acknowledged") > 0, "{kind}");
        assert_eq!(of("claim", "lost") + of("claim", "changed"), 0, "{kind}");
        for arm in ["unfenced", "textbook"] {
            let harmed = of(arm, "lost") + of(arm, "changed");
            assert!(harmed > 0, "{kind}, {arm}");
        }
    }
    let readers = &ran.arm(0, "unfenced")["kinds"]["readers"];
    assert!(readers["changed"].as_u64() > Some(0), "{readers}");
    let refused = ran.arm(0, "claim")["rejects"].as_array().unwrap();
    assert!(
        refused
            .iter()
            .all(|reject| reject["token"].as_u64() < reject["highest"].as_u64())
    );
    assert!(ran.page.contains("<svg") && ran.page.contains("its worst moment"));
    assert!(
        !ran.page.contains("http://") && !ran.page.contains("<script"),
        "one self-contained page"
    );
}

#[test]
fn no_fault_means_no_reject_and_nothing_lost() {
    chaos(&["--nemesis", "none"]).expect(0);
}

/// Signals, networks, clocks and disks; if the machine does not allow a fault, the report says so.
#[test]
fn nothing_is_lost_behind_the_claim_fence_under_any_other_fault() {
    let all = "clients pause-authority pause-resource kill-clients kill-authority kill-resource delay duplicate \
               partition wall-clock clock-rate disk-full failed-sync";
    let mut arguments = vec!["--arm", "claim", "--teams", "4"];
    arguments.extend(all.split(' ').flat_map(|name| ["--nemesis", name]));
    let ran = chaos(&arguments);
    ran.expect(0);
    let runs = ran.report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), all.split(' ').count());
    for run in runs {
        let outcome = &run["outcome"]["outcome"];
        assert!(outcome == "kept" || outcome == "impossible", "{run}");
        println!("{}: {outcome}", run["nemesis"]);
    }
}

/// An authority that grants every request at once costs time, but no data.
#[test]
fn a_broken_authority_loses_nothing_behind_the_claim_fence_and_a_repeated_token_is_found() {
    let ran = chaos(&["--authority", "broken"]);
    ran.expect(0);
    assert_eq!(ran.lost(0, "claim"), 0);
    assert!(ran.lost(0, "unfenced") > 0 && ran.lost(0, "textbook") > 0);
    // Control for the checker: a token with two holders.
    let ran = chaos(&["--authority", "repeating", "--arm", "claim"]);
    ran.expect(1);
    let repeated = ran.arm(0, "claim")["repeated_tokens"].as_array().unwrap();
    assert_eq!(repeated.len(), 1);
    assert!(
        ran.printed().contains("was granted twice"),
        "{}",
        ran.printed()
    );
}

/// Another system's lock, Debian's etcd: its holder is paused, and only the claim fence keeps all data.
#[test]
fn etcd_as_the_lock_needs_the_claim_fence_too() {
    let ran = chaos(&[
        "--authority",
        "etcd",
        "--nemesis",
        "holder",
        "--teams",
        "24",
    ]);
    ran.expect(0);
    assert_eq!(ran.lost(0, "claim"), 0);
    assert!(ran.lost(0, "unfenced") > 0 && ran.lost(0, "textbook") > 0);
}

/// Every fault of a cluster of three, once: no add is lost, and the observers' history is explained, also by porcupine.
#[test]
fn a_cluster_keeps_what_it_granted_through_every_fault() {
    let recorded = tempfile::tempdir().unwrap();
    let ran = chaos(&[
        "--nodes",
        "3",
        "--nemesis",
        "nodes",
        "--arm",
        "claim",
        "--teams",
        "2",
        "--adds",
        "50",
        "--record",
        recorded.path().to_str().unwrap(),
    ]);
    println!("{}", ran.printed());
    ran.expect(0);
    assert_eq!(ran.lost(0, "claim"), 0);
    let claim = ran.arm(0, "claim");
    assert!(claim["interventions"].as_object().unwrap().len() >= 15);
    let observed = &claim["observed"];
    assert!(
        observed["grants"].as_u64() > Some(20) && observed["queues_kept"].as_u64() > Some(0),
        "{observed}"
    );
    for kind in [
        "exclusive",
        "readers",
        "updates",
        "upgrades",
        "permits",
        "sets",
    ] {
        let grants = observed["kinds"][kind].as_u64();
        assert!(grants > Some(0), "{kind}: {observed}");
    }
    judge(
        recorded.path(),
        &["nodes-claim.locks.jsonl", "nodes-claim.resources.jsonl"],
    );
}

/// Control for the observers and for both checkers: single servers that pass for one cluster draw the same tokens.
#[test]
fn single_servers_that_pass_for_a_cluster_are_found() {
    let recorded = tempfile::tempdir().unwrap();
    let ran = chaos(&[
        "--authority",
        "split",
        "--nodes",
        "3",
        "--arm",
        "claim",
        "--teams",
        "1",
        "--adds",
        "1",
        "--limit",
        "3",
        "--record",
        recorded.path().to_str().unwrap(),
    ]);
    ran.expect(1);
    assert!(ran.printed().contains("RepeatedToken"), "{}", ran.printed());
    judge_illegal(recorded.path(), "none-claim.locks.jsonl");
}

#[test]
fn a_kind_that_an_authority_lacks_is_named() {
    let ran = chaos(&["--authority", "etcd", "--kind", "permits"]);
    ran.expect(4);
    let printed = ran.printed();
    assert!(
        printed.contains("--kind permits does not apply"),
        "{printed}"
    );
}
