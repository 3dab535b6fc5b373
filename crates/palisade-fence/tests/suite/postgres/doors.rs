//! Doors beside the fence: partitions, roles, reads before the claim.

use palisade_core::Token;
use palisade_fence::Error;
use palisade_fence::ErrorKind;
use palisade_fence::postgres::Operator;
use palisade_testbed::Postgres;
use tokio_postgres::Client;

use super::drivers::{Driver as _, Tokio};
use super::subject::database;

pub(super) fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

pub(super) async fn connect(url: &str) -> Client {
    Tokio::connect(url).await.unwrap()
}

/// Runs the statements in one transaction; returns the SQLSTATE of the first that fails, after a rollback.
pub(super) async fn run(client: &Client, sql: &str) -> Option<String> {
    let sql = format!("BEGIN; {sql}; COMMIT");
    let failed = client.batch_execute(&sql).await.err()?;
    client.batch_execute("ROLLBACK").await.unwrap();
    Some(failed.code().unwrap().code().to_owned())
}

async fn doors(client: &mut Client) -> Vec<String> {
    let mut tx = client.transaction().await.unwrap();
    let doors = Operator::new(&mut tx).doors().await.unwrap();
    let texts = doors
        .into_iter()
        .map(|one| format!("{}: {}", one.table.unwrap_or_default(), one.door));
    texts.collect()
}

const EVENTS: &str = "CREATE TABLE ev (id int, v int) PARTITION BY RANGE (id);
    CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (0) TO (100);
    CREATE TABLE ev_2 PARTITION OF ev FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id);
    CREATE TABLE ev_2_1 PARTITION OF ev_2 FOR VALUES FROM (100) TO (150);
    CREATE TABLE old (id int); CREATE TABLE old_1 () INHERITS (old);
    INSERT INTO ev VALUES (1, 1), (101, 1); INSERT INTO old_1 VALUES (1)";

const LATER: &str = "CREATE TABLE ev_3 PARTITION OF ev FOR VALUES FROM (200) TO (300);
    CREATE TABLE ev_4 (id int, v int); INSERT INTO ev_4 VALUES (301, 1);
    ALTER TABLE ev ATTACH PARTITION ev_4 FOR VALUES FROM (300) TO (400)";

const AROUND: [&str; 12] = [
    "UPDATE ev_1 SET v = 3",
    "INSERT INTO ev_1 VALUES (2, 2)",
    "DELETE FROM ev_1",
    "TRUNCATE ev_1",
    "UPDATE ev_2_1 SET v = 3",
    "TRUNCATE ev_2",
    "INSERT INTO ev_2 VALUES (102, 2)",
    "INSERT INTO ev_3 VALUES (202, 2)",
    "UPDATE ev_4 SET v = 3",
    "DELETE FROM ev_4",
    "UPDATE old_1 SET id = 3",
    "TRUNCATE old_1",
];

/// The control is at the end: without the fence, each statement passes.
#[tokio::test]
async fn partitions_and_child_tables_are_fenced_by_their_own_names() {
    let mut client = connect(&database(&Postgres::shared().url()).await).await;
    client.batch_execute(EVENTS).await.unwrap();
    let fence = "SELECT palisade_sticky('ev', 'ev'), palisade_sticky('old', 'ev')";
    client.batch_execute(fence).await.unwrap();
    client.batch_execute(fence).await.unwrap();
    client.batch_execute(LATER).await.unwrap();
    for sql in AROUND {
        assert_eq!(run(&client, sql).await.as_deref(), Some("PF002"), "{sql}");
        let stale = format!("SET LOCAL palisade.token = '7'; {sql}");
        assert_eq!(
            run(&client, &stale).await.as_deref(),
            Some("PF004"),
            "{sql}"
        );
    }
    // The doors are reported, and closed after another installation.
    let open = doors(&mut client).await;
    let expected = ["ev_3: ", "ev_4: "];
    assert_eq!(open.len(), 2, "{open:?}");
    for (said, table) in open.iter().zip(expected) {
        assert!(
            said.starts_with(table) && said.contains("TRUNCATE"),
            "{said}"
        );
    }
    assert_eq!(run(&client, "TRUNCATE ev_3").await, None);
    client.batch_execute(fence).await.unwrap();
    assert_eq!(
        run(&client, "TRUNCATE ev_3").await.as_deref(),
        Some("PF002")
    );
    assert_eq!(doors(&mut client).await, Vec::<String>::new());
    // A holder writes through the table and by the names of its partitions.
    for sql in AROUND {
        let claimed = format!("SELECT palisade_claim('ev', 5); {sql}");
        assert_eq!(run(&client, &claimed).await, None, "{sql}");
    }
    let open = "SELECT palisade_unstick('ev'), palisade_unstick('old')";
    client.batch_execute(open).await.unwrap();
    for sql in AROUND {
        assert_eq!(run(&client, sql).await, None, "{sql}");
    }
}

