//! Every operation at every interface, for nobody, for the wrong principal and for the right one.

use std::path::PathBuf;

use palisade_access::{BearerToken, Verb};
use palisade_pipeline::Leading;
use palisade_proto::v1::request::Operation;
use palisade_proto::v1::{self, reply::Outcome};
use palisade_proto::{Code, frames};
use palisade_server::net::Settings;
use prost::Message as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

use crate::net_support::{Server, Wish, grpc, hang_up, soon};

/// The principals: one for each verb with the locks in `x/`, one with every verb elsewhere, and one with both `hold` and
/// `observe`.
const PRINCIPALS: [(&str, u8); 7] = [
    ("hold", 1),
    ("share", 2),
    ("observe", 3),
    ("break", 4),
    ("admin", 5),
    ("elsewhere", 6),
    ("both", 7),
];

/// The text of a principal's token.
pub(crate) fn token(name: &str) -> String {
    let (_, seed) = PRINCIPALS.iter().find(|(known, _)| *known == name).unwrap();
    BearerToken::make([*seed; 36]).0
}

pub(crate) fn rules() -> String {
    let mut text = "[auth]\n".to_owned();
    let all = Verb::ALL.map(Verb::name);
    for (name, seed) in PRINCIPALS {
        let token = BearerToken::make([seed; 36]).1;
        let (prefix, verbs): (&str, &[&str]) = match name {
            "elsewhere" => ("other/", &all),
            "both" => ("x/", &["hold", "observe"]),
            // Metrics, clocks and clusters belong to no prefix.
            "observe" => ("", &["observe"]),
            "admin" => ("", &["admin"]),
            verb => ("x/", &[verb]),
        };
        text.push_str(&format!(
            "[[auth.principals]]\nname = {name:?}\n[[auth.rules]]\nprincipal = {name:?}\nprefix = {prefix:?}\n\
             verbs = {verbs:?}\n[[auth.tokens]]\nid = {:?}\nprincipal = {name:?}\nsha256 = {:?}\n",
            token.id(),
            token.secret().stored(),
        ));
    }
    text
}

pub(crate) struct Closed {
    pub(crate) server: Server,
    _dir: TempDir,
    pub(crate) file: PathBuf,
}

pub(crate) async fn closed() -> Closed {
    closed_by(&rules()).await
}

pub(crate) async fn closed_by(rules: &str) -> Closed {
    closed_with(rules, Settings::default()).await
}

pub(crate) async fn closed_with(rules: &str, settings: Settings) -> Closed {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("access.toml");
    std::fs::write(&file, rules).unwrap();
    let server = Server::with(Wish::net(Settings {
        access: Some(file.clone()),
        ..settings
    }));
    Closed {
        server: server.await,
        _dir: dir,
        file,
    }
}

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Acquire,
    Renew,
    Proclaim,
    Release,
    Abandon,
    Break,
    Resize,
    Show,
    List,
    Status,
    Watch,
    Metrics,
    Ranking,
    Past,
    Report,
    Advance,
    Add,
    View,
    Whoami,
}

const ALL: [Asked; 19] = [
    Asked::Acquire,
    Asked::Renew,
    Asked::Proclaim,
    Asked::Release,
    Asked::Abandon,
    Asked::Break,
    Asked::Resize,
    Asked::Show,
    Asked::List,
    Asked::Status,
    Asked::Watch,
    Asked::Metrics,
    Asked::Ranking,
    Asked::Past,
    Asked::Report,
    Asked::Advance,
    Asked::Add,
    Asked::View,
    Asked::Whoami,
];

impl Asked {
    /// The callers that may make the request.
    fn granted(self) -> &'static [&'static str] {
        match self {
            Asked::Acquire | Asked::Proclaim => &["hold", "both"],
            Asked::Renew | Asked::Release => &["hold", "share", "both"],
            // It names no lock.
            Asked::Abandon => &["hold", "share", "both", "elsewhere"],
            Asked::Break | Asked::Resize => &["break"],
            Asked::Show | Asked::Watch | Asked::Past => &["observe", "both"],
            // Each sees its own part.
            Asked::List => &["observe", "both", "elsewhere"],
            // Of a lock that it may hold, in either way, or observe.
            Asked::Report => &["hold", "share", "observe", "both"],
            Asked::Status | Asked::Whoami => &[
                "hold",
                "share",
                "observe",
                "break",
                "admin",
                "elsewhere",
                "both",
            ],
            Asked::Metrics | Asked::Ranking => &["observe"],
            Asked::Advance | Asked::Add => &["admin"],
            Asked::View => &["admin", "observe"],
        }
    }
}

