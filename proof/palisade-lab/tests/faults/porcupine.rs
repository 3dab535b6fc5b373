//! Recorded histories are judged by porcupine, a checker that nobody here wrote: `proof/palisade-lab/porcupine`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::chaos::chaos;

/// Runs the judge, and returns its exit status and output.
fn run(arguments: &[&str], folder: &Path, names: &[&str]) -> (Option<i32>, String) {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("porcupine/judge");
    let mut command = Command::new(program);
    command.args(arguments);
    let output = command.args(names.iter().map(|name| folder.join(name)));
    let output = output.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout) + &text(&output.stderr);
    println!("{printed}");
    (output.status.code(), printed)
}

/// Judges histories that must be linearizable. Each is also damaged in every way for which it has a place, and each damage
/// must be found. In how many ways that was.
pub(crate) fn judge(folder: &Path, names: &[&str]) -> usize {
    let (status, printed) = run(&["--damage", "5"], folder, names);
    assert_eq!(status, Some(0), "{printed}");
    let tried = printed.lines().filter_map(|line| {
        let (way, times) = line.strip_suffix(" tried")?.rsplit_once(": ")?;
        (times != "0").then_some(way)
    });
    tried.collect::<BTreeSet<_>>().len()
}

/// Judges a history that no order explains.
pub(crate) fn judge_illegal(folder: &Path, name: &str) {
    let (status, printed) = run(&[], folder, &[name]);
    assert_eq!(status, Some(1), "{printed}");
    assert!(printed.contains("NOT LINEARIZABLE"), "{printed}");
}

/// A single server is killed again and again, and holders are paused, so that the resource rejects their late writes.
#[test]
fn what_clients_of_a_killed_server_saw_is_linearizable() {
    let recorded = tempfile::tempdir().unwrap();
    let folder = recorded.path().to_str().unwrap();
    let arguments =
        "--nemesis kill-authority --nemesis holder --arm claim --teams 2 --adds 60 --record";
    let arguments: Vec<&str> = arguments.split(' ').chain([folder]).collect();
    let ran = chaos(&arguments);
    ran.expect(0);
    let kills = &ran.arm(0, "claim")["interventions"]["authority: SIGKILL and a restart"];
    assert!(kills.as_u64() >= Some(5), "{}", ran.printed());
    let ways = judge(
        recorded.path(),
        &[
            "kill-authority-claim.locks.jsonl",
            "kill-authority-claim.resources.jsonl",
            "holder-claim.locks.jsonl",
            "holder-claim.resources.jsonl",
        ],
    );
    // Of the 15 ways some need a place that a short history may lack, a rejection for example.
    assert!(ways >= 12, "{ways}");
}
