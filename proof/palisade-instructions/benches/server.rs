//! The hot path, step by step, so often that starting up does not count: `server STEP TIMES`.
//!
//! `cargo xtask bench instructions` runs it under callgrind, twice with different numbers of times,
//! and compares the instructions of one turn with those in `bench/instructions.ARCH.txt`. Everything
//! here is the same in every run: no clock, no random number, no thread.
//!
//! ```text
//!   wire-in ──► apply-pair · apply-renew ──► log-encode ──► wire-out
//!               └───────────── order-pair ─────────────┘
//! ```
//!
//! `share-pair` and `share-crowd` are `apply-pair` for a reader beside others, and `order-share` is `order-pair` for one.
//! A turn is one acquire and one release, or one renewal. `order-pair` is the whole orderer, with a batch
//! for each of the two. Without arguments it names its steps.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement ends by panicking"
)]

use std::hint::black_box;

use palisade_core::{
    Acquire, ClientId, Command, Effect, Entry, GrantRef, LeaseKey, LockMode, LockName, Machine,
    RequestId, Span, Timestamp, Token, Ttl, Under, WallTime,
};
use palisade_instructions::Step;
use palisade_pipeline::Request;
use palisade_pipeline::codec::{encode_command, encode_head};
use palisade_pipeline::orderer::{Moment, Orderer, ReplyAddress};
use palisade_proto::borrowed;
use palisade_proto::frames::{self, FrameBuilder};
use palisade_proto::v1 as pb;

const STEPS: [(&str, Step); 9] = [
    ("wire-in", wire_in),
    ("apply-pair", apply_pair),
    ("apply-renew", apply_renew),
    ("share-pair", share_pair),
    ("share-crowd", share_crowd),
    ("log-encode", log_encode),
    ("order-pair", order_pair),
    ("order-share", order_share),
    ("wire-out", wire_out),
];

fn main() {
    palisade_instructions::run(&STEPS);
}

fn key(number: u64) -> LeaseKey {
    LeaseKey::from_bytes(u128::from(number + 1).to_be_bytes())
}

fn acquire(lock: &LockName, number: u64) -> Command {
    Command::Acquire(wish(lock, number, key(number)))
}

fn wish<K>(lock: &LockName, number: u64, key: K) -> Acquire<K> {
    Acquire::new(
        lock.clone(),
        ClientId::new("bench-7f3a-12-40").unwrap(),
        Under::New {
            key,
            ttl: Ttl::from_millis(10_000).unwrap(),
        },
        Some(RequestId::from_bytes(u128::from(number).to_be_bytes())),
    )
}

fn release(lock: &LockName, number: u64) -> Command {
    Command::Release(grant(lock, number))
}

fn grant(lock: &LockName, number: u64) -> GrantRef {
    GrantRef {
        lock: lock.clone(),
        key: key(number),
        token: Some(Token::new(number + 1).unwrap()),
    }
}

/// A machine with a thousand locks held, and its next turn's number.
struct Held {
    machine: Machine,
    effects: Vec<Effect>,
    locks: Vec<LockName>,
}

impl Held {
    fn new() -> Held {
        let locks = (0..1_000).map(|number| LockName::new(&format!("bench/7f3a/{number}/0")));
        let mut held = Held {
            machine: Machine::new(7),
            effects: Vec::new(),
            locks: locks.map(Result::unwrap).collect(),
        };
        for number in 0..1_000 {
            let command = acquire(&held.locks[number as usize], number);
            held.apply(number, command);
        }
        held
    }

    fn apply(&mut self, turn: u64, command: Command) {
        let entry = Entry {
            at: Timestamp::from_nanos(turn * 1_000),
            wall: WallTime::default(),
            by: palisade_core::Principal::ANONYMOUS,
            command,
        };
        black_box(self.machine.apply(entry, &mut self.effects));
        self.effects.clear();
    }
}

fn apply_pair(times: u64) {
    let mut held = Held::new();
    let lock = LockName::new("bench/7f3a/12/40").unwrap();
    for number in 1_000..1_000 + times {
        held.apply(number, acquire(&lock, number));
        held.apply(number, release(&lock, number));
    }
}

fn apply_renew(times: u64) {
    let mut held = Held::new();
    for number in 0..times {
        let lock = number % 1_000;
        let grant = grant(&held.locks[lock as usize], lock);
        held.apply(1_000 + number, Command::Renew { grant, ttl: None });
    }
}

fn share_pair(times: u64) {
    share(1_000, times);
}

