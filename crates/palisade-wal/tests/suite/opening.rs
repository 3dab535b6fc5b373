//! Older copies put back in place, touched files, and directories that vanish (rule A5).

use std::io;
use std::sync::Arc;

use crate::common::{
    Hooked, Journal, create, create_options, fill, open, open_or_create, options, payload, segments,
};
use palisade_wal::testing::{CrashLoss, Fault, PutBack, SimStorage};
use palisade_wal::{
    CommitError, Fold, InPlace, OpenError, Options, Preparation, Wal, backup_on, restore_on,
};

const LOSSES: [CrashLoss; 5] = [
    CrashLoss::DropAll,
    CrashLoss::KeepAll,
    CrashLoss::Torn(1),
    CrashLoss::Torn(2),
    CrashLoss::Torn(3),
];

fn refusal(storage: &SimStorage) -> String {
    match open(storage) {
        Err(error @ OpenError::Copied { .. }) => error.to_string(),
        Err(other) => panic!("refused, but not as a copy: {other}"),
        Ok(_) => panic!("opened"),
    }
}

/// As `palisade restore --in-place`: keeps all frames and adds one for the leap.
fn restore_in_place(storage: &SimStorage) -> Result<u64, OpenError> {
    let in_place = InPlace::begin_on(Arc::new(storage.clone()))?;
    let mut journal = Journal::default();
    if let Some(mut snapshot) = in_place.snapshot().unwrap() {
        journal.load(&mut snapshot).unwrap();
    }
    in_place
        .replay(|seq, payload| journal.apply(seq, payload))
        .unwrap();
    let last = journal.0.len() as u64 + 1;
    journal.0.push(payload(last));
    in_place.finish(&options(), |out| journal.save(out))?;
    Ok(last)
}

/// A directory that was copied after `copied` frames and went on to 40, in the same run of its process or in the
/// next one, and that process ended by a kill. Also compacted on the way, or not.
fn original_and_copy(
    copied: u64,
    same_run: bool,
    closed: bool,
    compacted: bool,
) -> (SimStorage, SimStorage) {
    let mut storage = SimStorage::new(copied);
    let mut wal = create(&storage);
    fill(&mut wal, copied);
    if closed {
        wal.seal_mark().unwrap();
    }
    let older = storage.restart();
    if !same_run {
        drop(wal);
        storage = storage.restart();
        wal = open(&storage).unwrap().into_wal();
    }
    fill(&mut wal, 40);
    if compacted {
        wal.compactor()
            .compact(&mut Journal::default())
            .unwrap()
            .unwrap();
    }
    (storage.restart(), older)
}

#[test]
fn an_older_copy_put_back_in_any_way_is_refused_and_restored_in_place() {
    for copied in [0, 1, 5, 14, 30, 37, 38, 39] {
        for (same_run, closed, compacted, way) in combinations() {
            let (storage, older) = original_and_copy(copied, same_run, closed, compacted);
            let put_back = storage.put_back(&older, way);
            let what = format!(
                "copied after {copied}, same run {same_run}, closed {closed}, compacted {compacted}, {way:?}"
            );
            let error = match open(&put_back) {
                Ok(opened) => {
                    // Where newer files stayed, or rsync found none to copy, nothing may be missing.
                    assert_eq!(Journal::of(&opened), Journal::upto(40), "{what}");
                    assert_ne!(way, PutBack::Anew, "{what}");
                    continue;
                }
                Err(error) => error.to_string(),
            };
            assert!(
                error.contains("palisade restore"),
                "{what}: {error} names the way out"
            );
            if matches!(way, PutBack::Anew | PutBack::SyncInPlace) {
                assert!(
                    error.contains("--in-place sim") && error.contains("chown"),
                    "{error}"
                );
                let last = restore_in_place(&put_back).unwrap();
                assert_eq!(last, copied + 1, "{what}");
                let opened = open(&put_back).unwrap();
                assert_eq!(Journal::of(&opened), Journal::upto(last), "{what}");
                let mut wal = opened.into_wal();
                fill(&mut wal, last + 20);
                drop(wal);
                let again = open(&put_back.crash(CrashLoss::DropAll)).unwrap();
                assert_eq!(Journal::of(&again), Journal::upto(last + 20), "{what}");
            }
        }
    }
}

