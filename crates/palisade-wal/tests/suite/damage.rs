//! Flipped bits, torn tails, missing and foreign files.

use std::sync::Arc;

use crate::common::{Journal, create, fill, open, options, payload, segments, snapshots};
use palisade_wal::testing::{CrashLoss, SimStorage};
use palisade_wal::{CreateOptions, Damage, Id, OpenError, Storage, Wal};

/// The offset behind the last byte of a file that is not zero.
fn used(storage: &SimStorage, name: &str) -> usize {
    storage
        .read(name)
        .unwrap()
        .iter()
        .rposition(|byte| *byte != 0)
        .unwrap()
        + 1
}

fn damage(storage: &SimStorage) -> Damage {
    match open(storage) {
        Err(OpenError::Damaged(damage)) => damage,
        Err(other) => panic!("refused, but not as damage: {other}"),
        Ok(opened) => panic!("opened: {:?}", opened.report()),
    }
}

/// Three segments, a snapshot of the first, `last` frames.
fn sample(last: u64) -> (SimStorage, Wal) {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, last / 2);
    wal.compactor()
        .compact(&mut Journal::default())
        .unwrap()
        .unwrap();
    fill(&mut wal, last);
    assert_eq!(snapshots(&storage).len(), 1);
    (storage, wal)
}

/// Flips each bit of each file in turn. Returns how many flips dropped the last frame.
fn flip_every_bit(storage: &SimStorage, last: u64) -> usize {
    let (mut refused, mut unchanged, mut dropped) = (0, 0, 0);
    for name in storage.list().unwrap() {
        for bit in 0..storage.read(&name).unwrap().len() * 8 {
            let copy = storage.restart();
            copy.flip(&name, bit);
            let Ok(opened) = open(&copy) else {
                refused += 1;
                continue;
            };
            let found = Journal::of(&opened);
            if found == Journal::upto(last) {
                unchanged += 1;
            } else {
                assert_eq!(found, Journal::upto(last - 1), "{name}, bit {bit}");
                assert!(
                    opened.report().torn.is_some(),
                    "{name}, bit {bit}: dropped and not reported"
                );
                dropped += 1;
            }
        }
    }
    assert!(
        refused > 1_000 && unchanged > 1_000,
        "{refused} refused, {unchanged} unchanged"
    );
    dropped
}

#[test]
fn a_flipped_bit_behind_a_mark_is_refused_or_harmless() {
    let (storage, wal) = sample(30);
    wal.close().unwrap();
    assert_eq!(
        flip_every_bit(&storage, 30),
        0,
        "the mark proves that the last frame was synced"
    );
}

#[test]
fn opening_a_log_leaves_a_mark_behind_its_last_frame() {
    let (storage, wal) = sample(30);
    drop(wal);
    drop(open(&storage).unwrap());
    assert_eq!(flip_every_bit(&storage, 30), 0);
}

/// The control arm: without the mark a flip in the last frame looks like a torn write. Only there.
#[test]
fn a_flipped_bit_in_an_unmarked_last_frame_drops_that_frame_and_says_so() {
    let (storage, wal) = sample(30);
    drop(wal);
    let frame_bits = (32 + payload(30).len().next_multiple_of(8)) * 8;
    assert_eq!(flip_every_bit(&storage, 30), frame_bits);
}

#[test]
fn a_flip_in_a_synced_frame_names_file_and_offset() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 3);
    wal.close().unwrap();
    let name = &segments(&storage)[0];
    // Behind the header, the frame of the opening, and the first.
    let second = 64 + 56 + 32 + payload(1).len().next_multiple_of(8);
    storage.flip(name, (second + 32 + 1) * 8);
    let damage = damage(&storage);
    assert_eq!(
        (damage.file.ends_with(name), damage.offset),
        (true, second as u64),
        "{damage}"
    );
    assert!(
        damage.to_string().contains(name.as_str())
            && damage.to_string().contains("palisade restore")
    );
}

#[test]
fn a_flip_in_a_sealed_segment_is_proved_by_the_next_segment() {
    let (storage, wal) = sample(30);
    wal.close().unwrap();
    let names = segments(&storage);
    assert!(names.len() > 1);
    storage.flip(&names[0], 200 * 8);
    let damage = damage(&storage);
    assert!(damage.file.ends_with(&names[0]), "{damage}");
    assert!(damage.why.contains("is not valid"), "{damage}");
}