const ROLE: &str = "DO $$ BEGIN CREATE ROLE palisade_holder LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$";

const ORDERS: &str =
    "CREATE TABLE orders (id int PRIMARY KEY, total bigint); INSERT INTO orders VALUES (1, 0);
    SELECT palisade_sticky('orders', 'orders')";

/// The control is the older grant: with it, the same statements lower the fence.
#[tokio::test]
async fn a_role_may_claim_and_write_and_cannot_lower_a_fence() {
    let url = database(&Postgres::shared().url()).await;
    let mut admin = connect(&url).await;
    for sql in [
        ROLE,
        ORDERS,
        "GRANT SELECT, UPDATE ON orders TO palisade_holder",
        "GRANT CREATE ON SCHEMA public TO palisade_holder",
        "SELECT palisade_grant('palisade_holder')",
    ] {
        admin.batch_execute(sql).await.unwrap();
    }
    let holder = connect(&url).await;
    let become_holder = "SET SESSION AUTHORIZATION palisade_holder";
    holder.batch_execute(become_holder).await.unwrap();
    let write = "SELECT palisade_claim('orders', 35); UPDATE orders SET total = 1;
        SELECT palisade_write('orders', 35, 1, 7); SELECT palisade_record('orders', 1, 'x')";
    assert_eq!(run(&holder, write).await, None);
    for sql in [
        "SET LOCAL palisade.rearm = 'on'; UPDATE palisade_fence SET token = 1",
        "DELETE FROM palisade_fence",
        "INSERT INTO palisade_fence (resource) VALUES ('x')",
        "SELECT palisade_judge('orders', 1, NULL, NULL, false, NULL, NULL, false, NULL)",
        "SELECT palisade_grant('palisade_holder')",
        "SELECT palisade_unblock('orders', 1, now())",
        "SELECT palisade_lock('orders')",
        "SELECT palisade_unstick('orders')",
    ] {
        assert_eq!(run(&holder, sql).await.as_deref(), Some("42501"), "{sql}");
    }
    // The role's own operators and functions, which would match better, and its own table: none of them is called.
    let traps =
        "CREATE FUNCTION public.jsonb_build_object(text, text) RETURNS jsonb LANGUAGE sql AS
            $$SELECT to_jsonb(set_config('palisade.trap', current_user::text, false))$$;
        CREATE FUNCTION public.trap(varchar, text) RETURNS boolean LANGUAGE sql AS
            $$SELECT set_config('palisade.trap', current_user::text, false) = ''$$;
        CREATE OPERATOR public.= (LEFTARG = varchar, RIGHTARG = text, FUNCTION = public.trap);
        CREATE TEMP TABLE palisade_fence (resource varchar(255), token bigint);
        SET search_path = pg_temp, public, pg_catalog";
    holder.batch_execute(traps).await.unwrap();
    let again = "SET LOCAL palisade.rearm = 'on'; SELECT public.palisade_claim('orders', 34)";
    assert_eq!(run(&holder, again).await.as_deref(), Some("PF001"));
    let again = "SELECT public.palisade_claim('orders', 36); UPDATE public.orders SET total = 2";
    assert_eq!(run(&holder, again).await, None);
    let trapped = "SELECT coalesce(current_setting('palisade.trap', true), '')";
    let trapped: String = holder.query_one(trapped, &[]).await.unwrap().get(0);
    assert_eq!(trapped, "", "a function of the caller ran in the fence");
    for sql in [
        "DROP OPERATOR public.= (varchar, text)",
        "DROP OWNED BY palisade_holder",
    ] {
        admin.batch_execute(sql).await.unwrap();
    }

    // The control: an earlier grant is shown, and another installation revokes it.
    let older = "GRANT SELECT, INSERT, UPDATE ON palisade_fence TO palisade_holder";
    admin.batch_execute(older).await.unwrap();
    let open = doors(&mut admin).await;
    assert!(
        open.iter()
            .any(|one| one.contains("palisade_holder may UPDATE")),
        "{open:?}"
    );
    let other = connect(&url).await;
    other.batch_execute(become_holder).await.unwrap();
    let lowers = "SET LOCAL palisade.rearm = 'on'; UPDATE palisade_fence SET token = 30";
    assert_eq!(run(&other, lowers).await, None);
    for (_, sql) in palisade_fence::postgres::MIGRATIONS {
        admin.batch_execute(sql).await.unwrap();
    }
    assert_eq!(run(&other, lowers).await.as_deref(), Some("42501"));
    assert_eq!(
        run(&other, "SELECT palisade_claim('orders', 40)").await,
        None
    );
    assert_eq!(doors(&mut admin).await, Vec::<String>::new());
}

