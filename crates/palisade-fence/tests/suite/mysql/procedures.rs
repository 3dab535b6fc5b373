//! The procedures as programs in other languages call them: plain SQL.

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Params, Row, Transaction, Value};
use palisade_fence::mysql::{Guard, MIGRATIONS, UNINSTALL, claim, sticky, unstick};
use palisade_fence::{DEFAULT_MAX_JUMP, Mode, Op, Reject};

use super::limits::{all, begin, fresh, highest, t};
use super::subject::script;
use crate::vectors::{Case, Columns, cases};

fn server_error(error: mysql_async::Error) -> (String, String) {
    match error {
        mysql_async::Error::Server(error) => (error.state, error.message),
        other => panic!("{other}"),
    }
}

/// Calls the procedure behind all others; returns the state and message of a rejection, or whether it is a repeat.
async fn judge(
    tx: &mut Transaction<'_>,
    name: &str,
    case: &Case,
) -> Result<bool, (String, String)> {
    let pass = case.pass().unwrap();
    let (is_write, sequence) = match case.op {
        Op::Write(sequence) => (true, sequence),
        Op::Claim | Op::Read => (false, None),
    };
    let arguments: Vec<Value> = vec![
        name.into(),
        pass.token.get().into(),
        pass.authority.map(|id| id.as_str().to_owned()).into(),
        pass.lock.map(|lock| lock.as_str().to_owned()).into(),
        is_write.into(),
        sequence.map(|number| number.get()).into(),
        case.digest.map(u64::cast_signed).into(),
        (case.rule.mode == Mode::Strict).into(),
        case.rule.max_jump.into(),
    ];
    let call = "CALL palisade_judge(?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let row: Option<Row> = tx
        .exec_first(call, Params::Positional(arguments))
        .await
        .map_err(server_error)?;
    Ok(row.is_some_and(|row| row.get(0) == Some(1_u64)))
}

/// The rejection that a state and a message stand for.
fn is(reject: &Reject, state: &str, message: &str) -> bool {
    let last = message.rsplit(' ').next().unwrap_or_default();
    match reject {
        Reject::Stale { presented, highest } => {
            let said = format!("token {presented} is stale: {presented} < {highest}");
            state == "PF001" && message.ends_with(&said)
        }
        Reject::WrongAuthority { bound } => state == "PF005" && message.ends_with(bound.as_str()),
        Reject::WrongLock { bound } => state == "PF006" && message.ends_with(bound.as_str()),
        Reject::Jump { highest, .. } => {
            state == "PF007" && last == highest.map_or(0, |token| token.get()).to_string()
        }
        Reject::SequenceStale { last: number } => state == "PF008" && last == number.to_string(),
        Reject::SequenceReused { last: number } => state == "PF009" && last == number.to_string(),
        Reject::AlreadyWritten => state == "PF010",
        _ => false,
    }
}

#[tokio::test]
async fn the_procedures_decide_as_the_vectors_say() {
    let (_, mut db) = fresh().await;
    let mut tx = begin(&mut db).await;
    let insert = "INSERT INTO palisade_fence (resource, authority, `lock`, token, written, sequence, digest, result)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    let select = "SELECT authority, `lock`, token, written, sequence, digest, result
        FROM palisade_fence WHERE resource = ?";
    let mut judged = 0;
    for (at, case) in cases().iter().enumerate() {
        if case.token.is_none() {
            continue;
        }
        let name = format!("v{at}");
        let Columns {
            authority,
            lock,
            token,
            written,
            sequence,
            digest,
            result,
        } = Columns::of(&case.before);
        if token.is_some() {
            let row = (
                &name, authority, lock, token, written, sequence, digest, result,
            );
            tx.exec_drop(insert, row).await.unwrap();
        }
        let answer = judge(&mut tx, &name, case).await;
        let expected = case.answer();
        let fits = match (&answer, expected.as_ref().err()) {
            (Ok(repeated), None) => expected.as_ref().is_ok_and(|a| a.repeat == *repeated),
            (Err((state, message)), Some(reject)) => is(reject, state, message),
            _ => false,
        };
        assert!(fits, "{answer:?}: {}", case.text);
        let row = tx.exec_first(select, (&name,)).await.unwrap();
        let (authority, lock, token, written, sequence, digest, result) = row.unwrap();
        let stored = Columns {
            authority,
            lock,
            token,
            written,
            sequence,
            digest,
            result,
        };
        assert_eq!(stored, Columns::of(case.after()), "{}", case.text);
        judged += 1;
    }
    assert!(judged > 1_000, "{judged}");
}

