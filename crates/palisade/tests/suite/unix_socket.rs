//! Servers on Unix sockets: the life of the socket file, every command, and authentication by uid.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use palisade_authorities::conformance::{self, Habit, Subject};
use palisade_client::palisade::Palisade;
use palisade_client::{Fault, LockService};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::watch;

use crate::common::{Run, json, palisade, send, status, text, until};
use crate::tls::Ca;

/// A folder with a socket, and the servers there.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("s")
    }

    fn listen(&self) -> String {
        format!("--listen=unix:{}", self.socket().display())
    }

    fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Starts a server on the socket, and returns its startup line.
    fn start(&self, server: &[&str], more: &[&str]) -> (Run, Value) {
        self.start_by(palisade(), server, more)
    }

    fn start_by(&self, mut command: Command, server: &[&str], more: &[&str]) -> (Run, Value) {
        let out = fs::File::create(self.path("started")).unwrap();
        command
            .args(server)
            .args(["--json", &self.listen(), "--data"])
            .arg(self.path("data"))
            .args(more)
            .stdout(out)
            .stderr(fs::File::create(self.path("log")).unwrap());
        let mut run = Run::keep(command.spawn().unwrap());
        let said = || fs::read_to_string(self.path("started")).unwrap();
        until("the start", || {
            assert!(
                !run.is_over(),
                "{}",
                fs::read_to_string(self.path("log")).unwrap()
            );
            said().ends_with('\n')
        });
        (run, json(said().as_bytes()))
    }

    /// A server that does not start: its exit status, and why.
    fn refused(&self, more: &[&str]) -> (i32, String) {
        let mut command = palisade();
        command.args(["serve", "--data"]).arg(self.path("other"));
        let output = command.args(more).output().unwrap();
        assert!(
            !self.path("other").exists(),
            "it never opened its directory"
        );
        (status(&output), text(&output.stderr))
    }

    fn output(&self, arguments: &[&str]) -> Output {
        let mut command = palisade();
        command
            .args(arguments)
            .env("PALISADE_AUTHORITY", self.url());
        command.output().unwrap()
    }

    /// Over HTTP/1.1, with a host name that a port would refuse.
    fn get(&self, path: &str) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

fn terminate(run: Run) {
    run.send(Signal::TERM);
    assert_eq!(status(&run.end()), 0);
}

#[test]
fn every_command_and_protocol_works_on_the_socket_and_on_the_port_beside_it() {
    let place = Place::new();
    let (server, started) = place.start(&["serve"], &["--listen", "127.0.0.1:0"]);
    assert_eq!(started["url"], place.url(), "the first one");
    let port = started["urls"][1].as_str().unwrap().to_owned();
    assert!(port.starts_with("http://127.0.0.1:"), "{started}");
    let job = "echo $PALISADE_FENCING_TOKEN $PALISADE_AUTHORITY";
    let run = place.output(&["run", "orders", "--", "sh", "-c", job]);
    assert_eq!(
        text(&run.stdout),
        format!("1 {}\n", place.url()),
        "{}",
        text(&run.stderr)
    );

    let acquired = place.output(&["acquire", "orders", "--ttl", "1h", "--json"]);
    let acquired = json(&acquired.stdout);
    assert_eq!(acquired["fencing_token"], 2);
    // Both forms of the URL, and the port, are one server.
    let other = format!("unix:{}", place.socket().display());
    for url in [&*other, &port] {
        let shown = place.output(&["show", "orders", "--json", "--authority", url]);
        assert_eq!(
            json(&shown.stdout)["holder"]["fencing_token"],
            2,
            "{url}: {}",
            text(&shown.stderr)
        );
    }
    let listed = place.output(&["ls", "--json"]);
    assert!(
        text(&listed.stdout).contains("orders"),
        "{}",
        text(&listed.stderr)
    );
    assert!(
        place
            .get("/v1/locks/orders")
            .contains("\"fencing_token\":2")
    );
    // A watch is gRPC.
    let mut watch = palisade();
    watch
        .args(["watch", "--json", "--after", "1"])
        .env("PALISADE_AUTHORITY", place.url());
    let log = place.path("watched");
    watch.stdout(fs::File::create(&log).unwrap());
    let _watch = Run::keep(watch.spawn().unwrap());
    until("the watch", || {
        place.get("/metrics").contains("palisade_watchers 1")
    });
    let broken = ["break", "orders", "--token", "2", "--reason", "moved"];
    assert_eq!(status(&place.output(&broken)), 0);
    until("the event", || {
        fs::read_to_string(&log).unwrap().contains("moved")
    });
    let bench = place.output(&[
        "bench",
        "--clients=3",
        "--duration=100ms",
        "--warmup=0",
        "--json",
    ]);
    assert_eq!(status(&bench), 0, "{}", text(&bench.stderr));
    terminate(server);
    assert!(!place.socket().exists(), "removed at a clean stop");
}

