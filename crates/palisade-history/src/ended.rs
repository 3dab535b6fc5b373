//! Grants that ended, in pages, and the index by which those of one lock are found.
//!
//! The store pays for each key, whatever its value. So a page has as many grants as fit into 16 KiB, in the
//! order of their ends, and the index has one run for many grants of a lock. Neither pages nor runs overlap.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use foldhash::fast::RandomState;
use redb::{
    AccessGuard, ReadableTable, ReadableTableMetadata as _, Table, TableDefinition,
    WriteTransaction,
};

use crate::codec::{EndPlace, FRAME, Rows, decode, encode, encode_run, last_of, push_row, run};
use crate::ledger::{Bounds, Error, LATE, REFUSED};
use crate::pending::ENDS;
use crate::row::Row;

/// Pages of grants that ended, by the revision of their first end.
pub(crate) const ENDED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("ended_pages");
/// The same by their lock: runs of places, by the first of them.
pub(crate) const BY_LOCK: TableDefinition<'_, (&str, u64, u64), &[u8]> =
    TableDefinition::new("by_lock_runs");

/// Looks rows up by the revisions of their ends. Those that come one after the other are often of one page.
pub(crate) struct Lookup<'a, T: ReadableTable<u64, &'static [u8]>> {
    ended: &'a T,
    /// The key, the last revision and the bytes of the page that was read last.
    page: Option<(u64, u64, Vec<u8>)>,
}

impl<'a, T: ReadableTable<u64, &'static [u8]>> Lookup<'a, T> {
    pub(crate) fn new(ended: &'a T) -> Lookup<'a, T> {
        Lookup { ended, page: None }
    }

    pub(crate) fn row(&mut self, revision: u64) -> Result<Option<Row>, Error> {
        let is_here = |page: &(u64, u64, Vec<u8>)| (page.0..=page.1).contains(&revision);
        if !self.page.as_ref().is_some_and(is_here) {
            let page = self.ended.range(..=revision)?.next_back().transpose()?;
            self.page = page.map(|(key, page)| {
                let (key, page) = (key.value(), page.value());
                (key, last_of(key, page), page.to_vec())
            });
        }
        Ok(self.page.as_ref().and_then(|(key, _, page)| {
            let (_, row) = Rows::of(*key, page).find(|(at, _)| *at == revision)?;
            decode(row)
        }))
    }
}

/// The places of a lock within these, the latest token first.
pub(crate) fn places<T: ReadableTable<RunKey, &'static [u8]>>(
    by_lock: &T,
    lock: &str,
    within: RangeInclusive<EndPlace>,
) -> Result<impl Iterator<Item = Result<EndPlace, Error>>, Error> {
    let (first, last) = within.into_inner();
    let runs = by_lock.range((lock, 0, 0)..=(lock, last.0, last.1))?.rev();
    let places = runs.flat_map(|entry| {
        let (run, error) = match entry {
            Ok((key, rest)) => (run_of(&key, &rest).1, None),
            Err(error) => (Vec::new(), Some(Err(Error::from(error)))),
        };
        run.into_iter().rev().map(Ok).chain(error)
    });
    Ok(places
        .skip_while(move |place| place.as_ref().is_ok_and(|place| *place > last))
        .take_while(move |place| place.as_ref().map_or(true, |place| *place >= first)))
}

type RunKey = (&'static str, u64, u64);

fn run_of(
    key: &AccessGuard<'_, RunKey>,
    rest: &AccessGuard<'_, &'static [u8]>,
) -> (EndPlace, Vec<EndPlace>) {
    let (_, token, revision) = key.value();
    ((token, revision), run((token, revision), rest.value()))
}

/// How many rows there are, and the bytes that they count for, with their refused writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// Both tables, while they are written.
pub(crate) struct Ended<'t> {
    pub(crate) size: Size,
    ended: Table<'t, u64, &'static [u8]>,
    by_lock: Table<'t, RunKey, &'static [u8]>,
    /// The page that is being filled: its key, its last revision, its bytes.
    page: Option<(u64, u64, Vec<u8>)>,
}

/// The places of rows, by their locks.
pub(crate) type PlacesByLock<'a> = HashMap<&'a str, Vec<EndPlace>, RandomState>;

