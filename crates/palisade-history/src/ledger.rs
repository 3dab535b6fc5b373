//! The file, and its only writer.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use palisade_core::Event;
use redb::backends::FileBackend;
use redb::{
    Database, DatabaseError, Durability, ReadableDatabase as _, ReadableTable as _, StorageError,
    TableDefinition, TableHandle as _, WriteTransaction,
};

use crate::codec::{FORMAT, decode, decoded, encode};
use crate::ended::{BY_LOCK, ENDED, Ended, PlacesByLock, Size, cost, note, places};
use crate::pending::PendingRows;
use crate::reader::Reader;
use crate::row::{End, Gap, GapReason, How, LateRefusal, Row, RowHead};

/// Grants that last, by lock and number.
pub(crate) const OPEN: TableDefinition<'_, (&str, u64), &[u8]> = TableDefinition::new("open");
/// Refused writes, by lock, token and number.
pub(crate) const REFUSED: TableDefinition<'_, (&str, u64, u64), &[u8]> =
    TableDefinition::new("refused");
/// The same by number, which is the order of their arrival: lock and token.
pub(crate) const LATE: TableDefinition<'_, u64, (&str, u64)> = TableDefinition::new("late");
/// Gaps, by their first revision.
pub(crate) const GAPS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("gaps");
/// The format, the last revision, how many grants ended, the bytes of their rows, the number of the last refusal, and whether
/// there is a doubt.
pub(crate) const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");
/// The authority that the file is of, and its life since the last restore.
pub(crate) const OWNER: TableDefinition<'_, &str, &str> = TableDefinition::new("owner");

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Grants that ended longer ago are removed.
    pub age: Duration,
    /// The oldest are removed when the rows of ended grants have more bytes together, with their refused writes. The file
    /// is up to three times as large.
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

/// An authority, as a history knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerOwner {
    /// Its identity, for its whole life.
    pub authority: String,
    /// Changes with every restore.
    pub incarnation: String,
}

/// The history's only writer. [`take`](Ledger::take) costs memory only; [`commit`](Ledger::commit) writes. After an error
/// it has to be dropped and opened again: the file may be behind what was taken.
#[derive(Debug)]
pub struct Ledger {
    db: Arc<Database>,
    bounds: Bounds,
    pending: PendingRows,
    /// Of the grants that ended.
    size: Size,
    refusals: u64,
    gaps: Vec<Gap>,
    /// Something was written that does not survive a crash.
    unsynced: bool,
    /// Grants that last here may have ended unseen.
    doubt: bool,
    /// The authority was restored since the file was last written.
    restored: bool,
    set_aside: Option<PathBuf>,
}

