//! Changes that were taken and are not yet committed.
//!
//! Rows wait as bytes: an event's texts are shared with the machine's thread, and each copy or drop of a share would slow
//! both threads down.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use palisade_core::{Change, Ending, Event};

use crate::codec::{FRAME, Rows, decoded, encode_behind, push_row};
use crate::row::{End, How, Row, RowHead, end_last, number};

/// Changes, in memory.
#[derive(Debug, Default)]
pub(crate) struct PendingRows {
    /// Grants that began since the last commit and last, by their number: a page for each, because the locks of a set share
    /// one.
    begun: HashMap<u64, Vec<u8>, RandomState>,
    /// Metadata of grants that began before it, by lock and number.
    pub(crate) said: HashMap<(String, u64), Option<String>, RandomState>,
    /// Grants that ended since, in the order of their ends.
    ends: Vec<TakenEnd>,
    /// Their rows, one behind the other.
    rows: Vec<u8>,
    /// The last revision taken.
    pub(crate) last: u64,
    /// The memory of all that, at most.
    bytes: usize,
    /// A row.
    row: Vec<u8>,
}

/// A grant that ended.
#[derive(Debug)]
pub(crate) struct TakenEnd {
    pub(crate) revision: u64,
    token: u64,
    /// The grant itself was taken since the last commit, too. Else the row has only what its end says.
    pub(crate) is_whole: bool,
    /// The length of its row.
    length: usize,
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
            match &event.change {
                Change::Granted { .. } => self.begin(number(event), &Row::of(event)),
                Change::Proclaimed => self.say(event),
                Change::Ended {
                    how,
                    reason,
                    delayed,
                } => {
                    let unrenewed = event.detail.unrenewed.as_millis();
                    let end = End {
                        at_ms: event.wall.0,
                        renewed_ms: event.wall.0.saturating_sub(unrenewed),
                        how: How::from(*how),
                        by: (*how == Ending::Revoked).then(|| event.detail.by.to_bytes()),
                        reason: reason.as_deref().map(str::to_owned),
                        successor: (*how == Ending::Superseded)
                            .then(|| successor(event, &batch[at + 1..]))
                            .flatten(),
                        closed_ms: delayed.map(|span| span.as_millis()),
                    };
                    self.end(event, &end);
                }
                // No grant.
                Change::Opened { .. } => {}
            }
        }
    }

    fn begin(&mut self, grant: u64, row: &Row<&str>) {
        self.row.clear();
        encode_behind(&mut self.row, row);
        self.bytes += OVERHEAD + self.row.len();
        let page = self.begun.entry(grant).or_default();
        page.reserve_exact(FRAME + self.row.len());
        push_row(page, 0, &self.row);
    }

    /// Moves the row of a grant that lasts from its page to `row`. `false`: it began before the last commit.
    fn take_begun(&mut self, lock: &str, grant: u64) -> bool {
        self.row.clear();
        let Some(page) = self.begun.remove(&grant) else {
            return false;
        };
        let mut others = Vec::new();
        for (_, row) in Rows::of(0, &page) {
            if RowHead::of(row).lock == lock {
                assert!(self.row.is_empty(), "a grant begins once");
                self.row.extend_from_slice(row);
            } else {
                push_row(&mut others, 0, row);
            }
        }
        if !others.is_empty() {
            self.begun.insert(grant, others);
        }
        let is_here = !self.row.is_empty();
        if is_here {
            self.bytes -= OVERHEAD + self.row.len();
        }
        is_here
    }

    fn say(&mut self, event: &Event) {
        let (lock, grant) = (event.lock.as_str(), number(event));
        let said = event.detail.metadata.as_deref().map(str::to_owned);
        if self.take_begun(lock, grant) {
            let row = std::mem::take(&mut self.row);
            let begun: Row<&str> = decoded(&row);
            self.begin(
                grant,
                &Row {
                    metadata: said.as_deref(),
                    ..begun
                },
            );
        } else {
            self.bytes += OVERHEAD + lock.len() + said.as_ref().map_or(0, String::len);
            self.said.insert((lock.to_owned(), grant), said);
        }
    }

    fn end(&mut self, event: &Event, end: &End) {
        let is_whole = self.take_begun(&event.lock, number(event));
        if !is_whole {
            encode_behind(&mut self.row, &Row::of(event));
        }
        let before = self.rows.len();
        self.rows.extend_from_slice(&self.row);
        end_last(&mut self.rows, end);
        let length = self.rows.len() - before;
        // Vectors have up to twice the memory that they need.
        self.bytes += 2 * (size_of::<TakenEnd>() + length);
        self.ends.push(TakenEnd {
            revision: event.revision,
            token: event.token.get(),
            is_whole,
            length,
        });
    }

    /// The rows of grants that began since the last commit and last, by lock and number.
    pub(crate) fn lasting(&self) -> Vec<(RowHead<'_>, &[u8])> {
        let mut rows: Vec<_> = self.begun().map(|row| (RowHead::of(row), row)).collect();
        rows.sort_unstable_by_key(|(head, _)| (head.lock, head.grant));
        rows
    }

    fn begun(&self) -> impl Iterator<Item = &[u8]> {
        let pages = self.begun.values();
        pages.flat_map(|page| Rows::of(0, page).map(|(_, row)| row))
    }

    /// Grants that ended since the last commit, in the order of their ends, with their rows.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (&TakenEnd, &[u8])> {
        let mut rest = self.rows.as_slice();
        self.ends.iter().map(move |end| {
            let (row, others) = rest.split_at(end.length);
            rest = others;
            (end, row)
        })
    }

    /// Whether there is nothing to commit.
    pub(crate) fn is_empty(&self) -> bool {
        self.begun.is_empty() && self.said.is_empty() && self.ends.is_empty()
    }

    /// Whether a grant of this lock and token is here. Anybody may ask at any rate, so few rows are looked into.
    pub(crate) fn knows(&self, lock: &str, token: u64) -> bool {
        let begun = self.begun().filter(|row| {
            let (_, of): (u64, u64) = decoded(row);
            of == token
        });
        let ended = self.ended().filter(|(end, _)| end.token == token);
        let mut rows = begun.chain(ended.map(|(_, row)| row));
        rows.any(|row| RowHead::of(row).lock == lock)
    }

    /// Whether it is time for a commit, so that the memory stays within bounds.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= BYTES
    }

    /// Forgets everything but the last revision.
    pub(crate) fn clear(&mut self) {
        self.begun.clear();
        self.said.clear();
        self.ends.clear();
        self.rows.clear();
        self.bytes = 0;
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

/// The memory of a grant that lasts, beside its row: its place in a table that has up to twice the memory that it needs, and
/// what the allocator adds.
const OVERHEAD: usize = 2 * size_of::<((String, u64), Option<String>)>() + 64;

/// The memory that waits for a commit.
pub(crate) const BYTES: usize = 16 << 20;

/// Grants that end between two commits, at most: a row has more bytes than that.
pub(crate) const ENDS: usize = BYTES / (2 * (size_of::<TakenEnd>() + 40));
