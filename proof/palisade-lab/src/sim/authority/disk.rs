//! The authority's directory: the real log over a storage that fails as real ones do.

use std::sync::Arc;

use palisade_pipeline::Returning;
use palisade_pipeline::durable::{Shadow, replay};
use palisade_pipeline::replay::Replay;
use palisade_wal::testing::{CrashLoss, Fault, PutBack, SimStorage};
use palisade_wal::{CreateOptions, Id, OpenError, Options, Wal, backup_on, restore_on};

use crate::sim::rng::Rng;

/// How much sealed log is worth a snapshot.
const SNAPSHOT_AFTER: u64 = 4 << 10;

/// A directory, and its last backup.
pub(crate) struct Disk {
    storage: SimStorage,
    backup: Option<SimStorage>,
    /// The directory at the last backup, copied file by file.
    older: Option<SimStorage>,
    seed: u64,
    restores: u8,
}

/// The result of opening a directory.
pub(crate) struct Opened {
    pub(crate) wal: Wal,
    pub(crate) replay: Replay,
    /// Whether the directory already existed.
    pub(crate) returning: bool,
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Disk {
        Disk {
            storage: SimStorage::new(seed),
            backup: None,
            older: None,
            seed,
            restores: 0,
        }
    }

    /// Opens the directory and replays it, as a starting server does.
    pub(crate) fn open(&self) -> Result<Opened, String> {
        open(&self.storage, self.seed)
    }

    /// Whether a copy of the directory opens, or an older copy that was put back; neither may (rule A5).
    pub(crate) fn copy_opens(&self) -> bool {
        let opens = |storage: SimStorage| Wal::open_on(Arc::new(storage), &options()).is_ok();
        let put_back = |older: &SimStorage| self.storage.put_back(older, PutBack::Anew);
        opens(self.storage.copied()) || self.older.as_ref().map(put_back).is_some_and(opens)
    }

    /// The process is gone, the machine is not.
    pub(crate) fn restart(&mut self) {
        self.storage = self.storage.restart();
    }

    /// The machine lost power.
    pub(crate) fn crash(&mut self, loss: CrashLoss) {
        self.storage = self.storage.crash(loss);
    }

    /// The process dies in its n-th disk operation from now on.
    pub(crate) fn die_in(&self, call: u64) {
        self.storage
            .fault_at(self.storage.calls() + call, Fault::Crash);
    }

    /// The n-th disk operation from now on fails.
    pub(crate) fn fail_in(&self, call: u64) {
        self.storage
            .fault_at(self.storage.calls() + call, Fault::Error);
    }

    /// The disk is full, or has unlimited room.
    pub(crate) fn fill(&self, full: bool) {
        let capacity = full.then(|| self.storage.used());
        self.storage.set_capacity(capacity);
    }

    /// Flips a bit of a file; if opening detects it, the damage stays and the result is `true`.
    ///
    /// A flip that opening cannot distinguish from a torn tail (in the last frame, without the mark that an idle log
    /// gets) is undone: the log's documents name that limit.
    pub(crate) fn flip(&mut self, rng: &mut Rng) -> bool {
        let files = ["log-", "snap-", "identity"];
        let wanted = files[rng.below(3) as usize];
        let Ok(names) = palisade_wal::Storage::list(&self.storage) else {
            return false;
        };
        let Some(name) = names.iter().find(|name| name.starts_with(wanted)) else {
            return false;
        };
        let bits = self.storage.read(name).map_or(0, |bytes| bytes.len() * 8);
        let damaged = self.storage.restart();
        damaged.flip(name, rng.below(bits.max(1) as u64) as usize);
        if open(&damaged.restart(), self.seed).is_ok() {
            return false;
        }
        self.storage = damaged.restart();
        true
    }

    pub(crate) fn has_backup(&self) -> bool {
        self.backup.is_some()
    }

    pub(crate) fn back_up(&mut self) {
        let target = SimStorage::new(self.seed);
        self.older = Some(self.storage.restart());
        // A failing disk gives no backup; the last one stays.
        if backup_on(&self.storage, &target).is_ok() {
            self.backup = Some(target);
        }
    }

    /// Replaces the directory with the backup, and raises the token counter if the restore does.
    pub(crate) fn restore(&mut self, leap: Option<u64>) -> Result<bool, String> {
        let Some(backup) = &self.backup else {
            return Ok(false);
        };
        self.restores += 1;
        let target = SimStorage::new(self.seed ^ u64::from(self.restores));
        let incarnation = Id::from_bytes([self.restores; 16]);
        restore_on(backup, &target, incarnation).map_err(|error| error.to_string())?;
        if let Some(leap) = leap {
            let Opened {
                mut wal,
                mut replay,
                ..
            } = open(&target, self.seed)?;
            let batch = replay.return_from(Returning::Restored { leap });
            let batch = batch.map_err(|error| error.to_string())?;
            wal.commit(&batch).map_err(|error| error.to_string())?;
            wal.close().map_err(|error| error.to_string())?;
        }
        self.storage = target.restart();
        Ok(true)
    }
}

fn open(storage: &SimStorage, seed: u64) -> Result<Opened, String> {
    let create = CreateOptions {
        owner: Some(Id::from_bytes([7; 16])),
        incarnation: Some(Id::from_bytes([1; 16])),
    };
    let text = |error: OpenError| error.to_string();
    let opened = Wal::open_or_create_on(Arc::new(storage.clone()), &create, &options());
    let opened = opened.map_err(text)?;
    let returning = opened.report().last.is_some();
    let replay = replay(&opened, seed).map_err(|error| error.to_string())?;
    Ok(Opened {
        wal: opened.into_wal(),
        replay,
        returning,
    })
}

fn options() -> Options {
    Options::small(4 << 10)
}

/// Makes a snapshot by replaying sealed log, like the server's background thread; a failure changes nothing. `true` if
/// there is a new one.
pub(crate) fn compact(wal: &Wal) -> bool {
    let compactor = wal.compactor();
    compactor.sealed_bytes() >= SNAPSHOT_AFTER
        && matches!(compactor.compact(&mut Shadow::new(0)), Ok(Some(_)))
}
