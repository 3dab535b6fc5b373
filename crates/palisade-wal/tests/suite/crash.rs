//! Crashes and failures at every single call.

use crate::common::{Journal, create, fill, open, open_or_create, payload};
use palisade_wal::testing::{CrashLoss, Fault, SimStorage};
use palisade_wal::{CommitError, Id, Seq};

const LOSSES: [CrashLoss; 8] = [
    CrashLoss::DropAll,
    CrashLoss::KeepAll,
    CrashLoss::Torn(1),
    CrashLoss::Torn(2),
    CrashLoss::Torn(3),
    CrashLoss::Torn(4),
    CrashLoss::Torn(5),
    CrashLoss::Torn(6),
];

/// Creates a log, commits, marks, compacts, snapshots, until `last` frames are acknowledged or something
/// fails. Returns how many were acknowledged.
fn work(storage: &SimStorage, last: u64) -> u64 {
    let Ok(opened) = open_or_create(storage) else {
        return 0;
    };
    let mut wal = opened.into_wal();
    let mut acknowledged = wal.last_seq().map_or(0, Seq::get);
    while acknowledged < last {
        let next = acknowledged + 1;
        if wal.commit(&payload(next)).is_err() {
            return acknowledged;
        }
        acknowledged = next;
        let went_on = match next % 10 {
            3 => wal.seal_mark().is_ok(),
            6 => wal.compactor().compact(&mut Journal::default()).is_ok(),
            8 if next > 20 => {
                let mut journal = Journal::upto(next);
                wal.snapshot(|out| palisade_wal::Fold::save(&mut journal, out))
                    .is_ok()
            }
            _ => true,
        };
        if !went_on {
            return acknowledged;
        }
    }
    let _ = wal.close();
    acknowledged
}

/// Everything acknowledged is there, at most one frame more, in order; and the log goes on and keeps it.
fn check(storage: &SimStorage, acknowledged: u64, what: &str) {
    let opened = match open_or_create(storage) {
        Ok(opened) => opened,
        Err(error) => panic!("{what}: {error}"),
    };
    let found = Journal::of(&opened);
    let len = found.0.len() as u64;
    assert!(
        len == acknowledged || len == acknowledged + 1,
        "{what}: {acknowledged} acknowledged, {len} found"
    );
    assert_eq!(found, Journal::upto(len), "{what}");
    let mut wal = opened.into_wal();
    fill(&mut wal, len + 5);
    drop(wal);
    let opened = open(&storage.crash(CrashLoss::DropAll))
        .unwrap_or_else(|e| panic!("{what}, second life: {e}"));
    assert_eq!(
        Journal::of(&opened),
        Journal::upto(len + 5),
        "{what}, second life"
    );
}

fn calls_of_a_run(last: u64) -> u64 {
    let storage = SimStorage::new(0);
    assert_eq!(work(&storage, last), last);
    storage.calls()
}

#[test]
fn a_crash_at_any_call_loses_nothing_acknowledged() {
    let calls = calls_of_a_run(50);
    assert!(calls > 200, "only {calls} calls");
    for call in 1..=calls {
        let storage = SimStorage::new(call);
        storage.fault_at(call, Fault::Crash);
        let acknowledged = work(&storage, 50);
        for loss in LOSSES {
            check(
                &storage.crash(loss),
                acknowledged,
                &format!("crash at call {call}, {loss:?}"),
            );
        }
        check(
            &storage.restart(),
            acknowledged,
            &format!("process death at call {call}"),
        );
    }
}

#[test]
fn a_crash_during_recovery_loses_nothing_acknowledged() {
    let calls = calls_of_a_run(25);
    for call in (1..=calls).step_by(7) {
        let storage = SimStorage::new(call);
        storage.fault_at(call, Fault::Crash);
        let acknowledged = work(&storage, 25);
        for loss in LOSSES {
            for again in 1..=12 {
                let second = storage.crash(loss);
                second.fault_at(again, Fault::Crash);
                let more = work(&second, 25).max(acknowledged);
                let what = format!("crash at call {call}, {loss:?}, again at {again}");
                check(&second.crash(CrashLoss::Torn(again)), more, &what);
            }
        }
    }
}

