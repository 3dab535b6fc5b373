//! Directories of the nodes of a cluster: the id before the log, creation, and conversion of a single server's (R13).

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::common::{Journal, create, create_options, fill, open, open_or_create, options};
use palisade_wal::testing::{CrashLoss, Fault, PutBack, SimStorage};
use palisade_wal::{
    Conversion, DirectoryKind, Fold, Id, Identity, InPlace, OpenError, Opened, Purpose, ReadError,
    Seq, SnapshotWriter, Storage, Wal, backup_on, backup_state_on, node, observe, promise_node,
    purpose, restore_on,
};

const LOSSES: [CrashLoss; 5] = [
    CrashLoss::DropAll,
    CrashLoss::KeepAll,
    CrashLoss::Torn(1),
    CrashLoss::Torn(2),
    CrashLoss::Torn(3),
];

fn cluster() -> (Id, Id) {
    (Id::from_bytes([0xcc; 16]), Id::from_bytes([0x22; 16]))
}

fn open_member(storage: &SimStorage) -> Result<Opened, OpenError> {
    Wal::open_member_on(Arc::new(storage.clone()), &options())
}

/// A member's log that begins with the journal up to `first`, as a snapshot in the place of frame 1.
fn create_member(storage: &SimStorage, first: Option<u64>) -> Result<Opened, OpenError> {
    let save = first.map(|last| move |out: &mut SnapshotWriter| Journal::upto(last).save(out));
    Wal::create_member_on(Arc::new(storage.clone()), cluster(), &options(), save)
}

/// Keeps everything; the form stays the same here.
fn convert(storage: &SimStorage) -> Result<Opened, OpenError> {
    let conversion = Conversion::begin_on(Arc::new(storage.clone()))?;
    let mut journal = Journal::default();
    if let Some(mut snapshot) = conversion.snapshot().unwrap() {
        journal.load(&mut snapshot).unwrap();
    }
    conversion
        .replay(|seq, payload| journal.apply(seq, payload))
        .unwrap();
    conversion.finish(&options(), |out| journal.save(out))
}

/// The way back: a single server's directory, with everything.
fn recover(storage: &SimStorage) -> Result<Identity, OpenError> {
    let begun = InPlace::begin_member_on(Arc::new(storage.clone()))?;
    let mut journal = Journal::default();
    if let Some(mut snapshot) = begun.snapshot().unwrap() {
        journal.load(&mut snapshot).unwrap();
    }
    begun
        .replay(|seq, payload| journal.apply(seq, payload))
        .unwrap();
    begun.finish(&options(), |out| journal.save(out))
}

/// The state that a log ends in, whatever the numbers of its frames.
fn contents(opened: &Opened) -> Journal {
    let mut journal = Journal::default();
    if let Some(mut snapshot) = opened.snapshot().unwrap() {
        journal.load(&mut snapshot).unwrap();
    }
    let push = |_: Seq, payload: &[u8]| {
        journal.0.push(payload.to_vec());
        Ok::<(), std::convert::Infallible>(())
    };
    opened.replay(push).unwrap();
    journal
}

fn is_member(storage: &SimStorage, of: NonZeroU64) -> bool {
    matches!(purpose(storage), Ok(Purpose::Member { node, .. }) if node == of)
}

#[test]
fn a_node_keeps_its_id_from_the_draw_through_creation_to_every_start() {
    let storage = SimStorage::new(1);
    assert_eq!(node(&storage).unwrap(), None);
    let id = promise_node(&storage).unwrap();
    for _ in 0..3 {
        assert_eq!(promise_node(&storage.restart()).unwrap(), id);
    }
    assert_eq!(purpose(&storage).unwrap(), Purpose::Blank);
    drop(create_member(&storage, None).unwrap());
    for starts in 3..5 {
        let opened = open_member(&storage).unwrap();
        let identity = opened.identity();
        assert_eq!((identity.owner, identity.incarnation), cluster());
        assert_eq!(identity.kind, DirectoryKind::Member(id));
        assert_eq!(opened.starts(), starts);
        assert!(storage.read("node").is_none(), "the identity has it now");
    }
    assert_eq!(node(&storage).unwrap(), Some(id));
    assert_ne!(promise_node(&SimStorage::new(2)).unwrap(), id);
}

