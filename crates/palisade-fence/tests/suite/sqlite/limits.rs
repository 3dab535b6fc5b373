//! Several resources at once, transactions that read too early, recorded results, re-arming, and input
//! that is refused.

use palisade_core::{AuthorityId, LockName, Token};
use palisade_fence::sqlite::{
    Column, Guard, Numbered, Operator, Records, Strategy, claim, claim_all, transact,
};
use palisade_fence::{
    Admin as _, Admitted, Error, ErrorKind, Pass, Rearm, Reject, Result, Sequence,
};
use rusqlite::{Connection, TransactionBehavior};

use super::subject::{File, Journal, carry_out, now};

pub(crate) fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn file() -> (File, Connection) {
    let file = File::new(Journal::Wal);
    let db = file.open();
    (file, db)
}

fn all(db: &mut Connection, claims: &[(&str, u64)]) -> Result<()> {
    let claims: Vec<_> = claims
        .iter()
        .map(|(name, n)| (*name, Pass::new(t(*n))))
        .collect();
    carry_out(db, |tx| claim_all(tx, &claims)).map(drop)
}

fn highest(db: &mut Connection, resource: &str) -> Option<u64> {
    let state = now(Operator::new(db).show(resource)).unwrap()?;
    state.highest().map(Token::get)
}

fn names(db: &mut Connection, prefix: &str, after: Option<&str>) -> Vec<String> {
    let listed = now(Operator::new(db).list(prefix, after, 10)).unwrap();
    listed.into_iter().map(|one| one.resource).collect()
}

fn rearm(
    db: &mut Connection,
    resource: &str,
    floor: u64,
    authority: Option<&AuthorityId>,
    lower_from: Option<u64>,
) -> Result<()> {
    let with = Rearm {
        floor: t(floor),
        authority,
        lower_from: lower_from.map(t),
    };
    now(Operator::new(db).rearm(resource, &with))
}

#[test]
fn several_are_claimed_together_or_not_at_all() {
    let (_file, mut db) = file();
    all(&mut db, &[("b", 5)]).unwrap();
    let refused = all(&mut db, &[("c", 4), ("a", 4), ("b", 4)]).unwrap_err();
    assert_eq!(
        refused.rejected(),
        Some(&Reject::Stale {
            presented: t(4),
            highest: t(5)
        })
    );
    assert_eq!(highest(&mut db, "a"), None);
    all(&mut db, &[("c", 6), ("a", 6), ("b", 6)]).unwrap();
    assert_eq!(names(&mut db, "", Some("a")), ["b", "c"]);
    assert_eq!(highest(&mut db, "c"), Some(6));
    all(&mut db, &[("A", 1), ("a ", 2)]).unwrap();
    assert_eq!(highest(&mut db, "A"), Some(1), "A and a are two resources");
    assert_eq!(
        highest(&mut db, "a "),
        Some(2),
        "so are a and a with a space"
    );
    assert_eq!(highest(&mut db, "a"), Some(6));
    assert_eq!(names(&mut db, "a", None), ["a", "a "]);
}

