//! The watch over HTTP: server-sent events.

use crate::net_support::{Server, Wish, soon};
use palisade_core::{Command, Entry, Machine, Timestamp, WallTime};
use palisade_server::net::Settings;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;

/// Reads server-sent events.
pub(crate) struct Events(Lines<BufReader<TcpStream>>);

impl Events {
    pub(crate) async fn open(server: &Server, path: &str, headers: &str) -> Events {
        let mut stream = server.connect().await;
        let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(
            soon(lines.next_line()).await.unwrap().unwrap(),
            "HTTP/1.1 200 OK"
        );
        while !soon(lines.next_line()).await.unwrap().unwrap().is_empty() {}
        Events(lines)
    }

    /// The next event: name, id, data.
    pub(crate) async fn next(&mut self) -> (String, String, Value) {
        self.next_or_end().await.expect("the stream ended")
    }

    /// The next event, or `None` at the end of the stream.
    pub(crate) async fn next_or_end(&mut self) -> Option<(String, String, Value)> {
        let (mut name, mut id, mut data) = (String::new(), String::new(), Value::Null);
        loop {
            let line = soon(self.0.next_line()).await.unwrap()?;
            if let Some(value) = line.strip_prefix("event: ") {
                name = value.to_owned();
            } else if let Some(value) = line.strip_prefix("id: ") {
                id = value.to_owned();
            } else if let Some(value) = line.strip_prefix("data: ") {
                data = serde_json::from_str(value).unwrap();
            } else if line.is_empty() && !name.is_empty() {
                return Some((name, id, data));
            }
        }
    }
}

/// The control is the other address, and the first one again when one of its watches has ended.
#[tokio::test]
async fn one_address_gets_half_of_the_watches_or_its_share() {
    for (watches, watches_per_address) in [(4, None), (10, Some(2))] {
        let server = Server::with(Wish::net(Settings {
            watches,
            watches_per_address,
            ..Settings::default()
        }))
        .await;
        let watch = async |from: &str| {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
            let mut stream = socket.connect(server.addr).await.unwrap();
            let asked = b"GET /v1/watch HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(asked).await.unwrap();
            let mut status = [0; 12];
            soon(stream.read_exact(&mut status)).await.unwrap();
            (status.ends_with(b"200"), stream)
        };
        let first = watch("127.0.0.1").await;
        let second = watch("127.0.0.1").await;
        assert!(first.0 && second.0);
        let refused = server.get("/v1/watch").await;
        assert_eq!(refused.code(), "unavailable", "a third of one address");
        let message = refused.message();
        assert!(message.contains("--watches-per-address"), "{message}");
        let metrics = server.get("/metrics").await.body;
        assert!(metrics.contains("palisade_watches_refused_total 1\n"));
        let other = watch("127.0.0.2").await;
        assert!(other.0, "another address");
        drop(first);
        soon(async { while !watch("127.0.0.1").await.0 {} }).await;
    }
}

