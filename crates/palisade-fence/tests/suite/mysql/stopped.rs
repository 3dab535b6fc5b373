//! A holder whose process is stopped inside its transaction (rule F12): its successor waits within a bound. MariaDB has a
//! bound for transactions, which a claim sets; MySQL has only the connection's `wait_timeout`, which its program sets.

use std::process::{Command, Stdio};
use std::time::Duration;

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use palisade_fence::ErrorKind;
use palisade_fence::mysql::{blockers, claim, transact, unblock};

use super::Server;
use super::limits::{begin, fresh, t};
use super::subject::connect;
use crate::adds::{AnyError, race};
use crate::paused::Holder;

/// A shell that runs these statements and waits for more. Rows are printed as they come.
fn shell(url: &str, sql: &str) -> Holder {
    let port = format!("--port={}", Server::shared().port());
    let (_, database) = url.rsplit_once('/').unwrap();
    let mut shell = Command::new("/usr/bin/mariadb");
    shell.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", &port]);
    shell.args(["--unbuffered", "--quick", "--user=palisade", database]);
    Holder::runs(shell.stdout(Stdio::null()), sql)
}

/// Waits until the statement returns true.
async fn until(db: &mut Conn, sql: &str) {
    while db.query_first::<bool, _>(sql).await.unwrap() != Some(true) {
        tokio::time::sleep(Duration::from_millis(10)).await; // real time: another process has to get there
    }
}

const CLAIM: &str = "CALL palisade_claim('r', 1, NULL, NULL);";

/// Where the holder stops, and the bounds of its claim and its session, in milliseconds and seconds.
const STEPS: [(&str, &str); 4] = [
    ("", IDLE),
    ("SELECT n FROM things;", IDLE),
    ("UPDATE things SET n = 9;", IDLE),
    // 900 MB, more than the sockets hold.
    (
        "UPDATE things SET n = 9; WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 900)
         SELECT REPEAT('x', 1000000) FROM n;",
        "SET SESSION net_write_timeout = 1;",
    ),
];
const IDLE: &str = "SET @palisade_lease_left_ms = 1000, SESSION wait_timeout = 2;";

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_of_a_stopped_holder_is_admitted_within_the_bound() {
    for ((step, bound), bounded) in STEPS.iter().flat_map(|step| [(step, true), (step, false)]) {
        let (url, mut db) = fresh().await;
        let table = "CREATE TABLE things (n INT) ENGINE = InnoDB; INSERT INTO things VALUES (0)";
        super::subject::script(&url, table).await;
        let bound = if bounded {
            bound
        } else {
            "SET @palisade_lease_left_ms = 100000;"
        };
        // A lock of the server's own shows that the holder has got there.
        let (_, name) = url.rsplit_once('/').unwrap();
        let there = format!("SELECT GET_LOCK('{name}', 0);");
        let sends = step.contains("REPEAT");
        let sql = if sends {
            format!("{bound} BEGIN; {CLAIM} {there} {step}\n")
        } else {
            format!("{bound} BEGIN; {CLAIM} {step} {there}\n")
        };
        let holder = shell(&url, &sql);
        let id = format!("IS_USED_LOCK('{name}')");
        until(&mut db, &format!("SELECT {id} IS NOT NULL")).await;
        let sending = format!(
            "SELECT COUNT(*) = 1 FROM information_schema.processlist WHERE id = {id} AND info LIKE '%REPEAT%'"
        );
        if sends {
            until(&mut db, &sending).await;
        }
        holder.stop();
        if sends {
            let sends = db.query_first::<bool, _>(&sending).await.unwrap();
            assert_eq!(sends, Some(true), "the holder has read everything");
        }
        let mut successor = connect(&url, false).await.unwrap();
        // The control is the holder without a bound: it outlasts a time-out that is longer than the bound.
        let seconds = if bounded { 50 } else { 4 };
        let sql = format!("SET SESSION innodb_lock_wait_timeout = {seconds}");
        successor.query_drop(sql).await.unwrap();
        let mut tx = begin(&mut successor).await;
        match claim(&mut tx, "r", t(2)).await {
            Ok(_) => {
                assert!(bounded, "{step}");
                let n: Option<i64> = tx.query_first("SELECT n FROM things").await.unwrap();
                assert_eq!(
                    n,
                    Some(0),
                    "{step}: the stopped transaction was rolled back"
                );
            }
            Err(fault) => {
                assert!(!bounded, "{step}: {fault}");
                assert_eq!(fault.kind(), ErrorKind::Retry);
                // The control of this line is the server's own message: "Lock wait timeout exceeded".
                let said = fault.to_string();
                assert!(
                    said.contains(
                        "resource r: begin again, or end it with `palisade fence unblock`"
                    ),
                    "{said}"
                );
            }
        }
        tx.rollback().await.unwrap();
    }
}

