//! A holder whose process is stopped inside its transaction (rule F12): its successor's error names the process within
//! `busy_timeout`, and an operator ends that process.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use palisade_fence::Error;
use palisade_fence::ErrorKind;
use palisade_fence::sqlite::{Operator, claim, transact};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::limits::t;
use super::subject::{File, Journal};
use crate::paused::Holder;

const FILE: &str = "PALISADE_TEST_SQLITE";
const STEP: &str = "PALISADE_TEST_STEP";

/// The holder's progress when it is stopped.
const STEPS: [&str; 4] = ["begin", "claim", "read", "write"];

/// The entry point of the holder; by itself it does nothing.
#[test]
fn is_started_by_other_tests() {
    let (Ok(file), Ok(step)) = (std::env::var(FILE), std::env::var(STEP)) else {
        return;
    };
    let db = Connection::open(file).unwrap();
    let tx = Transaction::new_unchecked(&db, TransactionBehavior::Immediate).unwrap();
    if step != "begin" {
        claim(&tx, "r", t(1)).unwrap();
    }
    if step == "read" {
        tx.query_one("SELECT n FROM things", [], |_| Ok(()))
            .unwrap();
    }
    if step == "write" {
        tx.execute("UPDATE things SET n = 9", []).unwrap();
    }
    println!("there");
    loop {
        std::thread::park();
    }
}

/// Starts a holder, and returns once it is in its transaction.
fn holder(file: &File, step: &str) -> Holder {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = "sqlite::stopped::is_started_by_other_tests";
    command.args(["--exact", test, "--nocapture"]);
    command.env(FILE, file.path()).env(STEP, step);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("there")));
    child.into()
}

#[test]
fn a_successor_of_a_stopped_holder_is_told_and_an_operator_ends_it() {
    for journal in [Journal::Wal, Journal::Rollback] {
        for step in STEPS {
            let file = File::new(journal);
            let mut db = file.open();
            db.execute_batch("CREATE TABLE things (n INTEGER); INSERT INTO things VALUES (0)")
                .unwrap();
            let mut holder = holder(&file, step);
            let process = holder.process();
            holder.stop();
            // `busy_timeout` is the bound: rusqlite's default is 5 s.
            db.busy_timeout(Duration::from_millis(30)).unwrap();
            let begun = transact(&mut db, "r", t(2), |_| Ok::<_, Error>(()));
            let tx = db.unchecked_transaction().unwrap();
            let claimed = claim(&tx, "r", t(2));
            drop(tx);
            let typed = format!(
                "palisade fence unblock r --url sqlite://{} --yes",
                file.path().display()
            );
            for late in [begun.unwrap_err(), claimed.unwrap_err()] {
                assert_eq!(late.kind(), ErrorKind::Retry, "{late}");
                let text = late.to_string();
                assert!(
                    text.contains(&format!("process {process} (")),
                    "{step}: {text}"
                );
                assert!(
                    text.contains(", stopped)") && text.contains(&typed),
                    "{step}: {text}"
                );
            }
            let operator = Operator::new(&mut db);
            let blockers = operator.blockers();
            let [blocker] = &blockers[..] else {
                panic!("{step}: {blockers:?}");
            };
            // Another process under the same number is left alone, and so is one that has let go.
            let mut other = blocker.clone();
            other.started += 1;
            assert!(!operator.unblock(&other).unwrap());
            assert!(operator.unblock(blocker).unwrap());
            holder.wait();
            assert!(!operator.unblock(blocker).unwrap());
            assert_eq!(operator.blockers(), []);
            let read = |tx: &Transaction<'_>| {
                tx.query_one("SELECT n FROM things", [], |row| row.get::<_, i64>(0))
                    .map_err(Error::from)
            };
            let done = transact(&mut db, "r", t(2), read).unwrap();
            assert_eq!(done, 0, "{step}: the stopped transaction was rolled back");
        }
    }
}
