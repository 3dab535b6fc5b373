//! Snapshots, made while the store runs.

use std::io::{Read, Write};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use palisade_core::fence::{Mode, Rule};
use palisade_wal::{Compactor, Fold, Seq, SnapshotReader, SnapshotWriter};

use crate::objects::{ResourceTable, StoreLimits};
use crate::store::codec::{self, Damage};

/// A table and the mode of its directory, rebuilt from bytes.
pub(super) struct Replica {
    pub(super) mode: Option<Mode>,
    pub(super) table: ResourceTable,
}

impl Replica {
    pub(super) const fn new(rule: Rule, limits: StoreLimits) -> Replica {
        Replica {
            mode: None,
            table: ResourceTable::new(rule, limits),
        }
    }

    /// Creates a replica without limits: the log's records were admitted within them.
    pub(super) const fn of_all() -> Replica {
        let limits = StoreLimits {
            object_bytes: u64::MAX,
            total_bytes: u64::MAX,
        };
        Replica::new(Rule::CLAIM, limits)
    }

    /// Applies one frame of the log: the first contains the mode, the others contain records.
    pub(super) fn frame(&mut self, payload: &[u8]) -> Result<(), Damage> {
        if self.mode.is_none() {
            self.mode = Some(codec::read_header(payload)?);
            return Ok(());
        }
        codec::each_record(payload, |record| self.table.apply(record))
    }

    pub(super) fn read(&mut self, snapshot: &mut impl Read) -> Result<(), Damage> {
        let mut header = [0; codec::HEADER_BYTES];
        snapshot.read_exact(&mut header)?;
        self.mode = Some(codec::read_header(&header)?);
        let mut bytes = Vec::new();
        while let Some(length) = length(snapshot)? {
            bytes.clear();
            if snapshot.take(length).read_to_end(&mut bytes)? as u64 != length {
                return Err(Damage::Content("a snapshot ends early"));
            }
            self.table.apply(codec::read_record(&bytes)?);
        }
        Ok(())
    }

    pub(super) fn write(&self, out: &mut impl Write) -> Result<(), Damage> {
        let mode = self
            .mode
            .ok_or(Damage::Content("the log has no first frame"))?;
        out.write_all(&codec::header(mode))?;
        let mut bytes = Vec::new();
        for record in self.table.records() {
            bytes.clear();
            codec::write_record(&mut bytes, &record);
            out.write_all(&(bytes.len() as u32).to_le_bytes())?;
            out.write_all(&bytes)?;
        }
        Ok(())
    }
}

/// Reads the length of the next record; `None` at the end of the snapshot.
fn length(snapshot: &mut impl Read) -> Result<Option<u64>, Damage> {
    let mut length = Vec::with_capacity(4);
    snapshot.take(4).read_to_end(&mut length)?;
    match length.as_slice() {
        [] => Ok(None),
        [a, b, c, d] => Ok(Some(u32::from_le_bytes([*a, *b, *c, *d]).into())),
        _ => Err(Damage::Content("a snapshot ends early")),
    }
}

impl Fold for Replica {
    type Error = Damage;

    fn load(&mut self, snapshot: &mut SnapshotReader) -> Result<(), Damage> {
        self.read(snapshot)
    }

    fn apply(&mut self, _: Seq, payload: &[u8]) -> Result<(), Damage> {
        self.frame(payload)
    }

    fn save(&mut self, out: &mut SnapshotWriter) -> Result<(), Damage> {
        self.write(out)
    }
}

/// A thread that makes snapshots on request, one at a time.
pub(super) struct Compaction {
    nudge: Option<mpsc::SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Compaction {
    pub(super) fn start(compactor: Compactor, rule: Rule) -> std::io::Result<Compaction> {
        let (nudge, nudged) = mpsc::sync_channel(0);
        let run = move || {
            while nudged.recv().is_ok() {
                compact(&compactor, rule);
            }
        };
        let thread = thread::Builder::new()
            .name("store-compaction".to_owned())
            .spawn(run)?;
        Ok(Compaction {
            nudge: Some(nudge),
            thread: Some(thread),
        })
    }

    /// Requests a snapshot. It does nothing while one is being made.
    pub(super) fn nudge(&self) {
        if let Some(nudge) = &self.nudge {
            let _ = nudge.try_send(());
        }
    }
}

impl Drop for Compaction {
    /// Waits for a snapshot in progress: the directory stays locked until it is done.
    fn drop(&mut self) {
        drop(self.nudge.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn compact(compactor: &Compactor, rule: Rule) {
    // No limits: the log's records were admitted within them.
    let limits = StoreLimits {
        object_bytes: u64::MAX,
        total_bytes: u64::MAX,
    };
    match compactor.compact(&mut Replica::new(rule, limits)) {
        Ok(Some(made)) => tracing::info!(seq = made.seq.get(), bytes = made.bytes, "snapshot"),
        Ok(None) => {}
        // The log continues and keeps its segments; the next request tries again.
        Err(error) => {
            tracing::warn!(%error, "no snapshot could be made; the log grows until one can")
        }
    }
}
