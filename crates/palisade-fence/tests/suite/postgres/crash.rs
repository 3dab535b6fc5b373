//! The server is killed between any two steps of a fenced write. Acknowledged writes stay; others leave no
//! trace, neither in the data nor in the fence.

use palisade_core::Token;
use palisade_fence::Admin as _;
use palisade_fence::postgres::{Operator, claim};
use palisade_testbed::Postgres;

use super::drivers::{Driver as _, Tokio};
use super::subject::{database, script};

const STEPS: usize = 6;

/// Executes the write up to a step; returns whether its commit was acknowledged.
async fn write(url: &str, token: Token, steps: usize, kill: impl FnOnce()) -> bool {
    let mut c = Tokio::connect(url).await.unwrap();
    let mut tx = c.transaction().await.unwrap();
    let mut kill = Some(kill);
    let mut dies = |step: usize| step == steps && kill.take().map(|kill| kill()).is_some();
    if dies(0) {
        return false;
    }
    claim(&mut tx, "r", token).await.unwrap();
    if dies(1) {
        return false;
    }
    tx.query_one("SELECT number FROM things", &[])
        .await
        .unwrap();
    if dies(2) {
        return false;
    }
    let number = i64::try_from(token.get()).unwrap();
    tx.execute("UPDATE things SET number = $1", &[&number])
        .await
        .unwrap();
    if dies(3) {
        return false;
    }
    if steps == 4 {
        // The commit is in flight, and its outcome is unknown.
        let (committed, _) = tokio::join!(tx.commit(), async { dies(4) });
        return committed.is_ok();
    }
    tx.commit().await.unwrap();
    dies(5);
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn fence_and_data_are_consistent_after_every_kill() {
    let server = Postgres::start(&[]);
    let url = database(&server.url()).await;
    let table = "CREATE TABLE things (number bigint NOT NULL); INSERT INTO things VALUES (0);
        SELECT palisade_sticky('things', 'r')";
    script(&url, table).await;
    let mut acknowledged = 0;
    for token in 1..=2 * STEPS as u64 {
        let step = token as usize % STEPS;
        let sure = write(&url, Token::new(token).unwrap(), step, || server.kill()).await;
        server.start_again();
        let mut c = Tokio::connect(&url).await.unwrap();
        let mut tx = c.transaction().await.unwrap();
        let data: i64 = tx
            .query_one("SELECT number FROM things", &[])
            .await
            .unwrap()
            .get(0);
        let fence = Operator::new(&mut tx)
            .show("r")
            .await
            .unwrap()
            .and_then(|state| state.highest());
        let highest = fence.map_or(0, Token::get);
        assert_eq!(
            u64::try_from(data).unwrap(),
            highest,
            "killed at step {step}"
        );
        match (sure, step) {
            (true, _) => assert_eq!(highest, token, "acknowledged and lost, at step {step}"),
            (false, 4) => assert!(highest == token || highest == acknowledged),
            (false, _) => assert_eq!(highest, acknowledged, "partly done, at step {step}"),
        }
        acknowledged = highest;
    }
    assert!(acknowledged > 0);
}
