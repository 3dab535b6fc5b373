//! The format, held fast by files that were committed once.
//!
//! A change of these bytes is a new format version. `UPDATE_GOLDEN=1` writes them anew.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs;
use std::path::PathBuf;

use common::{Journal, create, fill, open};
use palisade_wal::Storage;
use palisade_wal::testing::SimStorage;

const FRAMES: u64 = 30;

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// A snapshot, a sealed segment, an active one with a mark: every kind of thing there is.
fn written() -> SimStorage {
    let storage = SimStorage::new(0);
    let mut wal = create(&storage);
    fill(&mut wal, 14);
    wal.compactor()
        .compact(&mut Journal::default())
        .unwrap()
        .unwrap();
    fill(&mut wal, FRAMES);
    wal.close().unwrap();
    storage
}

#[test]
fn what_is_written_today_is_what_was_written_then() {
    let storage = written();
    for name in storage.list().unwrap() {
        let bytes = storage.read(&name).unwrap();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(golden().join(&name), &bytes).unwrap();
        }
        assert!(
            fs::read(golden().join(&name)).unwrap() == bytes,
            "{name} differs"
        );
    }
    assert_eq!(
        fs::read_dir(golden()).unwrap().count(),
        storage.list().unwrap().len()
    );
}

#[test]
fn what_was_written_then_is_read_today() {
    let storage = SimStorage::new(0);
    let identity = fs::read_to_string(golden().join("identity")).unwrap();
    let inode: usize = identity
        .lines()
        .find_map(|line| line.strip_prefix("inode "))
        .unwrap()
        .parse()
        .unwrap();
    // Files are numbered in the order they are made, and the identity knows its number.
    (1..inode).for_each(|i| storage.put(&format!("filler-{i}"), b""));
    storage.put("identity", identity.as_bytes());
    for entry in fs::read_dir(golden()).unwrap() {
        let entry = entry.unwrap();
        storage.put(
            entry.file_name().to_str().unwrap(),
            &fs::read(entry.path()).unwrap(),
        );
    }
    let opened = open(&storage).unwrap();
    assert_eq!(opened.identity().owner.to_string(), "aa".repeat(16));
    assert!(opened.report().snapshot.is_some());
    assert_eq!(opened.report().torn, None);
    assert_eq!(Journal::of(&opened), Journal::upto(FRAMES));
}
