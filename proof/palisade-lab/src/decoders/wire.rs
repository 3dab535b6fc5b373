//! Network input: frames, messages, JSON bodies.

use palisade_proto::json::{
    AcquireBody, AcquireReply, AdvanceBody, BreakBody, BreakReply, ErrorReply, EventBody,
    ListReply, LockReply, ReleaseBody, ReleaseReply, RenewBody, RenewReply, StatusReply,
};
use palisade_proto::{frames, v1};
use prost::Message;
use serde::de::DeserializeOwned;

/// The longest frame accepted here.
const MOST: usize = 1 << 16;

/// A stream of frames in either direction: requests, replies, events.
pub(super) fn frames(bytes: &[u8]) -> bool {
    let mut rest = bytes.strip_prefix(&frames::PREFACE).unwrap_or(bytes);
    let mut good = false;
    while let Ok(Some(frame)) = frames::first(rest, MOST) {
        good |= message::<v1::Requests>(frame);
        good |= message::<v1::Replies>(frame);
        good |= message::<v1::Event>(frame);
        rest = &rest[frames::HEADER + frame.len()..];
    }
    good
}

/// Decodes a message; a decoded message must encode and decode to the same again.
fn message<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> bool {
    let Ok(message) = M::decode(bytes) else {
        return false;
    };
    let again = M::decode(message.encode_to_vec().as_slice());
    assert!(again.is_ok_and(|again| again == message), "{message:?}");
    true
}

pub(super) fn frame_seeds() -> Vec<(&'static str, Vec<u8>)> {
    use v1::reply::Outcome;
    use v1::request::Operation;
    let request = |operation| v1::Request {
        id: 7,
        operation: Some(operation),
    };
    let acquire = request(Operation::Acquire(v1::AcquireRequest {
        lock: "orders".to_owned(),
        client_id: "a".to_owned(),
        lease_duration_ms: 10_000,
        wait_ms: 5_000,
        request_id: vec![7; 16],
        ..Default::default()
    }));
    let release = request(Operation::Release(v1::ReleaseRequest {
        lock: "orders".to_owned(),
        lock_token: vec![9; 16],
        ..Default::default()
    }));
    let list = request(Operation::List(v1::ListRequest::default()));
    let granted = v1::Reply {
        id: 7,
        outcome: Some(Outcome::Granted(v1::Granted {
            fencing_token: 34,
            lock_token: vec![9; 16],
            ..Default::default()
        })),
    };
    let mut requests = frames::PREFACE.to_vec();
    requests.extend(framed(&v1::Requests {
        requests: vec![acquire, release],
    }));
    frames::put_empty(&mut requests);
    requests.extend(framed(&v1::Requests {
        requests: vec![list],
    }));
    let replies = framed(&v1::Replies {
        replies: vec![granted],
    });
    vec![("requests", requests), ("replies", replies)]
}

fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), bytes.as_slice()].concat()
}

/// The bodies of the HTTP interface, as the server and the clients parse them.
pub(super) fn json(bytes: &[u8]) -> bool {
    let read = [
        body::<AcquireBody>(bytes),
        body::<RenewBody>(bytes),
        body::<ReleaseBody>(bytes),
        body::<BreakBody>(bytes),
        body::<AdvanceBody>(bytes),
        body::<AcquireReply>(bytes),
        body::<RenewReply>(bytes),
        body::<ReleaseReply>(bytes),
        body::<BreakReply>(bytes),
        body::<LockReply>(bytes),
        body::<ListReply>(bytes),
        body::<StatusReply>(bytes),
        body::<EventBody>(bytes),
        body::<ErrorReply>(bytes),
    ];
    read.contains(&true)
}

fn body<T: DeserializeOwned + std::fmt::Debug>(bytes: &[u8]) -> bool {
    let read = serde_json::from_slice::<T>(bytes);
    let text = match &read {
        Ok(body) => format!("{body:?}"),
        Err(error) => error.to_string(),
    };
    assert!(!text.is_empty());
    read.is_ok()
}

pub(super) fn json_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let seeds = [
        (
            "acquire",
            r#"{"client_id":"a","lease_duration_ms":10000,"wait_ms":0,"request_id":"000102030405060708090a0b0c0d0e0f","metadata":"host 7"}"#,
        ),
        (
            "renew",
            r#"{"lock_token":"000102030405060708090a0b0c0d0e0f","fencing_token":34,"lease_duration_ms":10000}"#,
        ),
        (
            "release",
            r#"{"lock_token":"000102030405060708090a0b0c0d0e0f"}"#,
        ),
        ("break", r#"{"fencing_token":34,"reason":"gone"}"#),
        ("advance", r#"{"ms":1000}"#),
        (
            "denied",
            r#"{"resource_id":"orders","lock_acquired":false,"error":{"code":"held","message":"held by b"},"holder":{"client_id":"b","fencing_token":33,"remaining_ms":4210}}"#,
        ),
        (
            "lock",
            r#"{"resource_id":"orders","holder":{"client_id":"b","fencing_token":9007199254740991,"remaining_ms":4210},"waiters":2}"#,
        ),
    ];
    let seeds = seeds.into_iter();
    seeds
        .map(|(name, text)| (name, text.as_bytes().to_vec()))
        .collect()
}