#[test]
fn a_tail_torn_at_any_length_is_cut_off_and_never_comes_back() {
    for last in 1..=7 {
        let storage = SimStorage::new(1);
        let mut wal = create(&storage);
        fill(&mut wal, last - 1);
        let name = segments(&storage).pop().unwrap();
        let from = used(&storage, &name).next_multiple_of(8);
        fill(&mut wal, last);
        drop(wal);
        let bytes = storage.read(&name).unwrap();
        let to = used(&storage, &name);
        for (cut, junk) in (from..to).flat_map(|cut| [(cut, 0), (cut, 0xa5)]) {
            let torn = storage.restart();
            let mut bytes = bytes.clone();
            bytes[cut..to].fill(junk);
            torn.put(&name, &bytes);
            let opened = open(&torn).unwrap();
            assert_eq!(
                Journal::of(&opened),
                Journal::upto(last - 1),
                "frame {last} cut at {cut}"
            );
            let kept = (from..to)
                .rev()
                .find(|at| bytes[*at] != 0)
                .map_or(0, |at| at + 1 - from);
            assert_eq!(
                opened.report().torn.as_ref().map_or(0, |torn| torn.bytes),
                kept as u64
            );
            drop(opened);
            let opened = open(&torn.crash(CrashLoss::DropAll)).unwrap();
            assert_eq!(
                opened.report().torn,
                None,
                "the torn bytes are gone for good"
            );
            drop(opened);
            let mut wal = open(&torn).unwrap().into_wal();
            fill(&mut wal, last + 1);
            drop(wal);
            let again = open(&torn.crash(CrashLoss::DropAll)).unwrap();
            assert_eq!(
                (Journal::of(&again), again.report().torn.clone()),
                (Journal::upto(last + 1), None)
            );
        }
    }
}

/// The head of a torn frame counts as a torn write only if it says that the frame before it was the last synced one.
#[test]
fn a_torn_frame_whose_head_says_that_it_was_synced_is_damage() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 3);
    drop(wal);
    let name = segments(&storage).pop().unwrap();
    let at = used(&storage, &name).next_multiple_of(8) - 32 - payload(3).len().next_multiple_of(8);
    for (synced, torn) in [(2u64, true), (3, false), (4, false)] {
        let copy = storage.restart();
        let mut bytes = copy.read(&name).unwrap();
        bytes[at + 32..].fill(0);
        bytes[at + 16..at + 24].copy_from_slice(&synced.to_le_bytes());
        let seed = [&[0x11; 16][..], &1u64.to_le_bytes()].concat();
        let mut crc = crc32fast::Hasher::new_with_initial(crc32fast::hash(&seed));
        crc.update(&(at as u64).to_le_bytes());
        crc.update(&bytes[at..at + 28]);
        bytes[at + 28..at + 32].copy_from_slice(&crc.finalize().to_le_bytes());
        copy.put(&name, &bytes);
        if torn {
            assert!(open(&copy).unwrap().report().torn.is_some())
        } else {
            assert!(damage(&copy).why.contains("proves that it was synced"))
        }
    }
}

/// Bytes of a real frame are no frame anywhere else: not at another offset, not in another life.
#[test]
fn stale_frames_are_not_taken_for_valid_ones() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 2);
    wal.close().unwrap();
    let name = segments(&storage).pop().unwrap();
    let mut bytes = storage.read(&name).unwrap();
    let end = used(&storage, &name).next_multiple_of(8);
    bytes.copy_within(64..end, 1024);
    bytes.copy_within(64..end, end);
    storage.put(&name, &bytes);
    let opened = open(&storage).unwrap();
    assert_eq!(Journal::of(&opened), Journal::upto(2));
    assert!(opened.report().torn.is_some());

    let other = SimStorage::new(2);
    let ids = CreateOptions {
        incarnation: Some(Id::from_bytes([0x22; 16])),
        ..crate::common::create_options()
    };
    drop(Wal::create_on(Arc::new(other.clone()), &ids, &options()).unwrap());
    let mut mixed = other.read(&name).unwrap();
    mixed[64..].copy_from_slice(&bytes[64..]);
    other.put(&name, &mixed);
    assert_eq!(Journal::of(&open(&other).unwrap()), Journal::upto(0));
}

#[test]
fn a_missing_segment_is_named() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 40);
    wal.close().unwrap();
    let names = segments(&storage);
    assert!(names.len() > 3);
    for name in &names {
        let copy = storage.restart();
        copy.remove(name).unwrap();
        let damage = damage(&copy);
        assert!(damage.why.contains("missing"), "{damage}");
        assert!(damage.file.ends_with(name), "{damage}");
    }
}

#[test]
fn a_shortened_segment_is_damage() {
    let (storage, wal) = sample(30);
    wal.close().unwrap();
    for name in segments(&storage) {
        let whole = storage.read(&name).unwrap();
        for len in [0, 1, 63, 64, 100, whole.len() - 1] {
            let copy = storage.restart();
            copy.put(&name, &whole[..len]);
            assert!(damage(&copy).file.ends_with(&name));
        }
    }
}

#[test]
fn files_of_another_incarnation_are_damage() {
    let (storage, wal) = sample(30);
    wal.close().unwrap();
    let restored = SimStorage::new(3);
    palisade_wal::restore_on(&storage, &restored, Id::from_bytes([0x33; 16])).unwrap();
    for name in segments(&storage).into_iter().chain(snapshots(&storage)) {
        let mixed = storage.restart();
        mixed.put(&name, &restored.read(&name).unwrap());
        assert!(damage(&mixed).why.contains("incarnation"));
    }
}

