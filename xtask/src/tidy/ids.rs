//! Ids such as A7 and G104: stated once, in the tables of `rules.md` and `guarantees.md`, and cited everywhere. A table
//! whose last column is `tests` names tests that exist.

use std::collections::BTreeSet;

use super::Finding;
use crate::tree::{File, Tree};

/// Where an id may be cited. Data and drawings contain letters and numbers that are none.
const CITES: &[&str] = &[
    "md", "rs", "py", "ts", "js", "go", "java", "sql", "lua", "proto", "sh",
];

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut stated = BTreeSet::new();
    let pages = |name: &'static str| {
        let of_docs = tree
            .files
            .iter()
            .filter(|file| file.path.starts_with("docs/"));
        of_docs.filter(move |file| file.path.ends_with(&format!("/{name}.md")))
    };
    let rules = || pages("rules").flat_map(statements);
    for (file, number, id) in rules().chain(pages("guarantees").flat_map(statements)) {
        if !stated.insert(id.to_owned()) {
            found.push(Finding::new(
                &file.path,
                number,
                format!("{id} is stated twice"),
            ));
        }
    }
    if let Some(promises) = pages("guarantees").next() {
        let answered: BTreeSet<&str> = promises.lines().flat_map(|(_, line)| ids(line)).collect();
        let unanswered = rules().filter(|(.., id)| !answered.contains(id));
        found.extend(unanswered.map(|(file, number, id)| {
            Finding::new(
                &file.path,
                number,
                format!("no promise of {} answers {id}", promises.path),
            )
        }));
    }
    let series: BTreeSet<&str> = stated.iter().map(|id| series(id)).collect();
    for file in tree.files.iter().filter(|file| file.has_ending(CITES)) {
        // `noqa` names rules of a linter.
        for (number, line) in file.lines().filter(|(_, line)| !line.contains("noqa")) {
            let unknown =
                ids(line).filter(|id| series.contains(self::series(id)) && !stated.contains(*id));
            found.extend(
                unknown
                    .map(|id| Finding::new(&file.path, number, format!("{id} is stated nowhere"))),
            );
        }
    }
    found.extend(missing_tests(tree));
    found
}

/// The ids that a page states: each is alone in the first cell of a row, or begins a paragraph as `**I5.**` does.
fn statements(file: &File) -> impl Iterator<Item = (&File, usize, &str)> {
    let stated = |line: &'_ str| -> Option<(usize, usize)> {
        let row = line.strip_prefix('|').and_then(|rest| rest.split_once('|'));
        let paragraph = line
            .strip_prefix("**")
            .and_then(|rest| rest.split_once(".**"));
        let (cell, _) = row.or(paragraph)?;
        let id = ids(cell).next()?;
        // Marks, a link or an anchor may stand around it, but no other word.
        let rest = cell.replacen(id, "", 1);
        let around = rest
            .split(['<', '(', '['])
            .map(|part| part.rsplit(['>', ')', ']']).next().unwrap_or(part));
        let alone = around
            .flat_map(str::chars)
            .all(|letter| !letter.is_alphanumeric());
        let at = id.as_ptr() as usize - line.as_ptr() as usize;
        alone.then_some((at, at + id.len()))
    };
    file.lines().filter_map(move |(number, line)| {
        let (from, to) = stated(line)?;
        Some((file, number, &line[from..to]))
    })
}

/// The letters of an id.
fn series(id: &str) -> &str {
    id.trim_end_matches(|letter: char| letter.is_ascii_digit())
}

/// A text that looks like an id: one or two capital letters and a number, and no part of a longer name.
fn ids(line: &str) -> impl Iterator<Item = &str> {
    let mut before = ' ';
    let words = line.split_inclusive(|letter: char| !letter.is_ascii_alphanumeric());
    words.filter_map(move |piece| {
        let word = piece.trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric());
        let after = piece[word.len()..].chars().next().unwrap_or(' ');
        let begins = !"_-./#:+%=\\".contains(std::mem::replace(&mut before, after));
        let ends = !"_%=".contains(after);
        let number = word.trim_start_matches(|letter: char| letter.is_ascii_uppercase());
        let shaped =
            (1..=2).contains(&(word.len() - number.len())) && (1..=3).contains(&number.len());
        let is_id = begins && ends && shaped && number.bytes().all(|digit| digit.is_ascii_digit());
        is_id.then_some(word)
    })
}

/// Tests that a table names in its last column and that do not exist.
fn missing_tests(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let tests = tests(tree);
    for page in tree
        .files
        .iter()
        .filter(|file| file.path.starts_with("docs/") && file.has_ending(&["md"]))
    {
        let mut within = false;
        for (number, line) in page.lines() {
            let cells = line.trim_end_matches([' ', '|']);
            let last = cells.rsplit(" | ").next().unwrap_or_default();
            within = line.starts_with('|') && (within || matches!(last.trim(), "test" | "tests"));
            let named = last.split('`').skip(1).step_by(2).filter(|_| within);
            // Each part of a name such as `held::one_holder` is a module, a file or a function.
            let parts = |name: &str| {
                name.trim_end_matches(".rs")
                    .split("::")
                    .all(|part| tests.contains(part))
            };
            for test in named.filter(|name| {
                !parts(name) && !tree.files.iter().any(|file| file.path.starts_with(name))
            }) {
                found.push(Finding::new(
                    &page.path,
                    number,
                    format!("no test is called `{test}`"),
                ));
            }
        }
    }
    found
}

/// Functions and modules in test code, and the files and folders below a `tests` folder.
fn tests(tree: &Tree) -> BTreeSet<&str> {
    let mut tests = BTreeSet::new();
    for file in tree
        .files
        .iter()
        .filter(|file| file.has_ending(&["rs", "py", "go"]))
    {
        let place = file
            .path
            .split_once("/tests/")
            .map_or("", |(_, place)| place);
        tests.extend(place.trim_end_matches(".rs").split('/'));
        tests.extend(file.test_lines().filter_map(|(_, line)| {
            let words = ["fn ", "mod ", "def ", "func "];
            let begins = words.iter().find_map(|word| line.split_once(word));
            begins?.1.split(['(', '<', ' ', ';']).next()
        }));
    }
    tests
}
