//! States of a writer that nothing leads to, each planted by hand. The next write fails at an assertion, and the disk is as it
//! was.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::testing::SimStorage;
use crate::{CreateOptions, Options};

type WriterStep = fn(&mut Wal);

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or_default().to_owned()
}

/// A log with two sealed segments.
fn log(storage: &SimStorage) -> Wal {
    let create = CreateOptions {
        owner: None,
        incarnation: None,
    };
    let opened = Wal::create_on(Arc::new(storage.clone()), &create, &Options::small(4_096));
    let mut wal = opened.unwrap().into_wal();
    let mut rotations = 0;
    while rotations < 2 {
        let first = wal.active.first;
        wal.commit(&[7; 700]).unwrap();
        rotations += usize::from(wal.active.first != first);
    }
    wal.commit(&[7; 100]).unwrap();
    wal
}

#[test]
fn the_next_write_meets_a_corruption_and_writes_nothing() {
    let commits: WriterStep = |wal| drop(wal.commit(&[1; 100]));
    let marks: WriterStep = |wal| drop(wal.seal_mark());
    let corruptions: [(WriterStep, WriterStep, &str); 5] = [
        (
            |wal| wal.next_seq = 0,
            commits,
            "the first frame of a log has the number 1",
        ),
        (
            |wal| wal.active.first = wal.next_seq + 5,
            commits,
            "a segment begins behind its next frame",
        ),
        (
            |wal| wal.active.end += 1,
            commits,
            "a frame begins where none may",
        ),
        (
            |wal| wal.active.end = wal.active.len - frame::ALIGN as u64,
            marks,
            "a frame goes beyond its segment",
        ),
        (
            |wal| wal.poison = Some("a failed sync".into()),
            |wal| drop(wal.append(FrameKind::Data, wal.next_seq, &[1; 100])),
            "a log that failed is written to (A6)",
        ),
    ];
    for (planted, write, fails) in corruptions {
        let storage = SimStorage::new(1);
        let mut wal = log(&storage);
        // The control: without the corruption it writes.
        let before = storage.calls();
        write(&mut wal);
        assert!(storage.calls() > before, "{fails}");
        if wal.active.settled {
            wal.commit(&[7; 8]).unwrap();
        }
        planted(&mut wal);
        let before = storage.calls();
        let wrote = catch_unwind(AssertUnwindSafe(|| write(&mut wal)));
        let why = message_of(&*wrote.expect_err(fails));
        assert!(why.contains(fails), "{why}, not: {fails}");
        assert_eq!(storage.calls(), before, "{fails}: something was written");
    }
}

/// The list of sealed segments has no gap: a compaction would lose what is in it.
#[test]
fn a_segment_that_does_not_follow_is_not_listed() {
    let mut wal = log(&SimStorage::new(1));
    wal.active.first -= 1;
    let wrote = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..20 {
            drop(wal.commit(&[1; 700]));
        }
    }));
    let why = message_of(&*wrote.expect_err("twenty frames fill a segment"));
    assert!(why.contains("does not follow the sealed ones"), "{why}");
}
