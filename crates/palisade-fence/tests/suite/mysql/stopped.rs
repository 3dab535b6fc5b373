//! A holder whose process is stopped inside its transaction (rule F12): its successor waits within a bound. MariaDB has a
//! bound for transactions, which a claim sets; MySQL has only the connection's `wait_timeout`, which its program sets.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use palisade_fence::FaultKind;
use palisade_fence::mysql::{claim, transact};
use rustix::process::{Pid, Signal, kill_process};

use super::Server;
use super::limits::{begin, fresh, t};
use super::subject::connect;

/// A shell that runs these statements and waits for more.
struct Holder(Child);

impl Holder {
    fn runs(url: &str, sql: &str) -> Holder {
        let port = format!("--port={}", Server::shared().port());
        let (_, database) = url.rsplit_once('/').unwrap();
        let mut shell = Command::new("/usr/bin/mariadb");
        shell.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", &port]);
        shell.args(["--unbuffered", "--user=palisade", database]);
        shell.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = shell
            .spawn()
            .expect("install the Debian package mariadb-client");
        let stdin = child.stdin.as_mut().unwrap();
        stdin.write_all(sql.as_bytes()).unwrap();
        stdin.flush().unwrap();
        Holder(child)
    }

    fn stop(&self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const STEPS: [&str; 3] = [
    "CALL palisade_claim('r', 1, NULL, NULL);",
    "CALL palisade_claim('r', 1, NULL, NULL); SELECT n FROM things;",
    "CALL palisade_claim('r', 1, NULL, NULL); UPDATE things SET n = 9;",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_of_a_stopped_holder_is_admitted_within_the_bound() {
    let bound = "SET @palisade_lease_left_ms = 1000, SESSION wait_timeout = 2;";
    for (step, bounded) in STEPS.iter().flat_map(|step| [(step, true), (step, false)]) {
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
        let holder = Holder::runs(
            &url,
            &format!("{bound} BEGIN; {step} SELECT GET_LOCK('{name}', 0);\n"),
        );
        let there = format!("SELECT IS_USED_LOCK('{name}') IS NOT NULL");
        while db.query_first::<bool, _>(&there).await.unwrap() == Some(false) {
            tokio::time::sleep(Duration::from_millis(10)).await; // real time: another process has to get there
        }
        holder.stop();
        let mut successor = connect(&url, false).await.unwrap();
        // The control is the holder without a bound: it outlasts a time-out that is longer than the bound.
        let seconds = if bounded { 50 } else { 4 };
        let sql = format!("SET SESSION innodb_lock_wait_timeout = {seconds}");
        successor.query_drop(sql).await.unwrap();
        let mut tx = begin(&mut successor).await;
        match claim(&mut tx, "r", t(2)).await {
            Ok(claimed) => {
                assert!(bounded && claimed.is_admitted(), "{step}");
                let n: Option<i64> = tx.query_first("SELECT n FROM things").await.unwrap();
                assert_eq!(
                    n,
                    Some(0),
                    "{step}: the stopped transaction was rolled back"
                );
            }
            Err(fault) => {
                assert!(!bounded, "{step}: {fault}");
                assert_eq!(fault.kind(), FaultKind::Retry);
            }
        }
        tx.rollback().await.unwrap();
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Many holders, each with a token of its own, add to what they read. None of the acknowledged adds is lost.
#[tokio::test(flavor = "multi_thread")]
async fn transact_loses_no_add() {
    let (url, mut db) = fresh().await;
    let table =
        "CREATE TABLE things (n BIGINT NOT NULL) ENGINE = InnoDB; INSERT INTO things VALUES (0);";
    super::subject::script(&url, table).await;
    let next = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(1));
    let mut holders = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (url, next) = (url.clone(), next.clone());
        holders.spawn(async move {
            let mut db = connect(&url, false).await.unwrap();
            let mut added = 0_i64;
            for _ in 0..50 {
                let token = t(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
                let done = transact(&mut db, "r", token, None, async |tx| {
                    let n: Option<i64> = tx.query_first("SELECT n FROM things").await?;
                    tx.exec_drop("UPDATE things SET n = ?", (n.unwrap_or(0) + 1,))
                        .await?;
                    Ok::<_, AnyError>(())
                });
                // Others replace procedures on this server: error 1615 is Retry.
                added += i64::from(done.await.is_ok_and(|done| done.is_admitted()));
            }
            added
        });
    }
    let added: i64 = holders.join_all().await.into_iter().sum();
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
}
