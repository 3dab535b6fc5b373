//! Rules at a server: tokens, certificates, and the commands that make, check and explain them.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::common::{json, palisade, send, status, text, until};
use crate::tls::{Ca, Server};

const RULES: &str = r#"[auth]
[[auth.principals]]
name = "backup"
certificates = ["spiffe://home/backup"]
[[auth.principals]]
name = "viewer"
[[auth.rules]]
principal = "backup"
prefix = "backup/"
verbs = ["hold", "observe"]
[[auth.rules]]
principal = "viewer"
prefix = ""
verbs = ["observe"]
"#;

fn rules(dir: &Path) -> PathBuf {
    let file = dir.join("access.toml");
    fs::write(&file, RULES).unwrap();
    file
}

fn auth(file: &Path, arguments: &[&str]) -> std::process::Output {
    let mut command = palisade();
    command
        .arg("auth")
        .args(arguments)
        .arg("--access")
        .arg(file);
    command.output().unwrap()
}

/// A new token's text and id.
pub(crate) fn token(file: &Path, principal: &str) -> (String, String) {
    let made = auth(file, &["token", "new", principal, "--json"]);
    assert_eq!(status(&made), 0, "{}", text(&made.stderr));
    let made = json(&made.stdout);
    let part = |name: &str| made[name].as_str().unwrap().to_owned();
    (part("token"), part("id"))
}

#[test]
fn a_token_gives_what_the_rules_grant_and_nothing_after_it_was_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let file = rules(dir.path());
    let (backup, id) = token(&file, "backup");
    let (viewer, _) = token(&file, "viewer");
    let flags = ["--access".to_owned(), file.to_str().unwrap().to_owned()];
    let server = Server::start(&["serve"], &flags, &dir.path().join("data"));
    let with = |token: &str, arguments: &[&str]| {
        let mut command = server.palisade(None, arguments);
        command.env("PALISADE_TOKEN", token).output().unwrap()
    };
    let held = with(&backup, &["run", "backup/db", "--", "true"]);
    assert_eq!(status(&held), 0, "{}", text(&held.stderr));
    let listed = with(&viewer, &["ls"]);
    assert_eq!(status(&listed), 0, "{}", text(&listed.stderr));
    for (token, arguments, expected) in [
        (
            &viewer,
            &["run", "backup/db", "--", "true"][..],
            "viewer may not hold the lock backup/db",
        ),
        (
            &backup,
            &["run", "orders", "--", "true"],
            "backup may not hold the lock orders",
        ),
        (
            &backup,
            &["show", "orders"],
            "backup may not observe the lock orders",
        ),
        (
            &backup,
            &["break", "backup/db", "--token", "1", "--reason", "r"],
            "backup may not break",
        ),
        (
            &backup,
            &["permits", "backup/db", "3"],
            "backup may not break",
        ),
        (
            &backup,
            &["watch", "orders/"],
            "backup may not observe any of the locks that begin with orders/",
        ),
        (&"pal_x".to_owned(), &["ls"], "not a token"),
    ] {
        let refused = with(token, arguments);
        assert_ne!(status(&refused), 0, "{arguments:?}");
        assert!(
            text(&refused.stderr).contains(expected),
            "{arguments:?}: {}",
            text(&refused.stderr)
        );
    }
    let nobody = server.output(None, &["ls"]);
    assert!(
        text(&nobody.stderr).contains("who is asking?"),
        "{}",
        text(&nobody.stderr)
    );
    // The token may be in a file.
    let token_file = dir.path().join("token");
    fs::write(&token_file, format!("{backup}\n")).unwrap();
    let from_file = server.output(
        None,
        &[
            "ls",
            "backup/",
            "--token-file",
            token_file.to_str().unwrap(),
        ],
    );
    assert_eq!(status(&from_file), 0, "{}", text(&from_file.stderr));

    // A mistake changes nothing; the event names it.
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, good.replace("[[auth.rules]]", "[[auth.rule]]")).unwrap();
    server.hang_up();
    until("the event", || {
        server
            .log()
            .contains("new rules were refused, and the old ones stay in force")
    });
    assert!(server.log().contains("meant?"), "{}", server.log());
    assert_eq!(status(&with(&viewer, &["ls"])), 0);
    fs::write(&file, good).unwrap();
    assert_eq!(status(&auth(&file, &["token", "revoke", &id])), 0);
    server.hang_up();
    until("new rules", || {
        server.log().contains("new rules are in force")
    });
    let revoked = with(&backup, &["run", "backup/db", "--", "true"]);
    assert!(
        text(&revoked.stderr).contains("is unknown or was revoked"),
        "{}",
        text(&revoked.stderr)
    );
    assert_eq!(
        status(&with(&viewer, &["ls"])),
        0,
        "the other one still works"
    );
    // No secret is in the file or in the log.
    for secret in [&backup, &viewer] {
        let secret = secret.rsplit_once('_').unwrap().1;
        assert!(
            !fs::read_to_string(&file).unwrap().contains(secret) && !server.log().contains(secret)
        );
    }
}