fn combinations() -> impl Iterator<Item = (bool, bool, bool, PutBack)> {
    let flags = (0..8).map(|bits| (bits & 1 == 0, bits & 2 == 0, bits & 4 == 0));
    flags.flat_map(|(a, b, c)| PutBack::ALL.map(|way| (a, b, c, way)))
}

/// Each half alone: the identity of an earlier opening, and the log of one.
#[test]
fn an_identity_and_a_log_of_two_openings_contradict_each_other() {
    let (storage, older) = original_and_copy(5, false, true, false);
    let mixed = storage.restart();
    for name in older_files(&older) {
        mixed.put(&name, &older.read(&name).unwrap());
    }
    let log = segments(&older).pop().unwrap();
    for name in segments(&storage) {
        if name != log {
            mixed.take_away(&name);
        }
    }
    let text = refusal(&mixed);
    assert!(
        text.contains("opening 2") && text.contains("opening 3"),
        "{text}"
    );

    let mixed = storage.restart();
    mixed.put("identity", &older.read("identity").unwrap());
    let text = refusal(&mixed);
    assert!(text.contains("opening-"), "{text}");

    // The first segment as it was before the first opening: going on there would forget every frame.
    let mixed = storage.restart();
    let mut blank = older.read(&log).unwrap();
    blank[64..].fill(0);
    segments(&storage)
        .iter()
        .for_each(|name| mixed.take_away(name));
    mixed.put(&log, &blank);
    let text = refusal(&mixed);
    assert!(text.contains("log of opening none"), "{text}");
}

fn older_files(older: &SimStorage) -> Vec<String> {
    let mut names = palisade_wal::Storage::list(older).unwrap();
    names.retain(|name| name.starts_with("log-") || name.starts_with("snap-"));
    names
}

#[test]
fn touched_files_are_refused_and_a_file_system_without_such_times_is_not() {
    let (storage, _) = original_and_copy(5, false, true, true);
    let touched = storage.restart();
    touched.touch();
    let text = refusal(&touched);
    assert!(text.contains("chown") && text.contains("inode"), "{text}");
    assert!(text.contains("change time 0.0000000"), "{text}");
    assert_eq!(restore_in_place(&touched).unwrap(), 41);
    assert_eq!(Journal::of(&open(&touched).unwrap()), Journal::upto(41));

    storage.set_times_apart(true);
    assert_eq!(Journal::of(&open(&storage).unwrap()), Journal::upto(40));
}

/// Before the step that counts the directory is the old one, after it the new one.
#[test]
fn a_crash_at_any_call_of_a_restore_in_place_leaves_the_old_life_or_the_new_one() {
    let (storage, older) = original_and_copy(14, false, true, true);
    let put_back = storage.put_back(&older, PutBack::Anew);
    let whole = put_back.restart();
    restore_in_place(&whole).unwrap();
    let calls = whole.calls();
    assert!(calls > 10, "{calls}");
    for call in 1..=calls {
        for loss in LOSSES {
            let crashed = put_back.restart();
            crashed.fault_at(call, Fault::Crash);
            restore_in_place(&crashed).unwrap_err();
            let left = crashed.crash(loss);
            let what = format!("crash at call {call}, {loss:?}");
            let last = match open(&left.restart()) {
                // It may be done again.
                Err(OpenError::Copied { .. }) => restore_in_place(&left).unwrap(),
                Err(error) => panic!("{what}: {error}"),
                Ok(_) => 15,
            };
            assert_eq!(last, 15, "{what}");
            let opened = open(&left).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(Journal::of(&opened), Journal::upto(15), "{what}");
        }
    }
}

/// The directory needed no restore: the remains of an interrupted attempt do not prevent a start.
#[test]
fn an_interrupted_restore_in_place_of_a_good_directory_is_cleared_at_the_next_start() {
    let (storage, _) = original_and_copy(5, false, false, true);
    let whole = storage.restart();
    restore_in_place(&whole).unwrap();
    for call in 1..whole.calls() {
        for loss in LOSSES {
            let crashed = storage.restart();
            crashed.fault_at(call, Fault::Crash);
            restore_in_place(&crashed).unwrap_err();
            let opened = open(&crashed.crash(loss))
                .unwrap_or_else(|e| panic!("crash at call {call}, {loss:?}: {e}"));
            let found = Journal::of(&opened);
            assert!(found == Journal::upto(40) || found == Journal::upto(41));
        }
    }
}

