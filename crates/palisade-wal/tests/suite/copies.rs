//! How a copy ends its segments, and which sealed bytes a snapshot is made of.

use std::io::{Read, Write};

use crate::common::{Journal, create, fill, open, segments, snapshots};
use palisade_wal::testing::{Fault, SimStorage};
use palisade_wal::{Fold, Id, OpenError, Seq, backup_on, restore_on};

/// The magic of the last frame in a segment.
fn last_magic(storage: &SimStorage, name: &str) -> Vec<u8> {
    let bytes = storage.read(name).unwrap();
    let at = bytes
        .windows(3)
        .rposition(|window| window == b"Pfr")
        .unwrap();
    bytes[at..at + 4].to_vec()
}

#[test]
fn a_copy_seals_every_segment_but_the_last_and_marks_that_one() {
    let source = SimStorage::new(1);
    let mut wal = create(&source);
    fill(&mut wal, 35);
    let (saved, restored) = (SimStorage::new(2), SimStorage::new(3));
    backup_on(&source, &saved).unwrap();
    restore_on(&saved, &restored, Id::from_bytes([9; 16])).unwrap();
    for copy in [&saved, &restored] {
        let names = segments(copy);
        assert_eq!(names, segments(&source));
        let (last, others) = names.split_last().unwrap();
        assert!(others.len() >= 2);
        assert_eq!(last_magic(copy, last), b"PfrM");
        for name in others {
            assert_eq!(last_magic(copy, name), b"PfrS", "{name}");
            assert_eq!(copy.read(name).unwrap().len(), 4096);
        }
    }
    // So a lost last segment is noticed.
    restored.take_away(segments(&restored).last().unwrap());
    let error = open(&restored).err().unwrap();
    assert!(
        matches!(&error, OpenError::Damaged(damage) if damage.why.contains("sealed")),
        "{error}"
    );
}

#[test]
fn a_copy_of_an_empty_log_is_empty_and_opens() {
    let source = SimStorage::new(1);
    let mut wal = create(&source);
    let (saved, restored) = (SimStorage::new(2), SimStorage::new(3));
    assert_eq!(backup_on(&source, &saved).unwrap().last, None);
    restore_on(&saved, &restored, Id::from_bytes([9; 16])).unwrap();
    let opened = open(&restored).unwrap();
    assert_eq!(Journal::of(&opened), Journal::upto(0));
    fill(&mut opened.into_wal(), 3);
    fill(&mut wal, 1);
}

#[test]
fn sealed_bytes_are_folded_once_and_their_files_go() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    let compactor = wal.compactor();
    fill(&mut wal, 5);
    assert_eq!(compactor.sealed_bytes(), 0, "nothing is sealed");
    assert_eq!(compactor.compact(&mut Journal::default()).unwrap(), None);
    fill(&mut wal, 35);
    let sealed = segments(&storage).len() as u64 - 1;
    let bytes = compactor.sealed_bytes();
    assert!(
        bytes > (sealed - 1) * 2048 && bytes <= sealed * 4096,
        "{bytes}"
    );
    let made = compactor.compact(&mut Journal::default()).unwrap().unwrap();
    assert_eq!(made.removed.len() as u64, sealed);
    assert_eq!(
        (segments(&storage).len(), snapshots(&storage).len()),
        (1, 1)
    );
    assert_eq!(compactor.sealed_bytes(), 0);
    assert_eq!(compactor.compact(&mut Journal::default()).unwrap(), None);

    // A snapshot of everything so far covers a prefix of the active segment; once sealed, the segment is folded from
    // there on.
    let last = wal.last_seq().unwrap().get();
    let mut journal = Journal::upto(last);
    let made = wal.snapshot(|out| journal.save(out)).unwrap().unwrap();
    assert_eq!(made.seq, Seq::new(last).unwrap());
    assert_eq!(
        (segments(&storage).len(), snapshots(&storage).len()),
        (1, 1)
    );
    fill(&mut wal, last + 20);
    assert!(compactor.sealed_bytes() > 0);
    let made = compactor.compact(&mut Journal::default()).unwrap().unwrap();
    assert!(made.seq.get() > last);
    assert_eq!(
        (segments(&storage).len(), snapshots(&storage).len()),
        (1, 1)
    );
    drop(wal);
    drop(compactor);
    let opened = open(&storage.restart()).unwrap();
    assert_eq!(opened.report().snapshot, Some(made.seq));
    assert_eq!(Journal::of(&opened), Journal::upto(last + 20));
}

#[test]
fn a_snapshot_of_everything_leaves_nothing_to_fold_in_a_segment_sealed_after_it() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 5);
    let mut journal = Journal::upto(5);
    wal.snapshot(|out| journal.save(out)).unwrap().unwrap();
    wal.commit(&[1; 4000]).unwrap();
    assert!(segments(&storage).len() > 1);
    let compactor = wal.compactor();
    assert_eq!(compactor.sealed_bytes(), 0);
    assert_eq!(compactor.compact(&mut Journal::default()).unwrap(), None);
}

#[test]
fn a_snapshot_of_many_chunks_comes_back_in_pieces_of_any_size() {
    let state: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    for piece in [1_000, 65_536, 300_000] {
        let storage = SimStorage::new(1);
        let mut wal = create(&storage);
        fill(&mut wal, 1);
        let save = |out: &mut palisade_wal::SnapshotWriter| {
            state
                .chunks(piece)
                .try_for_each(|piece| out.write_all(piece))
        };
        let made = wal.snapshot(save).unwrap().unwrap();
        let file = storage.read(&snapshots(&storage)[0]).unwrap();
        assert_eq!(made.bytes, file.len() as u64);
        drop(wal);
        let opened = open(&storage).unwrap();
        let mut snapshot = opened.snapshot().unwrap().unwrap();
        let (mut read, mut buffer) = (Vec::new(), vec![0; piece]);
        loop {
            match snapshot.read(&mut buffer).unwrap() {
                0 => break,
                len => read.extend_from_slice(&buffer[..len]),
            }
        }
        assert!(read == state, "pieces of {piece}");
        assert_eq!(
            snapshot.read(&mut buffer).unwrap(),
            0,
            "the end stays the end"
        );
    }
}

#[test]
fn a_snapshot_that_was_not_finished_is_removed_at_the_next_opening() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 30);
    // The calls of a small snapshot before its rename: create, header, chunk, trailer, sync.
    storage.fault_at(storage.calls() + 5, Fault::Crash);
    wal.compactor()
        .compact(&mut Journal::default())
        .unwrap_err();
    drop(wal);
    let opened = open(&storage.restart()).unwrap();
    let removed = &opened.report().removed;
    assert!(
        removed
            .iter()
            .any(|name| name.starts_with("snap-") && name.ends_with(".snap.tmp")),
        "{removed:?}"
    );
    assert_eq!(Journal::of(&opened), Journal::upto(30));
}
