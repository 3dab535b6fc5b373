//! Requests of earlier versions' clients are answered as they were then.
//!
//! The recorded bytes are sent as they are, except for lease keys, which this server draws anew. Answers may have more
//! fields.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use palisade_proto::frames;
use palisade_proto::v1::{Replies, Reply, reply::Outcome};
use prost::Message as _;
use serde_json::Value;

use super::{Server, Set};
use crate::common::SOON;

/// One client's bytes and the server's, in the order in which they were sent.
struct Recording {
    name: String,
    wire: String,
    events: Vec<Event>,
}

#[derive(Clone)]
struct Event {
    connection: u64,
    by_client: bool,
    bytes: Vec<u8>,
}

impl Recording {
    fn all(set: &Set) -> Vec<Recording> {
        let names = set.manifest["requests"].as_object().unwrap().keys();
        let recordings = names.map(|name| {
            let file = set.file(&format!("requests/{name}.json"));
            let text =
                std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
            let read: Value = serde_json::from_str(&text).unwrap();
            let events = read["events"]
                .as_array()
                .unwrap()
                .iter()
                .map(|event| Event {
                    connection: event[0].as_u64().unwrap(),
                    by_client: event[1] == "client",
                    bytes: match &event[2] {
                        Value::String(text) => text.clone().into_bytes(),
                        other => STANDARD.decode(other["base64"].as_str().unwrap()).unwrap(),
                    },
                });
            Recording {
                name: name.clone(),
                wire: read["wire"].as_str().unwrap().to_owned(),
                events: events.collect(),
            }
        });
        recordings.collect()
    }

    /// Sends it to a new server, and says which answers differ, until there are so many.
    fn differences(&self, most: usize) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start("serve", &dir.path().join("data"), &["--clock", "manual"]);
        let mut replay = Replay {
            session: self.wire == "session",
            ..Replay::default()
        };
        for event in &self.events {
            replay.step(event, &server.address);
            if replay.is_silent || replay.found.len() >= most {
                break;
            }
        }
        replay.found
    }
}

#[derive(Default)]
struct Replay {
    session: bool,
    connections: BTreeMap<u64, Connection>,
    /// Lease keys: those that were recorded, and those of this server.
    keys: Vec<(Vec<u8>, Vec<u8>)>,
    answers: usize,
    found: Vec<String>,
    /// An answer did not come in time. Those after it would each take as long.
    is_silent: bool,
}

struct Connection {
    stream: TcpStream,
    /// The recorded and the read bytes that are not compared yet.
    recorded: Vec<u8>,
    read: Vec<u8>,
}

impl Connection {
    fn open(address: &str) -> Connection {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Connection {
            stream,
            recorded: Vec::new(),
            read: Vec::new(),
        }
    }

    /// Reads until an answer is complete; false if none comes.
    fn next<T>(&mut self, take: impl Fn(&mut Vec<u8>) -> Option<T>) -> Option<T> {
        loop {
            if let Some(answer) = take(&mut self.read) {
                return Some(answer);
            }
            let mut bytes = [0; 65536];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(length) => self.read.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }
}

impl Replay {
    fn step(&mut self, event: &Event, address: &str) {
        let connection = self.connections.entry(event.connection);
        let connection = connection.or_insert_with(|| Connection::open(address));
        if event.by_client {
            let mut bytes = event.bytes.clone();
            for (recorded, own) in &self.keys {
                replace(&mut bytes, recorded, own);
            }
            if let Err(error) = connection.stream.write_all(&bytes) {
                self.found
                    .push(format!("connection {}: {error}", event.connection));
            }
            return;
        }
        connection.recorded.extend_from_slice(&event.bytes);
        if self.session {
            self.compare_replies(event.connection)
        } else {
            self.compare_answers(event.connection)
        }
    }

    fn compare_answers(&mut self, number: u64) {
        let connection = self.connections.get_mut(&number).unwrap();
        while let Some(recorded) = Http::take(&mut connection.recorded) {
            self.answers += 1;
            let Some(own) = connection.next(Http::take) else {
                self.found
                    .push(format!("no answer in place of {}", recorded.body));
                self.is_silent = true;
                return;
            };
            let place = format!("answer {}", self.answers);
            if (recorded.status, &recorded.nonce) != (own.status, &own.nonce) {
                self.found.push(format!(
                    "{place}: {} was {}: {}",
                    own.status, recorded.status, own.body
                ));
            }
            alike(&place, &recorded.body, &own.body, &mut self.found);
            learn(&recorded.body, &own.body, &mut self.keys);
        }
    }

