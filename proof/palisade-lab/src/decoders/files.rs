//! The files of a data directory, on a simulated disk.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, LazyLock};

use palisade_wal::testing::SimStorage;
use palisade_wal::{
    CreateOptions, Fold, Id, Options, Seq, SnapshotReader, SnapshotWriter, Storage as _, Wal,
};

/// A directory with frames before and after a snapshot; each use gets its own copy.
fn directory() -> Option<SimStorage> {
    static MADE: LazyLock<Option<SimStorage>> = LazyLock::new(make);
    MADE.as_ref().map(SimStorage::restart)
}

fn make() -> Option<SimStorage> {
    let storage = SimStorage::new(1);
    let create = CreateOptions {
        owner: Some(Id::from_bytes([0xaa; 16])),
        incarnation: Some(Id::from_bytes([0x11; 16])),
    };
    let opened = Wal::create_on(Arc::new(storage.clone()), &create, &options());
    let mut wal = opened.ok()?.into_wal();
    let compactor = wal.compactor();
    for number in 0..40_u8 {
        wal.commit(&vec![number; usize::from(number) * 10]).ok()?;
    }
    compactor.compact(&mut Frames::default()).ok()?;
    wal.commit(b"behind the snapshot").ok()?;
    wal.close().ok()?;
    Some(storage.restart())
}

fn options() -> Options {
    Options::small(4096)
}

/// All frames, one after the other.
#[derive(Default)]
struct Frames(Vec<u8>);

impl Fold for Frames {
    type Error = std::io::Error;

    fn load(&mut self, snapshot: &mut SnapshotReader) -> std::io::Result<()> {
        snapshot.read_to_end(&mut self.0).map(drop)
    }

    fn apply(&mut self, _: Seq, payload: &[u8]) -> std::io::Result<()> {
        self.0.extend_from_slice(payload);
        Ok(())
    }

    fn save(&mut self, out: &mut SnapshotWriter) -> std::io::Result<()> {
        out.write_all(&self.0)
    }
}

/// Opens the directory with this file in place of its own; a directory that opens must be readable and writable.
fn open_with(name: Option<String>, bytes: &[u8]) -> bool {
    let (Some(storage), Some(name)) = (directory(), name) else {
        unreachable!("a directory on a good disk has all its files");
    };
    storage.put(&name, bytes);
    match Wal::open_on(Arc::new(storage), &options()) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
        Ok(opened) => {
            let mut state = Frames::default();
            if let Ok(Some(mut snapshot)) = opened.snapshot() {
                let _ = state.load(&mut snapshot);
            }
            let _ = opened.replay(|seq, payload| {
                let _ = state.apply(seq, payload);
                Ok::<(), Infallible>(())
            });
            let mut wal = opened.into_wal();
            assert!(wal.commit(b"after the open").is_ok());
            true
        }
    }
}

fn file(end: &str) -> Option<String> {
    let mut names = directory()?.list().ok()?;
    names.retain(|name| name.ends_with(end) && !name.starts_with("next"));
    names.sort();
    names.pop()
}

fn seed(end: &str) -> Vec<(&'static str, Vec<u8>)> {
    let bytes = directory().zip(file(end));
    let bytes = bytes.and_then(|(storage, name)| storage.read(&name));
    bytes.map(|bytes| ("whole", bytes)).into_iter().collect()
}

/// The newest segment of a log.
pub(super) fn segment(bytes: &[u8]) -> bool {
    open_with(file(".seg"), bytes)
}

pub(super) fn segment_seeds() -> Vec<(&'static str, Vec<u8>)> {
    seed(".seg")
}

/// A snapshot file.
pub(super) fn snapshot(bytes: &[u8]) -> bool {
    open_with(file(".snap"), bytes)
}

pub(super) fn snapshot_seeds() -> Vec<(&'static str, Vec<u8>)> {
    seed(".snap")
}

/// The identity file.
pub(super) fn identity(bytes: &[u8]) -> bool {
    open_with(file("identity"), bytes)
}

pub(super) fn identity_seeds() -> Vec<(&'static str, Vec<u8>)> {
    seed("identity")
}