#[test]
fn a_directory_is_opened_only_as_what_it_is() {
    let single = SimStorage::new(1);
    fill(&mut create(&single), 3);
    let refused = open_member(&single).err().unwrap().to_string();
    assert!(refused.contains("start it with --cluster"), "{refused}");
    let refused = create_member(&single, None).err().unwrap();
    assert!(matches!(refused, OpenError::Exists { .. }), "{refused}");

    let blank = SimStorage::new(2);
    let id = promise_node(&blank).unwrap();
    let refused = open_or_create(&blank).err().unwrap();
    assert!(matches!(refused, OpenError::Promised { node, .. } if node == id));
    assert!(refused.to_string().contains("sim/node"), "{refused}");
    assert!(matches!(
        open_member(&blank),
        Err(OpenError::Missing { .. })
    ));

    drop(create_member(&blank, None).unwrap());
    let sim = || Arc::new(blank.clone());
    for refused in [
        open(&blank).err(),
        open_or_create(&blank).err(),
        InPlace::begin_on(sim()).err(),
        Conversion::begin_on(sim()).err(),
        backup_on(&blank, &SimStorage::new(3)).err(),
        restore_on(&blank, &SimStorage::new(3), Id::from_bytes([3; 16])).err(),
    ] {
        let refused = refused.unwrap();
        assert!(matches!(refused, OpenError::Member { node, .. } if node == id));
        assert!(refused.to_string().contains("--cluster"), "{refused}");
    }
}

#[test]
fn an_older_copy_of_a_member_is_refused_and_never_restored() {
    let storage = SimStorage::new(1);
    let mut wal = create_member(&storage, Some(1)).unwrap().into_wal();
    fill(&mut wal, 5);
    let older = storage.restart();
    fill(&mut wal, 20);
    let put_back = storage.restart().put_back(&older, PutBack::Anew);
    let refused = open_member(&put_back).err().unwrap().to_string();
    assert!(
        refused.contains("palisade cluster replace") && !refused.contains("--in-place"),
        "{refused}"
    );
}

#[test]
fn a_conversion_keeps_everything_and_the_owner_and_begins_a_new_incarnation() {
    for compacted in [false, true] {
        let storage = SimStorage::new(1);
        let mut wal = create(&storage);
        fill(&mut wal, 30);
        if compacted {
            wal.compactor().compact(&mut Journal::default()).unwrap();
        }
        drop(wal);
        let copy = storage.copied();
        let id = promise_node(&storage).unwrap();
        let opened = convert(&storage).unwrap();
        let identity = *opened.identity();
        assert_eq!(identity.kind, DirectoryKind::Member(id));
        assert_eq!(Some(identity.owner), create_options().owner);
        assert_ne!(Some(identity.incarnation), create_options().incarnation);
        assert_eq!(contents(&opened), Journal::upto(30));
        let mut wal = opened.into_wal();
        wal.commit(b"more").unwrap();
        drop(wal);
        let again = open_member(&storage.crash(CrashLoss::DropAll)).unwrap();
        assert_eq!(contents(&again).0.len(), 31);
        assert!(again.starts() > 2, "they are counted on");

        let refused = convert(&copy).err().unwrap();
        assert!(matches!(refused, OpenError::Copied { .. }), "{refused}");
    }
}

/// Each step of a node's directory crashes at every call; the directory that is left goes on with the same id.
#[test]
fn a_crash_at_any_call_leaves_a_directory_that_goes_on() {
    let single = SimStorage::new(1);
    fill(&mut create(&single), 14);
    let blank = SimStorage::new(1);
    let first = |storage: &SimStorage| create_member(storage, Some(1));
    let empty = |storage: &SimStorage| create_member(storage, None);
    let steps: [(&str, &SimStorage, u64, Step); 3] = [
        ("with members", &blank, 1, &first),
        ("empty", &blank, 0, &empty),
        ("conversion", &single, 14, &convert),
    ];
    for (what, before, frames, step) in steps {
        let whole = before.restart();
        promise_node(&whole).unwrap();
        drop(step(&whole).unwrap());
        for call in 1..=whole.calls() {
            for loss in LOSSES {
                let crashed = before.restart();
                crashed.fault_at(call, Fault::Crash);
                let promised = promise_node(&crashed);
                if promised.is_ok() {
                    drop(step(&crashed).err());
                }
                let left = crashed.crash(loss);
                let what = format!("{what}: crash at call {call}, {loss:?}");
                let again = promise_node(&left).unwrap_or_else(|e| panic!("{what}: {e}"));
                if let Ok(promised) = promised {
                    assert_eq!(again, promised, "{what}: the id was told already");
                }
                let opened = match purpose(&left).unwrap() {
                    Purpose::Member { .. } => open_member(&left),
                    Purpose::Blank | Purpose::Single(_) => step(&left),
                };
                let opened = opened.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(contents(&opened), Journal::upto(frames), "{what}");
                drop(opened);
                assert!(is_member(&left, again), "{what}");
                assert!(open_member(&left).is_ok(), "{what}");
            }
        }
    }
}

