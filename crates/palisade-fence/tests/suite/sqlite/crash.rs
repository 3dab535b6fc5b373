//! A process is killed at any point of its fenced writes. Acknowledged writes stay; others leave no trace,
//! neither in the data nor in the fence.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use palisade_core::Token;
use palisade_fence::Admin as _;
use palisade_fence::Error;
use palisade_fence::sqlite::{Operator, claim, sticky};

use super::subject::{File, Journal, carry_out, now, open};

const CHILD: &str = "PALISADE_SQLITE_CRASH";

/// The number of kills, unless `PALISADE_SQLITE_KILLS` overrides it.
fn kills() -> u64 {
    let setting = std::env::var("PALISADE_SQLITE_KILLS").ok();
    setting.map_or(60, |text| text.parse().unwrap())
}

/// Claims and writes forever, each time under the next token, and reports each acknowledged commit.
fn write_until_killed(path: &Path) {
    let mut db = open(path);
    let state = now(Operator::new(&mut db).show("r")).unwrap();
    let last = state.and_then(|state| state.highest());
    for number in last.map_or(1, |token| token.get() + 1).. {
        carry_out(&mut db, |tx| {
            claim(tx, "r", Token::new(number).unwrap())?;
            let number = i64::try_from(number).unwrap();
            tx.execute("UPDATE things SET number = ?1", [number])?;
            tx.execute("UPDATE others SET number = ?1", [number])?;
            Ok::<_, Error>(())
        })
        .unwrap();
        println!("\n{number}");
        std::io::stdout().flush().unwrap();
    }
}

/// The process that is killed: this same test, started again by the one below. By itself it does nothing.
#[test]
fn the_process_that_is_killed() {
    if let Some(path) = std::env::var_os(CHILD) {
        write_until_killed(Path::new(&path));
    }
}

/// Starts the writer and kills it shortly after its `rounds`-th commit; returns the last commit that it
/// acknowledged.
fn kill_one(path: &Path, rounds: usize, spins: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "sqlite::crash::the_process_that_is_killed",
            "--nocapture",
        ])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut commits = said
        .map_while(Result::ok)
        .filter_map(|line| line.parse().ok());
    let mut last = commits.nth(rounds).unwrap();
    (0..spins).for_each(|_| std::hint::spin_loop());
    child.kill().unwrap();
    child.wait().unwrap();
    // Reports from before its death count.
    for number in commits {
        last = number;
    }
    last
}

fn fence_and_data_are_consistent(journal: Journal) {
    let file = File::new(journal);
    let tables = "CREATE TABLE things (number INTEGER); INSERT INTO things VALUES (0);
        CREATE TABLE others (number INTEGER); INSERT INTO others VALUES (0);";
    file.open().execute_batch(tables).unwrap();
    let triggers = sticky("things", "r").unwrap() + &sticky("others", "r").unwrap();
    file.open().execute_batch(&triggers).unwrap();
    let (mut dice, mut unacknowledged) = (0x9e37_79b9_7f4a_7c15_u64, 0);
    for kill in 0..kills() {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let acknowledged = kill_one(&file.path(), (dice >> 32) as usize % 4, dice % 30_000);
        let mut db = file.open();
        let fence = now(Operator::new(&mut db).show("r")).unwrap();
        let highest = fence.unwrap().highest().unwrap().get();
        let number = |table: &str| {
            let sql = format!("SELECT number FROM {table}");
            db.query_one(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
        };
        assert_eq!(number("things"), highest as i64, "{journal:?}, kill {kill}");
        assert_eq!(number("others"), highest as i64, "{journal:?}, kill {kill}");
        // It may have died between the commit and its report.
        assert!(highest == acknowledged || highest == acknowledged + 1);
        unacknowledged += highest - acknowledged;
        let sound: String = db
            .query_one("PRAGMA integrity_check", [], |row| row.get(0))
            .unwrap();
        assert_eq!(sound, "ok");
    }
    println!("{journal:?}: {unacknowledged} commits without a report");
}

#[test]
fn a_killed_process_leaves_fence_and_data_together() {
    fence_and_data_are_consistent(Journal::Wal);
    fence_and_data_are_consistent(Journal::Rollback);
}