const ORDERS: &str =
    "CREATE TABLE orders (total BIGINT NOT NULL) ENGINE = InnoDB; INSERT INTO orders VALUES (0);";

async fn run(db: &mut Conn, sql: &str) -> Option<(String, String)> {
    db.query_drop("START TRANSACTION").await.unwrap();
    for statement in sql.split("; ") {
        if let Err(error) = db.query_drop(statement).await {
            db.query_drop("ROLLBACK").await.unwrap();
            return Some(server_error(error));
        }
    }
    db.query_drop("COMMIT").await.unwrap();
    None
}

#[tokio::test]
async fn a_claim_lets_the_connection_write_and_a_rejection_does_not() {
    let (url, mut db) = fresh().await;
    script(
        &url,
        &(ORDERS.to_owned() + &sticky("orders", "orders").unwrap()),
    )
    .await;
    let (_, message) = run(&mut db, "UPDATE orders SET total = 1").await.unwrap();
    assert!(message.contains("no fencing token"), "{message}");
    let claim =
        "CALL palisade_claim('orders', 34, NULL, NULL); UPDATE orders SET total = total + 1";
    assert_eq!(run(&mut db, claim).await, None);
    assert_eq!(
        run(&mut db, "CALL palisade_check('orders', 34, NULL, NULL)").await,
        None
    );
    let (state, message) = run(&mut db, "CALL palisade_claim('orders', 33, NULL, NULL)")
        .await
        .unwrap();
    assert_eq!(state, "PF001");
    assert!(
        message.contains("give up") && !message.contains("arm"),
        "{message}"
    );
    // MySQL goes on after an error. The trigger does not let the rejected holder write.
    let (state, _) = run(&mut db, "UPDATE orders SET total = 9").await.unwrap();
    assert_eq!(state, "PF002");
    // The control: the same connection with the current token.
    assert_eq!(run(&mut db, claim).await, None);
    let write = "CALL palisade_write('orders', 34, 1, -1, NULL, NULL); UPDATE orders SET total = total + 1; \
        CALL palisade_record('orders', 1, 'seat 12A')";
    assert_eq!(run(&mut db, write).await, None);
    let again = "CALL palisade_write('orders', 34, 1, -1, NULL, NULL)";
    db.query_drop("START TRANSACTION").await.unwrap();
    let (repeated, result): (bool, String) = db.query_first(again).await.unwrap().unwrap();
    assert_eq!((repeated, result.as_str()), (true, "seat 12A"));
    db.query_drop("COMMIT").await.unwrap();
    // Alone it would be committed at once, and a repeat of its write taken for done.
    let alone = "CALL palisade_write('orders', 34, 2, -1, NULL, NULL)";
    let (state, message) = server_error(db.query_drop(alone).await.unwrap_err());
    assert_eq!(state, "PF013", "{message}");
    let last = "SELECT sequence FROM palisade_fence WHERE resource = 'orders'";
    assert_eq!(db.query_first(last).await.unwrap(), Some(1));
    let total: Option<i64> = db.query_first("SELECT total FROM orders").await.unwrap();
    assert_eq!(total, Some(3));
    for (sql, state) in [
        ("CALL palisade_record('orders', 2, 'x')", "PF004"),
        ("CALL palisade_claim('', 34, NULL, NULL)", "22023"),
        ("CALL palisade_claim('orders', 0, NULL, NULL)", "22023"),
        (
            "CALL palisade_claim('orders', 9007199254740992, NULL, NULL)",
            "22023",
        ),
        ("CALL palisade_claim('orders', 35, '', NULL)", "22023"),
        (
            "CALL palisade_write('orders', 35, -1, 0, NULL, NULL)",
            "22023",
        ),
    ] {
        assert_eq!(run(&mut db, sql).await.unwrap().0, state, "{sql}");
    }
    let jump = format!(
        "CALL palisade_claim('orders', {}, NULL, NULL)",
        DEFAULT_MAX_JUMP + 35
    );
    assert_eq!(run(&mut db, &jump).await.unwrap().0, "PF007");
}

