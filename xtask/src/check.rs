//! The gate: the same steps here and on the machine that judges a submission. Reads only; every step runs,
//! and all failures are told together at the end.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use crate::prerequisites::{GATE, OF_THE_GATE, ensure};
use crate::shell::{cargo, root, run, target, timed};
use crate::source::Tree;
use crate::tidy::{Finding, RULES};
use crate::{advisories, dependencies, words};

struct Step {
    name: &'static str,
    /// What to do when it fails.
    fix: &'static str,
    run: fn() -> Result<String, String>,
}

/// Cheap steps first: a typing mistake is told before a long build.
const STEPS: &[Step] = &[
    Step {
        name: "format",
        fix: "cargo fmt --all",
        run: format,
    },
    Step {
        name: "tidy",
        fix: "each finding names its rule; the rules and their reasons are in xtask/src/tidy.rs",
        run: tidy,
    },
    Step {
        name: "words",
        fix: "use the glossary's word; the table is in xtask/src/words.rs",
        run: spelling,
    },
    Step {
        name: "crates",
        fix: "put the trait on the side that uses it, and join the two in the binary; the lists are in xtask/src/dependencies.rs",
        run: dependencies::check,
    },
    Step {
        name: "deny",
        fix: "choose another dependency, or add it to deny.toml with the reason",
        run: deny,
    },
    Step {
        name: "advisories",
        fix: "take a version that is not affected: `cargo update --package NAME`; an exception is a row in xtask/src/advisories.rs",
        run: advisories::check,
    },
    Step {
        name: "clippy",
        fix: "mend what it names; an exception is `#[expect(lint, reason = \"…\")]` at the smallest item",
        run: clippy,
    },
    Step {
        name: "features",
        fix: "mend the `cfg` or the dependency that the named features alone lack; `cargo hack` prints each command",
        run: features,
    },
    Step {
        name: "doc",
        fix: "cargo doc --no-deps --workspace --all-features, and mend the comment it names",
        run: doc,
    },
];

/// What compiles crates as users pick their features.
const CARGO_HACK: &str = "cargo-hack@0.6.37";

/// How the note of a step begins that lacks what it needs.
const NOT_RUN: &str = "NOT RUN: ";

/// Which steps to run.
#[derive(Debug)]
pub(crate) struct Plan(Vec<usize>);

impl Plan {
    /// # Errors
    /// An argument is unknown, or a step that does not exist is named.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let names: Vec<&str> = match arguments {
            [] => return Ok(Self((0..STEPS.len()).collect())),
            ["--only", names] => names.split(',').collect(),
            _ => return Err(format!("check does not know `{}`", arguments.join(" "))),
        };
        let number = |name: &&str| {
            let all = || {
                STEPS
                    .iter()
                    .map(|step| step.name)
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let found = STEPS.iter().position(|step| step.name == *name);
            found.ok_or_else(|| format!("no step is called `{name}`; there are {}", all()))
        };
        names.iter().map(number).collect::<Result<_, _>>().map(Self)
    }

    /// Runs the steps; true when all of them passed.
    pub(crate) fn run(&self) -> bool {
        let (mut failed, mut not_run) = (Vec::new(), Vec::new());
        for step in self.0.iter().map(|number| &STEPS[*number]) {
            println!("── {}", step.name);
            flush();
            let (outcome, time) = timed(step.run);
            let seconds = time.as_secs_f32();
            match outcome {
                Ok(note) if note.starts_with(NOT_RUN) => not_run.push((step, note)),
                Ok(note) => println!("ok {:<8} {seconds:6.1} s   {note}", step.name),
                Err(complaint) => {
                    println!("FAILED {:<8} {seconds:6.1} s", step.name);
                    failed.push((step, complaint));
                }
            }
            flush();
        }
        println!();
        for (step, complaint) in &failed {
            println!("{} failed: {complaint}\n   to fix: {}", step.name, step.fix);
        }
        for (step, note) in &not_run {
            println!("{} {note}", step.name);
        }
        println!(
            "check: {} passed, {} failed, {} skipped",
            self.0.len() - failed.len() - not_run.len(),
            failed.len(),
            not_run.len()
        );
        failed.is_empty()
    }
}

/// Keeps our lines in order with those of the programs we start.
fn flush() {
    // A closed pipe is the reader's choice, not a failure of the gate.
    let _ = std::io::stdout().flush();
}

