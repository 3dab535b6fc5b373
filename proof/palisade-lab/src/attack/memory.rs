//! Rows 6, 12 and 25: memory that one stranger can make the server use.

use std::time::Duration;

use palisade_proto::v1;
use prost::Message as _;

use super::harness::{Harness, Program, pause, until};
use super::outcome::{Attack, Outcome};
use super::{h2, http, plain};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "listing-bomb",
        row: 6,
        does: "60,000 listings in one frame; three frames of 20 KB; 4 MiB of empty requests",
        bounds: "30 s, stopped at 1.5 GiB",
        run: listing_bomb,
    },
    Attack {
        name: "unread-answers",
        row: 12,
        does: "listings over HTTP/2 and over 200 pipelined connections whose answers nobody reads",
        bounds: "20 s, stopped at 1.5 GiB",
        run: unread_answers,
    },
    Attack {
        name: "idle-sessions",
        row: 25,
        does: "sessions that sent or got much once and are silent now: plain, and over gRPC",
        bounds: "1,000 connections (short: 200) and 400 streams (short: 200)",
        run: idle_sessions,
    },
];

/// Where an attack stops, so that it does not exhaust this machine's memory.
const ENOUGH_MIB: u64 = 1_536;

/// How much memory one stranger may cost. A page of this listing has about 250 KB.
const LIMIT_MIB: u64 = 256;

/// A server that holds a thousand locks, and its memory at that point.
fn filled(harness: &Harness, data: &str) -> Result<(Program, u64), String> {
    let server = harness.serve(data)?;
    plain::fill(server.address)?;
    // The first listing allocates the memory that every later one needs too.
    http::get(server.address, "/v1/locks?limit=1000")?;
    let memory = server.memory_mib();
    Ok((server, memory))
}

fn listing_bomb(harness: &Harness) -> Result<Outcome, String> {
    let time = Duration::from_secs(harness.amount(8, 4));
    let listings = |count| plain::frame((0..count).map(|_| plain::listing()).collect());
    let mut figures = Vec::new();
    let mut held = true;
    let shapes: [(&str, Vec<Vec<u8>>); 3] = [
        ("one frame of 60,000 listings", vec![listings(60_000)]),
        ("three of 20 KB", vec![listings(1_900); 3]),
        ("4 MiB of empty requests", vec![[0x0a, 0].repeat(2 << 20)]),
    ];
    for (at, (name, frames)) in shapes.iter().enumerate() {
        let (mut server, before) = filled(harness, &format!("data-{at}"))?;
        let mut session = plain::Session::to(server.address)?;
        for frame in frames {
            // The server may have ended the session; then writing to it fails.
            if session.send(frame).is_err() {
                break;
            }
        }
        let growth = server.growth_mib(before, ENOUGH_MIB, time);
        let alive = !server.process.is_over();
        // If the memory is already too much, nobody waits for the answer.
        let serves = growth <= ENOUGH_MIB && server.serves();
        held &= growth <= LIMIT_MIB && serves;
        figures.push(format!(
            "{name}: {}{growth} MiB{}",
            if growth > ENOUGH_MIB { "over " } else { "+" },
            if alive {
                ""
            } else {
                ", and the server is gone"
            }
        ));
    }
    let limit = format!("{LIMIT_MIB} MiB each, and the server still serves");
    Ok(Outcome::measured(held, figures.join("; "), limit))
}

fn unread_answers(harness: &Harness) -> Result<Outcome, String> {
    let time = Duration::from_secs(harness.amount(8, 4));
    let listing = v1::ListRequest {
        limit: 1_000,
        ..v1::ListRequest::default()
    };
    let (mut server, before) = filled(harness, "data-h2")?;
    let mut connection = h2::Connection::to(server.address, 0)?;
    let streams = harness.amount(4_000, 2_000);
    for _ in 0..streams {
        let Ok(stream) = connection.call("/palisade.v1.Locks/List") else {
            break;
        };
        if connection
            .message(stream, &listing.encode_to_vec())
            .is_err()
        {
            break;
        }
        let _ = connection.frames(Duration::ZERO);
    }
    let streamed = server.growth_mib(before, ENOUGH_MIB, time);
    drop(connection);
    drop(server);
    let (mut server_1, before) = filled(harness, "data-h1")?;
    let mut connections = Vec::new();
    let request = "GET /v1/locks?limit=1000 HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    for _ in 0..200 {
        let mut connection = http::Connection::to(server_1.address)?;
        connection.send_raw(request.as_bytes())?;
        connections.push(connection);
    }
    pause(Duration::from_millis(100));
    let pipelined = server_1.growth_mib(before, ENOUGH_MIB, time);
    let serves = pipelined <= ENOUGH_MIB && server_1.serves();
    Ok(Outcome::measured(
        streamed.max(pipelined) <= LIMIT_MIB && serves,
        format!(
            "{streams} streams of one connection: +{streamed} MiB; 200 connections: +{pipelined} MiB"
        ),
        format!("{LIMIT_MIB} MiB each, and the server still serves"),
    ))
}