/// Rule F11: one name has one spelling, and a number is the number that was given, whatever the connection's sql_mode and
/// character set are. A typed parameter rounds 1.5 to 2 and cuts a long name off; `$` matches before a last line feed.
#[tokio::test]
async fn names_and_numbers_that_could_be_read_in_two_ways_are_refused() {
    let (_, mut db) = fresh().await;
    for mode in [
        "",
        "TRADITIONAL",
        "ANSI_QUOTES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE",
    ] {
        for names in ["utf8mb4", "latin1"] {
            let set = format!("SET SESSION sql_mode = '{mode}', NAMES {names}");
            db.query_drop(set).await.unwrap();
            for arguments in [
                "'a\\n', 5, NULL, NULL",
                "'a\\0', 5, NULL, NULL",
                "'é', 5, NULL, NULL",
                "REPEAT('x', 256), 5, NULL, NULL",
                "REPEAT('x', 1000), 5, NULL, NULL",
                "'b', 1.5, NULL, NULL",
                "'b', 0.4, NULL, NULL",
                "'b', '5x', NULL, NULL",
                "'b', ' 5', NULL, NULL",
                "'b', '5\\n', NULL, NULL",
                "'b', '05', NULL, NULL",
                "'b', -1, NULL, NULL",
                "'b', 9007199254740992, NULL, NULL",
                "'b', 99999999999999999999, NULL, NULL",
                "'b', 5, 'o\\n', NULL",
                "'b', 5, '', NULL",
                "'b', 5, NULL, REPEAT('x', 256)",
            ] {
                let call = format!("CALL palisade_claim({arguments})");
                let refused = run(&mut db, &call).await;
                let state = refused.as_ref().map(|(state, _)| state.as_str());
                // In a strict mode the server itself refuses a text that is too long.
                assert!(
                    matches!(state, Some("22023" | "22001")),
                    "{mode} {names} {arguments}: {refused:?}"
                );
            }
            for sequence in ["1.5", "'1\\n'", "'01'", "-1", "9007199254740992"] {
                let call = format!("CALL palisade_write('b', 5, {sequence}, 1, NULL, NULL)");
                assert_eq!(
                    run(&mut db, &call).await.unwrap().0,
                    "22023",
                    "{mode} {call}"
                );
            }
        }
    }
    let count = "SELECT COUNT(*) FROM palisade_fence";
    assert_eq!(db.query_first(count).await.unwrap(), Some(0_u64));
    // The control: the longest name, and names that a text collation would take for one.
    db.query_drop("SET SESSION sql_mode = ''").await.unwrap();
    for (name, token) in [("REPEAT('x', 255)", 5), ("'a'", 1), ("'A'", 2), ("'a '", 3)] {
        let call = format!("CALL palisade_claim({name}, {token}, NULL, NULL)");
        assert_eq!(run(&mut db, &call).await, None, "{call}");
    }
    assert_eq!(db.query_first(count).await.unwrap(), Some(4_u64));
}

/// A user who may call the procedures and write the table, and nothing else, uses the whole fence and cannot lower it.
#[tokio::test]
async fn a_user_may_claim_and_write_and_cannot_lower_a_fence() {
    let (url, mut db) = fresh().await;
    let sticky = ORDERS.to_owned() + &sticky("orders", "orders").unwrap();
    script(&url, &sticky).await;
    let (_, name) = url.rsplit_once('/').unwrap();
    let user = format!("u{name}_{}", std::process::id());
    let make = format!(
        "CREATE USER '{user}'@'%'; GRANT EXECUTE ON {name}.* TO '{user}'@'%';
         GRANT SELECT, UPDATE ON {name}.orders TO '{user}'@'%'"
    );
    script(&url, &make).await;
    let theirs = url.replace("palisade@", &format!("{user}@"));
    let mut holder = super::subject::connect(&theirs, false).await.unwrap();
    let mut tx = begin(&mut holder).await;
    let number = palisade_fence::Sequence::new(3).unwrap();
    let write = palisade_fence::mysql::Numbered {
        sequence: number,
        digest: 7,
    };
    Guard::CLAIM
        .write(&mut tx, "orders", t(35), write)
        .await
        .unwrap();
    tx.query_drop("UPDATE orders SET total = 1").await.unwrap();
    Guard::CLAIM
        .record(&mut tx, "orders", t(35), number, b"done")
        .await
        .unwrap();
    tx.commit().await.unwrap();
    for sql in [
        "UPDATE palisade_fence SET token = 1, rearmed = rearmed + 1",
        "DELETE FROM palisade_fence",
        "SELECT * FROM palisade_fence",
    ] {
        let (state, _) = run(&mut holder, sql).await.unwrap();
        assert_eq!(state, "42000", "{sql}");
    }
    assert_eq!(highest(&mut db, "orders").await, Some(35));
    script(&url, &format!("DROP USER '{user}'@'%'")).await;
}

