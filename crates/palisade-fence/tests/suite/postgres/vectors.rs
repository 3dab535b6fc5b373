//! The guard row compared with the vectors that every implementation is compared with.

use palisade_fence::Op;
use palisade_fence::postgres::{Guard, Numbered};
use palisade_testbed::Postgres;
use tokio_postgres::Transaction;

use super::drivers::{Driver as _, Tokio};
use super::subject::database;
use crate::vectors::{Columns, answered, cases};

const INSERT: &str =
    "INSERT INTO palisade_fence (resource, authority, lock, token, written, sequence, digest, result)
VALUES ($1::text, $2::text, $3::text, $4, $5, $6, $7, $8)";

const SELECT: &str = "SELECT authority::text, lock::text, token, written, sequence, digest, result
FROM palisade_fence WHERE resource = $1::text";

async fn stored(tx: &Transaction<'_>, resource: &str) -> Option<Columns> {
    let row = tx.query_opt(SELECT, &[&resource]).await.unwrap()?;
    Some(Columns {
        authority: row.get(0),
        lock: row.get(1),
        token: row.get(2),
        written: row.get(3),
        sequence: row.get(4),
        digest: row.get(5),
        result: row.get(6),
    })
}

#[tokio::test]
async fn the_guard_row_decides_as_the_vectors_say() {
    let url = database(&Postgres::shared().url()).await;
    let mut client = Tokio::connect(&url).await.unwrap();
    let mut tx = client.transaction().await.unwrap();
    for (at, case) in cases().iter().enumerate() {
        // Code without a token does not call the fence: the trigger stops it.
        let Some(pass) = case.pass() else { continue };
        let (name, guard) = (&*format!("v{at}"), Guard { rule: case.rule });
        let Columns {
            authority,
            lock,
            token,
            written,
            sequence,
            digest,
            result,
        } = &Columns::of(&case.before);
        if token.is_some() {
            tx.execute(
                INSERT,
                &[
                    &name, authority, lock, token, written, sequence, digest, result,
                ],
            )
            .await
            .unwrap();
        }
        // A rejection aborts the transaction, so each case has a savepoint of its own.
        let mut step = tx.transaction().await.unwrap();
        let checked = match (case.op, case.digest) {
            (Op::Write(Some(sequence)), Some(digest)) => {
                guard
                    .write(&mut step, name, pass, Numbered { sequence, digest })
                    .await
            }
            (op, _) => guard.check(&mut step, name, pass, op).await,
        };
        let answer = answered(checked);
        if answer.is_ok() {
            step.commit().await.unwrap()
        } else {
            step.rollback().await.unwrap()
        }
        assert_eq!(answer, case.answer(), "{}", case.text);
        let stored = stored(&tx, name).await;
        assert_eq!(
            stored.unwrap_or_default(),
            Columns::of(case.after()),
            "{}",
            case.text
        );
    }
}
