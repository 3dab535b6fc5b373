//! Rows 9 and 14: gRPC calls that never end.

use std::net::SocketAddr;
use std::time::Duration;

use super::h2::{Connection, END_STREAM, Frame, GOAWAY, RST_STREAM};
use super::harness::{Harness, elapsed, now, until};
use super::http;
use super::outcome::{Attack, Outcome};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "endless-grpc-bodies",
        row: 9,
        does: "bodies that begin a message and never finish it: over HTTP/2, over HTTP/1.1, and many on one connection",
        bounds: "75 s, 1,000 connections (short: 100)",
        run: endless_grpc_bodies,
    },
    Attack {
        name: "health-watch-delays-stop",
        row: 14,
        does: "a watch of gRPC's health service is open when SIGTERM arrives",
        bounds: "10 s",
        run: health_watch_delays_stop,
    },
];

const CALL: &str = "/palisade.v1.Locks/Acquire";

/// Announces a message of 1 MiB, of which only a few bytes arrive.
const BEGINNING: &[u8] = &[0, 0, 16, 0, 0, 10, 3, b'a', b'b'];

/// Longer than any time-out of the server should be.
const PATIENCE: Duration = Duration::from_secs(75);

fn ends(frame: &Frame) -> bool {
    matches!(frame.kind, RST_STREAM | GOAWAY) || frame.stream > 0 && frame.flags & END_STREAM > 0
}

fn endless_grpc_bodies(harness: &Harness) -> Result<Outcome, String> {
    let server = harness.serve("data")?;
    let count = harness.amount(500, 50);
    let mut open = Vec::new();
    let mut old = Vec::new();
    for _ in 0..count {
        let mut connection = Connection::to(server.address, 65_535)?;
        let stream = connection.call(CALL)?;
        connection.data(stream, BEGINNING, false)?;
        open.push(connection);
        let mut connection = http::Connection::to(server.address)?;
        let head = format!(
            "POST {CALL} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/grpc\r\nte: trailers\r\n\
             transfer-encoding: chunked\r\n\r\n9\r\n",
            server.address
        );
        connection.send_raw(&[head.as_bytes(), BEGINNING, b"\r\n"].concat())?;
        old.push(connection);
    }
    let begun = now();
    let milli = Duration::from_millis(1);
    until(PATIENCE, || {
        open.retain_mut(|connection| match connection.frames(milli) {
            Ok(frames) => !frames.iter().any(ends),
            Err(_) => false,
        });
        // A refusal ends the call too.
        old.retain_mut(|connection| {
            connection
                .line(milli)
                .is_err_and(|why| why.contains("temporarily") || why.contains("would block"))
        });
        open.is_empty() && old.is_empty()
    });
    let (open_2, open_1, seconds) = (open.len(), old.len(), elapsed(begun).as_secs());
    drop((open, old));
    let (sent, grown) = one_connection(harness)?;
    Ok(Outcome::measured(
        open_2 + open_1 == 0 && grown <= LIMIT_MIB,
        format!(
            "{open_2} of {count} open over HTTP/2 and {open_1} of {count} over HTTP/1.1 after {seconds} s; \
             {sent} MiB accepted over one connection, memory +{grown} MiB"
        ),
        format!("none open after {} s, {LIMIT_MIB} MiB", PATIENCE.as_secs()),
    ))
}

/// The most memory that one connection may cost.
const LIMIT_MIB: u64 = 128;

/// Sends messages of almost 4 MiB without their last byte, on as many streams of one connection as allowed. Returns how
/// many MiB the server accepted, and its memory growth in MiB.
fn one_connection(harness: &Harness) -> Result<(usize, u64), String> {
    let mut server = harness.serve("one")?;
    let before = server.memory_mib();
    let address: SocketAddr = server.address;
    let mut connection = Connection::to(address, 65_535)?;
    let mut sent = 0;
    let piece = vec![0x0a; 16_000];
    let mut streams = Vec::new();
    let begun = now();
    let most = Duration::from_secs(harness.amount(20, 8));
    'sending: while elapsed(begun) < most && streams.len() < 200 {
        let Ok(stream) = connection.call(CALL) else {
            break;
        };
        streams.push(stream);
        // Announces 3.9 MiB.
        let announced = (39 << 20) / 10_u32;
        let head = [&[0][..], &announced.to_be_bytes()].concat();
        if connection.data(stream, &head, false).is_err() {
            break;
        }
        // Sends only the initial window of each stream: more is up to the server.
        let mut left = connection.windows().1.min(i64::from(announced) - 1) - 5;
        while left >= 16_000 {
            while connection.windows().0 < 16_000 {
                if elapsed(begun) >= most || connection.frames(Duration::from_millis(20)).is_err() {
                    break 'sending;
                }
            }
            if connection.data(stream, &piece, false).is_err() {
                break 'sending;
            }
            left -= 16_000;
            sent += 16_000;
        }
        if connection.frames(Duration::ZERO).is_err() {
            break;
        }
    }
    let grown = server.growth_mib(before, 2_048, Duration::from_secs(2));
    Ok((sent >> 20, grown))
}

fn health_watch_delays_stop(harness: &Harness) -> Result<Outcome, String> {
    let quiet = harness.serve("quiet")?.terminate()?;
    let server = harness.serve("data")?;
    let mut connection = Connection::to(server.address, 65_535)?;
    let stream = connection.call("/grpc.health.v1.Health/Watch")?;
    connection.message(stream, &[])?;
    let answered = until(Duration::from_secs(10), || {
        let data = |frame: &Frame| frame.kind == super::h2::DATA && frame.stream == stream;
        let frames = connection.frames(Duration::from_millis(10));
        frames.is_ok_and(|frames| frames.iter().any(data))
    });
    if !answered {
        return Err("the health service did not answer".to_owned());
    }
    let watched = server.terminate()?;
    // Without the watch a stop takes some milliseconds; with the fault it takes the whole drain time of 5 s.
    let limit = quiet * 2 + Duration::from_secs(2);
    Ok(Outcome::measured(
        watched < limit,
        format!(
            "SIGTERM took {:.2} s, without the watch {:.2} s",
            watched.as_secs_f64(),
            quiet.as_secs_f64()
        ),
        "twice the time without, plus 2 s",
    ))
}
