//! Results that are older than the code they are about. Each line of docs/evidence with a date, as 2026-11-28, is a result; it
//! may name the commit too, as `e5235a3f`.

use std::collections::BTreeMap;
use std::process::Command;

use crate::shell::{read, root};
use crate::tree::{File, Tree};

/// A changed test says nothing about what was measured.
const NO_TESTS: &str = ":(exclude,glob)**/*_test.go";

/// Where the measured code is: the page, how the line begins, and the files whose changes make it stale, as git's
/// paths.
const MEASURED: &[(&str, &str, &[&str])] = &[
    (
        "docs/evidence/performance.md",
        "",
        &[
            "crates/palisade-core/src",
            "crates/palisade-pipeline/src",
            "crates/palisade-server/src",
            "crates/palisade-wal/src",
        ],
    ),
    (
        "docs/evidence/kubernetes.md",
        "",
        &[
            "clients/go/kubefence/*.go",
            NO_TESTS,
            "crates/palisade/src/cli/fence/k8s",
            "crates/palisade/src/cli/fence/k8s.rs",
        ],
    ),
    (
        "docs/evidence/frameworks.md",
        "| Python: ",
        &["clients/python/src"],
    ),
    (
        "docs/evidence/frameworks.md",
        "| Node: ",
        &["clients/typescript/src"],
    ),
    (
        "docs/evidence/frameworks.md",
        "| Go: ",
        &["clients/go/*.go", NO_TESTS],
    ),
    (
        "docs/evidence/frameworks.md",
        "| Java: ",
        &[
            "clients/java/src/main",
            "clients/java-shedlock/src/main",
            "clients/java-spring/src/main",
        ],
    ),
    (
        "docs/evidence/frameworks.md",
        "| Terraform ",
        &["crates/palisade/src/tfstate"],
    ),
    (
        "docs/evidence/frameworks.md",
        "| OpenTofu ",
        &["crates/palisade/src/tfstate"],
    ),
    (
        "docs/evidence/frameworks.md",
        "| First hour: ",
        &["deploy/check_first_hour.py", "docs/start/first-hour"],
    ),
];

/// A line with a result.
#[derive(Debug, PartialEq, Eq)]
struct Measured<'a> {
    page: &'a str,
    line: usize,
    date: &'a str,
    commit: Option<&'a str>,
    /// `None` where no row of the table says what was measured.
    folders: Option<&'static [&'static str]>,
}

/// A sentence for each group of results that have to be measured again.
///
/// # Errors
/// git cannot be asked.
pub(super) fn stale(tree: &Tree) -> Result<Vec<String>, String> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |page: &str, line: usize, what: String| {
        found
            .entry(format!("{page}: {what}"))
            .or_default()
            .push(line.to_string());
    };
    for result in tree.files.iter().flat_map(measured) {
        let Some(folders) = result.folders else {
            let what = "no row of xtask/src/release/evidence.rs says what it measures";
            add(result.page, result.line, what.to_owned());
            continue;
        };
        let mut log = Command::new("git");
        log.current_dir(root()).args(["log", "--format=%cs %h"]);
        if let Some(commit) = result.commit {
            log.arg(format!("{commit}..HEAD"));
        }
        // The newest commits come first; with a date alone, those of a later day count.
        let since = read(log.arg("--").args(folders)).map_err(|error| {
            format!(
                "{}:{}: does this clone have its commit? {error}",
                result.page, result.line
            )
        })?;
        let later = |line: &&str| result.commit.is_some() || line.get(..10) > Some(result.date);
        let since: Vec<&str> = since.lines().take_while(later).collect();
        if let Some(newest) = since.first() {
            let what = format!(
                "measured on {}; {} commits have changed {} since, the last one {newest}: measure again",
                result.date,
                since.len(),
                folders.join(", "),
            );
            add(result.page, result.line, what);
        }
    }
    let sentence =
        |(what, lines): (String, Vec<String>)| format!("{what} (lines {})", lines.join(", "));
    Ok(found.into_iter().map(sentence).collect())
}

fn measured(file: &File) -> impl Iterator<Item = Measured<'_>> {
    let lines = file
        .lines()
        .filter(|_| file.path.starts_with("docs/evidence/"));
    lines.filter_map(|(line, text)| {
        let row = MEASURED
            .iter()
            .find(|(page, begin, _)| *page == file.path && text.starts_with(begin));
        Some(Measured {
            page: &file.path,
            line,
            date: text
                .split([' ', ',', '.', '(', ')'])
                .find(|word| is_date(word))?,
            commit: text
                .split('`')
                .skip(1)
                .step_by(2)
                .find(|word| is_commit(word)),
            folders: row.map(|(_, _, folders)| *folders),
        })
    })
}

fn is_date(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    let numbers = parts
        .iter()
        .all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    numbers && parts.iter().map(|part| part.len()).eq([4, 2, 2])
}

fn is_commit(word: &str) -> bool {
    let digits = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (7..=40).contains(&word.len()) && word.bytes().all(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dated_line_of_the_evidence_is_a_result() {
        let text = "no date\n| Python: X | 2.1 | 2026-11-28 | `e5235a3f` |\n| Other: Y | 2026-11-22, `x` |\n";
        let tree = Tree::of(&[
            ("docs/evidence/frameworks.md", text),
            ("docs/use/a.md", text),
        ]);
        let found: Vec<_> = tree.files.iter().flat_map(measured).collect();
        let [python, other] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(
            (python.line, python.date, python.commit),
            (2, "2026-11-28", Some("e5235a3f"))
        );
        assert_eq!(python.folders, Some(&["clients/python/src"][..]));
        assert_eq!(
            (other.date, other.commit, other.folders),
            ("2026-11-22", None, None)
        );
    }
}