/// A replica that gets the rows and not the marks cannot refuse anybody.
#[tokio::test]
async fn a_publication_without_the_marks_and_a_disabled_trigger_are_said() {
    let mut client = connect(&database(&Postgres::shared().url()).await).await;
    client.batch_execute(ORDERS).await.unwrap();
    assert_eq!(doors(&mut client).await, Vec::<String>::new());
    let sql = "CREATE PUBLICATION half FOR TABLE orders; ALTER TABLE orders DISABLE TRIGGER palisade_sticky";
    client.batch_execute(sql).await.unwrap();
    let open = doors(&mut client).await;
    assert_eq!(open.len(), 2, "{open:?}");
    assert!(open[0].contains("publication half"), "{open:?}");
    assert!(open[1].contains("disabled"), "{open:?}");
    let sql = "ALTER PUBLICATION half ADD TABLE palisade_fence; ALTER TABLE orders ENABLE TRIGGER palisade_sticky";
    client.batch_execute(sql).await.unwrap();
    assert_eq!(doors(&mut client).await, Vec::<String>::new());
}

/// Data that was read before a waiting claim is older than the last holder's write.
#[tokio::test]
async fn a_claim_after_a_read_of_the_fenced_table_is_refused() {
    let url = database(&Postgres::shared().url()).await;
    let (mut client, other) = (connect(&url).await, connect(&url).await);
    client.batch_execute(ORDERS).await.unwrap();
    client.batch_execute(EVENTS).await.unwrap();
    client
        .batch_execute("SELECT palisade_sticky('ev', 'ev')")
        .await
        .unwrap();
    for (sql, state) in [
        // The same token, or a table of another resource, or a look at the catalog is no late claim.
        (
            "SELECT palisade_claim('orders', 1); SELECT total FROM orders; SELECT palisade_claim('orders', 1)",
            None,
        ),
        (
            "SELECT palisade_claim('orders', 2); SELECT total FROM orders; SELECT palisade_claim('ev', 2)",
            None,
        ),
        (
            "SELECT palisade_claim('ev', 3); SELECT palisade_claim('orders', 3); SELECT total FROM orders",
            None,
        ),
        (
            "SELECT 'orders'::regclass; SELECT palisade_claim('orders', 4)",
            None,
        ),
        (
            "SELECT total FROM orders; SELECT palisade_claim('orders', 4)",
            None,
        ),
        (
            "SELECT total FROM orders; SELECT palisade_claim('orders', 5)",
            Some("PF012"),
        ),
        (
            "SELECT total FROM orders FOR UPDATE; SELECT palisade_claim('orders', 5)",
            Some("PF012"),
        ),
        (
            "SELECT total FROM orders; SELECT palisade_write('orders', 5, 1, 7)",
            Some("PF012"),
        ),
        (
            "SELECT count(*) FROM ev_1; SELECT palisade_claim('ev', 5)",
            Some("PF012"),
        ),
        (
            "SELECT count(*) FROM ev; SELECT palisade_claim('ev', 5)",
            Some("PF012"),
        ),
    ] {
        assert_eq!(run(&client, sql).await.as_deref(), state, "{sql}");
    }
    let mut tx = client.transaction().await.unwrap();
    tx.batch_execute("SELECT total FROM orders").await.unwrap();
    let late = palisade_fence::postgres::claim(&mut tx, "orders", t(9)).await;
    let late = late.unwrap_err();
    assert!(matches!(late, Error::ReadBeforeClaim(_)), "{late}");
    assert_eq!(late.kind(), ErrorKind::Retry);
    tx.rollback().await.unwrap();
    // The control: a table without the trigger, where the late claim loses an acknowledged add.
    let plain = "CREATE TABLE totals (n bigint); INSERT INTO totals VALUES (0)";
    client.batch_execute(plain).await.unwrap();
    client
        .batch_execute("BEGIN; SELECT n FROM totals")
        .await
        .unwrap();
    let add = "SELECT palisade_claim('totals', 1); UPDATE totals SET n = n + 1";
    assert_eq!(run(&other, add).await, None);
    let late = "SELECT palisade_claim('totals', 2); UPDATE totals SET n = 0 + 1; COMMIT";
    client.batch_execute(late).await.unwrap();
    let row = client.query_one("SELECT n FROM totals", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 1, "two adds of 1 were acknowledged");
}
