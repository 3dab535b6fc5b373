//! Quotas, at every interface.

use palisade_proto::frames;
use palisade_proto::v1::{self, Replies, request::Operation};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::net_access::{
    Closed, acquires, ask_session, call, closed_by, code_of, http_of, open_session, plain_of,
    rules, stream_of, token, unary_of,
};
use crate::net_support::{Server, grpc, hang_up, soon};

/// A server whose rules have this quota besides.
async fn bounded(quota: &str) -> Closed {
    closed_by(&with(quota)).await
}

fn with(quota: &str) -> String {
    format!("{}[[auth.quotas]]\n{quota}\n", rules())
}

async fn acquire(server: &Server, lock: &str, principal: &str) -> String {
    let acquire = Operation::Acquire(grpc::acquire(lock, "c1", 0));
    plain_of(server, acquire, Some(&token(principal))).await
}

/// A session in which one acquire of `x/1` waits.
async fn waiting(server: &Server, principal: &str) -> TcpStream {
    let mut session = open_session(server, Some(&token(principal))).await;
    put(
        &mut session,
        [Operation::Acquire(grpc::acquire("x/1", "c3", 60_000))],
    )
    .await;
    session
}

async fn put(session: &mut TcpStream, operations: impl IntoIterator<Item = Operation>) {
    let mut bytes = Vec::new();
    let frame = frames::FrameBuilder::at_end(&mut bytes);
    for (id, operation) in (1..).zip(operations) {
        let operation = Some(operation);
        frame.put(&mut bytes, &v1::Request { id, operation });
    }
    frame.close(&mut bytes);
    session.write_all(&bytes).await.unwrap();
}

/// The codes of this many replies.
async fn codes(session: &mut TcpStream, count: usize) -> Vec<String> {
    let mut codes = Vec::new();
    while codes.len() < count {
        let length = soon(session.read_u32()).await.unwrap();
        let mut frame = vec![0; length as usize];
        soon(session.read_exact(&mut frame)).await.unwrap();
        let replies = Replies::decode(&*frame).unwrap().replies;
        codes.extend(replies.into_iter().map(|reply| code_of(reply.outcome)));
    }
    codes
}

/// How often this bound has refused something.
async fn refused(server: &Server, bound: &str) -> u64 {
    let token = token("observe");
    let authorization = format!("Authorization: Bearer {token}\r\n");
    let metrics = server.send("GET", "/metrics", &authorization, "").await;
    let sample = format!("palisade_over_quota_total{{bound=\"{bound}\"}} ");
    let (_, value) = metrics.body.split_once(&*sample).unwrap();
    value.lines().next().unwrap().parse().unwrap()
}

fn over() -> [String; 4] {
    [(); 4].map(|()| "over_quota".to_owned())
}

