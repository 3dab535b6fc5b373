//! `palisade run nightly -- nightly-job REPORT_FOLDER < sales.csv`

use std::path::PathBuf;
use std::process::ExitCode;

use nightly_job::{Failure, Fenced, Outcome, Unfenced, run};

/// The exit status of a run that was refused because of a newer one.
const REFUSED: u8 = 3;

fn main() -> Result<ExitCode, Failure> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let unfenced = arguments
        .first()
        .is_some_and(|first| first == "--danger-unfenced");
    if unfenced {
        arguments.remove(0);
    }
    let [folder] = arguments.as_slice() else {
        return Err("usage: nightly-job [--danger-unfenced] REPORT_FOLDER < sales.csv".into());
    };
    let folder = PathBuf::from(folder);
    let (sales, log) = (std::io::stdin().lock(), |line| println!("{line}"));
    let outcome = if unfenced {
        run(&mut Unfenced::open(&folder), sales, log)?
    } else {
        run(&mut Fenced::open(&folder)?, sales, log)?
    };
    match outcome {
        Outcome::Done { written } => {
            println!("done: this run wrote {written} lines");
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Refused { written, reason } => {
            eprintln!("{reason}. This run had written {written} lines, which remain in the report");
            Ok(ExitCode::from(REFUSED))
        }
    }
}
