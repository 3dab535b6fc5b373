//! The format, compared with files that were committed once.
//!
//! A change of these bytes is a new format version. `UPDATE_GOLDEN=1` writes them anew.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{Journal, create, create_options, fill, open, options};
use palisade_wal::testing::SimStorage;
use palisade_wal::{CreateOptions, Fold, Kind, SnapshotWriter, Storage, Wal};

const FRAMES: u64 = 30;

fn of_version(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/version-{version}"))
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

/// A member's, which began with a snapshot: only its identity is of another version.
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

/// Each version that is written today, with its files: version 2 for a single server, 3 for a member.
#[test]
fn the_format_has_not_changed() {
    for (version, storage) in [(2, written()), (3, of_a_member())] {
        let golden = of_version(version);
        for name in storage.list().unwrap() {
            let bytes = storage.read(&name).unwrap();
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                fs::create_dir_all(&golden).unwrap();
                fs::write(golden.join(&name), &bytes).unwrap();
            }
            assert!(
                fs::read(golden.join(&name)).unwrap() == bytes,
                "{name} of version {version} differs"
            );
        }
        assert_eq!(
            fs::read_dir(golden).unwrap().count(),
            storage.list().unwrap().len()
        );
    }
}

/// The files of a version. An identity of version 1 knows its own inode, one of version 2 that of another file and
/// its change time, so those are given back to them.
fn read_back(version: u32) -> SimStorage {
    let storage = SimStorage::new(0);
    let identity = fs::read_to_string(of_version(version).join("identity")).unwrap();
    let number = |name: &str| -> Option<u64> {
        let line = identity.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    let inode = number("inode").unwrap();
    // Files are numbered in the order they are made.
    (1..inode).for_each(|i| storage.put(&format!("filler-{i}"), b""));
    let mut names: Vec<_> = fs::read_dir(of_version(version))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let remembered = if version == 1 { "identity" } else { "opening-" };
    names.sort_by_key(|name| !name.starts_with(remembered));
    for name in names {
        storage.put(&name, &fs::read(of_version(version).join(&name)).unwrap());
        if let (true, Some(changed)) = (name.starts_with("opening-"), number("changed")) {
            storage.set_changed(&name, changed);
        }
    }
    storage
}

#[test]
fn every_version_of_the_format_is_read() {
    for version in [1, 2] {
        let storage = read_back(version);
        let opened = open(&storage).unwrap();
        assert_eq!(opened.identity().owner.to_string(), "aa".repeat(16));
        assert!(opened.report().snapshot.is_some());
        assert_eq!(opened.report().torn, None);
        assert_eq!(Journal::of(&opened), Journal::upto(FRAMES));
    }
}

#[test]
fn a_member_is_read_back() {
    let storage = read_back(3);
    let opened = Wal::open_member_on(Arc::new(storage), &options()).unwrap();
    assert_eq!(opened.identity().owner.to_string(), "aa".repeat(16));
    let node = match opened.identity().kind {
        Kind::Member(node) => node.get(),
        other => panic!("{other:?}"),
    };
    assert_eq!((node, opened.starts()), (0xa706_dd2f_4d19_7e6f, 3));
    assert_eq!(Journal::of(&opened), Journal::upto(6));
}

/// A directory of version 1 opens once as it is, and is one of version 2 from then on.
#[test]
fn version_1_is_upgraded_when_it_is_opened() {
    let before = read_back(1);
    let storage = before.restart();
    drop(open(&storage).unwrap());
    let identity = String::from_utf8(storage.read("identity").unwrap()).unwrap();
    assert!(identity.starts_with("palisade-identity 2\n"), "{identity}");
    let mut wal = open(&storage).unwrap().into_wal();
    fill(&mut wal, FRAMES + 3);
    drop(wal);
    // The old identity contradicts the new log.
    storage.put("identity", &before.read("identity").unwrap());
    assert!(open(&storage).is_err());
}