    /// Replies and notices of one session may come in another order.
    fn compare_replies(&mut self, number: u64) {
        let connection = self.connections.get_mut(&number).unwrap();
        let mut owed = Vec::new();
        while let Some(replies) = replies(&mut connection.recorded) {
            owed.extend(replies);
        }
        let mut given = Vec::new();
        while given.len() < owed.len() {
            let Some(replies) = connection.next(replies) else {
                self.is_silent = true;
                break;
            };
            given.extend(replies);
        }
        for owed in owed {
            self.answers += 1;
            let same = |given: &Reply| given.id == owed.id && outcome(given) == outcome(&owed);
            match given.iter().position(same) {
                Some(at) => {
                    if let (Some(Outcome::Granted(recorded)), Some(Outcome::Granted(own))) =
                        (owed.outcome, given.swap_remove(at).outcome)
                    {
                        self.keys.push((recorded.lock_token, own.lock_token));
                    }
                }
                None => self.found.push(format!(
                    "answer {}: {owed:?} is not among {given:?}",
                    self.answers
                )),
            }
        }
    }
}

/// The replies of the first frame, once it is complete.
fn replies(bytes: &mut Vec<u8>) -> Option<Vec<Reply>> {
    let frame = frames::first(bytes, 1 << 20).unwrap()?;
    let length = frame.len();
    let replies = Replies::decode(frame).unwrap().replies;
    bytes.drain(..frames::HEADER + length);
    Some(replies)
}

/// The fields by which a client decides.
fn outcome(reply: &Reply) -> String {
    match &reply.outcome {
        Some(Outcome::Granted(it)) => format!(
            "granted {} {} {:?}",
            it.fencing_token, it.grant_id, it.slots
        ),
        Some(Outcome::Held(it)) => format!("held by {} {}", it.client_id, it.fencing_token),
        Some(Outcome::Renewed(it)) => {
            format!("renewed {} {}", it.fencing_token, it.lease_duration_ms)
        }
        Some(Outcome::Released(it)) => format!("{it:?}"),
        Some(Outcome::Ended(it)) => format!("{it:?}"),
        Some(Outcome::Error(it)) => format!("error {:?}", it.code),
        Some(Outcome::Notice(it)) => format!("{it:?}"),
        Some(Outcome::Lock(it)) => format!("lock {} {}", it.lock, it.waiters),
        Some(Outcome::Page(it)) => format!("page of {}", it.locks.len()),
        other => format!("{:?}", other.as_ref().map(std::mem::discriminant)),
    }
}

struct Http {
    status: u16,
    nonce: Option<String>,
    body: Value,
}

impl Http {
    /// The first answer, once it is complete: of a watch, its head and then each of its events.
    fn take(bytes: &mut Vec<u8>) -> Option<Http> {
        if !bytes.starts_with(b"HTTP/") {
            return Http::event(bytes);
        }
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let head = std::str::from_utf8(&bytes[..end])
            .unwrap()
            .to_ascii_lowercase();
        let header = |name: &str| {
            let found = head.lines().find_map(|line| line.strip_prefix(name));
            found.map(|value| value.trim().to_owned())
        };
        let is_stream = header("transfer-encoding:").is_some_and(|coding| coding == "chunked");
        let length = if is_stream {
            0
        } else {
            header("content-length:").unwrap().parse().unwrap()
        };
        let body = bytes.get(end..end + length)?;
        let answer = Http {
            status: head[9..12].parse().unwrap(),
            nonce: header("palisade-nonce:"),
            body: serde_json::from_slice(body).unwrap_or_default(),
        };
        bytes.drain(..end + length);
        Some(answer)
    }

    /// The first chunk of a stream that has an event; the others only keep the connection.
    fn event(bytes: &mut Vec<u8>) -> Option<Http> {
        loop {
            let size = bytes.windows(2).position(|two| two == b"\r\n")?;
            let begin = size + 2;
            let size = std::str::from_utf8(&bytes[..size]).unwrap();
            let end = begin + usize::from_str_radix(size, 16).unwrap();
            if bytes.len() < end + 2 {
                return None;
            }
            let text = String::from_utf8(bytes[begin..end].to_vec()).unwrap();
            bytes.drain(..end + 2);
            let field = |name: &str| {
                let found = text.lines().find_map(|line| line.strip_prefix(name));
                found.map(str::trim)
            };
            if let (Some(event), Some(data)) = (field("event:"), field("data:")) {
                let data: Value = serde_json::from_str(data).unwrap();
                return Some(Http {
                    status: 200,
                    nonce: None,
                    body: serde_json::json!({"event": event, "data": data}),
                });
            }
        }
    }
}

/// Fields with the same meaning and another value at each server and at each time.
const DRAWN: [&str; 6] = [
    "lock_token",
    "time",
    "authority",
    "incarnation",
    "acquired_at",
    "message",
];

/// Numbers that are the same for the same requests. The others are times.
const COUNTED: [&str; 6] = [
    "fencing_token",
    "revision",
    "grant_id",
    "slots",
    "waiters",
    "lease_duration_ms",
];

fn alike(place: &str, recorded: &Value, own: &Value, found: &mut Vec<String>) {
    let name = place.rsplit('.').next().unwrap_or_default();
    let name = name.split('[').next().unwrap_or_default();
    match (recorded, own) {
        (Value::Object(recorded), Value::Object(own)) => {
            for (name, value) in recorded {
                let own = own.get(name).unwrap_or(&Value::Null);
                alike(&format!("{place}.{name}"), value, own, found);
            }
        }
        (Value::Array(recorded), Value::Array(own)) if recorded.len() == own.len() => {
            for (at, (recorded, own)) in recorded.iter().zip(own).enumerate() {
                alike(&format!("{place}[{at}]"), recorded, own, found);
            }
        }
        (Value::String(_), Value::String(_)) if DRAWN.contains(&name) => {}
        (Value::Number(_), Value::Number(_)) if !COUNTED.contains(&name) => {}
        _ if recorded == own => {}
        _ => found.push(format!("{place}: {own} was {recorded}")),
    }
}

/// Notes the lease keys in two answers to the same request.
fn learn(recorded: &Value, own: &Value, keys: &mut Vec<(Vec<u8>, Vec<u8>)>) {
    if let (Some(recorded), Some(own)) =
        (recorded["lock_token"].as_str(), own["lock_token"].as_str())
    {
        keys.push((recorded.into(), own.into()));
    }
}

/// Replaces bytes by as many others.
fn replace(bytes: &mut [u8], old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len(), "a lease key has another length");
    let found: Vec<usize> = bytes
        .windows(old.len())
        .enumerate()
        .filter_map(|(at, window)| (window == old).then_some(at))
        .collect();
    for at in found {
        bytes[at..at + old.len()].copy_from_slice(new);
    }
}

