mod pages;
mod waiting;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use palisade_core::{
    Acquire, ClientId, Command, Effect, Entry, Event, LeaseKey, LockName, Machine, Outcome,
    Principal, RequestId, Span, Timestamp, Token, Ttl, Under, WallTime,
};

use redb::{ReadableDatabase as _, ReadableTableMetadata as _};

use crate::{Bounds, GapReason, How, LateRefusal, Ledger, LedgerOwner, Page, Query, Reader, Row};

const FILE: &str = "history.redb";

/// 2026-05-23T10:00:00Z.
const BEGINNING: u64 = 1_779_530_400_000;
const ADA: Principal = Principal::from_bytes([7; 16]);

/// An authority whose events are taken.
struct TestAuthority {
    machine: Machine,
    ledger: Ledger,
    reader: Reader,
    /// The events in its log.
    log: Vec<Event>,
    keys: u64,
    ms: u64,
    dir: tempfile::TempDir,
}

impl TestAuthority {
    fn new() -> TestAuthority {
        TestAuthority::bounded(Bounds::DEFAULT)
    }

    fn bounded(bounds: Bounds) -> TestAuthority {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&dir.path().join(FILE), &owner("one", "a"), bounds).unwrap();
        TestAuthority {
            machine: Machine::new(1),
            reader: ledger.reader(),
            ledger,
            log: Vec::new(),
            keys: 0,
            ms: 0,
            dir,
        }
    }

    fn events(&mut self, by: Principal, command: Command) -> (Outcome, Vec<Event>) {
        let entry = Entry {
            at: Timestamp::from_millis(self.ms),
            wall: WallTime(BEGINNING + self.ms),
            by,
            command,
        };
        let mut effects = Vec::new();
        let outcome = self.machine.apply(entry, &mut effects).outcome;
        let events = effects.into_iter().filter_map(|effect| match effect {
            Effect::Event(event) => Some(event),
            Effect::Settled { .. } => None,
        });
        (outcome, events.collect())
    }

    fn apply(&mut self, by: Principal, command: Command) -> Outcome {
        let (outcome, events) = self.events(by, command);
        self.ledger
            .take(&events, GapReason::LogDropped, BEGINNING + self.ms);
        self.log.extend(events);
        outcome
    }

    fn request(&mut self, lock: &str, client: &str, wait: Option<Span>) -> Command {
        self.keys += 1;
        let under = Under::New {
            key: LeaseKey::from_bytes(u128::from(self.keys).to_be_bytes()),
            ttl: Ttl::from_millis(1_000).unwrap(),
        };
        Command::Acquire(Acquire {
            wait,
            metadata: Some("nightly".into()),
            ..Acquire::new(
                LockName::new(lock).unwrap(),
                ClientId::new(client).unwrap(),
                under,
                Some(RequestId::from_bytes(u128::from(self.keys).to_be_bytes())),
            )
        })
    }

    fn acquire(&mut self, lock: &str, client: &str) -> Outcome {
        let command = self.request(lock, client, None);
        self.apply(ADA, command)
    }

    fn commit(&mut self) {
        self.ledger.commit(BEGINNING + self.ms, false).unwrap();
    }

    fn page(&self, query: &Query) -> Page {
        self.reader.page(query, 1_000).unwrap()
    }

    fn rows(&self, lock: &str) -> Vec<Row> {
        let query = Query {
            lock: Some(lock.into()),
            ..Query::default()
        };
        self.page(&query)
            .rows
            .into_iter()
            .map(|(row, _)| row)
            .collect()
    }

    /// Closes it, does something to its file, and opens it again.
    fn reopen(self, owner: &LedgerOwner, meanwhile: impl FnOnce(&Path)) -> TestAuthority {
        let TestAuthority {
            machine,
            ledger,
            reader,
            log,
            keys,
            ms,
            dir,
        } = self;
        let bounds = Bounds::DEFAULT;
        drop((ledger, reader));
        meanwhile(&dir.path().join(FILE));
        let ledger = Ledger::open(&dir.path().join(FILE), owner, bounds).unwrap();
        let reader = ledger.reader();
        TestAuthority {
            machine,
            ledger,
            reader,
            log,
            keys,
            ms,
            dir,
        }
    }
}

