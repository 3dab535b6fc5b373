//! The instructions of the hot path, counted by callgrind and compared with a committed baseline. A
//! count does not depend on what else the machine does.
//!
//! ```text
//!   each step, N and 3 N times ─► callgrind ─► (difference) / 2 N ─► bench/instructions.ARCH.txt
//! ```
//!
//! The difference leaves out what starting up costs. Dearer than the tolerance fails, and so does
//! cheaper: then the baseline is out of date and would hide the next step back.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{cargo, read, root};

/// How far a step may be from its baseline, in per cent. Another folder or patch version of the compiler moves
/// counts by up to five.
const TOLERANCE: f64 = 8.0;

/// Turns of the shorter run.
const TURNS: u64 = 2_000;

/// A step of the hot path and the instructions of one turn.
type Counts = Vec<(String, f64)>;

/// Counts, then compares with the baseline or writes it.
///
/// # Errors
/// It could not be counted, or a step is out of tolerance; the message names them.
pub(crate) fn measure(bless: bool) -> Result<(), String> {
    let mut counts = Counts::new();
    for program in build()? {
        let steps = read(&mut Command::new(&program))?;
        for step in steps.lines() {
            let few = count(&program, step, TURNS)?;
            let many = count(&program, step, 3 * TURNS)?;
            let turns = (2 * TURNS) as f64;
            counts.push((step.to_owned(), many.saturating_sub(few) as f64 / turns));
        }
    }
    let (path, name) = baseline();
    if bless {
        let folder = path.parent().unwrap_or(&path);
        return std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, written(&counts)))
            .map(|()| println!("bench: wrote {name}"))
            .map_err(|error| format!("{name}: {error}"));
    }
    let Ok(text) = std::fs::read_to_string(&path) else {
        // Counts of another processor say nothing here.
        println!("bench: no {name} yet; --bless writes it");
        return Ok(());
    };
    let (table, verdict) = compare(&parsed(&text)?, &counts, TOLERANCE);
    print!("{table}");
    verdict.map_err(|out| {
        format!(
            "{out}: more than {TOLERANCE} % from {name}; mend it, or say in the commit why it \
             is so and run `cargo xtask bench instructions --bless`"
        )
    })
}

/// Builds the programs of the server and of the client, optimised as a release is. Nothing else is built in that profile here.
pub(crate) fn building() -> Command {
    let scope = [
        "bench",
        "--no-run",
        "--quiet",
        "--locked",
        "--package",
        "palisade-instructions",
    ];
    let mut build = cargo(&scope);
    // In many small units the compiler inlines less: apply-pair was 7 % dearer that way.
    build.env("CARGO_INCREMENTAL", "0");
    build
}

fn build() -> Result<Vec<PathBuf>, String> {
    let messages = read(building().arg("--message-format=json"))?;
    let programs = programs(&messages);
    if programs.is_empty() {
        return Err("cargo built no benchmark of palisade-instructions".to_owned());
    }
    Ok(programs)
}

/// The benchmarks that cargo reports, in the order of their names, whichever was built first.
fn programs(messages: &str) -> Vec<PathBuf> {
    let mut reports: Vec<&str> = messages
        .lines()
        .filter(|line| line.contains(r#""kind":["bench"]"#))
        .collect();
    // The packages are the same, and then comes the name.
    reports.sort_unstable();
    let paths = reports
        .iter()
        .filter_map(|line| line.split_once("\"executable\":\"")?.1.split('"').next());
    paths.map(PathBuf::from).collect()
}

/// The instructions of the whole program.
fn count(program: &Path, step: &str, turns: u64) -> Result<u64, String> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([step, &turns.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, number)| number.trim().parse().ok());
    match collected {
        Some(number) if output.status.success() => Ok(number),
        _ => Err(format!("callgrind on `{step}`: {}", said.trim())),
    }
}

fn baseline() -> (PathBuf, String) {
    let name = format!("bench/instructions.{}.txt", std::env::consts::ARCH);
    (root().join(&name), name)
}

fn written(counts: &Counts) -> String {
    let mut text = String::from(
        "# Instructions of one turn of each step, counted by callgrind.\n\
         # Written by `cargo xtask bench instructions --bless`, compared by `cargo xtask test`.\n",
    );
    for (step, count) in counts {
        let _ = writeln!(text, "{step} {count:.0}");
    }
    text
}

fn parsed(text: &str) -> Result<Counts, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (step, count) = line.split_once(' ')?;
            Some((step.to_owned(), count.trim().parse().ok()?))
        })
        .collect::<Option<_>>()
        .ok_or_else(|| "the baseline holds a line that is no step and count".to_owned())
}

/// A table, and the steps that are out of tolerance.
fn compare(old: &Counts, new: &Counts, tolerance: f64) -> (String, Result<(), String>) {
    let mut table = format!("{:<14}{:>12}{:>12}{:>9}\n", "step", "baseline", "now", "");
    let mut out = Vec::new();
    for (step, now) in new {
        let Some((_, before)) = old.iter().find(|(name, _)| name == step) else {
            let _ = writeln!(table, "{step:<14}{:>12}{now:>12.0}", "–");
            out.push(format!("{step} has no baseline"));
            continue;
        };
        let change = (now / before - 1.0) * 100.0;
        let _ = writeln!(table, "{step:<14}{before:>12.0}{now:>12.0}{change:>+8.1}%");
        if change.abs() > tolerance {
            out.push(format!("{step} {change:+.1} %"));
        }
    }
    let gone = old
        .iter()
        .filter(|(name, _)| new.iter().all(|(step, _)| step != name));
    out.extend(gone.map(|(name, _)| format!("{name} is not measured any more")));
    let verdict = if out.is_empty() {
        Ok(())
    } else {
        Err(out.join(", "))
    };
    (table, verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(all: &[(&str, f64)]) -> Counts {
        all.iter()
            .map(|(step, count)| ((*step).to_owned(), *count))
            .collect()
    }

    #[test]
    fn programs_are_in_the_order_of_their_names() {
        let report = |kind: &str, name: &str| {
            format!(
                r#"{{"package_id":"p","target":{{"kind":["{kind}"],"name":"{name}"}},"executable":"/{name}"}}"#
            )
        };
        let messages = [
            report("bench", "server"),
            report("lib", "core"),
            report("bench", "client"),
        ];
        let found = programs(&messages.join("\n"));
        assert_eq!(found, [Path::new("/client"), Path::new("/server")]);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let all = counts(&[("wire-in", 1_234.0), ("apply-pair", 99.0)]);
        assert_eq!(parsed(&written(&all)), Ok(all));
        assert!(parsed("wire-in many\n").is_err());
    }

    #[test]
    fn a_tenth_dearer_or_cheaper_is_out_and_a_hundredth_is_not() {
        let old = counts(&[("apply-pair", 1_000.0)]);
        let verdict = |now| compare(&old, &counts(&[("apply-pair", now)]), TOLERANCE).1;
        assert_eq!(verdict(1_010.0), Ok(()));
        assert_eq!(verdict(990.0), Ok(()));
        assert_eq!(verdict(1_100.0), Err("apply-pair +10.0 %".to_owned()));
        assert!(verdict(900.0).is_err());
    }

    #[test]
    fn a_step_cannot_come_or_go_unnoticed() {
        let (some, none) = (counts(&[("a", 1.0)]), Counts::new());
        assert!(compare(&some, &none, TOLERANCE).1.is_err());
        assert!(compare(&none, &some, TOLERANCE).1.is_err());
    }
}
