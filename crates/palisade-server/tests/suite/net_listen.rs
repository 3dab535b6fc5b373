//! Holders that listen: the ends of their grants, and requests that wait for their locks.
//!
//! real time: a listener that hears nothing is given as long as another one took to hear something.

use std::time::Duration;

use crate::net_session::{Dress, Session};
use crate::net_support::grpc::{acquire, granted};
use crate::net_support::{Response, Server, Wish, soon};
use palisade_pipeline::Leading;
use palisade_pipeline::clock::boottime;
use palisade_proto::v1::notice::Event;
use palisade_proto::v1::reply::Outcome;
use palisade_proto::v1::request::Operation;
use palisade_proto::v1::{self, Ending, GrantEnded};
use palisade_server::net::Settings;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A grant that listens: lock, key, number.
type Held = (&'static str, String, u64);

async fn hold(server: &Server, lock: &'static str, client: &str) -> Held {
    let (key, number) = server.lock(lock, client).await;
    (lock, key, number)
}

fn body(grants: &[(&Held, u64)], wait_ms: u64) -> String {
    let grants = grants.iter().map(|((lock, key, number), waiters)| {
        json!({"resource_id": lock, "lock_token": key, "fencing_token": number, "waiters": waiters})
    });
    json!({"grants": grants.collect::<Vec<_>>(), "wait_ms": wait_ms}).to_string()
}

async fn listen(server: &Server, grants: &[(&Held, u64)], wait_ms: u64) -> Response {
    server.post("/v1/listen", &body(grants, wait_ms)).await
}

/// The notices of an answer.
fn notices(response: &Response) -> Vec<Value> {
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()["notices"].as_array().unwrap().clone()
}

async fn now(server: &Server, held: &Held, waiters: u64) -> Vec<Value> {
    notices(&listen(server, &[(held, waiters)], 0).await)
}

fn ended(held: &Held, how: &str) -> Value {
    json!({"resource_id": held.0, "fencing_token": held.2, "event": "ended", "how": how})
}

fn wanted(held: &Held, waiters: u64) -> Value {
    json!({"resource_id": held.0, "fencing_token": held.2, "event": "wanted", "waiters": waiters})
}

async fn break_lock(server: &Server, held: &Held, reason: &str) {
    let body = json!({"fencing_token": held.2, "reason": reason}).to_string();
    let broken = server
        .post(&format!("/v1/locks/{}/break", held.0), &body)
        .await;
    assert_eq!(broken.status, 200, "{}", broken.body);
}

async fn release(server: &Server, held: &Held) {
    let body = json!({"lock_token": held.1}).to_string();
    let released = server
        .post(&format!("/v1/locks/{}/release", held.0), &body)
        .await;
    assert_eq!(released.status, 200, "{}", released.body);
}

/// Listens, and does something when the server knows the listener. Returns the answer and how long it took after that.
async fn while_listening<F: Future>(
    server: &Server,
    grants: &[(&Held, u64)],
    then: F,
) -> (Response, Duration) {
    let known = server.requests().await;
    let listening = listen(server, grants, 60_000);
    let then = async {
        server.arrival(known).await;
        // The answer about the state of its grants comes before that of a later question.
        server.status().await;
        then.await;
        boottime()
    };
    let (answer, since) = tokio::join!(soon(listening), then);
    (answer, Duration::from_nanos(boottime() - since))
}

#[tokio::test]
async fn a_listener_hears_how_each_of_its_grants_ends() {
    let server = Server::start().await;
    let (a, b) = (
        hold(&server, "a", "one").await,
        hold(&server, "b", "one").await,
    );
    let broken = break_lock(&server, &b, "maintenance");
    let (heard, _) = while_listening(&server, &[(&a, 0), (&b, 0)], broken).await;
    let mut revoked = ended(&b, "revoked");
    revoked["reason"] = "maintenance".into();
    assert_eq!(notices(&heard), [revoked]);
    let (heard, _) = while_listening(&server, &[(&a, 0)], release(&server, &a)).await;
    assert_eq!(notices(&heard), [ended(&a, "released")]);
    let c = hold(&server, "c", "one").await;
    let (heard, _) = while_listening(&server, &[(&c, 0)], server.advance(10_000)).await;
    assert_eq!(notices(&heard), [ended(&c, "expired")]);
    let d = hold(&server, "d", "one").await;
    let (heard, _) = while_listening(&server, &[(&d, 0)], server.lock("d", "one")).await;
    assert_eq!(notices(&heard), [ended(&d, "superseded")]);
    // Control: all of it is known afterwards, too, at once.
    for (held, how) in [
        (&a, "released"),
        (&b, "revoked"),
        (&c, "expired"),
        (&d, "superseded"),
    ] {
        assert_eq!(now(&server, held, 0).await, [ended(held, how)]);
    }
}

#[tokio::test]
async fn a_listener_hears_nothing_of_other_grants_and_control_of_its_own() {
    let server = Server::start().await;
    let (mine, other) = (
        hold(&server, "mine", "a").await,
        hold(&server, "other", "b").await,
    );
    let own = break_lock(&server, &mine, "");
    let (heard, took) = while_listening(&server, &[(&mine, 0)], own).await;
    assert_eq!(notices(&heard), [ended(&mine, "revoked")]);
    let mine = hold(&server, "mine", "a").await;
    let grants = [(&mine, 0)];
    let mut listening = Box::pin(listen(&server, &grants, 60_000));
    break_lock(&server, &other, "").await;
    // real time: as long as the control took, many times over.
    let patience = (10 * took).max(Duration::from_millis(100));
    let heard = tokio::time::timeout(patience, &mut listening).await;
    assert!(heard.is_err(), "{heard:?}");
    release(&server, &mine).await;
    assert_eq!(notices(&soon(listening).await), [ended(&mine, "released")]);
}

#[tokio::test]
async fn waiting_requests_are_told_when_they_come_and_when_all_have_gone() {
    let server = Server::start().await;
    let x = hold(&server, "x", "a").await;
    assert_eq!(
        now(&server, &x, 0).await,
        [] as [Value; 0],
        "control: nobody waits"
    );
    let waiting = async { (server.waiting().await, server.waiters(1).await).0 };
    let mut kept = None;
    let keep = async { kept = Some(waiting.await) };
    let (heard, _) = while_listening(&server, &[(&x, 0)], keep).await;
    assert_eq!(notices(&heard), [wanted(&x, 1)]);
    // Level-triggered: what was not heard is told at once, and what is known is not told again.
    assert_eq!(now(&server, &x, 0).await, [wanted(&x, 1)]);
    assert_eq!(now(&server, &x, 1).await, [] as [Value; 0]);
    assert_eq!(
        now(&server, &x, 5).await,
        [] as [Value; 0],
        "fewer is no news"
    );
    let renew = json!({"lock_token": x.1}).to_string();
    let renewed = server.post("/v1/locks/x/renew", &renew).await.json();
    assert_eq!(renewed["waiters"], 1);
    let gone = async {
        kept.take();
        server.waiters(0).await;
    };
    let (heard, _) = while_listening(&server, &[(&x, 1)], gone).await;
    assert_eq!(notices(&heard), [wanted(&x, 0)]);
    assert_eq!(now(&server, &x, 1).await, [wanted(&x, 0)]);
    let renewed = server.post("/v1/locks/x/renew", &renew).await.json();
    assert_eq!(renewed["waiters"], 0);
}

#[tokio::test]
async fn without_the_key_nothing_is_told_but_that_the_grant_is_not_known() {
    let server = Server::start().await;
    let x = hold(&server, "x", "a").await;
    let waiting = server.waiting().await;
    server.waiters(1).await;
    let forged: Held = ("x", "0".repeat(32), x.2);
    assert_eq!(now(&server, &forged, 0).await, [ended(&forged, "unknown")]);
    break_lock(&server, &x, "secret").await;
    assert_eq!(now(&server, &forged, 0).await, [ended(&forged, "unknown")]);
    let never: Held = ("x", x.1.clone(), x.2 + 50);
    assert_eq!(now(&server, &never, 0).await, [ended(&never, "unknown")]);
    assert_eq!(
        now(&server, &x, 0).await,
        [ended(&x, "revoked")],
        "control: with the key"
    );
    drop(waiting);
}

#[tokio::test]
async fn wrong_questions_are_refused_with_the_range_and_change_nothing() {
    let server = Server::start().await;
    let x = hold(&server, "x", "a").await;
    let many: Vec<(&Held, u64)> = (0..101).map(|_| (&x, 0)).collect();
    for (body, says) in [
        (body(&[], 0), "1 ..= 100 are allowed"),
        (body(&many, 0), "grants has 101"),
        (body(&[(&x, 0), (&x, 1)], 0), "named twice"),
        (body(&[(&x, 0)], 60_001), "0 ..= 60000 are allowed"),
        (body(&[(&x, 1 << 33)], 0), "waiters must be"),
        (
            json!({"grants": [{"resource_id": "x", "lock_token": x.1}]}).to_string(),
            "missing field `fencing_token`",
        ),
        (json!({"grants": 7}).to_string(), "a sequence"),
    ] {
        let refused = server.post("/v1/listen", &body).await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (400, "invalid"),
            "{body}"
        );
        assert!(
            refused.message().contains(says),
            "{says}: {}",
            refused.message()
        );
    }
    assert_eq!(now(&server, &x, 0).await, [] as [Value; 0], "control");
}

