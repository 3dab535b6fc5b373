//! `palisade fence` against a real PostgreSQL.

use std::process::Output;

use crate::common::{json, palisade, status, text};
use palisade_core::Token;
use palisade_fence::store::{Settings, Store};
use palisade_fence::{Admin, Rearm, Rule};
use palisade_testbed::{Postgres, Redis};

fn fence(arguments: &[&str]) -> Output {
    let mut command = palisade();
    for name in ["PGPASSWORD", "PALISADE_FENCE_URL"] {
        command.env_remove(name);
    }
    command.arg("fence").args(arguments).output().unwrap()
}

fn said(arguments: &[&str]) -> String {
    let output = fence(arguments);
    assert_eq!(
        status(&output),
        0,
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

#[test]
fn a_fence_is_installed_rearmed_shown_and_listed() {
    let server = Postgres::start(&[]);
    let url = &server.url();
    let refused = fence(&["show", "--url", url, "orders"]);
    assert_eq!(status(&refused), 125);
    assert!(text(&refused.stderr).contains("palisade fence install postgres"));

    // The printed statements are all of them, and none is run.
    let printed = said(&[
        "install",
        "postgres",
        "--print",
        "pg_none=o'r",
        "--grant",
        "a\"b",
    ]);
    assert!(printed.contains("CREATE TABLE IF NOT EXISTS palisade_fence"));
    assert!(printed.contains("SELECT palisade_sticky('pg_none', 'o''r');"));
    assert!(printed.contains("TO \"a\"\"b\";"));
    assert_eq!(status(&fence(&["ls", "--url", url])), 125);

    // If a table does not exist, nothing is installed.
    let refused = fence(&["install", "postgres", url, "nowhere"]);
    assert_eq!(status(&refused), 125);
    assert!(text(&refused.stderr).contains("\"nowhere\" does not exist"));
    assert_eq!(status(&fence(&["ls", "--url", url])), 125);

    for _ in 0..2 {
        let installed = said(&["install", "postgres", url]);
        assert!(installed.contains("installed 0001_guard_row.sql"));
        assert!(installed.contains("installed 0004_functions.sql"));
    }
    assert_eq!(said(&["ls", "--url", url]).trim(), "nothing is fenced");
    assert!(said(&["show", "--url", url, "orders"]).contains("orders is not fenced"));
    let rearm = [
        "rearm",
        "--url",
        url,
        "orders",
        "--floor",
        "34",
        "--authority-id",
        "ours",
    ];
    assert!(said(&rearm).contains("refuses every fencing token below 34"));
    let lower = ["rearm", "--url", url, "orders", "--floor", "12"];
    let refused = fence(&lower);
    assert_eq!(status(&refused), 125);
    assert!(text(&refused.stderr).contains("--lower-from 34"));
    let shown = fence(&["--json", "show", "--url", url, "orders"]);
    let shown = json(&shown.stdout);
    assert_eq!(shown["highest"], 34);
    assert_eq!(shown["authority"], "ours");
    assert_eq!(shown["written"], false);
    assert!(said(&["ls", "--url", url, "ord"]).contains("orders"));
    assert_eq!(said(&["ls", "--url", url, "x"]).trim(), "nothing is fenced");
    // A table that is fenced and has no token yet.
    said(&["install", "postgres", url, "resource_records=new"]);
    let listed = fence(&["--json", "ls", "--url", url, "ne"]);
    let listed = json(&listed.stdout);
    assert_eq!(listed["resource"], "new");
    assert_eq!(listed["highest"], serde_json::Value::Null);
    assert_eq!(listed["tables"][0], "resource_records");
    assert!(said(&["show", "--url", url, "new"]).contains("resource_records"));
    far_floors_are_asked_about(url);
    a_fence_is_removed(url);
}

/// A mistyped floor would refuse every holder; nothing but `--yes` passes it.
fn far_floors_are_asked_about(url: &str) {
    let far = ["rearm", "--url", url, "orders", "--floor", "90071992547"];
    let refused = fence(&far);
    assert_eq!(status(&refused), 2);
    let said_why = text(&refused.stderr);
    for part in [
        "orders stands at 34",
        "The highest token that was ever seen here is 34, far below 90071992547",
        "until the authority issues 90071992547",
        "palisade fence rearm 'orders' --floor 90071992547 --yes",
    ] {
        assert!(said_why.contains(part), "{part}: {said_why}");
    }
    let shown = fence(&["--json", "show", "--url", url, "orders"]);
    assert_eq!(json(&shown.stdout)["highest"], 34);
    said(&[&far[..], &["--yes"]].concat());
    let shown = fence(&["--json", "show", "--url", url, "orders"]);
    assert_eq!(json(&shown.stdout)["highest"], 90_071_992_547_u64);
}

/// From one table, then as a whole. The latter has to be confirmed.
fn a_fence_is_removed(url: &str) {
    said(&["uninstall", "postgres", url, "resource_records"]);
    let listed = fence(&["--json", "ls", "--url", url, "new"]);
    assert_eq!(text(&listed.stdout), "");
    let refused = fence(&["uninstall", "postgres", url]);
    assert_eq!(status(&refused), 2);
    let why = text(&refused.stderr);
    assert!(why.contains("the highest: 90071992547"), "{why}");
    assert!(said(&["ls", "--url", url]).contains("orders"));
    let printed = said(&["uninstall", "postgres", "--print"]);
    assert!(printed.contains("DROP TABLE IF EXISTS palisade_fence"));
    assert!(said(&["uninstall", "postgres", url, "--yes"]).contains("removed the fence"));
    assert_eq!(status(&fence(&["ls", "--url", url])), 125);
    assert!(said(&["install", "postgres", url]).contains("installed"));
}

/// The directory of a store; a gateway's marks have the same form.
#[test]
fn a_directory_is_listed_while_it_is_served_and_rearmed_while_it_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (data, gateway) = (dir.path().join("d"), dir.path().join("g"));
    let path = |dir: &std::path::Path| dir.to_str().unwrap().to_owned();
    let refused = fence(&["ls", "--data", &path(&data)]);
    assert_eq!(status(&refused), 2);
    assert!(text(&refused.stderr).contains("there are neither a store"));
    assert!(!data.exists(), "`show` creates nothing");

    for (shown, made) in [(&data, data.clone()), (&gateway, gateway.join("marks"))] {
        let settings = Settings::default().with_rule(Rule::STRICT);
        let store = Store::open(&made, &settings).unwrap();
        let shown = path(shown);
        for floor in [3, 4] {
            raised(&store, floor);
            let before = files(&made);
            let seen = fence(&["--json", "show", "--data", &shown, "served"]);
            assert_eq!(json(&seen.stdout)["highest"], floor, "{seen:?}");
            assert!(said(&["ls", "--data", &shown]).contains("served"));
            assert_eq!(files(&made), before, "a look changed something");
        }
        let running = fence(&["rearm", "--data", &shown, "orders", "--floor", "34"]);
        assert_eq!(status(&running), 125);
        assert!(text(&running.stderr).contains("stop the store or the gateway"));
        drop(store);
        let rearm = ["rearm", "--data", &shown, "orders", "--floor", "34"];
        assert!(said(&rearm).contains("refuses every fencing token below 34"));
        let refused = fence(&["rearm", "--data", &shown, "orders", "--floor", "12"]);
        assert_eq!(status(&refused), 125);
        assert!(text(&refused.stderr).contains("--lower-from 34"));
        assert!(said(&["ls", "--data", &shown]).contains("orders"));
        assert!(said(&["show", "--data", &shown, "orders"]).contains("34"));
    }
}

/// Raises the fence of `served`.
fn raised(store: &Store, floor: u64) {
    let rearm = Rearm {
        floor: Token::new(floor).unwrap(),
        authority: None,
        lower_from: None,
    };
    let done = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(Admin::rearm(&mut store.clone(), "served", &rearm));
    done.unwrap();
}

/// The names of a directory's files, and what its identity says: an opening changes both. The log belongs to the store, which
/// may write a mark into it whenever it is idle.
fn files(dir: &std::path::Path) -> (Vec<std::ffi::OsString>, String) {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.sort();
    (
        names,
        std::fs::read_to_string(dir.join("identity")).unwrap(),
    )
}

/// The common answers of all kinds of resources, after `orders` was re-armed.
fn shows_and_rearms(url: &str) {
    assert!(said(&["show", "--url", url, "orders"]).contains("orders is not fenced"));
    let rearm = ["rearm", "--url", url, "orders", "--floor", "34"];
    assert!(said(&rearm).contains("refuses every fencing token below 34"));
    let refused = fence(&["rearm", "--url", url, "orders", "--floor", "12"]);
    assert_eq!(status(&refused), 125);
    assert!(text(&refused.stderr).contains("--lower-from 34"));
    let shown = fence(&["--json", "show", "--url", url, "orders"]);
    assert_eq!(json(&shown.stdout)["highest"], 34);
    assert!(said(&["ls", "--url", url, "ord"]).contains("orders"));
    assert_eq!(said(&["ls", "--url", url, "x"]).trim(), "nothing is fenced");
    let bad = fence(&["show", "--url", url, ""]);
    assert_eq!(status(&bad), 2, "{}", text(&bad.stderr));
}

#[test]
fn redis_fences_are_shown_and_rearmed() {
    let server = Redis::start(&[]);
    let url = &server.url();
    shows_and_rearms(url);
    assert!(
        said(&["install", "redis", "--print"])
            .starts_with("-- the function library palisade\n#!lua name=palisade")
    );
    for _ in 0..2 {
        assert!(
            said(&["install", "redis", url]).contains("installed the function library palisade")
        );
    }
    let refused = fence(&["install", "redis", url, "orders"]);
    assert_eq!(status(&refused), 2);
    assert!(text(&refused.stderr).contains("no triggers"));
    assert!(said(&["uninstall", "redis", url]).contains("the marks stay"));
    assert!(said(&["ls", "--url", url]).contains("orders"));
}

/// Installs with a table, shows it before its first token, and removes the fence of the table, then all of it. `run`
/// executes a statement, and returns whether it succeeded.
fn installs_shows_and_removes(kind: &str, url: &str, run: impl Fn(&str) -> bool) {
    assert!(run("CREATE TABLE shop (total INTEGER)"));
    let refused = fence(&["ls", "--url", url]);
    assert_eq!(status(&refused), 125);
    assert!(text(&refused.stderr).contains("palisade fence install"));
    let printed = said(&["install", kind, "--print", "shop=goods"]);
    assert!(printed.contains("CREATE TABLE IF NOT EXISTS palisade_fence"));
    assert!(run("INSERT INTO shop VALUES (1)"), "printing runs nothing");
    for _ in 0..2 {
        assert!(
            said(&["install", kind, url, "shop=goods"]).contains("installed fenced table shop")
        );
    }
    assert!(!run("INSERT INTO shop VALUES (1)"), "the table is fenced");
    let listed = json(&fence(&["--json", "ls", "--url", url]).stdout);
    assert_eq!(listed["resource"], "goods");
    assert_eq!(listed["highest"], serde_json::Value::Null);
    assert_eq!(listed["tables"][0], "shop");
    shows_and_rearms(url);
    said(&["uninstall", kind, url, "shop"]);
    assert!(run("INSERT INTO shop VALUES (1)"));
    said(&["install", kind, url, "shop=goods"]);
    let refused = fence(&["uninstall", kind, url]);
    assert_eq!(status(&refused), 2);
    let why = text(&refused.stderr);
    assert!(why.contains("shop would take writes"), "{why}");
    assert!(!run("INSERT INTO shop VALUES (1)"), "nothing was removed");
    assert!(said(&["uninstall", kind, url, "--yes"]).contains("removed the fence"));
    assert!(run("INSERT INTO shop VALUES (1)"));
    assert_eq!(status(&fence(&["ls", "--url", url])), 125);
}

#[test]
fn sqlite_fences_are_installed_shown_rearmed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shop.db");
    let url = format!("sqlite://{}", path.display());
    // A connection that is older than the removal may still see the triggers.
    installs_shows_and_removes("sqlite", &url, |sql| {
        let db = rusqlite::Connection::open(&path).unwrap();
        db.execute_batch(sql).is_ok()
    });
    let missing = format!("sqlite://{}/none.db", dir.path().display());
    assert_eq!(status(&fence(&["ls", "--url", &missing])), 2);
    assert!(!dir.path().join("none.db").exists(), "`ls` creates nothing");
}