impl Ledger {
    /// Begins the file, if there is none.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn begin(path: &Path) -> Result<(), Error> {
        if !path.try_exists().map_err(redb::Error::from)? {
            begin(path)?;
        }
        Ok(())
    }

    /// Opens the file of an authority, or begins it. A file of another authority, or of another format, or one that is
    /// damaged, is set aside under another name, and a new one is begun.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn open(path: &Path, owner: &LedgerOwner, bounds: Bounds) -> Result<Ledger, Error> {
        let mut set_aside = None;
        let (db, restored) = match usable(path, owner)? {
            Some(usable) => usable,
            None => {
                let aside = path.with_extension("redb.unusable");
                fs::rename(path, &aside).map_err(redb::Error::from)?;
                set_aside = Some(aside);
                (begin(path)?, false)
            }
        };
        let begin = db.begin_write()?;
        {
            begin.open_table(FACTS)?.insert("format", FORMAT)?;
            let mut owned = begin.open_table(OWNER)?;
            owned.insert("authority", owner.authority.as_str())?;
            begin.open_table(OPEN)?;
            begin.open_table(ENDED)?;
            begin.open_table(BY_LOCK)?;
            index_refusals(&begin)?;
            begin.open_table(GAPS)?;
        }
        begin.commit()?;
        let read = db.begin_read()?;
        let facts = read.open_table(FACTS)?;
        let fact = |name: &str| -> Result<u64, Error> {
            Ok(facts.get(name)?.map_or(0, |value| value.value()))
        };
        let (last, refusals) = (fact("last")?, fact("refusals")?);
        let size = Size {
            rows: fact("ended")?,
            bytes: fact("bytes")?,
        };
        let restored = restored || fact("doubt")? == RESTORED;
        let doubt = restored || fact("doubt")? == GAP;
        let mut ledger = Ledger {
            db: Arc::new(db),
            bounds,
            pending: PendingRows::after(last),
            size,
            refusals,
            gaps: Vec::new(),
            unsynced: false,
            doubt,
            restored,
            set_aside,
        };
        ledger.note_owner(owner)?;
        Ok(ledger)
    }

    /// The doubt of a restored authority and its new incarnation are written together.
    fn note_owner(&mut self, owner: &LedgerOwner) -> Result<(), Error> {
        let write = self.db.begin_write()?;
        {
            write.open_table(FACTS)?.insert("doubt", self.doubt())?;
            let mut owned = write.open_table(OWNER)?;
            owned.insert("incarnation", owner.incarnation.as_str())?;
        }
        write.commit()?;
        Ok(())
    }

    fn doubt(&self) -> u64 {
        match (self.restored, self.doubt) {
            (true, _) => RESTORED,
            (false, true) => GAP,
            (false, false) => 0,
        }
    }

    /// Where the unusable file went that was found under this name.
    #[must_use]
    pub fn set_aside(&self) -> Option<&Path> {
        self.set_aside.as_deref()
    }

    /// Whether the authority was restored since the file was written before.
    #[must_use]
    pub fn is_restored(&self) -> bool {
        self.restored
    }

    /// Whether grants that last here may have ended unseen, until [`reconcile`](Ledger::reconcile).
    #[must_use]
    pub fn has_doubt(&self) -> bool {
        self.doubt
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

    /// The bytes of the rows of ended grants, as [`Bounds::bytes`] counts them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.size.bytes
    }

    /// Whether as much waits in memory as should: 16 MiB.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.pending.is_full()
    }

    /// Whether a commit would change the file.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.pending.is_empty() || !self.gaps.is_empty()
    }

    /// Whether all that was taken survives a crash of the machine.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        !self.unsynced && !self.has_news()
    }

    /// Takes a batch. Events up to [`last`](Ledger::last) are skipped; a jump in the revisions is a gap.
    pub fn take(&mut self, batch: &[Event], why: GapReason, now_ms: u64) {
        let last = self.pending.last;
        if let Some(first) = batch.iter().find(|event| event.revision > last) {
            self.miss(first.revision - 1, why, now_ms);
        }
        self.pending.take(batch);
    }

    /// Everything up to this revision that was not taken is missing.
    pub fn miss(&mut self, upto: u64, why: GapReason, now_ms: u64) {
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
        // The history of a new authority misses nothing that it ever showed.
        self.doubt |= why != GapReason::New;
    }

    /// Writes what was taken, and removes what is over the bounds. `durable`: it then survives a crash of the machine.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn commit(&mut self, now_ms: u64, durable: bool) -> Result<(), Error> {
        let mut write = self.db.begin_write()?;
        // No savepoint exists, so both are allowed.
        let _ = write.set_durability(if durable {
            Durability::Immediate
        } else {
            Durability::None
        });
        let size = self.put(&write, now_ms)?;
        {
            let mut facts = write.open_table(FACTS)?;
            facts.insert("last", self.pending.last)?;
            facts.insert("ended", size.rows)?;
            facts.insert("bytes", size.bytes)?;
            facts.insert("refusals", self.refusals)?;
            facts.insert("doubt", self.doubt())?;
        }
        write.commit()?;
        (self.size, self.unsynced) = (size, !durable);
        self.pending.clear();
        self.gaps.clear();
        Ok(())
    }

    fn put(&self, write: &WriteTransaction, now_ms: u64) -> Result<Size, Error> {
        let mut open = write.open_table(OPEN)?;
        for gap in &self.gaps {
            let mut gaps = write.open_table(GAPS)?;
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
        let mut ended = Ended::open(write, self.size)?;
        let mut places = PlacesByLock::default();
        for (end, row) in self.pending.ended() {
            let RowHead { grant, token, lock } = RowHead::of(row);
            let begun = if end.is_whole {
                None
            } else {
                row_at(open.remove((lock, grant))?)
            };
            match begun {
                Some(begun) => {
                    let end_of = decoded::<Row<&str>>(row).end;
                    let whole = Row {
                        end: end_of,
                        ..begun
                    };
                    ended.push(end.revision, lock, &encode(&whole))?;
                }
                None => ended.push(end.revision, lock, row)?,
            }
            note(&mut places, lock, (token, end.revision));
        }
        ended.flush(places)?;
        for (head, row) in self.pending.lasting() {
            open.insert((head.lock, head.grant), row)?;
        }
        ended.trim(write, self.bounds, now_ms)?;
        Ok(ended.size)
    }

    /// Records a refused write of a grant that the history knows. Returns whether it knows one: the authority can vouch for
    /// no other.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn refused(
        &mut self,
        lock: &str,
        token: u64,
        refusal: &LateRefusal,
    ) -> Result<bool, Error> {
        if !self.knows(lock, token)? {
            return Ok(false);
        }
        let mut write = self.db.begin_write()?;
        let _ = write.set_durability(Durability::None);
        let number = self.refusals + 1;
        let mut bytes = self.size.bytes;
        {
            let mut refused = write.open_table(REFUSED)?;
            let mut late = write.open_table(LATE)?;
            let mut alike = None;
            let mut count = 0;
            for entry in refused.range((lock, token, 0)..=(lock, token, u64::MAX))? {
                let (key, value) = entry?;
                count += 1;
                let Some(known) = decode::<LateRefusal>(value.value()) else {
                    continue;
                };
                let same = |it: &LateRefusal| {
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
                    let more = LateRefusal {
                        times: known.times.saturating_add(refusal.times),
                        highest: known.highest.max(refusal.highest),
                        ..known
                    };
                    refused.insert((lock, token, at), encode(&more).as_slice())?;
                }
                None => {
                    let encoded = encode(refusal);
                    bytes += cost(lock, &encoded);
                    refused.insert((lock, token, number), encoded.as_slice())?;
                    late.insert(number, (lock, token))?;
                }
            }
        }
        write.commit()?;
        (self.refusals, self.size.bytes, self.unsynced) = (number, bytes, true);
        Ok(true)
    }

    fn knows(&self, lock: &str, token: u64) -> Result<bool, Error> {
        if self.pending.knows(lock, token) {
            return Ok(true);
        }
        let read = self.db.begin_read()?;
        // An exclusive grant's number is its token.
        let open = read.open_table(OPEN)?;
        if open.get((lock, token))?.is_some() {
            return Ok(true);
        }
        for entry in open.range((lock, 0)..=(lock, u64::MAX))?.take(READERS) {
            let row = decode::<Row>(entry?.1.value());
            if row.is_some_and(|row| row.token == token) {
                return Ok(true);
            }
        }
        let by_lock = read.open_table(BY_LOCK)?;
        let mut of = places(&by_lock, lock, (token, 0)..=(token, u64::MAX))?;
        Ok(of.next().transpose()?.is_some())
    }

    /// Ends the rows of grants that are no longer `live` at the authority: they ended unseen, or it was restored. All that
    /// was taken must be committed, and `live` must be of that revision. Returns how many there were.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn reconcile(
        &mut self,
        live: impl Fn(&str, u64) -> bool,
        now_ms: u64,
    ) -> Result<u64, Error> {
        let how = if self.restored {
            How::Restored
        } else {
            How::Unseen
        };
        let mut count = 0;
        let size;
        let mut place = self.pending.last;
        let write = self.db.begin_write()?;
        {
            let mut open = write.open_table(OPEN)?;
            let mut ended = Ended::open(&write, self.size)?;
            let mut gone = open.extract_if(|(lock, grant), _| !live(lock, grant))?;
            loop {
                let mut rows = Vec::new();
                for entry in gone.by_ref().take(RECONCILED_AT_ONCE) {
                    let Some(row) = decode::<Row>(entry?.1.value()) else {
                        continue;
                    };
                    rows.push(Row {
                        end: Some(End {
                            at_ms: now_ms,
                            renewed_ms: row.granted_ms,
                            how,
                            by: None,
                            reason: None,
                            successor: None,
                            closed_ms: None,
                        }),
                        ..row
                    });
                }
                if rows.is_empty() {
                    break;
                }
                count += rows.len() as u64;
                place = ended.push_back(place, &rows)?;
            }
            drop(gone);
            let mut facts = write.open_table(FACTS)?;
            size = ended.size;
            facts.insert("doubt", 0)?;
            facts.insert("ended", size.rows)?;
            facts.insert("bytes", size.bytes)?;
        }
        write.commit()?;
        (self.size, self.doubt, self.restored) = (size, false, false);
        self.unsynced = false;
        Ok(count)
    }
}

