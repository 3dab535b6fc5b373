//! Helpers that the tests share.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use palisade_wal::testing::SimStorage;
use palisade_wal::{
    CreateOptions, File, FileId, Fold, Id, OpenError, OpenMode, Opened, Options, Seq,
    SnapshotReader, SnapshotWriter, Storage, Wal,
};

/// 4 KiB segments, so that a few frames rotate.
pub(crate) fn options() -> Options {
    Options::small(4096)
}

pub(crate) fn create_options() -> CreateOptions {
    CreateOptions {
        owner: Some(Id::from_bytes([0xaa; 16])),
        incarnation: Some(Id::from_bytes([0x11; 16])),
    }
}

pub(crate) fn create(storage: &SimStorage) -> Wal {
    Wal::create_on(Arc::new(storage.clone()), &create_options(), &options())
        .unwrap()
        .into_wal()
}

pub(crate) fn open_or_create(storage: &SimStorage) -> Result<Opened, OpenError> {
    Wal::open_or_create_on(Arc::new(storage.clone()), &create_options(), &options())
}

pub(crate) fn open(storage: &SimStorage) -> Result<Opened, OpenError> {
    Wal::open_on(Arc::new(storage.clone()), &options())
}

/// The payload of a frame: recognisable, of many lengths, some empty, some longer than a sector.
pub(crate) fn payload(seq: u64) -> Vec<u8> {
    let len = [0, 5, 40, 700, 129, 8, 1500][(seq % 7) as usize];
    (0..len)
        .map(|i| (seq as u8).wrapping_mul(31).wrapping_add(i as u8) | 1)
        .collect()
}

/// A state that remembers every payload: nothing lost, doubled or out of order goes unnoticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Journal(pub(crate) Vec<Vec<u8>>);

impl Journal {
    pub(crate) fn of(opened: &Opened) -> Journal {
        let mut journal = Journal::default();
        if let Some(mut snapshot) = opened.snapshot().unwrap() {
            journal.load(&mut snapshot).unwrap();
            assert_eq!(journal.0.len() as u64, snapshot.seq().get());
        }
        opened
            .replay(|seq, payload| journal.apply(seq, payload))
            .unwrap();
        assert_eq!(
            opened.report().last.map_or(0, Seq::get),
            journal.0.len() as u64
        );
        journal
    }

    /// The journal of frames 1 to `last`.
    pub(crate) fn upto(last: u64) -> Journal {
        Journal((1..=last).map(payload).collect())
    }
}

impl Fold for Journal {
    type Error = io::Error;

    fn load(&mut self, snapshot: &mut SnapshotReader) -> io::Result<()> {
        let mut bytes = Vec::new();
        snapshot.read_to_end(&mut bytes)?;
        let mut rest = bytes.as_slice();
        while let Some((len, tail)) = rest.split_first_chunk::<4>() {
            let (payload, tail) = tail.split_at(u32::from_le_bytes(*len) as usize);
            self.0.push(payload.to_vec());
            rest = tail;
        }
        Ok(())
    }

    fn apply(&mut self, seq: Seq, payload: &[u8]) -> io::Result<()> {
        self.0.push(payload.to_vec());
        assert_eq!(
            seq.get(),
            self.0.len() as u64,
            "frames come in order, each once"
        );
        Ok(())
    }

    fn save(&mut self, out: &mut SnapshotWriter) -> io::Result<()> {
        for payload in &self.0 {
            out.write_all(&(payload.len() as u32).to_le_bytes())?;
            out.write_all(payload)?;
        }
        Ok(())
    }
}

/// Commits the frames up to `last`.
pub(crate) fn fill(wal: &mut Wal, last: u64) {
    while wal.last_seq().map_or(0, Seq::get) < last {
        let next = wal.last_seq().map_or(1, |seq| seq.get() + 1);
        assert_eq!(wal.commit(&payload(next)).unwrap().get(), next);
    }
}

pub(crate) fn ignore(_: Seq, _: &[u8]) -> Result<(), Infallible> {
    Ok(())
}

/// The segments of a storage, oldest first.
pub(crate) fn segments(storage: &SimStorage) -> Vec<String> {
    names(storage, ".seg")
}

pub(crate) fn snapshots(storage: &SimStorage) -> Vec<String> {
    names(storage, ".snap")
}

fn names(storage: &SimStorage, suffix: &str) -> Vec<String> {
    let mut names = palisade_wal::Storage::list(storage).unwrap();
    names.retain(|name| name.ends_with(suffix) && name.contains('0'));
    names.sort();
    names
}

/// A storage that calls `before` with the name of each call and of its file: to fail it, or to let another process
/// work in between.
pub(crate) struct Hooked<F> {
    pub(crate) storage: SimStorage,
    pub(crate) before: F,
}

impl<F: Fn(&str, &str) -> io::Result<()> + Send + Sync + 'static> Storage for Hooked<F> {
    fn open(&self, name: &str, access: OpenMode) -> io::Result<Box<dyn File>> {
        (self.before)("open", name)?;
        self.storage.open(name, access)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        (self.before)("rename", from)?;
        self.storage.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        (self.before)("remove", name)?;
        self.storage.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        (self.before)("list", "")?;
        self.storage.list()
    }

    fn sync_dir(&self) -> io::Result<()> {
        (self.before)("sync_dir", "")?;
        self.storage.sync_dir()
    }

    fn id_of(&self, name: &str) -> io::Result<FileId> {
        (self.before)("id_of", name)?;
        self.storage.id_of(name)
    }

    fn is_in_place(&self) -> io::Result<bool> {
        (self.before)("is_in_place", "")?;
        self.storage.is_in_place()
    }

    fn random(&self) -> io::Result<[u8; 16]> {
        self.storage.random()
    }

    fn path(&self) -> PathBuf {
        self.storage.path()
    }
}
