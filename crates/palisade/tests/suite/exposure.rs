//! Exposure of a server to other machines: its warnings at start, and the host names that
//! it accepts.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// One of the three servers; killed with its test.
struct Server {
    child: Child,
    started: Value,
    log: PathBuf,
}

const SERVERS: [&[&str]; 3] = [
    &["serve"],
    &["store"],
    &[
        "gateway",
        "--upstream",
        "http://127.0.0.1:1",
        "--admin",
        "127.0.0.1:0",
    ],
];

impl Server {
    fn start(arguments: &[&str], listen: &str, data: &Path) -> Server {
        let log = data.with_extension("log");
        let mut child = Command::new(env!("CARGO_BIN_EXE_palisade"))
            .args(arguments)
            .args(["--json", "--listen", listen, "--data"])
            .arg(data)
            .env_remove("PALISADE_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let started = serde_json::from_str(&line).expect("one line of JSON at the start");
        Server {
            child,
            started,
            log,
        }
    }

    /// Its messages at start, once it answers.
    fn said(&self) -> String {
        self.get("url", "localhost", "/healthz");
        fs::read_to_string(&self.log).unwrap()
    }

    /// Sends a request with this host name; returns the answer as text.
    fn get(&self, url: &str, host: &str, path: &str) -> String {
        let address = self.started[url].as_str().unwrap();
        let address = address.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address.replace("0.0.0.0", "127.0.0.1")).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_exposed_address_or_directory_gets_a_warning() {
    for arguments in SERVERS {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let insecure = [arguments, &["--insecure"]].concat();
        let server = Server::start(&insecure, "0.0.0.0:0", &open);
        let said = server.said();
        assert!(
            said.contains("WARN") && said.contains("nothing shows who they are"),
            "{arguments:?}: {said}"
        );
        assert!(
            said.contains("mode 0777") && said.contains(&format!("chmod 700 {}", open.display())),
            "{arguments:?}: {said}"
        );
        drop(server);

        // Control: a directory that it creates itself, and loopback.
        let own = dir.path().join("own");
        let server = Server::start(arguments, "127.0.0.1:0", &own);
        let said = server.said();
        let of_exposure = |line: &&str| line.contains("WARN") && !line.contains("NEW authority");
        assert_eq!(said.lines().find(of_exposure), None, "{arguments:?}");
        let mode = fs::metadata(&own).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[test]
fn an_address_that_others_reach_is_refused_without_a_way_to_know_them() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        command.args(arguments).args(["--data", "data"]).args(more);
        let output = command.current_dir(dir.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {more:?}");
        assert!(!dir.path().join("data").exists());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for arguments in SERVERS {
        for listen in ["0.0.0.0:0", "[::]:0", "[::ffff:192.0.2.1]:0", "192.0.2.1:0"] {
            let said = refused(arguments, &["--listen", listen]);
            let ways = ["--tls-cert", "palisade auth cert", "--insecure"];
            assert!(
                said.contains(listen) && ways.iter().all(|way| said.contains(way)),
                "{said}"
            );
        }
    }
    // TLS alone does not say who may take a lock; behind a gateway the upstream asks.
    let certificate = ["--tls-cert", "x.pem", "--tls-key", "x.key"];
    for arguments in [&["serve"], &["store"]] {
        let said = refused(
            arguments,
            &[&["--listen", "0.0.0.0:0"][..], &certificate].concat(),
        );
        assert!(said.contains("--tls-client-ca"), "{said}");
    }
    let said = refused(
        &["gateway", "--upstream", "http://127.0.0.1:1"],
        &["--admin", "0.0.0.0:0"],
    );
    assert!(said.contains("--admin 0.0.0.0:0"), "{said}");
}

#[test]
fn an_unknown_host_name_is_refused_except_by_the_gateway() {
    for (arguments, port) in SERVERS.into_iter().zip(["url", "url", "admin"]) {
        let dir = tempfile::tempdir().unwrap();
        let mut arguments = arguments.to_vec();
        arguments.extend(["--allow-host", "locks.example.org"]);
        let server = Server::start(&arguments, "127.0.0.1:0", &dir.path().join("data"));
        let status = |host: &str| server.get(port, host, "/healthz")[..12].to_owned();
        assert_eq!(status("evil.example:80"), "HTTP/1.1 421", "{arguments:?}");
        assert_eq!(status("locks.example.org"), "HTTP/1.1 200", "{arguments:?}");
        assert_eq!(status("127.0.0.1:7420"), "HTTP/1.1 200", "{arguments:?}");
        let refused = server.get(port, "evil.example", "/healthz");
        assert!(
            refused.contains(r#""code":"misdirected""#)
                && refused.contains("--allow-host evil.example"),
            "{refused}"
        );
        if port == "admin" {
            // The upstream does not exist; the gateway found that out by connecting to it.
            let sent_on = server.get("url", "evil.example", "/healthz");
            assert!(sent_on.starts_with("HTTP/1.1 502"), "{sent_on}");
        }
    }
}