/// A stopped holder of a new resource, and of an old one, with another holder that waits behind it.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_and_ends_the_transaction_that_has_the_row() {
    for resource in ["r", "new"] {
        let (url, mut db) = fresh().await;
        super::limits::all(&mut db, &[("r", 1), ("other", 1)])
            .await
            .unwrap();
        let another = async || connect(&url, false).await.unwrap();
        let (_, name) = url.rsplit_once('/').unwrap();
        let sql = format!(
            "SET @palisade_lease_left_ms = 600000; BEGIN; CALL palisade_claim('{resource}', 2, NULL, NULL);
             SELECT GET_LOCK('{name}', 0);\n"
        );
        let holder = shell(&url, &sql);
        let id = format!("IS_USED_LOCK('{name}')");
        until(&mut db, &format!("SELECT {id} IS NOT NULL")).await;
        let has = db.query_first::<i64, _>(format!("SELECT {id}"));
        let has = has.await.unwrap().unwrap();
        holder.stop();
        let mut successor = another().await;
        let waits = successor.id();
        let claims = tokio::spawn(async move {
            let mut tx = begin(&mut successor).await;
            claim(&mut tx, resource, t(3)).await.unwrap();
            tx.commit().await.unwrap();
        });
        let is_waiting = format!(
            "SELECT COUNT(*) > 0 FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id = {waits}
             AND trx_state = 'LOCK WAIT'"
        );
        while db.query_first::<bool, _>(&is_waiting).await.unwrap() != Some(true) {
            // real time: InnoDB looks anew only if nobody has asked for a tenth of a second
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        // The waiting connection is not a blocker.
        let found = blockers(&mut db, another().await, resource).await.unwrap();
        let [blocker] = &found[..] else {
            panic!("{resource}: {found:?}")
        };
        assert_eq!((blocker.connection, &*blocker.command), (has, "Sleep"));
        assert!(!claims.is_finished(), "listing ends nothing");
        let free = blockers(&mut db, another().await, "other").await.unwrap();
        assert_eq!(free, [], "another resource is free");
        // A later transaction of the connection, and one that has another row, are left alone.
        let mut later = blocker.clone();
        later.started = "2001-01-01 00:00:00".to_owned();
        for (resource, blocker) in [(resource, &later), ("other", blocker)] {
            let ended = unblock(&mut db, another().await, resource, blocker).await;
            assert!(!ended.unwrap());
        }
        assert!(
            unblock(&mut db, another().await, resource, blocker)
                .await
                .unwrap()
        );
        claims.await.unwrap();
        assert_eq!(super::limits::highest(&mut db, resource).await, Some(3));
        assert!(
            !unblock(&mut db, another().await, resource, blocker)
                .await
                .unwrap()
        );
    }
}

