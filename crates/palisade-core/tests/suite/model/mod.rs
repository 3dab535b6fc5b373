//! The machine against the rules written down once more, on random scripts.
//!
//! Every line of a script is applied to both; answers, settled requests and events must be equal, in
//! order. On the way the machine is restored from its own records, and in the end replayed from what
//! it said must be logged.

mod reference;
mod script;
use std::collections::BTreeMap;

use palisade_core::machine::{Applied, Expiry, Record};
use palisade_core::{
    Away, Command, Delays, Effect, Entry, GrantRef, LockMode, LockName, Machine, Outcome,
    Principal, Timestamp, invariants,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use reference::Reference;
use script::{Line, scripts};

const SEED: u64 = 1;
const OTHER_SEED: u64 = 0xdead_beef;

fn records(machine: &Machine) -> Vec<Record> {
    machine.records().collect()
}

/// What the holders of exclusive grants say about themselves.
fn values(machine: &Machine) -> BTreeMap<LockName, Option<Box<str>>> {
    let records = machine.records();
    let grants = records.filter_map(|record| match record {
        Record::Grant(grant) => Some((grant.lock, grant.metadata)),
        _ => None,
    });
    grants.collect()
}

fn apply(machine: &mut Machine, entry: Entry) -> (Applied, Vec<Effect>) {
    let mut effects = Vec::new();
    let applied = machine.apply(entry, &mut effects);
    (applied, effects)
}

/// Something that differs, told with where.
fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    got: &T,
    expected: &T,
) -> Result<(), TestCaseError> {
    if got == expected {
        return Ok(());
    }
    Err(TestCaseError::fail(format!(
        "{what}\n     got {got:?}\nexpected {expected:?}"
    )))
}

/// Plays a script to a machine and to the reference, and to a copy of the machine that was restored at
/// line `cut`, all of them under one rule of expiry. `bend` may spoil an entry before the machine gets it: the
/// control arms do.
fn play(lines: &[Line], cut: usize, expiry: Expiry, bend: Bend) -> Result<(), TestCaseError> {
    let mut machine = Machine::new(SEED);
    machine.set_expiry(expiry);
    let mut restored = None;
    let mut reference = Reference::new(expiry);
    let mut now = Timestamp::ZERO;
    let mut log = Vec::new();
    for (n, line) in lines.iter().enumerate() {
        if n == cut {
            let mut copy = Machine::restore(OTHER_SEED, machine.records())
                .map_err(|corrupt| TestCaseError::fail(corrupt.to_string()))?;
            copy.set_expiry(expiry);
            invariants::check(&copy)
                .map_err(|broken| TestCaseError::fail(format!("restored: not so: {broken}")))?;
            same(
                "records after a restore",
                &records(&copy),
                &records(&machine),
            )?;
            restored = Some(copy);
        }
        let entry = line.entry(n, now, &reference);
        now = entry.at;
        let at = format!("line {n}: {entry:?}");
        let mut before = reference.clone();
        before.last = now;
        let (outcome, effects) = reference.step(entry.clone());

        let bent = bend(entry);
        let (applied, caused) = apply(&mut machine, bent.clone());
        same(&at, &applied.outcome, &outcome)?;
        same(&at, &caused, &effects)?;
        invariants::check(&machine)
            .map_err(|broken| TestCaseError::fail(format!("{at}: not so: {broken}")))?;
        same(
            &format!("{at}: what holders say"),
            &values(&machine),
            &reference.values(),
        )?;
        if !applied.changed {
            same(
                &format!("{at}: changed, and said it did not"),
                &reference,
                &before,
            )?;
        }
        if let Some(copy) = &mut restored {
            same(
                &format!("{at}, restored"),
                &apply(copy, bent.clone()),
                &(applied.clone(), caused),
            )?;
        }
        if applied.changed {
            log.push(bent);
        }
    }
    finish(machine, restored, log, expiry, now)
}

/// The restored copy and a replay of the log end like the machine itself.
fn finish(
    mut machine: Machine,
    restored: Option<Machine>,
    log: Vec<Entry>,
    expiry: Expiry,
    at: Timestamp,
) -> Result<(), TestCaseError> {
    if let Some(copy) = &restored {
        same("the restored machine", &records(copy), &records(&machine))?;
    }
    let mut replayed = Machine::new(OTHER_SEED);
    replayed.set_expiry(expiry);
    for entry in log {
        apply(&mut replayed, entry);
    }
    // What is not logged may still have moved the clock; the next entry moves it for both.
    let leap = Entry {
        at,
        wall: crate::world::wall(at),
        by: palisade_core::Principal::ANONYMOUS,
        command: Command::Leap { by: 0 },
    };
    apply(&mut machine, leap.clone());
    apply(&mut replayed, leap);
    same(
        "the replayed machine",
        &records(&replayed),
        &records(&machine),
    )
}

/// The rule of old logs, that of new ones, and bounds that the scripts reach.
fn expiries() -> impl Strategy<Value = Expiry> {
    let tight = (1_u32..4, 1_u32..3).prop_map(|(alone, beside)| Expiry::AtMost { alone, beside });
    prop_oneof![Just(Expiry::Whole), Just(Expiry::CURRENT), tight]
}

