//! The gate: the same steps here and on the machine that judges a submission. Reads only; every step runs,
//! and all failures are told together at the end.

use std::io::Write as _;
use std::process::Command;

use crate::prerequisites::{GATE, OF_THE_GATE, ensure};
use crate::shell::{cargo, judges, root, run, target, timed};
use crate::tidy::{Finding, RULES};
use crate::tree::Tree;
use crate::{advisories, dependencies, features, release};

struct Step {
    name: &'static str,
    /// The remedy when it fails.
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
        fix: "spell it as typos says; a word that is right, or wrong on purpose, is a row in typos.toml",
        run: spelling,
    },
    Step {
        name: "links",
        fix: "point it at a file of this repository, and at a heading that file has",
        run: links,
    },
    Step {
        name: "packages",
        fix: "write what is missing; the packages are rows of xtask/src/release/packages.rs, and the version stands in Cargo.toml",
        run: release::packages::check,
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
        run: features::check,
    },
    Step {
        name: "doc",
        fix: "cargo doc --no-deps --workspace --all-features, and mend the comment it names",
        run: doc,
    },
];

/// How the note of a step begins that lacks what it needs.
const NOT_RUN: &str = "NOT RUN: ";

/// Which steps to run.
#[derive(Debug)]
pub(crate) struct Plan(Vec<usize>);

impl Plan {
    /// # Errors
    /// An argument is unknown, or a step that does not exist is named.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let (names, only): (Vec<&str>, bool) = match arguments {
            [] => (Vec::new(), false),
            ["--only", names] => (names.split(',').collect(), true),
            ["--without", names] => (names.split(',').collect(), false),
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
        let named: Vec<usize> = names.iter().map(number).collect::<Result<_, _>>()?;
        if only {
            return Ok(Self(named));
        }
        let others = (0..STEPS.len()).filter(|number| !named.contains(number));
        Ok(Self(others.collect()))
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

/// Licences, duplicates and sources of the dependencies.
fn deny() -> Result<String, String> {
    let scope = ["--locked", "check", "licenses", "bans", "sources"];
    with("cargo-deny", |tool| run(tool.args(scope)))
}

/// Misspelt words, in names too.
fn spelling() -> Result<String, String> {
    with("typos", |tool| run(tool.args(["--format", "brief"])))
}

/// The links between pages. Those to other places are not followed: whether a stranger's server answers is no fault of a change.
fn links() -> Result<String, String> {
    let tree = Tree::read(&root())?;
    let pages = tree.files.iter().filter(|file| file.has_ending(&["md"]));
    let pages: Vec<&str> = pages.map(|page| &*page.path).collect();
    let scope = [
        "--offline",
        "--include-fragments",
        "--no-progress",
        "--root-dir",
    ];
    let outcome = with("lychee", |tool| {
        run(tool.args(scope).arg(root()).args(&pages))
    })?;
    if outcome.is_empty() {
        Ok(format!("{} pages", pages.len()))
    } else {
        Ok(outcome)
    }
}

/// Runs a step with a tool from PyPI. Where it cannot be had, the step says so, and fails on a machine that judges.
pub(crate) fn with(
    tool: &str,
    step: impl FnOnce(&mut Command) -> Result<(), String>,
) -> Result<String, String> {
    match ensure(OF_THE_GATE).and_then(|()| GATE.ensure(&target())) {
        Ok(place) => {
            let mut tool = Command::new(place.join("bin").join(tool));
            step(tool.current_dir(root())).map(|()| String::new())
        }
        Err(complaint) if judges() => Err(complaint),
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
        let others = (0..STEPS.len()).filter(|number| ![1, 2].contains(number));
        assert_eq!(numbers(&["--without", "words,tidy"]), Ok(others.collect()));
        assert!(
            numbers(&["--only", "tidi"])
                .is_err_and(|mistake| mistake.contains("format, tidy, words"))
        );
        assert!(numbers(&["--fix"]).is_err());
    }
}