/// A call fails, the process ends, starts again on the same machine and works on, then the power goes. Data that the
/// first life left in the cache, marked clean, must not be relied on.
#[test]
fn a_failure_at_any_call_then_a_restart_then_a_power_loss_loses_nothing_acknowledged() {
    let calls = calls_of_a_run(30);
    for call in 1..=calls {
        for seed in 0..4 {
            let storage = SimStorage::new(seed * 1_000 + call);
            storage.fault_at(call, Fault::Error);
            let acknowledged = work(&storage, 30);
            let second = storage.restart();
            let opened = open_or_create(&second).unwrap_or_else(|e| panic!("call {call}: {e}"));
            let found = Journal::of(&opened).0.len() as u64;
            assert!(
                found >= acknowledged,
                "call {call}: {acknowledged} acknowledged, {found} found"
            );
            let mut wal = opened.into_wal();
            fill(&mut wal, found + 1);
            for loss in LOSSES {
                check(
                    &second.crash(loss),
                    found + 1,
                    &format!("failure at call {call}, {loss:?}"),
                );
            }
        }
    }
}

/// Recovery itself must not write a mark before the frame it vouches for is on the disk.
#[test]
fn a_failed_sync_then_a_crash_during_recovery_is_no_damage() {
    for seed in 0..50 {
        let storage = SimStorage::new(seed);
        let mut wal = create(&storage);
        fill(&mut wal, 5);
        storage.fault_at(storage.calls() + 2, Fault::Error);
        wal.commit(&payload(6)).unwrap_err();
        for call in 1..=8 {
            let second = storage.restart();
            second.fault_at(call, Fault::Crash);
            drop(open(&second));
            for loss in LOSSES {
                let what = format!("seed {seed}, crash at call {call} of recovery, {loss:?}");
                check(&second.crash(loss), 5, &what);
            }
        }
    }
}

/// The control arm: a storage with a sync that does nothing must lose something acknowledged, or these tests could
/// not fail.
#[test]
fn a_sync_that_does_nothing_loses_acknowledged_frames() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    storage.set_lying(true);
    fill(&mut wal, 3);
    let opened = open(&storage.crash(CrashLoss::DropAll)).unwrap();
    assert_eq!(
        Journal::of(&opened),
        Journal::upto(0),
        "nothing was synced, so nothing can be there"
    );
}

/// A copy that was reported done is durable; one that was not is refused or whole.
#[test]
fn a_crash_at_any_call_of_a_restore_leaves_a_whole_directory_or_none() {
    let source = SimStorage::new(1);
    let mut wal = create(&source);
    fill(&mut wal, 14);
    wal.compactor()
        .compact(&mut Journal::default())
        .unwrap()
        .unwrap();
    fill(&mut wal, 30);
    let restore =
        |target: &SimStorage| palisade_wal::restore_on(&source, target, Id::from_bytes([0x44; 16]));
    let target = SimStorage::new(2);
    restore(&target).unwrap();
    let calls = target.calls();
    check(&target.crash(CrashLoss::DropAll), 30, "a finished restore");
    for call in 1..=calls {
        for loss in LOSSES {
            let target = SimStorage::new(call);
            target.fault_at(call, Fault::Crash);
            restore(&target).unwrap_err();
            let left = target.crash(loss);
            if let Ok(opened) = open(&left) {
                assert_eq!(
                    Journal::of(&opened),
                    Journal::upto(30),
                    "crash at call {call}, {loss:?}"
                );
            }
        }
    }
}

