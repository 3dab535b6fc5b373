//! Rules about the pages people read: README, links, the list of guarantees.

use std::collections::BTreeSet;

use super::Finding;
use crate::source::{File, Tree};

const RULES: &str = "docs/promise/rules.md";
const CONTENTS: &str = "docs/SUMMARY.md";
const GUARANTEES: &str = "docs/promise/guarantees.md";
const ACCESS: &str = "docs/operate/access.md";

/// Rules of docs/promise/rules.md that no line of docs/promise/guarantees.md answers, tests named there that do not exist, and ids
/// that appear twice.
pub(super) fn guarantees(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.file(GUARANTEES) else {
        return Vec::new();
    };
    let words: BTreeSet<&str> = page
        .text()
        .split(|letter: char| !letter.is_alphanumeric())
        .collect();
    let rules = tree.file(RULES).into_iter().flat_map(File::lines);
    let unanswered = rules
        .filter_map(|(number, line)| Some((number, rule_id(line)?)))
        .filter(|(_, rule)| !words.contains(rule))
        .map(|(number, rule)| {
            let what = format!("{GUARANTEES} does not mention {rule}");
            Finding::new(RULES, number, what)
        });
    let tests = test_names(tree);
    let named = page.lines().flat_map(|(number, line)| {
        let tests = promised_tests(line).into_iter();
        tests.map(move |test| (number, test))
    });
    let missing = missing(GUARANTEES, named, &tests);
    let mut seen = BTreeSet::new();
    let twice = page
        .lines()
        .filter_map(|(number, line)| Some((number, promise_id(line)?)))
        .filter(|(_, id)| !seen.insert(*id))
        .map(|(number, id)| Finding::new(GUARANTEES, number, format!("{id} appears twice")));
    unanswered.chain(missing).chain(twice).collect()
}

/// Tests that a table of docs/operate/access.md names in its column `test` and that do not exist.
pub(super) fn attacks(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.file(ACCESS) else {
        return Vec::new();
    };
    let mut within = false;
    let rows = page.lines().filter(|(_, line)| {
        within = line.starts_with('|') && (within || line.ends_with("| test |"));
        within
    });
    let named = rows.flat_map(|(number, line)| {
        let tests = spans_of_last_cell(line).into_iter();
        tests.map(move |test| (number, test))
    });
    missing(ACCESS, named, &test_names(tree)).collect()
}

/// The tests of a page that do not exist; each name comes with its line.
fn missing<'a>(
    page: &'static str,
    named: impl Iterator<Item = (usize, &'a str)>,
    tests: &BTreeSet<String>,
) -> impl Iterator<Item = Finding> {
    let last = |test: &'a str| test.rsplit("::").next().unwrap_or(test);
    let missing =
        named.filter(move |(_, test)| !tests.contains(last(test).trim_end_matches(".rs")));
    missing.map(move |(number, test)| {
        Finding::new(page, number, format!("no test is called `{test}`"))
    })
}

/// The id in the first cell of a promise's row: G or N, and a number.
fn promise_id(line: &str) -> Option<&str> {
    let id = line.strip_prefix("| ")?.split(" |").next()?;
    let number = id.strip_prefix(['G', 'N'])?;
    number.parse::<u32>().is_ok().then_some(id)
}

/// The id in the first cell of a rule's row: a letter and a number.
fn rule_id(line: &str) -> Option<&str> {
    let id = line.strip_prefix("| **")?.split("**").next()?;
    let number = id.trim_start_matches(|letter: char| letter.is_ascii_uppercase());
    (number.len() < id.len() && number.parse::<u32>().is_ok()).then_some(id)
}

/// The tests that a promise's row names: the code spans of its last cell.
fn promised_tests(line: &str) -> Vec<&str> {
    match promise_id(line).is_some_and(|id| id.starts_with('G')) {
        true => spans_of_last_cell(line),
        false => Vec::new(),
    }
}

fn spans_of_last_cell(line: &str) -> Vec<&str> {
    let last = line.trim_end_matches([' ', '|']).rsplit(" | ").next();
    let spans = last.unwrap_or_default().split('`');
    spans.skip(1).step_by(2).collect()
}

/// Functions in test code, and the files and folders below a `tests` folder.
fn test_names(tree: &Tree) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in tree.files.iter().filter(|file| file.has_ending(&["rs"])) {
        if let Some((_, place)) = file.path.split_once("/tests/") {
            names.extend(place.trim_end_matches(".rs").split('/').map(str::to_owned));
        }
        for (number, line) in file.code_lines() {
            let function = line.split_once("fn ").filter(|_| file.is_test(number));
            let name = function.and_then(|(_, rest)| rest.split(['(', '<']).next());
            names.extend(name.map(str::to_owned));
        }
    }
    names
}

