//! `acquire`, `renew`, `release`, `ls`, `show`, `watch` and `break` against a real server.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::common::{Run, Server, json, palisade, status, text};
use serde_json::Value;

/// Without a reader nobody could release the lock. The control is a listing, which ends quietly.
#[test]
fn a_grant_that_nobody_reads_is_given_back() {
    let server = Server::start();
    let unread = |arguments: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = server.palisade(arguments);
        command.stdout(writer).stderr(Stdio::piped());
        command.spawn().unwrap().wait_with_output().unwrap()
    };
    let given_back = unread(&["acquire", "x", "--ttl", "1h"]);
    assert_eq!(status(&given_back), 125);
    assert!(text(&given_back.stderr).contains("standard output"));
    assert_eq!(server.show("x")["holder"], Value::Null);
    server.output(&["acquire", "y", "--ttl", "1h"]);
    for quiet in [
        &["ls"][..],
        &["show", "y"],
        &["doctor"],
        &["--help"],
        &["history"],
    ] {
        let output = unread(quiet);
        assert_eq!(
            (status(&output), text(&output.stderr)),
            (0, String::new()),
            "{quiet:?}"
        );
    }
}

#[test]
fn acquire_prints_what_the_holder_needs() {
    let server = Server::start();
    let before = crate::common::now().as_nanos() / 1_000_000;
    let output = server.output(&[
        "acquire",
        "orders",
        "--ttl",
        "10s",
        "--client-id",
        "me",
        "--json",
    ]);
    let reply = json(&output.stdout);
    assert_eq!(status(&output), 0);
    assert_eq!(
        (&reply["resource_id"], &reply["lock_acquired"]),
        (&"orders".into(), &true.into())
    );
    assert_eq!(
        (&reply["fencing_token"], &reply["lease_duration_ms"]),
        (&1.into(), &10_000.into())
    );
    assert_eq!(reply["client_id"], "me");
    assert_eq!(reply["lock_token"].as_str().unwrap().len(), 32);
    assert!(reply["acquired_at"].as_str().unwrap().ends_with('Z'));
    let deadline = reply["deadline_ms"].as_u64().unwrap();
    assert!(deadline > before + 9_000 && deadline < before + 20_000);
    let plain = server.output(&["acquire", "other"]);
    assert!(
        text(&plain.stdout).contains("fencing token") && text(&plain.stdout).contains("lock_token")
    );
    assert!(
        !text(&plain.stdout).contains('\x1b'),
        "colours only on a terminal"
    );
}

#[test]
fn a_held_lock_is_124_and_names_its_holder() {
    let server = Server::start();
    server.output(&["acquire", "orders", "--client-id", "me", "--ttl", "1h"]);
    let output = server.output(&["acquire", "orders", "-n"]);
    assert_eq!(status(&output), 124);
    assert!(
        text(&output.stderr).contains("orders is held by me with token 1"),
        "{}",
        text(&output.stderr)
    );
    let output = server.output(&["acquire", "orders", "-w", "10ms", "--json"]);
    assert_eq!(status(&output), 124);
    assert_eq!(json(&output.stderr)["error"]["holder"]["client_id"], "me");
    // The same client id counts as the same client, which takes its own lock over.
    let output = server.output(&["acquire", "orders", "-n", "--client-id", "me", "--json"]);
    assert_eq!(json(&output.stdout)["fencing_token"], 2);
}

