//! The history of resources: each call to a resource, and its answer, on the clock of this machine.
//!
//! [`turn`](super::turn) and this module import each other: its lanes write here.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::Timestamp;

use super::locks::Grant;
use super::resource::Answer;
use super::turn::Lane;
use crate::chaos::event::{Operation, ResourceLine};

/// Numbers the calls of this process.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// The last element of a set, without its padding: it names the write that made this content. Nothing was written yet
/// if there is none.
pub(super) fn last_of(set: &[String]) -> String {
    let last = set.last().map(|last| last.trim_end_matches('_'));
    last.unwrap_or_default().to_owned()
}

/// A line without any of the fields that only some lines have.
fn line(at: Timestamp, id: &str) -> ResourceLine {
    ResourceLine {
        at: at.as_nanos(),
        id: id.to_owned(),
        resource: None,
        call: None,
        token: None,
        answer: None,
        content: None,
        highest: None,
    }
}

/// The lines of a read without a token that is over.
pub(super) fn last_read(
    name: &str,
    sent: Timestamp,
    set: &[String],
) -> impl Iterator<Item = String> {
    let id = format!("last/{name}");
    let call = ResourceLine {
        resource: Some(name.to_owned()),
        call: Some(Operation::Read),
        ..line(sent, &id)
    };
    let answer = ResourceLine {
        answer: Some("admitted".to_owned()),
        content: Some(last_of(set)),
        ..line(BootClock.now(), &id)
    };
    let lines = [call, answer].into_iter();
    lines.filter_map(|line| serde_json::to_string(&line).ok())
}

/// Sends a line to the director at once, as `say` does.
fn report(line: &ResourceLine) {
    let Ok(text) = serde_json::to_string(line) else {
        return;
    };
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

impl Lane {
    /// Makes a call to a resource; if a history is recorded, reports it before it is sent, and its answer. A call
    /// without a clear answer has none: its outcome is unknown.
    pub(super) async fn recorded<T>(
        &self,
        (step, name, grant): (Operation, &str, &Grant),
        writes: Option<String>,
        asking: impl Future<Output = Answer<T>>,
        found: impl Fn(&T) -> Option<String>,
    ) -> Answer<T> {
        if !self.part.records {
            return asking.await;
        }
        let id = format!(
            "{}/{}",
            self.part.name,
            CALLS.fetch_add(1, Ordering::Relaxed)
        );
        report(&ResourceLine {
            resource: Some(name.to_owned()),
            call: Some(step),
            token: grant.token,
            content: writes,
            ..line(BootClock.now(), &id)
        });
        let answer = asking.await;
        let back = line(BootClock.now(), &id);
        match &answer {
            Answer::Admitted(value) => report(&ResourceLine {
                answer: Some("admitted".to_owned()),
                content: found(value),
                ..back
            }),
            Answer::Rejected { highest } => report(&ResourceLine {
                answer: Some("rejected".to_owned()),
                highest: *highest,
                ..back
            }),
            Answer::Unknown(_) => {}
        }
        answer
    }
}
