//! The triggers: every attempt of code without a token is rejected.

use palisade_core::Token;
use palisade_fence::Reject;
use palisade_fence::postgres::{Column, KeyType, claim};
use palisade_fence::{Error, Result};
use palisade_testbed::Postgres;

use super::drivers::{Driver as _, Tokio, Tx};
use super::forms::{Job, Plain};
use super::subject::{database, script};

fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

/// Claims, and then runs its own statement in the same transaction.
struct Claims<'a>(&'a str, u64, &'a str);

impl Job for Claims<'_> {
    type Done = ();
    async fn work<T: Tx>(&self, tx: &mut T) -> Result<()> {
        claim(tx, self.0, t(self.1)).await?;
        tx.own(self.2, &[]).await.map(|_| ())
    }
}

const WRITES: [&str; 6] = [
    "INSERT INTO orders VALUES (2, 'x')",
    "UPDATE orders SET text = 'x'",
    "UPDATE orders SET text = 'x' WHERE false",
    "DELETE FROM orders",
    "TRUNCATE orders",
    "MERGE INTO orders USING (SELECT 1 AS i) s ON id = i WHEN MATCHED THEN UPDATE SET text = 'x'",
];

const ORDERS: &str = "CREATE TABLE orders (id int PRIMARY KEY, text text);
    INSERT INTO orders VALUES (1, 'one');";

