//! `palisade doctor`: each fault is made, found, and named with the next step; a server that is well is the control.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, SystemTime};

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::Span;
use palisade_testbed::Redis;
use palisade_tls::issue::{CertificateAuthority, Validity};
use serde_json::{Value, json};

use crate::access;
use crate::common::cluster::Cluster;
use crate::common::{Server, palisade, status, text};
use crate::tls::{self, Ca};

/// The findings, and the exit status.
struct Findings {
    status: i32,
    all: Vec<Value>,
}

impl Findings {
    fn of(output: &Output) -> Findings {
        let lines = text(&output.stdout);
        let all = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        Findings {
            status: status(output),
            all: all.collect(),
        }
    }

    fn at(authority: &str, arguments: &[&str]) -> Findings {
        let mut command = palisade();
        command.args(["doctor", "--json"]).args(arguments);
        Findings::of(
            &command
                .env("PALISADE_AUTHORITY", authority)
                .output()
                .unwrap(),
        )
    }

    fn of_directory(dir: &Path) -> Findings {
        let mut command = palisade();
        Findings::of(
            &command
                .args(["doctor", "--json"])
                .arg(dir)
                .output()
                .unwrap(),
        )
    }

    fn about(&self, about: &str) -> Vec<&Value> {
        self.all.iter().filter(|it| it["about"] == about).collect()
    }

    /// The only finding about something.
    fn only(&self, about: &str) -> &Value {
        let found = self.about(about);
        assert_eq!(found.len(), 1, "{about}: {:?}", self.all);
        found[0]
    }

    fn states(&self, about: &str) -> Vec<&str> {
        let found = self.about(about);
        found
            .iter()
            .map(|it| it["state"].as_str().unwrap())
            .collect()
    }

    fn is_well(&self) -> bool {
        self.all
            .iter()
            .all(|it| it["state"] == "ok" || it["state"] == "note")
    }
}

fn release(server: &Server, lock: &str) {
    let held: Value =
        serde_json::from_slice(&server.output(&["acquire", lock, "--json"]).stdout).unwrap();
    let mut command = server.palisade(&["release", lock]);
    command.env("PALISADE_LOCK_TOKEN", held["lock_token"].as_str().unwrap());
    assert_eq!(status(&command.output().unwrap()), 0);
}

#[test]
fn a_server_that_is_well_has_nothing_to_do_and_is_not_changed() {
    let server = Server::start();
    let before = server.output(&["acquire", "a", "--json"]);
    let findings = Findings::at(&server.url, &[]);
    assert_eq!(
        (findings.status, findings.is_well()),
        (0, true),
        "{:?}",
        findings.all
    );
    for about in [
        "address",
        "serving",
        "identity",
        "clock",
        "disk",
        "descriptors",
        "connections",
        "version",
    ] {
        assert_eq!(findings.only(about)["state"], "ok");
    }
    assert!(findings.about("grant").is_empty());
    // The next token is the next one: nothing was granted meanwhile.
    let granted = Findings::at(&server.url, &["--grant"]);
    assert!(granted.only("grant")["data"]["granted_ms"].is_u64());
    let after = server.output(&["acquire", "b", "--json"]);
    let token = |output: &Output| {
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["fencing_token"].clone()
    };
    assert_eq!((token(&before), token(&after)), (json!(1), json!(3)));
    let held = text(&server.output(&["ls", "palisade-doctor/"]).stdout);
    assert!(held.starts_with("no lock"), "{held}");
    // For people.
    let said = text(&server.output(&["doctor"]).stdout);
    assert!(
        said.contains("ok       disk") && said.ends_with("ok\n"),
        "{said}"
    );
}