#[tokio::test]
async fn locks_of_a_prefix_are_bounded_whoever_asks_and_wherever() {
    let closed = bounded("prefix = \"x/\"\nlocks = 2").await;
    let server = &closed.server;
    assert_eq!(acquire(server, "x/1", "hold").await, "");
    assert_eq!(acquire(server, "x/2", "both").await, "");
    assert_eq!(acquires(server, &["x/3"], 0, "hold").await, over());
    assert_eq!(acquires(server, &["x/3"], 60_000, "hold").await, over());
    // A held lock counts once: a request for it does not count.
    assert_eq!(acquires(server, &["x/1"], 0, "hold").await, ["held"; 4]);
    // Another prefix has room.
    assert_eq!(acquire(server, "other/1", "elsewhere").await, "");
    assert_eq!(refused(server, "locks").await, 8);
    assert_eq!(refused(server, "waiters").await, 0);
    // A lock that is over makes room; nobody released it, its time ran out.
    let ended = ("POST", "/v1/clock/advance", r#"{"ms":10000}"#.to_owned());
    assert_eq!(http_of(server, ended, Some(&token("admin"))).await, "");
    assert_eq!(acquire(server, "x/3", "hold").await, "");
    assert_eq!(acquire(server, "x/4", "hold").await, "");
    assert_eq!(acquire(server, "x/5", "hold").await, "over_quota");
}

#[tokio::test]
async fn locks_of_a_principal_and_of_an_address_are_bounded() {
    for quota in [
        "principal = \"hold\"\nlocks = 1",
        "principal = \"*\"\nlocks = 1",
        "address = \"127.0.0.1\"\nlocks = 1",
        "address = \"*\"\nlocks = 1",
    ] {
        let closed = bounded(quota).await;
        let server = &closed.server;
        assert_eq!(acquire(server, "x/1", "hold").await, "", "{quota}");
        assert_eq!(
            acquires(server, &["x/2"], 0, "hold").await,
            over(),
            "{quota}"
        );
        let other = acquire(server, "x/2", "both").await;
        assert_eq!(
            other == "over_quota",
            quota.starts_with("address"),
            "{quota}"
        );
        let revoke = Operation::Break(v1::BreakRequest {
            lock: "x/1".to_owned(),
            fencing_token: 1,
            reason: "test".to_owned(),
        });
        assert_eq!(plain_of(server, revoke, Some(&token("break"))).await, "");
        assert_eq!(acquire(server, "x/3", "hold").await, "", "{quota}");
        assert_eq!(
            acquire(server, "x/4", "hold").await,
            "over_quota",
            "{quota}"
        );
    }
}

#[tokio::test]
async fn one_address_does_not_count_for_another() {
    let closed = bounded("address = \"*\"\nsessions = 1").await;
    let server = &closed.server;
    let mut first = open_session(server, Some(&token("hold"))).await;
    let status = || Operation::Status(v1::StatusRequest {});
    assert_eq!(code_of(ask_session(&mut first, status()).await), "");
    assert_eq!(
        plain_of(server, status(), Some(&token("both"))).await,
        "over_quota"
    );
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(server.addr).await.unwrap();
    let mut opening = frames::PREFACE_WITH_TOKEN.to_vec();
    frames::put_token(&mut opening, &token("hold"));
    other.write_all(&opening).await.unwrap();
    assert_eq!(code_of(ask_session(&mut other, status()).await), "");
}

#[tokio::test]
async fn locks_that_were_held_before_a_quota_came_count() {
    let closed = closed_by(&rules()).await;
    let server = &closed.server;
    for lock in ["x/1", "x/2", "x/3"] {
        assert_eq!(acquire(server, lock, "hold").await, "");
    }
    std::fs::write(&closed.file, with("prefix = \"x/\"\nlocks = 3")).unwrap();
    hang_up().await;
    // Others are granted until the new rules are in force; the last of them that is refused changes nothing.
    let mut granted = 3;
    soon(async {
        while acquire(server, &format!("x/{}", granted + 1), "hold")
            .await
            .is_empty()
        {
            granted += 1;
        }
    })
    .await;
    let status = server.status().await;
    assert_eq!(status.locks, granted);
    assert_eq!(acquires(server, &["x/new"], 0, "both").await, over());
    let ended = ("POST", "/v1/clock/advance", r#"{"ms":10000}"#.to_owned());
    assert_eq!(http_of(server, ended, Some(&token("admin"))).await, "");
    // Many leases end in several entries.
    soon(async {
        while server.status().await.locks > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for lock in ["x/1", "x/2", "x/3"] {
        assert_eq!(acquire(server, lock, "hold").await, "");
    }
    assert_eq!(acquire(server, "x/4", "hold").await, "over_quota");
}

/// As after a restart: all of it was there before anything was counted. More readers than a lock is shown with. The control is
/// a bound with room for one more.
#[tokio::test]
async fn what_was_held_before_a_quota_came_counts_for_its_principal_and_each_reader_of_a_prefix() {
    const READERS: usize = 80;
    for quota in ["principal = \"hold\"", "prefix = \"x/\""] {
        let closed = closed_by(&rules()).await;
        let server = &closed.server;
        let hold = async |lock: &str, client: &str, lasts_ms: u32, more: &str| {
            let path = format!("/v1/locks/x%2F{lock}/acquire");
            let body =
                format!(r#"{{"client_id": "{client}", "lease_duration_ms": {lasts_ms}{more}}}"#);
            http_of(server, ("POST", &path, body), Some(&token("hold"))).await
        };
        let (day, shared) = (86_400_000, r#", "mode": "shared""#);
        for reader in 0..READERS {
            assert_eq!(hold("r", &format!("c{reader}"), day, shared).await, "");
        }
        assert_eq!(hold("a", "c", day, "").await, "");
        for (bound, expected) in [(READERS + 1, "over_quota"), (READERS + 2, "")] {
            std::fs::write(&closed.file, with(&format!("{quota}\nlocks = {bound}"))).unwrap();
            hang_up().await;
            // Until the new rules are in force, and everything is counted, the old ones decide.
            soon(async {
                while hold("new", "c", 100, "").await != expected {
                    let ended = ("POST", "/v1/clock/advance", r#"{"ms":100}"#.to_owned());
                    assert_eq!(http_of(server, ended, Some(&token("admin"))).await, "");
                }
            })
            .await;
        }
    }
}

#[tokio::test]
async fn waiters_are_bounded_and_tries_are_not() {
    for quota in [
        "prefix = \"x/\"\nwaiters = 1",
        "principal = \"hold\"\nwaiters = 1",
        "address = \"127.0.0.1\"\nwaiters = 1",
    ] {
        let closed = bounded(quota).await;
        let server = &closed.server;
        assert_eq!(acquire(server, "x/1", "both").await, "");
        let first = waiting(server, "hold").await;
        server.waiters(1).await;
        assert_eq!(
            acquires(server, &["x/1"], 60_000, "hold").await,
            over(),
            "{quota}"
        );
        assert_eq!(
            acquires(server, &["x/1"], 0, "hold").await,
            ["held"; 4],
            "{quota}"
        );
        assert_eq!(server.status().await.waiters, 1);
        assert_eq!(refused(server, "waiters").await, 4);
        drop(first);
        server.waiters(0).await;
        let _second = waiting(server, "hold").await;
        server.waiters(1).await;
    }
}

#[tokio::test]
async fn sessions_are_bounded() {
    let closed = bounded("principal = \"hold\"\nsessions = 1").await;
    let server = &closed.server;
    let status = || Operation::Status(v1::StatusRequest {});
    let mut first = open_session(server, Some(&token("hold"))).await;
    assert_eq!(code_of(ask_session(&mut first, status()).await), "");
    let hold = token("hold");
    assert_eq!(plain_of(server, status(), Some(&hold)).await, "over_quota");
    assert_eq!(stream_of(server, status(), Some(&hold)).await, "over_quota");
    // Calls are no sessions, and others have theirs.
    assert_eq!(unary_of(server, status(), Some(&hold)).await, "");
    assert_eq!(plain_of(server, status(), Some(&token("both"))).await, "");
    drop(first);
    soon(async { while plain_of(server, status(), Some(&hold)).await == "over_quota" {} }).await;
}

#[tokio::test]
async fn watches_are_bounded() {
    for quota in [
        "prefix = \"x/\"\nwatchers = 1",
        "principal = \"both\"\nwatchers = 1",
        "address = \"127.0.0.1\"\nwatchers = 1",
    ] {
        let closed = bounded(quota).await;
        let server = &closed.server;
        let watch = |prefix: &str| v1::WatchRequest {
            prefix: prefix.to_owned(),
            after_revision: None,
        };
        let mut client = grpc::client(server).await;
        let both = token("both");
        let first = soon(client.watch(call(watch("x/"), Some(&both))))
            .await
            .unwrap();
        let again = soon(client.watch(call(watch("x/"), Some(&both))))
            .await
            .unwrap_err();
        assert_eq!(again.code(), tonic::Code::ResourceExhausted);
        let http = || ("GET", "/v1/watch?prefix=x/", String::new());
        assert_eq!(http_of(server, http(), Some(&both)).await, "over_quota");
        // A watch of everything does not count for one prefix; another principal has its own.
        let all = ("GET", "/v1/watch", String::new());
        let all = http_of(server, all, Some(&token("observe"))).await;
        assert_eq!(all == "over_quota", quota.starts_with("address"), "{quota}");
        drop((first, client));
        soon(async { while http_of(server, http(), Some(&both)).await == "over_quota" {} }).await;
    }
}

#[tokio::test]
async fn bytes_in_flight_are_bounded() {
    for quota in [
        "prefix = \"x/\"\nbytes = 2048",
        "principal = \"both\"\nbytes = 2048",
        "address = \"127.0.0.1\"\nbytes = 2048",
    ] {
        let closed = bounded(quota).await;
        let server = &closed.server;
        assert_eq!(acquire(server, "x/1", "both").await, "");
        let list = ("GET", "/v1/locks?prefix=x/&limit=3", String::new());
        let both = token("both");
        assert_eq!(http_of(server, list, Some(&both)).await, "over_quota");
        let list = ("GET", "/v1/locks?prefix=x/&limit=2", String::new());
        assert_eq!(http_of(server, list, Some(&both)).await, "");
        let flying = [waiting(server, "both").await, waiting(server, "both").await];
        server.waiters(2).await;
        assert_eq!(
            acquires(server, &["x/2"], 0, "both").await,
            over(),
            "{quota}"
        );
        drop(flying);
        server.waiters(0).await;
        soon(async { while acquire(server, "x/2", "both").await == "over_quota" {} }).await;
    }
}

#[tokio::test]
async fn requests_a_second_are_bounded_and_the_refusal_says_when_to_come_back() {
    for quota in [
        "prefix = \"x/\"\nrequests_per_second = 1",
        "principal = \"both\"\nrequests_per_second = 1",
        "address = \"127.0.0.1\"\nrequests_per_second = 1",
    ] {
        let closed = bounded(quota).await;
        let server = &closed.server;
        let both = token("both");
        // One frame is carried out at once, so most of it comes within a second.
        let show = || {
            Operation::Show(v1::ShowRequest {
                lock: "x/1".to_owned(),
            })
        };
        let mut session = open_session(server, Some(&both)).await;
        put(&mut session, (0..500).map(|_| show())).await;
        let codes = codes(&mut session, 500).await;
        let refused = codes.iter().filter(|code| *code == "over_quota").count();
        assert!((1..500).contains(&refused), "{refused}");
        soon(async { while unary_of(server, show(), Some(&both)).await != "over_quota" {} }).await;
        soon(async { while stream_of(server, show(), Some(&both)).await != "over_quota" {} }).await;
        let authorization = format!("Authorization: Bearer {both}\r\n");
        let answer = soon(async {
            loop {
                let answer = server
                    .send("GET", "/v1/locks/x%2F1", &authorization, "")
                    .await;
                if answer.status != 200 {
                    return answer;
                }
            }
        })
        .await;
        assert_eq!(
            (answer.status, answer.header("retry-after")),
            (429, Some("1"))
        );
        let ms = answer.json()["error"]["retry_after_ms"].as_u64().unwrap();
        assert!((1..=1_000).contains(&ms), "{ms}");
        assert!(
            answer.message().contains("requests_per_second = 1"),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn a_tenant_over_its_quota_costs_the_ordering_thread_nothing_and_another_tenant_no_answer() {
    let closed = bounded("principal = \"elsewhere\"\nrequests_per_second = 5").await;
    let server = &closed.server;
    let show = |lock: &str| {
        Operation::Show(v1::ShowRequest {
            lock: lock.to_owned(),
        })
    };
    let mut greedy = open_session(server, Some(&token("elsewhere"))).await;
    let mut modest = open_session(server, Some(&token("both"))).await;
    // Both sessions are open.
    assert_eq!(code_of(ask_session(&mut modest, show("x/1")).await), "");
    assert_eq!(code_of(ask_session(&mut greedy, show("other/1")).await), "");
    let before = server.handle.stats().operations.get();
    let (mut carried_out, mut refused) = (0, 0);
    for _ in 0..20 {
        put(&mut greedy, (0..1_000).map(|_| show("other/1"))).await;
        assert_eq!(code_of(ask_session(&mut modest, show("x/1")).await), "");
        for code in codes(&mut greedy, 1_000).await {
            match &*code {
                "" => carried_out += 1,
                "over_quota" => refused += 1,
                other => panic!("{other}"),
            }
        }
    }
    let ordered = server.handle.stats().operations.get() - before;
    assert_eq!(ordered, carried_out + 20);
    assert!(refused > carried_out, "{refused} of 20000 were refused");
}

/// An acquire over HTTP, with more members in its body; the code, or nothing for a grant.
async fn ask(server: &Server, lock: &str, client: &str, more: &str, principal: &str) -> String {
    let path = format!("/v1/locks/x%2F{lock}/acquire");
    let body = format!(r#"{{"client_id": "{client}", "lease_duration_ms": 60000{more}}}"#);
    http_of(server, ("POST", &path, body), Some(&token(principal))).await
}

/// The control is the other principal, and the lock that nobody shares.
#[tokio::test]
async fn readers_and_holders_of_permits_count_each() {
    for (quota, of_all) in [
        ("principal = \"hold\"\nlocks = 2", false),
        ("prefix = \"x/\"\nlocks = 2", true),
        ("address = \"127.0.0.1\"\nlocks = 2", true),
    ] {
        for mode in [
            r#", "mode": "shared""#,
            r#", "permits": {"count": 1, "of": 9}"#,
        ] {
            let closed = bounded(quota).await;
            let server = &closed.server;
            let first = format!(r#"{mode}, "request_id": "{}""#, "a".repeat(32));
            assert_eq!(ask(server, "r", "c1", &first, "hold").await, "");
            assert_eq!(ask(server, "r", "c2", mode, "hold").await, "");
            let third = ask(server, "r", "c3", mode, "hold").await;
            assert_eq!(third, "over_quota", "{quota} {mode}");
            // A repeat is not a second grant, and gets the first answer.
            assert_eq!(ask(server, "r", "c1", &first, "hold").await, "");
            let other = ask(server, "r", "c4", mode, "both").await;
            assert_eq!(other == "over_quota", of_all, "{quota} {mode}");
        }
    }
}

#[tokio::test]
async fn locks_that_are_closed_count_until_they_open() {
    for quota in [
        "principal = \"hold\"\nlocks = 1",
        "prefix = \"x/\"\nlocks = 1",
        "address = \"127.0.0.1\"\nlocks = 1",
    ] {
        for (closing, is_closed) in [
            (r#", "at_least_for_ms": 86400000"#, true),
            (r#", "lock_delay_ms": 60000"#, true),
            ("", false),
        ] {
            let closed = bounded(quota).await;
            let server = &closed.server;
            assert_eq!(ask(server, "1", "c", closing, "hold").await, "");
            let revoke = (
                "POST",
                "/v1/locks/x%2F1/break",
                r#"{"fencing_token": 1}"#.to_owned(),
            );
            assert_eq!(http_of(server, revoke, Some(&token("break"))).await, "");
            let second = ask(server, "2", "c", "", "hold").await;
            assert_eq!(second == "over_quota", is_closed, "{quota} {closing}");
        }
    }
}

/// The control is the same lock before it is opened.
#[tokio::test]
async fn a_closed_lock_that_an_operator_opens_counts_no_more() {
    for quota in [
        "principal = \"hold\"\nlocks = 1",
        "prefix = \"x/\"\nlocks = 1",
        "address = \"127.0.0.1\"\nlocks = 1",
    ] {
        let closed = bounded(quota).await;
        let server = &closed.server;
        let closing = r#", "at_least_for_ms": 86400000"#;
        let revoke = || r#"{"fencing_token": 1}"#.to_owned();
        assert_eq!(ask(server, "1", "c", closing, "hold").await, "");
        let revoke = ("POST", "/v1/locks/x%2F1/break", revoke());
        assert_eq!(http_of(server, revoke, Some(&token("break"))).await, "");
        assert_eq!(ask(server, "2", "c", closing, "hold").await, "over_quota");
        let open = (
            "POST",
            "/v1/locks/x%2F1/open",
            r#"{"reason": "t"}"#.to_owned(),
        );
        assert_eq!(http_of(server, open, Some(&token("break"))).await, "");
        assert_eq!(ask(server, "2", "c", closing, "hold").await, "", "{quota}");
        // And in a session.
        let revoke = Operation::Break(v1::BreakRequest {
            lock: "x/2".to_owned(),
            fencing_token: 2,
            reason: "t".to_owned(),
        });
        assert_eq!(plain_of(server, revoke, Some(&token("break"))).await, "");
        assert_eq!(ask(server, "3", "c", "", "hold").await, "over_quota");
        let open = Operation::Open(v1::OpenRequest {
            lock: "x/2".to_owned(),
            reason: "t".to_owned(),
        });
        assert_eq!(plain_of(server, open, Some(&token("break"))).await, "");
        assert_eq!(ask(server, "3", "c", "", "hold").await, "", "{quota}");
    }
}

/// Numbers that look random, the same in every run.
pub(crate) fn numbers() -> impl Iterator<Item = usize> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap()
    })
}

/// The use under `x/`: held or closed locks, each reader and holder of permits once, and the waiting requests.
pub(crate) async fn room(server: &Server) -> (u32, u32) {
    let list = v1::ListRequest {
        prefix: "x/".to_owned(),
        limit: 1_000,
        ..v1::ListRequest::default()
    };
    let mut client = grpc::client(server).await;
    let page = soon(client.list(call(list, Some(&token("observe"))))).await;
    match page.unwrap().into_inner().outcome {
        Some(v1::reply::Outcome::Page(page)) => {
            let used = page.locks.iter().map(|lock| lock.reader_count.max(1));
            (used.sum(), page.locks.iter().map(|lock| lock.waiters).sum())
        }
        other => panic!("{other:?}"),
    }
}

/// The control is the same tenant without a quota: it takes more.
#[tokio::test]
async fn a_tenant_that_tries_everything_stays_within_its_quota() {
    for (quota, is_bounded) in [
        ("principal = \"hold\"\nlocks = 5\nwaiters = 2", true),
        ("prefix = \"x/\"\nlocks = 5\nwaiters = 2", true),
        ("principal = \"both\"\nlocks = 5\nwaiters = 2", false),
    ] {
        let closed = bounded(quota).await;
        let server = &closed.server;
        let mut numbers = numbers();
        let mut next = |below: usize| numbers.next().unwrap() % below;
        let mut gone = Vec::new();
        for n in 0..300 {
            let (lock, client) = (next(12), next(9));
            let more = [
                "",
                r#", "mode": "shared""#,
                r#", "mode": "update""#,
                r#", "permits": {"count": 1, "of": 9}"#,
                r#", "at_least_for_ms": 86400000"#,
                r#", "lock_delay_ms": 60000"#,
                r#", "also": ["x/s1", "x/s2"]"#,
                r#", "mode": "shared", "wait_ms": 60000"#,
            ][next(8)];
            let path = format!("/v1/locks/x%2F{lock}/acquire");
            let body = format!(
                r#"{{"client_id": "c{client}", "lease_duration_ms": 60000, "request_id": "{n:032x}"{more}}}"#
            );
            let request = format!(
                "POST {path} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                token("hold"),
                body.len()
            );
            let mut stream = server.connect().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            // Some answers are awaited, some connections are gone before, some stay.
            match next(3) {
                0 => drop(stream),
                1 if !more.contains("wait_ms") => {
                    let mut answer = Vec::new();
                    soon(stream.read_to_end(&mut answer)).await.unwrap();
                    let text = String::from_utf8_lossy(&answer);
                    let key = text.split_once(r#""lock_token":"#).map(|(_, rest)| {
                        let rest = rest.trim_start().trim_start_matches('"');
                        rest.split('"').next().unwrap_or_default().to_owned()
                    });
                    if let Some(key) = key.filter(|_| next(2) == 0) {
                        let release = format!("/v1/locks/x%2F{lock}/release");
                        let body = format!(r#"{{"lock_token": "{key}"}}"#);
                        http_of(server, ("POST", &release, body), Some(&token("hold"))).await;
                    }
                }
                _ => gone.push(stream),
            }
            if n % 10 == 0 && is_bounded {
                let (used, waiters) = room(server).await;
                assert!(
                    used <= 5 && waiters <= 2,
                    "{quota}: {used} and {waiters} at {n}"
                );
            }
        }
        let (used, _) = room(server).await;
        assert_eq!(used <= 5, is_bounded, "{quota}: {used}");
    }
}
