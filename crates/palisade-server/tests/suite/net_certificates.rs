//! A connection may outlive the certificate that opened it. Afterwards no new request is taken on it, and answers in
//! flight leave. So it is when the certificate is revoked, or its CA replaced.
//!
//! A certificate ends by the wall clock, which a test cannot move, so it lives for some seconds. Where the machine is so
//! busy that it ends while the test still prepares, the test begins again with a longer one.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use palisade_proto::frames;
use palisade_proto::v1::reply::Outcome;
use palisade_proto::v1::request::Operation;
use palisade_proto::v1::{self, Request};
use palisade_server::shell::Settings;
use palisade_tls::issue::{CertificateAuthority, Validity};
use palisade_tls::{ClientFiles, ServerFiles, Stream, TlsClient};
use prost::Message as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::net_session::plain_frame;
use crate::net_support::grpc::acquire;
use crate::net_support::{Server, Wish, soon};

/// Lives of the client's certificate, each tried where the one before it was too short.
const LIVES: [Duration; 3] = [
    Duration::from_secs(3),
    Duration::from_secs(12),
    Duration::from_secs(48),
];

struct World {
    dir: TempDir,
    ca: CertificateAuthority,
    server: Server,
    /// Reads its files again for each connection.
    client: TlsClient,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a certificate is valid by the wall clock"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

impl World {
    async fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let long = Validity::days(now(), 1);
        let (ca, root) = CertificateAuthority::make(long).unwrap();
        std::fs::write(dir.path().join("ca.pem"), root.certificate).unwrap();
        issue(&dir, &ca, "server", long);
        issue(&dir, &ca, "client", long);
        revoke(&dir, &ca, &[]);
        let path = |name: &str| dir.path().join(name);
        let shell = Settings {
            tls: Some(ServerFiles {
                certificate: path("server.pem"),
                key: path("server.key"),
                client_ca: Some(path("ca.pem")),
                client_crl: Some(path("ca.crl")),
                certificate_optional: false,
            }),
            ..Settings::default()
        };
        let server = Server::with(Wish::shell(shell)).await;
        let pair: (PathBuf, PathBuf) = (path("client.pem"), path("client.key"));
        let client = TlsClient::new(&ClientFiles {
            ca: Some(path("ca.pem")),
            own: Some(pair),
        });
        World {
            client: client.unwrap(),
            dir,
            ca,
            server,
        }
    }

    /// Gives the client a certificate that is valid for so long. Returns when it ends.
    fn renew(&self, life: Duration) -> SystemTime {
        let until = now() + life;
        let from = now() - Duration::from_secs(60);
        issue(&self.dir, &self.ca, "client", Validity { from, until });
        until
    }

    async fn connect(&self) -> std::io::Result<Stream<TcpStream>> {
        let stream = TcpStream::connect(self.server.addr).await?;
        self.client.connect("locks.test", stream).await
    }
}

fn issue(dir: &TempDir, ca: &CertificateAuthority, name: &str, validity: Validity) {
    let issued = ca.issue(&["locks.test"], validity).unwrap();
    std::fs::write(dir.path().join(format!("{name}.pem")), issued.certificate).unwrap();
    std::fs::write(dir.path().join(format!("{name}.key")), issued.key).unwrap();
}

fn revoke(dir: &TempDir, ca: &CertificateAuthority, certificates: &[&str]) {
    let list = ca.revoke(certificates, Validity::days(now(), 1));
    std::fs::write(dir.path().join("ca.crl"), list.unwrap()).unwrap();
}

async fn post(stream: &mut Stream<TcpStream>, path: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await
}

