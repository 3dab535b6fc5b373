//! The guard row compared with the vectors that every implementation is compared with.

use mysql_async::Transaction;
use mysql_async::prelude::Queryable as _;
use palisade_fence::Op;
use palisade_fence::mysql::{Guard, Numbered};

use super::limits::{begin, fresh};
use crate::vectors::{Columns, answered, cases};

const INSERT: &str =
    "INSERT INTO palisade_fence (resource, authority, `lock`, token, written, sequence, digest, result)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)";

const SELECT: &str = "SELECT authority, `lock`, token, written, sequence, digest, result
FROM palisade_fence WHERE resource = ?";

async fn stored(tx: &mut Transaction<'_>, resource: &str) -> Columns {
    let row = tx.exec_first(SELECT, (resource,)).await.unwrap();
    let (authority, lock, token, written, sequence, digest, result) = row.unwrap();
    Columns {
        authority,
        lock,
        token,
        written,
        sequence,
        digest,
        result,
    }
}

#[tokio::test]
async fn the_guard_row_decides_as_the_vectors_say() {
    let (_, mut db) = fresh().await;
    let mut tx = begin(&mut db).await;
    for (at, case) in cases().iter().enumerate() {
        // Code without a token does not call the fence: the triggers stop it.
        let Some(pass) = case.pass() else { continue };
        let (name, guard) = (&*format!("v{at}"), Guard { rule: case.rule });
        let row = Columns::of(&case.before);
        if row.token.is_some() {
            let row = (
                name,
                row.authority,
                row.lock,
                row.token,
                row.written,
                row.sequence,
                row.digest,
                row.result,
            );
            tx.exec_drop(INSERT, row).await.unwrap();
        }
        let checked = match (case.op, case.digest) {
            (Op::Write(Some(sequence)), Some(digest)) => {
                let write = Numbered { sequence, digest };
                guard.write(&mut tx, name, pass, write).await
            }
            (op, _) => guard.check(&mut tx, name, pass, op).await,
        };
        assert_eq!(answered(checked), case.answer(), "{}", case.text);
        let stored = stored(&mut tx, name).await;
        assert_eq!(stored, Columns::of(case.after()), "{}", case.text);
    }
}