proptest! {
    #![proptest_config(Config { cases: 3_000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn the_machine_agrees_with_the_rules(lines in scripts(), cut in 0_usize..80, expiry in expiries()) {
        play(&lines, cut, expiry, |entry| entry)?;
    }
}

/// What a machine gets instead of the entry that the reference gets.
type Bend = fn(Entry) -> Entry;

/// The entry, with one kind of absence taken for another.
fn away(entry: Entry, is: Away, taken_for: Away) -> Entry {
    let command = match entry.command {
        Command::Grace(away) if away == is => Command::Grace(taken_for),
        other => other,
    };
    Entry { command, ..entry }
}

/// The entry, with every grant asked for in one mode.
fn in_mode(entry: Entry, mode: LockMode) -> Entry {
    let command = match entry.command {
        Command::Acquire(acquire) => Command::Acquire(palisade_core::Acquire { mode, ..acquire }),
        other => other,
    };
    Entry { command, ..entry }
}

/// The entry, with other delays.
fn delays(entry: Entry, bent: fn(Delays) -> (u64, u64)) -> Entry {
    let command = match entry.command {
        Command::Acquire(acquire) => {
            let (lock_delay, at_least_for) = bent(acquire.delays);
            let delays = Delays::new(lock_delay, at_least_for).unwrap();
            Command::Acquire(palisade_core::Acquire { delays, ..acquire })
        }
        other => other,
    };
    Entry { command, ..entry }
}

/// The entry, as if another principal had asked.
fn asked_by(entry: Entry, which: fn(&Command) -> bool, by: Principal) -> Entry {
    match which(&entry.command) {
        true => Entry { by, ..entry },
        false => entry,
    }
}