type Step<'a> = &'a dyn Fn(&SimStorage) -> Result<Opened, OpenError>;

/// Before the step that counts a converted directory is still a single server's, with all of its log.
#[test]
fn an_interrupted_conversion_leaves_a_server_that_starts() {
    let single = SimStorage::new(1);
    fill(&mut create(&single), 14);
    promise_node(&single).unwrap();
    let whole = single.restart();
    drop(convert(&whole).unwrap());
    let mut singles = 0;
    for call in 1..=whole.calls() {
        for loss in LOSSES {
            let crashed = single.restart();
            crashed.fault_at(call, Fault::Crash);
            drop(convert(&crashed).err());
            let left = crashed.crash(loss);
            if let Purpose::Single(_) = purpose(&left).unwrap() {
                singles += 1;
                let opened = open(&left).unwrap_or_else(|e| panic!("call {call}, {loss:?}: {e}"));
                assert_eq!(Journal::of(&opened), Journal::upto(14));
            }
        }
    }
    assert!(singles > 10, "{singles}");
}

/// An attempt for one cluster does not prevent one for another cluster: the other nodes may have drawn new ids.
#[test]
fn a_creation_may_be_done_again_for_another_cluster() {
    let whole = SimStorage::new(1);
    drop(create_member(&whole, Some(1)).unwrap());
    for call in 1..whole.calls() {
        let crashed = SimStorage::new(1);
        crashed.fault_at(call, Fault::Crash);
        drop(create_member(&crashed, Some(1)).err());
        let left = crashed.crash(CrashLoss::KeepAll);
        if purpose(&left).unwrap() != Purpose::Blank {
            continue;
        }
        let other = (Id::from_bytes([0xdd; 16]), Id::from_bytes([0x33; 16]));
        let none = None::<fn(&mut SnapshotWriter) -> std::io::Result<()>>;
        let opened = Wal::create_member_on(Arc::new(left.clone()), other, &options(), none);
        let opened = opened.unwrap_or_else(|e| panic!("crash at call {call}: {e}"));
        assert_eq!(opened.identity().owner, other.0);
        assert_eq!(contents(&opened), Journal::default());
    }
}

#[test]
fn a_damaged_id_is_refused_and_never_drawn_anew() {
    let storage = SimStorage::new(1);
    promise_node(&storage).unwrap();
    let bits = 8 * storage.read("node").unwrap().len();
    for bit in 0..bits {
        let damaged = storage.restart();
        damaged.flip("node", bit);
        let refused = promise_node(&damaged).unwrap_err();
        assert!(matches!(refused, OpenError::Damaged(_)), "{refused}");
        assert!(open_or_create(&damaged).is_err());
    }
    assert_eq!(storage.list().unwrap(), ["node"]);
}

/// A member's directory, as its creation left it before the file of the id was removed.
fn with_the_file_of_the_id() -> SimStorage {
    for call in 1.. {
        let storage = SimStorage::new(1);
        storage.fault_at(call, Fault::Crash);
        drop(create_member(&storage, Some(1)).err());
        let left = storage.crash(CrashLoss::KeepAll);
        if matches!(purpose(&left), Ok(Purpose::Member { .. })) {
            assert!(left.read("node").is_some());
            return left;
        }
    }
    unreachable!("a creation ends")
}

