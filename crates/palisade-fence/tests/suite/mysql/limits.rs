//! Several resources at once, recorded results, re-arming, and input that is refused.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Transaction, TxOpts};
use palisade_core::{AuthorityId, Token};
use palisade_fence::mysql::{
    Column, Guard, Numbered, Operator, Records, Strategy, claim, claim_all,
};
use palisade_fence::{Admin as _, Admitted, Error, Pass, Rearm, Reject, Result, Sequence};

use super::Server;
use super::subject::{connect, database, script};

pub(crate) fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

pub(crate) async fn begin(db: &mut Conn) -> Transaction<'_> {
    db.start_transaction(TxOpts::default()).await.unwrap()
}

pub(crate) async fn fresh() -> (String, Conn) {
    let url = database(&Server::shared().url()).await;
    let db = connect(&url, false).await.unwrap();
    (url, db)
}

pub(crate) async fn all(db: &mut Conn, claims: &[(&str, u64)]) -> Result<()> {
    let pass = |(name, n): &(_, u64)| (*name, Pass::new(t(*n)));
    let claims: Vec<_> = claims.iter().map(pass).collect();
    let mut tx = begin(db).await;
    let claimed = claim_all(&mut tx, &claims).await.map(drop);
    match claimed {
        Ok(()) => tx.commit().await?,
        Err(_) => tx.rollback().await?,
    }
    claimed
}

pub(crate) async fn highest(db: &mut Conn, resource: &str) -> Option<u64> {
    let mut tx = begin(db).await;
    let state = Operator::new(&mut tx).show(resource).await.unwrap();
    tx.rollback().await.unwrap();
    state?.highest().map(Token::get)
}

fn rearm<'a>(floor: u64, authority: Option<&'a AuthorityId>, from: Option<u64>) -> Rearm<'a> {
    Rearm {
        floor: t(floor),
        authority,
        lower_from: from.map(t),
    }
}

async fn names(tx: &mut Transaction<'_>, prefix: &str, after: Option<&str>) -> Vec<String> {
    let listed = Operator::new(tx).list(prefix, after, 10).await.unwrap();
    listed.into_iter().map(|one| one.resource).collect()
}

#[tokio::test]
async fn several_are_claimed_together_or_not_at_all() {
    let (_, mut db) = fresh().await;
    all(&mut db, &[("b", 5)]).await.unwrap();
    let refused = all(&mut db, &[("c", 4), ("a", 4), ("b", 4)]).await;
    let stale = Reject::Stale {
        presented: t(4),
        highest: t(5),
    };
    assert_eq!(refused.unwrap_err().rejected(), Some(&stale));
    assert_eq!(highest(&mut db, "a").await, None);
    all(&mut db, &[("c", 6), ("a", 6), ("b", 6)]).await.unwrap();
    let mut tx = begin(&mut db).await;
    assert_eq!(names(&mut tx, "", Some("a")).await, ["b", "c"]);
    tx.rollback().await.unwrap();
    all(&mut db, &[]).await.unwrap();
    // Names are bytes: no collation makes two of them equal.
    all(&mut db, &[("A", 1), ("a ", 2)]).await.unwrap();
    assert_eq!(highest(&mut db, "A").await, Some(1));
    assert_eq!(highest(&mut db, "a ").await, Some(2));
    assert_eq!(highest(&mut db, "a").await, Some(6));
    let mut tx = begin(&mut db).await;
    assert_eq!(names(&mut tx, "a", None).await, ["a", "a "]);
    let records = Records::new(Strategy::Optimistic);
    for (key, text) in [("a", "1"), ("A", "2"), ("a ", "3"), ("ä", "4")] {
        let written = records.write(&mut tx, key, t(1), text).await;
        written.unwrap();
    }
    for (key, text) in [("a", "1"), ("A", "2"), ("a ", "3"), ("ä", "4")] {
        let read = records.claim(&mut tx, key, t(1)).await.unwrap();
        assert_eq!(read.value.as_deref(), Some(text), "{key:?}");
    }
}