/// How many scripts it takes until a machine whose entries are bent is told from the rules.
fn scripts_until_caught(bend: Bend) -> Option<u32> {
    let config = Config {
        cases: 3_000,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let tried = std::cell::Cell::new(0);
    let result = runner.run(&(scripts(), 0_usize..80), |(lines, cut)| {
        tried.set(tried.get() + 1);
        play(&lines, cut, Expiry::CURRENT, bend)
    });
    match result {
        Err(TestError::Fail(..)) => Some(tried.get()),
        Err(TestError::Abort(why)) => panic!("{why}"),
        Ok(()) => None,
    }
}

/// Control arms: each of these machines breaks one rule, and the model test must notice.
#[test]
fn a_planted_deviation_is_found() {
    let deviations: [(&str, Bend); 23] = [
        ("expiry one nanosecond late", |entry| Entry {
            at: Timestamp::from_nanos(entry.at.as_nanos().saturating_sub(1)),
            ..entry
        }),
        ("expiry one nanosecond early", |entry| Entry {
            at: Timestamp::from_nanos(entry.at.as_nanos() + 1),
            ..entry
        }),
        ("renewals do nothing", |entry| match entry.command {
            Command::Renew { .. } => Entry {
                command: Command::Expire,
                ..entry
            },
            _ => entry,
        }),
        ("a value is announced and not kept", |entry| {
            let command = match entry.command {
                Command::Proclaim { grant, .. } => Command::Proclaim {
                    grant,
                    value: "".into(),
                },
                other => other,
            };
            Entry { command, ..entry }
        }),
        ("metadata is lost", |entry| {
            let command = match entry.command {
                Command::Acquire(acquire) => Command::Acquire(palisade_core::Acquire {
                    metadata: None,
                    ..acquire
                }),
                other => other,
            };
            Entry { command, ..entry }
        }),
        ("release and renew forget the token", |entry| {
            let strip = |grant: GrantRef| GrantRef {
                token: None,
                ..grant
            };
            let command = match entry.command {
                Command::Release(grant) => Command::Release(strip(grant)),
                Command::Renew { grant, ttl } => Command::Renew {
                    grant: strip(grant),
                    ttl,
                },
                other => other,
            };
            Entry { command, ..entry }
        }),
        ("request ids are forgotten", |entry| match entry.command {
            Command::Acquire(acquire) if acquire.wait.is_none() => {
                let acquire = palisade_core::Acquire {
                    request: None,
                    ..acquire
                };
                Entry {
                    command: Command::Acquire(acquire),
                    ..entry
                }
            }
            _ => entry,
        }),
        ("a stall drops the waiters", |entry| {
            away(entry, Away::Stalled, Away::Restarted)
        }),
        ("a new leader drops the waiters", |entry| {
            away(entry, Away::Led, Away::Restarted)
        }),
        ("a new leader grants to orphans", |entry| {
            away(entry, Away::Led, Away::Stalled)
        }),
        ("readers are writers", |entry| {
            in_mode(entry, LockMode::Exclusive)
        }),
        ("writers are readers", |entry| {
            in_mode(entry, LockMode::Shared)
        }),
        ("principals are not told apart", |entry| {
            asked_by(entry, |_| true, Principal::ANONYMOUS)
        }),
        ("anybody supersedes by a client id", |entry| {
            let acquires = |command: &Command| matches!(command, Command::Acquire(_));
            asked_by(entry, acquires, Principal::ANONYMOUS)
        }),
        ("anybody abandons by a request id", |entry| {
            let abandons = |command: &Command| matches!(command, Command::Abandon(_));
            asked_by(entry, abandons, Principal::ANONYMOUS)
        }),
        (
            "permits are readers, without a bound",
            |entry| match entry.command {
                Command::Acquire(ref acquire) if acquire.mode.permits().is_some() => {
                    in_mode(entry, LockMode::Shared)
                }
                _ => entry,
            },
        ),
        (
            "a semaphore is never made smaller or larger",
            |entry| match entry.command {
                Command::Resize { .. } => Entry {
                    command: Command::Expire,
                    ..entry
                },
                _ => entry,
            },
        ),
        ("lock-delays are forgotten", |entry| {
            delays(entry, |given| (0, given.at_least_for().as_millis()))
        }),
        ("what a grant reserved is forgotten", |entry| {
            delays(entry, |given| (given.lock_delay().as_millis(), 0))
        }),
        ("a delay is taken for a reservation", |entry| {
            delays(entry, |given| {
                let at_least = given.at_least_for().max(given.lock_delay());
                (0, at_least.as_millis())
            })
        }),
        ("abandoning only withdraws", |entry| match entry.command {
            Command::Abandon(request) => Entry {
                command: Command::Withdraw(request),
                ..entry
            },
            _ => entry,
        }),
        ("a leap falls short by one", |entry| match entry.command {
            Command::Leap { by } => Entry {
                command: Command::Leap {
                    by: by.saturating_sub(1),
                },
                ..entry
            },
            _ => entry,
        }),
        ("the wall clock moves a grant", |entry| Entry {
            wall: crate::world::wall(Timestamp::ZERO),
            ..entry
        }),
    ];
    for (what, bend) in deviations {
        assert!(
            scripts_until_caught(bend).is_some(),
            "nobody noticed: {what}"
        );
    }
}

/// The other half of the control: scripts reach what they are meant to reach.
#[test]
fn the_scripts_reach_every_outcome() {
    let config = Config {
        cases: 3_000,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let seen = std::cell::RefCell::new(std::collections::BTreeSet::new());
    runner
        .run(&scripts(), |lines| {
            let (mut reference, mut now) = (Reference::new(Expiry::CURRENT), Timestamp::ZERO);
            for (n, line) in lines.iter().enumerate() {
                let entry = line.entry(n, now, &reference);
                now = entry.at;
                let (outcome, effects) = reference.step(entry);
                seen.borrow_mut().insert(kind(&outcome));
                for effect in effects {
                    if let Effect::Settled { outcome, .. } = effect {
                        seen.borrow_mut()
                            .insert(format!("settled: {}", kind(&outcome)));
                    }
                }
            }
            Ok(())
        })
        .unwrap();
    let seen = seen.into_inner();
    let expected = [
        "Abandoned",
        "Delayed",
        "Done",
        "Ended Expired",
        "Ended Released",
        "Ended Revoked",
        "Ended Superseded",
        "Granted",
        "Granted permits",
        "Granted shared",
        "Held",
        "Invalid DelaysOfShared",
        "Invalid LeaseKeyInUse",
        "Invalid RequestReused",
        "Invalid Permits",
        "Invalid PermitsDiffer",
        "Invalid PermitsHeld",
        "Invalid Ttl",
        "Invalid ProclaimOfShared",
        "Invalid Upgrade",
        "Invalid TtlDiffers",
        "NotHeld",
        "Queued",
        "QueueFull Client",
        "QueueFull Lock",
        "Released",
        "Released closed",
        "Proclaimed",
        "Renewed",
        "Revoked",
        "Stale",
        "TokensExhausted",
        "TooManyLocks",
        "WrongPrincipal",
        "settled: Abandoned",
        "settled: Delayed",
        "settled: Ended Expired",
        "settled: Granted",
        "settled: Granted permits",
        "settled: Granted shared",
        "settled: Invalid Permits",
        "settled: Held",
        "settled: Invalid LeaseKeyInUse",
        "settled: TokensExhausted",
    ];
    for kind in expected {
        assert!(
            seen.contains(kind),
            "no script led to {kind}; seen: {seen:?}"
        );
    }
}

/// An outcome's name, with what kind of it where that is a rule of its own.
fn kind(outcome: &Outcome) -> String {
    let first = |debug: String| debug.split([' ', '(', '{']).next().unwrap().to_owned();
    let name = first(format!("{outcome:?}"));
    match outcome {
        Outcome::Granted(granted) if !granted.slots.is_empty() => format!("{name} permits"),
        Outcome::Granted(granted) if granted.shared.is_some() => format!("{name} shared"),
        Outcome::Released {
            delayed: Some(_), ..
        } => format!("{name} closed"),
        Outcome::Ended { how, .. } => format!("{name} {how:?}"),
        Outcome::Invalid(invalid) => format!("{name} {}", first(format!("{invalid:?}"))),
        Outcome::QueueFull(bound) => format!("{name} {}", first(format!("{bound:?}"))),
        _ => name,
    }
}
