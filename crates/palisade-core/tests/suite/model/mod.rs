//! The machine against the rules written down once more, on random scripts.
//!
//! Every line of a script is applied to both; answers, settled requests and events must be equal, in order. On the way
//! the machine is restored from its own records, and in the end replayed from the entries that it said must be logged.

mod reference;
mod script;
use std::collections::BTreeMap;

use palisade_core::machine::{Applied, Expiry, Record};
use palisade_core::{
    Acquire, Away, Command, Effect, Entry, GrantOptions, GrantRef, LockMode, LockName, Machine,
    Outcome, Principal, Span, Timestamp, Under, invariants, limits,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use reference::{Grant, Reference, Wait};
use script::{Line, scripts};

const SEED: u64 = 1;
const OTHER_SEED: u64 = 0xdead_beef;

fn records(machine: &Machine) -> Vec<Record> {
    machine.records().collect()
}

/// The values that the holders of exclusive grants proclaim.
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

/// Fails with the first difference and its place.
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

/// Whether a command is for the upgrade of a grant in mode update.
fn is_upgrade(command: &Command) -> bool {
    matches!(command, Command::Acquire(acquire) if acquire.mode == LockMode::Upgrade)
}

/// Whether a command is for several locks at once.
fn is_set(command: &Command) -> bool {
    matches!(command, Command::Acquire(acquire) if !acquire.also.is_empty())
}

/// Plays a script to a machine and to the reference, and to a copy of the machine that was restored at
/// line `cut`, all of them under one rule of expiry. `bend` may spoil an entry before the machine gets it: the
/// control arms do.
fn play(lines: &[Line], cut: usize, expiry: Expiry, bend: impl Bends) -> Result<(), TestCaseError> {
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
        let (answers, bent) = bend.bend(entry.clone(), &reference);
        let (outcome, effects) = reference.step(entry);

        let (applied, caused) = apply_all(&mut machine, &bent, answers);
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
                &apply_all(copy, &bent, answers),
                &(applied.clone(), caused),
            )?;
        }
        if applied.changed {
            log.extend(bent);
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
    // An entry that is not logged may still have moved the clock; the next entry moves it for both.
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

/// The rule of the format, and bounds that the scripts reach.
fn expiries() -> impl Strategy<Value = Expiry> {
    let tight = (1_u32..4, 1_u32..3).prop_map(|(alone, beside)| Expiry { alone, beside });
    prop_oneof![Just(Expiry::CURRENT), tight]
}

proptest! {
    #![proptest_config(Config { cases: 3_000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn the_machine_agrees_with_the_rules(lines in scripts(), cut in 0_usize..80, expiry in expiries()) {
        let as_it_is: Bend = |entry| entry;
        play(&lines, cut, expiry, as_it_is)?;
    }
}

/// Changes the entry that the machine gets; the reference gets the original.
type Bend = fn(Entry) -> Entry;

/// As [`Bend`], for several entries, one of which has the answer. It sees the state of the reference before the entry.
type Split = fn(Entry, &Reference) -> (usize, Vec<Entry>);

trait Bends {
    fn bend(&self, entry: Entry, known: &Reference) -> (usize, Vec<Entry>);
}

impl Bends for Bend {
    fn bend(&self, entry: Entry, _: &Reference) -> (usize, Vec<Entry>) {
        (0, vec![self(entry)])
    }
}

impl Bends for Split {
    fn bend(&self, entry: Entry, known: &Reference) -> (usize, Vec<Entry>) {
        self(entry, known)
    }
}

/// The answer to one of several entries, and the effects of all.
fn apply_all(machine: &mut Machine, entries: &[Entry], answers: usize) -> (Applied, Vec<Effect>) {
    let applied: Vec<_> = entries
        .iter()
        .map(|entry| apply(machine, entry.clone()))
        .collect();
    let changed = applied.iter().any(|(applied, _)| applied.changed);
    let outcome = applied[answers].0.outcome.clone();
    let effects = applied.into_iter().flat_map(|(_, effects)| effects);
    (Applied { outcome, changed }, effects.collect())
}

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
fn delays(entry: Entry, bent: fn(GrantOptions) -> (u64, u64)) -> Entry {
    let command = match entry.command {
        Command::Acquire(acquire) => {
            let (lock_delay, at_least_for) = bent(acquire.options);
            let options = GrantOptions::closing(lock_delay, at_least_for).unwrap();
            Command::Acquire(palisade_core::Acquire { options, ..acquire })
        }
        other => other,
    };
    Entry { command, ..entry }
}

