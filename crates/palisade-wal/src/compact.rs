//! Snapshots in the background, without stopping the writer.
//!
//! The caller rebuilds its state a second time, from the newest snapshot and the *sealed* segments only, and
//! writes it out. Sealed segments are never written again, so there is no race with the writer; the hot
//! path shares one short mutex with it, at rotation.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, OnceLock};

use crate::error::{CompactError, ReadError};
use crate::identity::{self, Current, Identity};
use crate::opening::Opening;
use crate::segment::{SegmentInfo, replay};
use crate::snapshot::{self, SnapshotReader, SnapshotWriter};
use crate::storage::{File, Storage};
use crate::{Seq, hold};

/// The state that the writer, the opened log and the compactors share.
pub(crate) struct Shared {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) identity: Identity,
    pub(crate) opening: Opening,
    /// Held for its lock, and to notice that another file has its name.
    identity_file: Box<dyn File>,
    /// Why the directory no longer belongs to this log. Set once; nothing is committed after it.
    lost: OnceLock<String>,
    /// The reason the last preparation of a segment failed, with the remedy; stays until one succeeds.
    pub(crate) preparation_failure: Mutex<Option<String>>,
    catalog: Mutex<Catalog>,
    /// Held while a snapshot is made: one at a time.
    gate: Mutex<Poison>,
}

#[derive(Clone)]
struct Catalog {
    snapshot: Option<Seq>,
    /// In order, without those that the snapshot replaced.
    sealed: Vec<SegmentInfo>,
}

impl Catalog {
    fn sealed_bytes(&self) -> u64 {
        self.sealed
            .iter()
            .filter(|info| Seq::new(info.last) > self.snapshot)
            .map(|info| info.end)
            .sum()
    }
}

/// The reason no more snapshots are made, if so.
#[derive(Default)]
struct Poison {
    poison: Option<String>,
}

