//! Rows 23 and 24: the HTTP/JSON interface.

use std::net::SocketAddr;

use serde_json::json;

use super::h2;
use super::harness::Harness;
use super::http::{self, JSON};
use super::outcome::{Attack, Outcome, named};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "dns-rebinding",
        row: 23,
        does: "a page of another host, whose name points here, breaks a lock through a visitor's browser",
        bounds: "4 requests",
        run: dns_rebinding,
    },
    Attack {
        name: "json-oddities",
        row: 24,
        does: "arrays as bodies, duplicate members, %zz, 1000.0, unknown parameters; what a grant says about its time",
        bounds: "14 requests",
        run: json_oddities,
    },
];

fn dns_rebinding(harness: &Harness) -> Result<Outcome, String> {
    let server = harness.serve("data")?;
    let mut broken = Vec::new();
    let strangers = ["evil.example", "evil.example:7420"];
    for (at, host) in strangers.into_iter().enumerate() {
        let lock = format!("lock-{at}");
        let token = http::grant(server.address, &lock, "c", 3_600_000)?;
        let origin = format!("http://{host}");
        let headers = [("host", host), ("origin", &origin), JSON[0]];
        let body = json!({"fencing_token": token, "reason": "because"}).to_string();
        let target = format!("/v1/locks/{lock}/break");
        if http::ask(server.address, "POST", &target, &headers, &body)?.status == 200 {
            broken.push(host);
        } else if http::ask(server.address, "POST", &target, &JSON, &body)?.status != 200 {
            return Err("the control, with the server's own name, was refused too".to_owned());
        }
    }
    Ok(Outcome::measured(
        broken.is_empty(),
        format!(
            "{} of {} broke a lock{}",
            broken.len(),
            strangers.len(),
            named(&broken)
        ),
        "none",
    ))
}

fn json_oddities(harness: &Harness) -> Result<Outcome, String> {
    let server = harness.serve("data")?;
    let store = harness.store("store")?;
    let mut wrong = Vec::new();
    let mut count = 0;
    let mut expect =
        |to: SocketAddr, name: &str, method: &str, target: &str, body: &str, status: u16| {
            count += 1;
            let answered = http::ask(to, method, target, &JSON, body);
            let answered = answered.map_or(0, |reply| reply.status);
            if answered != status {
                wrong.push(format!("{name} gets {answered}, not {status}"));
            }
        };
    let acquire = |lock: &str| format!("/v1/locks/{lock}/acquire");
    let (s, t) = (server.address, store.address);
    let put = |members: &str| format!("{{\"resource_id\":\"r\",\"fencing_token\":1{members}}}");
    expect(
        s,
        "an array as a body",
        "POST",
        &acquire("a"),
        "[\"c\",1000]",
        400,
    );
    let doubled = r#"{"client_id":"c","client_id":"d","lease_duration_ms":1000}"#;
    expect(s, "a duplicate member", "POST", &acquire("b"), doubled, 400);
    let float = r#"{"client_id":"c","lease_duration_ms":60000.0}"#;
    expect(
        s,
        "60000.0 as an integer",
        "POST",
        &acquire("c"),
        float,
        200,
    );
    let half = r#"{"client_id":"c","lease_duration_ms":60000.5}"#;
    expect(s, "60000.5 as an integer", "POST", &acquire("d"), half, 400);
    let good = r#"{"client_id":"c","lease_duration_ms":60000}"#;
    expect(s, "%zz in a name", "POST", &acquire("%zz"), good, 400);
    expect(
        s,
        "an unknown parameter of acquire",
        "POST",
        "/v1/locks/e/acquire?wait=1",
        good,
        400,
    );
    expect(
        s,
        "an unknown parameter of show",
        "GET",
        "/v1/locks/e?x=1",
        "",
        400,
    );
    expect(
        s,
        "an unknown parameter of list",
        "GET",
        "/v1/locks?x=1",
        "",
        400,
    );
    expect(
        t,
        "an array at the store",
        "POST",
        "/v1/storage/claim",
        "[\"r\",1]",
        400,
    );
    let doubled = put(r#","fencing_token":2"#);
    expect(
        t,
        "a duplicate member at the store",
        "POST",
        "/v1/storage/claim",
        &doubled,
        400,
    );
    expect(
        t,
        "an unknown parameter at the store",
        "GET",
        "/v1/storage?x=1",
        "",
        400,
    );
    let mut connection = http::Connection::to(s)?;
    let grant = connection.acquire("f", "c", 60_000)?.json();
    for member in ["valid_for_ms", "waited_ms"] {
        count += 1;
        if !grant[member].is_u64() {
            wrong.push(format!("a grant without {member}"));
        }
    }
    count += 1;
    let status = undecodable(s)?;
    if status != "3" {
        wrong.push(format!("an undecodable protobuf gets {status}, not 3"));
    }
    Ok(Outcome::measured(
        wrong.is_empty(),
        if wrong.is_empty() {
            format!("{count} of {count} correct")
        } else {
            format!("{} of {count} wrong: {}", wrong.len(), wrong.join("; "))
        },
        "none wrong",
    ))
}

/// The gRPC status for bytes that are not a message.
fn undecodable(to: SocketAddr) -> Result<String, String> {
    let mut connection = h2::Connection::to(to, 65_535)?;
    let stream = connection.call("/palisade.v1.Locks/Acquire")?;
    connection.message(stream, &[0xff; 8])?;
    for _ in 0..50 {
        for frame in connection.frames(std::time::Duration::from_millis(100))? {
            let ended = frame.stream == stream && frame.flags & h2::END_STREAM > 0;
            if ended && frame.kind != h2::DATA {
                return Ok(grpc_status(&frame.payload));
            }
        }
    }
    Err("bytes that are not a message got no answer".to_owned())
}

/// The value of `grpc-status` in a header block whose only compression is the Huffman code: every status is one or two
/// digits after the name, both plain or coded.
fn grpc_status(block: &[u8]) -> String {
    // `grpc-status` in the Huffman code of RFC 7541, whose static table has no entry for it.
    const CODED: [u8; 8] = [0x9a, 0xca, 0xc8, 0xb2, 0x12, 0x34, 0xda, 0x8f];
    // Only digits, padded to a byte: five bits for 0, 1 and 2, six for the others.
    let coded = |byte: u8| match byte {
        0x07 => "0",
        0x0f => "1",
        0x17 => "2",
        0x67 => "3",
        0x6b => "4",
        0x6f => "5",
        0x73 => "6",
        0x77 => "7",
        0x7b => "8",
        0x7f => "9",
        _ => "another",
    };
    let after = |name: &[u8]| {
        let at = block
            .windows(name.len())
            .position(|window| window == name)?
            + name.len();
        let (length, value) = (*block.get(at)?, *block.get(at + 1)?);
        Some(match length {
            0x81 => coded(value).to_owned(),
            0x01 => char::from(value).to_string(),
            _ => "another".to_owned(),
        })
    };
    after(&CODED)
        .or_else(|| after(b"grpc-status"))
        .unwrap_or_else(|| "none".to_owned())
}