/// The first address accepts no connection's data, the second refuses connections, the third is a name that no name service
/// has. The control is the time that the same look takes at one server alone.
#[test]
fn addresses_that_hang_hide_no_other_and_cost_a_bounded_time() {
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let server = Server::start();
    let hung = format!("http://{}", hung.local_addr().unwrap());
    let all = format!(
        "{hung},http://{closed},http://nowhere.invalid:7420,{}",
        server.url
    );
    let begin = BootClock.now();
    let findings = Findings::at(&all, &[]);
    let took = BootClock.now().since(begin);
    assert_eq!(findings.status, 1);
    assert_eq!(
        findings.states("address"),
        ["problem", "problem", "problem", "ok"]
    );
    for (finding, why) in
        findings
            .about("address")
            .iter()
            .zip(["does not answer", "refused", "not resolved"])
    {
        assert!(finding["what"].as_str().unwrap().contains(why), "{finding}");
        assert!(finding["next"].is_string());
    }
    assert_eq!(
        findings.only("disk")["state"],
        "ok",
        "the last one was looked at all the same"
    );
    let begin = BootClock.now();
    let well = Findings::at(&server.url, &[]);
    let alone = BootClock.now().since(begin);
    assert_eq!(well.status, 0);
    // One address after the other, with three questions each, would take longer.
    let bound = Span::from_millis(9_000).plus(alone).plus(alone);
    assert!(took < bound, "{took:?}, and alone {alone:?}");
    // Where no address answers, it could not look.
    let blind = Findings::at(&hung, &[]);
    assert_eq!(
        (blind.status, blind.states("address")),
        (125, vec!["unknown"])
    );
}

/// A server of one answer for each path.
fn answering(answers: Vec<(&'static str, String)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answers = answers.clone();
            std::thread::spawn(move || answer(stream.unwrap(), &answers));
        }
    });
    url
}

