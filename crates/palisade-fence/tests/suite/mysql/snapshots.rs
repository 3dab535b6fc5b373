//! A transaction's view of the data, and whether it still is a transaction.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, IsolationLevel, Transaction, TxOpts};
use palisade_fence::Error;
use palisade_fence::ErrorKind;
use palisade_fence::mysql::{Column, Records, Strategy, claim};

use super::limits::{all, begin, fresh, highest, t};
use super::subject::{connect, script};

async fn count(tx: &mut Transaction<'_>) -> u64 {
    let count = tx.query_first("SELECT COUNT(*) FROM things").await.unwrap();
    count.unwrap()
}

/// The old holder's write, under an equal token, which changes no mark.
async fn writes_again(db: &mut Conn) {
    let mut tx = begin(db).await;
    claim(&mut tx, "r", t(1)).await.unwrap();
    tx.query_drop("INSERT INTO things VALUES (1)")
        .await
        .unwrap();
    tx.commit().await.unwrap();
}

/// At REPEATABLE READ a transaction that has read before it claims does not see the old holder's last write,
/// and gets an error. At READ COMMITTED it sees the write.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_cannot_see_the_last_write_must_begin_again() {
    let (url, mut old) = fresh().await;
    script(&url, "CREATE TABLE things (id INT) ENGINE = InnoDB").await;
    let mut new = connect(&url, false).await.unwrap();
    all(&mut old, &[("r", 1)]).await.unwrap();

    let mut tx = begin(&mut new).await;
    assert_eq!(count(&mut tx).await, 0);
    writes_again(&mut old).await;
    assert_eq!(count(&mut tx).await, 0, "a snapshot");
    match claim(&mut tx, "r", t(2)).await {
        Err(fault) => {
            assert!(matches!(fault, Error::ReadBeforeClaim(_)), "{fault}");
            assert_eq!(fault.kind(), ErrorKind::Retry);
        }
        other => panic!("{other:?}"),
    }
    tx.rollback().await.unwrap();
    assert_eq!(highest(&mut old, "r").await, Some(1));

    // A resource that was never claimed before behaves the same.
    let mut tx = begin(&mut new).await;
    count(&mut tx).await;
    all(&mut old, &[("s", 1)]).await.unwrap();
    let claimed = claim(&mut tx, "s", t(2)).await;
    assert!(
        matches!(&claimed, Err(Error::ReadBeforeClaim(_))),
        "{claimed:?}"
    );
    tx.rollback().await.unwrap();

    // The control arms: no write in between; or each read sees all committed data.
    let mut tx = begin(&mut new).await;
    assert_eq!(count(&mut tx).await, 1);
    claim(&mut tx, "r", t(1)).await.unwrap();
    claim(&mut tx, "r", t(1)).await.unwrap();
    claim(&mut tx, "fresh", t(1)).await.unwrap();
    tx.commit().await.unwrap();
    let mut options = TxOpts::default();
    options.with_isolation_level(IsolationLevel::ReadCommitted);
    let mut tx = new.start_transaction(options).await.unwrap();
    assert_eq!(count(&mut tx).await, 1);
    writes_again(&mut old).await;
    claim(&mut tx, "r", t(2)).await.unwrap();
    assert_eq!(count(&mut tx).await, 2);
}

/// The claim comes first and waits for the old holder; then its plain reads see the old holder's write.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_came_first_and_waited_sees_the_last_write_of_the_old_holder() {
    let (url, mut old) = fresh().await;
    script(&url, "CREATE TABLE things (id INT) ENGINE = InnoDB").await;
    let mut new = connect(&url, false).await.unwrap();
    for round in 1..=20 {
        let mut first = begin(&mut old).await;
        claim(&mut first, "r", t(2 * round)).await.unwrap();
        first
            .query_drop("INSERT INTO things VALUES (1)")
            .await
            .unwrap();
        let mut second = begin(&mut new).await;
        let (claimed, committed) =
            tokio::join!(claim(&mut second, "r", t(2 * round + 1)), first.commit());
        committed.unwrap();
        claimed.unwrap();
        assert_eq!(count(&mut second).await, round);
        second.commit().await.unwrap();
    }
}

#[tokio::test]
async fn an_implicit_commit_is_detected() {
    let (_, mut db) = fresh().await;
    let mut tx = begin(&mut db).await;
    claim(&mut tx, "r", t(1)).await.unwrap();
    tx.query_drop("CREATE TABLE surprise (id INT, token BIGINT)")
        .await
        .unwrap();
    let records = Records::new(Strategy::Optimistic);
    let column = Column::new("surprise", "id", "token").unwrap();
    for refused in [
        claim(&mut tx, "r", t(2)).await.unwrap_err(),
        records.claim(&mut tx, "r", t(2)).await.unwrap_err(),
        column.claim(&mut tx, 1, t(2)).await.unwrap_err(),
    ] {
        assert!(matches!(refused, Error::NoTransaction), "{refused}");
    }
    tx.rollback().await.unwrap();
    assert_eq!(highest(&mut db, "r").await, Some(1));
}