fn owner(authority: &str, incarnation: &str) -> LedgerOwner {
    LedgerOwner {
        authority: authority.into(),
        incarnation: incarnation.into(),
    }
}

fn refusal(operation: &str) -> LateRefusal {
    LateRefusal {
        at_ms: BEGINNING + 9_000,
        resource: "orders".into(),
        highest: 2,
        operation: operation.into(),
        by: [7; 16],
        times: 1,
    }
}

/// Grants with refused writes come by their latest report, each once, in pages of any size. The control is the grant without
/// one; a file from before the index gets it.
#[test]
fn refused_writes_are_found_by_their_latest_report() {
    let mut place = TestAuthority::new();
    for lock in ["a", "b/1", "b/2", "none"] {
        place.acquire(lock, "x");
    }
    place.commit();
    // Tokens are numbered over all locks.
    for (lock, token, operation) in [
        ("a", 1, "x"),
        ("b/1", 2, "x"),
        ("a", 1, "y"),
        ("b/2", 3, "x"),
    ] {
        assert!(
            place
                .ledger
                .refused(lock, token, &refusal(operation))
                .unwrap()
        );
    }
    let found = |place: &TestAuthority, prefix: &str, limit: usize| {
        let mut query = Query {
            prefix: prefix.into(),
            refused: true,
            ..Query::default()
        };
        let mut locks = Vec::new();
        loop {
            let page = place.reader.page(&query, limit).unwrap();
            locks.extend(
                page.rows
                    .into_iter()
                    .map(|(row, late)| (row.lock, late.len())),
            );
            match page.next {
                Some(next) => query.after = Some(next),
                None => return locks,
            }
        }
    };
    let each = [("b/2", 1), ("a", 2), ("b/1", 1)].map(|(lock, late)| (lock.to_owned(), late));
    for limit in [1, 2, 3, 1_000] {
        assert_eq!(found(&place, "", limit), each, "{limit}");
    }
    assert_eq!(found(&place, "b/", 1), [each[0].clone(), each[2].clone()]);
    let mut place = place.reopen(&owner("one", "a"), |file| {
        let db = redb::Database::open(file).unwrap();
        let write = db.begin_write().unwrap();
        assert!(write.delete_table(crate::ledger::LATE).unwrap());
        write.commit().unwrap();
    });
    assert_eq!(found(&place, "", 1), each);
    // The index goes with its grants.
    for lock in ["a", "b/1", "b/2"] {
        place.acquire(lock, "x");
    }
    place.commit();
    place.ms += 31 * 86_400_000;
    place.commit();
    assert_eq!(found(&place, "", 1), []);
    place.reopen(&owner("one", "a"), |file| {
        let db = redb::Database::open(file).unwrap();
        let late = db.begin_read().unwrap().open_table(crate::ledger::LATE);
        assert!(late.unwrap().is_empty().unwrap());
    });
}