fn answer(mut stream: TcpStream, answers: &[(&str, String)]) {
    let mut request = [0; 4_096];
    while let Ok(read) = stream.read(&mut request)
        && read > 0
    {
        let text = text(&request[..read]);
        let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
        let body = answers
            .iter()
            .find(|(at, _)| *at == path)
            .map(|(_, body)| body.clone());
        let (status, body) = match body {
            Some(body) => ("200 OK", body),
            None => (
                "404 Not Found",
                json!({"error": {"code": "not_found", "message": "no"}}).to_string(),
            ),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if stream.write_all((head + &body).as_bytes()).is_err() {
            return;
        }
    }
}

/// The clocks of two servers are a minute apart, and so are their versions and authorities. The control is one whose clock
/// is right.
#[test]
fn clocks_versions_and_authorities_that_differ_are_found() {
    let now = jiff::Timestamp::now();
    let server = |ahead: i64, version: &str, authority: &str| {
        let time = now + jiff::SignedDuration::from_secs(ahead);
        let whoami = json!({"principal": null, "authority": authority, "incarnation": "i", "version": version, "time": format!("{time:.3}")});
        answering(vec![
            (
                "/healthz",
                json!({"status": "serving", "log_full": false}).to_string(),
            ),
            (
                "/readyz",
                json!({"status": "leading", "leader": null}).to_string(),
            ),
            ("/v1/whoami", whoami.to_string()),
        ])
    };
    let version = env!("CARGO_PKG_VERSION");
    let all = [
        server(0, version, "a"),
        server(40, version, "a"),
        server(-3_600, "9.9.9", "b"),
    ];
    let findings = Findings::at(&all.join(","), &[]);
    assert_eq!(findings.status, 1);
    // The right one has been wrong since it answered, but by seconds at most.
    let states = findings.states("clock");
    assert_eq!(states[1..], ["warning", "problem"], "{:?}", findings.all);
    assert_eq!(findings.states("version"), ["warning"]);
    let identities = findings.about("identity");
    let last = identities.last().unwrap();
    assert_eq!(
        (&last["at"], &last["state"]),
        (&json!("all"), &json!("problem"))
    );
    let alone = Findings::at(&server(0, version, "a"), &[]);
    assert_eq!(
        (alone.states("clock"), alone.states("version")),
        (vec!["ok"], vec!["ok"])
    );
}

/// An older server has no whoami, and says its version in its metrics. A newer one answers in forms of its own. The
/// control is a program that answers in JSON and is no lock server.
#[test]
fn a_server_of_another_version_is_named_with_both_versions_and_the_next_step() {
    let client = env!("CARGO_PKG_VERSION");
    let health = || json!({"status": "serving", "log_full": false}).to_string();
    let ready = || json!({"status": "leading", "leader": null}).to_string();
    let info = "palisade_build_info{version=\"0.0.9\"} 1\n".to_owned();
    let older = answering(vec![
        ("/healthz", health()),
        ("/readyz", ready()),
        ("/metrics", info),
    ]);
    let found = Findings::at(&older, &[]);
    assert_eq!(
        (found.status, found.is_well()),
        (0, true),
        "{:?}",
        found.all
    );
    let version = found.only("version");
    let what = version["what"].as_str().unwrap();
    assert!(what.contains("0.0.9") && what.contains(client), "{what}");
    assert!(version["next"].as_str().unwrap().contains("install"));

    let whoami = json!({"caller": {"name": "a"}, "version": "9.9.9"});
    let newer = |paths: &[&'static str]| {
        let usual = [("/healthz", health()), ("/readyz", ready())];
        let mut answers: Vec<_> = usual.into_iter().collect();
        answers.push(("/v1/whoami", whoami.to_string()));
        answers.push(("/v1/cluster", json!({"shards": []}).to_string()));
        for (path, body) in &mut answers {
            if paths.contains(path) {
                *body = json!({"state": 7}).to_string();
            }
        }
        answering(answers)
    };
    for paths in [&[][..], &["/readyz"], &["/healthz", "/readyz"]] {
        let found = Findings::at(&newer(paths), &[]);
        assert_eq!(found.status, 125, "{:?}", found.all);
        let unknown = found.about("version")[0];
        let what = unknown["what"].as_str().unwrap();
        assert_eq!(unknown["state"], "unknown");
        for part in [
            "9.9.9",
            client,
            "its cluster",
            "whom it takes this client for",
        ] {
            assert!(what.contains(part), "{part}: {what}");
        }
        assert_eq!(what.contains("whether it grants locks"), !paths.is_empty());
        let next = unknown["next"].as_str().unwrap();
        assert!(next.contains("install version 9.9.9"), "{next}");
        // It is a lock server that grants, or that cannot be judged: not one that has failed.
        assert!(
            found.states("address") == ["ok"]
                && !found.all.iter().any(|it| it["state"] == "problem")
        );
        let said = format!("{:?}", found.all);
        assert!(!said.contains("is not a lock server's"), "{said}");
    }

    let other = answering(vec![("/healthz", "\"up\"".to_owned())]);
    let found = Findings::at(&other, &[]);
    assert_eq!(
        (found.status, found.states("address")),
        (1, vec!["problem"])
    );
}

#[test]
fn certificates_and_secrets_are_looked_at_and_never_printed() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::make(&dir.path().join("ca"));
    let server = tls::Server::start(&["serve"], &ca.of_server(), &dir.path().join("data"));
    let look = || Findings::of(&server.output(Some(&ca), &["doctor", "--json"]));
    let well = look();
    assert_eq!((well.status, well.is_well()), (0, true), "{:?}", well.all);
    // The server's, this client's, and both of their CAs.
    assert_eq!(well.states("certificate").len(), 4, "{:?}", well.all);
    assert_eq!(well.only("secret")["state"], "ok");

    let key = ca.file("home-backup.key");
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    let open = look();
    assert_eq!(
        (open.status, open.only("secret")["state"].as_str()),
        (1, Some("problem"))
    );
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();

    // The server's certificate ends, and it takes the new one without a restart.
    let issuer =
        CertificateAuthority::load(&fs::read_to_string(ca.file("ca.key")).unwrap()).unwrap();
    let issue = |name: &str, names: &[&str], from: u64, until: u64| {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let validity = Validity {
            from: at(from),
            until: at(until),
        };
        let issued = issuer.issue(names, validity).unwrap();
        fs::write(ca.file(&format!("{name}.pem")), &issued.certificate).unwrap();
        fs::write(ca.file(&format!("{name}.key")), &issued.key).unwrap();
    };
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap();
    issue("127.0.0.1", &["127.0.0.1"], now - 10, now + 3 * 86_400);
    server.hang_up();
    let states = || {
        look()
            .states("certificate")
            .iter()
            .map(|it| (*it).to_owned())
            .collect::<Vec<_>>()
    };
    crate::common::until("the new certificate", || {
        states().contains(&"warning".to_owned())
    });
    issue("127.0.0.1", &["127.0.0.1"], now - 20, now - 10);
    server.hang_up();
    crate::common::until("the certificate that ended", || {
        look().states("address") == ["problem"]
    });
    let ended = look();
    let said = ended.only("address")["what"].as_str().unwrap();
    assert!(
        said.contains("its certificate expired") && said.contains("palisade auth cert"),
        "{said}"
    );
    // This client's own.
    issue("home-backup", &["spiffe://home/backup"], now - 20, now - 10);
    assert_eq!(look().about("certificate")[1]["state"], "problem");

    let printed = [look().all, well.all, open.all].concat();
    let printed = serde_json::to_string(&printed).unwrap();
    let secret = fs::read_to_string(&key).unwrap();
    let line = secret.lines().nth(1).unwrap();
    assert!(
        !printed.contains(line) && !printed.contains("PRIVATE"),
        "a key was printed"
    );
}