#[tokio::test]
async fn a_watch_names_every_change_in_order() {
    let server = Server::start().await;
    let mut events = Events::open(&server, "/v1/watch?prefix=a%2F", "").await;
    let (key, _) = server.lock("a%2F1", "c").await;
    server.lock("other", "c").await;
    server
        .post(
            "/v1/locks/a%2F1/release",
            &format!(r#"{{"lock_token": "{key}"}}"#),
        )
        .await;
    server.lock("a%2F2", "c").await;
    server.lock("a%2F2", "c").await;
    server
        .post(
            "/v1/locks/a%2F2/break",
            r#"{"fencing_token": 4, "reason": "stuck\n\"job\""}"#,
        )
        .await;
    server.lock("a%2F3", "c").await;
    server.advance(10_000).await;

    let mut told = Vec::new();
    let mut last = 0;
    while told.len() < 8 {
        let (name, id, mut data) = events.next().await;
        assert_eq!(data["revision"].to_string(), id);
        assert!(data["revision"].as_u64().unwrap() > last);
        let time = data.as_object_mut().unwrap().remove("time").unwrap();
        assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
        last = data["revision"].as_u64().unwrap();
        told.push((
            name,
            data["resource_id"].as_str().unwrap().to_owned(),
            data["fencing_token"].as_u64().unwrap(),
        ));
        if told.len() == 1 {
            let shape = json!({"revision": 1, "resource_id": "a/1", "client_id": "c", "fencing_token": 1, "lease_duration_ms": 10000});
            assert_eq!(data, shape);
        }
        if told.len() == 6 {
            assert_eq!(data["reason"], "stuck\n\"job\"");
        }
    }
    let expected = [
        ("granted", "a/1", 1),
        ("released", "a/1", 1),
        ("granted", "a/2", 3),
        ("superseded", "a/2", 3),
        ("granted", "a/2", 4),
        ("revoked", "a/2", 4),
        ("granted", "a/3", 5),
        ("expired", "a/3", 5),
    ];
    let expected: Vec<_> = expected
        .map(|(name, lock, token)| (name.to_owned(), lock.to_owned(), token))
        .into();
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_watch_names_the_grant_of_a_reader_each_part_of_a_set_and_how_long_a_lock_stays_closed() {
    let server = Server::start().await;
    let mut events = Events::open(&server, "/v1/watch", "").await;
    let ask = async |lock: &str, client: &str, more: &str| {
        let body = format!(r#"{{"client_id": "{client}", "lease_duration_ms": 10000, {more}}}"#);
        let path = format!("/v1/locks/{lock}/acquire");
        let granted = server.post(&path, &body).await;
        assert_eq!(granted.status, 200, "{}", granted.body);
        granted.json()
    };
    let first = ask("report", "a", r#""mode": "shared""#).await;
    ask("report", "b", r#""mode": "update""#).await;
    let key = json!({"lock_token": first["lock_token"], "fencing_token": 1}).to_string();
    let released = server.post("/v1/locks/report/release", &key).await;
    assert_eq!(released.status, 200);
    ask("gpu", "c", r#""permits": {"count": 2, "of": 3}"#).await;
    ask("y", "d", r#""also": ["x"]"#).await;
    ask("z", "e", r#""lock_delay_ms": 1000"#).await;
    let reason = r#"{"fencing_token": 5, "reason": "stuck"}"#;
    assert_eq!(server.post("/v1/locks/z/break", reason).await.status, 200);
    let expected = [
        ("granted", "report", 1, json!(1), Value::Null),
        ("granted", "report", 1, json!(2), Value::Null),
        ("released", "report", 1, json!(1), Value::Null),
        ("granted", "gpu", 3, Value::Null, Value::Null),
        ("granted", "x", 4, Value::Null, Value::Null),
        ("granted", "y", 4, Value::Null, Value::Null),
        ("granted", "z", 5, Value::Null, Value::Null),
        ("revoked", "z", 5, Value::Null, json!(1_000)),
    ];
    for (name, lock, token, grant, delayed) in expected {
        let (told, _, data) = events.next().await;
        assert_eq!((told.as_str(), &data["resource_id"]), (name, &json!(lock)));
        assert_eq!(
            (
                &data["fencing_token"],
                &data["grant_id"],
                &data["delayed_ms"]
            ),
            (&json!(token), &grant, &delayed),
            "{lock}"
        );
    }
}

#[tokio::test]
async fn who_comes_back_to_a_quiet_server_is_told_at_once_what_it_missed() {
    let server = Server::start().await;
    for lock in ["a%2F1", "b", "a%2F2", "b2", "a%2F3"] {
        server.lock(lock, "c").await;
    }
    let by_header = Events::open(&server, "/v1/watch?prefix=a%2F", "Last-Event-ID: 1\r\n").await;
    let by_parameter = Events::open(&server, "/v1/watch?prefix=a%2F&after_revision=1", "").await;
    for mut events in [by_header, by_parameter] {
        for revision in ["3", "5"] {
            let (name, id, _) = events.next().await;
            assert_eq!((name.as_str(), id.as_str()), ("granted", revision));
        }
    }
    // Nothing was missed: the next change is the first thing told.
    let mut events = Events::open(&server, "/v1/watch", "Last-Event-ID: 5\r\n").await;
    server.lock("d", "c").await;
    assert_eq!(events.next().await.1, "6");
}

/// An authority that has issued 1,000 events in an earlier life, or leapt over them with a restore.
async fn returned() -> Server {
    let mut machine = Machine::new(1);
    let entry = Entry {
        at: Timestamp::ZERO,
        wall: WallTime::default(),
        by: palisade_core::Principal::ANONYMOUS,
        command: Command::Leap { by: 1_000 },
    };
    machine.apply(entry, &mut Vec::new());
    Server::with(Wish {
        machine: Some(machine),
        ..Wish::default()
    })
    .await
}

#[tokio::test]
async fn after_a_restart_or_a_restore_it_is_told_at_once_how_much_it_missed() {
    let server = returned().await;
    let mut events = Events::open(&server, "/v1/watch", "Last-Event-ID: 990\r\n").await;
    let (name, id, data) = events.next().await;
    assert_eq!(
        (name.as_str(), id.as_str(), data),
        ("missed", "1000", json!({"missed": 10}))
    );
    server.lock("d", "c").await;
    assert_eq!(events.next().await.1, "1001");
}

#[tokio::test]
async fn a_last_id_that_is_nonsense_or_in_the_future_is_answered() {
    let server = returned().await;
    for (id, says) in [
        ("abc", "last-event-id must be an integer"),
        ("-1", "last-event-id must be an integer"),
        ("1e3", "last-event-id must be an integer"),
        (
            "99999999999999999999999",
            "last-event-id must be an integer",
        ),
        ("\u{fc}", "last-event-id must be an integer"),
        (
            "1001",
            "revision 1001 is in the future: this authority's latest is 1000",
        ),
        (
            "18446744073709551615",
            "revision 18446744073709551615 is in the future",
        ),
    ] {
        let header = format!("Last-Event-ID: {id}\r\n");
        let refused = server.send("GET", "/v1/watch", &header, "").await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (400, "invalid"),
            "{id}"
        );
        assert!(refused.message().starts_with(says), "{}", refused.message());
    }
    let mut locks = crate::net_support::grpc::client(&server).await;
    let ahead = palisade_proto::v1::WatchRequest {
        prefix: String::new(),
        after_revision: Some(1_001),
    };
    let refused = locks.watch(ahead).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert_eq!(refused.metadata().get("palisade-code").unwrap(), "invalid");
}

#[tokio::test]
async fn one_watch_more_than_the_settings_allow_is_refused_and_a_place_is_free_again_when_one_ends()
{
    let server = Server::with(Wish::net(Settings {
        watches: 1,
        ..Settings::default()
    }))
    .await;
    let first = Events::open(&server, "/v1/watch", "").await;
    let refused = server.get("/v1/watch").await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "unavailable")
    );
    drop(first);
    soon(async {
        while server
            .get("/metrics")
            .await
            .body
            .contains("palisade_watchers 1")
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    Events::open(&server, "/v1/watch", "").await;
}
