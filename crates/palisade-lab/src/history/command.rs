//! `palisade-lab check`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::{History, Report, check, generate, self_test};

/// Checks a history against the lease model, or puts the checker itself on trial.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The history: JSON lines as described in docs/history-format.md
    #[arg(required_unless_present_any = ["self_test", "sample"])]
    file: Option<PathBuf>,
    /// Instead checks this many generated clean histories, and one made illegal from each
    #[arg(long, value_name = "HISTORIES", conflicts_with = "file")]
    self_test: Option<u64>,
    /// Instead prints the generated clean history of this seed
    #[arg(long, value_name = "SEED", conflicts_with_all = ["file", "self_test"])]
    sample: Option<u64>,
    /// Prints one JSON object
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

fn check_file(file: &std::path::Path, json: bool) -> u8 {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return unreadable(file, &error, json),
    };
    match History::parse(&text) {
        Ok(history) => tell(&check(&history), json),
        Err(error) => unreadable(file, &error, json),
    }
}

fn unreadable(file: &std::path::Path, error: &dyn std::error::Error, json: bool) -> u8 {
    if json {
        let told = serde_json::json!({ "file": file, "unreadable": error.to_string() });
        println!("{told}");
    } else {
        eprintln!("palisade-lab: {}: {error}", file.display());
    }
    UNREADABLE
}

fn tell(report: &Report, json: bool) -> u8 {
    if json {
        println!("{}", serde_json::to_string(report).unwrap_or_default());
    } else {
        println!(
            "{} operations ({} unknown), {} locks, {} grants: {} violations",
            report.operations,
            report.unknown,
            report.locks,
            report.grants,
            report.violations.len()
        );
        for violation in report.violations.iter().take(SHOWN) {
            println!(
                "  {:?} at {} {:?}: {}",
                violation.broken, violation.lock, violation.tokens, violation.what
            );
        }
        if report.violations.len() > SHOWN {
            println!("  … and {} more", report.violations.len() - SHOWN);
        }
    }
    match report.violations.is_empty() {
        true => CLEAN,
        false => VIOLATION,
    }
}

fn sample(seed: u64) -> u8 {
    print!("{}", generate::clean_text(seed, self_test::SHAPE));
    CLEAN
}

fn try_checker(rounds: u64, json: bool) -> u8 {
    let trial = self_test::run(1, rounds);
    if json {
        println!("{}", serde_json::to_string(&trial).unwrap_or_default());
    } else {
        println!(
            "{} clean histories: {} false alarms {:?}",
            trial.clean,
            trial.false_alarms.len(),
            trial.false_alarms
        );
        println!(
            "{} illegal histories: {} missed {:?}",
            trial.tried(),
            trial.missed.len(),
            trial.missed
        );
        for (kind, tried) in &trial.mutated {
            println!("  {kind}: {tried}");
        }
    }
    match trial.passed() {
        true => CLEAN,
        false => VIOLATION,
    }
}