#[test]
fn eval_accepts_the_output_of_export() {
    let server = Server::start();
    let script = r#"
        eval "$("$PALISADE" acquire "it's \$HOME" --ttl 1h --export)" || exit
        test "$PALISADE_LOCK" = "it's \$HOME" && test "$PALISADE_FENCING_TOKEN" = 1 && "$PALISADE" renew &&
        "$PALISADE" release && "$PALISADE" release && ! "$PALISADE" renew
    "#;
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .env("PALISADE", env!("CARGO_BIN_EXE_palisade"));
    let output = command
        .env("PALISADE_AUTHORITY", &server.url)
        .output()
        .unwrap();
    assert_eq!(
        status(&output),
        0,
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    assert!(text(&output.stdout).contains("was already released"));
    assert!(text(&output.stderr).contains("was already released"));
}

fn acquired(server: &Server) -> Value {
    json(
        &server
            .output(&["acquire", "orders", "--ttl", "1h", "--json"])
            .stdout,
    )
}

#[test]
fn the_secret_may_come_from_a_file_or_standard_input() {
    let server = Server::start();
    let key = acquired(&server)["lock_token"].as_str().unwrap().to_owned();
    fs::write(server.file("secret"), format!("{key}\n")).unwrap();
    let output = server.output(&[
        "renew",
        "orders",
        "--ttl",
        "2h",
        "--lock-token-file",
        "secret",
        "--json",
    ]);
    assert_eq!(
        json(&output.stdout)["lease_duration_ms"],
        7_200_000,
        "{}",
        text(&output.stderr)
    );
    let mut command = server.palisade(&["release", "orders", "--lock-token-file", "-", "--json"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(child.stdin.take().unwrap(), "{key}").unwrap();
    let reply = json(&child.wait_with_output().unwrap().stdout);
    assert_eq!(
        (&reply["released"], &reply["already_released"]),
        (&true.into(), &false.into())
    );
}

#[test]
fn a_release_that_names_another_token_does_not_touch_the_lock() {
    let server = Server::start();
    let key = acquired(&server)["lock_token"].as_str().unwrap().to_owned();
    let output = server
        .palisade(&["release", "orders", "--token", "7"])
        .env("PALISADE_LOCK_TOKEN", &key)
        .output()
        .unwrap();
    assert_eq!(status(&output), 123, "{}", text(&output.stderr));
    assert_eq!(server.show("orders")["holder"]["fencing_token"], 1);
}

#[test]
fn ls_and_show_name_the_holder() {
    let server = Server::start();
    assert_eq!(text(&server.output(&["ls"]).stdout), "no lock is held\n");
    assert_eq!(
        text(&server.output(&["show", "a/1"]).stdout),
        "a/1 is free\n"
    );
    assert_eq!(server.show("a/1")["holder"], Value::Null);
    for lock in ["a/2", "b", "a/1"] {
        server.output(&[
            "acquire",
            lock,
            "--ttl",
            "1h",
            "--client-id",
            "me",
            "--metadata",
            "since \x1b[31mred",
        ]);
    }
    let names = |output: &std::process::Output| -> Vec<String> {
        let lines = text(&output.stdout);
        let names = lines.lines().map(|line| {
            json(line.as_bytes())["resource_id"]
                .as_str()
                .unwrap()
                .to_owned()
        });
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names
    };
    assert_eq!(
        names(&server.output(&["ls", "--json"])),
        ["a/1", "a/2", "b"]
    );
    assert_eq!(
        names(&server.output(&["ls", "a/", "--json"])),
        ["a/1", "a/2"]
    );
    let table = text(&server.output(&["ls"]).stdout);
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.starts_with("LOCK  TOKEN"), "{table}");
    assert!(table.lines().skip(1).is_sorted(), "{table}");
    let shown = text(&server.output(&["show", "b"]).stdout);
    assert!(shown.contains("me") && shown.contains("since"), "{shown}");
    assert!(
        !shown.contains('\x1b'),
        "a client's text cannot control the terminal"
    );
}

#[test]
fn watch_prints_what_happens() {
    let server = Server::start();
    let seen = fs::File::create(server.file("seen")).unwrap();
    let mut command = server.palisade(&["watch", "orders", "--json"]);
    let watch = Run::keep(command.stdout(seen).spawn().unwrap());
    let events = || -> Vec<Value> {
        let lines = fs::read_to_string(server.file("seen")).unwrap();
        lines.lines().map(|line| json(line.as_bytes())).collect()
    };
    // It prints events from the moment it is open, so the test makes events until it is.
    crate::common::until("the watch to be open", || {
        server.output(&["run", "orders/try", "--", "true"]);
        !events().is_empty()
    });
    let token = acquired(&server)["fencing_token"].as_u64().unwrap();
    server.output(&["acquire", "unwatched", "--ttl", "1h"]);
    server.output(&[
        "break",
        "orders",
        "--token",
        &token.to_string(),
        "--reason",
        "test",
    ]);
    let about = || -> Vec<Value> {
        events()
            .into_iter()
            .filter(|event| event["resource_id"] == "orders")
            .collect()
    };
    crate::common::until("both events", || about().len() >= 2);
    drop(watch);
    let seen = about();
    assert_eq!(
        (&seen[0]["event"], &seen[0]["fencing_token"]),
        (&"granted".into(), &token.into())
    );
    assert_eq!(
        (&seen[1]["event"], &seen[1]["reason"]),
        (&"revoked".into(), &"test".into())
    );
    assert!(
        events()
            .iter()
            .all(|event| event["resource_id"] != "unwatched")
    );
}

#[test]
fn break_takes_the_lock_from_its_holder_once() {
    let server = Server::start();
    let key = acquired(&server)["lock_token"].as_str().unwrap().to_owned();
    let revoke = [
        "break",
        "orders",
        "--token",
        "1",
        "--reason",
        "its host is gone",
        "--json",
    ];
    assert_eq!(
        json(&server.output(&revoke).stdout)["already_revoked"],
        false
    );
    assert!(server.show("orders")["holder"].is_null());
    let output = server
        .palisade(&["renew", "orders", "--json"])
        .env("PALISADE_LOCK_TOKEN", key)
        .output()
        .unwrap();
    assert_eq!(
        (
            status(&output),
            json(&output.stderr)["error"]["code"].clone()
        ),
        (123, "revoked".into())
    );
    assert_eq!(
        json(&server.output(&["acquire", "orders", "-n", "--json"]).stdout)["fencing_token"],
        2
    );
}

#[test]
fn restore_opens_a_backup_and_tokens_leap() {
    let server = Server::start();
    acquired(&server);
    let data = server.file("data").display().to_string();
    let output = server.output(&["backup", "copy", "--data", &data, "--json"]);
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    let output = server.output(&["restore", "copy", "--data", "again", "--json"]);
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    assert!(json(&output.stdout)["next_token"].as_u64().unwrap() > 1 << 44);
    let output = server.output(&["serve", "--listen", "127.0.0.1:0", "--data", "copy"]);
    assert_eq!(status(&output), 125, "serve refuses a backup");
    let output = server.output(&["serve", "--listen", "127.0.0.1:0", "--data", &data]);
    assert_eq!(status(&output), 125, "and a directory in use is refused");
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    let server = Server::start();
    let data = server.file("data").display().to_string();
    for arguments in [
        &["backup", "copy", "--data", &data][..],
        &["restore", "copy", "--data", "again"],
        &["bench", "--duration", "50ms", "--warmup", "0s"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = server.palisade(arguments);
        let output = command.stdout(writer).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(
            (status(&output), said.contains("panicked")),
            (0, false),
            "{said}"
        );
    }
}

#[test]
fn a_load_of_sets_says_what_they_wait_and_cost() {
    let server = Server::start();
    let arguments = [
        "bench",
        "--mode",
        "sets",
        "--clients",
        "8",
        "--in-flight",
        "2",
    ];
    let times = [
        "--hold",
        "1ms",
        "--duration",
        "2s",
        "--warmup",
        "0s",
        "--json",
    ];
    let output = server.output(&[&arguments[..], &times].concat());
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    let report = json(&output.stdout);
    for ratio in ["median_to_alone", "beside_to_alone", "rate_beside_to_alone"] {
        assert!(report["sets"][ratio].as_f64().unwrap() > 0.0, "{report}");
    }
    // M2; the control is a unit test of the bound.
    let sets = &report["sets"];
    assert!(
        sets["bounded"].as_u64() > Some(0) && sets["late"] == 0,
        "{report}"
    );
    assert!(
        sets["longest_wait_to_bound"].as_f64().unwrap() <= 1.0,
        "{report}"
    );
    let own = ["bench", "--duration", "50ms", "--warmup", "0s", "--json"];
    let own = json(&server.output(&own).stdout);
    assert!(own["sets"].is_null(), "control arm: {own}");
}

#[test]
fn several_addresses_name_one_authority_and_a_dead_one_is_passed_over() {
    let server = Server::start();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = nobody.local_addr().unwrap();
    drop(nobody);
    let urls = format!("http://{dead},{}", server.address());
    let output = |urls: &str, arguments: &[&str]| {
        let mut command = palisade();
        command.args(arguments).env("PALISADE_AUTHORITY", urls);
        command.output().unwrap()
    };
    for arguments in [
        &["run", "orders", "--", "true"][..],
        &["acquire", "orders", "--ttl", "10s"],
        &["show", "orders"],
        &["ls"],
        &["bench", "--duration", "50ms", "--warmup", "0s"],
    ] {
        let done = output(&urls, arguments);
        assert_eq!(status(&done), 0, "{arguments:?}: {}", text(&done.stderr));
    }
    let failed = output(&format!("http://{dead},http://{dead}/"), &["ls"]);
    assert_eq!(status(&failed), 125);
    assert!(text(&failed.stderr).contains("is a server running there?"));
    let failed = output(&format!("http://{dead},"), &["ls"]);
    assert_eq!(status(&failed), 2, "{}", text(&failed.stderr));
}

#[test]
fn readers_hold_together_and_are_shown_listed_and_released_one_by_one() {
    let server = Server::start();
    let read = |client: &str| {
        let output = server.output(&[
            "acquire",
            "orders",
            "--shared",
            "-n",
            "--client-id",
            client,
            "--ttl",
            "1h",
            "--json",
        ]);
        assert_eq!(status(&output), 0, "{}", text(&output.stderr));
        json(&output.stdout)
    };
    let (a, b) = (read("a"), read("b"));
    assert_eq!(
        (&a["fencing_token"], &a["grant_id"]),
        (&1.into(), &1.into())
    );
    assert_eq!(
        (&b["fencing_token"], &b["grant_id"]),
        (&1.into(), &2.into())
    );
    assert_eq!(status(&server.output(&["acquire", "orders", "-n"])), 124);

    let listed = server.output(&["ls"]);
    assert!(
        text(&listed.stdout).contains("a and 1 more (shared)"),
        "{}",
        text(&listed.stdout)
    );
    let shown = server.output(&["show", "orders"]);
    for part in [
        "orders is held in shared mode",
        "GRANT ID",
        "readers        2",
    ] {
        assert!(
            text(&shown.stdout).contains(part),
            "{part}: {}",
            text(&shown.stdout)
        );
    }
    let mut release = server.palisade(&["release", "orders", "--token", "2"]);
    release.env("PALISADE_LOCK_TOKEN", b["lock_token"].as_str().unwrap());
    assert_eq!(status(&release.output().unwrap()), 0);
    assert_eq!(server.show("orders")["reader_count"], 1);
    let broken = server.output(&["break", "orders", "--token", "1", "--reason", "stuck"]);
    assert_eq!(status(&broken), 0, "{}", text(&broken.stderr));
    assert!(server.show("orders")["holder"].is_null());
}

#[test]
fn a_lock_stays_closed_after_a_revocation_and_everybody_is_told_for_how_long() {
    let server = Server::start();
    let first = server.output(&["acquire", "x", "-n", "--lock-delay", "60s", "--ttl", "1h"]);
    assert_eq!(status(&first), 0, "{}", text(&first.stderr));
    let broken = server.output(&["break", "x", "--token", "1", "--reason", "stuck"]);
    assert_eq!(status(&broken), 0, "{}", text(&broken.stderr));
    let denied = server.output(&["acquire", "x", "-n"]);
    let said = text(&denied.stderr);
    assert_eq!(status(&denied), 124, "{said}");
    let (_, left) = said.split_once("x is free, and closed for ").unwrap();
    let (left, _) = left.split_once(" more").unwrap();
    assert!(
        left.ends_with(" s") && left.len() <= "1 min 0 s".len(),
        "{said}"
    );
    assert!(said.contains("palisade show 'x'"), "{said}");
    let shown = text(&server.output(&["show", "x"]).stdout);
    assert!(shown.contains("x is free and delayed"), "{shown}");
    let listed = text(&server.output(&["ls"]).stdout);
    assert!(listed.contains("(delayed)"), "{listed}");
    assert!(server.show("x")["delayed_ms"].as_u64() > Some(0));
}

/// The control is a grant without options, whose metadata looks like one.
#[test]
fn a_listing_shows_the_options_of_a_grant_and_metadata_cannot_pass_for_one() {
    let server = Server::start();
    let acquire = |lock: &str, more: &[&str]| {
        let fixed = ["acquire", lock, "-n", "--client-id", "a", "--ttl", "1h"];
        let done = server.output(&[&fixed[..], more].concat());
        assert_eq!(status(&done), 0, "{}", text(&done.stderr));
    };
    let metadata = ["--metadata", "(lock-delay 9 s)"];
    let options = ["--lock-delay", "5s", "--at-least-for", "2h"];
    acquire("control", &metadata);
    acquire("x", &[&options[..], &metadata].concat());
    let listed = text(&server.output(&["ls"]).stdout);
    let ends_with = |lock: &str, end: &str| {
        let mut rows = listed.lines();
        let row = rows.find(|row| row.starts_with(lock)).unwrap();
        assert!(row.ends_with(end), "{listed}");
    };
    ends_with("control", "0  a  (lock-delay 9 s)");
    ends_with(
        "x",
        "0  a (lock-delay 5 s, at-least-for 2 h 0 min)  (lock-delay 9 s)",
    );
}

#[test]
fn a_release_says_how_long_the_lock_stays_closed() {
    let server = Server::start();
    let held = server.output(&["acquire", "x", "-n", "--at-least-for", "1h", "--json"]);
    let held = json(&held.stdout);
    let key = held["lock_token"].as_str().unwrap();
    let mut release = server.palisade(&["release", "x", "--json"]);
    let released = release.env("PALISADE_LOCK_TOKEN", key).output().unwrap();
    let released = json(&released.stdout);
    let rest = released["delayed_ms"].as_u64().unwrap();
    assert!((1..=3_600_000).contains(&rest), "{rest}");
    assert_eq!(status(&server.output(&["acquire", "x", "-n"])), 124);
}

#[test]
fn open_lets_the_next_one_have_a_closed_lock_and_touches_no_other() {
    let server = Server::start();
    let open = || server.output(&["open", "x", "--reason", "the job failed"]);
    assert_eq!(status(&open()), 123, "it is free");
    server.output(&["acquire", "x", "-n", "--lock-delay", "60s", "--ttl", "1h"]);
    let refused = open();
    assert_eq!(status(&refused), 123, "it is held");
    let said = text(&refused.stderr);
    assert!(
        said.contains("x is not closed") && said.contains("palisade show 'x'"),
        "{said}"
    );
    server.output(&["break", "x", "--token", "1", "--reason", "stuck"]);
    assert_eq!(status(&server.output(&["acquire", "x", "-n"])), 124);
    let late = server.output(&["break", "x", "--token", "7", "--reason", "stuck"]);
    let late = text(&late.stderr);
    assert!(
        late.contains("closed: palisade open 'x' --reason"),
        "{late}"
    );
    let opened = open();
    assert_eq!(status(&opened), 0, "{}", text(&opened.stderr));
    assert!(text(&opened.stdout).contains("x is open: a waiting request has it now"));
    assert_eq!(status(&server.output(&["acquire", "x", "-n"])), 0);
}

#[test]
fn permits_are_held_shown_and_changed_at_the_command_line() {
    let server = Server::start();
    let acquire = |client: &str, permits: &str| {
        server.output(&[
            "acquire",
            "gpu",
            "-n",
            "--client-id",
            client,
            "--permits",
            permits,
            "--ttl",
            "1h",
            "--json",
        ])
    };
    let a = acquire("a", "2/3");
    assert_eq!(status(&a), 0, "{}", text(&a.stderr));
    assert_eq!(json(&a.stdout)["slots"], serde_json::json!([1, 2]));
    let b = json(&acquire("b", "1/3").stdout);
    assert_eq!(
        (&b["slots"], &b["fencing_token"]),
        (&serde_json::json!([3]), &2.into())
    );
    assert_eq!(status(&acquire("c", "1/3")), 124);
    let other = acquire("c", "1/4");
    let said = text(&other.stderr);
    assert_eq!(status(&other), 2, "{said}");
    assert!(said.contains("4 permits, and the lock has 3"), "{said}");

    let listed = server.output(&["ls"]);
    assert!(
        text(&listed.stdout).contains("a and 1 more (3 permits)"),
        "{}",
        text(&listed.stdout)
    );
    let shown = server.output(&["show", "gpu"]);
    let said = text(&shown.stdout);
    for part in [
        "gpu is a semaphore",
        "permits  3",
        "free     0",
        "SLOTS",
        "1,2",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let more = server.output(&["permits", "gpu", "5"]);
    assert_eq!(status(&more), 0, "{}", text(&more.stderr));
    let shown = server.output(&["show", "gpu"]);
    assert!(
        text(&shown.stdout).contains("free     2"),
        "{}",
        text(&shown.stdout)
    );
    let nobody = server.output(&["permits", "free", "5"]);
    assert_eq!(status(&nobody), 123);
    assert!(text(&nobody.stderr).contains("the next request for permits sets it"));
}

#[test]
fn metrics_name_the_version_the_start_and_the_room_on_the_disk() {
    use std::io::{Read as _, Write as _};
    let server = Server::start();
    let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let value = |name: &str| -> u64 {
        let mut lines = metrics.lines();
        let line = lines.find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} in {metrics}"))
            .parse()
            .unwrap()
    };
    assert!(value("palisade_disk_free_bytes") > 0);
    let started = value("process_start_time_seconds");
    let since = std::fs::metadata(format!("/proc/{}/stat", server.pid()));
    let seen = since.unwrap().modified().unwrap();
    let seen = seen.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(started.abs_diff(seen.as_secs()) < 3_600, "{started}");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        value(&format!("palisade_build_info{{version=\"{version}\"}}")),
        1
    );
}