/// Claims are made in name order: crossed lists of resources, also of missing ones, never deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn crossed_claims_do_not_deadlock() {
    let (url, _) = fresh().await;
    let mut racers = tokio::task::JoinSet::new();
    for racer in 0..4_u64 {
        let url = url.clone();
        racers.spawn(async move {
            let mut db = connect(&url, false).await.unwrap();
            for round in 0..50_u64 {
                let (x, y) = (format!("x{round}"), format!("y{round}"));
                let mut claims = vec![(x.as_str(), 1), (y.as_str(), 1), ("shared", 1)];
                if racer % 2 == 0 {
                    claims.reverse();
                }
                all(&mut db, &claims).await.unwrap();
            }
        });
    }
    while let Some(ended) = racers.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn a_repeat_gets_the_recorded_result() {
    let (_, mut db) = fresh().await;
    let (number, guard) = (Sequence::new(7).unwrap(), Guard::CLAIM);
    let write = Numbered {
        sequence: number,
        digest: u64::MAX,
    };
    let mut tx = begin(&mut db).await;
    let first = guard.write(&mut tx, "r", t(3), write).await.unwrap();
    assert_eq!(first, Admitted::new(None, Some(t(3))));
    guard
        .record(&mut tx, "r", t(3), number, b"receipt \xff")
        .await
        .unwrap();
    let long = vec![0; Guard::MAX_RESULT_BYTES + 1];
    for (token, result, message) in [
        (
            3,
            &long[..],
            "the result has 65537 bytes; 0 ..= 65536 are allowed",
        ),
        (2, b"", "the last write there is not number 7 of token 2"),
    ] {
        let refused = guard.record(&mut tx, "r", t(token), number, result).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(message), "{refused}");
    }
    tx.commit().await.unwrap();
    let mut tx = begin(&mut db).await;
    let result = Some(b"receipt \xff".to_vec());
    let again = guard.write(&mut tx, "r", t(3), write).await.unwrap();
    assert!(again.repeat && again.value == result, "{again:?}");
}

#[tokio::test]
async fn a_rearmed_fence_refuses_everything_below_its_floor() {
    let (_, mut db) = fresh().await;
    let ours = AuthorityId::new("ours").unwrap();
    all(&mut db, &[("poisoned", 1 << 40)]).await.unwrap();
    for (resource, stands) in [("lost", None), ("poisoned", Some(1 << 40))] {
        let mut tx = begin(&mut db).await;
        let with = rearm(100, Some(&ours), stands);
        Operator::new(&mut tx).rearm(resource, &with).await.unwrap();
        tx.commit().await.unwrap();
        for (token, admitted) in [(99, false), (100, true), (101, true)] {
            let mut tx = begin(&mut db).await;
            let claimed = claim(&mut tx, resource, Pass::new(t(token)).by(&ours)).await;
            let claimed = claimed;
            assert_eq!(claimed.is_ok(), admitted, "{resource} {token}: {claimed:?}");
            tx.rollback().await.unwrap();
        }
    }
}

#[tokio::test]
async fn rearming_does_not_let_a_refused_holder_in_again() {
    let (_, mut db) = fresh().await;
    all(&mut db, &[("orders", 100)]).await.unwrap();
    for lower_from in [None, Some(99), Some(101)] {
        let mut tx = begin(&mut db).await;
        let with = rearm(50, None, lower_from);
        let refused = Operator::new(&mut tx).rearm("orders", &with).await;
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("stands at 100"), "{message}");
        tx.commit().await.unwrap();
    }
    let zombie = all(&mut db, &[("orders", 60)]).await.unwrap_err();
    assert_eq!(
        zombie.rejected(),
        Some(&Reject::Stale {
            presented: t(60),
            highest: t(100)
        })
    );
    let mut tx = begin(&mut db).await;
    let with = rearm(100, None, None);
    Operator::new(&mut tx).rearm("orders", &with).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(highest(&mut db, "orders").await, Some(100));
}

#[tokio::test]
async fn the_mark_never_goes_down() {
    let (_, mut db) = fresh().await;
    all(&mut db, &[("r", 9)]).await.unwrap();
    for sql in [
        "UPDATE palisade_fence SET token = 8",
        "UPDATE palisade_fence SET token = NULL",
        "UPDATE palisade_fence SET resource = 's'",
        "DELETE FROM palisade_fence",
        "REPLACE INTO palisade_fence (resource, token) VALUES ('r', 1)",
        "UPDATE IGNORE palisade_fence SET token = 8",
        "UPDATE palisade_fence SET token = 9007199254740992",
        "UPDATE palisade_fence SET token = 0",
    ] {
        assert!(db.query_drop(sql).await.is_err(), "{sql}");
        assert_eq!(highest(&mut db, "r").await, Some(9), "{sql}");
    }
}

