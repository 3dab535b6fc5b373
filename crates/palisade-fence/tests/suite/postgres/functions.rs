//! The functions as programs in other languages call them: plain SQL.

use palisade_core::Token;
use palisade_fence::postgres::{Guard, MIGRATIONS, UNINSTALL};
use palisade_fence::{Admitted, DEFAULT_MAX_JUMP, Error, Reject};
use palisade_testbed::Postgres;
use tokio_postgres::Client;
use tokio_postgres::error::DbError;

use super::drivers::{Driver as _, Tokio};
use super::subject::{database, script};

async fn connect(url: &str) -> Client {
    Tokio::connect(url).await.unwrap()
}

/// Runs the statements in one transaction; returns the error of the first that fails, and rolls back.
async fn run(client: &Client, statements: &str) -> Option<DbError> {
    let sql = format!("BEGIN; {statements}; COMMIT");
    let failed = client.batch_execute(&sql).await.err()?;
    client.batch_execute("ROLLBACK").await.unwrap();
    Some(failed.as_db_error().unwrap().clone())
}

const ORDERS: &str = "CREATE TABLE orders (total bigint); INSERT INTO orders VALUES (0);
    SELECT palisade_sticky('orders', 'orders')";

/// Every rejection has a SQLSTATE, names the resource, and says what to do: a stale caller must give up.
#[tokio::test]
async fn every_rejection_has_a_state_and_a_hint() {
    let client = connect(&database(&Postgres::shared().url()).await).await;
    client.batch_execute(ORDERS).await.unwrap();
    let jump = format!("SELECT palisade_claim('orders', {})", DEFAULT_MAX_JUMP + 35);
    for (sql, state, detail, hint) in [
        (
            "SELECT palisade_claim('orders', 34, 'ours', 'lock')",
            None,
            "",
            "",
        ),
        (
            "SELECT palisade_claim('orders', 33, 'ours', 'lock')",
            Some("PF001"),
            "34",
            "give up",
        ),
        (
            "SELECT palisade_check('orders', 33, 'ours', 'lock')",
            Some("PF001"),
            "34",
            "give up",
        ),
        (
            "SELECT palisade_claim('orders', 34)",
            Some("PF005"),
            "ours",
            "never compared",
        ),
        (
            "SELECT palisade_claim('orders', 34, 'ours')",
            Some("PF006"),
            "lock",
            "acquire",
        ),
        (
            "UPDATE orders SET total = 1",
            Some("PF002"),
            "34",
            "claim the resource first",
        ),
        (
            "SET LOCAL palisade.token = '33'; UPDATE orders SET total = 1",
            Some("PF001"),
            "34",
            "give up",
        ),
        (
            "UPDATE palisade_fence SET token = 33",
            Some("PF003"),
            "",
            "give up",
        ),
        ("SELECT palisade_write('other', 34, 2, 7)", None, "", ""),
        (
            "SELECT palisade_write('other', 34, 1, 7)",
            Some("PF008"),
            "2",
            "drop this one",
        ),
        (
            "SELECT palisade_write('other', 34, 2, 8)",
            Some("PF009"),
            "2",
            "number of its own",
        ),
        (
            "SELECT palisade_write('other', 34, strict => true)",
            Some("PF010"),
            "",
            "may have been yours",
        ),
        (
            &jump.replace("orders", "other"),
            Some("PF007"),
            "34 70368744177664",
            "operator looks",
        ),
        (
            "SELECT palisade_claim('other', 35, max_jump => NULL)",
            None,
            "",
            "",
        ),
        (
            "SELECT palisade_record('other', 2, 'x')",
            Some("PF004"),
            "",
            "palisade_write first",
        ),
        ("SELECT palisade_claim('', 34)", Some("22023"), "", ""),
        ("SELECT palisade_claim(NULL, 34)", Some("22023"), "", ""),
        (
            "SELECT palisade_claim('other', NULL)",
            Some("22023"),
            "",
            "",
        ),
        ("SELECT palisade_claim('other', 0)", Some("22023"), "", ""),
        (
            "SELECT palisade_claim('other', 9007199254740992)",
            Some("22023"),
            "",
            "",
        ),
        (
            "SELECT palisade_claim('other', 36, 'é')",
            Some("22023"),
            "",
            "",
        ),
        (
            "SELECT palisade_write('other', 36, -1)",
            Some("22023"),
            "",
            "",
        ),
    ] {
        let failed = run(&client, sql).await;
        let got = failed.as_ref().map(|error| error.code().code().to_owned());
        assert_eq!(got.as_deref(), state, "{sql}");
        let Some(failed) = failed else { continue };
        assert_eq!(failed.detail().unwrap_or_default(), detail, "{sql}");
        let said = failed.hint().unwrap_or_default();
        assert!(said.contains(hint), "{sql}: {said}");
        if state == Some("PF001") {
            let both = "token 33 is stale: 33 < 34 at resource orders";
            assert_eq!(failed.message(), both, "{sql}");
        }
        // Only an operator re-arms. The message does not mention it, because a holder might try.
        assert!(!format!("{failed} {said}").contains("arm"), "{sql}: {said}");
        if let "PF001" | "PF002" | "PF005" | "PF006" = failed.code().code() {
            assert_eq!(failed.constraint(), Some("orders"), "{sql}");
        }
    }
}

