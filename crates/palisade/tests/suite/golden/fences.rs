//! Fences that an earlier version raised refuse late writes, before and after this build's `palisade fence install`.

use std::path::Path;
use std::process::Output;

use mysql_async::prelude::Queryable as _;
use palisade_testbed::{MariaDb, MySql, Postgres, Redis};
use serde_json::Value;

use super::place::unpack;
use super::{Set, missing};
use crate::common::{json, palisade, status, text};

fn fence(arguments: &[&str]) -> Output {
    palisade().arg("fence").args(arguments).output().unwrap()
}

fn shows(set: &Set, kind: &str, url: &str) {
    let output = fence(&["show", "--json", "--url", url, "orders"]);
    assert_eq!(status(&output), 0, "{kind}: {}", text(&output.stderr));
    let mut owed = set.manifest["fences"][kind].clone();
    let fields = owed.as_object_mut().unwrap();
    fields.retain(|name, _| !["total", "log"].contains(&&**name));
    assert_eq!(missing(&owed, &json(&output.stdout)), None, "{kind}");
}

/// The same for all SQL servers. `run` executes statements on a connection of its own, and says whether they succeeded;
/// `write` is one fenced write under a token.
fn sql(
    set: &Set,
    kind: &str,
    url: &str,
    run: &dyn Fn(&str) -> bool,
    write: &dyn Fn(u64) -> String,
) {
    let statements = std::fs::read_to_string(set.file(&format!("fences/{kind}.sql"))).unwrap();
    assert!(run(&statements), "{kind}: the golden statements");
    for installed in [false, true] {
        if installed {
            let output = fence(&["install", kind, url, "orders"]);
            assert_eq!(status(&output), 0, "{}", text(&output.stderr));
        }
        shows(set, kind, url);
        assert!(!run(&write(33)), "{kind}: a late write");
        assert!(
            !run("UPDATE orders SET total = 0"),
            "{kind}: without a token"
        );
        assert!(run(&write(34)), "{kind}: the holder's write");
    }
    // The control: a token above is admitted, and then 34 is late.
    assert!(run(&write(35)));
    assert!(!run(&write(34)));
}

#[test]
fn a_postgres_fence_of_each_version_refuses_late_writes() {
    let server = Postgres::shared();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (at, set) in Set::all().iter().enumerate() {
        let own = format!("golden_{at}");
        let execute = |database: &str, sql: &str| {
            let url = in_database(&server.url(), database);
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
                    .await
                    .unwrap();
                tokio::spawn(connection);
                client.batch_execute(sql).await.is_ok()
            })
        };
        assert!(execute("postgres", &format!("CREATE DATABASE {own}")));
        let write = |token: u64| {
            format!(
                "BEGIN; SELECT palisade_claim('orders', {token}, 'golden', 'orders'); \
                 UPDATE orders SET total = total + 1; COMMIT"
            )
        };
        let url = in_database(&server.url(), &own);
        sql(set, "postgres", &url, &|sql| execute(&own, sql), &write);
    }
}

/// The URL of a server's other database.
fn in_database(url: &str, database: &str) -> String {
    let (server, _) = url.rsplit_once('/').unwrap();
    format!("{server}/{database}")
}

fn mysql(url: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (at, set) in Set::all().iter().enumerate() {
        let own = format!("golden_{at}");
        let execute = |database: &str, sql: &str| {
            let url = in_database(url, database);
            runtime.block_on(async {
                let pool = mysql_async::Pool::new(url.as_str());
                let mut connection = pool.get_conn().await.unwrap();
                connection.query_drop(sql).await.is_ok()
            })
        };
        assert!(execute("palisade", &format!("CREATE DATABASE {own}")));
        let write = |token: u64| {
            format!(
                "BEGIN; CALL palisade_claim('orders', '{token}', 'golden', 'orders'); \
                 UPDATE orders SET total = total + 1; CALL palisade_end(TRUE)"
            )
        };
        sql(
            set,
            "mysql",
            &in_database(url, &own),
            &|sql| execute(&own, sql),
            &write,
        );
    }
}

