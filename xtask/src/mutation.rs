//! Mutation testing, by a tool that nobody here wrote: `cargo mutants` changes one expression at a time in a copy of
//! the repository, and the tests that belong to the file must notice.
//!
//! Mutants that may survive are listed, with the reason, in `.cargo/mutants.toml`. Any other survivor is a failure.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::shell::{cargo, spelled, target};

/// Files that are mutated, and the tests that must notice.
struct Group {
    package: &'static str,
    files: &'static [&'static str],
    /// Arguments of `cargo test`: the test programs.
    tests: &'static str,
    /// Arguments of those programs for the first round: the tests that take seconds.
    quick: &'static [&'static str],
    /// Arguments of those programs for the mutants that survive the first round: parts of the names, or none for all.
    names: &'static [&'static str],
}

const GROUPS: [Group; 4] = [
    Group {
        package: "palisade-core",
        files: &["crates/palisade-core/src/**"],
        tests: "--lib --tests",
        quick: &[
            "--skip=model",
            "--skip=damaged_records",
            "--skip=fifty_thousand",
            "--skip=forgets_when",
            "--skip=the_newest_of_each_key",
            "--skip=in_a_storm",
            "--skip=a_chain_of_sets",
            "--skip=a_crowd",
            "--skip=the_fence_only",
            "--skip=strict_admits",
        ],
        names: &[],
    },
    Group {
        package: "palisade-wal",
        files: &["crates/palisade-wal/src/**"],
        tests: "--lib --tests",
        quick: &[
            "--skip=a_crash_at_any_call_loses",
            "--skip=a_crash_during_recovery",
            "--skip=a_failed_sync_then",
            "--skip=a_failure_at_any_call",
            "--skip=flipped_bit",
            "--skip=opening_a_log",
            "--skip=torn_at_any_length",
            "--skip=any_history",
            "--skip=a_payload_over",
        ],
        names: &[],
    },
    Group {
        package: "palisade-pipeline",
        files: &[
            "crates/palisade-pipeline/src/*.rs",
            "crates/palisade-pipeline/src/codec/**",
            "crates/palisade-pipeline/src/orderer/**",
        ],
        tests: "--lib --test=suite --test=directories",
        quick: &[
            "--skip=crash::",
            "--skip=election::",
            "--skip=restore::",
            "--skip=snapshots::",
            "--skip=a_large_snapshot",
            "--skip=work_on_the_ordering_thread",
            "--skip=no_batch_grows",
        ],
        names: &[],
    },
    Group {
        package: "palisade-client",
        files: &[
            "crates/palisade-client/src/hold.rs",
            "crates/palisade-client/src/lease.rs",
            "crates/palisade-client/src/keeper.rs",
            "crates/palisade-client/src/schedule.rs",
        ],
        tests: "--lib --test=suite",
        quick: &["hold::", "schedule::", "holder_rules::"],
        names: &[
            "acquire::",
            "acquiring::",
            "holder_rules::",
            "connections::",
            "hold::",
            "schedule::",
        ],
    },
];

/// The tool's exit code when mutants survived.
const SURVIVED: i32 = 2;

/// The tool's exit code when the tests of some mutants did not end, whether others survived or not. A mutant that loops
/// for ever is noticed by that.
const TIMED_OUT: i32 = 3;

/// Whether the tool is there; if not, how to get it.
pub(crate) fn missing() -> Option<String> {
    let mut version = Command::new("cargo");
    version.args(["mutants", "--version"]).stdin(Stdio::null());
    let output = version.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if output.is_ok_and(|status| status.success()) {
        None
    } else {
        Some("cargo-mutants is not installed: cargo install cargo-mutants --locked".to_owned())
    }
}

/// Runs all groups, whatever an earlier one said.
///
/// # Errors
/// The packages in which a mutant survived that is not listed.
pub(crate) fn all() -> Result<(), String> {
    let survived = GROUPS.iter().filter_map(|group| {
        println!("\nmutants of {}", group.package);
        group.run().err()
    });
    let survived: Vec<_> = survived.collect();
    if survived.is_empty() {
        Ok(())
    } else {
        Err(survived.join("; "))
    }
}

impl Group {
    fn run(&self) -> Result<(), String> {
        let report = target().join("lab/mutants").join(self.package);
        std::fs::create_dir_all(&report).map_err(|error| error.to_string())?;
        if self.round(&report, &[], self.quick)?
            || self.round(&report, &["--iterate"], self.names)?
        {
            return Ok(());
        }
        let missed = report.join("mutants.out/missed.txt");
        Err(format!("mutants survived: see {}", missed.display()))
    }

    /// Whether every mutant was noticed.
    fn round(&self, report: &Path, again: &[&str], names: &[&str]) -> Result<bool, String> {
        // The tool allows each mutant five times the time of the tests without one.
        let mut command = cargo(&["mutants", "--all-features", "--package", self.package]);
        command.arg("--output").arg(report).args(again);
        for file in self.files {
            command.args(["--file", file]);
        }
        // Its own builds in its own folder: the copy has other paths.
        command.env_remove("CARGO_TARGET_DIR");
        // As arguments of every build too: tests that are not run need not be built.
        let tests = self
            .tests
            .split(' ')
            .map(|word| format!("--cargo-arg={word}"));
        // Behind the first `--` stand the arguments of `cargo test`, behind the second those of its programs.
        command.args(tests).args(["--", "--"]).args(names);
        let status = command.status();
        let status = status.map_err(|error| format!("{}: {error}", spelled(&command)))?;
        let missed = std::fs::read(report.join("mutants.out/missed.txt"));
        match status.code() {
            Some(0) => Ok(true),
            Some(SURVIVED | TIMED_OUT) => Ok(missed.is_ok_and(|names| names.is_empty())),
            _ => Err(format!("{} ended with {status}", spelled(&command))),
        }
    }
}