#[tokio::test]
async fn a_transaction_that_claimed_may_write_and_a_repeat_gets_the_result() {
    let client = connect(&database(&Postgres::shared().url()).await).await;
    client.batch_execute(ORDERS).await.unwrap();
    let add = "UPDATE orders SET total = total + 1";
    let claimed = format!("SELECT palisade_claim('orders', 34); {add}");
    assert!(run(&client, &claimed).await.is_none());
    let write = "SELECT palisade_write('orders', 34, 1, -1); UPDATE orders SET total = total + 1;
        SELECT palisade_record('orders', 1, 'seat 12A', 34)";
    assert!(run(&client, write).await.is_none());
    let again = "SELECT repeated, result FROM palisade_write('orders', 34, 1, -1)";
    let row = client.query_one(again, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), (true, Some(&b"seat 12A"[..])));
    let total: i64 = client
        .query_one("SELECT total FROM orders", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(total, 2);
    // The mark ends with the transaction: the next one on the same connection has none.
    assert_eq!(run(&client, add).await.unwrap().code().code(), "PF002");
}

/// BEGIN, claim, statement and COMMIT are sent at once, so the database alone can stop the statement.
#[tokio::test]
async fn a_pipelined_statement_of_a_stale_holder_is_not_carried_out() {
    let client = connect(&database(&Postgres::shared().url()).await).await;
    // No trigger: only the claim stops the statement.
    client
        .batch_execute("CREATE TABLE totals (n bigint); INSERT INTO totals VALUES (0)")
        .await
        .unwrap();
    let add = client
        .prepare("UPDATE totals SET n = n + $1")
        .await
        .unwrap();
    let t = |number| Token::new(number).unwrap();
    let guard = Guard::CLAIM;
    let first = guard
        .execute(&client, "r", t(2), &add, &[&5_i64])
        .await
        .unwrap();
    assert_eq!(first, Admitted::new(1, Some(t(2))));
    let stale = guard
        .execute(&client, "r", t(1), &add, &[&7_i64])
        .await
        .unwrap_err();
    assert_eq!(
        stale.rejected(),
        Some(&Reject::Stale {
            presented: t(1),
            highest: t(2)
        })
    );
    let bad = guard.execute(&client, "", t(3), &add, &[&7_i64]).await;
    assert!(matches!(bad, Err(Error::Name(_))), "{bad:?}");
    let total = || client.query_one("SELECT n FROM totals", &[]);
    assert_eq!(total().await.unwrap().get::<_, i64>(0), 5);
    // The control: the same four messages without the claim.
    let plain = tokio::join!(
        client.batch_execute("BEGIN"),
        client.execute(&add, &[&7_i64]),
        client.batch_execute("COMMIT")
    );
    assert_eq!(plain.1.unwrap(), 1);
    assert_eq!(total().await.unwrap().get::<_, i64>(0), 12);
}