/// The status and the body of the next answer; `None` if the connection is over.
async fn answer(stream: &mut Stream<TcpStream>) -> Option<(u16, String)> {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                line.to_lowercase()
                    .strip_prefix("content-length: ")?
                    .parse()
                    .ok()
            });
            if body.len() >= length.unwrap_or(0) {
                return Some((head[9..12].parse().unwrap(), body.to_owned()));
            }
        }
        match stream.read_buf(&mut read).await {
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

async fn exchange(stream: &mut Stream<TcpStream>, path: &str, body: &str) -> Option<(u16, String)> {
    post(stream, path, body).await.ok()?;
    answer(stream).await
}

fn wish(client: &str, wait_ms: u32) -> String {
    format!(r#"{{"client_id": "{client}", "lease_duration_ms": 600000, "wait_ms": {wait_ms}}}"#)
}

#[tokio::test]
async fn after_its_certificate_a_connection_takes_no_request_and_still_answers_what_waits() {
    let world = World::new().await;
    let mut holder = world.connect().await.unwrap();
    let (status, held) = exchange(&mut holder, "/v1/locks/a/acquire", &wish("holder", 0))
        .await
        .unwrap();
    assert_eq!(status, 200, "{held}");
    let held: serde_json::Value = serde_json::from_str(&held).unwrap();
    let secret = held["lock_token"].as_str().unwrap();

    let mut prepared = None;
    for life in LIVES {
        let until = world.renew(life);
        let Ok(mut waiting) = world.connect().await else {
            continue;
        };
        let Ok(mut asking) = world.connect().await else {
            continue;
        };
        post(
            &mut waiting,
            "/v1/locks/a/acquire",
            &wish("waiter", 300_000),
        )
        .await
        .unwrap();
        world.server.waiters(1).await;
        // The control: before the end the same request is answered.
        let question = exchange(&mut asking, "/v1/locks/b/acquire", &wish("asker", 0)).await;
        if question.is_some_and(|(status, _)| status == 200) && now() < until {
            prepared = Some((waiting, asking, until));
            break;
        }
    }
    let (mut waiting, mut asking, until) = prepared.expect("no certificate lived long enough");

    let mut refused = None;
    while refused.is_none() {
        let question = exchange(&mut asking, "/v1/locks/b/acquire", &wish("asker", 0)).await;
        refused = match question {
            // The connection was closed, or gives the next step.
            None => Some(String::new()),
            Some((401, body)) => Some(body),
            Some((status, body)) => {
                assert_eq!(status, 200, "{body}");
                tokio::time::sleep(Duration::from_millis(20)).await; // real time: a certificate ends by the wall clock
                None
            }
        };
    }
    assert!(now() >= until, "refused before its end");
    let said = refused.unwrap();
    assert!(
        said.is_empty() || said.contains("open a new connection"),
        "{said}"
    );

    // The connection of the wait is over, too, and its answer leaves when the lock comes free.
    world.renew(Duration::from_secs(3_600));
    let mut renewed = world.connect().await.unwrap();
    let release = format!(r#"{{"lock_token": "{secret}"}}"#);
    let released = exchange(&mut renewed, "/v1/locks/a/release", &release).await;
    assert_eq!(released.map(|(status, _)| status), Some(200));
    let (status, granted) = soon(answer(&mut waiting))
        .await
        .expect("the wait has no answer");
    assert_eq!(status, 200, "{granted}");
    assert!(granted.contains("\"lock_acquired\":true"), "{granted}");
    // The connection ends after it.
    assert!(soon(answer(&mut waiting)).await.is_none());
}

/// Asks until the connection accepts no request; returns the refusal, or nothing if the connection was closed.
async fn until_refused(stream: &mut Stream<TcpStream>) -> String {
    loop {
        match exchange(stream, "/v1/locks/b/acquire", &wish("asker", 0)).await {
            None => return String::new(),
            Some((401, body)) => return body,
            Some((status, body)) => assert!(matches!(status, 200 | 409), "{status}: {body}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await; // real time: a server looks at its files every 2 s
    }
}

/// The control of each change is a connection that it does not concern.
#[tokio::test]
async fn a_connection_takes_no_request_when_its_certificate_is_revoked_or_its_ca_replaced() {
    let world = World::new().await;
    let lost_pem = std::fs::read_to_string(world.dir.path().join("client.pem")).unwrap();
    let mut lost = world.connect().await.unwrap();
    let mut waiting = world.connect().await.unwrap();
    world.renew(Duration::from_secs(3_600));
    let mut stays = world.connect().await.unwrap();
    let (_, held) = exchange(&mut stays, "/v1/locks/a/acquire", &wish("holder", 0))
        .await
        .unwrap();
    let held: serde_json::Value = serde_json::from_str(&held).unwrap();
    let path = "/v1/locks/a/acquire";
    post(&mut waiting, path, &wish("waiter", 300_000))
        .await
        .unwrap();
    world.server.waiters(1).await;
    let (status, _) = exchange(&mut lost, "/v1/locks/b/acquire", &wish("asker", 0))
        .await
        .unwrap();
    assert_eq!(status, 200);

    revoke(&world.dir, &world.ca, &[&lost_pem]);
    let said = soon(until_refused(&mut lost)).await;
    assert!(said.is_empty() || said.contains("has revoked it"), "{said}");
    // Another client goes on, and the requests in flight are answered.
    let release = format!(r#"{{"lock_token": {}}}"#, held["lock_token"]);
    let released = exchange(&mut stays, "/v1/locks/a/release", &release).await;
    assert_eq!(released.map(|(status, _)| status), Some(200));
    let (status, granted) = soon(answer(&mut waiting)).await.unwrap();
    assert_eq!(status, 200, "{granted}");

    let long = Validity::days(now(), 1);
    let (next, root) = CertificateAuthority::make(long).unwrap();
    std::fs::write(world.dir.path().join("ca.pem"), root.certificate).unwrap();
    issue(&world.dir, &next, "server", long);
    issue(&world.dir, &next, "client", long);
    revoke(&world.dir, &next, &[]);
    let said = soon(until_refused(&mut stays)).await;
    assert!(said.is_empty() || said.contains("was replaced"), "{said}");
    let mut anew = world.connect().await.unwrap();
    let (status, _) = exchange(&mut anew, "/v1/locks/c/acquire", &wish("asker", 0))
        .await
        .unwrap();
    assert_eq!(status, 200);
}

/// How many clients wait, and how many ask, when the certificates of all of them end.
const CROWD: usize = 16;

/// A wait with a request id, so that its repeat is recognised.
fn nth_wait(at: usize) -> String {
    format!(
        r#"{{"client_id": "w{at}", "lease_duration_ms": 600000, "wait_ms": 300000, "request_id": "{:032x}"}}"#,
        at + 1
    )
}

/// The crowd of one attempt; `None` if its certificate ended while it gathered.
async fn crowd(world: &World, until: SystemTime) -> Option<[Vec<Stream<TcpStream>>; 2]> {
    let (mut waiting, mut asking) = (Vec::new(), Vec::new());
    for at in 0..CROWD {
        let mut waits = world.connect().await.ok()?;
        let path = "/v1/locks/lock/acquire";
        post(&mut waits, path, &nth_wait(at)).await.ok()?;
        waiting.push(waits);
        if now() >= until {
            return None;
        }
        world.server.waiters(at + 1).await;
        let mut asks = world.connect().await.ok()?;
        // The control: before the end the same request is answered.
        let path = format!("/v1/locks/own-{at}/acquire");
        let (status, _) = exchange(&mut asks, &path, &wish("asker", 0)).await?;
        assert!(status == 200 || now() >= until, "{status}");
        asking.push(asks);
    }
    (now() < until).then_some([waiting, asking])
}

/// A whole fleet whose certificates were made at the same time.
#[tokio::test]
async fn everybodys_certificate_ends_at_once_and_nobody_loses_a_place_or_is_granted_twice() {
    let mut gathered = None;
    for life in LIVES {
        let world = World::new().await;
        let mut holder = world.connect().await.unwrap();
        let held = exchange(&mut holder, "/v1/locks/lock/acquire", &wish("holder", 0)).await;
        let (_, held) = held.unwrap();
        let until = world.renew(life);
        if let Some(crowd) = crowd(&world, until).await {
            gathered = Some((world, held, until, crowd));
            break;
        }
    }
    let (world, held, until, [waiting, mut asking]) = gathered.expect("no life was long enough");
    // The last second of a certificate counts.
    let over = until + Duration::from_secs(1);
    for (at, asks) in asking.iter_mut().enumerate() {
        loop {
            let path = format!("/v1/locks/own-{at}/acquire");
            let late = now() >= over;
            match exchange(asks, &path, &wish("asker", 0)).await {
                None | Some((401, _)) => break,
                Some((status, body)) => assert!(status == 200 && !late, "{status}: {body}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await; // real time: a certificate ends by the wall clock
        }
        assert!(now() >= until, "refused before its end");
    }
    // They read their files again. Every other waiter asks on a new connection, under the same request id.
    world.renew(Duration::from_secs(3_600));
    let mut waits = Vec::new();
    for (at, waits_still) in waiting.into_iter().enumerate() {
        waits.push(match at % 2 {
            0 => waits_still,
            _ => {
                drop(waits_still);
                let mut anew = world.connect().await.unwrap();
                let path = "/v1/locks/lock/acquire";
                post(&mut anew, path, &nth_wait(at)).await.unwrap();
                anew
            }
        });
    }
    let mut renewed = world.connect().await.unwrap();
    let mut grant: serde_json::Value = serde_json::from_str(&held).unwrap();
    let mut tokens = vec![grant["fencing_token"].as_u64().unwrap()];
    for (at, waits) in waits.iter_mut().enumerate() {
        let release = format!(r#"{{"lock_token": {}}}"#, grant["lock_token"]);
        let path = "/v1/locks/lock/release";
        let released = exchange(&mut renewed, path, &release).await;
        assert_eq!(released.map(|(status, _)| status), Some(200));
        // In the order in which they came, also those that came back, and one at a time.
        let (status, body) = soon(answer(waits)).await.expect("the wait has no answer");
        assert_eq!(status, 200, "{at}: {body}");
        grant = serde_json::from_str(&body).unwrap();
        assert_eq!(grant["lock_acquired"], true, "{at}: {body}");
        tokens.push(grant["fencing_token"].as_u64().unwrap());
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    let release = format!(r#"{{"lock_token": {}}}"#, grant["lock_token"]);
    let path = "/v1/locks/lock/release";
    let released = exchange(&mut renewed, path, &release).await;
    assert_eq!(released.map(|(status, _)| status), Some(200));
    // Nobody was granted it a second time: it is free, and the next token is the next.
    let (_, last) = exchange(&mut renewed, "/v1/locks/lock/acquire", &wish("last", 0))
        .await
        .unwrap();
    let last: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert_eq!(
        last["fencing_token"].as_u64(),
        tokens.last().map(|token| token + 1)
    );
}

#[tokio::test]
async fn after_its_certificate_a_session_is_refused() {
    let world = World::new().await;
    let acquire = |id: u64| Request {
        id,
        operation: Some(Operation::Acquire(acquire("a", "c", 0))),
    };
    let ask = async |session: &mut Stream<TcpStream>, id: u64| -> Option<Outcome> {
        let frame = plain_frame(&[acquire(id)]);
        session.write_all(&frame).await.ok()?;
        session.flush().await.ok()?;
        let mut read = Vec::new();
        loop {
            if let Ok(Some(frame)) = frames::first(&read, 1 << 16) {
                let replies = v1::Replies::decode(frame).unwrap().replies;
                return replies.into_iter().next()?.outcome;
            }
            match session.read_buf(&mut read).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    };
    let mut prepared = None;
    for life in LIVES {
        let until = world.renew(life);
        let Ok(mut session) = world.connect().await else {
            continue;
        };
        session.write_all(&frames::PREFACE).await.unwrap();
        let granted = ask(&mut session, 1).await;
        if matches!(granted, Some(Outcome::Granted(_))) && now() < until {
            prepared = Some((session, until));
            break;
        }
    }
    let (mut session, until) = prepared.expect("no certificate lived long enough");
    for id in 2.. {
        match ask(&mut session, id).await {
            Some(Outcome::Granted(_)) => {}
            Some(Outcome::Error(error)) => {
                assert!(error.message.contains("open a new connection"), "{error:?}");
                break;
            }
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await; // real time: a certificate ends by the wall clock
    }
    assert!(now() >= until, "refused before its end");
}

#[tokio::test]
async fn metrics_say_when_the_certificate_of_the_server_ends() {
    let world = World::new().await;
    let mut stream = world.connect().await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    stream.flush().await.unwrap();
    let mut said = String::new();
    let _ = stream.read_to_string(&mut said).await;
    let value = said
        .lines()
        .find_map(|line| line.strip_prefix("palisade_certificate_expires_timestamp_seconds "))
        .expect("the metric is missing");
    let ends: f64 = value.parse().unwrap();
    let now = now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let left = ends - now.as_secs_f64();
    // It was made for one day.
    assert!((80_000.0..=86_400.0).contains(&left), "{left}");

    // `/healthz` says the same, to a page that has no metrics.
    let mut stream = world.connect().await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    stream.flush().await.unwrap();
    let mut said = String::new();
    let _ = stream.read_to_string(&mut said).await;
    let (_, body) = said.split_once("\r\n\r\n").expect("no answer");
    let health: serde_json::Value = serde_json::from_str(body).unwrap();
    let shown = health["certificate_expires_at"].as_str().unwrap();
    let shown: jiff::Timestamp = shown.parse().unwrap();
    #[expect(clippy::cast_possible_truncation, reason = "whole seconds")]
    let second = ends as i64;
    assert_eq!(shown.as_second(), second);
}