/// Kubernetes replaces the file before the token in it ends.
#[test]
fn a_job_goes_on_with_the_new_token_of_its_file_when_the_old_one_ends() {
    let dir = tempfile::tempdir().unwrap();
    let file = rules(dir.path());
    let (first, id) = token(&file, "backup");
    let (second, _) = token(&file, "backup");
    let flags = ["--access".to_owned(), file.to_str().unwrap().to_owned()];
    let server = Server::start(&["serve"], &flags, &dir.path().join("data"));
    let token_file = dir.path().join("token");
    fs::write(&token_file, &first).unwrap();
    let ends = dir.path().join("ends");
    let until_ends = format!("while [ ! -e {} ]; do sleep 0.01; done", ends.display());
    let run = |lock: &str, flags: &[&str]| {
        let job = ["--ttl", "2s", lock, "--", "sh", "-c", &until_ends];
        server.palisade(None, &[&["run"], flags, &job].concat())
    };
    let mut renewed = run("backup/db", &["--token-file", token_file.to_str().unwrap()])
        .spawn()
        .unwrap();
    let mut fixed = run("backup/fixed", &[]);
    let mut fixed = fixed.env("PALISADE_TOKEN", &first).spawn().unwrap();
    let held = |lock: &str| {
        let mut show = server.palisade(None, &["show", lock, "--json"]);
        let shown = show.env("PALISADE_TOKEN", &second).output().unwrap();
        text(&shown.stdout).contains("fencing_token")
    };
    until("both jobs", || held("backup/db") && held("backup/fixed"));
    fs::write(&token_file, &second).unwrap();
    assert_eq!(status(&auth(&file, &["token", "revoke", &id])), 0);
    server.hang_up();
    // The control: a token that is not read again costs its job the lock.
    until("the end of the job with the old token", || {
        fixed.try_wait().unwrap().is_some()
    });
    assert!(!fixed.wait().unwrap().success());
    // By now the other lease had to be renewed, too.
    assert!(renewed.try_wait().unwrap().is_none() && held("backup/db"));
    fs::write(&ends, "").unwrap();
    assert!(renewed.wait().unwrap().success());
}

#[test]
fn a_client_certificate_is_an_identity() {
    let dir = tempfile::tempdir().unwrap();
    let file = rules(dir.path());
    let ca = Ca::make(&dir.path().join("ca"));
    let mut flags = ca.of_server();
    flags.extend(["--access".to_owned(), file.to_str().unwrap().to_owned()]);
    let server = Server::start(&["serve"], &flags, &dir.path().join("data"));
    let held = server.output(Some(&ca), &["run", "backup/db", "--", "true"]);
    assert_eq!(status(&held), 0, "{}", text(&held.stderr));
    let refused = server.output(Some(&ca), &["run", "orders", "--", "true"]);
    assert!(
        text(&refused.stderr).contains("backup may not hold the lock orders"),
        "{}",
        text(&refused.stderr)
    );
    // HTTP, too.
    assert!(
        ca.get(server.url(), "/v1/locks/backup%2Fdb")
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        ca.get(server.url(), "/v1/locks/orders")
            .starts_with("HTTP/1.1 403")
    );
    // From the same CA, with a name that is not in the file.
    fs::write(&file, RULES.replace("home/backup", "home/other")).unwrap();
    send(server.pid(), Signal::HUP);
    until("new rules", || {
        server.log().contains("new rules are in force")
    });
    let unknown = server.output(Some(&ca), &["ls"]);
    let said = text(&unknown.stderr);
    assert!(
        said.contains("no principal has a certificate with the name spiffe://home/backup"),
        "{said}"
    );
}

#[test]
fn a_token_is_enough_where_certificates_are_taken_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = rules(dir.path());
    let (backup, _) = token(&file, "backup");
    let (ca, other) = (
        Ca::make(&dir.path().join("ca")),
        Ca::make(&dir.path().join("other")),
    );
    let mut flags = ca.of_server();
    let without_rules = Server::start(&["serve"], &flags, &dir.path().join("open"));
    flags.extend(["--access".to_owned(), file.to_str().unwrap().to_owned()]);
    let server = Server::start(&["serve"], &flags, &dir.path().join("data"));
    let with = |server: &Server, token: Option<&str>, arguments: &[&str]| {
        let mut command = server.palisade(None, arguments);
        command.env("PALISADE_CA_FILE", ca.file("ca.pem"));
        if let Some(token) = token {
            command.env("PALISADE_TOKEN", token);
        }
        command.output().unwrap()
    };
    let run = ["run", "backup/db", "--", "true"];
    let held = with(&server, Some(&backup), &run);
    assert_eq!(status(&held), 0, "{}", text(&held.stderr));
    for (refused, code, expected) in [
        (
            with(&server, None, &["ls", "--json"]),
            "unauthenticated",
            "who is asking?",
        ),
        (
            with(&server, Some(&backup), &["show", "orders", "--json"]),
            "forbidden",
            "backup may not observe the lock orders",
        ),
        // Where there are no rules, the certificate is the only identity.
        (
            with(&without_rules, Some(&backup), &["ls", "--json"]),
            "invalid",
            "a client certificate is needed",
        ),
    ] {
        let said = text(&refused.stderr);
        assert_ne!(status(&refused), 0);
        assert!(said.contains(expected) && said.contains(code), "{said}");
    }
    // A certificate that is shown must be right, although none is needed.
    let mut stranger = server.palisade(Some(&other), &run);
    stranger.env("PALISADE_CA_FILE", ca.file("ca.pem"));
    let refused = stranger.env("PALISADE_TOKEN", &backup).output().unwrap();
    assert_ne!(status(&refused), 0, "{}", text(&refused.stderr));
}

