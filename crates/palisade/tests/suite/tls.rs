//! TLS on the one port, for every protocol and every server; certificates that are wrong; certificates that change.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use palisade_client::TlsFiles;
use palisade_tls::issue::{CertificateAuthority, Validity};
use rustix::process::Signal;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::common::cluster::{Cluster, ELECTION};
use crate::common::{json, palisade, send, status, text, until, until_in};

/// A CA that `palisade auth cert` made, with a server's and a client's certificate.
pub(crate) struct Ca {
    dir: PathBuf,
}

impl Ca {
    pub(crate) fn make(dir: &Path) -> Ca {
        Ca::with(dir, &["127.0.0.1", "localhost"])
    }

    /// For the nodes of a cluster.
    pub(crate) fn of(cluster: &Cluster, name: &str) -> Ca {
        let names = ["127.0.0.1", "localhost", &*cluster.host];
        Ca::with(&cluster.dir.path().join(name), &names)
    }

    fn with(dir: &Path, servers: &[&str]) -> Ca {
        let ca = Ca {
            dir: dir.to_owned(),
        };
        ca.cert(servers);
        ca.cert(&["spiffe://home/backup"]);
        ca
    }

    pub(crate) fn cert(&self, names: &[&str]) -> Value {
        let mut command = palisade();
        command.args(["auth", "cert", "--json", "--dir"]);
        let output = command.arg(&self.dir).args(names).output().unwrap();
        assert_eq!(status(&output), 0, "{}", text(&output.stderr));
        json(&output.stdout)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn of_server(&self) -> Vec<String> {
        [
            "--tls-cert",
            "127.0.0.1.pem",
            "--tls-key",
            "127.0.0.1.key",
            "--tls-client-ca",
            "ca.pem",
        ]
        .map(|part| {
            if part.starts_with("--") {
                part.to_owned()
            } else {
                self.file(part)
            }
        })
        .to_vec()
    }

    /// The environment of a client.
    pub(crate) fn of_client<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("PALISADE_CA_FILE", self.file("ca.pem"))
            .env("PALISADE_CLIENT_CERT", self.file("home-backup.pem"))
            .env("PALISADE_CLIENT_KEY", self.file("home-backup.key"))
    }

    /// The answer to one HTTP/1.1 request.
    pub(crate) fn get(&self, url: &str, path: &str) -> String {
        let files = TlsFiles {
            ca: Some(self.dir.join("ca.pem")),
            own: Some((
                self.dir.join("home-backup.pem"),
                self.dir.join("home-backup.key"),
            )),
        };
        let address = url.trim_start_matches("https://");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let client = palisade_tls::TlsClient::new(&files).unwrap();
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let mut stream = client.connect("127.0.0.1", stream).await.unwrap();
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        })
    }
}

/// One of the servers; killed with its test.
pub(crate) struct Server {
    child: Child,
    started: Value,
    log: PathBuf,
}

