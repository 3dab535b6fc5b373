//! Rows that wait in memory.

use std::fs;

use palisade_core::{Change, Ending, LockName, Token};

use super::{BEGINNING, FILE, TestAuthority, owner};
use crate::pending::ENDS;
use crate::{Bounds, GapReason, Ledger, Query};

/// A kill leaves the file as it was after the last durable commit: the copy of an open file is one. The log has the rest, and
/// gives every page that the server would have given. The control is the copy without it.
#[test]
fn what_a_kill_took_from_memory_comes_from_the_log_and_is_the_same() {
    let mut place = TestAuthority::new();
    for lock in ["ends-before", "ends-after", "lasts"] {
        place.acquire(lock, "x");
    }
    place.acquire("ends-before", "x");
    place.ledger.commit(BEGINNING, true).unwrap();
    let durable = place.ledger.last();
    place.ms = 10;
    place.acquire("ends-after", "x");
    place.acquire("shown", "x");
    // A question.
    place.commit();
    place.acquire("shown", "x");
    place.acquire("short", "x");
    place.acquire("short", "x");
    let copy = place.dir.path().join("copy");
    fs::copy(place.dir.path().join(FILE), &copy).unwrap();
    place.commit();
    let mut killed = Ledger::open(&copy, &owner("one", "a"), Bounds::DEFAULT).unwrap();
    assert_eq!((killed.last(), killed.has_doubt()), (durable, false));
    let rows = |ledger: &Ledger| {
        let page = ledger.reader().page(&Query::default(), 1_000).unwrap();
        assert!(page.gaps.is_empty());
        page.rows
    };
    assert_eq!(rows(&killed).len(), 4);
    // A refill tells all that the log has, and so what was taken before, too.
    killed.take(&place.log, GapReason::LogDropped, BEGINNING);
    killed.commit(BEGINNING + place.ms, true).unwrap();
    assert_eq!(rows(&killed), rows(&place.ledger));
    assert_eq!(rows(&killed).len(), 9);
    assert_eq!(killed.bytes(), place.ledger.bytes());
}

/// The locks of a set share a number, and each has a row. It is the same whether a commit comes between two changes of a grant
/// or not. The control is that each change of metadata is in its row.
#[test]
fn a_set_is_told_the_same_with_commits_between_its_changes() {
    let told = |commits: bool| {
        let mut place = TestAuthority::new();
        place.acquire("a", "x");
        let granted = place.log.remove(0);
        place.commit();
        let mut revision = granted.revision;
        let mut change = |lock: &str, change: &Change, metadata: Option<&str>| {
            revision += 1;
            let mut event = granted.clone();
            (event.revision, event.change) = (revision, change.clone());
            event.lock = LockName::new(lock).unwrap();
            event.token = Token::new(7).unwrap();
            event.detail.metadata = metadata.map(Into::into);
            (place.ledger).take(&[event], GapReason::LogDropped, BEGINNING);
            if commits {
                place.commit();
            }
        };
        let ended = Change::Ended {
            how: Ending::Released,
            reason: None,
            delayed: None,
        };
        for lock in ["b", "c", "d"] {
            change(lock, &granted.change, Some("first"));
        }
        change("c", &Change::Proclaimed, Some("second"));
        change("c", &ended, None);
        change("b", &ended, None);
        change("d", &Change::Proclaimed, None);
        place.commit();
        let rows = place.page(&Query::default()).rows.into_iter();
        rows.map(|(row, _)| row).collect::<Vec<_>>()
    };
    let rows = told(false);
    assert_eq!(rows, told(true));
    let said = rows.iter().map(|row| {
        let metadata = row.metadata.as_deref();
        (&*row.lock, metadata, row.end.is_some())
    });
    let expected = [
        ("a", Some("nightly"), false),
        ("d", None, false),
        ("b", Some("first"), true),
        ("c", Some("second"), true),
    ];
    assert_eq!(said.collect::<Vec<_>>(), expected);
}

/// As many grants as one likes, of one client or of many locks, lasting or ended, wait in bounded memory. The controls are
/// grants without metadata, which are more.
#[test]
fn memory_is_full_by_bytes() {
    let until_full = |metadata: usize, changes: &dyn Fn(u64) -> Option<Change>| {
        let mut place = TestAuthority::new();
        place.acquire("a", "x");
        let mut event = place.log.remove(0);
        let granted = event.change.clone();
        // As long as a grant itself waits, a proclamation only replaces the one before it.
        place.commit();
        let mut count = 1;
        while !place.ledger.is_full() {
            count += 1;
            event.revision = count;
            event.detail.metadata = (metadata > 0).then(|| "m".repeat(metadata).into());
            let change = changes(count);
            if change.is_none() {
                event.token = Token::new(count).unwrap();
            }
            event.change = change.unwrap_or_else(|| granted.clone());
            place.ledger.take(
                std::slice::from_ref(&event),
                GapReason::LogDropped,
                BEGINNING,
            );
        }
        place.commit();
        assert!(!place.ledger.is_full());
        count
    };
    let lasting = |_| None;
    let words = |_| Some(Change::Proclaimed);
    let pairs = |count| {
        (count % 2 == 0).then_some(Change::Ended {
            how: Ending::Released,
            reason: None,
            delayed: None,
        })
    };
    let most = u64::try_from(ENDS).unwrap();
    let (lasting_grants, ended_grants) = (until_full(0, &lasting), until_full(0, &pairs) / 2);
    assert!((10_000..most).contains(&ended_grants), "{ended_grants}");
    assert!((10_000..most).contains(&lasting_grants), "{lasting_grants}");
    let long = (until_full(4_096, &lasting), until_full(4_096, &words));
    assert!((2_000..4_096).contains(&long.0), "{long:?}");
    assert!((2_000..=4_096).contains(&long.1), "{long:?}");
}