#[test]
fn an_access_file_says_who_this_client_is_and_what_it_may_not_see() {
    let dir = tempfile::tempdir().unwrap();
    let access = dir.path().join("access.toml");
    let rules = "[auth]\n[[auth.principals]]\nname = \"backup\"\n[[auth.rules]]\nprincipal = \"backup\"\nprefix = \"backup/\"\nverbs = [\"hold\"]\n";
    fs::write(&access, rules).unwrap();
    let (token, _) = access::token(&access, "backup");
    let token = token.as_str();
    let server = Server::with(&["--access", access.to_str().unwrap()]);
    let look = |token: Option<&str>, arguments: &[&str]| {
        let mut command = server.palisade(&[&["doctor", "--json"], arguments].concat());
        if let Some(token) = token {
            command.env("PALISADE_TOKEN", token);
        }
        Findings::of(&command.output().unwrap())
    };
    let known = look(Some(token), &["--grant"]);
    assert_eq!(known.only("identity")["data"]["principal"], "backup");
    assert_eq!(
        (
            known.only("figures")["state"].as_str(),
            known.only("grant")["state"].as_str()
        ),
        (Some("note"), Some("unknown"))
    );
    assert_eq!(
        known.status, 125,
        "the grant could not be looked at: {:?}",
        known.all
    );
    assert_eq!(look(Some(token), &[]).status, 0);
    let unknown = look(Some("pal_wrong_wrong"), &[]);
    assert_eq!(unknown.status, 1);
    assert!(
        !serde_json::to_string(&[known.all, unknown.all].concat())
            .unwrap()
            .contains(token)
    );
}

