//! Several resources at once, isolation levels, recorded results, re-arming, and input that is refused.

use palisade_core::{AuthorityId, Token};
use palisade_fence::postgres::{
    Guard, Numbered, Operator, Records, Session, Strategy, claim, claim_all,
};
use palisade_fence::{
    Admin as _, Admitted, Error, ErrorKind, Pass, Rearm, Reject, Result, Sequence,
};
use palisade_testbed::Postgres;
use sqlx::{Connection as _, PgConnection};

use super::drivers::{Driver as _, Sqlx, Tokio, Tx};
use super::forms::Job;
use super::subject::{database, script};

fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

struct All<'a>(Vec<(&'a str, u64)>);

impl Job for All<'_> {
    type Done = ();
    async fn work<T: Tx>(&self, tx: &mut T) -> Result<()> {
        let claims: Vec<_> = self
            .0
            .iter()
            .map(|(name, n)| (*name, Pass::new(t(*n))))
            .collect();
        claim_all(tx, &claims).await.map(drop)
    }
}

async fn highest<S: Session>(tx: &mut S, resource: &str) -> Option<u64> {
    let state = Operator::new(tx).show(resource).await.unwrap()?;
    state.highest().map(Token::get)
}

#[tokio::test]
async fn several_are_claimed_together_or_not_at_all() {
    let url = database(&Postgres::shared().url()).await;
    let mut c = Tokio::connect(&url).await.unwrap();
    Tokio::carry_out(&mut c, &All(vec![("b", 5)]))
        .await
        .unwrap();
    let refused = Tokio::carry_out(&mut c, &All(vec![("c", 4), ("a", 4), ("b", 4)])).await;
    assert_eq!(
        refused.unwrap_err().rejected(),
        Some(&Reject::Stale {
            presented: t(4),
            highest: t(5)
        })
    );
    let mut tx = c.transaction().await.unwrap();
    assert_eq!(highest(&mut tx, "a").await, None);
    tx.rollback().await.unwrap();
    Tokio::carry_out(&mut c, &All(vec![("c", 6), ("a", 6), ("b", 6)]))
        .await
        .unwrap();
    let mut tx = c.transaction().await.unwrap();
    let listed = Operator::new(&mut tx)
        .list("", Some("a"), 10)
        .await
        .unwrap();
    let names: Vec<_> = listed.iter().map(|one| one.resource.as_str()).collect();
    assert_eq!(names, ["b", "c"]);
    assert!(listed.iter().all(|one| one.state.highest() == Some(t(6))));
}

/// Claims are made in name order: crossed lists of resources, also of missing ones, never deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn crossed_claims_do_not_deadlock() {
    let url = database(&Postgres::shared().url()).await;
    let mut racers = tokio::task::JoinSet::new();
    for racer in 0..4_u64 {
        let url = url.clone();
        racers.spawn(async move {
            let mut c = Sqlx::connect(&url).await.unwrap();
            for round in 0..50_u64 {
                let (x, y, z) = (
                    format!("x{round}"),
                    format!("y{round}"),
                    "shared".to_owned(),
                );
                let mut claims = vec![(x.as_str(), 1), (y.as_str(), 1), (z.as_str(), 1)];
                if racer % 2 == 0 {
                    claims.reverse();
                }
                Sqlx::carry_out(&mut c, &All(claims)).await.unwrap();
            }
        });
    }
    while let Some(ended) = racers.join_next().await {
        ended.unwrap();
    }
}

/// The old holder writes under an equal token, which changes no mark, and commits while a claim at REPEATABLE
/// READ waits. That claim cannot see the write, so the database must abort it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_cannot_see_the_last_write_must_begin_again() {
    let url = database(&Postgres::shared().url()).await;
    script(&url, "CREATE TABLE things (id int); SELECT 1").await;
    let mut old = Tokio::connect(&url).await.unwrap();
    let mut new = Tokio::connect(&url).await.unwrap();
    Tokio::carry_out(&mut old, &All(vec![("r", 1)]))
        .await
        .unwrap();

    let mut first = old.transaction().await.unwrap();
    claim(&mut first, "r", t(1)).await.unwrap();
    first
        .execute("INSERT INTO things VALUES (1)", &[])
        .await
        .unwrap();
    let mut second = new
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .unwrap();
    // Its snapshot is taken before the old holder commits.
    second
        .query("SELECT count(*) FROM things", &[])
        .await
        .unwrap();
    let (claimed, committed) = tokio::join!(claim(&mut second, "r", t(2)), first.commit());
    committed.unwrap();
    match claimed {
        Err(fault) => assert_eq!(fault.kind(), ErrorKind::Retry, "{fault}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_repeat_gets_the_recorded_result() {
    let url = database(&Postgres::shared().url()).await;
    let mut c = Tokio::connect(&url).await.unwrap();
    let number = Sequence::new(7).unwrap();
    let write = Numbered {
        sequence: number,
        digest: u64::MAX,
    };
    let mut tx = c.transaction().await.unwrap();
    let first = Guard::CLAIM.write(&mut tx, "r", t(3), write).await.unwrap();
    assert_eq!(first, Admitted::new(None, Some(t(3))));
    let guard = Guard::CLAIM;
    guard
        .record(&mut tx, "r", t(3), number, b"receipt 1")
        .await
        .unwrap();
    let long = vec![0; Guard::MAX_RESULT_BYTES + 1];
    let refused = guard
        .record(&mut tx, "r", t(3), number, &long)
        .await
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the result has 65537 bytes; 0 ..= 65536 are allowed"
    );
    tx.commit().await.unwrap();
    let mut tx = c.transaction().await.unwrap();
    let result = Some(b"receipt 1".to_vec());
    let again = guard.write(&mut tx, "r", t(3), write).await.unwrap();
    assert!(again.repeat && again.value == result, "{again:?}");
}

