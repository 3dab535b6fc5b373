//! The cost of the log's encoding.
//!
//! ```text
//! cargo bench -p palisade-server --bench codec
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement ends by panicking"
)]

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use palisade_core::{
    Acquire, ClientId, Command, GrantRef, LeaseKey, LockName, RequestId, Timestamp, Token, Ttl,
    Under, WallTime,
};
use palisade_pipeline::codec::{decode_batch, encode_command, encode_head};

fn main() {
    divan::main();
}

/// A batch as 64 clients make it: an acquire and a release each.
fn commands() -> Vec<Command> {
    let pair = |number: u64| {
        let lock = LockName::new(&format!("orders/{number}")).unwrap();
        let key = LeaseKey::from_bytes([7; 16]);
        let acquire = Acquire::new(
            lock.clone(),
            ClientId::new(&format!("client-{number}")).unwrap(),
            Under::New {
                key,
                ttl: Ttl::from_millis(10_000).unwrap(),
            },
            Some(RequestId::from_bytes([9; 16])),
        );
        let token = Some(Token::new(number + 1).unwrap());
        [
            Command::Acquire(acquire),
            Command::Release(GrantRef { lock, key, token }),
        ]
    };
    (0..64).flat_map(pair).collect()
}

fn encode(out: &mut Vec<u8>, commands: &[Command]) {
    encode_head(out, Timestamp::from_nanos(1), WallTime::default());
    for command in commands {
        encode_command(out, command);
    }
}

#[divan::bench]
fn encode_batch(bencher: Bencher<'_, '_>) {
    let commands = commands();
    let mut out = Vec::new();
    bencher
        .counter(ItemsCount::new(commands.len()))
        .bench_local(|| {
            out.clear();
            encode(&mut out, black_box(&commands));
            out.len()
        });
}

#[divan::bench]
fn decode_a_batch(bencher: Bencher<'_, '_>) {
    let commands = commands();
    let mut out = Vec::new();
    encode(&mut out, &commands);
    bencher
        .counter(ItemsCount::new(commands.len()))
        .bench_local(|| {
            let mut count = 0;
            decode_batch(black_box(&out), |entry| {
                black_box(entry);
                count += 1;
            })
            .unwrap();
            count
        });
}
