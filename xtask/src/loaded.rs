//! `cargo xtask test --loaded [ROUNDS]`: the tests that depend on real time, again and again beside two busy loops for each
//! core. A test whose margins are too narrow fails here before it fails a landing.
//!
//! A file of tests is marked by `real time:`, in the comment of a sleep or in the module's documentation. All its tests are run;
//! those of the clients by `clients/loaded`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::programs::{Job, Load, Part, Program};
use crate::shell::{root, target, timed};
use crate::suite::Tally;
use crate::tree::Tree;

/// Busy loops for each core.
const LOOPS: usize = 2;

const MARK: &str = "real time:";

/// The number of rounds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan(u32);

impl Plan {
    /// # Errors
    /// The argument is no number, or there are several.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        match arguments {
            [] => Ok(Self(10)),
            [rounds] => match rounds.parse() {
                Ok(rounds @ 1..) => Ok(Self(rounds)),
                _ => Err(format!("`{rounds}` is no number of rounds")),
            },
            more => Err(format!("--loaded takes one number, not {}", more.len())),
        }
    }

    /// Runs all rounds; true when all tests of each passed.
    pub(crate) fn run(&self) -> bool {
        let prepared = Tree::read(&root()).and_then(|tree| Ok((tree, Program::all(&[])?)));
        let (tree, programs) = match prepared {
            Ok(prepared) => prepared,
            Err(complaint) => {
                println!("test: {complaint}");
                return false;
            }
        };
        let files = marked(&tree);
        let marked: Vec<(&Program, Vec<String>)> = programs
            .iter()
            .map(|program| (program, modules(&files, program)))
            .filter(|(_, modules)| !modules.is_empty())
            .collect();
        let mut failures: BTreeMap<String, u32> = BTreeMap::new();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            for _ in 0..LOOPS * cores {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            for round in 1..=self.0 {
                let ours = marked.iter().map(|(program, modules)| program.job(modules));
                // They take longest, so they come first. As many at a time as when all tests run.
                let jobs = std::iter::once(clients()).chain(ours).collect();
                let load = Load {
                    programs: 2,
                    tests: 2 * cores,
                };
                let mut tally = Tally::default();
                let show = |name: &str, line: &str| tally.show(name, line);
                let (complaints, time) = timed(|| Job::run_all(jobs, load, show));
                println!(
                    "test: round {round} of {}: {} passed, {} failed, {} of {} programs did ({:.0} s)",
                    self.0,
                    tally.passed,
                    tally.failed,
                    complaints.len(),
                    marked.len() + 1,
                    time.as_secs_f32()
                );
                for complaint in complaints {
                    *failures.entry(complaint.job).or_default() += 1;
                }
                for (program, test) in tally.names {
                    *failures.entry(format!("{program}: {test}")).or_default() += 1;
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        for (name, rounds) in &failures {
            println!("test: failed in {rounds} of {} rounds: {name}", self.0);
        }
        failures.is_empty()
    }
}

/// The files with the mark.
fn marked(tree: &Tree) -> Vec<&Path> {
    let files = tree.files.iter().filter(|file| {
        let mut lines = file.text.lines();
        file.has_ending(&["rs"]) && lines.any(|line| line.to_lowercase().contains(MARK))
    });
    files.map(|file| Path::new(&file.path)).collect()
}

/// The marked modules of a test program, as a filter for it.
fn modules(marked: &[&Path], program: &Program) -> Vec<String> {
    if program.part() != Part::Tests {
        return Vec::new();
    }
    let tests = program.tests();
    let inside = |file: &&Path| module(file.with_extension("").strip_prefix(&tests).ok()?);
    marked.iter().filter_map(inside).collect()
}

/// `net/heads` is the module `net::heads::`, and nothing stands for all modules. What several files use has no tests.
fn module(path: &Path) -> Option<String> {
    let words: Vec<&str> = path.iter().filter_map(|word| word.to_str()).collect();
    match words[..] {
        [] => Some(String::new()),
        [.., "main" | "mod" | "lib" | "support"] | ["common" | "support" | "net_support", ..] => {
            None
        }
        _ => Some(words.join("::") + "::"),
    }
}

/// The clients in other languages.
fn clients() -> Job {
    let mut check = Command::new("clients/loaded");
    check.arg(target().join("debug/palisade"));
    Job::new("clients", check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_file_is_a_filter() {
        let filter = |path: &str| module(Path::new(path));
        assert_eq!(filter("restarts").as_deref(), Some("restarts::"));
        assert_eq!(filter("mysql/stopped").as_deref(), Some("mysql::stopped::"));
        assert_eq!(filter("").as_deref(), Some(""));
        for shared in ["main", "common/mod", "gateway/support"] {
            assert_eq!(filter(shared), None, "{shared}");
        }
    }

    #[test]
    fn rounds_are_a_number() {
        assert_eq!(Plan::parse(&[]), Ok(Plan(10)));
        assert_eq!(Plan::parse(&["3"]), Ok(Plan(3)));
        for wrong in [&["0"][..], &["ten"], &["1", "2"]] {
            assert!(Plan::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