#[tokio::test]
async fn a_rearmed_fence_refuses_everything_below_its_floor() {
    let url = database(&Postgres::shared().url()).await;
    let mut c = Tokio::connect(&url).await.unwrap();
    let ours = AuthorityId::new("ours").unwrap();
    Tokio::carry_out(&mut c, &All(vec![("poisoned", 1 << 40)]))
        .await
        .unwrap();
    for (resource, stands) in [("lost", None), ("poisoned", Some(t(1 << 40)))] {
        let mut tx = c.transaction().await.unwrap();
        let with = Rearm {
            floor: t(100),
            authority: Some(&ours),
            lower_from: stands,
        };
        Operator::new(&mut tx).rearm(resource, &with).await.unwrap();
        tx.commit().await.unwrap();
        for (token, admitted) in [(99, false), (100, true), (101, true)] {
            let mut tx = c.transaction().await.unwrap();
            let claimed = claim(&mut tx, resource, Pass::new(t(token)).by(&ours)).await;
            let claimed = claimed;
            assert_eq!(claimed.is_ok(), admitted, "{resource} {token}: {claimed:?}");
        }
    }
}

fn floor(floor: u64, lower_from: Option<Token>) -> Rearm<'static> {
    Rearm {
        floor: t(floor),
        authority: None,
        lower_from,
    }
}

#[tokio::test]
async fn rearming_does_not_let_a_refused_holder_in_again() {
    let url = database(&Postgres::shared().url()).await;
    let mut c = Tokio::connect(&url).await.unwrap();
    Tokio::carry_out(&mut c, &All(vec![("orders", 100)]))
        .await
        .unwrap();
    for lower_from in [None, Some(t(99)), Some(t(101))] {
        let mut tx = c.transaction().await.unwrap();
        let refused = Operator::new(&mut tx)
            .rearm("orders", &floor(50, lower_from))
            .await;
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("stands at 100"), "{message}");
        tx.commit().await.unwrap();
    }
    let mut tx = c.transaction().await.unwrap();
    let zombie = claim(&mut tx, "orders", t(60)).await.unwrap_err();
    assert!(matches!(
        zombie.rejected(),
        Some(Reject::Stale { presented, highest }) if (*presented, *highest) == (t(60), t(100))
    ));
    tx.rollback().await.unwrap();
    let mut tx = c.transaction().await.unwrap();
    let mut operator = Operator::new(&mut tx);
    operator.rearm("orders", &floor(100, None)).await.unwrap();
    let fence = operator.show("orders").await.unwrap().unwrap();
    assert_eq!(fence.highest(), Some(t(100)));
}

#[tokio::test]
async fn bad_input_is_reported_and_nothing_is_written() {
    let server = Postgres::shared().url();
    let url = database(&server).await;
    let mut c = Tokio::connect(&url).await.unwrap();
    let mut tx = c.transaction().await.unwrap();
    let long = "x".repeat(256);
    for (name, message) in [
        ("", "resource_id is empty; 1 ..= 255 bytes are allowed"),
        (&long, "resource_id has 256 bytes; 1 ..= 255"),
        ("é", "offset 0 that is not printable ASCII"),
    ] {
        let refused = claim(&mut tx, name, t(1)).await.unwrap_err();
        assert!(refused.to_string().contains(message), "{refused}");
    }
    let twice = [("a", Pass::new(t(1))), ("a", Pass::new(t(2)))];
    let refused = claim_all(&mut tx, &twice).await.unwrap_err();
    assert_eq!(refused.to_string(), "a is claimed twice in one step");
    let records = Records::new(Strategy::Optimistic);
    let refused = records
        .write(&mut tx, &"x".repeat(101), t(1), "")
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("101 characters; 1 ..= 100"),
        "{refused}"
    );
    assert!(
        Operator::new(&mut tx)
            .list("", None, 10)
            .await
            .unwrap()
            .is_empty()
    );

    let mut outside = PgConnection::connect(&url).await.unwrap();
    let refused = claim(&mut outside, "a", t(1)).await.unwrap_err();
    assert!(matches!(refused, Error::NoTransaction), "{refused}");

    let mut bare = Tokio::connect(&server).await.unwrap();
    let mut tx = bare.transaction().await.unwrap();
    let refused = claim(&mut tx, "a", t(1)).await.unwrap_err();
    assert!(matches!(refused, Error::NotInstalled(_)), "{refused}");
}
