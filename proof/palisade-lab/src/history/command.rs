//! `palisade-lab check`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{History, Report, check, generate, self_test};

/// Checks a history against the lease model, or tests the checker itself
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The history: JSON lines as described in docs/reference/history-format.md
    #[arg(required_unless_present_any = ["self_test", "sample"])]
    file: Option<PathBuf>,
    /// Instead, check this many generated clean histories, and an illegal mutation of each
    #[arg(long, value_name = "HISTORIES", conflicts_with = "file")]
    self_test: Option<u64>,
    /// Instead, print the generated clean history of this seed
    #[arg(long, value_name = "SEED", conflicts_with_all = ["file", "self_test"])]
    sample: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const CLEAN: u8 = 0;
const VIOLATION: u8 = 1;
const UNREADABLE: u8 = 2;

/// How many violations are printed for people.
const SHOWN: usize = 20;

/// Exit status: 0 clean, 1 violation, 2 unreadable.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    let code = match (&args.file, args.sample) {
        (Some(file), _) => check_file(file, args.json),
        (None, Some(seed)) => sample(seed),
        (None, None) => try_checker(args.self_test.unwrap_or_default(), args.json),
    };
    ExitCode::from(code)
}

fn check_file(file: &Path, json: bool) -> u8 {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return unreadable(file, &error, json),
    };
    match History::parse(&text) {
        Ok(history) => print_report(&check(&history), json),
        Err(error) => unreadable(file, &error, json),
    }
}

fn unreadable(file: &Path, error: &dyn std::error::Error, json: bool) -> u8 {
    if json {
        let failure = serde_json::json!({ "file": file, "unreadable": error.to_string() });
        say(&format!("{failure}\n"));
    } else {
        eprintln!("palisade-lab: {}: {error}", file.display());
    }
    UNREADABLE
}

/// Prints; a failed write means that nobody is reading.
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn print_report(report: &Report, json: bool) -> u8 {
    if json {
        say(&(serde_json::to_string(report).unwrap_or_default() + "\n"));
    } else {
        let mut text = format!(
            "{} operations ({} unknown), {} locks, {} grants: {} violations\n",
            report.operations,
            report.unknown,
            report.locks,
            report.grants,
            report.violations.len()
        );
        for violation in report.violations.iter().take(SHOWN) {
            text += &format!(
                "  {:?} at {} {:?}: {}\n",
                violation.broken, violation.lock, violation.tokens, violation.what
            );
        }
        if report.violations.len() > SHOWN {
            text += &format!("  … and {} more\n", report.violations.len() - SHOWN);
        }
        say(&text);
    }
    if report.violations.is_empty() {
        CLEAN
    } else {
        VIOLATION
    }
}

fn sample(seed: u64) -> u8 {
    say(&generate::clean_text(seed, self_test::SHAPE));
    CLEAN
}

fn try_checker(rounds: u64, json: bool) -> u8 {
    let trial = self_test::run(1, rounds);
    if json {
        say(&(serde_json::to_string(&trial).unwrap_or_default() + "\n"));
    } else {
        let mut text = format!(
            "{} clean histories: {} false alarms {:?}\n{} illegal histories: {} missed {:?}\n",
            trial.clean,
            trial.false_alarms.len(),
            trial.false_alarms,
            trial.tried(),
            trial.missed.len(),
            trial.missed
        );
        for (kind, tried) in &trial.mutated {
            text += &format!("  {kind}: {tried}\n");
        }
        say(&text);
    }
    if trial.passed() { CLEAN } else { VIOLATION }
}