#[test]
fn a_mariadb_fence_of_each_version_refuses_late_writes() {
    mysql(&MariaDb::shared().url());
}

#[test]
fn a_mysql_fence_of_each_version_refuses_late_writes() {
    mysql(&MySql::shared().url());
}

#[test]
fn a_redis_mark_of_each_version_refuses_late_writes() {
    for set in Set::all() {
        let server = Redis::start(&[]);
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut ask = |words: &[&str]| {
            let mut command = redis::cmd(words[0]);
            for word in &words[1..] {
                command.arg(*word);
            }
            command.query::<redis::Value>(&mut connection).is_ok()
        };
        let commands = std::fs::read_to_string(set.file("fences/redis.json")).unwrap();
        let commands: Vec<Vec<String>> = serde_json::from_str(&commands).unwrap();
        for command in &commands {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            assert!(ask(&words), "{:?}", &words[..2]);
        }
        let mut write = |token: &str| {
            let (mark, total) = ("palisade:fence:{orders}", "{orders}:total");
            ask(&[
                "FCALL",
                "palisade_set",
                "2",
                mark,
                total,
                token,
                "42",
                "golden",
                "orders",
            ])
        };
        for installed in [false, true] {
            if installed {
                let output = fence(&["install", "redis", &server.url()]);
                assert_eq!(status(&output), 0, "{}", text(&output.stderr));
            }
            shows(&set, "redis", &server.url());
            assert!(!write("33"), "a late write");
            assert!(write("34"), "the holder's write");
        }
        assert!(write("35"));
        assert!(!write("34"));
    }
}

#[test]
fn a_file_of_sqlite_of_each_version_refuses_late_writes() {
    for set in Set::all() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("orders.db");
        let packed = std::fs::File::open(set.file("fences/sqlite.db.gz")).unwrap();
        let mut unpacked = std::fs::File::create(&file).unwrap();
        std::io::copy(&mut flate2::read::GzDecoder::new(packed), &mut unpacked).unwrap();
        let url = format!("sqlite://{}", file.display());
        let total = |sql: &str| {
            let database = rusqlite::Connection::open(&file).unwrap();
            database.execute_batch(sql)
        };
        for installed in [false, true] {
            if installed {
                let output = fence(&["install", "sqlite", &url, "orders"]);
                assert_eq!(status(&output), 0, "{}", text(&output.stderr));
            }
            shows(&set, "sqlite", &url);
            assert!(
                total("UPDATE orders SET total = 0").is_err(),
                "without a token"
            );
            let lowers = "UPDATE palisade_fence SET token = 33";
            assert!(total(lowers).is_err(), "the mark goes down");
        }
        // The control: an operator's re-arming goes up, and the mark follows.
        let rearm = fence(&["rearm", "--url", &url, "orders", "--floor", "40"]);
        assert_eq!(status(&rearm), 0, "{}", text(&rearm.stderr));
        let shown = fence(&["show", "--json", "--url", &url, "orders"]);
        assert_eq!(json(&shown.stdout)["highest"], 40);
    }
}

#[test]
fn a_folder_of_each_version_refuses_late_writes() {
    for set in Set::all() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("orders");
        unpack(&set.file("fences/files.tar.gz"), &data);
        shows(&set, "files", &format!("file://{}", dir.path().display()));
        let owed = &set.manifest["fences"]["files"];
        assert_eq!(read(&data, "total"), owed["total"]);
        assert_eq!(read(&data, "log"), owed["log"]);
        let rearm = |floor: &str| {
            let url = format!("file://{}", dir.path().display());
            status(&fence(&[
                "rearm", "--url", &url, "orders", "--floor", floor,
            ]))
        };
        assert_eq!(rearm("33"), 125, "below the mark");
        assert_eq!(rearm("40"), 0);
    }
}

fn read(folder: &Path, name: &str) -> Value {
    std::fs::read_to_string(folder.join(name)).unwrap().into()
}