#[tokio::test]
async fn every_kind_of_write_without_a_token_is_rejected() {
    let url = database(&Postgres::shared().url()).await;
    script(&url, ORDERS).await;
    let mut c = Tokio::connect(&url).await.unwrap();
    // The control arm: without the trigger, every write succeeds.
    for sql in [
        "UPDATE orders SET text = 'two'",
        "INSERT INTO orders VALUES (3, '3')",
    ] {
        Tokio::carry_out(&mut c, &Plain(&[(sql, &[])]))
            .await
            .unwrap();
    }
    script(&url, "SELECT palisade_sticky('orders', 'orders')").await;
    // The table is sticky from the start, also before the first claim.
    let early = Tokio::carry_out(&mut c, &Plain(&[(WRITES[0], &[])])).await;
    assert!(matches!(early, Err(Error::Database { state, .. }) if state == "PF002"));
    let nothing = Claims("orders", 34, "SELECT ''");
    Tokio::carry_out(&mut c, &nothing).await.unwrap();
    let version = c.query_one("SHOW server_version_num", &[]).await.unwrap();
    let has_merge = version.get::<_, String>(0).as_str() >= "150000";
    let writes = || {
        WRITES
            .iter()
            .copied()
            .filter(|sql| has_merge || !sql.starts_with("MERGE"))
    };
    for sql in writes() {
        let refused = Tokio::carry_out(&mut c, &Plain(&[(sql, &[])]))
            .await
            .unwrap_err();
        let tokenless = Reject::Tokenless { highest: t(34) };
        assert_eq!(refused.rejected(), Some(&tokenless), "{sql}");
    }
    // A claim of another resource does not count.
    let other = Claims("invoices", 50, WRITES[1]);
    let refused = Tokio::carry_out(&mut c, &other).await.unwrap_err();
    assert_eq!(
        refused.rejected(),
        Some(&Reject::Tokenless { highest: t(34) })
    );
    for sql in writes() {
        Tokio::carry_out(&mut c, &Claims("orders", 34, sql))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_token_set_by_hand_is_compared() {
    let url = database(&Postgres::shared().url()).await;
    script(&url, ORDERS).await;
    script(&url, "SELECT palisade_sticky('orders', 'orders')").await;
    let mut c = Tokio::connect(&url).await.unwrap();
    Tokio::carry_out(&mut c, &Claims("orders", 34, "SELECT ''"))
        .await
        .unwrap();
    for (token, resource, state) in [
        ("34", "", None),
        ("34", "orders", None),
        ("33", "", Some("stale")),
        ("35", "", Some("PF004")),
        ("0", "", Some("PF004")),
        ("9007199254740993", "", Some("PF004")),
        ("x", "", Some("PF004")),
        ("34", "invoices", Some("tokenless")),
    ] {
        let by_hand = format!("SELECT set_config('palisade.token', '{token}', true)");
        let named = format!("SELECT set_config('palisade.resource', '{resource}', true)");
        let job = [(by_hand.as_str(), &[][..]), (&named, &[]), (WRITES[1], &[])];
        let got = match Tokio::carry_out(&mut c, &Plain(&job)).await {
            Ok(_) => None,
            Err(Error::Rejected(reject)) => Some(reject.code().name().to_owned()),
            Err(Error::Database { state, .. }) => Some(state),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(got.as_deref(), state, "{token} {resource}");
    }
}

/// The limit that the SQL file describes.
#[tokio::test]
async fn a_replica_session_is_not_stopped() {
    let url = database(&Postgres::shared().url()).await;
    script(&url, ORDERS).await;
    script(&url, "SELECT palisade_sticky('orders', 'orders')").await;
    let mut c = Tokio::connect(&url).await.unwrap();
    let replica = "SET LOCAL session_replication_role = replica";
    Tokio::carry_out(&mut c, &Plain(&[(replica, &[]), (WRITES[1], &[])]))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_mark_never_goes_down_and_is_never_removed() {
    let url = database(&Postgres::shared().url()).await;
    let mut c = Tokio::connect(&url).await.unwrap();
    Tokio::carry_out(&mut c, &Claims("orders", 34, "SELECT ''"))
        .await
        .unwrap();
    for sql in [
        "UPDATE palisade_fence SET token = 33",
        "UPDATE palisade_fence SET token = NULL",
        "UPDATE palisade_fence SET resource = 'other'",
        "DELETE FROM palisade_fence",
        "TRUNCATE palisade_fence",
    ] {
        let refused = Tokio::carry_out(&mut c, &Plain(&[(sql, &[])])).await;
        assert!(
            matches!(refused, Err(Error::Database { ref state, .. }) if state == "PF003"),
            "{sql}: {refused:?}"
        );
    }
}

/// A user's own conditional statement, and the meaning of its zero rows.
struct Own(u64, &'static str);

impl Job for Own {
    type Done = ();
    async fn work<T: Tx>(&self, tx: &mut T) -> Result<()> {
        let rows = Column::new("rows", "id", KeyType::BigInt, "last_fencing_token")?;
        let condition = rows.condition(2).replace("$2", "$2::bigint");
        let sql = format!(
            "UPDATE rows SET last_fencing_token = $2::bigint WHERE id = $1::bigint AND {condition} RETURNING 'x'"
        );
        let hit = tx.own(&sql, &[self.1, &self.0.to_string()]).await?.len();
        let explained = rows.explain(tx, self.1, t(self.0), hit as u64).await;
        explained.map(drop)
    }
}

#[tokio::test]
async fn zero_rows_are_stale_or_missing_and_never_success() {
    let url = database(&Postgres::shared().url()).await;
    let table =
        "CREATE TABLE rows (id bigint PRIMARY KEY, last_fencing_token bigint NOT NULL DEFAULT 0);
        INSERT INTO rows VALUES (1); SELECT palisade_sticky_column('rows', 'last_fencing_token')";
    script(&url, table).await;
    let mut c = Tokio::connect(&url).await.unwrap();
    Tokio::carry_out(&mut c, &Own(34, "1")).await.unwrap();
    for (own, reject) in [
        (
            Own(33, "1"),
            Reject::Stale {
                presented: t(33),
                highest: t(34),
            },
        ),
        (Own(34, "2"), Reject::Missing),
    ] {
        let refused = Tokio::carry_out(&mut c, &own).await.unwrap_err();
        assert_eq!(refused.rejected(), Some(&reject));
    }
    for sql in [
        "DELETE FROM rows",
        "TRUNCATE rows",
        "UPDATE rows SET id = 7",
        // A row with another key would be another resource, and the old one would have no fence.
        "UPDATE rows SET id = 7, last_fencing_token = 34",
    ] {
        assert!(
            Tokio::carry_out(&mut c, &Plain(&[(sql, &[])]))
                .await
                .is_err(),
            "{sql}"
        );
    }
    // The controls: the holder's own write, and the key of a row that was never fenced.
    let own = "UPDATE rows SET last_fencing_token = 34";
    let other =
        "INSERT INTO rows VALUES (2); UPDATE rows SET id = 7, last_fencing_token = 35 WHERE id = 2";
    script(&url, own).await;
    script(&url, other).await;
}