/// The old holder writes under an equal token, which changes no mark, and commits between the other holder's
/// read and its claim. That claim would continue with an outdated read, so SQLite must abort it.
#[test]
fn a_claim_after_an_outdated_read_must_begin_again() {
    let (file, mut old) = file();
    old.execute_batch("CREATE TABLE things (id INTEGER)")
        .unwrap();
    all(&mut old, &[("r", 1)]).unwrap();
    let mut new = file.open();
    let count = |tx: &Connection| {
        let sql = "SELECT count(*) FROM things";
        tx.query_one(sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let tx = new.transaction().unwrap(); // deferred
    assert_eq!(count(&tx), 0);
    carry_out(&mut old, |tx| {
        claim(tx, "r", t(1))?;
        Ok::<_, Error>(tx.execute("INSERT INTO things VALUES (1)", [])?)
    })
    .unwrap();
    match claim(&tx, "r", t(2)) {
        Err(fault) => assert_eq!(fault.kind(), ErrorKind::Retry, "{fault}"),
        other => panic!("{other:?}"),
    }
    drop(tx);
    // The control arm: after a claim as the first statement, the write is visible.
    let tx = new.transaction().unwrap();
    claim(&tx, "r", t(2)).unwrap();
    assert_eq!(count(&tx), 1);
}

#[test]
fn a_claim_waits_for_the_writer_and_then_gives_up_without_a_trace() {
    let (file, mut db) = file();
    let mut other = file.open();
    other.busy_timeout(std::time::Duration::ZERO).unwrap();
    let tx = db
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    let refused = carry_out(&mut other, |tx| claim(tx, "r", t(1))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Retry, "{refused}");
    drop(tx);
    assert_eq!(highest(&mut db, "r"), None);
}

#[test]
fn a_repeat_gets_the_recorded_result() {
    let (_file, mut db) = file();
    let (number, guard) = (Sequence::new(7).unwrap(), Guard::CLAIM);
    let write = Numbered {
        sequence: number,
        digest: u64::MAX,
    };
    carry_out(&mut db, |tx| {
        let first = guard.write(tx, "r", t(3), write)?;
        assert_eq!(first, Admitted::new(None, Some(t(3))));
        guard.record(tx, "r", t(3), number, b"receipt 1")?;
        let long = vec![0; Guard::MAX_RESULT_BYTES + 1];
        let refused = guard.record(tx, "r", t(3), number, &long).unwrap_err();
        let message = "the result has 65537 bytes; 0 ..= 65536 are allowed";
        assert_eq!(refused.to_string(), message);
        let refused = guard.record(tx, "r", t(2), number, b"").unwrap_err();
        assert!(refused.to_string().contains("not number 7 of token 2"));
        Ok::<_, Error>(())
    })
    .unwrap();
    let result = Some(b"receipt 1".to_vec());
    let again = carry_out(&mut db, |tx| guard.write(tx, "r", t(3), write)).unwrap();
    assert!(again.repeat);
    assert_eq!(again.value, result);
}

#[test]
fn a_rearmed_fence_refuses_everything_below_its_floor() {
    let (_file, mut db) = file();
    let ours = AuthorityId::new("ours").unwrap();
    all(&mut db, &[("poisoned", 1 << 40)]).unwrap();
    for (resource, stands) in [("lost", None), ("poisoned", Some(1 << 40))] {
        rearm(&mut db, resource, 100, Some(&ours), stands).unwrap();
        for (token, admitted) in [(99, false), (100, true), (101, true)] {
            let pass = Pass::new(t(token)).by(&ours);
            let claimed = carry_out(&mut db, |tx| claim(tx, resource, pass));
            assert_eq!(claimed.is_ok(), admitted, "{resource} {token}: {claimed:?}");
        }
    }
}

#[test]
fn rearming_does_not_let_a_refused_holder_in_again() {
    let (_file, mut db) = file();
    all(&mut db, &[("orders", 100)]).unwrap();
    for lower_from in [None, Some(99), Some(101)] {
        let refused = rearm(&mut db, "orders", 50, None, lower_from).unwrap_err();
        assert!(refused.to_string().contains("stands at 100"), "{refused}");
    }
    let zombie = all(&mut db, &[("orders", 60)]).unwrap_err();
    assert_eq!(
        zombie.rejected(),
        Some(&Reject::Stale {
            presented: t(60),
            highest: t(100)
        })
    );
    rearm(&mut db, "orders", 100, None, None).unwrap();
    assert_eq!(highest(&mut db, "orders"), Some(100));
}

#[test]
fn the_mark_never_goes_down() {
    let (_file, mut db) = file();
    all(&mut db, &[("r", 9)]).unwrap();
    for sql in [
        "UPDATE palisade_fence SET token = 8",
        "UPDATE palisade_fence SET token = NULL",
        "UPDATE palisade_fence SET resource = 's'",
        "DELETE FROM palisade_fence",
        "REPLACE INTO palisade_fence (resource, token) VALUES ('r', 1)",
        "UPDATE palisade_fence SET token = 9007199254740992",
        "UPDATE palisade_fence SET token = 0",
        "UPDATE palisade_fence SET token = 'ten'",
    ] {
        assert!(db.execute(sql, []).is_err(), "{sql}");
        assert_eq!(highest(&mut db, "r"), Some(9), "{sql}");
    }
}

#[test]
fn another_lock_or_authority_is_an_error() {
    let (_file, mut db) = file();
    let (orders, others) = (
        LockName::new("orders").unwrap(),
        LockName::new("others").unwrap(),
    );
    let pass = |lock| Pass::new(t(5)).of(lock);
    carry_out(&mut db, |tx| claim(tx, "r", pass(&orders))).unwrap();
    let refused = carry_out(&mut db, |tx| claim(tx, "r", pass(&others))).unwrap_err();
    let bound = orders.clone();
    assert_eq!(refused.rejected(), Some(&Reject::WrongLock { bound }));
}

#[test]
fn a_column_value_that_is_no_token_is_reported() {
    let (_file, mut db) = file();
    let table = "CREATE TABLE things (id INTEGER PRIMARY KEY, last_fencing_token INTEGER);
        INSERT INTO things VALUES (0, 0), (1, 9007199254740992), (2, -1), (3, 'ten'), (4, NULL)";
    db.execute_batch(table).unwrap();
    let column = Column::new("things", "id", "last_fencing_token").unwrap();
    carry_out(&mut db, |tx| column.claim(tx, &0, t(7))).unwrap();
    for (id, holds) in [(1, "9007199254740992"), (2, "-1"), (3, "Text"), (4, "Null")] {
        for _ in 0..2 {
            let refused = carry_out(&mut db, |tx| column.claim(tx, &id, t(7))).unwrap_err();
            let locked = carry_out(&mut db, |tx| column.lock(tx, &id, t(7))).unwrap_err();
            for refused in [refused, locked] {
                assert!(matches!(refused, Error::Damaged(_)), "{refused}");
                assert!(refused.to_string().contains(holds), "{refused}");
            }
        }
    }
    let missing = carry_out(&mut db, |tx| column.claim(tx, &5, t(7))).unwrap_err();
    assert_eq!(missing.rejected(), Some(&Reject::Missing));
    let none = Column::new("things", "id", "tokn").unwrap();
    let refused = carry_out(&mut db, |tx| none.claim(tx, &0, t(8))).unwrap_err();
    assert!(refused.to_string().contains("tokn"), "{refused}");
}

#[test]
fn bad_input_is_reported_and_nothing_is_written() {
    let (_file, mut db) = file();
    let long = "x".repeat(256);
    for (name, message) in [
        ("", "resource_id is empty; 1 ..= 255 bytes are allowed"),
        (&long, "resource_id has 256 bytes; 1 ..= 255"),
        ("é", "offset 0 that is not printable ASCII"),
    ] {
        let refused = all(&mut db, &[(name, 1)]).unwrap_err();
        assert!(refused.to_string().contains(message), "{refused}");
    }
    let refused = all(&mut db, &[("a", 1), ("a", 2)]).unwrap_err();
    assert_eq!(refused.to_string(), "a is claimed twice in one step");
    let records = Records::new(Strategy::Optimistic);
    let key = "x".repeat(101);
    let refused = carry_out(&mut db, |tx| records.write(tx, &key, t(1), "")).unwrap_err();
    let message = refused.to_string();
    assert!(message.contains("101 characters; 1 ..= 100"), "{message}");
    for name in ["", "a\0b"] {
        assert!(Column::new(name, "id", "token").is_err());
    }
    let refused = claim(&db, "a", t(1)).unwrap_err();
    assert!(matches!(refused, Error::NoTransaction), "{refused}");
    assert!(names(&mut db, "", None).is_empty());

    let mut bare = Connection::open_in_memory().unwrap();
    let tx = bare.transaction().unwrap();
    let refused = claim(&tx, "a", t(1)).unwrap_err();
    let written = records.write(&tx, "a", t(1), "").unwrap_err();
    for refused in [refused, written] {
        assert!(matches!(refused, Error::NotInstalled(_)), "{refused}");
        assert_eq!(refused.kind(), ErrorKind::Operator);
    }
}

/// While a holder has the file, its successor waits for `busy_timeout`; then its error says to begin again (rule F12).
#[test]
fn transact_claims_first_waits_within_a_bound_and_rolls_back_after_an_error() {
    let (file, mut db) = file();
    db.execute_batch("CREATE TABLE totals (n INTEGER); INSERT INTO totals VALUES (0)")
        .unwrap();
    let add = |db: &mut Connection, token| {
        transact(db, "r", t(token), |tx| {
            let n: i64 = tx.query_row("SELECT n FROM totals", [], |row| row.get(0))?;
            tx.execute("UPDATE totals SET n = ?1", [n + 1])?;
            Ok::<_, Error>(n + 1)
        })
    };
    assert_eq!(add(&mut db, 1).unwrap(), 1);
    let failed = transact(&mut db, "r", t(2), |tx| {
        tx.execute("UPDATE totals SET n = 9", [])?;
        Err::<(), _>(Error::Argument("no".to_owned()))
    });
    assert!(matches!(failed, Err(Error::Argument(_))), "{failed:?}");
    // The rolled-back claim raised nothing.
    assert_eq!(add(&mut db, 1).unwrap(), 2);
    let mut holder = file.open();
    let held = holder.transaction_with_behavior(TransactionBehavior::Immediate);
    let held = held.unwrap();
    claim(&held, "r", t(3)).unwrap();
    db.busy_timeout(std::time::Duration::from_millis(50))
        .unwrap();
    let late = add(&mut db, 4).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Retry, "{late}");
    drop(held);
    assert_eq!(add(&mut db, 4).unwrap(), 3);
    let stale = add(&mut db, 3).unwrap_err();
    assert_eq!(
        stale.rejected(),
        Some(&Reject::Stale {
            presented: t(3),
            highest: t(4)
        })
    );
}

/// Rule F11, for programs that check nothing themselves.
#[test]
fn the_table_takes_no_name_that_could_be_read_in_two_ways() {
    let (_file, db) = file();
    let insert =
        |name: &str| db.execute("INSERT INTO palisade_fence (resource) VALUES (?1)", [name]);
    for name in ["", "a\n", "é", "a\0", "\t", &"x".repeat(256)] {
        assert!(insert(name).is_err(), "{name:?}");
    }
    for name in ["a", "A", "a ", "~", &"x".repeat(255)] {
        assert!(insert(name).is_ok(), "{name:?}");
    }
}
