//! A full disk is discovered early, reported and survived; large payloads; random histories.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{
    Hooked, Journal, create, create_options, fill, ignore, open, open_or_create, options, payload,
    segments,
};
use palisade_wal::testing::{CrashLoss, SimStorage};
use palisade_wal::{CommitError, MAX_PAYLOAD, OpenError, Options, Preparation, Seq, Wal};
use proptest::prelude::*;

/// Commits, reserving first, until the disk is full. Returns the last frame.
fn fill_up(wal: &mut Wal) -> u64 {
    loop {
        let next = wal.last_seq().map_or(1, |seq| seq.get() + 1);
        if wal.reserve(payload(next).len()).is_err() {
            return next - 1;
        }
        wal.commit(&payload(next)).unwrap();
    }
}

#[test]
fn a_full_disk_does_not_poison_the_log_and_new_room_is_used() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    storage.set_capacity(Some(20_000));
    let last = fill_up(&mut wal);
    assert!(segments(&storage).len() >= 4);
    let full = wal.reserve(3_900).unwrap_err();
    assert!(full.cause.contains("full"), "{full}");
    assert!(!wal.has_room(3_900));
    assert!(matches!(wal.commit(&[7; 3_900]), Err(CommitError::Full(_))));
    assert_eq!((wal.poisoned(), wal.last_seq()), (None, Seq::new(last)));
    // A payload that fits is still committed.
    assert!(wal.has_room(0));
    wal.seal_mark().unwrap();
    storage.set_capacity(None);
    wal.reserve(3_900).unwrap();
    assert!(wal.has_room(3_900));
    fill(&mut wal, last + 20);
    assert_eq!(
        Journal::of(&open(&storage.crash(CrashLoss::DropAll)).unwrap()),
        Journal::upto(last + 20)
    );
}