/// The five questions: who held it, since when, why did it end, who waited and how long, who wrote late.
#[test]
fn a_grant_that_expired_and_its_late_write_are_told_whole() {
    for commit_between in [false, true] {
        let mut place = TestAuthority::new();
        place.acquire("orders", "a");
        if commit_between {
            place.commit();
        }
        place.ms = 400;
        let waits = place.request("orders", "b", Some(Span::from_millis(60_000)));
        assert_eq!(place.apply(ADA, waits), Outcome::Queued);
        place.ms = 1_000;
        place.apply(Principal::ANONYMOUS, Command::Expire);
        assert!(
            place
                .ledger
                .refused("orders", 1, &refusal("PUT /total"))
                .unwrap()
        );
        place.commit();
        let rows = place.rows("orders");
        let [held, was] = &rows[..] else {
            panic!("{rows:?}");
        };
        assert_eq!(
            (was.client.as_str(), was.token, was.granted_ms),
            ("a", 1, BEGINNING)
        );
        assert_eq!(
            (was.waited_ms, was.metadata.as_deref()),
            (Some(0), Some("nightly"))
        );
        let end = was.end.as_ref().unwrap();
        assert_eq!(
            (end.how, end.at_ms, end.renewed_ms),
            (How::Expired, BEGINNING + 1_000, BEGINNING)
        );
        assert_eq!(
            (held.client.as_str(), held.token, held.waited_ms),
            ("b", 2, Some(600))
        );
        assert_eq!((held.granted_ms, &held.end), (BEGINNING + 1_000, &None));
        let late = &place.page(&Query::default()).rows[1].1;
        assert_eq!(late[..], [refusal("PUT /total")]);
    }
}

#[test]
fn a_revocation_names_the_operator_and_a_successor_is_named() {
    let mut place = TestAuthority::new();
    place.acquire("a", "x");
    place.acquire("a", "x");
    place.commit();
    place.ms = 10;
    let operator = Principal::from_bytes([9; 16]);
    let revoke = Command::Revoke {
        lock: LockName::new("a").unwrap(),
        token: Token::new(2).unwrap(),
        reason: "it hangs".into(),
    };
    place.apply(operator, revoke);
    place.commit();
    let ends: Vec<_> = place
        .rows("a")
        .into_iter()
        .filter_map(|row| row.end)
        .collect();
    assert_eq!((ends[0].how, ends[0].by), (How::Revoked, Some([9; 16])));
    assert_eq!(ends[0].reason.as_deref(), Some("it hangs"));
    assert_eq!(
        (ends[1].how, ends[1].successor, ends[1].by),
        (How::Superseded, Some(2), None)
    );
}

/// The control is a report of a token that the history has.
#[test]
fn a_report_of_a_grant_that_nobody_had_is_not_taken_and_alike_ones_count() {
    let mut place = TestAuthority::new();
    place.acquire("a", "x");
    assert!(!place.ledger.refused("a", 7, &refusal("x")).unwrap());
    assert!(!place.ledger.refused("b", 1, &refusal("x")).unwrap());
    assert!(place.page(&Query::default()).rows.is_empty());
    for _ in 0..3 {
        assert!(place.ledger.refused("a", 1, &refusal("x")).unwrap());
    }
    for other in 0..40 {
        assert!(
            place
                .ledger
                .refused("a", 1, &refusal(&other.to_string()))
                .unwrap()
        );
    }
    place.commit();
    let late = &place.page(&Query::default()).rows[0].1;
    assert_eq!((late.len(), late[0].times), (16, 3));
    assert_eq!(late.iter().map(|it| it.times).sum::<u32>(), 43);
}

#[test]
fn what_was_not_taken_is_a_gap_and_its_grants_are_told_as_far_as_their_ends_know_them() {
    let mut place = TestAuthority::new();
    let request = place.request("a", "x", None);
    place.events(ADA, request);
    place.ms = 1_000;
    place.apply(Principal::ANONYMOUS, Command::Expire);
    place.commit();
    let page = place.page(&Query::default());
    let (gap, row) = (&page.gaps[0], &page.rows[0].0);
    assert_eq!((gap.from, gap.to, gap.why), (1, 1, GapReason::LogDropped));
    assert_eq!(
        (row.granted_ms, row.waited_ms, row.ttl_ms),
        (BEGINNING, None, None)
    );
}

