//! Rows that wait in memory.

use std::fs;

use palisade_core::{Change, Token};

use super::{BEGINNING, FILE, TestAuthority, owner};
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

/// As many grants as one likes, of one client or of many locks, wait in bounded memory. The controls are grants without
/// metadata, which are more.
#[test]
fn memory_is_full_by_rows_or_by_bytes() {
    let until_full = |metadata: usize, again: bool| {
        let mut place = TestAuthority::new();
        place.acquire("a", "x");
        let mut event = place.log.remove(0);
        let mut count = 1;
        while !place.ledger.is_full() {
            event.revision += 1;
            event.detail.metadata = (metadata > 0).then(|| "m".repeat(metadata).into());
            if again {
                event.change = Change::Proclaimed;
            } else {
                event.token = Token::new(event.token.get() + 1).unwrap();
            }
            place.ledger.take(
                std::slice::from_ref(&event),
                GapReason::LogDropped,
                BEGINNING,
            );
            count += 1;
        }
        place.commit();
        assert!(!place.ledger.is_full());
        count
    };
    assert_eq!(until_full(0, false), 20_000);
    let (grants, words) = (until_full(4_096, false), until_full(4_096, true));
    assert!((2_000..4_096).contains(&grants), "{grants}");
    assert!((2_000..=4_096).contains(&words), "{words}");
}
