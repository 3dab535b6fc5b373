//! The holder's deadline as data for every client: `vectors/deadline.json`, described in `vectors/README.md`.
//!
//! `PALISADE_BLESS=1 cargo test -p palisade-core deadlines` writes the file again.

use std::path::Path;

use palisade_core::holder::Caution;
use palisade_core::time::{Span, Timestamp};

/// Every client counts on clocks that run at most this wrong.
const DRIFT_PPM: u32 = 10_000;

/// A lease and the times in an answer, in milliseconds: how long the lease lasts, how long the request waited, and for
/// how long the grant is good.
const ANSWERS: [[u64; 3]; 11] = [
    [100, 0, 100],
    [101, 0, 101],
    [10_000, 0, 10_000],
    // A repetition: some of the time is over.
    [10_000, 0, 9_000],
    [10_000, 0, 1],
    [10_000, 0, 0],
    [3_000, 7_000, 10_000],
    // Longer than the lease lasts.
    [2_000, 2_500, 4_500],
    [15_000, 30_000, 45_000],
    [86_400_000, 0, 86_400_000],
    [86_400_000, 86_400_000, 172_800_000],
];

/// The machine's first nanosecond, a round number, and a year and more with every digit in use.
const SENT_NS: [u64; 3] = [0, 100_000_000_000, 34_567_891_234_567_891];

const MARGINS_MS: [u64; 3] = [0, 250, 86_400_000];

fn lines() -> Vec<String> {
    let mut lines = Vec::new();
    for [lease, waited, valid] in ANSWERS {
        for sent in SENT_NS {
            for margin in MARGINS_MS {
                let caution = Caution::new(DRIFT_PPM, Span::from_millis(margin)).unwrap();
                let deadline =
                    caution.deadline(Timestamp::from_nanos(sent), Span::from_millis(valid));
                lines.push(format!(
                    "{{\"sent_ns\": {sent}, \"lease_duration_ms\": {lease}, \"waited_ms\": {waited}, \
                     \"valid_for_ms\": {valid}, \"drift_ppm\": {DRIFT_PPM}, \"margin_ms\": {margin}, \
                     \"deadline_ns\": {}}}",
                    deadline.as_nanos()
                ));
            }
        }
    }
    lines
}

#[test]
fn the_vectors_are_what_the_deadline_is() {
    let json = format!("[\n{}\n]\n", lines().join(",\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/deadline.json");
    if std::env::var_os("PALISADE_BLESS").is_some() {
        std::fs::write(&path, &json).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == json,
        "vectors/deadline.json is out of date: run with PALISADE_BLESS=1"
    );
}

/// The example of docs/reference/protocol.md is among them.
#[test]
fn the_example_of_the_protocol_is_a_vector() {
    let example = "\"sent_ns\": 100000000000, \"lease_duration_ms\": 3000, \"waited_ms\": 7000, \
                   \"valid_for_ms\": 10000, \"drift_ppm\": 10000, \"margin_ms\": 0, \"deadline_ns\": 109801980198}";
    assert!(lines().iter().any(|line| line.contains(example)));
}