impl<'t> Ended<'t> {
    pub(crate) fn open(write: &'t WriteTransaction, size: Size) -> Result<Ended<'t>, Error> {
        Ok(Ended {
            size,
            ended: write.open_table(ENDED)?,
            by_lock: write.open_table(BY_LOCK)?,
            page: None,
        })
    }

    /// Adds a row of this lock behind all others. [`flush`](Ended::flush) has to follow.
    pub(crate) fn push(&mut self, revision: u64, lock: &str, row: &[u8]) -> Result<(), Error> {
        if self.page.is_none()
            && let Some((key, page)) = self.ended.last()?
        {
            let (key, page) = (key.value(), page.value());
            self.page = Some((key, last_of(key, page), page.to_vec()));
        }
        self.count(lock, row);
        self.append(revision, row)
    }

    fn count(&mut self, lock: &str, row: &[u8]) {
        self.size.rows += 1;
        self.size.bytes += cost(lock, row);
    }

    fn append(&mut self, revision: u64, row: &[u8]) -> Result<(), Error> {
        let has_room = |(_, _, page): &(u64, u64, Vec<u8>)| page.len() + row.len() + FRAME <= PAGE;
        if self.page.as_ref().is_some_and(|page| !has_room(page)) {
            self.write_page()?;
        }
        let (_, last, page) =
            (self.page).get_or_insert_with(|| (revision, revision, Vec::with_capacity(PAGE)));
        push_row(page, revision - *last, row);
        *last = revision;
        Ok(())
    }

    fn write_page(&mut self) -> Result<(), Error> {
        if let Some((key, _, page)) = self.page.take() {
            self.ended.insert(key, page.as_slice())?;
        }
        Ok(())
    }

    /// Writes the rest of the rows that were pushed, and the index of all of them.
    pub(crate) fn flush(&mut self, places: PlacesByLock<'_>) -> Result<(), Error> {
        self.write_page()?;
        let mut places: Vec<_> = places.into_iter().collect();
        places.sort_unstable_by_key(|(lock, _)| *lock);
        for (lock, mut places) in places {
            places.sort_unstable();
            self.index(lock, &places)?;
        }
        Ok(())
    }

    fn run_before(
        &self,
        lock: &str,
        (token, revision): EndPlace,
    ) -> Result<Option<(EndPlace, Vec<EndPlace>)>, Error> {
        let mut runs = self.by_lock.range((lock, 0, 0)..=(lock, token, revision))?;
        let run = runs.next_back().transpose()?;
        Ok(run.map(|(key, rest)| run_of(&key, &rest)))
    }

    /// Adds places, which are sorted, to the runs of their lock.
    fn index(&mut self, lock: &str, mut places: &[EndPlace]) -> Result<(), Error> {
        while let Some(&first) = places.first() {
            let last_run = self.run_before(lock, (u64::MAX, u64::MAX))?;
            // Nearly always the last one.
            let (run, count) = match last_run {
                None => (None, places.len()),
                Some(run) if run.0 <= first => (Some(run), places.len()),
                Some(_) => {
                    let (token, revision) = first;
                    let mut later = (self.by_lock)
                        .range((lock, token, revision)..=(lock, u64::MAX, u64::MAX))?;
                    let next = later.next().transpose()?.map(|(key, _)| {
                        let (_, token, revision) = key.value();
                        (token, revision)
                    });
                    let is_before = |place: &EndPlace| next.is_none_or(|next| *place < next);
                    (
                        self.run_before(lock, first)?,
                        places.partition_point(is_before),
                    )
                }
            };
            let (mine, rest) = places.split_at(count.max(1));
            places = rest;
            let mut whole = match run {
                Some((_, run)) if run.len() < RUN || run.last() > Some(&first) => run,
                _ => Vec::new(),
            };
            let is_behind = whole.last() < Some(&first);
            whole.extend_from_slice(mine);
            let length = if is_behind {
                RUN
            } else {
                whole.sort_unstable();
                whole.len().div_ceil(whole.len().div_ceil(RUN))
            };
            for run in whole.chunks(length) {
                self.write_run(lock, run)?;
            }
        }
        Ok(())
    }

    fn write_run(&mut self, lock: &str, run: &[EndPlace]) -> Result<(), Error> {
        let Some((&(first_token, first_revision), others)) = run.split_first() else {
            return Ok(());
        };
        let bytes = encode_run((first_token, first_revision), others);
        self.by_lock
            .insert((lock, first_token, first_revision), bytes.as_slice())?;
        Ok(())
    }

    /// Removes places, which are sorted, from the runs of their lock.
    fn unindex(&mut self, lock: &str, mut places: &[EndPlace]) -> Result<(), Error> {
        while let Some(&first) = places.first() {
            let Some((key, run)) = self.run_before(lock, first)? else {
                places = &places[1..];
                continue;
            };
            let count = places.partition_point(|place| Some(place) <= run.last());
            let (mine, rest) = places.split_at(count.max(1));
            places = rest;
            self.by_lock.remove((lock, key.0, key.1))?;
            let stays = |place: &EndPlace| mine.binary_search(place).is_err();
            let rest: Vec<EndPlace> = run.into_iter().filter(stays).collect();
            self.write_run(lock, &rest)?;
        }
        Ok(())
    }

    /// Adds rows whose ends have no known revision: each goes to the first free one from `place` back. There are enough,
    /// because no end has the revision at which a grant began. Returns the next place.
    pub(crate) fn push_back(&mut self, mut place: u64, rows: &[Row]) -> Result<u64, Error> {
        let mut places = PlacesByLock::default();
        let mut rows = rows.iter().peekable();
        while place > 0 && rows.peek().is_some() {
            let page = self.ended.range(..=place)?.next_back().transpose()?;
            let page = page.map(|(key, page)| (key.value(), page.value().to_vec()));
            let (key, page) = page.unwrap_or((1, Vec::new()));
            let taken: Vec<(u64, &[u8])> = Rows::of(key, &page).collect();
            let mut added = Vec::new();
            while place >= key {
                if taken.binary_search_by_key(&place, |(at, _)| *at).is_err() {
                    let Some(row) = rows.next() else { break };
                    let encoded = encode(row);
                    self.count(&row.lock, &encoded);
                    added.push((place, encoded));
                    note(&mut places, &row.lock, (row.token, place));
                }
                place -= 1;
            }
            let added = added.iter().map(|(at, row)| (*at, row.as_slice()));
            let mut all: Vec<(u64, &[u8])> = taken.into_iter().chain(added).collect();
            all.sort_unstable_by_key(|(at, _)| *at);
            self.ended.remove(key)?;
            for (at, row) in all {
                self.append(at, row)?;
            }
            self.write_page()?;
        }
        self.flush(places)?;
        Ok(place)
    }

    /// Removes the oldest rows until the rest is within the bounds.
    pub(crate) fn trim(
        &mut self,
        write: &WriteTransaction,
        bounds: Bounds,
        now_ms: u64,
    ) -> Result<(), Error> {
        let mut bytes = self.size.bytes;
        let age = u64::try_from(bounds.age.as_millis()).unwrap_or(u64::MAX);
        let oldest = now_ms.saturating_sub(age);
        let is_old = |row: &Row| row.end.as_ref().is_none_or(|end| end.at_ms < oldest);
        let mut removed: Vec<(String, EndPlace)> = Vec::new();
        while removed.len() < TRIMMED_AT_ONCE {
            let Some((key, page)) = self
                .ended
                .first()?
                .map(|(key, page)| (key.value(), page.value().to_vec()))
            else {
                break;
            };
            let (mut rows, before) = (Rows::of(key, &page), removed.len());
            let first_kept = rows.find(|(revision, encoded)| {
                let row = decode::<Row>(encoded);
                let goes = bytes > bounds.bytes || row.as_ref().is_none_or(is_old);
                if goes {
                    let (lock, token) =
                        row.map_or_else(Default::default, |row| (row.lock, row.token));
                    bytes = bytes.saturating_sub(cost(&lock, encoded));
                    removed.push((lock, (token, *revision)));
                }
                !goes
            });
            if first_kept.is_some() && removed.len() == before {
                break;
            }
            self.ended.remove(key)?;
            if let Some((revision, row)) = first_kept {
                self.append(revision, row)?;
                for (revision, row) in rows {
                    self.append(revision, row)?;
                }
                self.write_page()?;
                break;
            }
        }
        if removed.is_empty() {
            return Ok(());
        }
        self.size.rows = self.size.rows.saturating_sub(removed.len() as u64);
        let mut refused = write.open_table(REFUSED)?;
        let mut by_number = write.open_table(LATE)?;
        let mut of_locks = PlacesByLock::default();
        for (lock, place) in &removed {
            note(&mut of_locks, lock, *place);
        }
        for (lock, mut places) in of_locks {
            places.sort_unstable();
            self.unindex(lock, &places)?;
            for (token, _) in &places {
                if refused.is_empty()? {
                    break;
                }
                let late = (lock, *token, 0)..=(lock, *token, u64::MAX);
                let mut numbers = Vec::new();
                refused.retain_in(late, |(_, _, number), late| {
                    bytes = bytes.saturating_sub(cost(lock, late));
                    numbers.push(number);
                    false
                })?;
                for number in numbers {
                    by_number.remove(number)?;
                }
            }
        }
        self.size.bytes = bytes;
        Ok(())
    }
}

/// Notes the place of a row for [`Ended::flush`].
pub(crate) fn note<'a>(places: &mut PlacesByLock<'a>, lock: &'a str, place: EndPlace) {
    places.entry(lock).or_default().push(place);
}

/// The bytes that a row counts for: itself, its key and its place under its lock.
pub(crate) fn cost(lock: &str, encoded: &[u8]) -> u64 {
    (encoded.len() + lock.len() + 24) as u64
}

/// The bytes of a page: with its key it fills four of the store's.
const PAGE: usize = 16_360;

/// Grants in a run of the index.
const RUN: usize = 128;

/// Rows that one commit removes: more than it adds.
const TRIMMED_AT_ONCE: usize = ENDS;
