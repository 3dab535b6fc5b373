//! Every function of the crate that takes an async closure, and the steps to undo, inside a handler of axum: the router
//! compiles only if the handlers' futures are `Send`. The control is the example of [`Family`](../src/sql/transact.rs), which
//! does not compile.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::{Router, routing::post};
use palisade_core::Token;
use palisade_fence::{Account, Error, Fate, mysql, postgres, rejection};
use palisade_testbed::Postgres;
use sqlx::{AssertSqlSafe, Executor as _, PgPool};
use tokio::sync::Mutex;
use tower_service::Service as _;

use crate::postgres::subject::database;

const ADD: &str = "UPDATE orders SET total = total + 1";

struct Shop {
    tokio: Mutex<tokio_postgres::Client>,
    sqlx: PgPool,
}

type Answer = Result<(), StatusCode>;

/// 409 is a stale holder's.
fn answer<T>(done: Result<T, Error>) -> Answer {
    let Err(error) = done else {
        return Ok(());
    };
    Err(match rejection(&error) {
        Some(_) => StatusCode::CONFLICT,
        None => StatusCode::INTERNAL_SERVER_ERROR,
    })
}

async fn through_tokio(State(shop): State<Arc<Shop>>, Path(token): Path<u64>) -> Answer {
    let token = Token::new(token).unwrap();
    let mut db = shop.tokio.lock().await;
    // A reference into the handler's own variables.
    let sql = String::from(ADD);
    let done = postgres::transact(&mut *db, "orders", token, None, async |tx| {
        Ok::<_, Error>(tx.execute(&sql, &[]).await?)
    });
    answer(done.await)
}

async fn through_a_pool(State(shop): State<Arc<Shop>>, Path(token): Path<u64>) -> Answer {
    let token = Token::new(token).unwrap();
    let done = postgres::transact(&shop.sqlx, "orders", token, None, async |tx| {
        Ok::<_, Error>(tx.execute(ADD).await?)
    });
    answer(done.await)
}

async fn through_a_connection(State(shop): State<Arc<Shop>>, Path(token): Path<u64>) -> Answer {
    let token = Token::new(token).unwrap();
    let mut db = shop.sqlx.acquire().await.unwrap();
    let done = postgres::transact(&mut *db, "orders", token, None, async |tx| {
        Ok::<_, Error>(tx.execute(ADD).await?)
    });
    answer(done.await)
}

/// Compiled only: it has no server.
async fn through_mysql(State(pool): State<mysql_async::Pool>, Path(token): Path<u64>) -> Answer {
    use mysql_async::prelude::Queryable as _;
    let token = Token::new(token).unwrap();
    let mut db = pool.get_conn().await.unwrap();
    let done = mysql::transact(&mut db, "orders", token, None, async |tx| {
        Ok::<_, Error>(tx.query_drop(ADD).await?)
    });
    answer(done.await)
}

/// Compiled only.
async fn undoing(State(shop): State<Arc<Shop>>) -> Answer {
    let mut account = Account::new();
    let _ = account.note(String::from("charge"), Fate::Admitted);
    for (step, _) in account.to_undo() {
        let undo = AssertSqlSafe(format!("{ADD} -- {step}"));
        shop.sqlx.execute(undo).await.unwrap();
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_claims_and_writes_through_every_driver() {
    let url = database(&Postgres::shared().url()).await;
    let sqlx = PgPool::connect(&url).await.unwrap();
    sqlx.execute("CREATE TABLE orders (total bigint); INSERT INTO orders VALUES (0); SELECT palisade_sticky('orders', 'orders')")
        .await
        .unwrap();
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let shop = Arc::new(Shop {
        tokio: Mutex::new(client),
        sqlx,
    });
    let router = Router::new()
        .route("/tokio/{token}", post(through_tokio))
        .route("/pool/{token}", post(through_a_pool))
        .route("/connection/{token}", post(through_a_connection))
        .route("/undo", post(undoing))
        .with_state(Arc::clone(&shop));
    let _: Router<mysql_async::Pool> = Router::new().route("/mysql/{token}", post(through_mysql));
    for (path, expected) in [
        ("/tokio/1", StatusCode::OK),
        ("/pool/2", StatusCode::OK),
        ("/connection/3", StatusCode::OK),
        ("/tokio/2", StatusCode::CONFLICT),
        ("/pool/2", StatusCode::CONFLICT),
        ("/connection/2", StatusCode::CONFLICT),
    ] {
        let request = Request::post(path).body(Body::empty()).unwrap();
        let answer = tokio::spawn(router.clone().call(request)).await.unwrap();
        assert_eq!(answer.unwrap().status(), expected, "{path}");
    }
    let total: i64 = sqlx::query_scalar("SELECT total FROM orders")
        .fetch_one(&shop.sqlx)
        .await
        .unwrap();
    assert_eq!(total, 3);
}
