//! Transactions that claim first by construction, through both drivers.

use palisade_core::Token;
use palisade_fence::postgres::transact;
use palisade_fence::rejection;
use palisade_testbed::Postgres;
use sqlx::{Executor as _, PgConnection, PgPool, Row as _};
use tokio_postgres::Client;

use super::doors::{connect, t};
use super::drivers::{Driver as _, Sqlx};
use super::subject::database;
use crate::adds::{AnyError, added, race};

const ORDERS: &str = "CREATE TABLE orders (total bigint); INSERT INTO orders VALUES (0);
    SELECT palisade_sticky('orders', 'orders')";

async fn orders() -> (String, Client) {
    let url = database(&Postgres::shared().url()).await;
    let client = connect(&url).await;
    client.batch_execute(ORDERS).await.unwrap();
    (url, client)
}

async fn total(client: &Client) -> i64 {
    let row = client.query_one("SELECT total FROM orders", &[]).await;
    row.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn transact_loses_no_add() {
    let (url, client) = orders().await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(connect(&url).await);
    }
    let added = race(clients, 100, async |client, token| {
        let done = transact(client, "orders", token, None, async |tx| {
            let row = tx.query_one("SELECT total FROM orders", &[]).await?;
            let total = row.get::<_, i64>(0) + 1;
            tx.execute("UPDATE orders SET total = $1", &[&total])
                .await?;
            Ok::<_, AnyError>(())
        });
        added(done.await)
    });
    let added = added.await;
    assert!(added > 100, "{added} of 400 adds were admitted");
    assert_eq!(total(&client).await, added);
    // An error of the work rolls back, and a rejected claim does no work.
    let mut own = connect(&url).await;
    let failed = transact(&mut own, "orders", t(500), None, async |tx| {
        tx.batch_execute("UPDATE orders SET total = 0").await?;
        Err::<(), AnyError>("no".into())
    });
    assert_eq!(failed.await.unwrap_err().to_string(), "no");
    let stale = transact(&mut own, "orders", t(1), None, async |_| {
        panic!("a stale holder works");
        #[allow(unreachable_code, reason = "the type of the error")]
        Ok::<(), AnyError>(())
    });
    assert!(rejection(&*stale.await.unwrap_err()).is_some());
    let seen = total(&client).await;
    assert_eq!(seen, added);
    // The control: the read before the transaction is older than the claim, and the first of two adds is lost.
    for token in [t(501), t(502)] {
        let done = transact(&mut own, "orders", token, None, async |tx| {
            let update = "UPDATE orders SET total = $1";
            tx.execute(update, &[&(seen + 1)]).await?;
            Ok::<_, AnyError>(())
        });
        done.await.unwrap();
    }
    assert_eq!(total(&client).await, seen + 1, "two were acknowledged");
}

async fn read(connection: &mut PgConnection) -> Result<i64, AnyError> {
    let row = connection.fetch_one("SELECT total FROM orders").await?;
    Ok(row.try_get(0)?)
}

async fn write(connection: &mut PgConnection, total: i64) -> Result<(), AnyError> {
    let update = sqlx::query("UPDATE orders SET total = $1").bind(total);
    connection.execute(update).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn transact_through_sqlx_loses_no_add() {
    let (url, client) = orders().await;
    let pool = PgPool::connect(&url).await.unwrap();
    let of_the_pool = async |pool: &mut PgPool, token: Token| {
        let done = transact(&*pool, "orders", token, None, async |tx| {
            let total = read(&mut *tx).await?;
            write(&mut *tx, total + 1).await
        });
        added(done.await)
    };
    let added = race(vec![pool.clone(); 4], 50, of_the_pool).await;
    assert!(added > 50, "{added} of 200 adds were admitted");
    assert_eq!(total(&client).await, added);
    // A connection without a pool; its bound is the rest of the lease, and is reset with the transaction.
    let mut connection = Sqlx::connect(&url).await.unwrap();
    let left = Some(std::time::Duration::from_millis(1_500));
    let bound = transact(&mut connection, "orders", t(300), left, async |tx| {
        let row = tx.fetch_one("SHOW idle_in_transaction_session_timeout");
        Ok::<String, AnyError>(row.await?.try_get(0)?)
    });
    assert_eq!(bound.await.unwrap(), "1500ms");
    let failed = transact(&mut connection, "orders", t(301), None, async |tx| {
        write(&mut *tx, 0).await?;
        Err::<(), AnyError>("no".into())
    });
    assert_eq!(failed.await.unwrap_err().to_string(), "no");
    assert_eq!(total(&client).await, added);
    // The control: a read before the transaction is older than the claim, and the first add is lost.
    let (first, second) = (
        read(&mut connection).await.unwrap(),
        read(&mut connection).await.unwrap(),
    );
    for (token, seen) in [(t(302), first), (t(303), second)] {
        let done = transact(&pool, "orders", token, None, async |tx| {
            write(&mut *tx, seen + 1).await
        });
        done.await.unwrap();
    }
    assert_eq!(
        total(&client).await,
        added + 1,
        "two adds of 1 were acknowledged"
    );
}