#[tokio::test]
async fn requests_and_grants_are_bounded_and_a_caller_that_leaves_frees_its_place() {
    let server = Server::with(Wish::net(Settings {
        listens: 2,
        listened_grants: 200,
        ..Settings::default()
    }))
    .await;
    let x = hold(&server, "x", "a").await;
    let grants = [(&x, 0)];
    // One address has half of the requests.
    let known = server.requests().await;
    let mut listening = Box::pin(listen(&server, &grants, 60_000));
    let arrived = async {
        server.arrival(known).await;
        server.status().await;
    };
    tokio::select! {
        answer = &mut listening => panic!("{answer:?}"),
        () = arrived => {}
    }
    let refused = listen(&server, &grants, 0).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (429, "over_quota")
    );
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    drop(listening);
    soon(async {
        while listen(&server, &grants, 0).await.status != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // A session has a place for each grant, here 100, and gives it back when the grant ends.
    let mut session = Session::open(&server, Dress::Plain).await;
    let mut named = Vec::new();
    for id in 1..=101 {
        let lock = format!("lock-{id}");
        session
            .send([(id, Operation::Acquire(acquire(&lock, "s", 0)))])
            .await;
        let won = granted(session.next().await.unwrap().unwrap().outcome);
        named.push(listened(&lock, &won, 0));
    }
    let ask = |grants: &[v1::ListenedGrant]| {
        let grants = grants.to_vec();
        Operation::Listen(v1::ListenRequest { grants })
    };
    session.send([(200, ask(&named[..100]))]).await;
    assert_eq!(outcome(&mut session).await, (200, listening_reply()));
    session.send([(201, ask(&named[100..]))]).await;
    let (_, Outcome::Error(refused)) = outcome(&mut session).await else {
        panic!("it has a place");
    };
    assert_eq!(refused.code, "over_quota");
    let gone = v1::ReleaseRequest {
        lock: named[0].lock.clone(),
        lock_token: named[0].lock_token.clone(),
        fencing_token: 0,
    };
    session.send([(202, Operation::Release(gone))]).await;
    let both = [outcome(&mut session).await.0, outcome(&mut session).await.0];
    assert!(both.contains(&200) && both.contains(&202), "{both:?}");
    session.send([(203, ask(&named[100..]))]).await;
    assert_eq!(outcome(&mut session).await, (203, listening_reply()));
}

#[tokio::test]
async fn a_server_that_stops_answers_listeners_at_once() {
    let mut server = Server::start().await;
    let x = hold(&server, "x", "a").await;
    let mut stream = server.connect().await;
    let body = body(&[(&x, 0)], 60_000);
    let request = format!(
        "POST /v1/listen HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let known = server.requests().await;
    stream.write_all(request.as_bytes()).await.unwrap();
    server.arrival(known).await;
    server.status().await;
    server.ask_to_stop();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("unavailable"),
        "{answer}"
    );
    assert!(server.ended().await.is_ok());
}

#[tokio::test]
async fn a_node_that_follows_asks_the_leader() {
    let (leader, follower) = (Server::start().await, Server::start().await);
    let url = format!("http://{}", leader.addr);
    follower.handle.set_leader(Leading::At(url.as_str().into()));
    let x = hold(&leader, "x", "a").await;
    let broken = break_lock(&leader, &x, "");
    let known = leader.requests().await;
    let then = async {
        leader.arrival(known).await;
        broken.await;
    };
    let grants = [(&x, 0)];
    let (heard, ()) = tokio::join!(soon(listen(&follower, &grants, 60_000)), then);
    assert_eq!(notices(&heard), [ended(&x, "revoked")]);
}

fn listened(lock: &str, won: &v1::Granted, waiters: u32) -> v1::ListenedGrant {
    v1::ListenedGrant {
        lock: lock.to_owned(),
        lock_token: won.lock_token.clone(),
        fencing_token: won.fencing_token,
        waiters,
    }
}

fn listening_reply() -> Outcome {
    Outcome::Listening(v1::Done {})
}

async fn outcome(session: &mut Session) -> (u64, Outcome) {
    let reply = session.next().await.unwrap().unwrap();
    (reply.id, reply.outcome.unwrap())
}

async fn pushes(dress: Dress) {
    let server = Server::start().await;
    let mut session = Session::open(&server, dress).await;
    let mut quiet = Session::open(&server, dress).await;
    session
        .send([(1, Operation::Acquire(acquire("x", "a", 0)))])
        .await;
    let won = granted(session.next().await.unwrap().unwrap().outcome);
    quiet
        .send([(1, Operation::Acquire(acquire("y", "b", 0)))])
        .await;
    let others = granted(quiet.next().await.unwrap().unwrap().outcome);
    let grants = vec![
        listened("x", &won, 0),
        // Another's grant, without its key.
        v1::ListenedGrant {
            lock_token: vec![0; 16],
            ..listened("y", &others, 0)
        },
    ];
    let listen = Operation::Listen(v1::ListenRequest { grants });
    session.send([(7, listen.clone())]).await;
    assert_eq!(outcome(&mut session).await, (7, listening_reply()));
    let notice = |lock: &str, number, event| {
        let notice = v1::Notice {
            lock: lock.to_owned(),
            fencing_token: number,
            event: Some(event),
        };
        (7, Outcome::Notice(notice))
    };
    let over = |how: Ending, reason: &str| {
        Event::Ended(GrantEnded {
            how: how.into(),
            reason: reason.to_owned(),
        })
    };
    let unknown = over(Ending::Unspecified, "");
    assert_eq!(
        outcome(&mut session).await,
        notice("y", others.fencing_token, unknown)
    );
    session.send([(8, listen)]).await;
    let (8, Outcome::Error(twice)) = outcome(&mut session).await else {
        panic!("it is named twice");
    };
    assert!(twice.message.contains("named already"), "{}", twice.message);
    let waiting = server.waiting().await;
    assert_eq!(
        outcome(&mut session).await,
        notice("x", won.fencing_token, Event::Wanted(1))
    );
    drop(waiting);
    assert_eq!(
        outcome(&mut session).await,
        notice("x", won.fencing_token, Event::Wanted(0))
    );
    let held = ("x", String::new(), won.fencing_token);
    break_lock(&server, &held, "why").await;
    assert_eq!(
        outcome(&mut session).await,
        notice("x", won.fencing_token, over(Ending::Revoked, "why"))
    );
    // Control: a session that never asked has heard nothing of its grant, which ended as well.
    break_lock(&server, &("y", String::new(), others.fencing_token), "").await;
    quiet
        .send([(2, Operation::Status(v1::StatusRequest {}))])
        .await;
    assert!(matches!(outcome(&mut quiet).await, (2, Outcome::Status(_))));
}

#[tokio::test]
async fn a_session_gets_notices_of_the_grants_that_it_named_over_grpc() {
    pushes(Dress::Grpc).await;
}

#[tokio::test]
async fn a_session_gets_notices_of_the_grants_that_it_named_on_a_bare_connection() {
    pushes(Dress::Plain).await;
}
