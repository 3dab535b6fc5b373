//! A late write at each form of the fence reaches the reporter of its pass.

use palisade_core::{LockName, Token};
use palisade_fence::sqlite::{Column, MIGRATIONS, Records, Strategy, claim, transact};
use palisade_fence::{Admitted, Pass, Result};
use rusqlite::Connection;

use crate::heard::Heard;

fn database() -> Connection {
    let db = Connection::open_in_memory().unwrap();
    for (_, sql) in MIGRATIONS {
        db.execute_batch(sql).unwrap();
    }
    db.execute_batch(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, last_fencing_token INTEGER NOT NULL DEFAULT 0);
         INSERT INTO orders (id) VALUES (17)",
    )
    .unwrap();
    db
}

/// Runs this in a transaction of its own, which a refusal rolls back.
fn once<T>(
    db: &mut Connection,
    work: impl FnOnce(&Connection) -> Result<Admitted<T>>,
) -> Result<()> {
    let tx = db.transaction()?;
    work(&tx)?;
    Ok(tx.commit()?)
}

#[test]
fn every_form_reports_a_late_write() {
    let (mut db, heard) = (database(), Heard::default());
    let lock = LockName::new("nightly").unwrap();
    let new = Pass::new(Token::new(34).unwrap()).reporting_to(&heard);
    let old = Pass::new(Token::new(33).unwrap()).reporting_to(&heard);
    let column = Column::new("orders", "id", "last_fencing_token").unwrap();
    once(&mut db, |tx| claim(tx, "orders", new.of(&lock))).unwrap();
    once(&mut db, |tx| column.claim(tx, &17, new)).unwrap();
    for strategy in [Strategy::Optimistic, Strategy::Pessimistic] {
        let (records, id) = (Records::new(strategy), format!("{strategy:?}"));
        once(&mut db, |tx| records.claim(tx, &id, new)).unwrap();
        once(&mut db, |tx| records.claim(tx, &id, old)).unwrap_err();
        once(&mut db, |tx| records.write(tx, &id, old, "late")).unwrap_err();
        once(&mut db, |tx| records.delete(tx, &id, old)).unwrap_err();
    }
    once(&mut db, |tx| claim(tx, "orders", old.of(&lock))).unwrap_err();
    // The caller's own word stays.
    let sold = transact(
        &mut db,
        "orders",
        old.of(&lock).doing("sell a seat"),
        |_| Ok::<(), palisade_fence::Error>(()),
    );
    sold.unwrap_err();
    once(&mut db, |tx| column.claim(tx, &17, old)).unwrap_err();
    once(&mut db, |tx| column.lock(tx, &17, old)).unwrap_err();
    once(&mut db, |tx| column.explain(tx, &17, old, 0)).unwrap_err();
    // The controls: a bare token, another reason, and an admitted one report nothing.
    once(&mut db, |tx| {
        claim(tx, "orders", Pass::new(old.token).of(&lock))
    })
    .unwrap_err();
    once(&mut db, |tx| column.claim(tx, &18, old)).unwrap_err();
    once(&mut db, |tx| claim(tx, "orders", new.of(&lock))).unwrap();
    assert_eq!(
        heard.take(),
        [
            "-: claim at Optimistic, 33 < 34",
            "-: write at Optimistic, 33 < 34",
            "-: write at Optimistic, 33 < 34",
            "-: claim at Pessimistic, 33 < 34",
            "-: write at Pessimistic, 33 < 34",
            "-: write at Pessimistic, 33 < 34",
            "nightly: claim at orders, 33 < 34",
            "nightly: sell a seat at orders, 33 < 34",
            "-: claim at 17, 33 < 34",
            "-: claim at 17, 33 < 34",
            "-: write at 17, 33 < 34",
        ]
    );
}
