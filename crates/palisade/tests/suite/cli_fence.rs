//! `palisade fence` against a real PostgreSQL.

use std::process::Output;

use crate::common::{json, palisade, status, text, until};
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
    let server = Postgres::shared();
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
    assert!(printed.contains("SELECT palisade_grant('a\"b');"));
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
    assert!(
        text(&refused.stderr)
            .contains("another authority's tokens count from now on (--authority-id)")
    );
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
        "The fence of orders is at token 34",
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
    assert!(text(&refused.stderr).contains("the directory of neither a store nor a gateway"));
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

/// The names of a directory's files, and its identity: opening it changes both. The log is not compared, because the store
/// may write a mark into it whenever it is idle; and its next segment comes when it is prepared.
fn files(dir: &std::path::Path) -> (Vec<std::ffi::OsString>, String) {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.retain(|name| name != "next.seg");
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
    let server = palisade_testbed::MariaDb::shared();
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

/// The commands against MySQL itself, whose patterns, character sets and log-in differ from MariaDB's. The control is the
/// claim that `install` tries: with procedures that fail, it does not say that the fence is installed.
#[test]
fn mysql_of_oracle_is_fenced_and_a_fence_that_does_not_work_is_not_called_installed() {
    use mysql_async::prelude::Queryable as _;
    let server = palisade_testbed::MySql::shared();
    let url = server.url();
    let rt = tokio::runtime::Runtime::new().unwrap();
    let pool = mysql_async::Pool::new(url.as_str());
    let run = |sql: &str| {
        rt.block_on(async { pool.get_conn().await.unwrap().query_drop(sql).await })
            .is_ok()
    };
    installs_shows_and_removes("mysql", &url, run);
    assert!(run("CREATE TABLE parents (id INT PRIMARY KEY)"));
    let child = "CREATE TABLE children (id INT, FOREIGN KEY (id) REFERENCES parents (id) ON DELETE CASCADE)";
    assert!(run(child));
    let said = said(&["install", "mysql", &url, "children"]);
    assert!(said.contains("open: children: a foreign key changes its rows with those of parents"));
    assert!(said.contains("open: children: TRUNCATE"), "{said}");
    // The table of the marks is there and takes no claim.
    assert!(run("ALTER TABLE palisade_fence ADD CHECK (version < 0)"));
    let refused = fence(&["install", "mysql", &url]);
    assert_eq!(status(&refused), 125);
    let why = text(&refused.stderr);
    assert!(why.contains("does not work: a claim failed"), "{why}");
}

/// Doors are said by `install` and `ls`; a transaction that has the resource is listed and ended.
#[test]
fn what_is_open_is_said_and_a_holder_in_the_way_is_ended() {
    let server = Postgres::start(&[]);
    let url = &server.url();
    let rt = tokio::runtime::Runtime::new().unwrap();
    let db = rt.block_on(async {
        let (db, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        db
    });
    let run = |sql: &str| rt.block_on(db.batch_execute(sql)).unwrap();
    run("CREATE TABLE ev (id int) PARTITION BY RANGE (id)");
    said(&["install", "postgres", url, "ev"]);
    assert!(!said(&["ls", "--url", url]).contains("open:"));
    let authority = crate::common::Server::start();
    let doctor = || authority.output(&["doctor", "--fence", url]);
    assert!(text(&doctor().stdout).contains("1 resource is fenced, and no door is open"));
    run("CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (0) TO (100)");
    let listed = said(&["ls", "--url", url]);
    assert!(
        listed.contains("open: ev_1: ") && listed.contains("TRUNCATE"),
        "{listed}"
    );
    let found = doctor();
    assert_eq!(status(&found), 1);
    assert!(text(&found.stdout).contains("these doors are open: ev_1: "));
    assert!(!said(&["install", "postgres", url, "ev"]).contains("open:"));
    assert!(said(&["unblock", "ev", "--url", url]).contains("no transaction has ev"));
    run("BEGIN; SET LOCAL palisade.lease_left_ms = 999999999; SELECT palisade_claim('ev', 1)");
    let listed = said(&["unblock", "ev", "--url", url]);
    assert!(listed.contains("has the resource"), "{listed}");
    assert!(
        listed.contains("palisade fence unblock 'ev' --yes"),
        "{listed}"
    );
    assert!(
        rt.block_on(db.batch_execute("SELECT 1")).is_ok(),
        "listing ends nothing"
    );
    assert!(said(&["unblock", "ev", "--url", url, "--yes"]).contains(": ended"));
    assert!(rt.block_on(db.batch_execute("SELECT 1")).is_err());
}

/// On every master, and each resource at the one that has it. The control is the last master alone.
#[test]
fn a_redis_cluster_gets_the_library_on_all_masters() {
    let nodes: Vec<Redis> = (0..3)
        .map(|_| Redis::start(&["--cluster-enabled", "yes"]))
        .collect();
    let ask = |node: &Redis, words: &[&str]| -> redis::Value {
        let mut connection = redis::Client::open(node.url())
            .unwrap()
            .get_connection()
            .unwrap();
        let (name, arguments) = words.split_first().unwrap();
        redis::cmd(name)
            .arg(arguments)
            .query(&mut connection)
            .unwrap()
    };
    for (node, slots) in nodes
        .iter()
        .zip([["0", "5460"], ["5461", "10922"], ["10923", "16383"]])
    {
        ask(node, &["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]);
        for other in &nodes {
            ask(
                node,
                &["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()],
            );
        }
    }
    for node in &nodes {
        until("the nodes have met", || {
            format!("{:?}", ask(node, &["CLUSTER", "INFO"])).contains("cluster_state:ok")
        });
    }
    let url = &nodes[0].url();
    assert!(said(&["install", "redis", url]).contains("on all 3 masters"));
    for node in &nodes {
        assert!(format!("{:?}", ask(node, &["FUNCTION", "LIST"])).contains("palisade_claim"));
        assert_eq!(
            ask(node, &["DBSIZE"]),
            redis::Value::Int(0),
            "the trial leaves no mark"
        );
    }
    // These names are in the slots of different masters.
    for name in ["a", "b", "c", "d", "e"] {
        said(&["rearm", "--url", url, name, "--floor", "34"]);
        assert!(said(&["show", "--url", url, name]).contains("34"), "{name}");
    }
    let listed = said(&["ls", "--url", url]);
    assert_eq!(listed.lines().count(), 6, "{listed}");
    let sizes = nodes.iter().map(|node| ask(node, &["DBSIZE"]));
    assert!(sizes.filter(|size| *size != redis::Value::Int(0)).count() > 1);
    said(&["uninstall", "redis", url]);
    assert!(!format!("{:?}", ask(&nodes[2], &["FUNCTION", "LIST"])).contains("palisade_claim"));
}

/// A CA and a certificate for 127.0.0.1: the paths of the CA, the certificate and its key.
fn certificates(dir: &std::path::Path) -> [std::path::PathBuf; 3] {
    let output = palisade()
        .args(["--json", "auth", "cert", "127.0.0.1", "--dir"])
        .arg(dir)
        .output()
        .unwrap();
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    let made = json(&output.stdout);
    ["ca", "certificate", "key"].map(|name| made[name].as_str().unwrap().into())
}

/// Databases and Redis that speak TLS only. The controls: without the CA, and with the URL that does not ask for TLS.
#[test]
fn fences_are_reached_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let [ca, certificate, key] = certificates(dir.path());
    let with_ca = |arguments: &[&str], ca: Option<&std::path::Path>| {
        let mut command = palisade();
        command
            .env_remove("PALISADE_FENCE_URL")
            .env_remove("PALISADE_CA_FILE");
        if let Some(ca) = ca {
            command.env("PALISADE_CA_FILE", ca);
        }
        command.arg("fence").args(arguments).output().unwrap()
    };
    let path = |path: &std::path::Path| path.display().to_string();
    let redis = Redis::start(&[
        "--tls-port",
        "0",
        "--tls-auth-clients",
        "no",
        "--tls-cert-file",
        &path(&certificate),
        "--tls-key-file",
        &path(&key),
        "--tls-ca-cert-file",
        &path(&ca),
    ]);
    // A port beside the plain one, by which the testbed knows that it is ready.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut plain = redis::Client::open(redis.url())
        .unwrap()
        .get_connection()
        .unwrap();
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "tls-port", &port.to_string()])
        .query(&mut plain)
        .unwrap();

    let mysql = palisade_testbed::MySql::start(&[
        "--require-secure-transport=ON",
        &format!("--ssl-cert={}", path(&certificate)),
        &format!("--ssl-key={}", path(&key)),
        &format!("--ssl-ca={}", path(&ca)),
    ]);
    for (kind, url, bare) in [
        (
            "redis",
            format!("rediss://127.0.0.1:{port}"),
            format!("redis://127.0.0.1:{port}"),
        ),
        (
            "mysql",
            format!("{}?require_ssl=true", mysql.url()),
            mysql.url(),
        ),
    ] {
        let installed = with_ca(&["install", kind, &url], Some(&ca));
        assert_eq!(status(&installed), 0, "{kind}: {}", text(&installed.stderr));
        let listed = with_ca(&["ls", "--url", &url], Some(&ca));
        assert_eq!(status(&listed), 0, "{kind}: {}", text(&listed.stderr));
        let unknown = with_ca(&["ls", "--url", &url], None);
        assert_ne!(
            status(&unknown),
            0,
            "{kind}: a CA that nobody named is trusted"
        );
        assert_ne!(
            status(&with_ca(&["ls", "--url", &bare], Some(&ca))),
            0,
            "{kind}"
        );
    }
}

/// PostgreSQL reads its key only if it belongs to its own user.
#[test]
fn postgres_fences_are_reached_over_tls() {
    let server = Postgres::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let [ca, certificate, key] = certificates(dir.path());
    let data = server.dir().join("data");
    std::fs::copy(&certificate, data.join("server.crt")).unwrap();
    std::fs::copy(&key, data.join("server.key")).unwrap();
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&data).unwrap());
    for name in ["server.crt", "server.key"] {
        std::os::unix::fs::chown(data.join(name), Some(owner), Some(owner)).unwrap();
    }
    // The other database stays open, by which the testbed knows that the server is ready.
    let rules = "hostssl template1 all 127.0.0.1/32 trust\nhost postgres all 127.0.0.1/32 trust\n";
    std::fs::write(data.join("pg_hba.conf"), rules).unwrap();
    std::fs::write(data.join("postgresql.auto.conf"), "ssl = on\n").unwrap();
    server.start_again();
    let (ca, url) = (ca.display().to_string(), server.url());
    let (server_url, _) = url.rsplit_once('/').unwrap();
    let url = |parameters: &str| format!("{server_url}/template1?{parameters}");
    assert!(
        said(&[
            "install",
            "postgres",
            &url(&format!("sslmode=verify-full&sslrootcert={ca}"))
        ])
        .contains("installed")
    );
    said(&[
        "ls",
        "--url",
        &url(&format!(
            "sslmode=require&application_name=x&sslrootcert={ca}"
        )),
    ]);
    for (parameters, code) in [
        ("sslmode=verify-full", 125),
        ("sslmode=disable", 125),
        ("sslmode=maybe", 2),
    ] {
        let refused = fence(&["ls", "--url", &url(parameters)]);
        assert_eq!(
            status(&refused),
            code,
            "{parameters}: {}",
            text(&refused.stderr)
        );
    }
}