/// The control is the same look while the file is open.
#[test]
fn a_file_that_is_closed_is_looked_at_with_its_gaps_and_not_changed() {
    let mut place = TestAuthority::new();
    let request = place.request("a", "x", None);
    place.events(ADA, request);
    place.ms = 1_000;
    place.apply(Principal::ANONYMOUS, Command::Expire);
    place.acquire("b", "y");
    place.commit();
    assert!(crate::look(&place.dir.path().join(FILE)).is_err());
    let mut look = crate::HistorySummary::default();
    let place = place.reopen(&owner("one", "a"), |file| {
        let before = fs::read(file).unwrap();
        look = crate::look(file).unwrap();
        assert_eq!(fs::read(file).unwrap(), before);
    });
    let gap = look.latest_gap.as_ref().unwrap();
    assert_eq!((look.gaps, gap.from, gap.to), (1, 1, 1));
    assert_eq!((look.lasting, look.ended), (1, 1));
    assert_eq!(look.last, place.ledger.last());
}

#[test]
fn a_file_goes_on_where_it_stopped_and_one_of_another_authority_begins_anew() {
    let mut place = TestAuthority::new();
    place.acquire("a", "x");
    place.ledger.commit(BEGINNING, true).unwrap();
    let mut place = place.reopen(&owner("one", "a"), |file| {
        let mode = fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0);
    });
    assert_eq!((place.ledger.last(), place.ledger.has_doubt()), (1, false));
    place.ms = 1_000;
    place.apply(Principal::ANONYMOUS, Command::Expire);
    place.commit();
    assert_eq!(place.rows("a")[0].waited_ms, Some(0));
    assert!(place.page(&Query::default()).gaps.is_empty());
    let place = place.reopen(&owner("two", "a"), |_| {});
    assert_eq!((place.ledger.last(), place.rows("a").len()), (0, 0));
    assert!(place.ledger.set_aside().unwrap().exists());
}

/// The control is the same file, whole.
#[test]
fn a_damaged_file_is_set_aside() {
    for damage in [false, true] {
        let mut place = TestAuthority::new();
        place.acquire("a", "x");
        place.ledger.commit(BEGINNING, true).unwrap();
        let place = place.reopen(&owner("one", "a"), |file| {
            if damage {
                fs::write(file, b"nothing of redb").unwrap();
            }
        });
        assert_eq!(place.rows("a").len(), usize::from(!damage));
        assert_eq!(place.ledger.set_aside().is_some(), damage);
    }
}

/// A kill while redb makes the file. The control is what it leaves, under the name of a file that was begun.
#[test]
fn a_file_that_was_never_begun_is_not_a_damaged_one() {
    for (name, is_damaged) in [("redb.new", false), ("redb", true)] {
        let place = TestAuthority::new().reopen(&owner("one", "a"), |file| {
            let mut whole = fs::read(file).unwrap();
            // The mark of redb, which it writes last.
            whole[..9].fill(0);
            fs::remove_file(file).unwrap();
            fs::write(file.with_extension(name), whole).unwrap();
        });
        assert_eq!(place.ledger.set_aside().is_some(), is_damaged, "{name}");
        let left = place.dir.path().join(FILE).with_extension("redb.new");
        assert!(!left.exists(), "{name}");
    }
}