/// As `share_pair`, with a hundred times as many readers: a turn costs the same.
fn share_crowd(times: u64) {
    share(100_000, times);
}

/// A reader comes and goes, beside others.
fn share(readers: u64, times: u64) {
    let mut held = Held::new();
    let lock = LockName::new("bench/7f3a/12/40").unwrap();
    let read = |number| {
        Command::Acquire(Acquire {
            mode: LockMode::Shared,
            ..wish(&lock, number, key(number))
        })
    };
    for number in 1_000..1_000 + readers {
        held.apply(number, read(number));
    }
    for number in 1_000 + readers..1_000 + readers + times {
        held.apply(number, read(number));
        held.apply(number, release(&lock, number));
    }
}

fn log_encode(times: u64) {
    let lock = LockName::new("bench/7f3a/12/40").unwrap();
    let pair = [acquire(&lock, 3), release(&lock, 3)];
    let mut out = Vec::new();
    for number in 0..times {
        out.clear();
        encode_head(&mut out, Timestamp::from_nanos(number), WallTime::default());
        for command in black_box(&pair) {
            encode_command(&mut out, command);
        }
        black_box(&out);
    }
}

/// A caller that stays until it is answered.
struct Caller;

impl ReplyAddress for Caller {
    fn session(&self) -> Option<u64> {
        None
    }

    fn is_gone(&self) -> bool {
        false
    }
}

fn order_pair(times: u64) {
    order(Held::new(), LockMode::Exclusive, 1_000..1_000 + times);
}

/// As `order_pair`, for a reader beside another one.
fn order_share(times: u64) {
    let mut held = Held::new();
    let lock = LockName::new("bench/7f3a/12/40").unwrap();
    let first = Command::Acquire(Acquire {
        mode: LockMode::Shared,
        ..wish(&lock, 1_000, key(1_000))
    });
    held.apply(1_000, first);
    order(held, LockMode::Shared, 1_001..1_001 + times);
}

fn order(held: Held, mode: LockMode, numbers: std::ops::Range<u64>) {
    let mut orderer = Orderer::new(held.machine, false);
    let lock = LockName::new("bench/7f3a/12/40").unwrap();
    for number in numbers {
        let asks = [
            Request::Acquire(Acquire {
                mode,
                ..wish(&lock, number, ())
            }),
            Request::Release(grant(&lock, number)),
        ];
        for request in asks {
            let now = Moment {
                at: Timestamp::from_nanos(number * 1_000),
                wall: WallTime::default(),
                worked: Span::ZERO,
            };
            orderer.begin(now, Ok(()));
            orderer.request(request, Caller, || key(number));
            black_box(orderer.entry().unwrap());
            let released = orderer.committed();
            black_box((released.answers.count(), released.events.count()));
        }
    }
}

fn wire_in(times: u64) {
    let lock = "bench/7f3a/12/40".to_owned();
    let acquire = pb::request::Operation::Acquire(pb::AcquireRequest {
        lock: lock.clone(),
        client_id: "bench-7f3a-12-40".to_owned(),
        lease_duration_ms: 10_000,
        request_id: vec![9; 16],
        ..Default::default()
    });
    let release = pb::request::Operation::Release(pb::ReleaseRequest {
        lock,
        lock_token: vec![7; 16],
        fencing_token: 123_456,
    });
    let mut bytes = Vec::new();
    let frame = FrameBuilder::at_end(&mut bytes);
    for (id, operation) in (1..).zip([acquire, release]) {
        let operation = Some(operation);
        frame.put(&mut bytes, &pb::Request { id, operation });
    }
    frame.close(&mut bytes);
    for _ in 0..times {
        let frame = frames::first(black_box(&bytes), 1 << 20).unwrap().unwrap();
        let operations = frames::check_count(frame, 4_096).unwrap();
        black_box(borrowed::operations(frame, operations).unwrap());
    }
}

fn wire_out(times: u64) {
    let granted = pb::Granted {
        fencing_token: 123_456,
        lock_token: vec![7; 16],
        lease_duration_ms: 10_000,
        ..Default::default()
    };
    let outcomes = [
        pb::reply::Outcome::Granted(granted),
        pb::reply::Outcome::Released(pb::Released::default()),
    ];
    let replies = outcomes.map(|outcome| pb::Reply {
        id: 1,
        outcome: Some(outcome),
    });
    let mut out = Vec::new();
    for _ in 0..times {
        out.clear();
        let frame = FrameBuilder::at_end(&mut out);
        for reply in black_box(&replies) {
            frame.put(&mut out, reply);
        }
        frame.close(&mut out);
        black_box(&out);
    }
}