fn format() -> Result<String, String> {
    run(&mut cargo(&["fmt", "--all", "--", "--check"])).map(|()| String::new())
}

/// Licences, duplicates and sources of the dependencies. Where cargo-deny cannot be had, the step says so, and fails on a
/// machine that judges.
fn deny() -> Result<String, String> {
    let tool = ensure(OF_THE_GATE).and_then(|()| GATE.ensure(&target()));
    let scope = ["--locked", "check", "licenses", "bans", "sources"];
    with(tool, |place| {
        run(Command::new(place.join(GATE.program))
            .args(scope)
            .current_dir(root()))
    })
}

/// The crates with features, with each feature alone and each pair: all of them together hide what one of them lacks.
/// Where cargo-hack cannot be had, as [`deny`].
fn features() -> Result<String, String> {
    let place = target().join("palisade-tools/hack");
    let install = ["install", "--locked", "--quiet", CARGO_HACK, "--root"];
    let tool = run(cargo(&install).arg(&place)).map(|()| place);
    let scope = [
        "hack",
        "clippy",
        "--quiet",
        "--locked",
        "--lib",
        "--feature-powerset",
        "--depth=2",
        "--exclude-features=default,conformance",
        "--package=palisade-authorities",
        "--package=palisade-client",
        "--package=palisade-fence",
        "--package=palisade-pipeline",
    ];
    with(tool, |place| {
        run(Command::new(place.join("bin/cargo-hack"))
            .args(scope)
            .args(["--", "-D", "warnings"])
            .current_dir(root()))
    })
}

/// Runs a step's tool, if it could be installed.
fn with(
    tool: Result<PathBuf, String>,
    step: impl FnOnce(PathBuf) -> Result<(), String>,
) -> Result<String, String> {
    match tool {
        Ok(place) => step(place).map(|()| String::new()),
        Err(complaint) if std::env::var_os("CI").is_some() => Err(complaint),
        Err(complaint) => Ok(format!("{NOT_RUN}{complaint}")),
    }
}

fn clippy() -> Result<String, String> {
    let scope = [
        "clippy",
        "--locked",
        "--workspace",
        "--all-targets",
        "--all-features",
    ];
    run(cargo(&scope).args(["--", "-D", "warnings"])).map(|()| String::new())
}

fn doc() -> Result<String, String> {
    let scope = [
        "doc",
        "--locked",
        "--no-deps",
        "--workspace",
        "--all-features",
    ];
    run(cargo(&scope).env("RUSTDOCFLAGS", "-D warnings")).map(|()| String::new())
}

fn tidy() -> Result<String, String> {
    let tree = Tree::read(&root())?;
    let (mut wrong, mut broken) = (0, Vec::new());
    for rule in RULES {
        let found = (rule.find)(&tree);
        found.iter().for_each(|finding| tell(rule.id, finding));
        let serious = found.iter().filter(|finding| !finding.mild).count();
        if serious > 0 {
            wrong += serious;
            broken.push(format!(
                "\n   {}: {}\n      {}",
                rule.id, rule.why, rule.fix
            ));
        }
    }
    match wrong {
        0 => Ok(format!("{} rules, {} files", RULES.len(), tree.files.len())),
        _ => Err(format!("{wrong} findings above{}", broken.concat())),
    }
}

fn spelling() -> Result<String, String> {
    let found = words::findings(&Tree::read(&root())?);
    found.iter().for_each(|finding| tell("word", finding));
    if found.is_empty() {
        Ok(String::new())
    } else {
        Err(format!("{} findings above", found.len()))
    }
}

fn tell(rule: &str, finding: &Finding) {
    let weight = if finding.mild {
        " (a look, no failure)"
    } else {
        ""
    };
    println!(
        "{}:{}: {rule}: {}{weight}",
        finding.path, finding.line, finding.what
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_steps_run_unless_some_are_named() {
        let numbers = |arguments: &[&str]| Plan::parse(arguments).map(|plan| plan.0);
        assert_eq!(numbers(&[]), Ok((0..STEPS.len()).collect()));
        assert_eq!(numbers(&["--only", "words,tidy"]), Ok(vec![2, 1]));
        assert!(
            numbers(&["--only", "tidi"])
                .is_err_and(|mistake| mistake.contains("format, tidy, words"))
        );
        assert!(numbers(&["--fix"]).is_err());
    }
}
