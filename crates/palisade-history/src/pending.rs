//! Rows that were taken and are not yet committed.

use std::collections::BTreeMap;

use palisade_core::{Change, Ending, Event};

use crate::row::{End, How, Row, number};

/// A grant: its lock and its number. The locks of a set share a number.
pub(crate) type Key = (String, u64);

/// Rows and changes of rows, in memory.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Grants that began since the last commit and last.
    pub(crate) begun: BTreeMap<Key, Row>,
    /// Metadata of grants that began before it.
    pub(crate) said: BTreeMap<Key, Option<String>>,
    /// Grants that ended since, by the revision of their end. `true`: the grant itself was taken since, too.
    pub(crate) ended: Vec<(u64, Row, bool)>,
    /// The last revision taken.
    pub(crate) last: u64,
}

impl Pending {
    /// Takes the events of a batch that come after `last`.
    pub(crate) fn take(&mut self, batch: &[Event]) {
        for (at, event) in batch.iter().enumerate() {
            if event.revision <= self.last {
                continue;
            }
            self.last = event.revision;
            let key = || (event.lock.as_str().to_owned(), number(event));
            match &event.change {
                Change::Granted { .. } => {
                    self.begun.insert(key(), Row::of(event));
                }
                Change::Proclaimed => {
                    let said = event.detail.metadata.as_deref().map(str::to_owned);
                    match self.begun.get_mut(&key()) {
                        Some(row) => row.metadata = said,
                        None => drop(self.said.insert(key(), said)),
                    }
                }
                Change::Ended {
                    how,
                    reason,
                    delayed,
                } => {
                    let begun = self.begun.remove(&key());
                    let was_taken = begun.is_some();
                    let mut row = begun.unwrap_or_else(|| Row::of(event));
                    let unrenewed = event.detail.unrenewed.as_millis();
                    row.end = Some(End {
                        at_ms: event.wall.0,
                        renewed_ms: event.wall.0.saturating_sub(unrenewed),
                        how: How::from(*how),
                        by: (*how == Ending::Revoked).then(|| event.detail.by.to_bytes()),
                        reason: reason.as_deref().map(str::to_owned),
                        successor: (*how == Ending::Superseded)
                            .then(|| successor(event, &batch[at + 1..]))
                            .flatten(),
                        closed_ms: delayed.map(|span| span.as_millis()),
                    });
                    self.ended.push((event.revision, row, was_taken));
                }
                // No grant.
                Change::Opened { .. } => {}
            }
        }
    }

    /// How many rows a commit would write.
    pub(crate) fn rows(&self) -> usize {
        self.begun.len() + self.said.len() + self.ended.len()
    }
}

/// The token of the grant that supersedes; it is made in the same entry of the log.
fn successor(event: &Event, later: &[Event]) -> Option<u64> {
    let succeeds = |next: &&Event| {
        matches!(next.change, Change::Granted { .. })
            && (&next.lock, &next.client, next.by) == (&event.lock, &event.client, event.by)
    };
    later.iter().find(succeeds).map(|next| next.token.get())
}
