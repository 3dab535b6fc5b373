//! The triggers: every attempt of code without a token is rejected.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, TxOpts};
use palisade_core::Token;
use palisade_fence::Reject;
use palisade_fence::mysql::{MIGRATIONS, claim, show_token};
use palisade_fence::{Error, Result};

use super::Server;
use super::subject::{connect, database, script, sticky, sticky_column};

fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

const WRITES: [&str; 6] = [
    "INSERT INTO orders (id) VALUES (2)",
    "INSERT INTO orders (id) VALUES (1) ON DUPLICATE KEY UPDATE text = 'x'",
    "REPLACE INTO orders (id) VALUES (1)",
    "UPDATE orders SET text = 'x'",
    "UPDATE IGNORE orders SET text = 'y'",
    "DELETE FROM orders",
];

const ORDERS: &str = "CREATE TABLE orders (id INT PRIMARY KEY, text VARCHAR(9),
    last_fencing_token BIGINT NOT NULL DEFAULT 0) ENGINE = InnoDB;
    INSERT INTO orders (id, text) VALUES (1, 'one');";

async fn orders() -> (String, Conn) {
    let url = database(&Server::shared().url()).await;
    script(&url, ORDERS).await;
    let db = connect(&url, false).await.unwrap();
    (url, db)
}

/// Runs a statement in a transaction that is rolled back.
async fn tries(db: &mut Conn, claimed: Option<(&str, u64)>, sql: &str) -> Result<()> {
    let mut tx = db.start_transaction(TxOpts::default()).await?;
    if let Some((resource, token)) = claimed {
        claim(&mut tx, resource, t(token)).await?;
    }
    let done = tx.query_drop(sql).await;
    tx.rollback().await?;
    Ok(done?)
}

async fn claims(db: &mut Conn, resource: &str, token: u64) {
    let mut tx = db.start_transaction(TxOpts::default()).await.unwrap();
    claim(&mut tx, resource, t(token)).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn every_kind_of_write_without_a_token_is_rejected() {
    let (url, mut db) = orders().await;
    // The control arm: without the triggers, every write succeeds.
    for sql in WRITES {
        tries(&mut db, None, sql).await.unwrap();
    }
    script(&url, &sticky("orders", "orders")).await;
    // The table is sticky from the start, also before the first claim.
    assert!(tries(&mut db, None, WRITES[0]).await.is_err());
    claims(&mut db, "orders", 34).await;
    let mut stranger = connect(&url, false).await.unwrap();
    let mut other = connect(&url, false).await.unwrap();
    let tokenless = Reject::Tokenless { highest: t(34) };
    for sql in WRITES {
        let refused = tries(&mut stranger, None, sql).await.unwrap_err();
        assert_eq!(refused.rejected(), Some(&tokenless), "{sql}: {refused}");
        // A claim of another resource does not count.
        let claimed = Some(("my orders", 50));
        let refused = tries(&mut other, claimed, sql).await.unwrap_err();
        assert_eq!(refused.rejected(), Some(&tokenless), "{sql}: {refused}");
        tries(&mut db, Some(("orders", 34)), sql).await.unwrap();
    }
    // A claim that was rolled back, or that a newer holder has overtaken, does not count either.
    tries(&mut other, Some(("orders", 35)), "DO 0")
        .await
        .unwrap();
    assert!(tries(&mut other, None, WRITES[3]).await.is_err());
    claims(&mut other, "orders", 36).await;
    let refused = tries(&mut db, None, WRITES[3]).await.unwrap_err();
    assert_eq!(
        refused.rejected(),
        Some(&Reject::Stale {
            presented: t(34),
            highest: t(36)
        })
    );
    // A rejected claim, or a reset of the connection, leaves no token to show.
    tries(&mut db, Some(("orders", 30)), "DO 0")
        .await
        .unwrap_err();
    let refused = tries(&mut db, None, WRITES[3]).await.unwrap_err();
    let tokenless = Reject::Tokenless { highest: t(36) };
    assert_eq!(refused.rejected(), Some(&tokenless));
    other.reset().await.unwrap();
    assert!(tries(&mut other, None, WRITES[3]).await.is_err());
    // A token that is set by hand. The new connection first sees a number there: MySQL keeps the type for later texts.
    let mut other = connect(&url, false).await.unwrap();
    for (set, admitted) in [
        ("SET @palisade_token = 36", true),
        ("SET @palisade_token = 35", false),
        ("SET @palisade_token = 37", false),
        ("SET @palisade_token = '36; --'", false),
        (
            "SET @palisade_token = 36, @palisade_resource = 'ORDERS'",
            false,
        ),
        (
            "SET @palisade_token = 36, @palisade_resource = 'orders'",
            true,
        ),
    ] {
        other.query_drop(set).await.unwrap();
        let tried = tries(&mut other, None, WRITES[3]).await;
        assert_eq!(tried.is_ok(), admitted, "{set}: {tried:?}");
    }
}

#[tokio::test]
async fn a_fenced_row_cannot_be_written_without_its_column() {
    let (url, mut db) = orders().await;
    script(&url, &sticky_column("orders", "id")).await;
    // The row is not fenced yet.
    db.query_drop("UPDATE orders SET text = 'free'")
        .await
        .unwrap();
    db.query_drop("UPDATE orders SET last_fencing_token = 5")
        .await
        .unwrap();
    let mut tx = db.start_transaction(TxOpts::default()).await.unwrap();
    let (x, stale) = (
        "UPDATE orders SET text = 'x'",
        Reject::Stale {
            presented: t(4),
            highest: t(5),
        },
    );
    let tokenless = Reject::Tokenless { highest: t(5) };
    for sql in [
        x,
        "DELETE FROM orders",
        "REPLACE INTO orders (id) VALUES (1)",
    ] {
        let refused = Error::from(tx.query_drop(sql).await.unwrap_err());
        assert_eq!(refused.rejected(), Some(&tokenless), "{sql}: {refused}");
    }
    show_token(&mut tx, t(4)).await.unwrap();
    for sql in [x, "UPDATE orders SET text = 'x', last_fencing_token = 4"] {
        let refused = Error::from(tx.query_drop(sql).await.unwrap_err());
        assert_eq!(refused.rejected(), Some(&stale), "{sql}: {refused}");
    }
    // It announces a write with token 6, but does not write the token column.
    show_token(&mut tx, t(6)).await.unwrap();
    assert!(tx.query_drop(x).await.is_err());
    let announced = "UPDATE orders SET text = 'x', last_fencing_token = 6";
    tx.query_drop(announced).await.unwrap();
    // A row with another key would be another resource, and the old one would have no fence.
    let moved = "UPDATE orders SET id = 7, last_fencing_token = 6";
    let refused = Error::from(tx.query_drop(moved).await.unwrap_err());
    let tokenless = Reject::Tokenless { highest: t(6) };
    assert_eq!(refused.rejected(), Some(&tokenless), "{refused}");
}

/// As the SQL file's header says: run it in the shell, with another delimiter.
#[tokio::test]
async fn the_files_run_in_the_shell() {
    let server = Server::shared();
    let url = database(&server.url()).await;
    let name = "in_the_shell";
    script(&url, &format!("CREATE DATABASE {name}")).await;
    for (file, sql) in MIGRATIONS {
        let mut shell = std::process::Command::new("/usr/bin/mariadb");
        let port = format!("--port={}", server.port());
        shell.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", &port]);
        shell.args(["--user=palisade", "--delimiter=//", name, "--execute", sql]);
        let said = shell
            .output()
            .expect("install the Debian package mariadb-client");
        assert!(said.status.success(), "{file}: {said:?}");
    }
}