#[test]
fn a_cluster_is_looked_at_through_the_addresses_that_are_left_out() {
    let mut cluster = Cluster::planned(3);
    let key = cluster.dir.path().join("cluster.key");
    fs::write(&key, "0123456789abcdef").unwrap();
    let list = cluster.list.clone();
    let flags = [
        "--cluster",
        &list,
        "--cluster-key-file",
        key.to_str().unwrap(),
    ];
    for node in &mut cluster.nodes {
        node.start(&flags);
    }
    cluster.until_ready();
    let well = Findings::at(&cluster.urls(), &["--grant"]);
    assert_eq!((well.status, well.is_well()), (0, true), "{:?}", well.all);
    assert_eq!(
        (well.states("address").len(), well.states("keys")),
        (3, vec!["ok"])
    );
    // One address leads to the others, and the client is told to name them.
    let one = Findings::at(&cluster.nodes[0].url(), &[]);
    assert_eq!(
        (one.status, one.states("clock").len()),
        (0, 3),
        "{:?}",
        one.all
    );
    assert!(one.states("address").contains(&"note"));
    // A key that two of the nodes lack.
    cluster.nodes[0].kill();
    fs::write(cluster.nodes[0].data.join("lock_token.key"), [7; 32]).unwrap();
    let down = Findings::at(&cluster.urls(), &[]);
    assert_eq!(down.states("address"), ["problem", "ok", "ok"]);
    assert_eq!(down.states("keys"), ["ok"]);
    cluster.nodes[0].start(&flags);
    cluster.until_ready();
    let odd = Findings::at(&cluster.urls(), &[]);
    assert_eq!(
        (odd.status, odd.states("keys")),
        (1, vec!["warning"]),
        "{:?}",
        odd.all
    );
    assert_eq!(
        odd.only("keys")["data"]["fingerprints"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

/// A password of a URL is never printed. The control is the same server with the right one.
#[test]
fn fences_are_counted_and_an_address_that_refuses_says_why() {
    let server = Server::start();
    let redis = Redis::start(&[]);
    let look = |url: &str| Findings::at(&server.url, &["--fence", url]);
    let none = look(&redis.url());
    assert_eq!(
        (none.status, none.only("fences")["state"].as_str()),
        (0, Some("note")),
        "{:?}",
        none.all
    );
    let refused = look("redis://:secret@127.0.0.1:1");
    assert_eq!(
        (refused.status, refused.only("fences")["state"].as_str()),
        (125, Some("unknown"))
    );
    assert!(!format!("{:?}", refused.all).contains("secret"));
    assert_eq!(refused.only("disk")["state"], "ok");
}

/// A data directory with some entries, and whose server is stopped.
fn stopped() -> (Server, PathBuf) {
    let mut server = Server::start();
    for lock in ["a", "b", "c"] {
        release(&server, lock);
    }
    server.output(&["acquire", "held", "--ttl", "1h"]);
    let data = server.file("data");
    let running = Findings::of_directory(&data);
    assert_eq!(
        (running.status, running.is_well()),
        (0, true),
        "{:?}",
        running.all
    );
    assert_eq!(running.only("directory")["data"]["process"], server.pid());
    assert_eq!(running.only("contents")["data"]["next_token"], 5);
    server.kill();
    (server, data)
}

/// Everything in a directory: names, contents and times of change.
fn everything(dir: &Path) -> Vec<(PathBuf, Vec<u8>, SystemTime)> {
    let mut all: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let changed = fs::metadata(&path).unwrap().modified().unwrap();
            (path.clone(), fs::read(path).unwrap(), changed)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_directory_is_read_to_its_end_and_left_as_it_is() {
    let (mut server, data) = stopped();
    let before = everything(&data);
    let findings = Findings::of_directory(&data);
    assert_eq!(findings.status, 0, "{:?}", findings.all);
    assert_eq!(everything(&data), before);
    let contents = &findings.only("contents")["data"];
    assert_eq!(
        (&contents["locks"], &contents["leases"]),
        (&json!(1), &json!(1))
    );
    assert!(contents["last"].is_string());
    assert_eq!(findings.only("directory")["data"]["process"], Value::Null);

    fs::set_permissions(data.join("lock_token.key"), Permissions::from_mode(0o644)).unwrap();
    let open = Findings::of_directory(&data);
    assert_eq!(
        (open.status, open.states("secret").contains(&"problem")),
        (1, true),
        "{:?}",
        open.all
    );
    fs::set_permissions(data.join("lock_token.key"), Permissions::from_mode(0o600)).unwrap();

    // A copy, which a server would refuse.
    let copy = server.file("copy");
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([&data, &copy])
        .status()
        .unwrap();
    assert!(copied.success());
    let refused = Findings::of_directory(&copy);
    let said = refused.about("directory");
    assert_eq!((refused.status, said.len()), (1, 2), "{:?}", refused.all);
    assert!(
        said[1]["next"]
            .as_str()
            .unwrap()
            .starts_with("palisade restore --in-place")
    );

    // Nothing to look at.
    for nothing in [server.dir.path(), Path::new("/nowhere")] {
        assert_eq!(
            Findings::of_directory(nothing).status,
            125,
            "{}",
            nothing.display()
        );
    }
    server.restart();
    assert_eq!(server.show("held")["holder"]["fencing_token"], 4);
}

/// Every byte of a backup's log counts: one that is flipped is found, with its file and place. The control is the backup as it
/// was made.
#[test]
fn a_flipped_byte_is_found_in_a_backup_and_in_a_directory() {
    let (server, data) = stopped();
    let backup = server.file("backup");
    let made = palisade()
        .args(["backup", "--data"])
        .arg(&data)
        .arg(&backup)
        .output()
        .unwrap();
    assert_eq!(status(&made), 0, "{}", text(&made.stderr));
    let well = Findings::of_directory(&backup);
    assert_eq!(well.status, 0, "{:?}", well.all);
    assert_eq!(well.only("directory")["data"]["kind"], "backup");
    assert_eq!(well.only("contents")["data"]["next_token"], 5);
    for (dir, way_out) in [
        (&backup, "take an older backup"),
        (&data, "palisade restore"),
    ] {
        let segment = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let segment = segment.filter(|path| path.extension().is_some_and(|it| it == "seg"));
        let segment = segment
            .filter(|path| path.file_name().is_some_and(|it| it != "next.seg"))
            .min()
            .unwrap();
        let whole = fs::read(&segment).unwrap();
        for at in [10, 200] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&segment, &bytes).unwrap();
            let damaged = Findings::of_directory(dir);
            assert_eq!(damaged.status, 1, "{at}: {:?}", damaged.all);
            let found = damaged.about("log")[0];
            assert_eq!(found["state"], "problem");
            assert_eq!(found["data"]["file"], segment.to_str().unwrap());
            assert!(found["next"].as_str().unwrap().contains(way_out), "{found}");
        }
        fs::write(&segment, &whole).unwrap();
    }
    // An identity that is damaged.
    let identity = fs::read(backup.join("identity")).unwrap();
    fs::write(backup.join("identity"), &identity[1..]).unwrap();
    assert_eq!(Findings::of_directory(&backup).states("log"), ["problem"]);
}
