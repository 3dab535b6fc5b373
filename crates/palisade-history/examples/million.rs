//! The costs of a history of many grants: time to write, bytes on the disk, memory, and the time of questions.
//!
//! ```text
//! cargo run --release -p palisade-history --example million -- [GRANTS]
//! ```

use std::fs;
use std::time::{Duration, Instant};

use palisade_core::{
    Acquire, ClientId, Command, Effect, Entry, Event, GrantRef, LeaseKey, LockName, Machine,
    Principal, RequestId, Timestamp, Ttl, Under, WallTime,
};
use palisade_history::{Bounds, GapReason, Ledger, LedgerOwner, Query};

type Failure = Box<dyn std::error::Error>;

/// Other locks, each with its share of the grants; half of all grants are of one lock.
const OTHERS: u64 = 1_000;
const HOT: &str = "jobs/nightly-report";

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn main() -> Result<(), Failure> {
    let grants = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 1_000_000_u64,
    };
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("history.redb");
    let owner = LedgerOwner {
        authority: "one".into(),
        incarnation: "one".into(),
    };
    let mut ledger = Ledger::open(&file, &owner, Bounds::DEFAULT)?;
    let mut machine = Machine::new(1);
    let (mut writing, mut events) = (Duration::ZERO, Vec::new());
    for n in 0..grants {
        pair(&mut machine, n, &mut events)?;
        if events.len() >= 128 || n + 1 == grants {
            let begun = Instant::now();
            ledger.take(&events, GapReason::LogDropped, n);
            events.clear();
            if ledger.is_full() || n + 1 == grants {
                ledger.commit(n, n + 1 == grants)?;
            }
            writing += begun.elapsed();
        }
    }
    let size = fs::metadata(&file)?.len();
    println!("{grants} grants and their ends");
    println!(
        "written in      {:.1} s, {:.0} a second",
        writing.as_secs_f64(),
        grants as f64 / writing.as_secs_f64()
    );
    println!("bytes of rows   {} each", ledger.bytes() / grants.max(1));
    println!(
        "size of file    {} MiB, {:.2} times the rows",
        size >> 20,
        size as f64 / ledger.bytes() as f64
    );
    println!(
        "memory at most  {} MiB, the machine included",
        peak()? >> 10
    );
    let reader = ledger.reader();
    let of = |lock: &str, token| Query {
        lock: Some(lock.to_owned()),
        token,
        ..Query::default()
    };
    for (what, query) in [
        ("the latest 20 of the hot lock", of(HOT, None)),
        ("the latest 20 of another", of("jobs/other-7", None)),
        ("an early token of another", of("jobs/other-7", Some(16))),
        ("an early token of the hot lock", of(HOT, Some(1))),
        ("the latest 20 of all", Query::default()),
        (
            "another client's of the hot lock, first page",
            Query {
                client: Some("nobody".into()),
                ..of(HOT, None)
            },
        ),
    ] {
        let (mut query, begun, mut rows, mut pages) = (query, Instant::now(), 0, 0);
        loop {
            let page = reader.page(&query, 20)?;
            (rows, pages) = (rows + page.rows.len(), pages + 1);
            query.after = page.next;
            // A client that had none is asked for on one page only.
            if rows > 0 || query.after.is_none() || query.client.is_some() {
                break;
            }
        }
        let took = begun.elapsed().as_secs_f64() * 1_000.0;
        println!("{took:8.2} ms     {what}: {rows} rows, {pages} pages");
    }
    Ok(())
}

/// A grant and its release.
fn pair(machine: &mut Machine, n: u64, events: &mut Vec<Event>) -> Result<(), Failure> {
    let lock = match n % 2 {
        0 => LockName::new(HOT)?,
        _ => LockName::new(&format!("jobs/other-{}", n / 2 % OTHERS))?,
    };
    let key = LeaseKey::from_bytes(u128::from(n + 1).to_be_bytes());
    let under = Under::New {
        key,
        ttl: Ttl::from_millis(10_000)?,
    };
    let request = RequestId::from_bytes(u128::from(n + 1).to_be_bytes());
    let client = ClientId::new("worker-3.example.com")?;
    let acquire = Acquire::new(lock.clone(), client, under, Some(request));
    let release = GrantRef {
        lock,
        key,
        token: None,
    };
    let mut effects = Vec::new();
    for command in [Command::Acquire(acquire), Command::Release(release)] {
        let entry = Entry {
            at: Timestamp::from_millis(n),
            wall: WallTime(1_779_530_400_000 + n),
            by: Principal::from_bytes([7; 16]),
            command,
        };
        machine.apply(entry, &mut effects);
    }
    events.extend(effects.into_iter().filter_map(|effect| match effect {
        Effect::Event(event) => Some(event),
        Effect::Settled { .. } => None,
    }));
    Ok(())
}

/// The most memory that this process had, in KiB.
fn peak() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.unwrap_or("0").parse()?)
}