/// Crashed at every call, a recovery leaves a member that starts, or a single server that does. Neither lacks anything.
#[test]
fn an_interrupted_recovery_leaves_a_member_or_a_server_with_everything() {
    let member = SimStorage::new(1);
    fill(&mut create_member(&member, Some(1)).unwrap().into_wal(), 14);
    let (mut members, mut singles) = (0, 0);
    for (before, frames) in [(member, 14), (with_the_file_of_the_id(), 1)] {
        let id = node(&before).unwrap().unwrap();
        let whole = before.restart();
        recover(&whole).unwrap();
        for call in 1..=whole.calls() + 1 {
            for loss in LOSSES {
                let crashed = before.restart();
                crashed.fault_at(call, Fault::Crash);
                drop(recover(&crashed).err());
                let left = crashed.crash(loss);
                let what = format!("crash at call {call}, {loss:?}");
                if is_member(&left, id) {
                    members += 1;
                    let started = open_member(&left.restart());
                    let started = started.unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert_eq!(contents(&started), Journal::upto(frames), "{what}");
                    recover(&left).unwrap_or_else(|e| panic!("{what}: {e}"));
                } else {
                    singles += 1;
                }
                let opened = open(&left).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(contents(&opened), Journal::upto(frames), "{what}");
                let identity = opened.identity();
                assert_eq!(
                    (identity.owner, identity.kind),
                    (cluster().0, DirectoryKind::Live)
                );
                assert_ne!(identity.incarnation, cluster().1, "{what}");
                drop(opened);
                assert!(open(&left).is_ok(), "{what}");
                assert_ne!(
                    promise_node(&left).unwrap(),
                    id,
                    "{what}: an id is used once"
                );
            }
        }
    }
    assert!(
        members > 50 && singles >= LOSSES.len(),
        "{members} {singles}"
    );
}

/// A copy of a member has forgotten entries that it acknowledged and must not vote, but it may be recovered.
#[test]
fn a_copied_member_is_recovered_and_a_single_server_is_not() {
    let storage = SimStorage::new(1);
    fill(&mut create_member(&storage, Some(1)).unwrap().into_wal(), 5);
    let copy = storage.copied();
    assert!(matches!(open_member(&copy), Err(OpenError::Copied { .. })));
    recover(&copy).unwrap();
    assert_eq!(contents(&open(&copy).unwrap()), Journal::upto(5));
    let refused = recover(&copy).err().unwrap();
    assert!(matches!(refused, OpenError::NotMember { .. }), "{refused}");
}

#[test]
fn a_state_that_was_observed_is_backed_up_and_restored() {
    let storage = SimStorage::new(1);
    let mut wal = create_member(&storage, Some(1)).unwrap().into_wal();
    fill(&mut wal, 30);
    let mut journal = Journal::default();
    let read = observe::<_, ReadError>(
        &storage,
        cluster().1,
        |error| Some(error),
        |seen| {
            journal = Journal::default();
            if let Some(mut snapshot) = seen.snapshot()? {
                journal.load(&mut snapshot).unwrap();
            }
            seen.replay(|seq, payload| journal.apply(seq, payload))
                .unwrap();
            Ok(())
        },
    );
    read.unwrap();
    assert_eq!(journal, Journal::upto(30));

    let whole = SimStorage::new(2);
    backup_state_on(&whole, cluster(), |out| journal.save(out)).unwrap();
    for call in 1..=whole.calls() + 1 {
        for loss in LOSSES {
            let crashed = SimStorage::new(2);
            crashed.fault_at(call, Fault::Crash);
            let made = backup_state_on(&crashed, cluster(), |out| journal.save(out));
            let (left, restored) = (crashed.crash(loss), SimStorage::new(3));
            let incarnation = Id::from_bytes([9; 16]);
            match restore_on(&left, &restored, incarnation) {
                Ok(_) => {
                    let opened = open(&restored).unwrap();
                    assert_eq!(contents(&opened), Journal::upto(30), "{call}, {loss:?}");
                    assert_eq!(opened.identity().owner, cluster().0);
                    let mut wal = opened.into_wal();
                    wal.commit(&[7; 5000]).unwrap();
                }
                Err(refused) => {
                    assert!(made.is_err(), "{call}, {loss:?}: {refused}");
                    assert!(matches!(refused, OpenError::Missing { .. }), "{refused}");
                }
            }
        }
    }
}
