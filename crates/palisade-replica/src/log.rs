//! A node's log in memory: its vote, and the entries since the last purge.

use std::collections::VecDeque;
use std::ops::Bound;
use std::ops::RangeBounds;

use crate::entry::{Entry, LogId, Vote};
use crate::record::Record;

/// A record that does not fit to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LogGap(pub(crate) &'static str);

/// See the module.
///
/// Entries are consecutive: the first follows the purged part, each other one the one before it.
#[derive(Clone, Debug, Default)]
pub struct Log {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    entries: VecDeque<Entry>,
}

impl Log {
    /// A log that goes on behind a snapshot.
    pub(crate) fn after(purged: Option<LogId>) -> Log {
        Log {
            purged,
            committed: purged,
            ..Log::default()
        }
    }

    /// The last vote.
    #[must_use]
    pub fn vote(&self) -> Option<Vote> {
        self.vote
    }

    /// Up to where entries are known to be committed.
    #[must_use]
    pub fn committed(&self) -> Option<LogId> {
        self.committed
    }

    /// Up to where entries are no longer here.
    #[must_use]
    pub fn purged(&self) -> Option<LogId> {
        self.purged
    }

    /// The last entry, also when it is purged.
    #[must_use]
    pub fn last(&self) -> Option<LogId> {
        self.entries.back().map(|entry| entry.id).or(self.purged)
    }

    /// The first entry of each of the newest `most` leaderships, in ascending order, as far as entries are here. The
    /// purged part counts as one entry.
    #[must_use]
    pub fn history(&self, most: usize) -> Vec<LogId> {
        let mut starts = Vec::new();
        let mut end = self.entries.len();
        while starts.len() < most
            && let Some(last) = end.checked_sub(1).and_then(|last| self.entries.get(last))
        {
            let leader = last.id.leader;
            let start = self.entries.partition_point(|e| e.id.leader < leader);
            assert!(start < end, "the leaderships of a log only rise");
            starts.extend(self.entries.get(start).map(|first| first.id));
            end = start;
        }
        if end == 0 && starts.len() < most {
            starts.extend(self.purged);
        }
        starts.reverse();
        starts
    }

    /// The entry at an index, if it is here or was the last one to be purged.
    #[must_use]
    pub fn at(&self, index: u64) -> Option<LogId> {
        let purged = self.purged.filter(|purged| purged.index == index);
        purged.or_else(|| self.range(index..=index).next().map(|entry| entry.id))
    }

    /// The entries that are here.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Those of them that have an index in the range.
    pub fn range(&self, range: impl RangeBounds<u64>) -> impl Iterator<Item = &Entry> {
        let first = self.entries.front().map_or(0, |entry| entry.id.index);
        let place = |index: u64| usize::try_from(index.saturating_sub(first)).unwrap_or(usize::MAX);
        let from = match range.start_bound() {
            Bound::Included(index) => place(*index),
            Bound::Excluded(index) => place(index.saturating_add(1)),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(index) => place(index.saturating_add(1)),
            Bound::Excluded(index) => place(*index),
            Bound::Unbounded => usize::MAX,
        };
        let to = to.min(self.entries.len());
        self.entries.range(from.min(to)..to)
    }

    /// Takes a record in.
    ///
    /// # Errors
    /// [`LogGap`] if it does not follow the last entry here; nothing changed.
    pub fn record(&mut self, record: Record) -> Result<(), LogGap> {
        self.assert_sound();
        match record {
            Record::Vote(vote) => self.vote = Some(vote),
            Record::Entry(entry) => {
                // An empty log begins where the engine begins it.
                let follows = |last: LogId| entry.id.index == last.index + 1;
                if !self.last().is_none_or(follows) {
                    return Err(LogGap("an entry does not follow the one before it"));
                }
                self.entries.push_back(entry);
            }
            Record::Truncate(last) => self.truncate(last)?,
            Record::Committed(id) => {
                if Some(id) > self.last() {
                    return Err(LogGap("an entry is committed that is not in the log"));
                }
                self.committed = self.committed.max(Some(id));
            }
        }
        Ok(())
    }

    /// Entries are consecutive and follow the purged part, and what is committed is here or purged. Looks at both ends alone.
    fn assert_sound(&self) {
        if let (Some(first), Some(last)) = (self.entries.front(), self.entries.back()) {
            let count = last
                .id
                .index
                .checked_sub(first.id.index)
                .map(|behind| behind + 1);
            assert_eq!(count, Some(self.entries.len() as u64), "a log has a gap");
            let follows = |purged: LogId| purged.index + 1 == first.id.index;
            assert!(
                self.purged.is_none_or(follows),
                "a log does not follow its purged part"
            );
        }
        assert!(
            self.committed <= self.last(),
            "what is committed is not in the log (R1)"
        );
    }

    /// Forgets entries up to this one.
    pub(crate) fn purge(&mut self, to: LogId) {
        self.assert_sound();
        self.forget(to);
    }

    fn forget(&mut self, to: LogId) {
        while let Some(first) = self.entries.front()
            && first.id.index <= to.index
        {
            self.entries.pop_front();
        }
        self.purged = self.purged.max(Some(to));
    }

    /// A snapshot takes the place of everything up to `last`. Entries behind it stay if they follow it.
    pub(crate) fn install(&mut self, last: Option<LogId>) {
        let Some(last) = last else { return };
        self.assert_sound();
        let follows = self.range(last.index..=last.index).any(|e| e.id == last);
        if !follows && self.purged < Some(last) {
            self.entries.clear();
        }
        // In between, what was committed is in the snapshot alone.
        self.forget(last);
        self.committed = self.committed.max(Some(last));
        self.assert_sound();
    }

    #[cfg(test)]
    pub(crate) fn lose(&mut self, place: usize) {
        self.entries.remove(place);
    }

    #[cfg(test)]
    pub(crate) fn claim(&mut self, committed: LogId) {
        self.committed = Some(committed);
    }

    fn truncate(&mut self, last: Option<LogId>) -> Result<(), LogGap> {
        if last < self.committed {
            return Err(LogGap("committed entries are truncated"));
        }
        let keep = last.map_or(0, |last| last.index + 1);
        while let Some(entry) = self.entries.back()
            && entry.id.index >= keep
        {
            self.entries.pop_back();
        }
        Ok(())
    }
}
