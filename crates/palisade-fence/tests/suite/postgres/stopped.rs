//! A holder whose process is stopped inside its transaction (rule F12): its successor waits within a bound.

use std::process::{Command, Stdio};
use std::time::Duration;

use palisade_fence::Error;
use palisade_fence::ErrorKind;
use palisade_fence::postgres::{Operator, claim};
use palisade_testbed::Postgres;
use tokio_postgres::Client;

use super::doors::{connect, t};
use super::subject::database;
use crate::paused::Holder;

/// A psql that runs these statements and then waits for more.
fn psql(url: &str, sql: &str) -> Holder {
    let mut psql = Command::new("psql");
    psql.args(["-X", "-q", url]);
    psql.stdout(Stdio::piped()).stderr(Stdio::null());
    Holder::runs(&mut psql, sql)
}

/// Waits until a connection of this database is in this state.
async fn until(client: &Client, state: &str) {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND {state}"
    );
    while client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await; // real time: another process has to get there
    }
}

const TABLE: &str = "CREATE TABLE orders (total bigint); INSERT INTO orders VALUES (0);
    SELECT palisade_sticky('orders', 'orders')";

const IDLE: &str = "state = 'idle in transaction' AND query LIKE '%last%'";

/// Where it stops, after `BEGIN` and its bound.
const STEPS: [(&str, &str); 4] = [
    ("SELECT palisade_claim('orders', 1) AS last;\n", IDLE),
    (
        "SELECT palisade_claim('orders', 1); SELECT total AS last FROM orders;\n",
        IDLE,
    ),
    (
        "SELECT palisade_claim('orders', 1); UPDATE orders SET total = 9; SELECT 'last';\n",
        IDLE,
    ),
    // The server sends more than the sockets hold.
    (
        "SELECT palisade_claim('orders', 1); UPDATE orders SET total = 9; \
         COPY (SELECT repeat('x', 1000) FROM generate_series(1, 1000000)) TO STDOUT;\n",
        "wait_event = 'ClientWrite'",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_of_a_stopped_holder_is_admitted_within_the_bound() {
    for (step, state) in STEPS {
        let url = database(&Postgres::shared().url()).await;
        let mut client = connect(&url).await;
        client.batch_execute(TABLE).await.unwrap();
        let sql = format!("BEGIN; SET LOCAL palisade.lease_left_ms = 1000; {step}");
        let holder = psql(&url, &sql);
        until(&client, state).await;
        holder.stop();
        // It fails by its own lock time-out, unless the server ends the holder before.
        let mut tx = client.transaction().await.unwrap();
        assert!(claim(&mut tx, "orders", t(2)).await.is_ok(), "{step}");
        let total: i64 = tx
            .query_one("SELECT total FROM orders", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(total, 0, "{step}: the stopped transaction was rolled back");
        tx.commit().await.unwrap();
    }
}

/// The control: without the bound the holder stays, and its successor's error names it. An operator ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_successor_is_told_who_is_in_the_way_and_an_operator_ends_it() {
    for first in [true, false] {
        let url = database(&Postgres::shared().url()).await;
        let mut client = connect(&url).await;
        client.batch_execute(TABLE).await.unwrap();
        client
            .batch_execute("SELECT palisade_claim('other', 1)")
            .await
            .unwrap();
        if !first {
            client
                .batch_execute("SELECT palisade_claim('orders', 1)")
                .await
                .unwrap();
        }
        let sql = "BEGIN; SET LOCAL palisade.lease_left_ms = 999999999; SELECT palisade_claim('orders', 1) AS last;\n";
        let holder = psql(&url, sql);
        until(&client, IDLE).await;
        holder.stop();
        // Longer than the bound of the other test.
        let mut tx = client.transaction().await.unwrap();
        tx.batch_execute("SET LOCAL lock_timeout = '3s'")
            .await
            .unwrap();
        let late = claim(&mut tx, "orders", t(2)).await.unwrap_err();
        tx.rollback().await.unwrap();
        assert_eq!(late.kind(), ErrorKind::Retry);
        let mut tx = client.transaction().await.unwrap();
        let mut operator = Operator::new(&mut tx);
        let blockers = operator.blockers("orders").await.unwrap();
        let [blocker] = &blockers[..] else {
            panic!("{blockers:?}");
        };
        let said = format!("process {} (idle in transaction for ", blocker.process);
        assert!(late.to_string().contains(&said), "{late}");
        assert!(operator.blockers("other").await.unwrap().is_empty());
        // Another process under the same number, or another resource, is not ended.
        let mut other = blocker.clone();
        other.started = "2001-01-01".to_owned();
        assert!(!operator.unblock("orders", &other).await.unwrap());
        assert!(!operator.unblock("other", blocker).await.unwrap());
        assert!(operator.unblock("orders", blocker).await.unwrap());
        tx.commit().await.unwrap();
        let mut tx = client.transaction().await.unwrap();
        claim(&mut tx, "orders", t(2)).await.unwrap();
    }
}

/// The user's own settings are tighter, and return after the transaction.
#[tokio::test]
async fn the_bounds_are_never_looser_than_the_connections_own() {
    let client = connect(&database(&Postgres::shared().url()).await).await;
    let shown = async |client: &Client| -> String {
        client
            .query_one("SHOW idle_in_transaction_session_timeout", &[])
            .await
            .unwrap()
            .get(0)
    };
    for (own, left, bound) in [
        ("0", "''", "10s"),
        ("2s", "''", "2s"),
        ("1min", "''", "10s"),
        ("0", "2500", "2500ms"),
        ("2s", "2500", "2s"),
    ] {
        let sql = format!(
            "SET idle_in_transaction_session_timeout = '{own}'; BEGIN; SET LOCAL palisade.lease_left_ms = {left};
             SELECT palisade_claim('r', 1)"
        );
        client.batch_execute(&sql).await.unwrap();
        assert_eq!(shown(&client).await, bound, "{own} {left}");
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(shown(&client).await, own, "{own} {left}");
    }
    let bad = "BEGIN; SET LOCAL palisade.lease_left_ms = '-1'; SELECT palisade_claim('r', 1)";
    let bad = Error::from(client.batch_execute(bad).await.unwrap_err());
    assert!(bad.to_string().contains("lease_left_ms"), "{bad}");
}
