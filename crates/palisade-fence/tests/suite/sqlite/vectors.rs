//! The guard row compared with the vectors that every implementation is compared with.

use palisade_fence::Op;
use palisade_fence::sqlite::{Guard, Numbered};
use rusqlite::{Connection, TransactionBehavior, params};

use super::subject::{File, Journal};
use crate::vectors::{Columns, answered, cases};

const INSERT: &str =
    "INSERT INTO palisade_fence (resource, authority, lock, token, written, sequence, digest, result)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

const SELECT: &str = "SELECT authority, lock, token, written, sequence, digest, result
FROM palisade_fence WHERE resource = ?1";

fn stored(tx: &Connection, resource: &str) -> Columns {
    let columns = |row: &rusqlite::Row<'_>| {
        Ok(Columns {
            authority: row.get(0)?,
            lock: row.get(1)?,
            token: row.get(2)?,
            written: row.get(3)?,
            sequence: row.get(4)?,
            digest: row.get(5)?,
            result: row.get(6)?,
        })
    };
    tx.query_row(SELECT, [resource], columns).unwrap()
}

#[test]
fn the_guard_row_decides_as_the_vectors_say() {
    let file = File::new(Journal::Wal);
    let mut db = file.open();
    let tx = db
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    for (at, case) in cases().iter().enumerate() {
        // Code without a token does not call the fence: the triggers stop it.
        let Some(pass) = case.pass() else { continue };
        let (name, guard) = (&*format!("v{at}"), Guard { rule: case.rule });
        let row = Columns::of(&case.before);
        if row.token.is_some() {
            let row = params![
                name,
                row.authority,
                row.lock,
                row.token,
                row.written,
                row.sequence,
                row.digest,
                row.result
            ];
            tx.execute(INSERT, row).unwrap();
        }
        let checked = match (case.op, case.digest) {
            (Op::Write(Some(sequence)), Some(digest)) => {
                guard.write(&tx, name, pass, Numbered { sequence, digest })
            }
            (op, _) => guard.check(&tx, name, pass, op),
        };
        assert_eq!(answered(checked), case.answer(), "{}", case.text);
        assert_eq!(
            stored(&tx, name),
            Columns::of(case.after()),
            "{}",
            case.text
        );
    }
}