/// A file from before the index gets it.
fn index_refusals(write: &WriteTransaction) -> Result<(), Error> {
    let refused = write.open_table(REFUSED)?;
    let mut late = write.open_table(LATE)?;
    if late.first()?.is_some() {
        return Ok(());
    }
    for entry in refused.iter()? {
        let entry = entry?;
        let (lock, token, number) = entry.0.value();
        late.insert(number, (lock, token))?;
    }
    Ok(())
}

fn row_at(found: Option<redb::AccessGuard<'_, &[u8]>>) -> Option<Row> {
    found.and_then(|value| decode(value.value()))
}

/// The file, and whether its authority was restored since. `None`: it is damaged, or not of this authority and format.
fn usable(path: &Path, owner: &LedgerOwner) -> Result<Option<(Database, bool)>, Error> {
    if !path.try_exists().map_err(redb::Error::from)? {
        return Ok(Some((begin(path)?, false)));
    }
    let db = match create(path) {
        Ok(db) => db,
        Err(error) if is_damage(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let read = db.begin_read()?;
    let mut tables = read.list_tables()?.peekable();
    if tables.peek().is_none() {
        return Ok(Some((db, false)));
    }
    if !tables.any(|table| table.name() == ENDED.name()) {
        return Ok(None);
    }
    let format = read.open_table(FACTS)?.get("format")?.map(|it| it.value());
    let owned = read.open_table(OWNER)?;
    let has = |name: &str| -> Result<Option<String>, Error> {
        Ok(owned.get(name)?.map(|it| it.value().to_owned()))
    };
    let (authority, incarnation) = (has("authority")?, has("incarnation")?);
    if format != Some(FORMAT) || authority.as_ref() != Some(&owner.authority) {
        return Ok(None);
    }
    let restored = incarnation.is_some_and(|was| was != owner.incarnation);
    Ok(Some((db, restored)))
}

/// A file that has no tables yet. It gets its name when it is one of redb's: a kill before that leaves nothing that would be
/// taken for damage.
fn begin(path: &Path) -> Result<Database, Error> {
    let young = path.with_extension("redb.new");
    match fs::remove_file(&young) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(redb::Error::from(error).into());
        }
        _ => {}
    }
    let db = create(&young)?;
    fs::rename(&young, path).map_err(redb::Error::from)?;
    Ok(db)
}

