//! The triggers: every attempt of code without a token is rejected.

use palisade_core::Token;
use palisade_fence::Reject;
use palisade_fence::sqlite::{Column, claim, sticky, unstick, why};
use rusqlite::Connection;

use super::subject::{File, Journal, carry_out};

fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

const WRITES: [&str; 5] = [
    "INSERT INTO orders VALUES (2, 'x')",
    "INSERT OR REPLACE INTO orders VALUES (1, 'x')",
    "UPDATE orders SET text = 'x'",
    "UPDATE OR IGNORE orders SET text = 'x'",
    "DELETE FROM orders",
];

fn orders() -> (File, Connection) {
    let file = File::new(Journal::Wal);
    let db = file.open();
    let table = "CREATE TABLE orders (id INTEGER PRIMARY KEY, text TEXT);
        INSERT INTO orders VALUES (1, 'one')";
    db.execute_batch(table).unwrap();
    (file, db)
}

fn rows(db: &Connection) -> Vec<(i64, String)> {
    let mut read = db.prepare("SELECT id, text FROM orders").unwrap();
    let rows = read.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    rows.unwrap().map(Result::unwrap).collect()
}

#[test]
fn every_kind_of_write_without_a_token_is_rejected() {
    let (file, mut db) = orders();
    // The control arm: without the triggers, every write succeeds.
    for sql in WRITES {
        let tx = db.transaction().unwrap();
        tx.execute(sql, []).unwrap();
    }
    db.execute_batch(&sticky("orders", "orders").unwrap())
        .unwrap();
    // The table is sticky from the start, also before the first claim, and for a program that connected
    // earlier.
    let stranger = file.open();
    assert!(stranger.execute(WRITES[0], []).is_err());
    assert!(db.execute(WRITES[0], []).is_err());
    carry_out(&mut db, |tx| claim(tx, "orders", t(34))).unwrap();
    for sql in WRITES {
        let refused = why(&stranger, "orders", stranger.execute(sql, []).unwrap_err());
        let tokenless = Reject::Tokenless { highest: t(34) };
        assert_eq!(refused.rejected(), Some(&tokenless), "{sql}: {refused}");
    }
    // A claim of another resource does not count.
    let mut other = file.open();
    carry_out(&mut other, |tx| claim(tx, "invoices", t(50))).unwrap();
    for sql in WRITES {
        let refused = why(&other, "orders", other.execute(sql, []).unwrap_err());
        let tokenless = Reject::Tokenless { highest: t(34) };
        assert_eq!(refused.rejected(), Some(&tokenless), "{sql}: {refused}");
    }
    assert_eq!(rows(&db), [(1, "one".to_owned())]);
    // A claim that was rolled back, or that a newer holder has overtaken, does not count either.
    let tx = other.transaction().unwrap();
    claim(&tx, "orders", t(35)).unwrap();
    drop(tx);
    assert!(other.execute(WRITES[2], []).is_err());
    carry_out(&mut other, |tx| claim(tx, "orders", t(36))).unwrap();
    let refused = why(&db, "orders", db.execute(WRITES[2], []).unwrap_err());
    assert_eq!(
        refused.rejected(),
        Some(&Reject::Stale {
            presented: t(34),
            highest: t(36)
        })
    );
    for sql in WRITES {
        let tx = other.transaction().unwrap();
        claim(&tx, "orders", t(36)).unwrap();
        tx.execute(sql, []).unwrap();
    }
    // A rejected claim leaves no token to show.
    carry_out(&mut other, |tx| claim(tx, "orders", t(30))).unwrap_err();
    assert!(other.execute(WRITES[2], []).is_err());
    stranger.execute_batch(&unstick("orders").unwrap()).unwrap();
    stranger.execute(WRITES[2], []).unwrap();
}

#[test]
fn a_fenced_row_cannot_be_written_without_its_column() {
    let (_file, db) = orders();
    let added = "ALTER TABLE orders ADD COLUMN token INTEGER NOT NULL DEFAULT 0";
    db.execute_batch(added).unwrap();
    let column = Column::new("orders", "id", "token").unwrap();
    for _ in 0..2 {
        db.execute_batch(column.sticky()).unwrap();
    }
    // The row is not fenced yet.
    db.execute("UPDATE orders SET text = 'free'", []).unwrap();
    db.execute("UPDATE orders SET token = 5", []).unwrap();
    for (sql, stale) in [
        ("UPDATE orders SET text = 'x'", false),
        ("UPDATE OR REPLACE orders SET text = 'x'", false),
        ("UPDATE orders SET text = 'x', token = 4", true),
        ("UPDATE orders SET text = 'x', token = 'ten'", true),
        ("DELETE FROM orders", false),
        ("REPLACE INTO orders (id, text) VALUES (1, 'x')", false),
        (
            "REPLACE INTO orders (id, text, token) VALUES (1, 'x', 'z')",
            false,
        ),
    ] {
        let error = db.execute(sql, []).unwrap_err();
        let refused = column.why(&db, &1, Some(t(4)), error);
        let highest = t(5);
        let reject = if stale {
            Reject::Stale {
                presented: t(4),
                highest,
            }
        } else {
            Reject::Tokenless { highest }
        };
        assert_eq!(refused.rejected(), Some(&reject), "{sql}: {refused}");
        assert_eq!(rows(&db), [(1, "free".to_owned())], "{sql}");
    }
    // A token shown for one statement does not admit the next one.
    db.execute("UPDATE orders SET text = 'mine', token = 5", [])
        .unwrap();
    assert!(db.execute("UPDATE orders SET text = 'x'", []).is_err());
    assert_eq!(rows(&db), [(1, "mine".to_owned())]);
    // An unfenced row may move, and not over a fenced one.
    let two =
        "INSERT INTO orders (id, text) VALUES (2, 'two'); UPDATE orders SET id = 3 WHERE id = 2";
    db.execute_batch(two).unwrap();
    let over = "UPDATE OR REPLACE orders SET id = 1 WHERE id = 3";
    assert!(db.execute(over, []).is_err());
    assert_eq!(rows(&db), [(1, "mine".to_owned()), (3, "two".to_owned())]);
}

/// A temporary table, or an attached file, hides the fence's table from statements that do not name the file.
#[test]
fn a_claim_is_one_of_the_file_itself() {
    let (file, mut db) = orders();
    carry_out(&mut db, |tx| claim(tx, "orders", t(9))).unwrap();
    let mut other = file.open();
    // The control: the same claim without the temporary table.
    let stale = Reject::Stale {
        presented: t(8),
        highest: t(9),
    };
    for hidden in [false, true] {
        if hidden {
            let (_, sql) = palisade_fence::sqlite::MIGRATIONS[0];
            let table = &sql[..sql.find("CREATE TRIGGER").unwrap()];
            let table = table.replace("IF NOT EXISTS palisade_fence", "temp.palisade_fence");
            other.execute_batch(&table).unwrap();
        }
        let tx = other.transaction().unwrap();
        let claimed = claim(&tx, "orders", t(8)).unwrap_err();
        assert_eq!(claimed.rejected(), Some(&stale), "hidden: {hidden}");
    }
    let mut memory = Connection::open_in_memory().unwrap();
    let attached = file.path().display().to_string();
    memory.execute("ATTACH ?1 AS shop", [attached]).unwrap();
    let tx = memory.transaction().unwrap();
    let claimed = claim(&tx, "orders", t(10));
    assert!(
        matches!(claimed, Err(palisade_fence::Error::NotInstalled(_))),
        "{claimed:?}"
    );
}
