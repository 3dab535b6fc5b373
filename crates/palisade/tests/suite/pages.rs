//! The commands of the pages that people read: README.md and docs/.
//!
//! - A block of language `sh` is run, all of a page in one shell, in order. The comment lines directly below a command are
//!   its output; `…` stands for any text within a line.
//! - `sh norun` is not run: the command takes too long or needs what is not there. Where it is a `palisade` command, its
//!   flags must exist.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{palisade, text};

/// A command with its expected output.
struct Step {
    command: String,
    output: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Pages that others run: `clients/howto` and `deploy/check_first_hour.py`.
const RUN_ELSEWHERE: [&str; 2] = ["docs/use/howto", "docs/start/first-hour"];

/// The pages with their text.
fn pages() -> BTreeMap<String, String> {
    let mut pages = BTreeMap::new();
    let mut rest = vec!["README.md".to_owned(), "docs".to_owned()];
    while let Some(name) = rest.pop() {
        let path = root().join(&name);
        if path.is_dir() && !RUN_ELSEWHERE.contains(&name.as_str()) {
            let inside = std::fs::read_dir(path).unwrap();
            rest.extend(inside.map(|it| format!("{name}/{}", it.unwrap().file_name().display())));
        } else if path.extension().is_some_and(|it| it == "md") {
            pages.insert(name, std::fs::read_to_string(path).unwrap());
        }
    }
    pages
}

/// The blocks of a page: the words behind the fence, and the lines.
fn blocks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks = Vec::new();
    let mut open = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language, Vec::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// Whether the shell finds nothing missing at the end.
fn is_whole(command: &str) -> bool {
    let checked = Command::new("bash")
        .args(["-n", "-c", command])
        .output()
        .unwrap();
    checked.status.success() && checked.stderr.is_empty() && !command.ends_with("\\\n")
}

/// The commands of a block with their outputs.
fn steps(lines: &[&str]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut command, mut has_output) = (String::new(), false);
    for line in lines {
        if command.is_empty() {
            if line.is_empty() {
                has_output = false;
                continue;
            }
            if let Some(comment) = line.strip_prefix("# ") {
                if has_output {
                    steps.last_mut().unwrap().output.push(comment.to_owned());
                }
                continue;
            }
        }
        writeln!(command, "{line}").unwrap();
        if is_whole(&command) {
            steps.push(Step {
                command: std::mem::take(&mut command),
                output: Vec::new(),
            });
            has_output = true;
        }
    }
    assert_eq!(command, "", "this command has no end");
    steps
}

/// One script for all steps. Their outputs go to files; a server in the background has begun to serve when it has printed
/// something.
fn script(steps: &[Step]) -> String {
    let mut script = "ip link set lo up\ntrap 'kill $(jobs -p)' EXIT\n".to_owned();
    for (at, Step { command, .. }) in steps.iter().enumerate() {
        writeln!(script, "{{ {command}}} >{at} 2>&1").unwrap();
        if command.split('#').next().unwrap().trim_end().ends_with('&') {
            // A warning comes before it listens.
            writeln!(script, "until grep -qv ' WARN ' {at}; do sleep 0.05; done").unwrap();
        }
    }
    script
}

/// Whether a line is the promised one, where `…` matches anything.
fn is_like(promised: &str, line: &str) -> bool {
    let mut parts = promised.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap()) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    for (at, part) in parts.iter().enumerate() {
        let found = if at + 1 == parts.len() {
            rest.strip_suffix(part).map(|_| "")
        } else {
            rest.split_once(part).map(|(_, rest)| rest)
        };
        match found {
            Some(next) => rest = next,
            None => return false,
        }
    }
    rest.is_empty()
}

/// The differences from a page's promises, if there are any.
fn differences(page: &str) -> Vec<String> {
    let is_run = |(language, _): &(&str, _)| *language == "sh";
    let run = blocks(page).into_iter().filter(is_run);
    let steps: Vec<Step> = run.flat_map(|(_, lines)| steps(&lines)).collect();
    if steps.is_empty() {
        return Vec::new();
    }
    let dir = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_palisade")).parent().unwrap();
    let mut path = std::ffi::OsString::from(binary);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    // In a network of its own, so that the ports of the pages are free; with mounts of its own, for a small disk.
    let mut shell = Command::new("unshare");
    shell.args(["--net", "--mount", "bash", "-c", &script(&steps)]);
    shell.env("PATH", path).current_dir(dir.path());
    for name in ["AUTHORITY", "LOCK", "LOCK_TOKEN", "FENCING_TOKEN", "LOG"] {
        shell.env_remove(format!("PALISADE_{name}"));
    }
    let ended = shell.output().unwrap();
    let mut differences = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let printed = std::fs::read_to_string(dir.path().join(at.to_string()));
        let printed = printed.unwrap_or_else(|_| panic!("{}", text(&ended.stderr)));
        let lines: Vec<&str> = printed.lines().collect();
        let differs = lines.len() != step.output.len()
            || step
                .output
                .iter()
                .zip(&lines)
                .any(|(promised, line)| !is_like(promised, line));
        if !step.output.is_empty() && differs {
            differences.push(format!("{}{printed}", step.command));
        }
    }
    differences
}

#[test]
fn every_command_of_a_page_prints_what_the_page_says() {
    let mut run = 0;
    for (name, page) in pages() {
        let differences = differences(&page);
        assert!(
            differences.is_empty(),
            "{name}:\n{}",
            differences.join("\n")
        );
        run += blocks(&page)
            .iter()
            .filter(|(language, _)| *language == "sh")
            .count();
    }
    assert!(run > 0);
}

#[test]
fn every_flag_of_a_page_exists() {
    for (name, page) in pages() {
        for (language, lines) in blocks(&page) {
            assert!(!language.is_empty(), "{name}: a block without a language");
            if language != "sh" && language != "sh norun" {
                continue;
            }
            for Step { command, .. } in steps(&lines) {
                let before = command.split(" -- ").next().unwrap();
                let before = before.split(" #").next().unwrap();
                let mut words = before.split_whitespace();
                if words.next() != Some("palisade") {
                    continue;
                }
                let words: Vec<&str> = words.collect();
                let verbs = words.iter().take_while(|word| {
                    word.chars()
                        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
                });
                let verbs: Vec<&str> = verbs
                    .copied()
                    .filter(|word| !word.starts_with('-'))
                    .take(2)
                    .collect();
                let help = (1..=verbs.len()).rev().find_map(|count| {
                    let help = palisade()
                        .args(&verbs[..count])
                        .arg("--help")
                        .output()
                        .unwrap();
                    help.status.success().then(|| text(&help.stdout))
                });
                let help = help.unwrap_or_else(|| panic!("{name}: no such command: {command}"));
                for flag in words.iter().filter(|word| word.starts_with("--")) {
                    let flag = flag.split('=').next().unwrap();
                    assert!(help.contains(flag), "{name}: {flag} in {command}");
                }
            }
        }
    }
}

/// The control: a page with a broken promise is found.
#[test]
fn a_page_that_promises_something_else_is_found() {
    let page = |promise: &str| format!("```sh\necho one; echo two\n{promise}\n```\n");
    assert_eq!(differences(&page("# one\n# t…o")), [""; 0]);
    for broken in [
        "# one",
        "# one\n# three",
        "# one\n# two\n# three",
        "# one\n# …x",
    ] {
        assert_eq!(differences(&page(broken)).len(), 1, "{broken}");
    }
}
