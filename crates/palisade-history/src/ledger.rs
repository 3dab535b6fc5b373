//! The file, and its only writer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::Event;
use redb::{
    Database, Durability, ReadableDatabase as _, ReadableTable as _, TableDefinition,
    WriteTransaction,
};

use crate::codec::{FORMAT, decode, encode};
use crate::pending::{Key, Pending};
use crate::reader::Reader;
use crate::row::{End, Gap, How, Refusal, Row, Why};

/// Grants that last, by lock and number.
pub(crate) const OPEN: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("open");
/// Grants that ended, by the revision of their end.
pub(crate) const ENDED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("ended");
/// The same by their lock; the value is the token.
pub(crate) const BY_LOCK: TableDefinition<'_, (&str, u64), u64> = TableDefinition::new("by_lock");
/// Refused writes, by lock, token and number.
pub(crate) const REFUSED: TableDefinition<'_, (&str, u64, u64), &[u8]> =
    TableDefinition::new("refused");
/// Gaps, by their first revision.
pub(crate) const GAPS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("gaps");
/// The format, the last revision, the bytes of all rows.
pub(crate) const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");
/// The authority that the file is of.
pub(crate) const OWNER: TableDefinition<'_, &str, &str> = TableDefinition::new("owner");

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Grants that ended longer ago are removed.
    pub age: Duration,
    /// The oldest are removed when all rows together have more bytes. The file is up to twice as large.
    pub bytes: u64,
}

impl Bounds {
    /// Thirty days, and 1 GiB.
    pub const DEFAULT: Bounds = Bounds {
        age: Duration::from_secs(30 * 86_400),
        bytes: 1 << 30,
    };
}