#[tokio::test]
async fn a_column_value_that_is_no_token_is_reported() {
    let (url, mut db) = fresh().await;
    let table = "CREATE TABLE things (id BIGINT PRIMARY KEY, last_fencing_token BIGINT) ENGINE = InnoDB;
        INSERT INTO things VALUES (0, 0), (1, 9007199254740992), (2, -1), (3, NULL);
        CREATE TABLE texts (id VARCHAR(9) PRIMARY KEY, last_fencing_token VARCHAR(9)) ENGINE = InnoDB;
        INSERT INTO texts VALUES ('a', 'ten')";
    script(&url, table).await;
    let things = Column::new("things", "id", "last_fencing_token").unwrap();
    let texts = Column::new("texts", "id", "last_fencing_token").unwrap();
    let mut tx = begin(&mut db).await;
    things.claim(&mut tx, 0, t(7)).await.unwrap();
    for (id, holds) in [(1, "9007199254740992"), (2, "-1"), (3, "NULL")] {
        for refused in [
            things.claim(&mut tx, id, t(7)).await.unwrap_err(),
            things.lock(&mut tx, id, t(7)).await.unwrap_err(),
        ] {
            assert!(matches!(refused, Error::Damaged(_)), "{refused}");
            assert!(refused.to_string().contains(holds), "{refused}");
        }
    }
    let refused = texts.lock(&mut tx, "a", t(7)).await.unwrap_err();
    assert!(refused.to_string().contains("'ten'"), "{refused}");
    let missing = things.claim(&mut tx, 5, t(7)).await.unwrap_err();
    assert_eq!(missing.rejected(), Some(&Reject::Missing));
    for (table, key, token) in [
        ("things", "id", "tokn"),
        ("thngs", "id", "last_fencing_token"),
    ] {
        let none = Column::new(table, key, token).unwrap();
        let refused = none.claim(&mut tx, 0, t(8)).await.unwrap_err().to_string();
        assert!(
            refused.contains("tokn") || refused.contains("thngs"),
            "{refused}"
        );
    }
}

/// MySQL counts the rows that it changed. A write of equal values must not look like a missing row, nor a
/// missing row like such a write.
#[tokio::test]
async fn zero_rows_are_explained_only_where_hits_are_counted() {
    let (url, mut changed) = fresh().await;
    let mut found = connect(&url, true).await.unwrap();
    let table = "CREATE TABLE things (id INT PRIMARY KEY, x INT, last_fencing_token BIGINT NOT NULL DEFAULT 0)
        ENGINE = InnoDB; INSERT INTO things VALUES (1, 5, 7)";
    script(&url, table).await;
    let things = Column::new("things", "id", "last_fencing_token").unwrap();
    let same = format!(
        "UPDATE things SET x = 5, last_fencing_token = 7 WHERE id = 1 AND {}",
        things.condition()
    );
    let missed = format!("{same} AND x = 6");
    for (db, counts) in [(&mut changed, false), (&mut found, true)] {
        let mut tx = begin(db).await;
        // Claiming again does not need this setting.
        things.claim(&mut tx, 1, t(7)).await.unwrap();
        things.lock(&mut tx, 1, t(7)).await.unwrap();
        tx.exec_drop(&same, (7,)).await.unwrap();
        let hit = tx.affected_rows();
        let explained = things.explain(&mut tx, 1, t(7), hit).await;
        match (counts, explained) {
            (true, Ok(_)) => {}
            (false, Err(Error::Argument(message))) => {
                assert!(message.contains("client_found_rows=true"), "{message}");
            }
            (_, other) => panic!("{other:?}"),
        }
        tx.exec_drop(&missed, (7,)).await.unwrap();
        let hit = tx.affected_rows();
        let explained = things.explain(&mut tx, 1, t(7), hit).await;
        let explained = explained.unwrap_err();
        assert_eq!(explained.rejected().is_some(), counts, "{explained}");
        tx.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn bad_input_is_reported_and_nothing_is_written() {
    let (_, mut db) = fresh().await;
    let long = "x".repeat(256);
    for (name, message) in [
        ("", "resource_id is empty; 1 ..= 255 bytes are allowed"),
        (&long, "resource_id has 256 bytes; 1 ..= 255"),
        ("é", "offset 0 that is not printable ASCII"),
    ] {
        let refused = all(&mut db, &[(name, 1)]).await.unwrap_err();
        assert!(refused.to_string().contains(message), "{refused}");
    }
    let refused = all(&mut db, &[("a", 1), ("a", 2)]).await.unwrap_err();
    assert_eq!(refused.to_string(), "a is claimed twice in one step");
    let records = Records::new(Strategy::Optimistic);
    let mut tx = begin(&mut db).await;
    let key = "x".repeat(101);
    let refused = records.write(&mut tx, &key, t(1), "").await.unwrap_err();
    let message = refused.to_string();
    assert!(message.contains("101 characters; 1 ..= 100"), "{message}");
    assert!(names(&mut tx, "", None).await.is_empty());
    tx.rollback().await.unwrap();

    let mut bare = connect(&Server::shared().url(), false).await.unwrap();
    let mut tx = begin(&mut bare).await;
    for refused in [
        claim(&mut tx, "a", t(1)).await.unwrap_err(),
        records.write(&mut tx, "a", t(1), "").await.unwrap_err(),
    ] {
        assert!(matches!(refused, Error::NotInstalled(_)), "{refused}");
    }
}