/// The memory that an idle session may cost: the documented 32 KiB, and some for its connection and its task.
const LIMIT_KIB: u64 = 48;

fn idle_sessions(harness: &Harness) -> Result<Outcome, String> {
    let mut growth = [0; 3];
    let (server, _) = filled(harness, "data-plain")?;
    let waits = || (0..1_000).map(|_| plain::waiter()).collect();
    // The answers to requests that wait are remembered for retries, up to 131,072 of them.
    let mut first = plain::Session::to(server.address)?;
    first.all(vec![plain::acquire("held".to_owned(), "holder", "")])?;
    (0..140).try_for_each(|_| first.all(waits()).map(drop))?;
    let mut sessions = vec![first];
    growth[0] = growth_kib(&server, harness.amount(1_000, 200), || {
        let mut session = plain::Session::to(server.address)?;
        session.all((0..1_000).map(plain::stranger).collect())?;
        session.all(waits())?;
        sessions.push(session);
        Ok(())
    })?;
    let long = plain::frame(vec![plain::acquire("x".repeat(1_000_000), "", "")]);
    let page = plain::frame(vec![plain::listing()]);
    for (growth, message) in growth[1..].iter_mut().zip([long, page]) {
        let (server, _) = filled(harness, &format!("data-{}", message.len()))?;
        let mut connection = h2::Connection::to(server.address, 1 << 20)?;
        connection.take_any()?;
        *growth = growth_kib(&server, harness.amount(400, 200), || {
            let stream = connection.call("/palisade.v1.Locks/Session")?;
            connection.large_message(stream, &message)?;
            let is_answer = |frame: &h2::Frame| frame.kind == h2::DATA && frame.stream == stream;
            let answered = until(Duration::from_secs(60), || {
                let frames = connection.frames(Duration::from_millis(100));
                frames.is_ok_and(|frames| frames.iter().any(is_answer))
            });
            answered.then_some(()).ok_or_else(|| "no answer".to_owned())
        })?;
    }
    let [plain, frame, page] = growth;
    Ok(Outcome::measured(
        growth.into_iter().all(|kib| kib <= LIMIT_KIB),
        format!(
            "plain, after 1,000 releases and 1,000 waits: {plain} KiB each; over gRPC, after a frame of 1 MB: {frame} KiB; after \
             a page of a listing: {page} KiB"
        ),
        format!("{LIMIT_KIB} KiB each"),
    ))
}

/// The memory that each of these sessions takes. A tenth as many come before them, for which the server takes what it needs for
/// all.
fn growth_kib(
    server: &Program,
    sessions: u64,
    mut begin: impl FnMut() -> Result<(), String>,
) -> Result<u64, String> {
    let mut begin = |count| (0..count).try_for_each(|_| begin());
    begin(sessions / 10)?;
    let before = lowest_mib(server, 0, 3);
    begin(sessions)?;
    let within = before + ((LIMIT_KIB * sessions) >> 10);
    let after = lowest_mib(server, within, 15);
    Ok((after.saturating_sub(before) << 10) / sessions)
}

/// The least memory that it has within so many seconds, or some that is `enough`: for a moment it takes more, for a snapshot or
/// because the allocator has not given back yet what nobody uses.
fn lowest_mib(server: &Program, enough: u64, seconds: u64) -> u64 {
    let mut lowest = u64::MAX;
    until(Duration::from_secs(seconds), || {
        lowest = lowest.min(server.memory_mib());
        lowest <= enough
    });
    lowest
}
