//! A nightly job that appends one line for each store to a report, and continues where another run stopped.
//!
//! ```text
//!   machine 1  lock ─ claim ─ line 1 ─ line 2 ─ (frozen) ······················ line 3 ✗
//!                                             lease expires │
//!   machine 2                                              lock ─ claim ─ line 3 ─ line 4 ─ line 5
//! ```
//!
//! The first machine is not wrong to continue: it cannot know in time that it was frozen. Only the report can
//! refuse its line, and it does, because the second run's claim raised the fence. Without the fence the
//! report contains some stores twice, and the sum is wrong.

mod report;

use std::error::Error;
use std::io::BufRead;

use palisade_fence::rejection;

pub use report::{Fenced, Report, Unfenced};

/// Any error; a refusal by the fence is one of them.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every store is in the report.
    Done {
        /// The number of lines that this run wrote.
        written: u64,
    },
    /// A newer holder has claimed the report. This run wrote nothing after that.
    Refused {
        /// The number of lines that this run wrote before that.
        written: u64,
        /// The fence's message.
        reason: String,
    },
}

/// Appends the input to the report, one line for each store (`store,sum`), except lines that are already
/// there.
///
/// # Errors
/// Errors of the report or the input.
pub fn run(
    report: &mut impl Report,
    sales: impl BufRead,
    log: impl FnMut(String),
) -> Result<Outcome, Failure> {
    let mut written = 0;
    let Err(error) = append_all(report, sales, log, &mut written) else {
        return Ok(Outcome::Done { written });
    };
    match rejection(&*error) {
        Some(reject) => Ok(Outcome::Refused {
            written,
            reason: reject.to_string(),
        }),
        None => Err(error),
    }
}

fn append_all(
    report: &mut impl Report,
    sales: impl BufRead,
    mut log: impl FnMut(String),
    written: &mut u64,
) -> Result<(), Failure> {
    let there = report.start()?;
    log(format!("there are {} lines", there.lines().count()));
    for line in sales.lines() {
        let line = line?;
        if there.lines().any(|other| other == line) {
            continue;
        }
        report.append(&line)?;
        *written += 1;
        log(format!("wrote {line}"));
    }
    Ok(())
}