/// The history cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("the history")]
pub struct Error(#[source] redb::Error);

impl<E: Into<redb::Error>> From<E> for Error {
    fn from(error: E) -> Error {
        Error(error.into())
    }
}

/// The history's only writer. [`take`](Ledger::take) costs memory only; [`commit`](Ledger::commit) writes.
#[derive(Debug)]
pub struct Ledger {
    db: Arc<Database>,
    bounds: Bounds,
    pending: Pending,
    bytes: u64,
    refusals: u64,
    gaps: Vec<Gap>,
}

impl Ledger {
    /// Opens the file of an authority, or begins it. A file of another authority, or of another format, is begun anew.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn open(path: &Path, authority: &str, bounds: Bounds) -> Result<Ledger, Error> {
        let create = || redb::Builder::new().set_cache_size(CACHE).create(path);
        let mut db = create()?;
        if !is_ours(&db, authority)? {
            drop(db);
            // Nothing but the past is in it.
            std::fs::remove_file(path).map_err(redb::Error::from)?;
            db = create()?;
        }
        let begin = db.begin_write()?;
        {
            let mut facts = begin.open_table(FACTS)?;
            facts.insert("format", FORMAT)?;
            begin.open_table(OWNER)?.insert("authority", authority)?;
            begin.open_table(OPEN)?;
            begin.open_table(ENDED)?;
            begin.open_table(BY_LOCK)?;
            begin.open_table(REFUSED)?;
            begin.open_table(GAPS)?;
        }
        begin.commit()?;
        let read = db.begin_read()?;
        let facts = read.open_table(FACTS)?;
        let fact = |name: &str| -> Result<u64, Error> {
            Ok(facts.get(name)?.map_or(0, |value| value.value()))
        };
        let (last, bytes, refusals) = (fact("last")?, fact("bytes")?, fact("refusals")?);
        Ok(Ledger {
            db: Arc::new(db),
            bounds,
            pending: Pending {
                last,
                ..Pending::default()
            },
            bytes,
            refusals,
            gaps: Vec::new(),
        })
    }

    /// A reader of what is committed, for any thread.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.db))
    }

    /// The last revision taken.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.pending.last
    }

    /// How many rows wait for the next commit.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.pending.rows()
    }

    /// Whether a commit would change the file.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.pending.rows() > 0 || !self.gaps.is_empty()
    }

    /// Gives up what waits for a disk that takes nothing. It becomes a gap; the next commit says so.
    pub fn drop_waiting(&mut self, now_ms: u64) {
        let first = self
            .pending
            .ended
            .first()
            .map_or(self.pending.last, |(revision, ..)| *revision);
        let last = self.pending.last;
        self.pending = Pending {
            last,
            ..Pending::default()
        };
        self.gaps.push(Gap {
            from: first,
            to: last,
            found_ms: now_ms,
            why: Why::Unwritable,
        });
    }

    /// Takes a batch. Events up to [`last`](Ledger::last) are skipped; a jump in the revisions is a gap.
    pub fn take(&mut self, batch: &[Event], why: Why, now_ms: u64) {
        let last = self.pending.last;
        if let Some(first) = batch.iter().find(|event| event.revision > last) {
            self.miss(first.revision - 1, why, now_ms);
        }
        self.pending.take(batch);
    }

    /// Everything up to this revision that was not taken is missing.
    pub fn miss(&mut self, upto: u64, why: Why, now_ms: u64) {
        let from = self.pending.last + 1;
        if upto < from {
            return;
        }
        self.gaps.push(Gap {
            from,
            to: upto,
            found_ms: now_ms,
            why,
        });
        self.pending.last = upto;
    }

    /// Writes what was taken, and removes what is over the bounds. `durable`: it then survives a crash of the machine.
    ///
    /// # Errors
    /// If it cannot be written. What was taken stays in memory for the next attempt.
    pub fn commit(&mut self, now_ms: u64, durable: bool) -> Result<(), Error> {
        let mut write = self.db.begin_write()?;
        // No savepoint exists, so both are allowed.
        let _ = write.set_durability(if durable {
            Durability::Immediate
        } else {
            Durability::None
        });
        let bytes = self.put(&write)?;
        let bytes = trim(&write, bytes, self.bounds, now_ms)?;
        {
            let mut facts = write.open_table(FACTS)?;
            facts.insert("last", self.pending.last)?;
            facts.insert("bytes", bytes)?;
            facts.insert("refusals", self.refusals)?;
        }
        write.commit()?;
        self.bytes = bytes;
        self.pending = Pending {
            last: self.pending.last,
            ..Pending::default()
        };
        self.gaps.clear();
        Ok(())
    }

    fn put(&self, write: &WriteTransaction) -> Result<u64, Error> {
        let mut bytes = self.bytes;
        let mut open = write.open_table(OPEN)?;
        let mut ended = write.open_table(ENDED)?;
        let mut by_lock = write.open_table(BY_LOCK)?;
        let mut gaps = write.open_table(GAPS)?;
        for gap in &self.gaps {
            gaps.insert(gap.from, encode(gap).as_slice())?;
        }
        // First what was said of grants that began before, so that it is in the row when one of them ended.
        for ((lock, grant), said) in &self.pending.said {
            let key = (lock.as_str(), *grant);
            let Some(mut row) = row_at(open.get(key)?) else {
                continue;
            };
            row.metadata.clone_from(said);
            open.insert(key, encode(&row).as_slice())?;
        }
        for (revision, row, was_taken) in &self.pending.ended {
            let key = (row.lock.as_str(), row.grant);
            let begun = match was_taken {
                true => None,
                false => open
                    .remove(key)?
                    .and_then(|value| decode::<Row>(value.value())),
            };
            let whole = begun.map(|begun| Row {
                end: row.end.clone(),
                ..begun
            });
            let encoded = encode(whole.as_ref().unwrap_or(row));
            bytes += cost(&row.lock, &encoded);
            ended.insert(revision, encoded.as_slice())?;
            by_lock.insert((row.lock.as_str(), *revision), row.token)?;
        }
        for ((lock, grant), row) in &self.pending.begun {
            open.insert((lock.as_str(), *grant), encode(row).as_slice())?;
        }
        Ok(bytes)
    }

    /// Records a refused write of a grant that the history knows. Returns whether it knows one: anything else is nothing
    /// that this authority can vouch for.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn refused(&mut self, lock: &str, token: u64, refusal: &Refusal) -> Result<bool, Error> {
        if !self.knows(lock, token)? {
            return Ok(false);
        }
        let mut write = self.db.begin_write()?;
        let _ = write.set_durability(Durability::None);
        let number = self.refusals + 1;
        {
            let mut refused = write.open_table(REFUSED)?;
            let mut alike = None;
            let mut count = 0;
            for entry in refused.range((lock, token, 0)..=(lock, token, u64::MAX))? {
                let (key, value) = entry?;
                count += 1;
                let Some(known) = decode::<Refusal>(value.value()) else {
                    continue;
                };
                let same = |it: &Refusal| {
                    (&it.resource, &it.operation, it.by)
                        == (&refusal.resource, &refusal.operation, refusal.by)
                };
                if same(&known) || count == REFUSALS_OF_A_GRANT {
                    alike = Some((key.value().2, known));
                    break;
                }
            }
            match alike {
                Some((at, known)) => {
                    let more = Refusal {
                        times: known.times.saturating_add(refusal.times),
                        highest: known.highest.max(refusal.highest),
                        ..known
                    };
                    refused.insert((lock, token, at), encode(&more).as_slice())?;
                }
                None => {
                    refused.insert((lock, token, number), encode(refusal).as_slice())?;
                }
            }
        }
        write.commit()?;
        self.refusals = number;
        Ok(true)
    }

    fn knows(&self, lock: &str, token: u64) -> Result<bool, Error> {
        let waiting = |row: &Row| row.lock == lock && row.token == token;
        if self.pending.begun.values().any(waiting)
            || self.pending.ended.iter().any(|(_, row, _)| waiting(row))
        {
            return Ok(true);
        }
        let read = self.db.begin_read()?;
        // An exclusive grant's number is its token.
        if read.open_table(OPEN)?.get((lock, token))?.is_some() {
            return Ok(true);
        }
        let by_lock = read.open_table(BY_LOCK)?;
        for entry in by_lock
            .range((lock, 0)..=(lock, u64::MAX))?
            .rev()
            .take(LOOKED_AT)
        {
            if entry?.1.value() == token {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends the rows of grants that no longer exist at the authority, because it was restored.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn reconcile(
        &mut self,
        live: impl Fn(&str, u64) -> bool,
        now_ms: u64,
    ) -> Result<u64, Error> {
        let gone: Vec<(Key, Row)> = {
            let read = self.db.begin_read()?;
            let open = read.open_table(OPEN)?;
            let mut gone = Vec::new();
            for entry in open.iter()? {
                let (key, value) = entry?;
                let (lock, grant) = key.value();
                if live(lock, grant) {
                    continue;
                }
                if let Some(row) = decode::<Row>(value.value()) {
                    gone.push(((lock.to_owned(), grant), row));
                }
            }
            gone
        };
        let write = self.db.begin_write()?;
        {
            let mut open = write.open_table(OPEN)?;
            let mut ended = write.open_table(ENDED)?;
            let mut by_lock = write.open_table(BY_LOCK)?;
            for ((lock, grant), mut row) in gone.iter().cloned() {
                open.remove((lock.as_str(), grant))?;
                row.end = Some(End {
                    at_ms: now_ms,
                    renewed_ms: row.granted_ms,
                    how: How::Restored,
                    by: None,
                    reason: None,
                    successor: None,
                    closed_ms: None,
                });
                // The revisions of these ends exist nowhere: each goes to the first free place from the last one back.
                let mut place = self.pending.last;
                while ended.get(place)?.is_some() && place > 0 {
                    place -= 1;
                }
                ended.insert(place, encode(&row).as_slice())?;
                by_lock.insert((lock.as_str(), place), row.token)?;
            }
        }
        write.commit()?;
        Ok(gone.len() as u64)
    }
}

/// Removes the oldest ended rows until the rest is within the bounds. Returns the bytes that are left.
fn trim(
    write: &WriteTransaction,
    mut bytes: u64,
    bounds: Bounds,
    now_ms: u64,
) -> Result<u64, Error> {
    let age = u64::try_from(bounds.age.as_millis()).unwrap_or(u64::MAX);
    let oldest = now_ms.saturating_sub(age);
    let mut ended = write.open_table(ENDED)?;
    let mut by_lock = write.open_table(BY_LOCK)?;
    let mut refused = write.open_table(REFUSED)?;
    for _ in 0..TRIMMED_AT_ONCE {
        let Some((revision, lock, token, size)) = ({
            let first = ended.first()?;
            first.and_then(|(key, value)| {
                let row = decode::<Row>(value.value());
                let over = bytes > bounds.bytes
                    || row
                        .as_ref()
                        .is_none_or(|row| row.end.as_ref().is_none_or(|end| end.at_ms < oldest));
                over.then(|| {
                    let (lock, token) =
                        row.map_or_else(Default::default, |row| (row.lock, row.token));
                    let size = cost(&lock, value.value());
                    (key.value(), lock, token, size)
                })
            })
        }) else {
            break;
        };
        ended.remove(revision)?;
        by_lock.remove((lock.as_str(), revision))?;
        let late = (lock.as_str(), token, 0)..=(lock.as_str(), token, u64::MAX);
        refused.retain_in(late, |_, _| false)?;
        bytes = bytes.saturating_sub(size);
    }
    Ok(bytes)
}

/// The bytes that a row counts for: itself, its key and its place under its lock.
fn cost(lock: &str, encoded: &[u8]) -> u64 {
    (encoded.len() + lock.len() + 24) as u64
}

fn row_at(found: Option<redb::AccessGuard<'_, &[u8]>>) -> Option<Row> {
    found.and_then(|value| decode(value.value()))
}

/// Whether the file is new, or of this authority and this format.
fn is_ours(db: &Database, authority: &str) -> Result<bool, Error> {
    let read = db.begin_read()?;
    if read.list_tables()?.next().is_none() {
        return Ok(true);
    }
    let format = read.open_table(FACTS)?.get("format")?.map(|it| it.value());
    let owner = read.open_table(OWNER)?;
    let owner = owner.get("authority")?;
    Ok(format == Some(FORMAT) && owner.is_some_and(|it| it.value() == authority))
}

/// The memory that redb may use for pages.
const CACHE: usize = 16 << 20;

/// Different refusals that one grant may have; further ones count with the last.
const REFUSALS_OF_A_GRANT: usize = 16;

/// Grants of a lock, the latest first, in which a refused token is looked for.
const LOOKED_AT: usize = 10_000;

/// Rows that one commit removes.
const TRIMMED_AT_ONCE: usize = 20_000;
