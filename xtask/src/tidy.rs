//! House rules that neither the compiler nor clippy knows. Each is a row: what it is called, why it exists, how to satisfy it,
//! and a function from the tree to what it found. Every row has a test with a file that breaks it.

mod pages;
#[cfg(test)]
mod tests;

pub(crate) use pages::prose;

use crate::source::{File, Tree};

pub(crate) struct Rule {
    pub(crate) id: &'static str,
    pub(crate) why: &'static str,
    pub(crate) fix: &'static str,
    pub(crate) find: fn(&Tree) -> Vec<Finding>,
}

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// From 1.
    pub(crate) line: usize,
    pub(crate) what: String,
    /// Worth a look, but the gate stays open.
    pub(crate) mild: bool,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
            mild: false,
        }
    }
}

pub(crate) const RULES: &[Rule] = &[
    Rule {
        id: "ignored-test",
        why: "a test that does not run proves nothing and looks as if it did",
        fix: "make it run, or delete it; an example that must not run is `no_run`, other text is `text`",
        find: ignored_tests,
    },
    Rule {
        id: "long-file",
        why: "quality is decided by the tail: files aim at 100 to 400 lines",
        fix: "split it along the types it owns; at 1,000 lines write `// long file: <reason>` at its head",
        find: long_files,
    },
    Rule {
        id: "engine-seam",
        why: "the consensus engine can be replaced: one folder names it",
        fix: "say it in the replica's own terms, or do it in crates/palisade-replica/src/engine/",
        find: |tree| outside(tree, "openraft", "crates/palisade-replica/src/", "engine/"),
    },
    Rule {
        id: "orderer-io",
        why: "the orderer does no I/O: the simulator runs the same code in virtual time",
        fix: "take it as an argument; the clock, the log, tasks and random numbers are in crates/palisade-pipeline/src/driver.rs",
        find: orderer_io,
    },
    Rule {
        id: "link",
        why: "a dead link is a promise nobody kept",
        fix: "point it at a file of this repository, and at a heading that file has",
        find: pages::dead_links,
    },
    Rule {
        id: "guarantees",
        why: "a rule without a promise is not kept, and a promise whose test is gone is not proved",
        fix: "mention the rule in docs/promise/guarantees.md with the test that fails without it, by the name it has",
        find: pages::guarantees,
    },
    Rule {
        id: "contents",
        why: "a page that no table of contents names is found by nobody who reads the book",
        fix: "add the page to docs/SUMMARY.md",
        find: pages::not_in_contents,
    },
    Rule {
        id: "attacks",
        why: "an attack whose test is gone may work again",
        fix: "name the test by the name it has",
        find: pages::attacks,
    },
    Rule {
        id: "line-ends",
        why: "diffs show what changed only when line ends do not",
        fix: "unix line ends, a final newline, no tabs in Rust source",
        find: line_ends,
    },
    Rule {
        id: "sleeping-test",
        why: "a test that sleeps is slow when it passes and wrong when the machine is slow",
        fix: "use a manual clock or wait for the event; where real time is the subject, `// real time: <reason>` on that line",
        find: sleeping_tests,
    },
    Rule {
        id: "test-program",
        why: "every test program is linked anew, and ninety of them took longer to build than to run",
        fix: "make it a module of tests/suite, or write `A program of its own: <reason>` at its head",
        find: test_programs,
    },
];

/// Findings in Rust code, line by line; `find` says what is wrong with a line.
fn code(tree: &Tree, find: impl Fn(&File, &str) -> Option<String>) -> Vec<Finding> {
    let lines = tree.files.iter().flat_map(|file| {
        file.code_lines()
            .map(move |(number, line)| (file, number, line))
    });
    lines
        .filter_map(|(file, number, line)| {
            Some(Finding::new(&file.path, number, find(file, line)?))
        })
        .collect()
}

/// Where the code of a source folder has this name outside the part that may have it.
fn outside(tree: &Tree, name: &str, source: &str, part: &str) -> Vec<Finding> {
    code(tree, |file, line| {
        let inside = file.path.strip_prefix(source)?;
        let named = !inside.starts_with(part) && line.contains(name);
        named.then(|| format!("`{name}`"))
    })
}

/// The names that the orderer must not contain.
const IO: &[&str] = &[
    "tokio",
    "rustix",
    "random",
    "fastrand",
    "std::io",
    "std::fs",
    "std::net",
    "std::thread",
    "std::time",
    "std::{",
    "clock::",
];

fn orderer_io(tree: &Tree) -> Vec<Finding> {
    code(tree, |file, line| {
        let inside = file
            .path
            .strip_prefix("crates/palisade-pipeline/src/orderer")?;
        let named = IO.iter().find(|name| line.contains(**name))?;
        (inside.starts_with(['/', '.'])).then(|| format!("`{named}`"))
    })
}

