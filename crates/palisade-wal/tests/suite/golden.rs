//! The format, compared with files that were committed once.
//!
//! A change of these bytes is a new format version. `UPDATE_GOLDEN=1` writes them anew.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{Journal, create, create_options, fill, open, options};
use palisade_wal::testing::SimStorage;
use palisade_wal::{CreateOptions, DirectoryKind, Fold, SnapshotWriter, Storage, Wal};

const FRAMES: u64 = 30;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
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

/// A member's, which began with a snapshot.
fn of_a_member() -> SimStorage {
    let storage = SimStorage::new(0);
    let CreateOptions { owner, incarnation } = create_options();
    let save = |out: &mut SnapshotWriter| Journal::upto(1).save(out);
    let opened = Wal::create_member_on(
        Arc::new(storage.clone()),
        (owner.unwrap(), incarnation.unwrap()),
        &options(),
        Some(save),
    );
    let mut wal = opened.unwrap().into_wal();
    fill(&mut wal, 6);
    wal.close().unwrap();
    storage
}

#[test]
fn the_format_has_not_changed() {
    for (kind, storage) in [("single", written()), ("member", of_a_member())] {
        let golden = golden(kind);
        for name in storage.list().unwrap() {
            let bytes = storage.read(&name).unwrap();
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                fs::create_dir_all(&golden).unwrap();
                fs::write(golden.join(&name), &bytes).unwrap();
            }
            assert!(
                fs::read(golden.join(&name)).unwrap() == bytes,
                "{name} of {kind} differs"
            );
        }
        assert_eq!(
            fs::read_dir(golden).unwrap().count(),
            storage.list().unwrap().len()
        );
    }
}

/// The files. An identity knows the inode of another file and its change time, so those are given back to them.
fn read_back(kind: &str) -> SimStorage {
    let storage = SimStorage::new(0);
    let folder = golden(kind);
    let identity = fs::read_to_string(folder.join("identity")).unwrap();
    let number = |name: &str| -> u64 {
        let line = identity.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    };
    // Files are numbered in the order they are made.
    (1..number("inode")).for_each(|i| storage.put(&format!("filler-{i}"), b""));
    let mut names: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_by_key(|name| !name.starts_with("opening-"));
    for name in names {
        storage.put(&name, &fs::read(folder.join(&name)).unwrap());
        if name.starts_with("opening-") {
            storage.set_changed(&name, number("changed"));
        }
    }
    storage
}

#[test]
fn the_format_is_read() {
    let storage = read_back("single");
    let opened = open(&storage).unwrap();
    assert_eq!(opened.identity().owner.to_string(), "aa".repeat(16));
    assert!(opened.report().snapshot.is_some());
    assert_eq!(opened.report().torn, None);
    assert_eq!(Journal::of(&opened), Journal::upto(FRAMES));
}

#[test]
fn a_member_is_read_back() {
    let storage = read_back("member");
    let opened = Wal::open_member_on(Arc::new(storage), &options()).unwrap();
    assert_eq!(opened.identity().owner.to_string(), "aa".repeat(16));
    let node = match opened.identity().kind {
        DirectoryKind::Member(node) => node.get(),
        other => panic!("{other:?}"),
    };
    assert_eq!((node, opened.starts()), (0xa706_dd2f_4d19_7e6f, 3));
    assert_eq!(Journal::of(&opened), Journal::upto(6));
}