/// A gap, or a restore, leaves a doubt of all grants that last, also over a new start. The control is a history without
/// either.
#[test]
fn grants_that_ended_unseen_are_ended_when_the_authority_is_asked() {
    for (incarnation, gap, how) in [
        ("a", false, None),
        ("a", true, Some(How::Unseen)),
        ("b", false, Some(How::Restored)),
    ] {
        let mut place = TestAuthority::new();
        for lock in ["a", "b", "c"] {
            place.acquire(lock, "x");
        }
        place.commit();
        if gap {
            place.ledger.miss(9, GapReason::TooFast, BEGINNING);
        }
        place.ledger.commit(BEGINNING, true).unwrap();
        let place = place.reopen(&owner("one", incarnation), |_| {});
        assert_eq!(place.ledger.has_doubt(), how.is_some());
        // It is remembered until somebody asked.
        let place = place.reopen(&owner("one", incarnation), |_| {});
        let mut place = place;
        assert_eq!(place.ledger.has_doubt(), how.is_some());
        if how.is_some() {
            let gone = place.ledger.reconcile(|lock, _| lock == "b", BEGINNING + 5);
            assert_eq!((gone.unwrap(), place.ledger.has_doubt()), (2, false));
        }
        let ends: Vec<_> = ["a", "b", "c"]
            .map(|lock| place.rows(lock)[0].end.clone())
            .into_iter()
            .map(|end| end.map(|end| (end.how, end.at_ms)))
            .collect();
        let how = how.map(|how| (how, BEGINNING + 5));
        assert_eq!(ends, [how, None, how]);
        let pages = place.page(&Query::default()).rows;
        assert_eq!(pages.len(), 3);
    }
}

#[test]
fn the_oldest_go_by_age_and_by_bytes_and_grants_that_last_stay() {
    let bounds = Bounds {
        age: Duration::from_secs(10),
        bytes: 2_000,
    };
    let mut place = TestAuthority::bounded(bounds);
    place.acquire("lasts", "x");
    for round in 0..100 {
        let lock = format!("lock-{round}");
        place.acquire(&lock, "y");
        place.acquire(&lock, "y");
    }
    place.commit();
    let rows = place.page(&Query::default()).rows;
    let ended = rows.iter().filter(|(row, _)| row.end.is_some()).count();
    assert!((10..40).contains(&ended), "{ended}");
    assert!(place.rows("lasts")[0].end.is_none() && place.rows("lock-0").len() == 1);
    place.ms = 10_001;
    place.commit();
    let rows = place.page(&Query::default()).rows;
    assert!(rows.iter().all(|(row, _)| row.end.is_none()));
}

#[test]
fn pages_join_without_a_row_lost_or_told_twice() {
    let mut place = TestAuthority::new();
    for round in 0..50 {
        place.ms = round;
        place.acquire("a", "x");
        place.acquire(&format!("b-{round}"), "x");
    }
    place.commit();
    for lock in [None, Some("a".to_owned())] {
        let mut query = Query {
            lock,
            ..Query::default()
        };
        let all = place.page(&query).rows;
        let mut joined = Vec::new();
        loop {
            let page = place.reader.page(&query, 7).unwrap();
            joined.extend(page.rows);
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        assert!(joined == all, "{} {}", joined.len(), all.len());
    }
    let since = Query {
        since_ms: Some(BEGINNING + 48),
        until_ms: Some(BEGINNING + 48),
        lock: Some("a".into()),
        ..Query::default()
    };
    let tokens: Vec<u64> = place
        .page(&since)
        .rows
        .iter()
        .map(|(row, _)| row.token)
        .collect();
    assert_eq!(tokens, [97, 95]);
}

/// The cost of a lock's history must not grow with what other locks did. The control is a small history in the same run.
#[test]
#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn the_history_of_a_lock_costs_the_same_beside_many_others() {
    let time = |others: u32| {
        let mut place = TestAuthority::new();
        place.acquire("mine", "x");
        place.acquire("mine", "x");
        for other in 0..others {
            let lock = format!("other-{}", other % 1_000);
            place.acquire(&lock, "y");
            if other % 5_000 == 0 {
                place.commit();
            }
        }
        place.commit();
        let query = Query {
            lock: Some("mine".into()),
            token: Some(1),
            ..Query::default()
        };
        (0..20)
            .map(|_| {
                let begun = Instant::now();
                assert_eq!(place.page(&query).rows.len(), 1);
                begun.elapsed()
            })
            .min()
            .unwrap()
    };
    let (few, many) = (time(1_000), time(50_000));
    assert!(
        many < few * 20 + Duration::from_millis(1),
        "{few:?} {many:?}"
    );
}
