//! Rows that were taken and are not yet committed.

use std::collections::BTreeMap;

use palisade_core::{Change, Ending, Event, LockName};

use crate::row::{End, How, Row, number};

/// A grant: its lock and its number. The locks of a set share a number.
pub(crate) type Key = (LockName, u64);

/// Rows and changes of rows, in memory.
#[derive(Debug, Default)]
pub(crate) struct PendingRows {
    /// Grants that began since the last commit and last.
    pub(crate) begun: BTreeMap<Key, Row>,
    /// Metadata of grants that began before it.
    pub(crate) said: BTreeMap<Key, Option<String>>,
    /// Grants that ended since, by the revision of their end. `true`: the grant itself was taken since, too.
    pub(crate) ended: Vec<(u64, Row, bool)>,
    /// The last revision taken.
    pub(crate) last: u64,
    /// The memory of all that, at most.
    bytes: usize,
}

impl PendingRows {
    /// With nothing behind this revision.
    pub(crate) fn after(last: u64) -> PendingRows {
        PendingRows {
            last,
            ..PendingRows::default()
        }
    }

    /// Takes the events of a batch that come after `last`.
    pub(crate) fn take(&mut self, batch: &[Event]) {
        for (at, event) in batch.iter().enumerate() {
            if event.revision <= self.last {
                continue;
            }
            self.last = event.revision;
            let key = || (event.lock.clone(), number(event));
            match &event.change {
                Change::Granted { .. } => {
                    let row = Row::of(event);
                    self.bytes += bytes_of(&row);
                    self.begun.insert(key(), row);
                }
                Change::Proclaimed => {
                    let said = event.detail.metadata.as_deref().map(str::to_owned);
                    self.bytes += OVERHEAD + said.as_ref().map_or(0, String::len);
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
                    self.bytes += reason.as_ref().map_or(0, |reason| reason.len());
                    if !was_taken {
                        self.bytes += bytes_of(&row);
                    }
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

    /// Whether a grant of this lock and token is here.
    pub(crate) fn knows(&self, lock: &str, token: u64) -> bool {
        let is_it = |row: &Row| row.lock == lock && row.token == token;
        self.begun.values().any(is_it) || self.ended.iter().any(|(_, row, _)| is_it(row))
    }

    /// Whether it is time for a commit, so that the memory stays within bounds.
    pub(crate) fn is_full(&self) -> bool {
        self.rows() >= ROWS || self.bytes >= BYTES
    }

    /// Forgets the rows.
    pub(crate) fn clear(&mut self) {
        self.begun.clear();
        self.said.clear();
        self.ended.clear();
        self.bytes = 0;
    }
}

/// The memory of a row and of its key.
fn bytes_of(row: &Row) -> usize {
    let metadata = row.metadata.as_ref().map_or(0, String::len);
    OVERHEAD + row.lock.len() + row.client.len() + metadata
}

/// The token of the grant that supersedes; it is made in the same entry of the log.
fn successor(event: &Event, later: &[Event]) -> Option<u64> {
    let succeeds = |next: &&Event| {
        matches!(next.change, Change::Granted { .. })
            && (&next.lock, &next.client, next.by) == (&event.lock, &event.client, event.by)
    };
    later.iter().find(succeeds).map(|next| next.token.get())
}

/// The memory of a row beside its texts: itself, its key, its place in a map, and what the allocator adds.
const OVERHEAD: usize = 2 * size_of::<Row>();

/// Rows, and their bytes, that wait for a commit.
pub(crate) const ROWS: usize = 20_000;
pub(crate) const BYTES: usize = 16 << 20;
