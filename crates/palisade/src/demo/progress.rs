//! Prints the events of an act as they happen, with measured times.

use std::io::{self, Write as _};

use super::recorder::{Note, Snapshot};
use super::timeline::{OperationKind, duration, label};

/// Progress for people; silent when the output is JSON.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgressLines {
    silent: bool,
}

impl ProgressLines {
    pub(super) fn new(silent: bool) -> ProgressLines {
        ProgressLines { silent }
    }

    /// Prints a line.
    pub(super) fn line(self, text: &str) {
        if !self.silent {
            let mut out = io::stdout().lock();
            // If nobody reads the lines, the pictures are still written.
            let _ = writeln!(out, "{text}").and_then(|()| out.flush());
        }
    }

    /// Prints an event at this time of the act.
    pub(super) fn at(self, ms: f64, text: &str) {
        self.line(&format!("  {ms:>8.1} ms  {text}"));
    }

    /// Prints the event that the demo waits for.
    pub(super) fn meanwhile(self, text: &str) {
        self.line(&format!("               … {text}"));
    }

    /// Prints an operation of a client and the store's verdict.
    pub(super) fn operation(self, snapshot: &Snapshot, client: &str, kind: OperationKind) {
        let operation = snapshot.operation(client, kind);
        if let Some((operation, ms)) = operation.and_then(|it| Some((it, it.message.decided_ms?))) {
            self.at(ms, &label(operation).join(", "));
        }
    }

    /// Prints a client's check of its lease before its write.
    pub(super) fn check(self, snapshot: &Snapshot, client: &str) {
        if let Some((at_ms, remaining_ms)) = snapshot.checked(client) {
            let left = duration(remaining_ms);
            self.at(
                at_ms,
                &format!(
                    "{client} checks its lease: it is valid for another {left}, so {client} writes"
                ),
            );
        }
    }

    /// Prints the answer that a client got to its update.
    pub(super) fn answer(self, snapshot: &Snapshot, client: &str) {
        let answered = snapshot
            .operation(client, OperationKind::Write)
            .and_then(|write| write.message.answered_ms);
        let Some(ms) = answered else { return };
        let word = snapshot.notes(client).find_map(|note| match note {
            Note::Acknowledged { .. } => Some("“done”"),
            Note::Rejected { .. } => Some("“rejected”, and adds nothing"),
            _ => None,
        });
        self.at(
            ms,
            &format!("{client} gets {}", word.unwrap_or("no clear answer")),
        );
    }
}
