//! Every bad input gets the documented status and a message with the cause, and changes nothing.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use crate::common::{Server, json, palisade, status, text};

const KEY: &str = "00112233445566778899aabbccddeeff";

#[test]
fn an_error_names_its_cause() {
    let long = "x".repeat(256);
    let huge = format!("1{}", "0".repeat(30));
    let huge_ttl = format!("{huge}s");
    let metadata = "x".repeat(257);
    for (arguments, message) in [
        (&["acquire"][..], "<LOCK>"),
        (&["acquire", ""], "lock name is empty; 1 to 255 bytes"),
        (&["acquire", &long], "lock name has 256 bytes; 1 to 255"),
        (
            &["acquire", "stra\u{df}e"],
            "offset 4 that is not printable ASCII",
        ),
        (&["acquire", "a\nb"], "offset 1 that is not printable ASCII"),
        (
            &["acquire", "a", "--ttl", "0"],
            "a lease of 0 ms is not between 100 ms and 24 h",
        ),
        (
            &["acquire", "a", "--ttl", "99ms"],
            "a lease of 99 ms is not between 100 ms and 24 h",
        ),
        (&["acquire", "a", "--ttl", "-1s"], "lasts 100 ms to 24 h"),
        (
            &["acquire", "a", "--ttl", "10"],
            "needs a unit, for example 10s",
        ),
        (&["acquire", "a", "--ttl", "text"], "not a duration"),
        (&["acquire", "a", "--ttl", ""], "not a duration"),
        (&["acquire", "a", "--ttl", &huge], "lasts 100 ms to 24 h"),
        (
            &["acquire", "a", "--ttl", &huge_ttl],
            "lasts 100 ms to 24 h",
        ),
        (&["acquire", "a", "--ttl", "100.5ms"], "whole milliseconds"),
        (
            &["acquire", "a", "--wait", "86401s"],
            "not between 0 and 24 h",
        ),
        (&["acquire", "a", "--client-id", ""], "client id is empty"),
        (
            &["acquire", "a", "--metadata", &metadata],
            "257 bytes; at most 256",
        ),
        (&["release", "a", "b"], "unexpected argument 'b'"),
        (&["acquire", "a", "--permits", "2"], "permits are COUNT/OF"),
        (
            &["acquire", "a", "--permits", "x/5"],
            "permits are COUNT/OF",
        ),
        (
            &["acquire", "a", "--permits", "-1/5"],
            "permits are COUNT/OF",
        ),
        (
            &["acquire", "a", "--lock-delay", "61s"],
            "not between 0 and 1 min",
        ),
        (&["acquire", "a", "--lock-delay", "5"], "--lock-delay"),
        (
            &["acquire", "a", "--at-least-for", "25h"],
            "not between 0 and 24 h",
        ),
        (
            &["acquire", "a", "--at-least-for", "1m", "--shared"],
            "--shared",
        ),
        (&["acquire", "a", "--permits", "6/5"], "6 of 5 permits"),
        (&["acquire", "a", "--permits", "0/5"], "0 of 5 permits"),
        (&["acquire", "a", "--permits", "1/65"], "1 to 64 permits"),
        (
            &["acquire", "a", "--permits", "1/2", "--shared"],
            "cannot be used with",
        ),
        (&["permits", "a", "0"], "a semaphore has 1 to 64 permits"),
        (&["permits", "a", "65"], "a semaphore has 1 to 64 permits"),
        (&["permits", "a"], "<COUNT>"),
        (
            &["acquire", "a", "--export", "--json"],
            "cannot be used with",
        ),
        (&["show", ""], "lock name is empty"),
        (&["ls", "stra\u{df}e"], "prefix has a byte at offset 4"),
        (&["ls", "--nonsense"], "--nonsense"),
        (&["watch", "a", "--after", "-1"], "-1"),
        (&["break", "a", "--reason", "x"], "--token"),
        (&["break", "a", "--token", "1"], "--reason"),
        (
            &["break", "a", "--token", "1", "--reason", " "],
            "give a reason",
        ),
        (
            &["break", "a", "--token", "1", "--reason", &metadata],
            "257 bytes; at most 256",
        ),
        (
            &["break", "a", "--token", "0", "--reason", "x"],
            "between 1 and 9007199254740991",
        ),
        (
            &["break", "a", "--token", "9007199254740992", "--reason", "x"],
            "between 1 and 9007199254740991",
        ),
        (
            &["break", "a", "--token", &huge, "--reason", "x"],
            "between 1 and 9007199254740991",
        ),
        (
            &["renew", "a", "--token", "0"],
            "between 1 and 9007199254740991",
        ),
        (&["release", "a", "--lock-token", KEY], "--lock-token"),
        (&["serve", "--listen", "nowhere"], "nowhere"),
        (&["serve", "--listen", "127.0.0.1:65536"], "65536"),
        (&["serve", "--clock", "cuckoo"], "cuckoo"),
        (
            &["serve", "--min-ttl", "2s", "--max-ttl", "1s"],
            "above --max-ttl",
        ),
        (
            &["serve", "--max-ttl", "25h"],
            "not between 100 ms and 24 h",
        ),
        (
            &["serve", "--waits-per-address", "0"],
            "--waits-per-address",
        ),
        (
            &["serve", "--watches-per-address", "0"],
            "--watches-per-address",
        ),
        (&["serve", "--timers", "rack"], "this is a single server"),
        (
            &["serve", "--peer-listen", "127.0.0.1:2"],
            "leave --peer-listen out, or name the cluster",
        ),
        (
            &["serve", "--peer-address", "a:2"],
            "leave --peer-address out, or name the cluster",
        ),
        (
            &["serve", "--advertise", "http://a:2"],
            "leave --advertise out, or name the cluster",
        ),
        (
            &["serve", "--cluster-key-file", "key"],
            "leave --cluster-key-file out, or name the cluster",
        ),
        (
            &["serve", "--timers", "racks"],
            "rack, region, multi-region",
        ),
        (&["completions", "cobol"], "cobol"),
        (&["nonsense"], "nonsense"),
        (&[], "Usage"),
    ] {
        // Nothing listens on port 1: a command that tried to connect would report that.
        let output = palisade()
            .args(arguments)
            .env("PALISADE_AUTHORITY", "http://127.0.0.1:1")
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(status(&output), 2, "{arguments:?}: {said}");
        assert!(said.contains(message), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_name_that_is_not_unicode_is_refused() {
    let output = palisade()
        .arg("acquire")
        .arg(OsStr::from_bytes(b"caf\xe9"))
        .output()
        .unwrap();
    assert_eq!(status(&output), 2);
    assert!(text(&output.stderr).contains("UTF-8"));
}

#[test]
fn with_json_a_usage_error_is_json_too() {
    for arguments in [
        &["acquire", "", "--json"][..],
        &["--json", "nonsense"],
        &["break", "a", "--json"],
    ] {
        let output = palisade().args(arguments).output().unwrap();
        assert_eq!(status(&output), 2);
        let error = &json(&output.stderr)["error"];
        assert_eq!(error["code"], "invalid", "{arguments:?}");
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
}

#[test]
fn a_secret_is_32_digits_from_the_environment_or_a_file() {
    let server = Server::start();
    let refused = |command: &mut std::process::Command, message: &str| {
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(status(&output), 2, "{said}");
        assert!(
            said.contains(message) && !said.contains("not-a-key"),
            "{said}"
        );
    };
    for verb in ["renew", "release"] {
        refused(&mut server.palisade(&[verb, "a"]), "PALISADE_LOCK_TOKEN");
        let wrong = "32 hexadecimal digits";
        refused(
            server
                .palisade(&[verb, "a"])
                .env("PALISADE_LOCK_TOKEN", "not-a-key"),
            wrong,
        );
        refused(
            server.palisade(&[verb, "a"]).env("PALISADE_LOCK_TOKEN", ""),
            wrong,
        );
        refused(
            server
                .palisade(&[verb, "a"])
                .env("PALISADE_LOCK_TOKEN", OsStr::from_bytes(b"\xff")),
            wrong,
        );
        fs::write(server.file("secret"), "not-a-key").unwrap();
        refused(
            &mut server.palisade(&[verb, "a", "--lock-token-file", "secret"]),
            wrong,
        );
        refused(
            &mut server.palisade(&[verb, "a", "--lock-token-file", "-"]),
            wrong,
        );
        refused(
            &mut server.palisade(&[verb, "a", "--lock-token-file", "/dev/zero"]),
            wrong,
        );
        refused(
            &mut server.palisade(&[verb, "a", "--lock-token-file", "no-such-file"]),
            "no-such-file",
        );
    }
}

#[test]
fn an_unknown_secret_is_123_and_changes_nothing() {
    let server = Server::start();
    let held = json(
        &server
            .output(&["acquire", "a", "--ttl", "1h", "--json"])
            .stdout,
    );
    for verb in ["renew", "release"] {
        let output = server
            .palisade(&[verb, "a", "--json"])
            .env("PALISADE_LOCK_TOKEN", KEY)
            .output()
            .unwrap();
        assert_eq!(status(&output), 123);
        assert_eq!(json(&output.stderr)["error"]["code"], "not_held");
    }
    let held_token = held["fencing_token"].as_u64().unwrap();
    assert_eq!(server.show("a")["holder"]["fencing_token"], held_token);
    let output = server.output(&["break", "a", "--token", "2", "--reason", "x", "--json"]);
    assert_eq!(
        (
            status(&output),
            json(&output.stderr)["error"]["code"].clone()
        ),
        (123, "stale".into())
    );
    // That number is above the one in force, so it is wrong and not stale; one below it is.
    let said = text(&output.stderr);
    assert!(!said.contains("is stale"), "{said}");
    let next = server.output(&["acquire", "later", "-n", "--json"]);
    let next = json(&next.stdout)["fencing_token"].as_u64().unwrap();
    let output = server.output(&["break", "later", "--token", "1", "--reason", "x"]);
    let said = text(&output.stderr);
    let both = format!("token 1 is stale: 1 < {next}; later is held with {next}");
    assert!(said.contains(&both), "{said}");
    assert_eq!(server.show("a")["holder"]["fencing_token"], held_token);
}

#[test]
fn an_error_names_the_servers_own_bounds() {
    let server = Server::with(&["--min-ttl", "1s", "--max-ttl", "1m"]);
    for ttl in ["999ms", "61s"] {
        let output = server.output(&["acquire", "a", "--ttl", ttl]);
        assert_eq!(status(&output), 2);
        assert!(
            text(&output.stderr).contains("not between 1 s and 1 min"),
            "{}",
            text(&output.stderr)
        );
    }
    assert_eq!(status(&server.output(&["acquire", "a", "--ttl", "1s"])), 0);
}