/// The procedures and the Rust guard share rows and the connection's tokens, and a claim of either shuts the other out.
#[tokio::test]
async fn the_procedures_and_the_guard_are_one_fence() {
    let (url, mut db) = fresh().await;
    script(
        &url,
        &(ORDERS.to_owned() + &sticky("orders", "orders").unwrap()),
    )
    .await;
    all(&mut db, &[("orders", 34), ("a", 1)]).await.unwrap();
    assert_eq!(
        run(&mut db, "CALL palisade_claim('orders', 33, NULL, NULL)")
            .await
            .unwrap()
            .0,
        "PF001"
    );
    assert_eq!(
        run(
            &mut db,
            "CALL palisade_claim('orders', 35, 'ours', NULL); UPDATE orders SET total = 1"
        )
        .await,
        None
    );
    let mut tx = begin(&mut db).await;
    let refused = claim(&mut tx, "orders", t(34)).await.unwrap_err();
    assert!(
        matches!(refused.rejected(), Some(Reject::WrongAuthority { .. })),
        "{refused:?}"
    );
    tx.rollback().await.unwrap();
    let mut tx = begin(&mut db).await;
    let read = Guard::CLAIM.check(&mut tx, "a", t(2), Op::Read).await;
    read.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(highest(&mut db, "orders").await, Some(35));
}

/// A transaction that read first does not see the last write; its error says to begin again.
#[tokio::test]
async fn a_call_after_a_read_is_refused_if_the_view_is_old() {
    let (url, mut db) = fresh().await;
    script(&url, ORDERS).await;
    let mut other = super::subject::connect(&url, false).await.unwrap();
    assert_eq!(
        run(&mut db, "CALL palisade_claim('orders', 1, NULL, NULL)").await,
        None
    );
    db.query_drop("START TRANSACTION").await.unwrap();
    db.query_drop("SELECT total FROM orders").await.unwrap();
    assert_eq!(
        run(&mut other, "CALL palisade_claim('orders', 1, NULL, NULL)").await,
        None
    );
    let refused = db
        .query_drop("CALL palisade_claim('orders', 2, NULL, NULL)")
        .await;
    assert_eq!(server_error(refused.unwrap_err()).0, "PF012");
    db.query_drop("ROLLBACK").await.unwrap();
    // The control: without a write in between.
    assert_eq!(
        run(
            &mut db,
            "SELECT total FROM orders; CALL palisade_claim('orders', 2, NULL, NULL)"
        )
        .await,
        None
    );
}

async fn routines(db: &mut Conn) -> Vec<String> {
    let sql = "SELECT CONCAT(ROUTINE_NAME, ROUTINE_DEFINITION) FROM information_schema.ROUTINES
        WHERE ROUTINE_SCHEMA = DATABASE() UNION ALL SELECT CONCAT(TRIGGER_NAME, ACTION_STATEMENT)
        FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() ORDER BY 1";
    db.query(sql).await.unwrap()
}

async fn install(url: &str) -> Result<(), mysql_async::Error> {
    let mut db = super::subject::connect(url, false).await.unwrap();
    for (_, sql) in MIGRATIONS {
        db.query_drop(*sql).await?;
    }
    Ok(())
}

#[tokio::test]
async fn it_is_installed_again_without_a_change_refused_over_a_newer_one_and_removed() {
    let (url, mut db) = fresh().await;
    script(
        &url,
        &(ORDERS.to_owned() + &sticky("orders", "orders").unwrap()),
    )
    .await;
    let before = routines(&mut db).await;
    assert!(before.len() > 12, "{before:?}");
    install(&url).await.unwrap();
    script(&url, &sticky("orders", "orders").unwrap()).await;
    assert_eq!(routines(&mut db).await, before);
    let newer =
        "DROP PROCEDURE palisade_version; CREATE PROCEDURE palisade_version() COMMENT '4' SELECT 4";
    script(&url, newer).await;
    let (state, message) = server_error(install(&url).await.unwrap_err());
    assert_eq!(state, "PF011");
    assert!(message.contains("has version 4"), "{message}");

    script(&url, &(unstick("orders").unwrap() + UNINSTALL)).await;
    db.query_drop("UPDATE orders SET total = 7").await.unwrap();
    assert_eq!(routines(&mut db).await, Vec::<String>::new());
    install(&url).await.unwrap();
    let missing =
        palisade_fence::Error::from(db.query_drop("UPDATE nothing SET x = 1").await.unwrap_err());
    assert!(missing.rejected().is_none());
}