#[test]
fn the_file_has_its_mode_whatever_the_umask_is() {
    for umask in ["000", "022", "077"] {
        let place = Place::new();
        let mut command = Command::new("sh");
        let script = format!("umask {umask}; exec \"$0\" \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_palisade")]);
        let (server, _) = place.start_by(command, &["serve"], &[]);
        let metadata = fs::symlink_metadata(place.socket()).unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(
            metadata.permissions().mode() & 0o7777,
            0o660,
            "umask {umask}"
        );
        terminate(server);
    }
}

#[test]
fn a_dead_servers_socket_is_replaced_and_a_living_one_and_other_files_are_refused() {
    let place = Place::new();
    let (server, _) = place.start(&["serve"], &[]);
    let (code, said) = place.refused(&[&place.listen()]);
    assert_eq!(code, 125, "{said}");
    let socket = place.socket().display().to_string();
    assert!(
        said.contains(&format!(
            "cannot listen on unix:{socket}: another server listens there"
        )),
        "{said}"
    );
    assert!(said.contains("stop that server"), "{said}");
    assert_eq!(status(&place.output(&["ls"])), 0, "it still serves");
    // A stopped one lives, too.
    crate::common::stop(server.pid());
    assert!(
        place
            .refused(&[&place.listen()])
            .1
            .contains("another server listens there")
    );
    send(server.pid(), Signal::KILL);
    server.end();
    let dead = fs::metadata(place.socket()).unwrap();
    let (server, _) = place.start(&["serve"], &[]);
    assert_ne!(
        fs::metadata(place.socket()).unwrap().ctime_nsec(),
        dead.ctime_nsec()
    );
    assert_eq!(status(&place.output(&["ls"])), 0);
    terminate(server);

    // Another program's, which has no lock.
    let foreign = UnixListener::bind(place.socket()).unwrap();
    assert!(
        place
            .refused(&[&place.listen()])
            .1
            .contains("another server listens there")
    );
    drop(foreign);
    fs::remove_file(place.socket()).unwrap();
    fs::write(place.socket(), "kept").unwrap();
    let (code, said) = place.refused(&[&place.listen()]);
    assert!(
        code == 125 && said.contains("something else than a socket is there"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(place.socket()).unwrap(), "kept");
    let nowhere = format!("--listen=unix:{}/no/s", place.0.path().display());
    assert!(place.refused(&[&nowhere]).1.contains("make its directory"));
}

#[test]
fn a_server_that_stops_leaves_what_another_program_has_put_there() {
    let place = Place::new();
    let (server, _) = place.start(&["serve"], &[]);
    fs::remove_file(place.socket()).unwrap();
    fs::write(place.socket(), "kept").unwrap();
    terminate(server);
    assert_eq!(fs::read_to_string(place.socket()).unwrap(), "kept");
}

#[test]
fn what_cannot_be_listened_on_is_refused_before_anything_is_opened() {
    let place = Place::new();
    let long = format!("--listen=unix:/{}", "s".repeat(107));
    let listen = place.listen();
    let tls = ["--tls-cert=x", "--tls-key=x"];
    let member = "--cluster=127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";
    for (flags, expected) in [
        (
            &[&*long][..],
            "108 bytes, and that of a Unix socket has at most 107",
        ),
        (&["--listen=unix:s"], "is absolute: unix:/run/palisade.sock"),
        (&["--listen=/run/s"], "a Unix socket is written unix:/run/s"),
        (&[&listen, tls[0], tls[1]], "a Unix socket has no TLS"),
        (&[&listen, member], "add a port: --listen ADDRESS"),
    ] {
        let (code, said) = place.refused(flags);
        assert!(code == 2 && said.contains(expected), "{flags:?}: {said}");
        assert!(!place.socket().exists());
    }
}

#[test]
fn a_client_refuses_certificates_for_a_socket_and_says_what_is_wrong_there() {
    let place = Place::new();
    let with = |arguments: &[&str]| {
        let output = place.output(&[&["ls"], arguments].concat());
        (status(&output), text(&output.stderr))
    };
    let (code, said) = with(&["--ca-file", "ca.pem"]);
    assert!(code == 2 && said.contains("has no TLS"), "{said}");
    let (code, said) = with(&["--client-cert", "c.pem", "--client-key", "c.key"]);
    assert!(
        code == 2 && said.contains("leave the certificates out"),
        "{said}"
    );
    let (code, said) = with(&["--authority", "unix:s"]);
    assert!(code == 2 && said.contains("absolute"), "{said}");
    let (code, said) = with(&[]);
    let place = place.url();
    assert!(
        code == 125 && said.starts_with(&format!("palisade: {place}: ")),
        "{said}"
    );
    assert!(said.contains("is a server running there?"), "{said}");
}

#[test]
fn the_store_and_the_gateway_listen_on_sockets_too() {
    let gateway = [
        "gateway",
        "--upstream=http://127.0.0.1:1",
        "--admin=127.0.0.1:0",
    ];
    for (server, path, expected) in [
        (&["store"][..], "/v1/storage", "HTTP/1.1 200"),
        (&gateway, "/", "HTTP/1.1 502"),
    ] {
        let place = Place::new();
        let (run, started) = place.start(server, &[]);
        assert_eq!(started["url"], place.url());
        let answer = place.get(path);
        assert!(answer.starts_with(expected), "{answer}");
        terminate(run);
        assert!(!place.socket().exists());
    }
}

/// The port of such a server has TLS, and the socket beside it has none.
#[test]
fn with_certificates_the_socket_stays_without_tls() {
    let place = Place::new();
    let ca = Ca::make(&place.path("ca"));
    let port = ["--listen=127.0.0.1:0".to_owned()];
    let flags: Vec<String> = ca.of_server().into_iter().chain(port).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (server, started) = place.start(&["serve"], &flags);
    let port = started["urls"][1].as_str().unwrap();
    assert!(port.starts_with("https://"), "{started}");
    assert!(ca.get(port, "/v1/locks").starts_with("HTTP/1.1 200"));
    assert_eq!(status(&place.output(&["ls"])), 0);
    terminate(server);
}

const RULES: &str = r#"[auth]
[[auth.principals]]
name = "backup"
uids = [UID]
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

/// As whom a client runs; `None` is the user of this test.
type User = Option<(u32, u32)>;

/// A process is authenticated by its uid; a token takes precedence. Only root starts processes of other users; for anybody
/// else the rules name the user of this test, and then another one.
#[test]
fn the_uid_of_a_process_is_an_identity() {
    let place = Place::new();
    let (uid, gid) = (
        rustix::process::geteuid(),
        rustix::process::getegid().as_raw(),
    );
    let (own, other) = if uid.is_root() {
        (Some((4_242, gid)), Some((4_243, gid)))
    } else {
        (None, None)
    };
    let known = own.map_or(uid.as_raw(), |(uid, _)| uid);
    let file = place.path("access.toml");
    let rules = |uid: u32| fs::write(&file, RULES.replace("UID", &uid.to_string())).unwrap();
    rules(known);
    // Other users must be able to reach the program and the socket.
    fs::set_permissions(place.0.path(), Permissions::from_mode(0o755)).unwrap();
    let program = place.path("palisade");
    // By another program: a file that this one writes is busy while a child of another test, forked meanwhile, has it open.
    let mut copy = Command::new("cp");
    let copied = copy.arg(env!("CARGO_BIN_EXE_palisade")).arg(&program);
    assert!(copied.status().unwrap().success());
    let mut made = palisade();
    made.args(["auth", "token", "new", "viewer", "--access"])
        .arg(&file);
    let token = text(&made.output().unwrap().stdout).trim().to_owned();
    let access = format!("--access={}", file.display());
    let (server, _) = place.start(&["serve"], &[&access]);
    let with = |user: User, token: Option<&str>, arguments: &[&str]| {
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .current_dir(place.0.path())
            .env_clear();
        command
            .env("PALISADE_AUTHORITY", place.url())
            .env("PATH", "/usr/bin:/bin");
        command.envs(token.map(|token| ("PALISADE_TOKEN", token)));
        if let Some((uid, gid)) = user {
            command.uid(uid).gid(gid);
        }
        let output = command.stdin(Stdio::null()).output().unwrap();
        (status(&output), text(&output.stderr))
    };
    let job = ["run", "backup/db", "--", "true"];
    assert_eq!(with(own, None, &job), (0, String::new()), "the right uid");
    let (code, said) = with(own, None, &["run", "orders", "--", "true"]);
    assert!(
        code != 0 && said.contains("backup may not hold the lock orders"),
        "{said}"
    );
    // The token counts first, whether it grants less or nothing.
    let (code, said) = with(own, Some(&token), &job);
    assert!(
        code != 0 && said.contains("viewer may not hold the lock backup/db"),
        "{said}"
    );
    let (code, said) = with(own, Some("pal_x_1"), &job);
    assert!(code != 0 && said.contains("not a token"), "{said}");
    assert_eq!(with(own, Some(&token), &["ls"]).0, 0);
    if other.is_none() {
        rules(known + 1);
        server.send(Signal::HUP);
        until("new rules", || {
            fs::read_to_string(place.path("log"))
                .unwrap()
                .contains("new rules are in force")
        });
    }
    let wrong = other.map_or(known, |(uid, _)| uid);
    let (code, said) = with(other, None, &job);
    assert!(
        code != 0
            && said.contains(&format!(
                "no principal has the uid {wrong}, and no token was sent"
            )),
        "{said}"
    );
    if let Some((uid, gid)) = own {
        // The token of a user without an entry; and root is nobody special.
        assert_eq!(with(other, Some(&token), &["ls"]).0, 0);
        let (code, said) = with(None, None, &job);
        assert!(
            code != 0 && said.contains("no principal has the uid 0"),
            "{said}"
        );
        // Outside of the socket's group not even the right uid connects.
        let (code, said) = with(Some((uid, gid + 4_242)), None, &job);
        assert!(code != 0 && said.contains("Permission denied"), "{said}");
    }
    terminate(server);
}

/// `palisade serve` on a socket, and connections to it that can be cut.
struct Served {
    place: Place,
    server: Mutex<Run>,
    /// Every connection of the relay ends when it changes.
    cuts: watch::Sender<u32>,
}

impl Served {
    fn relay(&self) -> PathBuf {
        self.place.path("relay")
    }
}

/// Passes connections to one socket on to another one.
async fn relay(from: tokio::net::UnixListener, to: PathBuf, cuts: watch::Sender<u32>) {
    while let Ok((mut near, _)) = from.accept().await {
        let (to, mut cut) = (to.clone(), cuts.subscribe());
        tokio::spawn(async move {
            let Ok(mut far) = tokio::net::UnixStream::connect(to).await else {
                return;
            };
            tokio::select! {
                _ = cut.changed() => {}
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
            }
        });
    }
}

async fn connect(path: &Path) -> Result<Arc<dyn LockService>, Fault> {
    let url = format!("unix://{}", path.display());
    Ok(Arc::new(Palisade::connect(&url, 1).await?))
}

impl Subject for Served {
    async fn connect(&self) -> Result<Arc<dyn LockService>, Fault> {
        connect(&self.place.socket()).await
    }

    async fn connect_through(&self) -> Option<Result<Arc<dyn LockService>, Fault>> {
        Some(connect(&self.relay()).await)
    }

    async fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    async fn crash(&self) -> bool {
        let mut server = self.server.lock().unwrap();
        server.send(Signal::KILL);
        until("its end", || server.is_over());
        *server = self.place.start(&["serve"], &[]).0;
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn palisade_serve_passes_the_suite_for_authorities_on_a_socket() {
    let place = Place::new();
    let subject = Served {
        server: Mutex::new(place.start(&["serve"], &[]).0),
        cuts: watch::channel(0).0,
        place,
    };
    let listener = tokio::net::UnixListener::bind(subject.relay()).unwrap();
    tokio::spawn(relay(
        listener,
        subject.place.socket(),
        subject.cuts.clone(),
    ));
    let habit = Habit::FULL.scaled().unwrap();
    conformance::run(&Arc::new(subject), habit)
        .await
        .assert_passed();
}