/// The entry, as if another principal had asked.
fn asked_by(entry: Entry, which: fn(&Command) -> bool, by: Principal) -> Entry {
    if which(&entry.command) {
        Entry { by, ..entry }
    } else {
        entry
    }
}

/// How many scripts it takes to find that a machine with bent entries breaks the rules.
fn scripts_until_caught(bend: impl Bends + Copy) -> Option<u32> {
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
    let deviations: [(&str, Bend); 28] = [
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
            let command = match entry.command {
                Command::Grace(Away::Paused(pause)) if pause >= limits::STALL => {
                    Command::Grace(Away::Restarted)
                }
                other => other,
            };
            Entry { command, ..entry }
        }),
        ("a downtime counts as serving", |entry| {
            let command = match entry.command {
                Command::Grace(Away::Down(_)) => Command::Grace(Away::Down(Span::ZERO)),
                other => other,
            };
            Entry { command, ..entry }
        }),
        ("a restored reader is upgraded", |entry| {
            away(entry, Away::Restored, Away::Restarted)
        }),
        ("a restart ends mode update", |entry| {
            away(entry, Away::Restarted, Away::Restored)
        }),
        ("a new leader drops the waiters", |entry| {
            away(entry, Away::Led, Away::Restarted)
        }),
        ("a new leader grants to orphans", |entry| {
            away(entry, Away::Led, Away::Paused(limits::STALL))
        }),
        ("an orphan is withdrawn", |entry| match entry.command {
            Command::Orphan(request) => Entry {
                command: Command::Withdraw(request),
                ..entry
            },
            _ => entry,
        }),
        ("an orphan waits as before", |entry| match entry.command {
            Command::Orphan(_) => Entry {
                command: Command::Expire,
                ..entry
            },
            _ => entry,
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

/// The entry, with requests in one mode made in another.
fn mode_for(entry: Entry, mode: LockMode, taken_for: LockMode) -> Entry {
    match &entry.command {
        Command::Acquire(acquire) if acquire.mode == mode => in_mode(entry, taken_for),
        _ => entry,
    }
}

/// An upgrade's lock, if the reference knows the grant to upgrade, and all other requests that wait for that lock alone.
fn upgrade_of<'a>(
    command: &'a Command,
    known: &'a Reference,
) -> Option<(&'a Acquire, Vec<&'a Wait>)> {
    let Command::Acquire(acquire) = command else {
        return None;
    };
    let holds = |grant: &Grant| grant.update && grant.lock == acquire.lock;
    if acquire.mode != LockMode::Upgrade || !known.grants.iter().any(holds) {
        return None;
    }
    let waits = known.waits.iter();
    let waits = waits.filter(|wait| wait.lock == acquire.lock && wait.also.is_empty());
    Some((acquire, waits.collect()))
}

/// Control arms of mode update: each is a machine that breaks one of its rules.
#[test]
fn a_planted_deviation_of_upgrades_is_found() {
    let deviations: [(&str, Split); 5] = [
        ("many have mode update", |entry, _| {
            (0, vec![mode_for(entry, LockMode::Update, LockMode::Shared)])
        }),
        ("an upgrade is a plain request of a reader", |entry, _| {
            (
                0,
                vec![mode_for(entry, LockMode::Upgrade, LockMode::Exclusive)],
            )
        }),
        (
            "an upgrade waits in the order of arrival",
            |mut entry, known| {
                let in_order = upgrade_of(&entry.command, known).map(|(acquire, _)| Acquire {
                    mode: LockMode::Exclusive,
                    under: Under::New {
                        key: crate::world::key(3_000),
                        ttl: crate::world::ttl(250),
                    },
                    ..acquire.clone()
                });
                if let Some(acquire) = in_order.filter(|acquire| acquire.wait.is_some()) {
                    entry.command = Command::Acquire(acquire);
                }
                (0, vec![entry])
            },
        ),
        ("an upgrade drives the other readers out", |entry, known| {
            let mut all = Vec::new();
            if let Some((acquire, _)) = upgrade_of(&entry.command, known) {
                let others = known.grants.iter();
                let others = others.filter(|grant| grant.lock == acquire.lock && !grant.update);
                all.extend(others.map(|grant| Entry {
                    command: Command::Revoke {
                        lock: grant.lock.clone(),
                        token: grant.token,
                        reason: "upgrade".into(),
                    },
                    ..entry.clone()
                }));
            }
            all.push(entry);
            (all.len() - 1, all)
        }),
        ("an upgrade sends the queue away", |entry, known| {
            let mut all = vec![entry.clone()];
            if let Some((_, waits)) = upgrade_of(&entry.command, known) {
                all.extend(waits.into_iter().map(|wait| Entry {
                    by: wait.by,
                    command: Command::Withdraw(wait.request),
                    ..entry.clone()
                }));
            }
            (0, all)
        }),
    ];
    for (what, split) in deviations {
        assert!(
            scripts_until_caught(split).is_some(),
            "nobody noticed: {what}"
        );
    }
}

/// The request as one for its first lock alone.
fn first_alone(acquire: &Acquire) -> Acquire {
    Acquire {
        also: palisade_core::Others::NONE,
        ..acquire.clone()
    }
}

/// The other requests for one lock each that a set would be, under names of their own.
fn one_by_one(acquire: &Acquire, entry: &Entry) -> Vec<Entry> {
    let ttl = crate::world::ttl(250);
    let others = (1_u8..).zip(&*acquire.also);
    others
        .map(|(n, lock)| Entry {
            command: Command::Acquire(Acquire {
                lock: lock.clone(),
                under: match acquire.under {
                    Under::New { .. } => Under::New {
                        key: crate::world::key(2_000 + u32::from(n)),
                        ttl,
                    },
                    existing @ Under::Existing { .. } => existing,
                },
                request: Some(crate::world::request(240 + n)),
                ..first_alone(acquire)
            }),
            ..entry.clone()
        })
        .collect()
}

/// Control arms of sets: each is a machine that breaks one of their rules.
#[test]
fn a_planted_deviation_of_sets_is_found() {
    let deviations: [(&str, Split); 5] = [
        ("a set is granted one by one", |entry, _| {
            let mut all = vec![entry.clone()];
            if let Command::Acquire(acquire) = &entry.command
                && is_set(&entry.command)
            {
                all[0].command = Command::Acquire(first_alone(acquire));
                all.extend(one_by_one(acquire, &entry));
            }
            (0, all)
        }),
        ("a part of a set is dropped", |mut entry, _| {
            if let Command::Acquire(acquire) = &mut entry.command
                && let [others @ .., _] = &acquire.also[..]
            {
                acquire.also = others.iter().cloned().collect();
            }
            (0, vec![entry])
        }),
        ("a set overtakes what waits", |entry, known| {
            let waits = |acquire: &Acquire| acquire.wait.is_some() && acquire.request.is_some();
            let overtakes = matches!(&entry.command, Command::Acquire(acquire) if waits(acquire))
                && is_set(&entry.command);
            let others = known.waits.iter().filter(|_| overtakes);
            let others: Vec<_> = others.filter(|wait| wait.also.is_empty()).collect();
            let leave = others.iter().map(|wait| Entry {
                by: wait.by,
                command: Command::Withdraw(wait.request),
                ..entry.clone()
            });
            let mut all: Vec<Entry> = leave.collect();
            let answers = all.len();
            all.push(entry.clone());
            all.extend(others.iter().map(|wait| Entry {
                by: wait.by,
                command: Command::Acquire(wait.again(entry.at)),
                ..entry.clone()
            }));
            (answers, all)
        }),
        (
            "the other parts stay queued when a set leaves",
            |entry, known| {
                let mut all = vec![entry.clone()];
                if let Command::Withdraw(request) | Command::Abandon(request) = &entry.command {
                    let its = known.waits.iter();
                    let mut its =
                        its.filter(|wait| (wait.by, wait.request) == (entry.by, *request));
                    if let Some(wait) = its.next() {
                        all.extend(one_by_one(&wait.again(entry.at), &entry));
                    }
                }
                (0, all)
            },
        ),
        (
            "nobody waits behind a set for a lock that is free",
            |entry, known| {
                // The set waits only for the lock that is held; the others are as if nobody waited for them.
                let mut all = vec![entry.clone()];
                if let Command::Acquire(acquire) = &entry.command
                    && is_set(&entry.command)
                    && acquire.locks().any(|lock| known.holder_of(lock).is_some())
                {
                    let held = acquire.locks().find(|lock| known.holder_of(lock).is_some());
                    all[0].command = Command::Acquire(Acquire {
                        lock: held.unwrap().clone(),
                        ..first_alone(acquire)
                    });
                }
                (0, all)
            },
        ),
    ];
    for (what, split) in deviations {
        assert!(
            scripts_until_caught(split).is_some(),
            "nobody noticed: {what}"
        );
    }
}

/// The other half of the control: scripts reach the cases that they are meant to reach.
#[test]
fn the_scripts_reach_every_outcome() {
    let config = Config {
        cases: 9_000,
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
                let set = is_set(&entry.command);
                let upgrade = is_upgrade(&entry.command);
                let waited: Vec<_> = reference.waits.clone();
                let (outcome, effects) = reference.step(entry);
                seen.borrow_mut().insert(kind(&outcome));
                if set {
                    seen.borrow_mut().insert(format!("set: {}", kind(&outcome)));
                }
                if upgrade {
                    seen.borrow_mut()
                        .insert(format!("upgrade: {}", kind(&outcome)));
                }
                for effect in &effects {
                    let Effect::Settled {
                        request, outcome, ..
                    } = effect
                    else {
                        continue;
                    };
                    let set = waited.iter().find(|wait| wait.request == *request);
                    if set.is_some_and(|wait| wait.mode == LockMode::Upgrade) {
                        let kind = format!("upgrade, settled: {}", kind(outcome));
                        seen.borrow_mut().insert(kind);
                    }
                    if set.is_some_and(|wait| !wait.also.is_empty()) {
                        let kind = format!("set, settled: {}", kind(outcome));
                        seen.borrow_mut().insert(kind);
                    }
                }
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
        "Behind",
        "Invalid OptionsOfShared",
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
        "Invalid SetDelayed",
        "Invalid SetMode",
        "Invalid SetOrder",
        "Invalid SetPartlyHeld",
        "set: Abandoned",
        "set: Delayed",
        "set: Ended Expired",
        "set: Ended Released",
        "set: Granted",
        "set: Held",
        "set: Invalid PermitsDiffer",
        "set: Invalid RequestReused",
        "set: Invalid Upgrade",
        "set: Queued",
        "set: QueueFull Client",
        "set: QueueFull Lock",
        "set: TokensExhausted",
        "set: TooManyLocks",
        "Invalid UpdateHeld",
        "upgrade: Abandoned",
        "upgrade: Granted",
        "upgrade: Held",
        "upgrade: Queued",
        "upgrade: Ended Superseded",
        "upgrade: NotHeld",
        "upgrade: TokensExhausted",
        "upgrade: Invalid NotUpdate",
        "upgrade: Invalid Upgrade",
        "upgrade: Invalid Restored",
        "upgrade, settled: Ended Expired",
        "upgrade, settled: Granted",
        "upgrade, settled: Held",
        "set, settled: Abandoned",
        "set, settled: Delayed",
        "set, settled: Ended Expired",
        "set, settled: Granted",
        "set, settled: Held",
    ];
    for kind in expected {
        assert!(
            seen.contains(kind),
            "no script led to {kind}; seen: {seen:?}"
        );
    }
}

/// An outcome's name, with its variety where that is a rule of its own.
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