#[test]
fn a_token_is_never_sent_where_others_could_read_it() {
    let token = format!("pal_0a0b0c0d_{}", "0".repeat(64));
    let mut command = palisade();
    command.args(["ls", "--authority", "http://192.0.2.1:7420"]);
    let refused = command.env("PALISADE_TOKEN", token).output().unwrap();
    let said = text(&refused.stderr);
    assert!(
        said.contains("a token is not sent to 192.0.2.1:7420 without TLS"),
        "{said}"
    );
}

#[test]
fn rules_are_checked_and_explained_before_a_server_takes_them() {
    let dir = tempfile::tempdir().unwrap();
    let file = rules(dir.path());
    assert!(text(&auth(&file, &["check"]).stdout).contains("has no mistake"));
    let yes = auth(&file, &["can", "backup", "hold", "backup/db"]);
    assert!(
        text(&yes.stdout).contains("by the rule for the prefix \"backup/\""),
        "{}",
        text(&yes.stdout)
    );
    let no = auth(&file, &["can", "backup", "hold", "orders"]);
    assert_eq!(status(&no), 1, "no is an answer, and no failure");
    for (arguments, expected) in [
        (
            &["can", "backup", "hold", "orders"][..],
            "backup may not hold the lock orders",
        ),
        (
            &["can", "nobody", "hold", "orders"],
            "no rule, token, subject or certificate for nobody",
        ),
        (
            &["can", "backup", "own", "orders"],
            "the verbs are hold, share, observe, break, admin",
        ),
        (&["token", "new", "bakup"], "is backup meant?"),
        (
            &["token", "new", "backup", "--expires", "999ms"],
            "a token lasts 1s or longer",
        ),
        (&["token", "revoke", "1"], "there is no token"),
    ] {
        let refused = auth(&file, arguments);
        assert_ne!(status(&refused), 0, "{arguments:?}");
        assert!(
            text(&refused.stderr).contains(expected),
            "{arguments:?}: {}",
            text(&refused.stderr)
        );
    }
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        RULES,
        "nothing was changed"
    );
    let (_, id) = token(&file, "viewer");
    assert!(text(&auth(&file, &["token", "ls"]).stdout).contains(&id));
    auth(&file, &["token", "new", "backup", "--expires", "90d"]);
    let listed = || text(&auth(&file, &["token", "ls"]).stdout);
    let whole = |what: &[&str]| text(&auth(&file, what).stdout);
    // Control: as long as it is valid.
    assert!(listed().contains("  backup  until 20"), "{}", listed());
    assert!(whole(&["check"]).contains("2 tokens are valid"));
    let valid = fs::read_to_string(&file).unwrap();
    let (before, rest) = valid.split_once("expires = \"").unwrap();
    let ended = format!("{before}expires = \"2020{}", &rest[4..]);
    fs::write(&file, ended).unwrap();
    assert!(
        listed().contains("  backup  expired since 2020"),
        "{}",
        listed()
    );
    let as_json = whole(&["token", "ls", "--json"]);
    assert_eq!(as_json.matches("\"expired\":true").count(), 1, "{as_json}");
    assert_eq!(as_json.matches("\"expired\":false").count(), 1, "{as_json}");
    let checked = whole(&["check"]);
    assert!(
        checked.contains("1 tokens are valid and 1 have expired"),
        "{checked}"
    );
    fs::write(&file, "[auth]\nprincipal = 1\n").unwrap();
    let refused = auth(&file, &["check"]);
    assert!(
        text(&refused.stderr).contains("is \"principals\" meant?"),
        "{}",
        text(&refused.stderr)
    );
    // A server does not start with a mistake, and does not touch its directory.
    let mut serve = palisade();
    serve
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(dir.path().join("data"));
    let refused = serve.arg("--access").arg(&file).output().unwrap();
    assert_ne!(status(&refused), 0);
    assert!(
        text(&refused.stderr).contains("is \"principals\" meant?"),
        "{}",
        text(&refused.stderr)
    );
}
