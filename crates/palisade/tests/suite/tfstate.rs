//! `palisade tfstate` over the wire, as Terraform and OpenTofu speak it: the requests of a run that is paused, of one that
//! gets no answer, and of the others. `deploy/check_terraform.py` does the same with the real programs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::common::{SOON, Server, json, palisade, text, until};

/// A server of states, with its directory.
struct States {
    child: Child,
    address: String,
    dir: tempfile::TempDir,
    flags: Vec<String>,
}

/// A response.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        json(&self.body)
    }
}

impl States {
    fn of(server: &Server, flags: &[&str]) -> States {
        let dir = tempfile::tempdir().unwrap();
        let mut all = vec!["--authority".to_owned(), server.url.clone()];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let (child, address) = start("127.0.0.1:0", dir.path(), &all);
        States {
            child,
            address,
            dir,
            flags: all,
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        (self.child, self.address) = start(&self.address.clone(), self.dir.path(), &self.flags);
    }

    fn ask(&self, method: &str, at: &str, head: &str, body: &[u8]) -> Answer {
        self.ask_with(method, at, head, body.len(), body)
    }

    /// The same, with a Content-Length of its own.
    fn ask_with(&self, method: &str, at: &str, head: &str, length: usize, body: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let start = format!(
            "{method} {at} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {length}\r\n{head}\r\n",
            self.address
        );
        stream.write_all(start.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(all[..end].to_vec()).unwrap();
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_ascii_lowercase(),
            body: all[end + 4..].to_vec(),
        }
    }

    fn lock(&self, at: &str, id: &str) -> Answer {
        self.ask("LOCK", at, "", &info(id, "Apply"))
    }

    fn plan(&self, at: &str, id: &str) -> Answer {
        self.ask("LOCK", at, "", &info(id, "Plan"))
    }

    fn unlock(&self, at: &str, id: &str) -> u16 {
        self.ask("UNLOCK", at, "", &info(id, "Apply")).status
    }

    fn upload(&self, at: &str, id: &str, state: &[u8]) -> Answer {
        self.ask("POST", &format!("{at}?ID={id}"), "", state)
    }

    fn state(&self, at: &str) -> Vec<u8> {
        let answer = self.ask("GET", at, "", b"");
        assert!(matches!(answer.status, 200 | 204), "{}", answer.head);
        answer.body
    }
}

fn start(listen: &str, dir: &Path, flags: &[String]) -> (Child, String) {
    let mut command = palisade();
    command
        .args(["tfstate", "--json", "--listen", listen, "--data"])
        .arg(dir.join("states"));
    let mut child = command
        .args(flags)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let started = json(line.as_bytes());
    (child, started["listening"].as_str().unwrap().to_owned())
}

impl Drop for States {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The description of a lock, as Terraform sends it.
fn info(id: &str, operation: &str) -> Vec<u8> {
    let info = json!({
        "ID": id, "Operation": format!("OperationType{operation}"), "Info": "", "Who": "ci@runner", "Version": "1.11.4",
        "Created": "2026-11-28T12:00:00Z", "Path": "",
    });
    info.to_string().into_bytes()
}

fn state(serial: u64, content: &str) -> Vec<u8> {
    json!({ "version": 4, "serial": serial, "lineage": "one", "content": content })
        .to_string()
        .into_bytes()
}

const PROD: &str = "/v1/tf/team/prod";

/// The run `paused` is stopped after its LOCK; somebody forces the lock open and applies; then its upload arrives.
#[test]
fn an_upload_that_comes_late_is_refused_and_the_newer_state_stands() {
    let server = Server::start();
    let states = States::of(&server, &["--allow-blind-force-unlock"]);
    assert_eq!(states.lock(PROD, "paused").status, 200);
    assert_eq!(
        states.upload(PROD, "paused", &state(1, "first")).status,
        200
    );
    // Terraform's force-unlock: no body. OpenTofu names the lock, which is the ordinary unlock.
    assert_eq!(
        states
            .ask("UNLOCK", PROD, "Content-Type: application/json\r\n", b"")
            .status,
        200
    );

    // The control: as long as nobody has locked since, the late upload is admitted.
    assert_eq!(
        states
            .upload(PROD, "paused", &state(2, "late, and harmless"))
            .status,
        200
    );

    assert_eq!(states.lock(PROD, "next").status, 200);
    assert_eq!(states.upload(PROD, "next", &state(3, "newer")).status, 200);
    let late = states.upload(PROD, "paused", &state(3, "late"));
    assert_eq!(late.status, 412);
    assert_eq!(late.json()["error"]["code"], "stale");
    assert_eq!(states.state(PROD), state(3, "newer"));
    // The authority is told. The upload that was admitted is not there.
    until("the report", || {
        let said = server.output(&["history", "--refused", "--json"]).stdout;
        text(&said).matches("\"operation\":\"upload\"").count() == 1
    });

    // Its unlock names its own lock, and frees nobody else's.
    assert_eq!(states.unlock(PROD, "paused"), 200);
    let third = states.lock(PROD, "third");
    assert_eq!(
        (third.status, third.json()["ID"].as_str()),
        (423, Some("next"))
    );
    assert_eq!(states.upload(PROD, "next", &state(4, "newest")).status, 200);
}

#[test]
fn plans_share_the_lock_and_upload_nothing() {
    let server = Server::start();
    let states = States::of(&server, &[]);
    assert_eq!(states.plan(PROD, "plan1").status, 200);
    assert_eq!(states.plan(PROD, "plan2").status, 200);
    assert_eq!(
        states.upload(PROD, "plan1", &state(1, "a plan's")).status,
        403
    );
    assert_eq!(states.lock(PROD, "apply").status, 423);
    assert_eq!(
        (states.unlock(PROD, "plan1"), states.unlock(PROD, "plan2")),
        (200, 200)
    );
    assert_eq!(states.lock(PROD, "apply").status, 200);
    let refused = states.plan(PROD, "plan3");
    assert_eq!(
        (refused.status, refused.json()["Who"].as_str()),
        (423, Some("ci@runner"))
    );
    assert_eq!(states.state(PROD), b"");
}

/// Terraform repeats a request that got no answer.
#[test]
fn repeats_get_the_first_answer_and_overtaken_uploads_change_nothing() {
    let server = Server::start();
    let states = States::of(&server, &[]);
    for _ in 0..2 {
        assert_eq!(states.lock(PROD, "a").status, 200);
    }
    for _ in 0..2 {
        assert_eq!(states.upload(PROD, "a", &state(1, "one")).status, 200);
    }
    assert_eq!(states.upload(PROD, "a", &state(2, "two")).status, 200);
    let overtaken = states.upload(PROD, "a", &state(1, "one"));
    assert_eq!(
        (overtaken.status, states.state(PROD)),
        (412, state(2, "two"))
    );
    let versions = states
        .ask("GET", &format!("{PROD}?versions"), "", b"")
        .json();
    assert_eq!(versions["versions"].as_array().unwrap().len(), 2);
    for _ in 0..2 {
        assert_eq!(states.unlock(PROD, "a"), 200);
    }
    // A LOCK that was under way since before the unlock would lock for nobody.
    assert_eq!(states.lock(PROD, "a").status, 409);
    assert_eq!(states.unlock(PROD, "never-granted"), 409);
    assert_eq!(
        states.upload(PROD, "never-granted", &state(9, "")).status,
        412
    );
}

#[test]
fn a_lock_with_a_wait_follows_the_one_before_it() {
    let server = Server::start();
    let states = States::of(&server, &[]);
    assert_eq!(states.lock(PROD, "first").status, 200);
    let patient = format!("{PROD}?wait=15s");
    thread::scope(|scope| {
        let second = scope.spawn(|| states.lock(&patient, "second").status);
        until("the second request in the queue", || {
            server.show("tf/team/prod")["waiters"] == 1
        });
        assert_eq!(states.unlock(PROD, "first"), 200);
        assert_eq!(second.join().unwrap(), 200);
    });
    assert_eq!(
        states
            .upload(&patient.replace("?wait=15s", ""), "second", &state(1, ""))
            .status,
        200
    );
}

#[test]
fn a_kill_between_lock_and_upload_loses_neither() {
    let mut server = Server::start();
    let mut states = States::of(&server, &[]);
    assert_eq!(states.lock(PROD, "a").status, 200);
    states.kill();
    states.restart();
    assert_eq!(states.lock(PROD, "b").status, 423, "the lock is still held");
    assert_eq!(
        states.upload(PROD, "a", &state(1, "after the kill")).status,
        200
    );

    // The authority is not needed for an upload, nor for the unlock that follows it.
    server.kill();
    assert_eq!(
        states
            .upload(PROD, "a", &state(2, "without an authority"))
            .status,
        200
    );
    assert_eq!(states.unlock(PROD, "a"), 200);
    assert_eq!(states.lock(PROD, "c").status, 503);
    server.restart();
    until("the release at the authority", || {
        states.lock(PROD, "c").status == 200
    });
    assert_eq!(states.state(PROD), state(2, "without an authority"));
}

/// Terraform never renews: the lease is renewed here until the `UNLOCK`, also after this server was started again.
#[test]
fn a_lock_outlasts_its_lease_until_it_is_unlocked() {
    let server = Server::start();
    let mut states = States::of(&server, &["--ttl", "500ms"]);
    let renewed = |states: &States| {
        let before = server.show("tf/team/prod");
        assert_eq!(states.lock(PROD, "other").status, 423);
        // More remains than before only if it was renewed meanwhile.
        let mut least = before["holder"]["remaining_ms"].as_u64().unwrap();
        until("a renewal", || {
            let now = server.show("tf/team/prod")["holder"]["remaining_ms"]
                .as_u64()
                .unwrap_or(0);
            let more = now > least;
            least = now;
            more
        });
    };
    assert_eq!(states.lock(PROD, "a").status, 200);
    (0..3).for_each(|_| renewed(&states));
    states.kill();
    states.restart();
    // It was down for longer than the lease, perhaps. Then the lock was lost, and the upload is judged by the fence.
    let lost = server.show("tf/team/prod")["holder"].is_null();
    assert_eq!(states.upload(PROD, "a", &state(1, "")).status, 200);
    if !lost {
        renewed(&states);
    }
}

#[test]
fn what_is_wrong_changes_nothing_and_never_looks_like_an_empty_state() {
    let server = Server::start();
    let states = States::of(&server, &[]);
    let get = |at: &str| states.ask("GET", at, "", b"").status;
    // Terraform takes 404 for an empty state.
    for at in [
        "/v1/tf",
        "/v1/tf/",
        "/v1/tff/prod",
        "/",
        "/v1/tf/a//b",
        "/v1/tf/../b",
        "/v1/tf/a%20b",
    ] {
        assert_eq!(get(at), 400, "{at}");
    }
    assert_eq!(
        (
            get(PROD),
            get(&format!("{PROD}?version=1")),
            get(&format!("{PROD}?serial=1"))
        ),
        (204, 400, 400)
    );

    // Without a lock, as with -lock=false: until somebody locks.
    let alone = |text: &str| states.ask("POST", PROD, "", &state(1, text)).status;
    assert_eq!(alone("alone"), 200);
    assert_eq!(states.lock(PROD, "a").status, 200);
    assert_eq!(
        (alone("again"), states.state(PROD)),
        (412, state(1, "alone"))
    );

    let torn = states.ask(
        "POST",
        &format!("{PROD}?ID=a"),
        "Content-MD5: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
        b"{}",
    );
    assert_eq!(torn.status, 400);
    for body in ["{", "[]", "{}", r#"{"ID": ""}"#, r#"{"ID": 7}"#] {
        assert_eq!(
            states.ask("LOCK", PROD, "", body.as_bytes()).status,
            400,
            "{body}"
        );
    }
    // Nobody shows who asks, and the unlock names no lock.
    assert_eq!(states.ask("UNLOCK", PROD, "", b"").status, 403);
    assert_eq!(states.ask("DELETE", PROD, "", b"").status, 405);
    assert_eq!(states.state(PROD), state(1, "alone"));
}

#[test]
fn the_last_versions_are_kept_also_of_large_states() {
    let server = Server::start();
    let states = States::of(&server, &["--versions", "2", "--state-bytes", "25000000"]);
    assert_eq!(states.lock(PROD, "a").status, 200);
    // Digits of a sequence that hardly compresses.
    let mut seed = 1_u64;
    let noise: String = std::iter::repeat_with(|| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        char::from(b' ' + (seed >> 33) as u8 % 90)
    })
    .filter(|c| !matches!(c, '"' | '\\'))
    .take(20_000_000)
    .collect();
    for serial in 1..=3 {
        assert_eq!(states.upload(PROD, "a", &state(serial, &noise)).status, 200);
    }
    assert!(states.state(PROD) == state(3, &noise));
    let version = |number: u64| states.ask("GET", &format!("{PROD}?version={number}"), "", b"");
    assert_eq!(version(1).status, 400);
    let second = version(2);
    assert!(second.body == state(2, &noise));
    assert!(second.head.contains("content-md5: "), "{}", second.head);
    let larger = states.ask_with("POST", &format!("{PROD}?ID=a"), "", 25_000_001, b"");
    assert_eq!(larger.status, 413);
}

/// The password is a token of the authority, which decides what its owner may do.
#[test]
fn a_password_is_a_token_of_the_authority() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("access.toml");
    std::fs::write(
        &file,
        r#"[auth]
principals = [{ name = "ci" }, { name = "viewer" }, { name = "operator" }]
rules = [
    { principal = "ci", prefix = "tf/", verbs = ["hold", "share", "observe"] },
    { principal = "viewer", prefix = "tf/", verbs = ["share", "observe"] },
    { principal = "operator", prefix = "tf/", verbs = ["observe", "break"] },
]
"#,
    )
    .unwrap();
    let token = |principal: &str| {
        let made = palisade()
            .args(["--json", "auth", "token", "new", principal, "--access"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        let password = json(&made.stdout)["token"].as_str().unwrap().to_owned();
        format!(
            "Authorization: Basic {}\r\n",
            BASE64_STANDARD.encode(format!("any:{password}"))
        )
    };
    let (ci, viewer, operator) = (token("ci"), token("viewer"), token("operator"));
    let server = Server::with(&["--access", file.to_str().unwrap()]);
    let states = States::of(&server, &[]);
    let ask = |method: &str, who: &str, body: &[u8]| states.ask(method, PROD, who, body).status;
    assert_eq!(ask("LOCK", "", &info("x", "Apply")), 401);
    let wrong = format!(
        "Authorization: Basic {}\r\n",
        BASE64_STANDARD.encode("ci:pal_wrong_wrong")
    );
    assert_eq!(ask("GET", &wrong, b""), 401);
    assert_eq!(ask("LOCK", &viewer, &info("v", "Apply")), 403);
    // Nor without a lock, which would need the same right.
    assert_eq!(ask("POST", &viewer, &state(1, "viewer's")), 403);
    assert_eq!(ask("LOCK", &viewer, &info("v", "Plan")), 200);
    assert_eq!(ask("UNLOCK", &viewer, &info("v", "Plan")), 200);
    assert_eq!(ask("LOCK", &ci, &info("a", "Apply")), 200);
    // Nobody else uploads under its lock, unlocks it, or repeats its LOCK.
    assert_eq!(
        states
            .ask(
                "POST",
                &format!("{PROD}?ID=a"),
                &viewer,
                &state(1, "viewer's")
            )
            .status,
        403
    );
    assert_eq!(ask("UNLOCK", &viewer, &info("a", "Apply")), 403);
    assert_eq!(ask("LOCK", &viewer, &info("a", "Plan")), 403);
    assert_eq!(ask("UNLOCK", &viewer, b""), 403);
    assert_eq!(
        states
            .ask("POST", &format!("{PROD}?ID=a"), &ci, &state(1, "ci's"))
            .status,
        200
    );
    // An operator takes it, as `palisade break` does.
    assert_eq!(ask("UNLOCK", &operator, b""), 200);
    assert_eq!(ask("LOCK", &ci, &info("b", "Apply")), 200);
    assert_eq!(states.ask("GET", PROD, &viewer, b"").body, state(1, "ci's"));
}
