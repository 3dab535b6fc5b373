//! Benchmarks of the core: the machine, its timers, the fence's decision.
//!
//! ```text
//! cargo bench -p palisade-core --bench machine
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement ends by panicking"
)]

use std::time::Instant;

use divan::{Bencher, black_box};
use palisade_core::fence::{FenceState, Op, Pass, Rule};
use palisade_core::machine::Expiry;
use palisade_core::{
    Acquire, Away, ClientId, Command, Effect, Entry, GrantRef, LeaseKey, LockName, Machine,
    RequestId, Timestamp, Token, Ttl, Under, WallTime,
};

fn main() {
    divan::main();
}

/// A machine, and the time on it.
struct Bench {
    machine: Machine,
    effects: Vec<Effect>,
    nanos: u64,
}

impl Bench {
    /// With this many locks held, each under a lease of its own.
    fn holding(locks: u64, ttl_ms: u64) -> Bench {
        let mut bench = Bench {
            machine: Machine::new(7),
            effects: Vec::new(),
            nanos: 1,
        };
        for number in 0..locks {
            let lock = LockName::new(&format!("held/{number}")).unwrap();
            bench.apply(acquire(lock, number, ttl_ms));
        }
        bench
    }

    fn apply(&mut self, command: Command) {
        self.nanos += 1_000;
        let entry = Entry {
            at: Timestamp::from_nanos(self.nanos),
            wall: WallTime::default(),
            by: palisade_core::Principal::ANONYMOUS,
            command,
        };
        black_box(self.machine.apply(entry, &mut self.effects));
        self.effects.clear();
    }
}

fn key(number: u64) -> LeaseKey {
    LeaseKey::from_bytes(u128::from(number + 1).to_be_bytes())
}

fn acquire(lock: LockName, number: u64, ttl_ms: u64) -> Command {
    Command::Acquire(Acquire::new(
        lock,
        ClientId::new(&format!("client-{number}")).unwrap(),
        Under::New {
            key: key(number),
            ttl: Ttl::from_millis(ttl_ms).unwrap(),
        },
        Some(RequestId::from_bytes(u128::from(number).to_be_bytes())),
    ))
}

fn grant(lock: &LockName, number: u64) -> GrantRef {
    GrantRef {
        lock: lock.clone(),
        key: key(number),
        token: None,
    }
}

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// Acquire and release of one lock beside this many that are held.
#[divan::bench(args = [0, 1_000, 1_000_000])]
fn apply_pair(bencher: Bencher<'_, '_>, held: u64) {
    let mut bench = Bench::holding(held, DAY_MS);
    let lock = LockName::new("orders").unwrap();
    let mut number = held;
    bencher.bench_local(move || {
        number += 1;
        bench.apply(acquire(lock.clone(), number, 10_000));
        bench.apply(Command::Release(grant(&lock, number)));
    });
}

/// Renewals of this many leases, one after the other.
#[divan::bench(args = [1_000, 1_000_000])]
fn apply_renew(bencher: Bencher<'_, '_>, held: u64) {
    let mut bench = Bench::holding(held, DAY_MS);
    let locks: Vec<LockName> = (0..held.min(10_000))
        .map(|number| LockName::new(&format!("held/{number}")).unwrap())
        .collect();
    let mut turn = 0;
    bencher.bench_local(move || {
        turn = (turn + 1) % locks.len();
        let grant = grant(&locks[turn], turn as u64);
        bench.apply(Command::Renew { grant, ttl: None });
    });
}

/// The timing wheel alone, as far as it can be alone: 10,000 leases end in one entry.
#[divan::bench]
fn ten_thousand_leases_end(bencher: Bencher<'_, '_>) {
    bencher
        .with_inputs(|| Bench::holding(10_000, 1_000))
        .bench_local_values(|mut bench| {
            bench.nanos += 2_000_000_000;
            bench.apply(Command::Expire);
            bench
        });
}

/// A million leases end at one instant: prints the longest entry and the number of entries, under several bounds.
#[divan::bench(args = [512, 1_024, 2_048, 4_096], sample_count = 1, sample_size = 1)]
fn a_million_leases_end_together(bencher: Bencher<'_, '_>, alone: u32) {
    let mut bench = Bench::holding(1_000_000, 60_000);
    bench.apply(Command::Grace(Away::Paused(palisade_core::limits::STALL)));
    bench.nanos += 61_000_000_000;
    bench.machine.set_expiry(Expiry { alone, beside: 16 });
    bencher.bench_local(|| {
        let mut times = Vec::new();
        while bench.machine.next_due().is_some() {
            #[expect(clippy::disallowed_methods, reason = "a measurement reads a clock")]
            let start = Instant::now();
            bench.apply(Command::Expire);
            times.push(start.elapsed());
        }
        let first = times[0];
        times.sort_unstable();
        let longest = &times[times.len().saturating_sub(3)..];
        println!(
            "{alone}: {} entries, first {first:?}, longest {longest:?}",
            times.len()
        );
    });
}

/// The wheel turned by a millisecond, with a million timers in it and none of them due.
#[divan::bench]
fn a_millisecond_passes(bencher: Bencher<'_, '_>) {
    let mut bench = Bench::holding(1_000_000, DAY_MS);
    bencher.bench_local(move || {
        bench.nanos += 1_000_000;
        bench.apply(Command::Expire);
        black_box(bench.machine.next_due());
    });
}

/// The rule itself: a write under the highest token.
#[divan::bench]
fn fence_decides(bencher: Bencher<'_, '_>) {
    let token = Token::new(42).unwrap();
    let state = FenceState::floor(token);
    bencher.bench_local(|| {
        Rule::CLAIM.decide(
            black_box(&state),
            black_box(Pass::new(token)),
            Op::Write(None),
        )
    });
}