#[test]
fn mysql_fences_are_installed_shown_rearmed_and_removed() {
    use mysql_async::prelude::Queryable as _;
    let server = palisade_testbed::MariaDb::start(&[]);
    let url = server.url();
    let rt = tokio::runtime::Runtime::new().unwrap();
    let pool = mysql_async::Pool::new(url.as_str());
    installs_shows_and_removes("mysql", &url, |sql| {
        let statement = async {
            let mut db = pool.get_conn().await.unwrap();
            db.query_drop(sql).await
        };
        rt.block_on(statement).is_ok()
    });
}

#[test]
fn folder_fences_are_shown_and_rearmed() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("orders")).unwrap();
    shows_and_rearms(&format!("file://{}", root.path().display()));
}

#[test]
fn an_error_names_its_cause() {
    for (arguments, code, message) in [
        (&["install", "postgres"][..], 2, "--url"),
        (&["install", "oracle", "--print"], 2, "oracle"),
        (
            &["install", "postgres", "--print", "=x"],
            2,
            "TABLE=RESOURCE",
        ),
        (
            &["install", "postgres", "--print", "t="],
            2,
            "resource_id is empty",
        ),
        (
            &["install", "postgres", "file:///tmp"],
            2,
            "another kind of database",
        ),
        (
            &["show", "--url", "gopher://secret@x", "r"],
            2,
            "gopher:// is not supported",
        ),
        (
            &["show", "--url", "nothing", "r"],
            2,
            "the scheme is missing",
        ),
        (&["show", "--url", "file://x", "r"], 2, "absolute path"),
        (
            &["show", "--url", "redis://127.0.0.1:1", "r"],
            125,
            "is Redis running",
        ),
        (
            &["rearm", "--url", "postgres://x", "r", "--floor", "0"],
            2,
            "between 1 and 9007199254740991",
        ),
        (&["rearm", "--url", "postgres://x", "r"], 2, "--floor"),
        (
            &["show", "--url", "postgres://u@127.0.0.1:1/d", "r"],
            125,
            "is the database running",
        ),
    ] {
        let output = fence(arguments);
        let said = text(&output.stderr);
        assert_eq!(status(&output), code, "{arguments:?}: {said}");
        assert!(said.contains(message), "{arguments:?}: {said}");
        assert!(!said.contains("secret"), "{said}");
    }
}
