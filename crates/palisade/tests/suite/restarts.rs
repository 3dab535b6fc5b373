//! Restarts, planned and not: time neither stands still nor starts again (rules A7, A14, D2, D4).

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::cluster::Cluster;
use crate::common::{now, palisade, palisade_ahead, send, until, until_time};

/// A server that is ended and started again on one directory.
struct Server {
    child: Child,
    address: String,
    manual: bool,
    /// Of how many seconds its CLOCK_BOOTTIME is ahead of the machine's, in a namespace of its own; 0 without one.
    ahead: u32,
    dir: tempfile::TempDir,
}

impl Server {
    fn start(manual: bool) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let (child, address) = serve(&dir.path().join("data"), manual, 0);
        Server {
            child,
            address,
            manual,
            ahead: 0,
            dir,
        }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn end(&mut self, signal: Signal) {
        send(self.child.id().try_into().unwrap(), signal);
        let ended = self.child.wait().unwrap();
        assert!(signal == Signal::KILL || ended.success(), "{ended}");
    }

    fn again(&mut self) {
        (self.child, self.address) = serve(&self.data(), self.manual, self.ahead);
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let body = body.to_string();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.ask("POST", path, body);
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    fn show(&self, lock: &str) -> Value {
        let (status, shown) = self.ask("GET", &format!("/v1/locks/{lock}"), &Value::Null);
        assert_eq!(status, 200, "{shown}");
        shown
    }

    /// A figure of `/metrics`.
    fn metric(&self, name: &str) -> f64 {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let ask = format!(
            "GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(ask.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        figure(&answer, name)
    }
}

fn figure(metrics: &str, name: &str) -> f64 {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {metrics}"))
        .trim()
        .parse()
        .unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(data: &std::path::Path, manual: bool, ahead: u32) -> (Child, String) {
    let mut command = match ahead {
        0 => palisade(),
        _ => palisade_ahead(ahead),
    };
    command
        .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data"])
        .arg(data);
    if manual {
        command.args(["--clock", "manual"]);
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let started: Value = serde_json::from_str(&line).expect("one line of JSON at the start");
    let url = started["url"].as_str().unwrap();
    (child, url.trim_start_matches("http://").to_owned())
}

/// Numbers that a seed decides.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// The promises about one lock, in milliseconds of the manual clock.
#[derive(Clone, Debug)]
struct Promise {
    key: String,
    ttl: u64,
    renewed: u64,
    expires: u64,
    extended: u64,
    lock_delay: u64,
    reserved: u64,
    released: bool,
}

impl Promise {
    fn is_live(&self, now: u64) -> bool {
        !self.released && now < self.expires
    }

    fn closed(&self, now: u64) -> u64 {
        let delayed = if self.released || self.lock_delay == 0 {
            0
        } else {
            self.expires + self.lock_delay
        };
        delayed.max(self.reserved).saturating_sub(now)
    }

    /// Its full time again, and twice its time in all since it was last renewed.
    fn restart(&mut self, now: u64) {
        let until = (now + self.ttl).min(self.renewed + 2 * self.ttl);
        if until > self.expires {
            self.extended += 1;
            self.expires = until;
        }
    }
}

/// SIGTERM and SIGKILL at random moments. The clock is moved by hand, so every figure is exact.
#[test]
fn fifty_restarts_leave_every_lease_and_every_closing_time_within_its_bound() {
    let (mut server, mut rng, mut now) = (Server::start(true), Rng(7), 0);
    let mut promises: BTreeMap<String, Promise> = BTreeMap::new();
    let mut most_extended = 0;
    for round in 0..50 {
        for step in 0..3 {
            let lock = format!("lock-{round}-{step}");
            let ttl = 200 + rng.below(6_000);
            let [lock_delay, at_least] = [3_000, 20_000].map(|most| rng.below(2) * rng.below(most));
            let body = json!({
                "client_id": "c", "lease_duration_ms": ttl, "lock_delay_ms": lock_delay, "at_least_for_ms": at_least,
            });
            let granted = server.post(&format!("/v1/locks/{lock}/acquire"), &body);
            let reserved = if at_least > 0 { now + at_least } else { 0 };
            let promise = Promise {
                key: granted["lock_token"].as_str().unwrap().into(),
                ttl,
                renewed: now,
                expires: now + ttl,
                extended: 0,
                lock_delay,
                reserved,
                released: false,
            };
            promises.insert(lock, promise);
            let by = rng.below(400);
            server.post("/v1/clock/advance", &json!({"ms": by}));
            now += by;
            for (lock, promise) in promises
                .iter_mut()
                .filter(|(_, promise)| promise.is_live(now))
            {
                let body = json!({"lock_token": promise.key});
                match rng.below(40) {
                    0 => {
                        server.post(&format!("/v1/locks/{lock}/renew"), &body);
                        (promise.renewed, promise.extended) = (now, 0);
                        promise.expires = promise.expires.max(now + promise.ttl);
                    }
                    1 => {
                        server.post(&format!("/v1/locks/{lock}/release"), &body);
                        promise.released = true;
                    }
                    _ => {}
                }
            }
        }
        server.end(match rng.below(2) {
            0 => Signal::TERM,
            _ => Signal::KILL,
        });
        server.again();
        for promise in promises.values_mut().filter(|promise| promise.is_live(now)) {
            promise.restart(now);
            most_extended = most_extended.max(promise.extended);
        }
        let live = promises
            .values()
            .filter(|promise| promise.is_live(now) && promise.extended > 0);
        assert_eq!(
            server.metric("palisade_leases_extended"),
            live.count() as f64
        );
        for (lock, promise) in &promises {
            let shown = server.show(lock);
            let left = if promise.is_live(now) {
                json!(promise.expires - now)
            } else {
                Value::Null
            };
            assert_eq!(
                shown["holder"]["remaining_ms"], left,
                "{lock} {promise:?} at {now}: {shown}"
            );
            let extensions = if promise.is_live(now) {
                promise.extended
            } else {
                0
            };
            assert_eq!(
                shown["extensions"].as_u64().unwrap_or(0),
                extensions,
                "{lock}: {shown}"
            );
            let closed = if promise.is_live(now) {
                0
            } else {
                promise.closed(now)
            };
            assert_eq!(
                shown["delayed_ms"].as_u64().unwrap_or(0),
                closed,
                "{lock} {promise:?} at {now}: {shown}"
            );
        }
        promises.retain(|_, promise| promise.is_live(now) || promise.closed(now) > 0);
    }
    assert!(
        most_extended > 3,
        "some lease outlived several restarts: {most_extended}"
    );
}

/// The real clock, within one boot: it goes on while there is no server, and nothing of a quiet server's time is lost.
#[test]
fn a_lock_is_closed_no_longer_for_a_restart_of_either_kind() {
    const CLOSED: u64 = 600_000;
    let mut server = Server::start(false);
    let ask = json!({"client_id": "a", "lease_duration_ms": 1_000, "at_least_for_ms": CLOSED});
    let granted = server.post("/v1/locks/nightly/acquire", &ask);
    server.post(
        "/v1/locks/nightly/release",
        &json!({"lock_token": granted["lock_token"]}),
    );
    let since = now();
    let passed = || now().since(since).as_millis();
    // real time: a quiet server, and none, for long enough to tell from the time that a start takes
    let quietly = || until_time(now().after(Duration::from_millis(1_500).into()));
    for signal in [Signal::KILL, Signal::TERM, Signal::KILL] {
        quietly();
        server.end(signal);
        quietly();
        server.again();
        let before = passed();
        let closed = server.show("nightly")["delayed_ms"].as_u64().unwrap();
        assert!(
            closed + before <= CLOSED,
            "{signal:?}: {closed} ms left after {before} ms"
        );
        assert!(
            closed + passed() + 1_000 > CLOSED,
            "{signal:?}: {closed} ms left: too few"
        );
    }
    // The control: the machine was started again, as far as the server can know. Only the time since the last entry is
    // lost, and after a planned stop the time was the last entry.
    for (signal, lost) in [(Signal::TERM, 1_500), (Signal::KILL, 1_500)] {
        server.end(signal);
        let down = now();
        std::fs::remove_file(server.data().join("clock")).unwrap();
        quietly();
        let was_down = now().since(down).as_millis();
        server.again();
        let before = passed();
        let closed = server.show("nightly")["delayed_ms"].as_u64().unwrap();
        assert!(
            closed + before > CLOSED + lost / 2,
            "{signal:?}: {closed} ms left after {before} ms, {was_down} down"
        );
    }
}

/// A container that is started again may have another clock, in a namespace that has the number of the one before. The time
/// from the one clock to the other never passed. The control is a restart with the same clock.
#[test]
fn a_clock_of_another_namespace_is_not_compared() {
    const CLOSED: u64 = 600_000;
    let mut server = Server::start(false);
    let starts = |server: &mut Server, ahead: u32| {
        server.end(Signal::KILL);
        server.ahead = ahead;
        server.again();
        server.show("nightly")["delayed_ms"].as_u64().unwrap_or(0)
    };
    starts(&mut server, 1_000_000);
    let ask = json!({"client_id": "a", "lease_duration_ms": 1_000, "at_least_for_ms": CLOSED});
    let since = now();
    let granted = server.post("/v1/locks/nightly/acquire", &ask);
    server.post(
        "/v1/locks/nightly/release",
        &json!({"lock_token": granted["lock_token"]}),
    );
    let passed = || now().since(since).as_millis();
    for ahead in [1_000_000, 2_000_000, 2_000_000] {
        let closed = starts(&mut server, ahead);
        assert!(
            closed + passed() >= CLOSED,
            "{ahead}: {closed} ms left after {} ms",
            passed()
        );
    }
}

/// Nobody renews, and the server does not live as long as the lease.
#[test]
fn an_outage_loop_keeps_no_dead_lease_alive() {
    const TTL: u64 = 1_500;
    let mut server = Server::start(false);
    let ask = json!({"client_id": "gone", "lease_duration_ms": TTL});
    server.post("/v1/locks/dead/acquire", &ask);
    let since = now();
    let (mut restarts, mut extended) = (0, 0.0);
    while !server.show("dead")["holder"].is_null() {
        // A bound of real time is above that of serving time; a loaded machine makes the starts longer, not the serving.
        assert!(
            restarts < 12,
            "held after {restarts} restarts and {:?}",
            now().since(since)
        );
        // real time: it serves for two thirds of the lease
        until_time(now().after(Duration::from_millis(TTL * 2 / 3).into()));
        server.end(Signal::KILL);
        server.again();
        extended += server.metric("palisade_lease_extensions_total");
        assert!(server.metric("palisade_graces_total") >= 1.0);
        restarts += 1;
    }
    assert!(restarts >= 2, "a restart gives its time back: {restarts}");
    assert!(extended >= 1.0, "and that is counted: {extended}");
}

/// A leader, too, records the time while a lock is closed, and the next one goes on from there (A14, R8).
#[test]
fn a_lock_is_closed_no_longer_for_a_leader_that_is_killed_in_a_quiet_time() {
    const CLOSED: u64 = 600_000;
    // After one second, and after two.
    const STAMPS: f64 = 2.0;
    const STAMPED: u64 = 2_000;
    let mut cluster = Cluster::of(3);
    let figure = |cluster: &Cluster, at: usize, name: &str| {
        let metrics = cluster.nodes[at].text("/metrics");
        figure(&metrics, &format!("palisade_cluster_{name}"))
    };
    // A leader on a loaded machine may lose the lead without a fault: then its successor has recorded the time.
    for attempt in 1.. {
        let leader = cluster.until_ready();
        let lock = format!("/v1/locks/nightly-{attempt}");
        let since = now();
        let ask = json!({
            "client_id": "a", "lease_duration_ms": 60_000, "at_least_for_ms": CLOSED,
            "request_id": format!("{attempt:032x}"),
        });
        let post = |path: &str, body: &Value| {
            let path = format!("{lock}/{path}");
            let (status, reply) = cluster.nodes[leader].post_settled(&path, &body.to_string());
            assert_eq!(status, 200, "{path}: {reply}");
            reply
        };
        let granted = post("acquire", &ask);
        post("release", &json!({"lock_token": granted["lock_token"]}));
        let term = figure(&cluster, leader, "term");
        let entries = figure(&cluster, leader, "committed_entries");
        let changed = || figure(&cluster, leader, "term") != term;
        until("two stamps of a quiet leader", || {
            changed() || figure(&cluster, leader, "committed_entries") >= entries + STAMPS
        });
        if changed() {
            continue;
        }
        cluster.nodes[leader].kill();
        let next = cluster.until_ready();
        let mut closed = None;
        until("an answer of the next leader", || {
            let shown = cluster.nodes[next].get(&lock);
            closed = shown.and_then(|(_, shown)| shown["delayed_ms"].as_u64());
            closed.is_some()
        });
        let (closed, passed) = (closed.unwrap(), now().since(since).as_millis());
        assert!(closed + STAMPED <= CLOSED, "{closed} ms left");
        assert!(
            closed + passed >= CLOSED,
            "{closed} ms left after {passed} ms: too few"
        );
        return;
    }
}
