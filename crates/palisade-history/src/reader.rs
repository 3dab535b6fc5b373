//! Questions.

use std::sync::Arc;

use redb::{Database, ReadTransaction, ReadableDatabase as _, ReadableTable as _};

use crate::codec::{Rows, decode};
use crate::ended::{BY_LOCK, ENDED, Lookup, places};
use crate::ledger::{Error, GAPS, LATE, OPEN, READERS, REFUSED};
use crate::row::{Gap, HoldMode, LateRefusal, Row};

/// Reads what is committed. Each page is one consistent view, and stops no writer.
#[derive(Clone, Debug)]
pub struct Reader(Arc<Database>);

/// Which grants are asked for; all conditions together.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// This lock; else those whose names begin with `prefix`.
    pub lock: Option<String>,
    /// Locks whose names begin with this.
    pub prefix: String,
    /// Held at or after this time.
    pub since_ms: Option<u64>,
    /// Granted at or before this time.
    pub until_ms: Option<u64>,
    /// With this fencing token, which all readers of a phase have.
    pub token: Option<u64>,
    /// By this client.
    pub client: Option<String>,
    /// With refused late writes. They come in another order: the latest report first.
    pub refused: bool,
    /// Where the page before stopped.
    pub after: Option<Cursor>,
}

/// Where a page stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// At this grant, which lasted: its lock and its number.
    Lasting(String, u64),
    /// At the grant whose end has this revision.
    Ended(u64),
    /// The same, among the grants of one lock: the token, and the revision of the end.
    OfLock(u64, u64),
    /// At the grant whose latest refused write has this number.
    Late(u64),
}

/// Grants: first those that last, by lock, then the others, the latest end first. Of one lock, the latest token first.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The grants, each with its refused writes.
    pub rows: Vec<(Row, Vec<LateRefusal>)>,
    /// The `after` of the next page; none if this is the last one.
    pub next: Option<Cursor>,
    /// Changes that the history lacks, over all locks.
    pub gaps: Vec<Gap>,
}

impl Reader {
    pub(crate) fn new(db: Arc<Database>) -> Reader {
        Reader(db)
    }

    /// One page of at most `limit` grants. A page looks at a bounded number of rows, so it may be short, or empty, and
    /// yet not the last.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn page(&self, query: &Query, limit: usize) -> Result<Page, Error> {
        let read = self.0.begin_read()?;
        let mut page = Page::default();
        if query.after.is_none() {
            for entry in read.open_table(GAPS)?.iter()?.rev().take(GAPS_SHOWN) {
                page.gaps.extend(decode::<Gap>(entry?.1.value()));
            }
        }
        if query.refused {
            late(&read, query, limit, &mut page)?;
            return Ok(page);
        }
        if let None | Some(Cursor::Lasting(..)) = &query.after {
            self.lasting(&read, query, limit, &mut page)?;
            if page.next.is_some() {
                return Ok(page);
            }
        }
        let ended = read.open_table(ENDED)?;
        match &query.lock {
            Some(lock) => {
                let by_lock = read.open_table(BY_LOCK)?;
                let (least, most) = match query.token {
                    Some(token) => (token, token),
                    None => (0, u64::MAX),
                };
                let (token, revision) = match query.after {
                    Some(Cursor::OfLock(token, revision)) => (token.clamp(least, most), revision),
                    _ => (most, u64::MAX),
                };
                let of = places(&by_lock, lock, (least, 0)..=(token, revision))?;
                let mut ended = Lookup::new(&ended);
                let rows = of.map(|place| {
                    let place = place?;
                    Ok((place, ended.row(place.1)?))
                });
                let at = |(token, revision)| Cursor::OfLock(token, revision);
                collect(&read, query, limit, rows, at, &mut page)?;
            }
            None => {
                let last = match query.after {
                    Some(Cursor::Ended(revision)) => revision,
                    _ => u64::MAX,
                };
                let pages = ended.range(..=last)?.rev();
                let rows = pages.flat_map(|page| {
                    let (rows, error) = match page {
                        Ok((key, page)) => (latest_first(key.value(), page.value(), last), None),
                        Err(error) => (Vec::new(), Some(Err(Error::from(error)))),
                    };
                    rows.into_iter().map(Ok).chain(error)
                });
                collect(&read, query, limit, rows, Cursor::Ended, &mut page)?;
            }
        }
        Ok(page)
    }

    fn lasting(
        &self,
        read: &ReadTransaction,
        query: &Query,
        limit: usize,
        page: &mut Page,
    ) -> Result<(), Error> {
        let open = read.open_table(OPEN)?;
        let (lock, grant) = match &query.after {
            Some(Cursor::Lasting(lock, grant)) => (lock.as_str(), *grant),
            _ => (query.lock.as_deref().unwrap_or(&query.prefix), 0),
        };
        let within = |name: &str| match &query.lock {
            Some(lock) => name == lock,
            None => name.starts_with(&query.prefix),
        };
        let rows = (open.range((lock, grant)..)?)
            .map(|entry| {
                let (key, value) = entry?;
                let (lock, grant) = key.value();
                Ok(((lock.to_owned(), grant), decode(value.value())))
            })
            .take_while(|row| row.as_ref().map_or(true, |((name, _), _)| within(name)));
        collect(
            read,
            query,
            limit,
            rows,
            |(lock, grant)| Cursor::Lasting(lock, grant),
            page,
        )
    }
}