/// The new segment does not say yet which opening was the last; the one before it does, and the snapshot covers that.
#[test]
fn a_crash_at_any_call_of_a_rotation_right_after_a_snapshot_leaves_a_log_that_opens() {
    let rotate = |fault: Option<u64>| {
        let storage = SimStorage::new(1);
        drop(create(&storage));
        let mut wal = open(&storage).unwrap().into_wal();
        fill(&mut wal, 5);
        let mut journal = Journal::upto(5);
        wal.snapshot(|out| palisade_wal::Fold::save(&mut journal, out))
            .unwrap();
        let before = storage.calls();
        if let Some(call) = fault {
            storage.fault_at(before + call, Fault::Crash);
        }
        let committed = wal.commit(&[1; 3_800]).is_ok();
        (storage.calls() - before, storage, committed)
    };
    let (calls, ..) = rotate(None);
    for call in 1..=calls {
        for loss in LOSSES {
            let (_, storage, committed) = rotate(Some(call));
            assert!(!committed);
            let opened = open(&storage.crash(loss));
            let opened = opened.unwrap_or_else(|e| panic!("crash at call {call}, {loss:?}: {e}"));
            assert!((5..=6).contains(&opened.report().last.map_or(0, Seq::get)));
        }
    }
}

/// Nothing was acknowledged behind it yet, so a torn frame of an opening proves nothing.
#[test]
fn an_opening_that_is_torn_at_any_byte_is_done_again() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 3);
    drop(wal);
    let name = crate::common::segments(&storage).pop().unwrap();
    let before = storage.read(&name).unwrap();
    let whole = storage.restart();
    drop(open(&whole).unwrap());
    let mut torn = 0;
    for call in 1..=whole.calls() {
        let crashed = storage.restart();
        crashed.fault_at(call, Fault::Crash);
        drop(open(&crashed));
        let left = crashed.crash(CrashLoss::KeepAll);
        let bytes = left.read(&name).unwrap();
        let names = palisade_wal::Storage::list(&left).unwrap();
        if names
            .iter()
            .filter(|name| name.starts_with("opening-"))
            .count()
            < 2
        {
            // The file of the opening before goes when this one is in the log for good.
            continue;
        }
        let Some(last) = (0..bytes.len()).rfind(|at| bytes[*at] != before[*at]) else {
            continue;
        };
        for end in last.saturating_sub(55)..=last {
            let copy = left.restart();
            let mut bytes = bytes.clone();
            bytes[end..=last].fill(0);
            copy.put(&name, &bytes);
            let opened = open(&copy).unwrap_or_else(|e| panic!("call {call}, byte {end}: {e}"));
            assert_eq!(Journal::of(&opened), Journal::upto(3));
            torn += usize::from(opened.report().torn.is_some());
        }
    }
    assert!(torn > 30, "{torn}");
}

#[test]
fn after_a_failed_write_or_sync_nothing_is_acknowledged() {
    for offset in 1..=2 {
        let storage = SimStorage::new(9);
        let mut wal = create(&storage);
        fill(&mut wal, 5);
        storage.fault_at(storage.calls() + offset, Fault::Error);
        let first = wal.commit(b"lost?").unwrap_err();
        assert!(matches!(first, CommitError::Io { .. }), "{first}");
        let calls = storage.calls();
        for _ in 0..3 {
            let later = wal.commit(b"never").unwrap_err();
            assert!(
                matches!(&later, CommitError::Poisoned { cause } if cause.contains("log-") && cause.contains("simulated"))
            );
        }
        assert!(matches!(wal.seal_mark(), Err(CommitError::Poisoned { .. })));
        assert!(wal.poisoned().is_some());
        assert_eq!(storage.calls(), calls, "a poisoned log touches nothing");
    }
}

#[test]
fn a_failed_directory_sync_ends_snapshots_and_not_the_log() {
    let storage = SimStorage::new(2);
    let mut wal = create(&storage);
    fill(&mut wal, 30);
    let compactor = wal.compactor();
    let before = storage.calls();
    // The calls of a small compaction: create, header, chunk, trailer, sync, rename, directory sync.
    storage.fault_at(before + 7, Fault::Error);
    let failed = compactor.compact(&mut Journal::default()).unwrap_err();
    assert!(failed.to_string().contains("directory"), "{failed}");
    let poisoned = compactor.compact(&mut Journal::default()).unwrap_err();
    assert!(
        poisoned.to_string().contains("no more snapshots"),
        "{poisoned}"
    );
    fill(&mut wal, 60);
    check(
        &storage.crash(CrashLoss::DropAll),
        60,
        "after a failed directory sync",
    );
}
