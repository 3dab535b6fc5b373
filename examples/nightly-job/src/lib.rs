//! A nightly job that appends one line a store to a report, and goes on where another run left off.
//!
//! ```text
//!   machine 1  lock ─ claim ─ line 1 ─ line 2 ─ (frozen) ······················ line 3 ✗
//!                                             lease expires │
//!   machine 2                                              lock ─ claim ─ line 3 ─ line 4 ─ line 5
//! ```
//!
//! The first machine is not wrong to go on: nothing on it can know in time that it was frozen. Only the
//! report can refuse its line, and it does, because the second run's claim raised the fence. Without the
//! fence the report has some stores twice, and the sum is wrong.

mod report;

use std::error::Error;
use std::io::BufRead;

pub use report::{Fenced, Report, Unfenced};

/// What can fail, besides a line that was refused.
pub type Failure = Box<dyn Error + Send + Sync>;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every store is in the report.
    Done {
        /// How many lines were of this run.
        written: u64,
    },
    /// A newer holder has been at the report. Nothing of this run came after that.
    Refused {
        /// How many lines were of this run, before.
        written: u64,
        /// What the fence said.
        reason: String,
    },
}

/// Appends to the report what comes in, one line a store (`store,sum`), except what is there already.
///
/// # Errors
/// What the report or the input met.
pub fn run(
    report: &mut impl Report,
    sales: impl BufRead,
    mut tell: impl FnMut(String),
) -> Result<Ending, Failure> {
    let mut written = 0;
    let there = match report.start()? {
        Ok(there) => there,
        Err(reason) => return Ok(Ending::Refused { written, reason }),
    };
    tell(format!("there are {} lines", there.lines().count()));
    for line in sales.lines() {
        let line = line?;
        if there.lines().any(|other| other == line) {
            continue;
        }
        if let Err(reason) = report.append(&line)? {
            return Ok(Ending::Refused { written, reason });
        }
        written += 1;
        tell(format!("wrote {line}"));
    }
    Ok(Ending::Done { written })
}
