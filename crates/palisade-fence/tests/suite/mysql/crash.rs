//! The server is killed between any two steps of a fenced write. Acknowledged writes stay; others leave no
//! trace, neither in the data nor in the fence.

use mysql_async::TxOpts;
use mysql_async::prelude::Queryable as _;
use palisade_core::Token;
use palisade_fence::Admin as _;
use palisade_fence::mysql::{Operator, claim};

use super::Server;
use super::subject::{connect, database, script, sticky};

const STEPS: usize = 6;

/// Executes the write up to a step; returns whether its commit was acknowledged.
async fn write(url: &str, token: Token, steps: usize, kill: impl FnOnce()) -> bool {
    let mut c = connect(url, false).await.unwrap();
    let mut tx = c.start_transaction(TxOpts::default()).await.unwrap();
    let mut kill = Some(kill);
    let mut dies = |step: usize| step == steps && kill.take().map(|kill| kill()).is_some();
    if dies(0) {
        return false;
    }
    claim(&mut tx, "r", token).await.unwrap();
    if dies(1) {
        return false;
    }
    tx.query_drop("SELECT number FROM things").await.unwrap();
    if dies(2) {
        return false;
    }
    tx.exec_drop("UPDATE things SET number = ?", (token.get(),))
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
    let server = Server::start(&[]);
    let url = database(&server.url()).await;
    let table = "CREATE TABLE things (number BIGINT NOT NULL) ENGINE = InnoDB; INSERT INTO things VALUES (0);";
    script(&url, &format!("{table} {}", sticky("things", "r"))).await;
    let mut acknowledged = 0;
    for token in 1..=2 * STEPS as u64 {
        let step = token as usize % STEPS;
        let sure = write(&url, Token::new(token).unwrap(), step, || server.kill()).await;
        server.start_again();
        let mut c = connect(&url, false).await.unwrap();
        let mut tx = c.start_transaction(TxOpts::default()).await.unwrap();
        let data: Option<u64> = tx.query_first("SELECT number FROM things").await.unwrap();
        let fence = Operator::new(&mut tx)
            .show("r")
            .await
            .unwrap()
            .and_then(|state| state.highest());
        let highest = fence.map_or(0, Token::get);
        assert_eq!(data, Some(highest), "killed at step {step}");
        match (sure, step) {
            (true, _) => assert_eq!(highest, token, "acknowledged and lost, at step {step}"),
            (false, 4) => assert!(highest == token || highest == acknowledged),
            (false, _) => assert_eq!(highest, acknowledged, "partly done, at step {step}"),
        }
        acknowledged = highest;
    }
    assert!(acknowledged > 0);
}