#[test]
fn a_backup_is_no_directory_to_restore_in_place() {
    let (storage, _) = original_and_copy(5, false, false, false);
    let (saved, restored) = (SimStorage::new(1), SimStorage::new(2));
    backup_on(&storage, &saved).unwrap();
    assert!(matches!(
        restore_in_place(&saved),
        Err(OpenError::Backup { .. })
    ));
    restore_on(&saved, &restored, palisade_wal::Id::from_bytes([3; 16])).unwrap();
    assert_eq!(restore_in_place(&restored).unwrap(), 41);
}

#[test]
fn a_backup_holds_every_acknowledged_frame_of_a_live_log_and_of_a_killed_one() {
    for last in 0..40 {
        let storage = SimStorage::new(1);
        let mut wal = create(&storage);
        fill(&mut wal, last);
        for source in [
            storage.clone(),
            storage.restart(),
            storage.crash(CrashLoss::DropAll),
        ] {
            let (saved, restored) = (SimStorage::new(1), SimStorage::new(2));
            let report = backup_on(&source, &saved).unwrap();
            assert_eq!(report.last.map_or(0, palisade_wal::Seq::get), last);
            restore_on(&saved, &restored, palisade_wal::Id::from_bytes([3; 16])).unwrap();
            assert_eq!(Journal::of(&open(&restored).unwrap()), Journal::upto(last));
        }
    }
}

type Change = fn(&SimStorage);

/// Ways to remove or replace the directory or its identity file, and the reason that is reported.
const WAYS_TO_VANISH: [(Change, &str); 3] = [
    (
        |storage| storage.set_moved(true),
        "was removed, renamed or replaced",
    ),
    (|storage| storage.take_away("identity"), "identity file"),
    (
        |storage| {
            let bytes = storage.read("identity").unwrap();
            storage.take_away("identity");
            storage.put("identity", &bytes);
        },
        "identity file",
    ),
];

#[test]
fn a_directory_that_vanishes_poisons_its_log() {
    for (vanish, why) in WAYS_TO_VANISH {
        let storage = SimStorage::new(1);
        let mut wal = create(&storage);
        fill(&mut wal, 30);
        wal.check_directory().unwrap();
        vanish(&storage);
        let noticed = wal.check_directory().unwrap_err().to_string();
        assert!(noticed.contains(why), "{noticed}");
        assert!(matches!(
            wal.commit(b"no"),
            Err(CommitError::Poisoned { .. })
        ));
        assert!(wal.compactor().compact(&mut Journal::default()).is_err());
        storage.set_moved(false);
        wal.check_directory().unwrap_err();
    }
}

#[test]
fn the_background_notices_that_the_directory_vanished() {
    let storage = SimStorage::new(1);
    let background = Options {
        preparation: Preparation::Background,
        ..options()
    };
    let opened = Wal::create_on(Arc::new(storage.clone()), &create_options(), &background);
    let mut wal = opened.unwrap().into_wal();
    fill(&mut wal, 3);
    storage.set_moved(true);
    while wal.poisoned().is_none() {
        std::thread::yield_now();
    }
    assert!(matches!(
        wal.commit(b"no"),
        Err(CommitError::Poisoned { .. })
    ));
}

#[test]
fn a_preparation_that_fails_says_why_until_it_succeeds() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    let mut watch = wal.compactor().watch_preparation();
    assert_eq!(watch.change(), None);
    storage.fault_at(storage.calls() + 1, Fault::Error);
    let full = wal.reserve(3_990).unwrap_err().to_string();
    assert!(
        full.contains("simulated") && full.contains("check its disk"),
        "{full}"
    );
    let reported = watch.change().unwrap().unwrap_err();
    assert!(reported.contains("simulated"), "{reported}");
    assert_eq!(watch.change(), None, "it is reported once");
    wal.reserve(3_990).unwrap();
    assert_eq!(watch.change(), Some(Ok(())));
    fill(&mut wal, 20);
}

/// A file that cannot be looked at is neither a missing one nor a copied one.
#[test]
fn a_directory_that_cannot_be_read_is_not_created_anew_and_not_called_a_copy() {
    for failing in [("open", "identity"), ("id_of", "opening-")] {
        let (storage, _) = original_and_copy(5, false, true, false);
        let unreadable = Arc::new(Hooked {
            storage: storage.clone(),
            before: move |call: &str, file: &str| {
                if call == failing.0 && file.starts_with(failing.1) {
                    Err(io::Error::other("simulated"))
                } else {
                    Ok(())
                }
            },
        });
        let refused = Wal::open_or_create_on(unreadable, &create_options(), &options());
        let refused = refused.err().unwrap();
        assert!(matches!(refused, OpenError::Io { .. }), "{refused}");
        assert!(refused.to_string().contains("simulated"), "{refused}");
        assert_eq!(Journal::of(&open(&storage).unwrap()), Journal::upto(40));
    }
}

