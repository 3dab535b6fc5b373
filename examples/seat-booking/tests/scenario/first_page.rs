//! The Rust example of README.md. The lines between the marks are those of the README, and they run here.

use std::path::Path;

use palisade_testbed::Postgres;
use tokio_postgres::NoTls;

#[rustfmt::skip]
mod example {
// README
use palisade_client::{Client, secs};
use palisade_fence::{Error, postgres::transact};
pub(super) async fn order(client: &Client, db: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    let lease = client.lock("orders").ttl(secs(10)).wait(secs(5)).acquire().await?;
    let sql = "UPDATE orders SET total = total + 1";
    transact(db, "orders", lease.pass(), Some(lease.remaining()), async |tx| Ok::<_, Error>(tx.execute(sql, &[]).await?)).await?;
    lease.release().await?;
    Ok(())
}
// README
}

#[test]
fn the_readme_has_these_lines() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let example = include_str!("first_page.rs").split("// README\n").nth(1);
    let example = example.unwrap().replace("pub(super) async", "async");
    assert!(readme.contains(&format!("```rust,no_run\n{example}```\n")));
    assert!(example.lines().count() <= 10);
}

/// As a handler of axum does, on a runtime of several threads. It compiles, or the future is not `Send`.
#[expect(dead_code, reason = "it is compiled only")]
fn a_handler_may_await_it(
    client: &palisade_client::Client,
    db: &mut tokio_postgres::Client,
) -> impl Send {
    example::order(client, db)
}

#[tokio::test]
async fn a_fenced_write_raises_the_fence_and_the_number() {
    let server = Postgres::start(&[]);
    let (mut db, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    for (_, statements) in palisade_fence::postgres::MIGRATIONS {
        db.batch_execute(statements).await.unwrap();
    }
    db.batch_execute("CREATE TABLE orders (total int); INSERT INTO orders VALUES (41)")
        .await
        .unwrap();
    let client = palisade_client::Client::in_process().unwrap();
    example::order(&client, &mut db).await.unwrap();
    let total: i32 = db
        .query_one("SELECT total FROM orders", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(total, 42);
    let mark = db
        .query_one("SELECT token FROM palisade_fence", &[])
        .await
        .unwrap();
    assert_eq!(mark.get::<_, i64>(0), 1);
}