impl Server {
    pub(crate) fn start(arguments: &[&str], certificates: &[String], data: &Path) -> Server {
        let log = data.with_extension("log");
        let mut child = palisade()
            .args(arguments)
            .args(["--json", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .args(certificates)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let started = serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("{}", fs::read_to_string(&log).unwrap()));
        Server {
            child,
            started,
            log,
        }
    }

    pub(crate) fn url(&self) -> &str {
        self.started["url"].as_str().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    pub(crate) fn hang_up(&self) {
        send(self.pid(), Signal::HUP);
    }

    /// A client command, with these certificates in its environment.
    pub(crate) fn palisade(&self, ca: Option<&Ca>, arguments: &[&str]) -> Command {
        let mut command = palisade();
        command
            .args(arguments)
            .env("PALISADE_AUTHORITY", self.url());
        if let Some(ca) = ca {
            ca.of_client(&mut command);
        }
        command
    }

    pub(crate) fn output(&self, ca: Option<&Ca>, arguments: &[&str]) -> Output {
        self.palisade(ca, arguments).output().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_protocol_of_a_lock_server_runs_inside_tls() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::make(&dir.path().join("ca"));
    let server = Server::start(&["serve"], &ca.of_server(), &dir.path().join("data"));
    assert!(server.url().starts_with("https://"), "{}", server.url());
    // gRPC over HTTP/2.
    let mut watch = server.palisade(Some(&ca), &["watch", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut events = BufReader::new(watch.stdout.take().unwrap());
    // A watch only shows later events: acquire until it shows one.
    let mut tokens = Vec::new();
    let (sender, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = events.read_line(&mut line);
        let _ = sender.send(line);
    });
    let mut event = None;
    until("an event", || {
        // A plain session.
        let run = server.output(
            Some(&ca),
            &[
                "run",
                "orders",
                "--",
                "sh",
                "-c",
                "echo $PALISADE_FENCING_TOKEN",
            ],
        );
        assert_eq!(status(&run), 0, "{}", text(&run.stderr));
        tokens.push(text(&run.stdout).trim().parse::<u64>().unwrap());
        event = told.try_recv().ok();
        event.is_some()
    });
    watch.kill().unwrap();
    watch.wait().unwrap();
    let event = event.unwrap();
    assert!(event.contains("orders"), "{event}");
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    // HTTP/1.1.
    let answer = ca.get(server.url(), "/v1/locks/orders");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_client_that_does_not_fit_the_port_is_told_why() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::make(&dir.path().join("ca"));
    let other = Ca::make(&dir.path().join("other"));
    let server = Server::start(&["serve"], &ca.of_server(), &dir.path().join("data"));
    let plain = Server::start(&["serve"], &[], &dir.path().join("plain"));
    ca.cert(&["locks.test"]);
    let renamed = ca
        .of_server()
        .join(" ")
        .replace("127.0.0.1.", "locks.test.");
    let renamed: Vec<_> = renamed.split(' ').map(str::to_owned).collect();
    let renamed = Server::start(&["serve"], &renamed, &dir.path().join("renamed"));
    let https = server.url();
    let swapped = |url: &str, from: &str, to: &str| url.replacen(from, to, 1);
    let ca_only = ["--ca-file", &*ca.file("ca.pem")];
    let flags = |extra: &[&str]| {
        [&["ls"], extra]
            .concat()
            .iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    let of = |ca: &Ca| {
        [
            "--client-cert".to_owned(),
            ca.file("home-backup.pem"),
            "--client-key".to_owned(),
            ca.file("home-backup.key"),
        ]
    };
    let own = of(&ca);
    let strangers = of(&other);
    let [own, strangers] =
        [&own, &strangers].map(|all| all.iter().map(|part| &**part).collect::<Vec<_>>());
    let without = swapped(https, "https", "http");
    let with = swapped(plain.url(), "http", "https");
    for (url, arguments, expected) in [
        (
            https,
            flags(&ca_only),
            "a client certificate is needed; give one with --client-cert",
        ),
        (
            https,
            flags(&[&ca_only, &strangers[..]].concat()),
            "was refused",
        ),
        (
            https,
            flags(&[&["--ca-file", &other.file("ca.pem")], &own[..]].concat()),
            "name the right CA with --ca-file",
        ),
        (
            renamed.url(),
            flags(&[&ca_only, &own[..]].concat()),
            "not for 127.0.0.1",
        ),
        (
            &without,
            flags(&[]),
            "this port speaks TLS only; write https://",
        ),
        (&with, flags(&ca_only), "does not speak TLS here"),
        (
            https,
            flags(&["--ca-file", "/nowhere"]),
            "cannot read /nowhere",
        ),
        (https, flags(&["--client-cert", "/nowhere"]), "--client-key"),
    ] {
        let mut command = palisade();
        let output = command
            .args(&arguments)
            .args(["--authority", url])
            .output()
            .unwrap();
        assert_ne!(status(&output), 0, "{arguments:?}");
        assert!(
            text(&output.stderr).contains(expected),
            "{url} {arguments:?}: {}",
            text(&output.stderr)
        );
    }
    // Control: the right certificates.
    let right = server.output(None, &[&["ls"][..], &ca_only, &own].concat());
    assert_eq!(status(&right), 0, "{}", text(&right.stderr));
    // The operator learns of the refused ones.
    let log = server.log();
    assert!(log.contains("no client certificate was presented"), "{log}");
    // A client that refuses the port's certificate: the flags of the port are named, not those of the client. A failure is
    // not always logged, so it is the first one of its server.
    let fresh = Server::start(&["serve"], &ca.of_server(), &dir.path().join("fresh"));
    let refused = fresh.output(Some(&other), &["ls"]);
    assert_ne!(status(&refused), 0);
    until("the refusal is logged", || {
        fresh.log().contains("a TLS handshake failed")
    });
    let log = fresh.log();
    assert!(
        log.contains(
            "was refused: it is of a CA that is not trusted there; see --tls-cert and --tls-key"
        ),
        "{log}"
    );
    assert!(!log.contains("--client-cert"), "{log}");
}

#[test]
fn a_server_whose_certificate_is_out_of_date_says_so_at_its_start_and_at_a_reload() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::make(&dir.path().join("ca"));
    let key = fs::read_to_string(ca.file("ca.key")).unwrap();
    let issuer = CertificateAuthority::load(&key).unwrap();
    let issue = || {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let validity = Validity {
            from: at(1_500_000_000),
            until: at(1_600_000_000),
        };
        let issued = issuer.issue(&["127.0.0.1"], validity).unwrap();
        fs::write(ca.file("127.0.0.1.pem"), &issued.certificate).unwrap();
        fs::write(ca.file("127.0.0.1.key"), &issued.key).unwrap();
    };
    let warning = "127.0.0.1.pem expired at 2020-09-13T12:26:40Z";
    let told = |server: &Server| server.log().contains(warning);
    let start = |server: &str| {
        let data = dir.path().join(server);
        Server::start(&[server], &ca.of_server(), &data)
    };
    let server = start("serve");
    // Control: a certificate that is valid.
    assert!(ca.get(server.url(), "/healthz").contains("200 OK"));
    assert!(!told(&server), "{}", server.log());
    issue();
    server.hang_up();
    until("the reload warns", || told(&server));
    assert!(
        server.log().contains("palisade auth cert"),
        "{}",
        server.log()
    );
    drop(server);
    for server in ["serve", "store"] {
        let server = start(server);
        until("the start warns", || told(&server));
    }
}

#[test]
fn new_certificates_are_taken_without_a_restart_and_bad_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::make(&dir.path().join("ca"));
    let server = Server::start(&["serve"], &ca.of_server(), &dir.path().join("data"));
    let works = |ca: &Ca| status(&server.output(Some(ca), &["ls"])) == 0;
    assert!(works(&ca));
    // A session that is open goes on.
    let held = server
        .palisade(
            Some(&ca),
            &[
                "run",
                "--ttl",
                "5s",
                "x",
                "--",
                "sh",
                "-c",
                "read go; echo $PALISADE_FENCING_TOKEN",
            ],
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until("the session", || {
        text(&server.output(Some(&ca), &["ls", "--json"]).stdout).contains("\"x\"")
    });

    let good = fs::read(ca.file("127.0.0.1.key")).unwrap();
    fs::write(ca.file("127.0.0.1.key"), "nonsense").unwrap();
    server.hang_up();
    until("the event", || {
        server
            .log()
            .contains("new certificates were refused, and the old ones stay in force")
    });
    assert!(server.log().contains("127.0.0.1.key"), "{}", server.log());
    assert!(works(&ca));
    fs::write(ca.file("127.0.0.1.key"), good).unwrap();

    // Another CA, in the same files.
    let next = Ca::make(&dir.path().join("next"));
    let old = dir.path().join("old");
    fs::create_dir(&old).unwrap();
    for entry in fs::read_dir(&ca.dir).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), old.join(entry.file_name())).unwrap();
    }
    for name in ["ca.pem", "127.0.0.1.pem", "127.0.0.1.key"] {
        fs::copy(next.file(name), ca.file(name)).unwrap();
    }
    // Without a signal: the files are looked at.
    until("the new certificates", || {
        server.log().contains("new certificates are in force")
    });
    assert!(
        works(&next),
        "{}",
        text(&server.output(Some(&next), &["ls"]).stderr)
    );
    // A client that trusts only the old CA is refused.
    fs::copy(next.file("ca.pem"), old.join("ca.pem")).unwrap();
    let refused = server.output(Some(&Ca { dir: old }), &["ls"]);
    assert!(
        text(&refused.stderr).contains("was refused"),
        "{}",
        text(&refused.stderr)
    );
    let mut held = held;
    held.stdin.take().unwrap().write_all(b"\n").unwrap();
    let held = held.wait_with_output().unwrap();
    assert!(held.status.success());
}

#[test]
fn the_store_and_the_gateway_have_the_same_tls() {
    let gateway = [
        "gateway",
        "--upstream",
        "http://127.0.0.1:1",
        "--admin",
        "127.0.0.1:0",
    ];
    for (arguments, port) in [(&["store"][..], "url"), (&gateway, "admin")] {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::make(&dir.path().join("ca"));
        let server = Server::start(arguments, &ca.of_server(), &dir.path().join("data"));
        let url = server.started[port].as_str().unwrap();
        let answer = ca.get(url, "/healthz");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let mut plain = TcpStream::connect(url.trim_start_matches("https://")).unwrap();
        plain
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut refused = String::new();
        plain.read_to_string(&mut refused).unwrap();
        assert!(
            refused.starts_with("HTTP/1.1 400")
                && refused.contains("this port speaks TLS only; write https://"),
            "{refused}"
        );
    }
}

#[test]
fn nodes_of_a_cluster_forward_over_tls_and_clients_follow_the_leader() {
    let mut cluster = Cluster::planned(3);
    let ca = Ca::of(&cluster, "ca");
    let list = cluster.list.clone();
    let certificates = ca.of_server();
    let mut flags = vec!["--cluster", &*list];
    flags.extend(certificates.iter().map(|part| &**part));
    for node in &mut cluster.nodes {
        node.start(&flags);
    }
    let urls: Vec<String> = cluster
        .nodes
        .iter()
        .map(|node| format!("https://{}", node.listen))
        .collect();
    let leader = || {
        let mut command = palisade();
        command.args([
            "cluster",
            "status",
            "--json",
            "--authority",
            &urls.join(","),
        ]);
        let output = ca.of_client(&mut command).output().unwrap();
        let view: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        view.and_then(|view| view["leader_url"].as_str().map(str::to_owned))
    };
    until_in(ELECTION, "a leader", || leader().is_some());
    for url in &urls {
        // Through the forwarding of a node that follows.
        until_in(ELECTION, "an answer of every node", || {
            ca.get(url, "/v1/locks").starts_with("HTTP/1.1 200")
        });
        // Through a session, which learns the leader's address.
        let mut run = palisade();
        run.args(["run", "orders", "--authority", url, "--", "true"]);
        let run = ca.of_client(&mut run).output().unwrap();
        assert_eq!(status(&run), 0, "{}", text(&run.stderr));
    }
}

#[test]
fn auth_cert_writes_private_files_keeps_its_ca_and_says_what_it_is_for() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca {
        dir: dir.path().join("ca"),
    };
    let first = ca.cert(&["locks.home", "192.168.1.2"]);
    assert_eq!(first["new_ca"], true);
    let kept = fs::read(ca.file("ca.pem")).unwrap();
    let second = ca.cert(&["spiffe://home/backup"]);
    assert_eq!(second["new_ca"], false);
    assert_eq!(fs::read(ca.file("ca.pem")).unwrap(), kept);
    for entry in fs::read_dir(&ca.dir).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{entry:?}");
    }
    let said = palisade()
        .args(["auth", "cert", "x.test", "--dir"])
        .arg(&ca.dir)
        .output()
        .unwrap();
    assert!(
        text(&said.stdout).contains("For a test or a home network"),
        "{}",
        text(&said.stdout)
    );
    let fresh = dir.path().join("fresh");
    let mut command = palisade();
    command.args(["auth", "cert", "two words", "--dir"]);
    assert_ne!(status(&command.arg(&fresh).output().unwrap()), 0);
    assert!(!fresh.exists(), "no CA is begun for a mistake");
    for (arguments, expected) in [
        (&["two words"][..], "no name for a certificate"),
        (&["x", "--days", "0"], "1 to 3650"),
        (&[], "NAME"),
    ] {
        let refused = palisade()
            .args(["auth", "cert", "--dir"])
            .arg(&ca.dir)
            .args(arguments)
            .output()
            .unwrap();
        assert_ne!(status(&refused), 0);
        assert!(
            text(&refused.stderr).contains(expected),
            "{}",
            text(&refused.stderr)
        );
    }
    fs::write(ca.file("ca.key"), "nonsense").unwrap();
    let refused = palisade()
        .args(["auth", "cert", "x.test", "--dir"])
        .arg(&ca.dir)
        .output()
        .unwrap();
    assert!(
        text(&refused.stderr).contains("ca.key"),
        "{}",
        text(&refused.stderr)
    );
}