#[test]
fn openings_are_counted_on_by_a_restore_in_place() {
    let opening = |storage: &SimStorage| {
        let identity = String::from_utf8(storage.read("identity").unwrap()).unwrap();
        let line = identity
            .lines()
            .find_map(|line| line.strip_prefix("opening "));
        line.unwrap().split(' ').next().unwrap().to_owned()
    };
    let (storage, _) = original_and_copy(5, false, true, false);
    assert_eq!(opening(&storage), "3");
    restore_in_place(&storage).unwrap();
    assert_eq!(opening(&storage), "4");
    drop(open_or_create(&storage).unwrap());
    assert_eq!(opening(&storage), "5");
}

#[test]
fn an_id_is_32_hexadecimal_digits() {
    let id = palisade_wal::Id::from_bytes([0xa7; 16]);
    assert_eq!(id.to_string(), "a7".repeat(16));
    assert_eq!(id.to_string().parse(), Ok(id));
    for wrong in [
        "a7",
        &"a7".repeat(17),
        &format!("+{}", "a".repeat(31)),
        &"g".repeat(32),
    ] {
        wrong.parse::<palisade_wal::Id>().unwrap_err();
    }
}

#[test]
fn a_report_counts_the_frames_behind_the_snapshot() {
    let storage = SimStorage::new(1);
    let mut wal = create(&storage);
    fill(&mut wal, 30);
    let made = wal.compactor().compact(&mut Journal::default()).unwrap();
    let covered = made.unwrap().seq.get();
    drop(wal);
    let opened = open(&storage).unwrap();
    let report = opened.report();
    assert_eq!(
        (report.frames, report.last.unwrap().get()),
        (30 - covered, 30)
    );
}

#[test]
fn a_frame_that_cannot_be_applied_is_named() {
    let storage = SimStorage::new(1);
    fill(&mut create(&storage), 3);
    let opened = open(&storage).unwrap();
    let failed = opened.replay(|seq, _| match seq.get() {
        2 => Err("simulated"),
        _ => Ok(()),
    });
    let failed = failed.unwrap_err().to_string();
    assert_eq!(failed, "frame 2 cannot be applied: simulated");
}

#[test]
fn a_full_log_names_the_error_and_how_to_remove_its_cause() {
    for (error, advice) in [
        (
            io::ErrorKind::StorageFull.into(),
            "free some space on its disk",
        ),
        (
            io::ErrorKind::QuotaExceeded.into(),
            "free some space on its disk",
        ),
        (io::ErrorKind::FileTooLarge.into(), "ulimit -f"),
        (io::Error::from_raw_os_error(24), "ulimit -n"),
        (io::Error::from_raw_os_error(23), "ulimit -n"),
        (io::Error::other("simulated"), "check its disk"),
    ] {
        let says = error.to_string();
        let storage = SimStorage::new(1);
        drop(create(&storage));
        let error = std::sync::Mutex::new(Some(error));
        let failing = Hooked {
            storage,
            before: move |call: &str, file: &str| match (call, file) {
                ("open", "next.seg") => error.lock().unwrap().take().map_or(Ok(()), Err),
                _ => Ok(()),
            },
        };
        let opened = Wal::open_on(Arc::new(failing), &options()).unwrap();
        let full = opened.into_wal().reserve(4_000).unwrap_err().to_string();
        assert!(full.contains(&says) && full.contains(advice), "{full}");
    }
}

#[test]
fn an_opening_goes_into_the_last_segment_and_into_a_new_one_when_that_is_full() {
    for (len, segments_after) in [(100, 1), (3_880, 2)] {
        let storage = SimStorage::new(1);
        let mut wal = create(&storage);
        wal.commit(&vec![1; len]).unwrap();
        drop(wal);
        for _ in 0..2 {
            drop(open(&storage).unwrap());
            assert_eq!(segments(&storage).len(), segments_after, "{len}");
        }
    }
}
