//! House rules that no compiler, clippy, typos or link checker knows. Each is a row: what it is called, why it exists, how to
//! satisfy it, and a function from the tree to what it found. Every row has a test with a file that breaks it.

mod ids;
#[cfg(test)]
mod tests;
mod type_names;
mod words;

use crate::tree::{File, Tree};

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
        find: |tree| in_rust(tree, ignored),
    },
    Rule {
        id: "long-file",
        why: "quality is decided by the tail: files aim at 100 to 400 lines",
        fix: "split it along the types it owns; at 1,000 lines write `// long file: <reason>` at its head",
        find: long_files,
    },
    Rule {
        id: "seam",
        why: "the consensus engine can be replaced, and the simulator runs the orderer in virtual time",
        fix: "name the engine in its folder only; give the orderer what it needs as an argument, from driver.rs",
        find: |tree| in_rust(tree, over_a_seam),
    },
    Rule {
        id: "contents",
        why: "a page that no table of contents names is found by nobody who reads the book",
        fix: "add the page to docs/SUMMARY.md",
        find: not_in_contents,
    },
    Rule {
        id: "ids",
        why: "a rule that is cited and stated nowhere cannot be kept, and a promise whose test is gone is not proved",
        fix: "state each id once in the tables of rules.md and guarantees.md, and name each test by the name it has",
        find: ids::findings,
    },
    Rule {
        id: "sleeping-test",
        why: "a test that sleeps is slow when it passes and wrong when the machine is slow",
        fix: "use a manual clock or wait for the event; where real time is the subject, `real time: <reason>` in a comment there",
        find: sleeping_tests,
    },
    Rule {
        id: "test-program",
        why: "every test program is linked anew, and ninety of them took longer to build than to run",
        fix: "make it a module of tests/suite, or write `A program of its own: <reason>` at its head",
        find: test_programs,
    },
    Rule {
        id: "type-name",
        why: "a reader who meets a type's name in two places takes it for one type",
        fix: "give it a name of its own; which names may repeat, and why, is in xtask/src/tidy/type_names.rs",
        find: type_names::findings,
    },
    Rule {
        id: "word",
        why: "one name for one thing",
        fix: "use the glossary's word; the table is in xtask/src/tidy/words.rs",
        find: words::findings,
    },
];

/// Findings in Rust code, line by line.
fn in_rust(tree: &Tree, find: fn(&File, &str) -> Option<String>) -> Vec<Finding> {
    let files = tree.files.iter().filter(|file| file.has_ending(&["rs"]));
    let lines = files.flat_map(|file| file.lines().map(move |(number, line)| (file, number, line)));
    let found = |(file, number, line): (&File, _, _)| {
        Some(Finding::new(&file.path, number, find(file, line)?))
    };
    lines.filter_map(found).collect()
}

fn ignored(_: &File, line: &str) -> Option<String> {
    let line = line.trim_start();
    if line.starts_with("#[ignore")
        || (line.starts_with("#[cfg_attr(") && line.contains(", ignore"))
    {
        return Some("`#[ignore]`".to_owned());
    }
    let example = ["/// ```", "//! ```"]
        .iter()
        .find_map(|mark| line.strip_prefix(mark))?;
    let mut words = example.split(',');
    words
        .any(|word| word.trim().starts_with("ignore"))
        .then(|| "an ignored example".to_owned())
}

/// Names that the code of a folder must not contain, except in a part of it.
const SEAMS: &[(&str, &str, &str)] = &[
    ("crates/palisade-replica/src/", "engine/", "openraft"),
    (
        "crates/palisade-pipeline/src/orderer",
        "_",
        "tokio rustix random fastrand std::io std::fs std::net std::thread std::time std::{ clock::",
    ),
];

fn over_a_seam(file: &File, line: &str) -> Option<String> {
    let code = line.split("//").next()?;
    let named = SEAMS.iter().find_map(|(folder, except, names)| {
        let inside = file.path.strip_prefix(folder)?;
        let mut names = names.split(' ');
        names.find(|name| !inside.starts_with(except) && code.contains(name))
    });
    named.map(|name| format!("`{name}`"))
}

