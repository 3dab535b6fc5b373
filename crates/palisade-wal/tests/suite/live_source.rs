//! Backups of a log that changes while they read it, and copies that fail.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{Hooked, Journal, create, fill, open, segments, snapshots};
use palisade_wal::testing::{Fault, SimStorage};
use palisade_wal::{CopyReport, Id, OpenError, Seq, Wal, backup_on, restore_on};

/// Backs `storage` up; `meanwhile` runs once, right before the call of this name on a file with this prefix.
fn backup_while(
    storage: &SimStorage,
    (call, prefix): (&'static str, &'static str),
    meanwhile: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> (Result<CopyReport, OpenError>, SimStorage) {
    let meanwhile = Mutex::new(Some(meanwhile));
    let source = Hooked {
        storage: storage.clone(),
        before: move |name: &str, file: &str| {
            let here = name == call && file.starts_with(prefix);
            match here.then(|| meanwhile.lock().unwrap().take()).flatten() {
                Some(meanwhile) => meanwhile(),
                None => Ok(()),
            }
        },
    };
    let saved = SimStorage::new(2);
    (backup_on(&source, &saved), saved)
}

fn compact(wal: &Wal) {
    let made = wal.compactor().compact(&mut Journal::default()).unwrap();
    assert!(made.is_some());
}

fn assert_holds(saved: &SimStorage, last: u64) {
    let restored = SimStorage::new(3);
    restore_on(saved, &restored, Id::from_bytes([9; 16])).unwrap();
    assert_eq!(Journal::of(&open(&restored).unwrap()), Journal::upto(last));
}

#[test]
fn a_backup_begins_again_when_a_compaction_removes_its_files() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 20);
    compact(&wal);
    fill(&mut wal, 40);
    let listed = (segments(&storage), snapshots(&storage));
    let before = storage.clone();
    let (report, saved) = backup_while(&storage, ("open", "snap-"), move || {
        compact(&wal);
        assert_ne!((segments(&before), snapshots(&before)), listed);
        Ok(())
    });
    assert_eq!(report.unwrap().last, Seq::new(40));
    assert_holds(&saved, 40);
    assert_eq!(
        (segments(&saved), snapshots(&saved)),
        (segments(&storage), snapshots(&storage)),
        "nothing of the first attempt is left"
    );
}

#[test]
fn a_backup_begins_again_when_its_last_segment_is_sealed_meanwhile() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 5);
    let (report, saved) = backup_while(&storage, ("open", "log-"), move || {
        fill(&mut wal, 20);
        Ok(())
    });
    assert_eq!(report.unwrap().last, Seq::new(20));
    assert_holds(&saved, 20);
}

/// A frame that becomes unreadable between the check and the copy must not end the backup early.
#[test]
fn a_backup_notices_damage_that_appears_while_it_copies() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 20);
    drop(wal);
    let (first, opens) = (segments(&storage).remove(0), AtomicU32::new(0));
    let damaged = storage.clone();
    let source = Hooked {
        storage,
        before: move |call: &str, file: &str| {
            if call == "open" && file == first && opens.fetch_add(1, Ordering::Relaxed) == 1 {
                damaged.flip(&first, 200 * 8);
            }
            Ok(())
        },
    };
    let saved = SimStorage::new(2);
    let refused = backup_on(&source, &saved).unwrap_err();
    assert!(matches!(refused, OpenError::Damaged(_)), "{refused}");
    assert!(segments(&saved).is_empty());
}

#[test]
fn a_backup_looks_at_damage_twice_and_at_a_read_error_once() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 20);
    drop(wal);
    let lists = |storage: &SimStorage, fails: bool| {
        let lists = std::sync::Arc::new(AtomicU32::new(0));
        let counted = lists.clone();
        let source = Hooked {
            storage: storage.clone(),
            before: move |call: &str, file: &str| match call {
                "open" if fails && file.starts_with("log-") => Err(io::Error::other("simulated")),
                "list" => {
                    counted.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
                _ => Ok(()),
            },
        };
        let refused = backup_on(&source, &SimStorage::new(2)).unwrap_err();
        (lists.load(Ordering::Relaxed), refused)
    };
    let (looks, refused) = lists(&storage, true);
    assert!(matches!(refused, OpenError::Io { .. }), "{refused}");
    assert_eq!(looks, 1);
    storage.flip(&segments(&storage)[0], 200 * 8);
    let (looks, refused) = lists(&storage, false);
    assert!(matches!(refused, OpenError::Damaged(_)), "{refused}");
    assert_eq!(looks, 2);
}

#[test]
fn a_copy_that_fails_leaves_no_log_files() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 20);
    compact(&wal);
    fill(&mut wal, 40);
    let restore = |target: &SimStorage| restore_on(&storage, target, Id::from_bytes([9; 16]));
    let whole = SimStorage::new(2);
    restore(&whole).unwrap();
    for call in 1..=whole.calls() {
        let target = SimStorage::new(2);
        target.fault_at(call, Fault::Error);
        let failed = restore(&target).unwrap_err();
        assert!(matches!(failed, OpenError::Io { .. }), "{failed}");
        assert!(
            segments(&target).is_empty() && snapshots(&target).is_empty(),
            "failed at call {call}"
        );
    }
}

/// If a frame is torn, the number that it says is synced shows which frame came before it.
#[test]
fn each_frame_of_a_copy_says_that_the_frame_before_it_is_synced() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 3);
    let saved = SimStorage::new(2);
    backup_on(&storage, &saved).unwrap();
    let bytes = saved.read(&segments(&saved)[0]).unwrap();
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let mut at = 64;
    for seq in 1..=3 {
        assert_eq!(&bytes[at..at + 4], b"PfrD");
        assert_eq!((number(at + 8), number(at + 16)), (seq, seq - 1));
        at += 32 + crate::common::payload(seq).len().next_multiple_of(8);
    }
    assert_eq!(&bytes[at..at + 4], b"PfrM");
    assert_eq!((number(at + 8), number(at + 16)), (3, 3));
}