/// A role that owns nothing claims and writes; the functions work whatever its search_path is.
#[tokio::test]
async fn another_role_and_another_schema_use_the_same_fence() {
    let url = database(&Postgres::shared().url()).await;
    let client = connect(&url).await;
    // A role belongs to the server, which tests share; a second run of this one finds it there.
    let role = "DO $$ BEGIN CREATE ROLE palisade_app LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$";
    for sql in [
        role,
        ORDERS,
        "CREATE SCHEMA elsewhere",
        "GRANT SELECT, UPDATE ON orders TO palisade_app",
    ] {
        client.batch_execute(sql).await.unwrap();
    }
    client
        .batch_execute("SET search_path = elsewhere; SET SESSION AUTHORIZATION palisade_app")
        .await
        .unwrap();
    let write = "SELECT public.palisade_claim('orders', 34); UPDATE public.orders SET total = 1";
    assert_eq!(run(&client, write).await.unwrap().code().code(), "42501");
    let grant = "SELECT palisade_grant('palisade_app')";
    script(&url, grant).await;
    assert!(run(&client, write).await.is_none());
    // A temporary table of the same name is not taken for the fence.
    client.batch_execute("RESET SESSION AUTHORIZATION; CREATE TEMP TABLE palisade_fence (LIKE public.palisade_fence)").await.unwrap();
    let stale = "SELECT public.palisade_claim('orders', 33)";
    assert_eq!(run(&client, stale).await.unwrap().code().code(), "PF001");
}

/// The installed objects, as text.
async fn schema(client: &Client) -> Vec<String> {
    let sql = "SELECT format('%s %s', oid::regprocedure, pg_get_functiondef(oid)) FROM pg_proc WHERE proname LIKE 'palisade%'
        UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL SELECT format('%s %s', attrelid::regclass, attname) FROM pg_attribute
            WHERE attnum > 0 AND attrelid::regclass::text LIKE 'palisade%'
        ORDER BY 1";
    let rows = client.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn install(client: &Client) -> Option<DbError> {
    let all: String = MIGRATIONS.iter().map(|(_, sql)| *sql).collect();
    run(client, &all).await
}

#[tokio::test]
async fn a_second_installation_changes_nothing_and_an_older_one_is_refused() {
    let client = connect(&database(&Postgres::shared().url()).await).await;
    client.batch_execute(ORDERS).await.unwrap();
    run(&client, "SELECT palisade_claim('orders', 34)").await;
    let before = schema(&client).await;
    assert!(before.len() > 20, "{before:?}");
    assert!(install(&client).await.is_none());
    assert_eq!(schema(&client).await, before);

    // Version 1 had no functions and did not state its version.
    client
        .batch_execute(
            "DROP FUNCTION palisade_version; DROP FUNCTION palisade_judge, palisade_claim",
        )
        .await
        .unwrap();
    assert!(install(&client).await.is_none());
    assert_eq!(schema(&client).await, before);

    let newer = "CREATE OR REPLACE FUNCTION palisade_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 3'";
    client.batch_execute(newer).await.unwrap();
    let refused = install(&client).await.unwrap();
    assert_eq!(refused.code().code(), "PF011");
    assert!(refused.message().contains("has version 3"), "{refused}");
    let kept: i64 = client
        .query_one("SELECT token FROM palisade_fence", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(kept, 34);
}

#[tokio::test]
async fn after_the_removal_nothing_is_left_but_the_data() {
    let client = connect(&database(&Postgres::shared().url()).await).await;
    client.batch_execute(ORDERS).await.unwrap();
    run(&client, "SELECT palisade_claim('orders', 34)").await;
    let filled = "INSERT INTO resource_records (resource_id) VALUES ('kept');
        SELECT palisade_sticky_column('resource_records', 'last_fencing_token')";
    client.batch_execute(filled).await.unwrap();
    // Twice: removing missing objects is not an error.
    for _ in 0..2 {
        assert!(run(&client, UNINSTALL).await.is_none());
        assert_eq!(schema(&client).await, Vec::<String>::new());
        assert!(run(&client, "UPDATE orders SET total = 7").await.is_none());
        assert!(
            run(&client, "DELETE FROM resource_records WHERE false")
                .await
                .is_none()
        );
    }
    assert!(install(&client).await.is_none());
}