const ASK_AT: usize = 600;
const REASON_AT: usize = 1_000;

fn long_files(tree: &Tree) -> Vec<Finding> {
    let ours = ["rs", "proto", "js", "css", "html", "sh", "py"];
    let sources = tree.files.iter().filter(|file| file.has_ending(&ours));
    let found = |file: &File| {
        let lines = file.text.lines().count();
        let long = lines >= ASK_AT && !gives_a_reason(file, "long file: ");
        long.then(|| Finding {
            mild: lines < REASON_AT,
            ..Finding::new(&file.path, 1, format!("{lines} lines"))
        })
    };
    sources.filter_map(found).collect()
}

/// Whether the head of the file gives a reason after this mark.
fn gives_a_reason(file: &File, mark: &str) -> bool {
    let mut head = file.text.lines().take(10);
    head.any(|line| has_reason(line, mark))
}

fn has_reason(line: &str, mark: &str) -> bool {
    let reason = line.split_once(mark).map(|(_, reason)| reason.trim());
    reason.is_some_and(|reason| reason.len() > 3)
}

/// Pages of the book that its table of contents does not name.
fn not_in_contents(tree: &Tree) -> Vec<Finding> {
    let mut files = tree.files.iter();
    let Some(contents) = files.find(|file| file.path == "docs/SUMMARY.md") else {
        return Vec::new();
    };
    let missing = |file: &&File| {
        let page = file
            .path
            .strip_prefix("docs/")
            .filter(|_| file.has_ending(&["md"]));
        page.is_some_and(|page| {
            page != "SUMMARY.md" && !contents.text.contains(&format!("]({page})"))
        })
    };
    let pages = tree.files.iter().filter(missing);
    pages
        .map(|page| Finding::new(&page.path, 1, "not in docs/SUMMARY.md"))
        .collect()
}

/// Of several test programs of a crate, those besides `suite` that give no reason.
fn test_programs(tree: &Tree) -> Vec<Finding> {
    let programs: Vec<(&str, &str, &File)> = tree.files.iter().filter_map(test_program).collect();
    let unexcused = |(home, name, file): &&(&str, &str, &File)| {
        let of_this_crate = programs.iter().filter(|(other, ..)| other == home);
        *name != "suite"
            && of_this_crate.count() > 1
            && !gives_a_reason(file, "A program of its own: ")
    };
    let found = programs.iter().filter(unexcused);
    found
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

/// Calls that let time pass, by the ending of the file. A method `sleep` belongs to a clock that the test owns; `pause` is the
/// holder suite's.
const SLEEPS: &[(&str, &[&str])] = &[
    ("rs", &["sleep(", "sleep_until("]),
    ("py", &["time.sleep(", "asyncio.sleep(", "pause("]),
    ("go", &["time.Sleep("]),
    ("java", &["Thread.sleep("]),
    ("ts", &["setTimeout(", "sleep("]),
];

fn sleeping_tests(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in &tree.files {
        let Some((_, calls)) = SLEEPS.iter().find(|(ending, _)| file.has_ending(&[ending])) else {
            continue;
        };
        let mut before = "";
        for (number, line) in file.test_lines() {
            let excused = |line| has_reason(line, " real time: ");
            // A reason that does not fit on the line stands in a comment of its own above it.
            let above = before.trim_start().starts_with(['/', '#']) && excused(before);
            if calls.iter().any(|call| makes(line, call)) && !excused(line) && !above {
                found.push(Finding::new(&file.path, number, "a test sleeps"));
            }
            before = line;
        }
    }
    found
}

/// Whether the code of a line calls this free function.
fn makes(line: &str, call: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let mut calls = code.match_indices(call).map(|(at, _)| &code[..at]);
    calls.any(|before| {
        let part_of_a_word =
            before.ends_with(|last: char| last.is_alphanumeric() || "_.".contains(last));
        let defined = ["fn ", "function ", "def "]
            .iter()
            .any(|word| before.ends_with(*word));
        let quoted = before.contains('#') || before.matches('"').count() % 2 == 1;
        !part_of_a_word && !defined && !quoted
    })
}