#[test]
fn a_damaged_snapshot_is_skipped_only_when_the_log_has_all_it_held() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 30);
    let before = storage.restart();
    wal.compactor()
        .compact(&mut Journal::default())
        .unwrap()
        .unwrap();
    wal.close().unwrap();
    let name = snapshots(&storage).pop().unwrap();
    let mut bytes = storage.read(&name).unwrap();
    bytes[100] ^= 1;
    // The segments are still there: as after a crash between the rename and their removal.
    before.put(&name, &bytes);
    let opened = open(&before).unwrap();
    assert_eq!(Journal::of(&opened), Journal::upto(30));
    assert!(opened.report().damaged_snapshots[0].ends_with(&name));
    // The next compaction replaces it.
    let wal = opened.into_wal();
    wal.compactor()
        .compact(&mut Journal::default())
        .unwrap()
        .unwrap();
    drop(wal);
    assert!(open(&before).unwrap().report().damaged_snapshots.is_empty());
    // The segments are gone.
    storage.put(&name, &bytes);
    assert!(damage(&storage).file.ends_with(&name));
}

/// A crash after a snapshot got its name leaves the one before it and the segments that both cover.
#[test]
fn files_that_a_snapshot_replaces_are_removed_at_the_next_opening() {
    let (storage, mut wal) = sample(30);
    let before = storage.restart();
    wal.compactor()
        .compact(&mut Journal::default())
        .unwrap()
        .unwrap();
    fill(&mut wal, 31);
    wal.close().unwrap();
    let kept = (segments(&storage), snapshots(&storage));
    let replaced: Vec<String> = segments(&before)
        .into_iter()
        .chain(snapshots(&before))
        .filter(|name| storage.read(name).is_none())
        .collect();
    assert!(replaced.len() > 1);
    for name in &replaced {
        storage.put(name, &before.read(name).unwrap());
    }
    let opened = open(&storage).unwrap();
    assert_eq!(Journal::of(&opened), Journal::upto(31));
    assert_eq!(opened.report().removed.len(), replaced.len());
    assert_eq!((segments(&storage), snapshots(&storage)), kept);
}

#[test]
fn a_snapshot_that_ends_early_or_late_is_damage() {
    let (storage, wal) = sample(30);
    wal.close().unwrap();
    let name = snapshots(&storage).pop().unwrap();
    let whole = storage.read(&name).unwrap();
    for len in 0..whole.len() {
        let copy = storage.restart();
        copy.put(&name, &whole[..len]);
        let damage = damage(&copy);
        assert!(damage.file.ends_with(&name), "cut at {len}");
        let why = if len < 64 { "header" } else { "ends too early" };
        assert!(damage.why.contains(why), "cut at {len}: {damage}");
    }
    let longer: Vec<u8> = whole.iter().copied().chain([0]).collect();
    storage.put(&name, &longer);
    assert!(damage(&storage).why.contains("behind the trailer"));
}

#[test]
fn another_format_version_is_not_reported_as_damage() {
    let (storage, wal) = sample(30);
    wal.close().unwrap();
    for name in segments(&storage).into_iter().chain(snapshots(&storage)) {
        let copy = storage.restart();
        let mut bytes = copy.read(&name).unwrap();
        bytes[8] = 2;
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        copy.put(&name, &bytes);
        assert!(matches!(
            open(&copy),
            Err(OpenError::Unsupported {
                found: 2,
                supported: 1,
                ..
            })
        ));
    }
}

#[test]
fn a_missing_identity_is_refused_where_anything_was_committed() {
    // An interrupted creation leaves a directory that was never opened.
    let storage = SimStorage::new(1);
    let made = SimStorage::new(1);
    drop(create(&made));
    let mut bytes = made.read(&segments(&made)[0]).unwrap();
    bytes[64..].fill(0);
    storage.put(&segments(&made)[0], &bytes);
    assert!(
        matches!(open(&storage), Err(OpenError::Missing { .. })),
        "nothing was ever committed"
    );
    let mut wal = create(&storage);
    fill(&mut wal, 1);
    drop(wal);
    storage.remove("identity").unwrap();
    assert!(matches!(open(&storage), Err(OpenError::NoIdentity { .. })));
    let later = SimStorage::new(1);
    later.put("log-00000000000000000005.seg", &bytes);
    assert!(matches!(open(&later), Err(OpenError::NoIdentity { .. })));
    assert!(matches!(
        crate::common::open_or_create(&storage),
        Err(OpenError::NoIdentity { .. })
    ));
}

#[test]
fn leftovers_are_removed() {
    let (storage, wal) = sample(30);
    wal.close().unwrap();
    let tmp = format!("{}.tmp", snapshots(&storage)[0]);
    for name in ["next.seg", "identity.tmp", &tmp, "notes.txt"] {
        storage.put(name, b"half");
    }
    let opened = open(&storage).unwrap();
    assert_eq!(
        opened.report().removed.len(),
        3,
        "{:?}",
        opened.report().removed
    );
    assert!(
        storage.read("notes.txt").is_some(),
        "the file of another program stays"
    );
}