fn ignored_tests(tree: &Tree) -> Vec<Finding> {
    let mut found = code(tree, |_, line| {
        let line = crate::source::squeezed(line);
        let ignored =
            line.contains("#[ignore") || (line.contains("cfg_attr(") && line.contains(",ignore"));
        ignored.then(|| "`#[ignore]`".to_owned())
    });
    for file in &tree.files {
        for (number, line) in (1..).zip(file.docs().lines()) {
            let opened = line.trim().strip_prefix("```");
            if opened.is_some_and(|info| {
                info.split(',')
                    .any(|word| word.trim().starts_with("ignore"))
            }) {
                found.push(Finding::new(&file.path, number, "an ignored example"));
            }
        }
    }
    found
}

const ASK_AT: usize = 600;
const REASON_AT: usize = 1_000;

fn long_files(tree: &Tree) -> Vec<Finding> {
    let sources = tree
        .files
        .iter()
        .filter(|file| file.has_ending(&["rs", "proto", "js", "css", "html", "sh", "py"]));
    sources
        .filter_map(|file| {
            let lines = file.text().lines().count();
            let head = file.text().lines().take(10);
            let mut reasons = head.filter_map(|line| line.split_once("long file: "));
            if lines < ASK_AT || reasons.any(|(_, reason)| reason.trim().len() > 5) {
                return None;
            }
            Some(Finding {
                mild: lines < REASON_AT,
                ..Finding::new(&file.path, 1, format!("{lines} lines"))
            })
        })
        .collect()
}

fn line_ends(tree: &Tree) -> Vec<Finding> {
    const WRITTEN: &[&str] = &[
        "rs", "md", "toml", "proto", "sh", "sql", "lua", "py", "js", "css", "html", "svg", "json",
        "yml", "yaml", "txt", "lock",
    ];
    // Golden files hold exactly the bytes they must hold.
    let exact = |file: &File| {
        file.path
            .split('/')
            .any(|folder| matches!(folder, "golden" | "testdata" | "snapshots"))
    };
    let mut found = Vec::new();
    let ours =
        |file: &&File| (file.has_ending(WRITTEN) || file.path.starts_with(".ci/")) && !exact(file);
    for file in tree.files.iter().filter(ours) {
        let text = file.text();
        let mut say = |at: usize, what: &str| {
            found.push(Finding::new(
                &file.path,
                crate::source::line_of(text, at),
                what,
            ));
        };
        if file.text.is_none() {
            say(0, "not UTF-8");
        }
        if let Some(at) = text.find('\r') {
            say(at, "a carriage return");
        }
        if !text.is_empty() && !text.ends_with('\n') {
            say(text.len(), "no newline at the end");
        }
        if let Some(at) = text.find('\t').filter(|_| file.has_ending(&["rs"])) {
            say(at, "a tab");
        }
    }
    found
}

/// Of several test programs of a crate, those besides `suite` that give no reason.
fn test_programs(tree: &Tree) -> Vec<Finding> {
    let programs: Vec<(&str, &str, &File)> = tree.files.iter().filter_map(test_program).collect();
    let excused = |file: &File| {
        let head = file.lines().take(10);
        let mut reasons = head.filter_map(|(_, line)| line.split_once("A program of its own: "));
        reasons.any(|(_, reason)| reason.trim().len() > 5)
    };
    programs
        .iter()
        .filter(|(home, name, file)| {
            let of_this_crate = programs.iter().filter(|(other, ..)| other == home);
            *name != "suite" && of_this_crate.count() > 1 && !excused(file)
        })
        .map(|(_, name, file)| Finding::new(&file.path, 1, format!("the test program `{name}`")))
        .collect()
}

/// The crate and the name of the test program whose first file this is: `tests/NAME.rs` or `tests/NAME/main.rs`.
fn test_program(file: &File) -> Option<(&str, &str, &File)> {
    let (home, place) = file.path.split_once("/tests/")?;
    let name = place
        .strip_suffix("/main.rs")
        .or_else(|| place.strip_suffix(".rs"))?;
    let ours = !name.contains('/') && !home.split('/').any(|folder| folder == "src");
    ours.then_some((home, name, file))
}

fn sleeping_tests(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in &tree.files {
        for ((number, code), line) in file.code_lines().zip(file.text().lines()) {
            let excused = line
                .split_once("// real time:")
                .is_some_and(|(_, reason)| reason.trim().len() > 5);
            if file.is_test(number) && !excused && calls_sleep(code) {
                found.push(Finding::new(&file.path, number, "a test sleeps"));
            }
        }
    }
    found
}

/// Is a free `sleep` or `sleep_until` called here? A method of that name belongs to a clock the test owns.
fn calls_sleep(code: &str) -> bool {
    ["sleep(", "sleep_until("].iter().any(|call| {
        code.match_indices(call).any(|(at, _)| {
            let before = &code[..at];
            let part_of_a_word =
                before.ends_with(|last: char| last.is_alphanumeric() || last == '_');
            !part_of_a_word && !before.ends_with('.') && !before.trim_end().ends_with("fn")
        })
    })
}