impl Shared {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        identity: Identity,
        current: Current,
        snapshot: Option<Seq>,
        sealed: Vec<SegmentInfo>,
    ) -> Shared {
        let catalog = Mutex::new(Catalog { snapshot, sealed });
        Shared {
            storage,
            identity,
            opening: current.opening,
            identity_file: current.file,
            lost: OnceLock::new(),
            preparation_failure: Mutex::new(None),
            catalog,
            gate: Mutex::new(Poison::default()),
        }
    }

    /// Why nothing may be committed any more, if the directory was found to be gone.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Checks that the directory's path still leads to it, and that its identity file is still the one that was
    /// written at the opening. If the system does not say, the next check asks again.
    pub(crate) fn check_directory(&self) {
        let dir = self.storage.path();
        let why = if matches!(self.storage.is_in_place(), Ok(false)) {
            format!(
                "{} was removed, renamed or replaced while it was open",
                dir.display()
            )
        } else if !self.has_identity() {
            format!(
                "the identity file in {} was removed or replaced while it was open",
                dir.display()
            )
        } else {
            return;
        };
        let _ = self.lost.set(why);
    }

    fn has_identity(&self) -> bool {
        match (self.storage.id_of(identity::NAME), self.identity_file.id()) {
            (Ok(found), Ok(held)) => found.is_same_file(&held),
            (Err(error), _) => error.kind() != io::ErrorKind::NotFound,
            (_, Err(_)) => true,
        }
    }

    pub(crate) fn add_sealed(&self, info: SegmentInfo) {
        let sealed = &mut hold(&self.catalog).sealed;
        let follows = |last: &SegmentInfo| last.last + 1 == info.first;
        assert!(
            sealed.last().is_none_or(follows),
            "a segment does not follow the sealed ones"
        );
        assert!(
            info.first <= info.last,
            "a segment without a frame is sealed"
        );
        sealed.push(info);
    }

    fn check<E>(&self, gate: &Poison) -> Result<(), CompactError<E>> {
        match gate.poison.as_deref().or(self.lost()) {
            Some(cause) => Err(CompactError::Poisoned {
                cause: cause.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Makes a snapshot that ends with `seq`, even if that frame is not in a sealed segment.
    pub(crate) fn snapshot_at<E>(
        &self,
        seq: Seq,
        save: impl FnOnce(&mut SnapshotWriter) -> Result<(), E>,
    ) -> Result<Compacted, CompactError<E>> {
        let mut gate = hold(&self.gate);
        self.check(&gate)?;
        self.install(&mut gate, seq, save)
    }

    /// Writes a snapshot, makes it durable, and removes the files that it replaces.
    fn install<E>(
        &self,
        gate: &mut Poison,
        seq: Seq,
        save: impl FnOnce(&mut SnapshotWriter) -> Result<(), E>,
    ) -> Result<Compacted, CompactError<E>> {
        let path = self.storage.path().join(snapshot::name(seq));
        let io = |call: &str, source| CompactError::Io {
            what: format!("{call} {}", path.display()),
            source,
        };
        let (tmp, name) = (snapshot::tmp_name(seq), snapshot::name(seq));
        let renamed = self.write_tmp(seq, save).and_then(|bytes| {
            self.storage
                .rename(&tmp, &name)
                .map_err(|e| io("rename to", e))?;
            Ok(bytes)
        });
        let bytes = renamed.inspect_err(|_| {
            // It may not be there; it is removed at the next open in any case. A later attempt writes a new
            // file, so a failed sync is never retried on the same pages.
            let _ = self.storage.remove(&tmp);
        })?;
        if let Err(error) = self.storage.sync_dir() {
            gate.poison = Some(format!(
                "sync of the directory of {}: {error}",
                path.display()
            ));
            return Err(io("sync of the directory of", error));
        }
        let removed = self
            .remove_superseded(seq)
            .map_err(|e| io("removal of what is replaced by", e))?;
        Ok(Compacted {
            seq,
            bytes,
            removed,
        })
    }

    fn write_tmp<E>(
        &self,
        seq: Seq,
        save: impl FnOnce(&mut SnapshotWriter) -> Result<(), E>,
    ) -> Result<u64, CompactError<E>> {
        let name = snapshot::tmp_name(seq);
        let io = |source| CompactError::Io {
            what: format!("write of {}", self.storage.path().join(&name).display()),
            source,
        };
        let mut writer =
            SnapshotWriter::create(&*self.storage, &name, &self.identity.incarnation, seq)
                .map_err(io)?;
        save(&mut writer).map_err(CompactError::Fold)?;
        writer.finish().map_err(io)
    }

    /// The snapshot at `seq` is durable: sealed segments up to it and older snapshots go.
    fn remove_superseded(&self, seq: Seq) -> io::Result<Vec<String>> {
        let mut catalog = hold(&self.catalog);
        catalog.snapshot = Some(seq);
        let (gone, kept) = catalog
            .sealed
            .drain(..)
            .partition(|info| info.last <= seq.get());
        catalog.sealed = kept;
        drop(catalog);
        let gone: Vec<SegmentInfo> = gone;
        let mut names: Vec<String> = gone.iter().map(SegmentInfo::name).collect();
        let older = |name: &String| snapshot::parse_name(name).is_some_and(|other| other < seq);
        names.extend(self.storage.list()?.into_iter().filter(older));
        names
            .iter()
            .try_for_each(|name| self.storage.remove(name))?;
        Ok(names)
    }
}

/// The caller's state, rebuilt beside the live one.
pub trait Fold {
    /// The error of the caller's code; `From<io::Error>` makes `?` work in it.
    type Error;

    /// Takes the previous snapshot; called first, and not at all when there is none.
    ///
    /// # Errors
    /// Ends the compaction.
    fn load(&mut self, snapshot: &mut SnapshotReader) -> Result<(), Self::Error>;

    /// Takes one frame; called in order.
    ///
    /// # Errors
    /// Ends the compaction.
    fn apply(&mut self, seq: Seq, payload: &[u8]) -> Result<(), Self::Error>;

    /// Writes the state as it is after the last frame.
    ///
    /// # Errors
    /// Ends the compaction.
    fn save(&mut self, out: &mut SnapshotWriter) -> Result<(), Self::Error>;
}

/// A snapshot was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The last frame in it.
    pub seq: Seq,
    /// The length of its file.
    pub bytes: u64,
    /// The files it made useless, which are removed.
    pub removed: Vec<String>,
}

/// Makes snapshots, from any thread. The directory stays locked as long as one exists.
#[derive(Clone)]
pub struct Compactor {
    shared: Arc<Shared>,
}

impl fmt::Debug for Compactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compactor")
            .field("sealed_bytes", &self.sealed_bytes())
            .finish()
    }
}