/// Pages of `docs/` that its table of contents does not name.
pub(super) fn not_in_contents(tree: &Tree) -> Vec<Finding> {
    let Some(contents) = tree.file(CONTENTS) else {
        return Vec::new();
    };
    let named: BTreeSet<String> = links(contents.text())
        .into_iter()
        .map(|(_, target)| resolved(CONTENTS, &target))
        .collect();
    let pages = tree.files.iter().filter(|file| {
        let inside = file.path.starts_with("docs/") && file.path != CONTENTS;
        inside && file.has_ending(&["md"])
    });
    pages
        .filter(|page| !named.contains(&page.path))
        .map(|page| Finding::new(&page.path, 1, format!("not in {CONTENTS}")))
        .collect()
}

pub(super) fn dead_links(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for page in tree.files.iter().filter(|file| file.has_ending(&["md"])) {
        for (line, target) in links(&prose(page.text())) {
            let outside = target.contains("://") || target.starts_with("mailto:");
            if outside {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((target.as_str(), ""));
            let place = if path.is_empty() {
                page.path.clone()
            } else {
                resolved(&page.path, path)
            };
            if !place.is_empty() && !tree.has(&place) {
                found.push(Finding::new(
                    &page.path,
                    line,
                    format!("`{target}` leads nowhere"),
                ));
            } else if let Some(file) = tree
                .file(&place)
                .filter(|_| place.ends_with(".md") && !heading.is_empty())
                && !anchors(file.text()).iter().any(|anchor| anchor == heading)
            {
                found.push(Finding::new(
                    &page.path,
                    line,
                    format!("`{place}` has no heading `#{heading}`"),
                ));
            }
        }
    }
    found
}

/// The page with fenced blocks and code spans blanked, line for line.
pub(crate) fn prose(text: &str) -> String {
    let mut fence: Option<&str> = None;
    let mut lines = String::with_capacity(text.len());
    for line in text.lines() {
        let start = line.trim_start();
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(close)) if open == close => fence = None,
            (None, None) => lines.push_str(&without_spans(line)),
            _ => {}
        }
        lines.push('\n');
    }
    lines
}

/// Blanks `code spans`; a span holds no backtick, and one that does not close on its line is left alone.
fn without_spans(line: &str) -> String {
    let mut parts = line.split('`');
    let mut clean = parts.next().unwrap_or_default().to_owned();
    while let Some(inside) = parts.next() {
        match parts.next() {
            Some(after) => {
                clean.extend(
                    std::iter::once(' ')
                        .chain(inside.chars().map(|_| ' '))
                        .chain([' ']),
                );
                clean.push_str(after);
            }
            None => {
                clean.push('`');
                clean.push_str(inside);
            }
        }
    }
    clean
}

/// The targets of inline links, images and reference definitions, with their lines.
fn links(prose: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(prose.lines()) {
        let inline = line
            .match_indices("](")
            .map(|(at, opening)| &line[at + opening.len()..]);
        let defined = line
            .trim_start()
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("]: "));
        let defined = defined
            .filter(|(name, _)| !name.starts_with('^'))
            .map(|(_, target)| target);
        for target in inline.chain(defined) {
            let target = match target.trim_start().strip_prefix('<') {
                Some(bracketed) => bracketed.split('>').next(),
                None => target.trim_start().split([')', ' ']).next(),
            };
            found.extend(
                target
                    .filter(|target| !target.is_empty())
                    .map(|target| (number, target.to_owned())),
            );
        }
    }
    found
}

/// A link of a page as a path from the root; empty for the root itself.
fn resolved(page: &str, link: &str) -> String {
    let link = link.split('?').next().unwrap_or_default();
    let mut segments: Vec<&str> = match link.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => page
            .rsplit_once('/')
            .map_or(Vec::new(), |(folder, _)| folder.split('/').collect()),
    };
    for segment in link.split('/') {
        match segment {
            "" | "." => {}
            // One step too many must not come out as the root.
            ".." if segments.last().is_none_or(|last| *last == "..") => segments.push(".."),
            ".." => drop(segments.pop()),
            name => segments.push(name),
        }
    }
    segments.join("/")
}

/// The anchors of a page's headings, as code forges derive them, and those set by hand.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        for mark in ["id=\"", "name=\""] {
            found.extend(
                line.split(mark)
                    .skip(1)
                    .filter_map(|rest| rest.split('"').next())
                    .map(str::to_owned),
            );
        }
        let title = line.trim_start_matches('#');
        let depth = line.len() - title.len();
        if fenced || !(1..=6).contains(&depth) || !title.starts_with(' ') {
            continue;
        }
        let letters = title
            .trim()
            .chars()
            .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
        let slug: String = letters
            .flat_map(char::to_lowercase)
            .map(|letter| if letter == ' ' { '-' } else { letter })
            .collect();
        let same = (1..).map(|count| format!("{slug}-{count}"));
        let free = std::iter::once(slug.clone())
            .chain(same)
            .find(|slug| !found.contains(slug));
        found.extend(free);
    }
    found
}
