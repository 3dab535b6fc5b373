//! Mutation testing, by a tool that nobody here wrote: `cargo mutants` changes one expression at a time in a copy of
//! the repository, and the tests that belong to the file must notice.
//!
//! The mutants that may survive are listed, with the reasons, in `.cargo/mutants.toml`. Anything else that survives is a failure.

use std::process::{Command, Stdio};

use crate::shell::{cargo, run, target};

/// Files that are mutated, and the tests that must notice.
struct Group {
    package: &'static str,
    files: &'static [&'static str],
    /// The arguments of `cargo test`.
    tests: &'static str,
    /// Parts of the names of those tests; none: all of them.
    names: &'static [&'static str],
}

const GROUPS: [Group; 4] = [
    Group {
        package: "palisade-core",
        files: &["crates/palisade-core/src/**"],
        tests: "--lib --tests",
        names: &[],
    },
    Group {
        package: "palisade-wal",
        files: &["crates/palisade-wal/src/**"],
        tests: "--lib --tests",
        names: &[],
    },
    Group {
        package: "palisade-server",
        files: &["crates/palisade-server/src/pipeline/**"],
        tests: "--lib --test=suite --test=directories",
        names: &["pipeline::", "crash::", "restore::", "snapshots::"],
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
        names: &[
            "acquire::",
            "acquiring::",
            "holder_rules::",
            "connections::",
            "hold::",
            "lease::",
            "keeper::",
            "schedule::",
        ],
    },
];

/// Whether the tool is there; if not, how to get it.
pub(crate) fn missing() -> Option<String> {
    let mut version = Command::new("cargo");
    version.args(["mutants", "--version"]).stdin(Stdio::null());
    let output = version.stdout(Stdio::null()).stderr(Stdio::null()).status();
    match output.is_ok_and(|status| status.success()) {
        true => None,
        false => {
            Some("cargo-mutants is not installed: cargo install cargo-mutants --locked".to_owned())
        }
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
    match survived.is_empty() {
        true => Ok(()),
        false => Err(survived.join("; ")),
    }
}

impl Group {
    fn run(&self) -> Result<(), String> {
        let report = target().join("lab/mutants").join(self.package);
        std::fs::create_dir_all(&report).map_err(|error| error.to_string())?;
        let mut command = cargo(&["mutants", "--all-features", "--timeout", "120", "--package"]);
        command.arg(self.package).arg("--output").arg(&report);
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
        // Behind the first `--` stands what `cargo test` gets, behind the second what its programs get.
        command.args(tests).args(["--", "--"]).args(self.names);
        run(&mut command).map_err(|error| format!("{error}; see {}", report.display()))
    }
}
