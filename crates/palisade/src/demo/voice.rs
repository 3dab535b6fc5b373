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
        let Some(operation) = told.operation(client, kind) else {
            return;
        };
        let message = &operation.message;
        let Some(ms) = message.decided_ms.or(message.sent_ms) else {
            return;
        };
        self.at(
            ms,
            &format!("{client}  {}{}", asked(operation), verdict(operation)),
        );
    }

    /// The arrival of a write that the network had held up. Its sender is stopped and cannot tell yet.
    pub(super) fn arrival(self, told: &Told, client: &str) {
        let Some(write) = told.operation(client, OperationKind::Write) else {
            return;
        };
        let Some(ms) = write.message.decided_ms else {
            return;
        };
        let list = write.value.as_deref().unwrap_or_default();
        self.at(
            ms,
            &format!(
                "{client}’s write of the list “{list}”{} arrives{}",
                with_token(write),
                verdict(write)
            ),
        );
    }

    /// The check of its lease that a client made before it wrote.
    pub(super) fn check(self, told: &Told, client: &str) {
        if let Some((at_ms, remaining_ms)) = told.checked(client) {
            let left = seconds(remaining_ms);
            self.at(
                at_ms,
                &format!("{client}  checks its lease: it holds, for another {left}; so it writes"),
            );
        }
    }

    /// What a client was told about its update.
    pub(super) fn answer(self, told: &Told, client: &str) {
        let answered = told
            .operation(client, OperationKind::Write)
            .and_then(|write| write.message.answered_ms);
        let Some(ms) = answered else { return };
        let word = told.notes(client).find_map(|note| match note {
            Note::Acknowledged { .. } => Some("“done”"),
            Note::Rejected { .. } => Some("“rejected”, and adds nothing"),
            _ => None,
        });
        self.at(
            ms,
            &format!("{client}  is told {}", word.unwrap_or("nothing it can use")),
        );
    }
}

fn with_token(operation: &Operation) -> String {
    operation
        .token
        .map(|token| format!(" with token {token}"))
        .unwrap_or_default()
}

fn asked(operation: &Operation) -> String {
    let token = with_token(operation);
    match (
        operation.operation,
        operation.value.as_deref().unwrap_or_default(),
    ) {
        (OperationKind::Claim, _) => format!("claims{token}"),
        (OperationKind::Read, "") => format!("reads the list{token}: it is empty"),
        (OperationKind::Read, list) => format!("reads the list{token}: “{list}”"),
        (OperationKind::Write, list) => format!("writes the list “{list}”{token}"),
    }
}

fn verdict(operation: &Operation) -> String {
    match (operation.verdict, operation.operation) {
        (Some(Admission::Rejected(highest)), _) => format!(": rejected, the fence is at {highest}"),
        (Some(_), OperationKind::Read) => String::new(),
        (Some(Admission::Unchecked), _) => ": done, nothing is checked".to_owned(),
        (Some(Admission::Admitted), OperationKind::Claim) => ": the fence rises to it".to_owned(),
        (Some(Admission::Admitted), OperationKind::Write) => {
            ": admitted, no higher token was seen".to_owned()
        }
        (None, _) => ": no verdict was seen".to_owned(),
    }
}

/// A time in the unit a person would use.
pub(super) fn seconds(ms: f64) -> String {
    if ms < 1_000.0 {
        format!("{ms:.1} ms")
    } else {
        format!("{:.2} s", ms / 1_000.0)
    }
}