impl Query {
    /// Whether it ended more than a day before the time that is asked for, and so did all that come after it: they are in
    /// the order of their ends, and the wall clock hardly goes back. Permits of one semaphore are in no such order.
    fn is_long_before(&self, row: &Row) -> bool {
        if self.lock.is_some() && row.mode == HoldMode::Permits {
            return false;
        }
        let ended = row.end.as_ref().map(|end| end.at_ms.saturating_add(DAY_MS));
        ended.is_some_and(|ended| self.since_ms.is_some_and(|since| ended < since))
    }

    fn wants(&self, row: &Row) -> bool {
        let ended = row.end.as_ref().map_or(u64::MAX, |end| end.at_ms);
        self.lock.as_ref().is_none_or(|lock| *lock == row.lock)
            && row.lock.starts_with(&self.prefix)
            && self.since_ms.is_none_or(|since| ended >= since)
            && self.until_ms.is_none_or(|until| row.granted_ms <= until)
            && self.token.is_none_or(|token| row.token == token)
            && self
                .client
                .as_ref()
                .is_none_or(|client| *client == row.client)
    }
}

/// Adds the rows that are wanted. The first row that no longer fits is where the next page begins.
fn collect<K>(
    read: &ReadTransaction,
    query: &Query,
    limit: usize,
    rows: impl Iterator<Item = Result<(K, Option<Row>), Error>>,
    at: impl Fn(K) -> Cursor,
    page: &mut Page,
) -> Result<(), Error> {
    for (looked_at, found) in rows.enumerate() {
        let (key, row) = found?;
        if page.rows.len() >= limit || looked_at >= LOOKED_AT {
            page.next = Some(at(key));
            return Ok(());
        }
        match row {
            Some(row) if query.wants(&row) => page.rows.push(with_refusals(read, row)?),
            Some(row) if query.is_long_before(&row) => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

/// Grants with refused writes. Each stands at the latest of them.
fn late(read: &ReadTransaction, query: &Query, limit: usize, page: &mut Page) -> Result<(), Error> {
    let (late, refused) = (read.open_table(LATE)?, read.open_table(REFUSED)?);
    let last = match query.after {
        Some(Cursor::Late(number)) => number,
        _ => u64::MAX,
    };
    for (looked_at, entry) in late.range(..=last)?.rev().enumerate() {
        let (number, of) = entry?;
        let (number, (lock, token)) = (number.value(), of.value());
        if page.rows.len() >= limit || looked_at >= LOOKED_AT {
            page.next = Some(Cursor::Late(number));
            return Ok(());
        }
        let mut all = refused.range((lock, token, 0)..=(lock, token, u64::MAX))?;
        let latest = all.next_back().transpose()?.map(|(key, _)| key.value().2);
        if latest != Some(number) {
            continue;
        }
        for row in rows_of(read, lock, token)? {
            if query.wants(&row) {
                page.rows.push(with_refusals(read, row)?);
            }
        }
    }
    Ok(())
}

/// The grants of a lock with this token: readers of a phase share one.
fn rows_of(read: &ReadTransaction, lock: &str, token: u64) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    let open = read.open_table(OPEN)?;
    for entry in open.range((lock, 0)..=(lock, u64::MAX))?.take(READERS) {
        let row = decode::<Row>(entry?.1.value());
        rows.extend(row.filter(|row| row.token == token));
    }
    let (ended, by_lock) = (read.open_table(ENDED)?, read.open_table(BY_LOCK)?);
    let mut ended = Lookup::new(&ended);
    let of = (token, 0)..=(token, u64::MAX);
    for place in places(&by_lock, lock, of)?.take(READERS) {
        rows.extend(ended.row(place?.1)?);
    }
    Ok(rows)
}

/// The rows of a page up to this revision, the latest end first.
fn latest_first(key: u64, page: &[u8], last: u64) -> Vec<(u64, Option<Row>)> {
    let rows = Rows::of(key, page).take_while(|(revision, _)| *revision <= last);
    let mut rows: Vec<_> = rows.map(|(at, row)| (at, decode(row))).collect();
    rows.reverse();
    rows
}

fn with_refusals(read: &ReadTransaction, row: Row) -> Result<(Row, Vec<LateRefusal>), Error> {
    let refused = read.open_table(REFUSED)?;
    let mut refusals = Vec::new();
    let of = (row.lock.as_str(), row.token, 0)..=(row.lock.as_str(), row.token, u64::MAX);
    for entry in refused.range(of)? {
        refusals.extend(decode::<LateRefusal>(entry?.1.value()));
    }
    Ok((row, refusals))
}

/// Rows that one page looks at.
const LOOKED_AT: usize = 20_000;

const DAY_MS: u64 = 86_400_000;

/// The latest gaps that a page shows.
const GAPS_SHOWN: usize = 32;
