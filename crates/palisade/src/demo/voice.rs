//! The account of an act, told while it happens, in measured times.

use std::io::{self, Write as _};

use super::ledger::{Note, Told};
use super::timeline::{Admission, Operation, OperationKind};

/// Prints for people; says nothing where programs read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Voice {
    silent: bool,
}

impl Voice {
    pub(super) fn new(silent: bool) -> Voice {
        Voice { silent }
    }

    /// A line.
    pub(super) fn say(self, text: &str) {
        if !self.silent {
            let mut out = io::stdout().lock();
            // A reader that went away misses the account; the pictures are written all the same.
            let _ = writeln!(out, "{text}").and_then(|()| out.flush());
        }
    }

    /// What happened at a moment of the act.
    pub(super) fn at(self, ms: f64, text: &str) {
        self.say(&format!("  {ms:>8.1} ms  {text}"));
    }

    /// What takes a while now.
    pub(super) fn meanwhile(self, text: &str) {
        self.say(&format!("               … {text}"));
    }

    /// An operation of a client, as the store decided it.
    pub(super) fn operation(self, told: &Told, client: &str, kind: OperationKind) {
        let Some(operation) = told.operation(client, kind) else { return };
        let message = &operation.message;
        let Some(ms) = message.decided_ms.or(message.sent_ms) else { return };
        self.at(ms, &format!("{client}  {}", words(operation)));
    }

    /// The check of its lease that a client made before it wrote.
    pub(super) fn check(self, told: &Told, client: &str) {
        if let Some((at_ms, remaining_ms)) = told.checked(client) {
            let left = seconds(remaining_ms);
            self.at(at_ms, &format!("{client}  checks its lease: it holds, for another {left}; so it writes"));
        }
    }

    /// What a client was told about its update.
    pub(super) fn answer(self, told: &Told, client: &str) {
        let answered = told.operation(client, OperationKind::Write).and_then(|write| write.message.answered_ms);
        let Some(ms) = answered else { return };
        let word = told.notes(client).find_map(|note| match note {
            Note::Acknowledged { .. } => Some("“done”"),
            Note::Rejected { .. } => Some("“rejected”, and adds nothing"),
            _ => None,
        });
        self.at(ms, &format!("{client}  is told {}", word.unwrap_or("nothing it can use")));
    }
}

fn words(operation: &Operation) -> String {
    let token = operation.token.map(|token| format!(" with token {token}")).unwrap_or_default();
    let value = operation.value.as_deref().map(|text| if text.is_empty() { "nothing" } else { text });
    let asked = match (operation.operation, value) {
        (OperationKind::Claim, _) => format!("claims{token}"),
        (OperationKind::Read, Some("nothing")) => format!("reads the list{token}: it is empty"),
        (OperationKind::Read, value) => format!("reads the list{token}: {}", value.unwrap_or("no answer yet")),
        (OperationKind::Write, Some(value)) => format!("writes the list “{value}”{token}"),
        // The writer has not told yet what it sent; it is stopped.
        (OperationKind::Write, None) => "’s write arrives".to_owned(),
    };
    let verdict = match operation.verdict {
        Some(Admission::Unchecked) if operation.operation == OperationKind::Read => "",
        Some(Admission::Unchecked) => ": done, nothing is checked",
        Some(Admission::Admitted) if operation.operation == OperationKind::Claim => ": the fence rises to it",
        Some(Admission::Admitted) if operation.operation == OperationKind::Read => "",
        Some(Admission::Admitted) => ": admitted, no higher token has written",
        Some(Admission::Rejected(highest)) => return format!("{asked}: rejected, the fence is at {highest}"),
        None => ": no verdict",
    };
    format!("{asked}{verdict}")
}

/// A time in the unit a person would use.
pub(super) fn seconds(ms: f64) -> String {
    if ms < 1_000.0 { format!("{ms:.1} ms") } else { format!("{:.2} s", ms / 1_000.0) }
}