#[test]
fn the_background_finds_new_room_by_itself() {
    let storage = SimStorage::new(1);
    let background = Options {
        preparation: Preparation::Background,
        prepare_retry: Duration::from_micros(100),
        ..options()
    };
    let opened = Wal::create_on(Arc::new(storage.clone()), &create_options(), &background).unwrap();
    let mut wal = opened.into_wal();
    storage.set_capacity(Some(20_000));
    let last = fill_up(&mut wal);
    storage.set_capacity(None);
    while !wal.has_room(payload(last + 1).len()) {
        std::thread::yield_now();
    }
    fill(&mut wal, last + 20);
    wal.close().unwrap();
    assert_eq!(
        Journal::of(&open(&storage).unwrap()),
        Journal::upto(last + 20)
    );
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "real time: the pause between two looks is a part of the subject"
)]
fn the_background_prepares_a_wanted_segment_at_once_and_otherwise_looks_twice_a_second() {
    let (looks, prepared) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let counted = (looks.clone(), prepared.clone());
    let disk = SimStorage::new(1);
    let storage = Hooked {
        storage: disk.clone(),
        before: move |call: &str, file: &str| {
            match (call, file) {
                ("is_in_place", _) => counted.0.fetch_add(1, Ordering::Relaxed),
                ("open", "next.seg") => counted.1.fetch_add(1, Ordering::Relaxed),
                _ => 0,
            };
            Ok(())
        },
    };
    let background = Options {
        preparation: Preparation::Background,
        ..options()
    };
    let begun = Instant::now();
    let opened = Wal::create_on(Arc::new(storage), &create_options(), &background).unwrap();
    let mut wal = opened.into_wal();
    // The first one comes with the segment.
    while looks.load(Ordering::Relaxed) < 3 {
        std::thread::yield_now();
    }
    let two_pauses = begun.elapsed();
    assert!(two_pauses >= Duration::from_millis(900));
    assert!(wal.has_room(3_880));
    // The first segment of the log, and the one that is ready.
    assert_eq!(prepared.load(Ordering::Relaxed), 2);

    // With a pause before each segment it would take twice as long.
    let begun = Instant::now();
    fill(&mut wal, 400);
    let pauses = u32::try_from(segments(&disk).len()).unwrap();
    assert!(pauses > 40);
    assert!(begun.elapsed() < two_pauses / 2 * pauses / 2);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "real time: the pause between two attempts is the subject"
)]
fn the_background_pauses_after_a_preparation_that_failed() {
    const PAUSE: Duration = Duration::from_millis(20);
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = attempts.clone();
    let storage = SimStorage::new(1);
    drop(create(&storage));
    let full = Hooked {
        storage,
        before: move |call: &str, file: &str| match (call, file) {
            ("open", "next.seg") => {
                counted.fetch_add(1, Ordering::Relaxed);
                Err(ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        },
    };
    let background = Options {
        preparation: Preparation::Background,
        prepare_retry: PAUSE,
        ..options()
    };
    let begun = Instant::now();
    let opened = Wal::open_on(Arc::new(full), &background).unwrap();
    while attempts.load(Ordering::Relaxed) < 5 {
        std::thread::yield_now();
    }
    assert!(begun.elapsed() >= PAUSE * 4);
    drop(opened);
}

#[test]
fn a_payload_over_a_segment_gets_a_longer_one_and_over_the_limit_is_refused() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    let large = vec![3; 100_000];
    for _ in 0..2 {
        wal.reserve(large.len()).unwrap();
        wal.commit(&large).unwrap();
        wal.commit(b"small").unwrap();
    }
    assert!(matches!(
        wal.commit(&vec![0; MAX_PAYLOAD + 1]),
        Err(CommitError::TooLarge { .. })
    ));
    assert!(!wal.has_room(MAX_PAYLOAD + 1));
    wal.commit(&vec![9; MAX_PAYLOAD]).unwrap();
    drop(wal);
    let mut lens = Vec::new();
    let collect = |_, payload: &[u8]| {
        lens.push(payload.len());
        Ok::<(), std::convert::Infallible>(())
    };
    open(&storage.crash(CrashLoss::DropAll))
        .unwrap()
        .replay(collect)
        .unwrap();
    assert_eq!(lens, [100_000, 5, 100_000, 5, MAX_PAYLOAD]);
}

/// A segment of 4 KiB has room for 3,880 bytes behind its header and the opening, when a mark and a seal follow.
#[test]
fn a_mark_and_a_seal_fit_behind_a_payload_of_any_length() {
    for len in (3_800..3_960).chain(4_000..4_200) {
        let storage = SimStorage::new(1);
        let mut wal = create(&storage);
        assert_eq!(wal.has_room(len), len <= 3_880, "{len}");
        for len in [len, 1, len] {
            wal.reserve(len).unwrap();
            assert!(wal.has_room(len), "{len}");
            wal.commit(&vec![1; len]).unwrap();
            wal.seal_mark().unwrap();
        }
        drop(wal);
        let mut lens = Vec::new();
        let opened = open(&storage.crash(CrashLoss::DropAll)).unwrap();
        let collect = |_, payload: &[u8]| {
            lens.push(payload.len());
            Ok::<(), std::convert::Infallible>(())
        };
        opened.replay(collect).unwrap();
        assert_eq!(lens, [len, 1, len]);
        for name in segments(&storage) {
            let bytes = storage.read(&name).unwrap().len();
            assert_eq!(bytes, if len <= 3_880 { 4_096 } else { 8_192 }, "{name}");
        }
    }
}

#[test]
fn settings_out_of_range_are_refused_with_the_range() {
    let create_with = |segment_bytes, first_segment_bytes| {
        let settings = Options {
            segment_bytes,
            first_segment_bytes,
            ..options()
        };
        let storage = Arc::new(SimStorage::new(1));
        let created = Wal::create_on(storage, &create_options(), &settings);
        created.map(drop).map_err(|error| error.to_string())
    };
    for (segment, first, why) in [
        (
            4095,
            4095,
            "segment_bytes is 4095, it must be from 4096 to 1073741824",
        ),
        ((1 << 30) + 1, 4096, "segment_bytes is 1073741825"),
        (
            8192,
            4095,
            "first_segment_bytes is 4095, it must be from 4096 to 8192",
        ),
        (8192, 8193, "first_segment_bytes is 8193"),
    ] {
        let refused = create_with(segment, first).unwrap_err();
        assert!(refused.starts_with(why), "{refused}");
    }
    for (segment, first) in [(4096, 4096), (1 << 30, 4096), (8192, 8192)] {
        assert_eq!(create_with(segment, first), Ok(()));
    }
}

#[test]
fn an_empty_log_has_nothing_to_snapshot_mark_or_replay() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    let calls = storage.calls();
    wal.seal_mark().unwrap();
    assert_eq!(
        wal.snapshot(|_| Ok::<(), std::io::Error>(())).unwrap(),
        None
    );
    assert_eq!(
        wal.compactor().compact(&mut Journal::default()).unwrap(),
        None
    );
    assert_eq!(
        (wal.compactor().sealed_bytes(), storage.calls()),
        (0, calls)
    );
    drop(wal);
    let opened = open(&storage).unwrap();
    opened.replay(ignore).unwrap();
    assert_eq!((opened.report().last, opened.report().frames), (None, 0));
}