#[test]
fn requests_of_each_versions_clients_are_answered_as_they_were() {
    for set in Set::all() {
        for recording in Recording::all(&set) {
            let found = recording.differences(usize::MAX);
            assert!(
                found.is_empty(),
                "{}:\n{}",
                recording.name,
                found.join("\n")
            );
        }
    }
}

/// A set without one of them would owe nothing for it.
#[test]
fn listens_watches_and_hand_overs_are_in_the_latest_recordings() {
    let set = Set::all().pop().unwrap();
    for recording in Recording::all(&set) {
        let has = |by_client, part: &str| {
            let mut events = recording.events.iter();
            events.any(|event| {
                let text = String::from_utf8_lossy(&event.bytes);
                event.by_client == by_client && text.contains(part)
            })
        };
        let parts = match &*recording.wire {
            "session" => &[(true, "handed"), (true, "heard")][..],
            _ => &[
                (true, "POST /v1/locks/handed/renew "),
                (true, "POST /v1/listen "),
                (false, "\"event\":\"ended\""),
                (true, "GET /v1/watch?"),
                (false, "event: released"),
            ],
        };
        for (by_client, part) in parts {
            assert!(has(*by_client, part), "{}: {part}", recording.name);
        }
    }
}

/// Controls: a recording with another answer, and one with another request.
#[test]
fn an_answer_that_differs_from_the_recorded_one_is_found() {
    let set = Set::all().pop().unwrap();
    for mut recording in Recording::all(&set) {
        let untouched = recording.events.clone();
        // The first grant: its token, or that of the session's answer.
        let granted = |event: &&mut Event| {
            !event.by_client && event.bytes.windows(5).any(|five| five == b"token")
        };
        match recording.events.iter_mut().find(granted) {
            Some(event) => {
                let text = String::from_utf8(event.bytes.clone()).unwrap();
                event.bytes = text
                    .replace("\"fencing_token\":1,", "\"fencing_token\":7,")
                    .into_bytes();
            }
            None => {
                let event = recording
                    .events
                    .iter_mut()
                    .filter(|event| !event.by_client)
                    .nth(1)
                    .unwrap();
                let mut frame = replies(&mut event.bytes).unwrap();
                let Some(Outcome::Granted(granted)) = &mut frame[0].outcome else {
                    panic!("{frame:?}");
                };
                granted.fencing_token = 7;
                event.bytes = framed(&Replies { replies: frame }.encode_to_vec());
            }
        }
        let found = recording.differences(1);
        assert!(!found.is_empty(), "{}: another token", recording.name);

        recording.events = untouched.clone();
        if recording.wire == "session" {
            continue;
        }
        // Of as many bytes: an event of the watch, and a notice of a listen.
        for (old, new) in [
            ("event: granted", "event: refused"),
            ("\"wanted\"", "\"wasted\""),
        ] {
            for event in recording.events.iter_mut().filter(|event| !event.by_client) {
                let text = String::from_utf8(event.bytes.clone()).unwrap();
                event.bytes = text.replace(old, new).into_bytes();
            }
            let found = recording.differences(1);
            assert!(!found.is_empty(), "{}: {new}", recording.name);
            recording.events.clone_from(&untouched);
        }
        for event in recording.events.iter_mut().filter(|event| event.by_client) {
            let text = String::from_utf8(event.bytes.clone()).unwrap();
            event.bytes = text
                .replace("\"lease_duration_ms\"", "\"lease_duration_us\"")
                .into_bytes();
        }
        let found = recording.differences(1);
        assert!(!found.is_empty(), "{}: another field", recording.name);
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&length.to_be_bytes(), message].concat()
}