/// Only its owner can read it: it has names, and what holders say of themselves.
fn create(path: &Path) -> Result<Database, DatabaseError> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).mode(0o600);
    let file: File = options.open(path)?;
    let mut builder = redb::Builder::new();
    let builder = builder.set_cache_size(CACHE);
    builder.create_with_backend(FileBackend::new(file)?)
}

/// Whether another attempt would find the same.
fn is_damage(error: &DatabaseError) -> bool {
    match error {
        DatabaseError::Storage(StorageError::Io(error)) => error.kind() == ErrorKind::InvalidData,
        DatabaseError::Storage(StorageError::Corrupted(_))
        | DatabaseError::UpgradeRequired(_)
        | DatabaseError::RepairAborted => true,
        _ => false,
    }
}

/// The doubt, as the file has it.
const GAP: u64 = 1;
const RESTORED: u64 = 2;

/// The memory that redb may use for pages.
const CACHE: usize = 16 << 20;

/// Different refusals that one grant may have; further ones count with the last.
const REFUSALS_OF_A_GRANT: usize = 16;

/// Readers of a lock, the oldest first, among which a refused token is looked for.
pub(crate) const READERS: usize = 1_000;

/// Grants whose unseen ends are held in memory together.
const RECONCILED_AT_ONCE: usize = 10_000;