#[test]
fn the_writer_and_the_compactor_may_move_to_other_threads() {
    fn is_send<T: Send>() {}
    is_send::<Wal>();
    is_send::<palisade_wal::Opened>();
    is_send::<palisade_wal::Compactor>();
}

#[derive(Clone, Debug)]
enum Step {
    Commit(u8),
    Mark,
    Compact,
    Snapshot,
    Full(bool),
    Close,
    Kill,
    PowerLoss(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1u8..20).prop_map(Step::Commit),
        2 => Just(Step::Mark),
        2 => Just(Step::Compact),
        1 => Just(Step::Snapshot),
        1 => any::<bool>().prop_map(Step::Full),
        1 => Just(Step::Close),
        1 => Just(Step::Kill),
        2 => any::<u64>().prop_map(Step::PowerLoss),
    ]
}

/// Takes a step; every storage between crashes is a new one.
fn take(step: &Step, storage: &mut SimStorage, wal: &mut Wal, last: &mut u64) {
    match step {
        Step::Commit(count) => {
            for _ in 0..*count {
                let next = payload(*last + 1);
                if wal.reserve(next.len()).is_ok() {
                    *last = wal.commit(&next).expect("reserved").get();
                }
            }
        }
        Step::Mark => wal.seal_mark().unwrap(),
        // A full disk may stop a snapshot, never the log.
        Step::Compact => drop(wal.compactor().compact(&mut Journal::default())),
        Step::Snapshot => {
            let mut journal = Journal::upto(*last);
            drop(wal.snapshot(|out| palisade_wal::Fold::save(&mut journal, out)));
        }
        Step::Full(full) => storage.set_capacity(full.then(|| storage.used() + 5_000)),
        Step::Close => {
            wal.seal_mark().unwrap();
            *storage = storage.restart();
        }
        Step::Kill => *storage = storage.restart(),
        Step::PowerLoss(seed) => *storage = storage.crash(CrashLoss::Torn(*seed)),
    }
    if matches!(step, Step::Close | Step::Kill | Step::PowerLoss(_)) {
        let opened = match open_or_create(storage) {
            // A start needs room for two small files.
            Err(OpenError::Io { source, .. }) if source.kind() == ErrorKind::StorageFull => {
                storage.set_capacity(None);
                *storage = storage.restart();
                open_or_create(storage).unwrap()
            }
            opened => opened.unwrap(),
        };
        assert_eq!(Journal::of(&opened), Journal::upto(*last));
        assert_eq!(
            opened.report().torn,
            None,
            "every commit was acknowledged, so nothing is torn"
        );
        *wal = opened.into_wal();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_is_recovered(steps in prop::collection::vec(step(), 1..60)) {
        let mut storage = SimStorage::new(7);
        let mut wal = create(&storage);
        let mut last = 0;
        for step in steps.iter().chain([&Step::PowerLoss(1)]) {
            take(step, &mut storage, &mut wal, &mut last);
        }
    }
}