impl Compactor {
    pub(crate) fn new(shared: Arc<Shared>) -> Compactor {
        Compactor { shared }
    }

    /// How many bytes of sealed log lie behind the newest snapshot: the work a compaction would do.
    pub fn sealed_bytes(&self) -> u64 {
        hold(&self.shared.catalog).sealed_bytes()
    }

    /// The newest snapshot, if there is one. It can be read to its end although a newer one takes its place meanwhile.
    ///
    /// # Errors
    /// [`ReadError`] if its file cannot be opened, or is damaged.
    pub fn newest(&self) -> Result<Option<SnapshotReader>, ReadError> {
        let newest = || hold(&self.shared.catalog).snapshot;
        let (storage, incarnation) = (&*self.shared.storage, &self.shared.identity.incarnation);
        loop {
            let Some(seq) = newest() else { return Ok(None) };
            match SnapshotReader::open(storage, incarnation, seq) {
                Ok(reader) => return Ok(Some(reader)),
                // Its file went away between the two.
                Err(_) if newest() != Some(seq) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reports from now on when the preparation of segments begins to fail, and when it works again.
    pub fn watch_preparation(&self) -> PreparationWatch {
        PreparationWatch {
            shared: self.shared.clone(),
            fails: false,
        }
    }

    /// Folds the newest snapshot and the sealed segments into a new snapshot. `None` when nothing is sealed
    /// behind the newest one. One runs at a time; the writer goes on meanwhile.
    ///
    /// Durability: the new snapshot's bytes and name are on stable storage before anything is removed. A
    /// crash at any point leaves a directory that opens with the same content.
    ///
    /// # Errors
    /// [`CompactError`]; the log itself goes on. After a failed directory sync there are no more snapshots
    /// until a restart.
    pub fn compact<F: Fold>(
        &self,
        fold: &mut F,
    ) -> Result<Option<Compacted>, CompactError<F::Error>> {
        let mut gate = hold(&self.shared.gate);
        self.shared.check(&gate)?;
        let catalog = hold(&self.shared.catalog).clone();
        let last = catalog.sealed.last().and_then(|info| Seq::new(info.last));
        let Some(seq) = last.filter(|seq| Some(*seq) > catalog.snapshot) else {
            return Ok(None);
        };
        let (storage, incarnation) = (&*self.shared.storage, &self.shared.identity.incarnation);
        if let Some(previous) = catalog.snapshot {
            let mut reader = SnapshotReader::open(storage, incarnation, previous)?;
            fold.load(&mut reader).map_err(CompactError::Fold)?;
        }
        replay(
            storage,
            incarnation,
            &catalog.sealed,
            catalog.snapshot,
            |seq, payload| fold.apply(seq, payload),
        )?;
        self.shared
            .install(&mut gate, seq, |out| fold.save(out))
            .map(Some)
    }
}

/// Reports when the preparation of segments begins to fail, and when it works again: for a log of events.
///
/// The log goes on while there is room in the segment being written to and in the one that is ready.
pub struct PreparationWatch {
    shared: Arc<Shared>,
    fails: bool,
}

impl PreparationWatch {
    /// The change since the last call: the reason that preparation fails now, with the remedy, or that it works again.
    pub fn change(&mut self) -> Option<Result<(), String>> {
        let failure = hold(&self.shared.preparation_failure).clone();
        let changed = failure.is_some() != self.fails;
        self.fails = failure.is_some();
        changed.then(|| failure.map_or(Ok(()), Err))
    }
}