/// No connection has it, so none can be ended: the message names the command that ends it.
#[tokio::test]
async fn a_transaction_that_xa_prepare_left_is_named() {
    let (url, mut db) = fresh().await;
    let another = async || connect(&url, false).await.unwrap();
    let (_, name) = url.rsplit_once('/').unwrap();
    let mut prepares = another().await;
    for sql in [
        format!("XA START '{name}'"),
        CLAIM.trim_end_matches(';').to_owned(),
        format!("XA END '{name}'"),
        format!("XA PREPARE '{name}'"),
    ] {
        prepares.query_drop(sql).await.unwrap();
    }
    prepares.disconnect().await.unwrap();
    let found = loop {
        let found = blockers(&mut db, another().await, "r").await.unwrap();
        match &found[..] {
            // Its connection is being closed.
            [one] if one.connection != 0 => {}
            _ => break found,
        }
    };
    let [blocker] = &found[..] else {
        panic!("{found:?}")
    };
    let refused = unblock(&mut db, another().await, "r", blocker).await;
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("XA ROLLBACK"), "{said}");
    db.query_drop(format!("XA ROLLBACK '{name}'"))
        .await
        .unwrap();
    let free = blockers(&mut db, another().await, "r").await.unwrap();
    assert_eq!(free, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn transact_loses_no_add() {
    let (url, mut db) = fresh().await;
    let table =
        "CREATE TABLE things (n BIGINT NOT NULL) ENGINE = InnoDB; INSERT INTO things VALUES (0);";
    super::subject::script(&url, table).await;
    let mut connections = Vec::new();
    for _ in 0..4 {
        connections.push(connect(&url, false).await.unwrap());
    }
    let added = race(connections, 50, async |db, token| {
        let done = transact(db, "r", token, None, async |tx| {
            let n: Option<i64> = tx.query_first("SELECT n FROM things").await?;
            tx.exec_drop("UPDATE things SET n = ?", (n.unwrap_or(0) + 1,))
                .await?;
            Ok::<_, AnyError>(())
        });
        // Others replace procedures on this server: error 1615 is Retry.
        done.await.is_ok()
    });
    let added = added.await;
    assert!(added > 50, "{added} of 200 adds were admitted");
    let n: Option<i64> = db.query_first("SELECT n FROM things").await.unwrap();
    assert_eq!(n, Some(added));
    let failed = transact(&mut db, "r", t(500), None, async |tx| {
        tx.query_drop("UPDATE things SET n = 0").await?;
        Err::<(), AnyError>("no".into())
    });
    assert_eq!(failed.await.unwrap_err().to_string(), "no");
    let n: Option<i64> = db.query_first("SELECT n FROM things").await.unwrap();
    assert_eq!(n, Some(added));
    // The control: the read before the transaction is older than the claim, and the first of two adds is lost.
    let mut acknowledged = 0;
    for number in 501.. {
        let done = transact(&mut db, "r", t(number), None, async |tx| {
            tx.exec_drop("UPDATE things SET n = ?", (added + 1,))
                .await?;
            Ok::<_, AnyError>(())
        });
        // Error 1615, as above.
        acknowledged += i32::from(done.await.is_ok());
        if acknowledged == 2 {
            break;
        }
    }
    let n: Option<i64> = db.query_first("SELECT n FROM things").await.unwrap();
    assert_eq!(n, Some(added + 1), "two were acknowledged");
}

/// Else a later transaction of the connection, perhaps without a claim, would be ended by the bound of this one.
#[tokio::test]
async fn transact_leaves_the_connection_its_own_bound() {
    let (_, mut db) = fresh().await;
    let shown = "SHOW VARIABLES LIKE 'idle_write_transaction_timeout'";
    let has_bound = db
        .query_first::<(String, u64), _>(shown)
        .await
        .unwrap()
        .is_some();
    let bound = async |db: &mut Conn| -> u64 {
        let found: Option<(String, u64)> = db.query_first(shown).await.unwrap();
        found.map_or(0, |(_, seconds)| seconds)
    };
    for own in [0, 300] {
        if has_bound {
            let sql = format!("SET SESSION idle_write_transaction_timeout = {own}");
            db.query_drop(sql).await.unwrap();
        }
        let own = bound(&mut db).await;
        for (token, fails) in [(2, false), (3, true), (1, false)] {
            let left = Some(Duration::from_secs(7));
            let done = transact(&mut db, "r", t(token), left, async |tx| {
                let found: Option<(String, u64)> = tx.query_first(shown).await?;
                assert_eq!(found.map_or(7, |(_, seconds)| seconds), 7);
                if fails {
                    Err::<(), AnyError>("no".into())
                } else {
                    Ok(())
                }
            });
            let done = done.await;
            // The last token is stale.
            assert_eq!(done.is_err(), fails || token == 1, "{done:?}");
            assert_eq!(bound(&mut db).await, own, "token {token}");
        }
        // The control: a claim and a bare COMMIT.
        db.query_drop("BEGIN").await.unwrap();
        db.query_drop("CALL palisade_claim('r', 2, NULL, NULL)")
            .await
            .unwrap();
        db.query_drop("COMMIT").await.unwrap();
        assert_eq!(bound(&mut db).await, if has_bound { 10 } else { 0 });
        db.query_drop("BEGIN").await.unwrap();
        db.query_drop("CALL palisade_end(TRUE)").await.unwrap();
        assert_eq!(bound(&mut db).await, own);
    }
}

/// A role without EXECUTE on the procedure that commits, and files of the fence from before it.
#[tokio::test]
async fn without_the_procedure_that_commits_transact_writes_nothing_and_says_what_to_type() {
    let (url, mut db) = fresh().await;
    let (_, name) = url.rsplit_once('/').unwrap();
    let user = format!("e{name}_{}", std::process::id());
    let make = format!(
        "CREATE TABLE things (n INT) ENGINE = InnoDB; CREATE USER '{user}'@'%';
         GRANT INSERT ON {name}.things TO '{user}'@'%';
         GRANT EXECUTE ON PROCEDURE {name}.palisade_judge TO '{user}'@'%'"
    );
    super::subject::script(&url, &make).await;
    // The next holder does not wait, although the connection stays open.
    db.query_drop("SET SESSION innodb_lock_wait_timeout = 2")
        .await
        .unwrap();
    let theirs = url.replace("palisade@", &format!("{user}@"));
    for (url, before, says) in [
        (&theirs, "", ["GRANT EXECUTE ON", "palisade_end"]),
        (
            &url,
            "DROP PROCEDURE palisade_end",
            ["palisade fence install mysql", "an older version"],
        ),
    ] {
        if !before.is_empty() {
            db.query_drop(before).await.unwrap();
        }
        let mut holder = connect(url, false).await.unwrap();
        let failed = transact(&mut holder, "r", t(7), None, async |tx| {
            tx.query_drop("INSERT INTO things VALUES (1)").await?;
            Ok::<(), AnyError>(())
        });
        let said = failed.await.unwrap_err().to_string();
        assert!(says.iter().all(|words| said.contains(words)), "{said}");
        let mut tx = begin(&mut db).await;
        assert!(claim(&mut tx, "r", t(1)).await.is_ok());
        let things = tx.query_first::<i64, _>("SELECT COUNT(*) FROM things");
        assert_eq!(things.await.unwrap(), Some(0));
        tx.rollback().await.unwrap();
    }
    db.query_drop(format!("DROP USER '{user}'@'%'"))
        .await
        .unwrap();
}
