//! `palisade fence unblock` in MySQL and MariaDB, and where a process has the lock of a file, which no server can end.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use mysql_async::prelude::Queryable as _;
use palisade_testbed::{MariaDb, MySql};

use crate::common::{json, palisade, status, text};

/// A program that says when it has the lock, and has it until it ends.
struct Holder(Child);

impl Holder {
    fn start(program: &str, path: &Path) -> Holder {
        let mut command = Command::new("python3");
        command
            .args(["-c", program])
            .arg(path)
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("install the Debian package python3");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "locked\n");
        Holder(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const FLOCK: &str = "import fcntl, sys, time
file = open(sys.argv[1] + '/.palisade-lock', 'w')
fcntl.flock(file, fcntl.LOCK_EX)
print('locked', flush=True)
time.sleep(600)";

const TRANSACTION: &str = "import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('BEGIN IMMEDIATE')
print('locked', flush=True)
time.sleep(600)";

fn unblock(url: &str, more: &[&str]) -> String {
    let mut command = palisade();
    command
        .args(["fence", "unblock", "reports", "--url", url])
        .args(more);
    let output = command.output().unwrap();
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_process_that_has_a_files_lock_is_listed_and_ended() {
    let place = tempfile::tempdir().unwrap();
    let (folder, file) = (place.path().join("reports"), place.path().join("db"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(&file, "").unwrap();
    let folders = format!("file://{}", place.path().display());
    let database = format!("sqlite://{}", file.display());
    for (url, program, path) in [(folders, FLOCK, &folder), (database, TRANSACTION, &file)] {
        let nobody = unblock(&url, &[]);
        assert!(
            nobody.contains("no process of this machine has the lock of reports"),
            "{nobody}"
        );
        let mut holder = Holder::start(program, path);
        let process = holder.0.id();
        let listed = unblock(&url, &[]);
        assert!(
            listed.contains(&format!("process {process} (python3): has the lock")),
            "{listed}"
        );
        assert!(
            listed.contains("to end them: palisade fence unblock 'reports' --yes"),
            "{listed}"
        );
        let listed = json(unblock(&url, &["--json"]).as_bytes());
        assert_eq!(
            (&listed["process"], &listed["ended"]),
            (&process.into(), &false.into())
        );
        // Listing ends nothing.
        assert!(holder.0.try_wait().unwrap().is_none());
        let ended = unblock(&url, &["--yes"]);
        assert!(
            ended.contains(&format!("process {process} (python3): ended")),
            "{ended}"
        );
        holder.0.wait().unwrap();
        assert!(unblock(&url, &["--yes"]).contains("no process"));
    }
}

/// There the holder's number is another process's, which would be ended. The control sees the holder.
#[test]
fn a_proc_of_another_namespace_names_nobody_to_end() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("reports");
    std::fs::create_dir(&folder).unwrap();
    let url = format!("file://{}", place.path().display());
    let mut holder = Holder::start(FLOCK, &folder);
    let number = holder.0.id();
    assert!(unblock(&url, &[]).contains(&format!("process {number}")));
    // A kernel that lets nobody choose the next number gives the bystander another one, which shows less.
    let script = r#"
        echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid
        sleep 600 & bystander=$!
        "$2" fence unblock reports --url "$3" --yes
        kill $bystander
        wait $bystander
        echo "ended with $?""#;
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "sh", "-c", script, "sh"])
        .args([&number.to_string(), env!("CARGO_BIN_EXE_palisade"), &url])
        .output()
        .unwrap();
    let said = text(&output.stdout);
    assert!(
        said.contains("no process of this machine has the lock"),
        "{said}"
    );
    assert!(said.contains("ended with 143"), "by our SIGTERM: {said}");
    assert!(holder.0.try_wait().unwrap().is_none());
}

/// Its connection is closed, and its transaction rolled back. The control is a user without the rights to see that.
#[test]
fn a_transaction_in_mysql_is_listed_and_ended() {
    let (mysql, mariadb) = (MySql::start(&[]), MariaDb::start(&[]));
    for url in [mysql.url(), mariadb.url()] {
        let mut install = palisade();
        install.args(["fence", "install", "mysql", &url]);
        let output = install.output().unwrap();
        assert_eq!(status(&output), 0, "{}", text(&output.stderr));
        let rt = tokio::runtime::Runtime::new().unwrap();
        let connect = || {
            let opts = mysql_async::Opts::from_url(&url).unwrap();
            rt.block_on(mysql_async::Conn::new(opts)).unwrap()
        };
        let nobody = unblock(&url, &[]);
        assert!(nobody.contains("no transaction has reports"), "{nobody}");
        let mut holder = connect();
        let mut run = |sql: &str| rt.block_on(holder.query_drop(sql));
        run("SET @palisade_lease_left_ms = 600000").unwrap();
        run("BEGIN").unwrap();
        run("CALL palisade_claim('reports', 1, NULL, NULL)").unwrap();
        let listed = unblock(&url, &[]);
        assert!(listed.contains("has the resource"), "{listed}");
        assert!(
            listed.contains("to end them: palisade fence unblock 'reports' --yes"),
            "{listed}"
        );
        let listed = json(unblock(&url, &["--json"]).as_bytes());
        assert_eq!(listed["ended"], false);
        run("SELECT 1").unwrap();
        let mut admin = connect();
        for sql in [
            "CREATE USER 'few'@'%'",
            "GRANT SELECT, UPDATE ON palisade_fence TO 'few'@'%'",
        ] {
            rt.block_on(admin.query_drop(sql)).unwrap();
        }
        let mut refused = palisade();
        let few = url.replacen("palisade@", "few@", 1);
        refused.args(["fence", "unblock", "reports", "--url", &few, "--yes"]);
        let refused = refused.output().unwrap();
        let why = text(&refused.stderr);
        assert!(
            status(&refused) == 125 && why.contains("needs PROCESS"),
            "{why}"
        );
        run("SELECT 1").unwrap();
        let ended = unblock(&url, &["--yes"]);
        assert!(ended.contains(": ended"), "{ended}");
        assert!(run("SELECT 1").is_err());
        assert!(unblock(&url, &["--yes"]).contains("no transaction has reports"));
    }
}