const ID: [u8; 16] = [9; 16];

/// The code of the answer over HTTP, empty for a success.
async fn http(server: &Server, asked: Asked, token: Option<&str>) -> String {
    let key = "09".repeat(16);
    let (method, path, body) = match asked {
        Asked::Acquire => (
            "POST",
            "/v1/locks/x%2F1/acquire",
            r#"{"client_id":"c","lease_duration_ms":10000}"#.to_owned(),
        ),
        Asked::Renew => (
            "POST",
            "/v1/locks/x%2F1/renew",
            format!(r#"{{"lock_token":"{key}"}}"#),
        ),
        Asked::Release => (
            "POST",
            "/v1/locks/x%2F1/release",
            format!(r#"{{"lock_token":"{key}"}}"#),
        ),
        Asked::Proclaim => (
            "POST",
            "/v1/locks/x%2F1/proclaim",
            format!(r#"{{"lock_token":"{key}","value":"here"}}"#),
        ),
        Asked::Abandon => (
            "POST",
            "/v1/requests/09090909090909090909090909090909/abandon",
            String::new(),
        ),
        Asked::Break => (
            "POST",
            "/v1/locks/x%2F1/break",
            r#"{"fencing_token":999,"reason":"r"}"#.to_owned(),
        ),
        Asked::Resize => ("POST", "/v1/locks/x%2F1/permits", r#"{"of":2}"#.to_owned()),
        Asked::Show => ("GET", "/v1/locks/x%2F1", String::new()),
        Asked::List => ("GET", "/v1/locks?prefix=x", String::new()),
        Asked::Status => ("GET", "/v1/status", String::new()),
        Asked::Watch => ("GET", "/v1/watch?prefix=x", String::new()),
        Asked::Metrics => ("GET", "/metrics", String::new()),
        Asked::Ranking => ("GET", "/v1/ranking", String::new()),
        Asked::Past => ("GET", "/v1/history?prefix=x", String::new()),
        Asked::Report => (
            "POST",
            "/v1/locks/x%2F1/rejections",
            r#"{"fencing_token":1,"resource":"r","highest":2,"operation":""}"#.to_owned(),
        ),
        Asked::Advance => ("POST", "/v1/clock/advance", r#"{"ms":1}"#.to_owned()),
        Asked::Add => (
            "POST",
            "/v1/cluster/add",
            r#"{"node":"1","peer":"127.0.0.1:1","promote":false}"#.to_owned(),
        ),
        Asked::View => ("GET", "/v1/cluster", String::new()),
        Asked::Whoami => ("GET", "/v1/whoami", String::new()),
    };
    http_of(server, (method, path, body), token).await
}

pub(crate) async fn http_of(
    server: &Server,
    (method, path, body): (&str, &str, String),
    token: Option<&str>,
) -> String {
    let shown = token.map_or(String::new(), |token| {
        format!("Authorization: Bearer {token}\r\n")
    });
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: t\r\n{shown}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = server.connect().await;
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    // A watch does not end; its head does.
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(stream.read_u8()).await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    if head.starts_with("HTTP/1.1 200") {
        return String::new();
    }
    let mut body = String::new();
    soon(stream.read_to_string(&mut body)).await.unwrap();
    let error: serde_json::Value = serde_json::from_str(&body).unwrap();
    error["error"]["code"].as_str().unwrap().to_owned()
}

/// The operation as a message; `None` if only HTTP has it.
fn operation(asked: Asked) -> Option<Operation> {
    let (lock, lock_token) = ("x/1".to_owned(), ID.to_vec());
    Some(match asked {
        Asked::Acquire => Operation::Acquire(grpc::acquire(&lock, "c", 0)),
        Asked::Renew => Operation::Renew(v1::RenewRequest {
            lock,
            lock_token,
            ..v1::RenewRequest::default()
        }),
        Asked::Proclaim => Operation::Proclaim(v1::ProclaimRequest {
            lock,
            lock_token,
            value: "here".to_owned(),
            ..v1::ProclaimRequest::default()
        }),
        Asked::Release => Operation::Release(grpc::release(&lock, &lock_token)),
        Asked::Abandon => Operation::Abandon(v1::AbandonRequest {
            request_id: ID.to_vec(),
        }),
        Asked::Break => Operation::Break(v1::BreakRequest {
            lock,
            fencing_token: 999,
            reason: "r".to_owned(),
        }),
        Asked::Resize => Operation::Resize(v1::ResizeRequest { lock, permits: 2 }),
        Asked::Show => Operation::Show(v1::ShowRequest { lock }),
        Asked::List => Operation::List(v1::ListRequest {
            prefix: "x".to_owned(),
            limit: 10,
            ..v1::ListRequest::default()
        }),
        Asked::Status => Operation::Status(v1::StatusRequest {}),
        Asked::Watch
        | Asked::Metrics
        | Asked::Ranking
        | Asked::Past
        | Asked::Report
        | Asked::Advance
        | Asked::Add
        | Asked::View
        | Asked::Whoami => return None,
    })
}

pub(crate) fn code_of(outcome: Option<Outcome>) -> String {
    match outcome {
        Some(Outcome::Held(_)) => "held".to_owned(),
        Some(Outcome::Error(error)) => error.code,
        _ => String::new(),
    }
}

pub(crate) fn code_of_status(status: &Status) -> String {
    let code = status.metadata().get("palisade-code");
    code.map_or(format!("{status:?}"), |code| {
        code.to_str().unwrap().to_owned()
    })
}

pub(crate) fn call<T>(message: T, token: Option<&str>) -> Request<T> {
    let mut call = Request::new(message);
    if let Some(token) = token {
        let value: MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
        call.metadata_mut().insert("authorization", value);
    }
    call
}

/// The code of a unary call, or of the call that opens a watch.
async fn unary(server: &Server, asked: Asked, token: Option<&str>) -> Option<String> {
    let mut client = grpc::client(server).await;
    if asked == Asked::Watch {
        let watch = v1::WatchRequest {
            prefix: "x".to_owned(),
            after_revision: None,
        };
        let opened = soon(client.watch(call(watch, token))).await;
        return Some(
            opened
                .err()
                .map_or(String::new(), |status| code_of_status(&status)),
        );
    }
    Some(unary_of(server, operation(asked)?, token).await)
}

pub(crate) async fn unary_of(server: &Server, operation: Operation, token: Option<&str>) -> String {
    let mut client = grpc::client(server).await;
    let reply = match operation {
        Operation::Acquire(message) => client.acquire(call(message, token)).await,
        Operation::Renew(message) => client.renew(call(message, token)).await,
        Operation::Proclaim(message) => client.proclaim(call(message, token)).await,
        Operation::Release(message) => client.release(call(message, token)).await,
        Operation::Abandon(message) => client.abandon(call(message, token)).await,
        Operation::Break(message) => client.r#break(call(message, token)).await,
        Operation::Open(message) => client.open(call(message, token)).await,
        Operation::Resize(message) => client.resize(call(message, token)).await,
        Operation::Show(message) => client.show(call(message, token)).await,
        Operation::List(message) => client.list(call(message, token)).await,
        Operation::Status(message) => client.status(call(message, token)).await,
        Operation::Listen(_) => panic!("only sessions listen over gRPC"),
    };
    match reply {
        Ok(reply) => code_of(reply.into_inner().outcome),
        Err(status) => code_of_status(&status),
    }
}

/// The code in a gRPC session.
async fn stream(server: &Server, asked: Asked, token: Option<&str>) -> Option<String> {
    Some(stream_of(server, operation(asked)?, token).await)
}

pub(crate) async fn stream_of(
    server: &Server,
    operation: Operation,
    token: Option<&str>,
) -> String {
    let operation = Some(operation);
    let requests = vec![v1::Request { id: 1, operation }];
    let frames = tokio_stream::iter([v1::Requests { requests }]);
    let mut client = grpc::client(server).await;
    match soon(client.session(call(frames, token))).await {
        Err(status) => code_of_status(&status),
        Ok(replies) => {
            let replies = soon(replies.into_inner().message()).await.unwrap().unwrap();
            code_of(replies.replies.into_iter().next().unwrap().outcome)
        }
    }
}

/// The code in a plain session.
async fn plain(server: &Server, asked: Asked, token: Option<&str>) -> Option<String> {
    Some(plain_of(server, operation(asked)?, token).await)
}

pub(crate) async fn plain_of(server: &Server, operation: Operation, token: Option<&str>) -> String {
    let mut session = open_session(server, token).await;
    code_of(ask_session(&mut session, operation).await)
}

/// The codes of an acquire of a lock, or of several at once, at each interface.
pub(crate) async fn acquires(
    server: &Server,
    locks: &[&str],
    wait_ms: u32,
    principal: &str,
) -> [String; 4] {
    let (lock, others) = locks.split_first().unwrap();
    let token = token(principal);
    let token = Some(&*token);
    let path = format!("/v1/locks/{}/acquire", lock.replace('/', "%2F"));
    let body = serde_json::json!({
        "client_id": "c2", "lease_duration_ms": 10_000, "wait_ms": wait_ms, "also": others,
    });
    let mut acquire = grpc::acquire(lock, "c2", wait_ms);
    let locks = others.iter().map(ToString::to_string).collect();
    acquire.options.push(v1::AcquireOption {
        option: Some(v1::acquire_option::Option::Also(v1::LockNames { locks })),
    });
    let operation = || Operation::Acquire(acquire.clone());
    [
        http_of(server, ("POST", &path, body.to_string()), token).await,
        unary_of(server, operation(), token).await,
        stream_of(server, operation(), token).await,
        plain_of(server, operation(), token).await,
    ]
}

pub(crate) async fn open_session(server: &Server, token: Option<&str>) -> TcpStream {
    let mut session = server.connect().await;
    let mut bytes = match token {
        None => frames::PREFACE.to_vec(),
        Some(_) => frames::PREFACE_WITH_TOKEN.to_vec(),
    };
    if let Some(token) = token {
        frames::put_token(&mut bytes, token);
    }
    session.write_all(&bytes).await.unwrap();
    session
}

pub(crate) async fn ask_session(session: &mut TcpStream, operation: Operation) -> Option<Outcome> {
    send_session(session, [operation]).await;
    read_session(session).await.into_iter().next().unwrap()
}

/// Sends operations in one frame, all with the id 1.
pub(crate) async fn send_session(
    session: &mut TcpStream,
    operations: impl IntoIterator<Item = Operation>,
) {
    let mut bytes = Vec::new();
    let frame = frames::FrameBuilder::at_end(&mut bytes);
    for operation in operations {
        let request = v1::Request {
            id: 1,
            operation: Some(operation),
        };
        frame.put(&mut bytes, &request);
    }
    frame.close(&mut bytes);
    session.write_all(&bytes).await.unwrap();
}

/// The replies of the next frame.
async fn read_session(session: &mut TcpStream) -> Vec<Option<Outcome>> {
    let length = soon(session.read_u32()).await.unwrap();
    let mut frame = vec![0; length as usize];
    soon(session.read_exact(&mut frame)).await.unwrap();
    let replies = v1::Replies::decode(&*frame).unwrap().replies;
    replies.into_iter().map(|reply| reply.outcome).collect()
}

#[tokio::test]
async fn every_interface_answers_every_caller_as_the_rules_say() {
    let closed = closed().await;
    let server = &closed.server;
    let forged = format!("{}0", &token("hold")[..token("hold").len() - 1]);
    let callers = PRINCIPALS.map(|(name, _)| (name, Some(token(name))));
    let nobody = [
        ("nobody", None),
        ("forged", Some(forged)),
        ("malformed", Some("pal_x".to_owned())),
    ];
    let (mut granted, mut refused) = (0, 0);
    for asked in ALL {
        for (name, token) in nobody.iter().chain(&callers) {
            let before = server.changes().await;
            let token = token.as_deref();
            let answers = [
                Some(http(server, asked, token).await),
                unary(server, asked, token).await,
                stream(server, asked, token).await,
                plain(server, asked, token).await,
            ];
            let is_known = PRINCIPALS.iter().any(|(known, _)| known == name);
            let expected = match (is_known, asked.granted().contains(name)) {
                (true, true) => None,
                (true, false) => Some(Code::Forbidden.name()),
                (false, _) => Some(Code::Unauthenticated.name()),
            };
            for (face, code) in answers.into_iter().enumerate() {
                let Some(code) = code else { continue };
                match expected {
                    Some(expected) => {
                        assert_eq!(code, expected, "{asked:?} by {name} at interface {face}")
                    }
                    None => assert!(
                        !["forbidden", "unauthenticated"].contains(&&*code)
                            && !code.contains("Status"),
                        "{asked:?} by {name} at interface {face}: {code}"
                    ),
                }
                match expected {
                    Some(_) => refused += 1,
                    None => granted += 1,
                }
            }
            if expected.is_some() {
                assert_eq!(
                    server.changes().await,
                    before,
                    "{asked:?} by {name} changed something"
                );
            }
        }
    }
    assert!(
        granted > 60 && refused > 200,
        "{granted} granted, {refused} refused"
    );
    // Anybody may ask whether it works.
    for path in ["/healthz", "/openapi.json", "/", "/page.js", "/draw.js"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
}

/// On a Unix socket the kernel says which uid connects; here it is always that of this process, so the rules differ.
#[tokio::test]
async fn every_interface_of_a_unix_socket_answers_every_uid_as_the_rules_say() {
    let me = rustix::process::getuid().as_raw();
    let with_uid = |name: &str, uid: u32| {
        let principal = format!("name = {name:?}\n");
        rules().replace(&principal, &format!("{principal}uids = [{uid}]\n"))
    };
    let wrong = with_uid("both", me + 1);
    // The rules, the credentials besides the uid, and the principal that they give.
    let mut callers = vec![
        ("a uid that is not in the file", rules(), None, None),
        ("the uid of somebody else", wrong, None, None),
        (
            "a token that counts first",
            with_uid("hold", me),
            Some(token("observe")),
            Some("observe"),
        ),
        (
            "a wrong token",
            with_uid("both", me),
            Some("pal_x".to_owned()),
            None,
        ),
    ];
    for (name, _) in PRINCIPALS {
        callers.push(("the uid alone", with_uid(name, me), None, Some(name)));
    }
    let (mut granted, mut refused) = (0, 0);
    for (what, rules, token, principal) in callers {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("access.toml");
        std::fs::write(&file, rules).unwrap();
        let settings = Settings {
            access: Some(file),
            ..Settings::default()
        };
        let server = Server::on_socket(&dir.path().join("s"), Wish::net(settings)).await;
        let token = token.as_deref();
        for asked in ALL {
            let before = server.changes().await;
            let expected = match principal.map(|name| asked.granted().contains(&name)) {
                Some(true) => None,
                Some(false) => Some(Code::Forbidden.name()),
                None => Some(Code::Unauthenticated.name()),
            };
            let answers = [
                Some(http(&server, asked, token).await),
                unary(&server, asked, token).await,
                stream(&server, asked, token).await,
                plain(&server, asked, token).await,
            ];
            for (face, code) in answers.into_iter().enumerate() {
                let Some(code) = code else { continue };
                let said =
                    format!("{asked:?} by {what} ({principal:?}) at interface {face}: {code}");
                match expected {
                    Some(expected) => {
                        assert_eq!(code, expected, "{said}");
                        refused += 1;
                    }
                    None => {
                        let denied = ["forbidden", "unauthenticated"].contains(&&*code);
                        assert!(!denied && !code.contains("Status"), "{said}");
                        granted += 1;
                    }
                }
            }
            if expected.is_some() {
                assert_eq!(server.changes().await, before, "{asked:?} by {what}");
            }
        }
    }
    assert!(
        granted > 60 && refused > 200,
        "{granted} granted, {refused} refused"
    );
}

#[tokio::test]
async fn a_holders_client_id_is_shown_to_those_who_may_observe_it_only() {
    let closed = closed().await;
    let server = &closed.server;
    let mut hold = open_session(server, Some(&token("hold"))).await;
    let acquire = |client: &str| Operation::Acquire(grpc::acquire("x/1", client, 0));
    grpc::granted(ask_session(&mut hold, acquire("secret-name")).await);
    for (name, expected) in [("hold", "(hidden)"), ("both", "secret-name")] {
        let mut session = open_session(server, Some(&token(name))).await;
        let Some(Outcome::Held(held)) = ask_session(&mut session, acquire("other")).await else {
            panic!("{name} was granted a lock that is held");
        };
        assert_eq!(held.client_id, expected, "{name}");
    }
    // Also not through an id of two operations in flight: the first answer would take the state of the other.
    let mut session = open_session(server, Some(&token("hold"))).await;
    let status = Operation::Status(v1::StatusRequest {});
    send_session(&mut session, [status, acquire("other")]).await;
    let mut replies = read_session(&mut session).await;
    if replies.len() < 2 {
        replies.extend(read_session(&mut session).await);
    }
    let refused = replies.iter().find_map(|reply| match reply {
        Some(Outcome::Error(refused)) => Some(&*refused.code),
        _ => None,
    });
    assert_eq!(refused, Some("invalid"), "{replies:?}");
    // A listing has the locks that its caller may observe, and no others.
    for (name, count) in [("both", 1), ("observe", 1), ("elsewhere", 0)] {
        let mut session = open_session(server, Some(&token(name))).await;
        let list = Operation::List(v1::ListRequest {
            limit: 10,
            ..v1::ListRequest::default()
        });
        let Some(Outcome::Page(page)) = ask_session(&mut session, list).await else {
            panic!("{name}: no page");
        };
        assert_eq!(page.locks.len(), count, "{name}");
    }
}

#[tokio::test]
async fn new_rules_reach_open_sessions_and_a_file_with_a_mistake_changes_nothing() {
    let closed = closed().await;
    let server = &closed.server;
    let mut session = open_session(server, Some(&token("both"))).await;
    let show = || operation(Asked::Show).unwrap();
    assert_eq!(code_of(ask_session(&mut session, show()).await), "");

    std::fs::write(&closed.file, "[auth]\n[[auth.rule]]\n").unwrap();
    hang_up().await;
    // The next file is read after the broken one.
    let revoked = format!(
        "{}[[auth.revoked]]\nid = \"{}\"\n",
        rules(),
        BearerToken::make([4; 36]).1.id()
    );
    std::fs::write(&closed.file, &revoked).unwrap();
    hang_up().await;
    soon(async {
        while http(server, Asked::Break, Some(&token("break"))).await != "unauthenticated" {}
    })
    .await;
    assert_eq!(
        code_of(ask_session(&mut session, show()).await),
        "",
        "not revoked"
    );

    let revoked = format!(
        "{revoked}[[auth.revoked]]\nid = \"{}\"\n",
        BearerToken::make([7; 36]).1.id()
    );
    std::fs::write(&closed.file, revoked).unwrap();
    hang_up().await;
    soon(async { while code_of(ask_session(&mut session, show()).await) != "unauthenticated" {} })
        .await;
}

#[tokio::test]
async fn only_a_request_with_a_token_is_forwarded() {
    let open = "[[auth.rules]]\nprincipal = \"anonymous\"\nprefix = \"\"\nverbs = [\"observe\"]\n";
    let rules = format!("{}{open}", rules());
    let (leader, follower) = (closed_by(&rules).await, closed_by(&rules).await);
    let url = format!("http://{}", leader.server.addr);
    follower.server.handle.set_leader(Leading::At(url.into()));
    let show = async |at: &Closed, token: Option<&str>| http(&at.server, Asked::Show, token).await;
    // The leader would see the node that forwards, and not the caller.
    assert_eq!(show(&follower, None).await, "not_leader");
    // Controls: the same caller at the leader, and one with a token.
    assert_eq!(show(&leader, None).await, "");
    assert_eq!(show(&follower, Some(&token("observe"))).await, "");
    assert_eq!(show(&follower, Some(&token("hold"))).await, "forbidden");
    assert_eq!(show(&follower, Some("pal_x")).await, "unauthenticated");
}

#[tokio::test]
async fn share_grants_shared_locks_only_and_hold_grants_both() {
    let closed = closed().await;
    let acquire = async |lock: &str, mode: &str, name: &str| {
        let body = format!(r#"{{"client_id":"{name}","lease_duration_ms":10000,"mode":"{mode}"}}"#);
        let request = format!(
            "POST /v1/locks/x%2F{lock}/acquire HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            token(name),
            body.len()
        );
        closed.server.raw(request.as_bytes()).await.status
    };
    assert_eq!(acquire("a", "shared", "share").await, 200);
    assert_eq!(acquire("b", "exclusive", "share").await, 403);
    assert_eq!(acquire("b", "update", "share").await, 403);
    assert_eq!(acquire("b", "upgrade", "share").await, 403);
    assert_eq!(acquire("c", "update", "hold").await, 200);
    assert_eq!(acquire("a", "shared", "hold").await, 200);
    assert_eq!(acquire("b", "exclusive", "hold").await, 200);
    assert_eq!(acquire("c", "shared", "observe").await, 403);
}

const VICTIM: [u8; 16] = [0x77; 16];

/// The attempts of a thief that has read a listing, a log line or a job's memory: the client id, the request id, and
/// even the key of the lease.
fn thefts(
    key: &[u8],
) -> Vec<(
    &'static str,
    Operation,
    (&'static str, &'static str, String),
)> {
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let (request_id, key_hex) = (hex(&VICTIM), hex(key));
    let acquire = |lock: &str| grpc::acquire(lock, "victim", 0);
    let (lock, lock_token) = ("x/1".to_owned(), key.to_vec());
    let body = |more: &str| format!(r#"{{"client_id":"victim","lease_duration_ms":10000{more}}}"#);
    vec![
        (
            "held",
            Operation::Acquire(acquire("x/1")),
            ("POST", "/v1/locks/x%2F1/acquire", body("")),
        ),
        (
            "held",
            Operation::Acquire(v1::AcquireRequest {
                request_id: VICTIM.to_vec(),
                ..acquire("x/1")
            }),
            (
                "POST",
                "/v1/locks/x%2F1/acquire",
                body(&format!(r#","request_id":"{request_id}""#)),
            ),
        ),
        (
            "",
            Operation::Abandon(v1::AbandonRequest {
                request_id: VICTIM.to_vec(),
            }),
            (
                "POST",
                "/v1/requests/77777777777777777777777777777777/abandon",
                String::new(),
            ),
        ),
        (
            "forbidden",
            Operation::Renew(v1::RenewRequest {
                lock: lock.clone(),
                lock_token: lock_token.clone(),
                ..v1::RenewRequest::default()
            }),
            (
                "POST",
                "/v1/locks/x%2F1/renew",
                format!(r#"{{"lock_token":"{key_hex}"}}"#),
            ),
        ),
        (
            "forbidden",
            Operation::Acquire(v1::AcquireRequest {
                lock_token: lock_token.clone(),
                lease_duration_ms: 0,
                ..acquire("x/2")
            }),
            (
                "POST",
                "/v1/locks/x%2F2/acquire",
                format!(r#"{{"client_id":"victim","lock_token":"{key_hex}"}}"#),
            ),
        ),
        (
            "forbidden",
            Operation::Release(grpc::release(&lock, &lock_token)),
            (
                "POST",
                "/v1/locks/x%2F1/release",
                format!(r#"{{"lock_token":"{key_hex}"}}"#),
            ),
        ),
    ]
}

#[tokio::test]
async fn a_stolen_client_id_request_id_or_lease_key_lets_nobody_act() {
    let closed = closed().await;
    let server = &closed.server;
    let owner = token("hold");
    let acquire = Operation::Acquire(v1::AcquireRequest {
        request_id: VICTIM.to_vec(),
        ..grpc::acquire("x/1", "victim", 0)
    });
    let mut session = open_session(server, Some(&owner)).await;
    let granted = grpc::granted(ask_session(&mut session, acquire.clone()).await);
    let thief = token("both");
    let thief = Some(&*thief);
    let mut refused = 0;
    for face in 0..4 {
        // A repeat of the thief's requests belongs to the thief.
        for (expected, operation, by_http) in thefts(&granted.lock_token) {
            let what = format!("{operation:?} at interface {face}");
            let before = server.changes().await;
            let code = match face {
                0 => http_of(server, by_http, thief).await,
                1 => unary_of(server, operation, thief).await,
                2 => stream_of(server, operation, thief).await,
                _ => plain_of(server, operation, thief).await,
            };
            // The second time, its own abandoned request answers it.
            let expected = match (expected, code.as_str()) {
                ("held", "abandoned") => "abandoned",
                _ => expected,
            };
            assert_eq!(code, expected, "{what}");
            if expected == "forbidden" {
                refused += 1;
                assert_eq!(server.changes().await, before, "{what} changed something");
            }
        }
    }
    // The owner has all of it still: the grant under its request id, and the lease.
    let again = grpc::granted(ask_session(&mut session, acquire).await);
    assert_eq!(
        (again.fencing_token, &again.lock_token),
        (granted.fencing_token, &granted.lock_token)
    );
    let metrics = "GET /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer";
    let metrics = format!("{metrics} {}\r\n\r\n", token("observe"));
    let metrics = server.raw(metrics.as_bytes()).await.body;
    let counted = format!("palisade_wrong_principal_total {refused}\n");
    assert!(refused == 12 && metrics.contains(&counted), "{metrics}");
    // The control: the same by the owner succeeds.
    for (_, operation, _) in thefts(&granted.lock_token).into_iter().skip(3) {
        let code = code_of(ask_session(&mut session, operation.clone()).await);
        assert_eq!(code, "", "{operation:?}");
    }
}

/// A directory from before the rules: its grants are nobody's, and the clients that have their keys finish their work.
#[tokio::test]
async fn a_lock_from_before_the_rules_is_its_key_holders_until_it_ends() {
    let closed = closed().await;
    let server = &closed.server;
    let wish = palisade_core::Wish::new(
        palisade_core::LockName::new("x/1").unwrap(),
        palisade_core::ClientId::new("victim").unwrap(),
        palisade_core::Under::new(palisade_core::Ttl::from_millis(10_000).unwrap()),
        None,
    );
    let before = palisade_pipeline::Request::Acquire(wish);
    let answer = server.handle.call(before).await;
    let palisade_pipeline::Answer::Outcome(palisade_core::Outcome::Granted(granted)) = answer
    else {
        panic!("{answer:?}");
    };
    let mut session = open_session(server, Some(&token("hold"))).await;
    let expected = ["held", "held", "", "", "forbidden", ""];
    for ((_, operation, _), expected) in thefts(granted.key.as_bytes()).into_iter().zip(expected) {
        let code = code_of(ask_session(&mut session, operation.clone()).await);
        assert_eq!(code, expected, "{operation:?}");
    }
    let own = Operation::Acquire(grpc::acquire("x/1", "victim", 0));
    let own = grpc::granted(ask_session(&mut session, own).await);
    assert!(own.fencing_token > granted.token.get());
}

/// The control is a caller with the right, which gets an error about the body.
#[tokio::test]
async fn who_may_not_administer_learns_nothing_about_what_a_body_must_be() {
    let closed = closed().await;
    for (path, verb) in [
        ("/v1/clock/advance", "admin"),
        ("/v1/cluster/add", "admin"),
        ("/v1/cluster/promote", "admin"),
        ("/v1/cluster/remove", "admin"),
        ("/v1/cluster/transfer", "admin"),
        ("/v1/locks/x%2F1/break", "break"),
        ("/v1/locks/x%2F1/open", "break"),
        ("/v1/locks/x%2F1/permits", "break"),
    ] {
        let wrong = || ("POST", path, r#"{"nonsense": 1}"#.to_owned());
        let hold = http_of(&closed.server, wrong(), Some(&token("hold"))).await;
        assert_eq!(hold, "forbidden", "{path}");
        let unknown = http_of(&closed.server, wrong(), None).await;
        assert_eq!(unknown, "unauthenticated", "{path}");
        let may = http_of(&closed.server, wrong(), Some(&token(verb))).await;
        assert_eq!(may, "invalid", "{path}");
    }
}
