//! The cost of an operation depends on the request, its answer, and the grants that it makes or ends, not on how much
//! others have.
//!
//! Each operation is done many times beside 1, 1,000 and 100,000 locks, readers, waiting requests, leases of one client,
//! and grants of one lease. Its cost is the least of many repetitions, so that other work on the computer cannot make it
//! look dearer. An operation that grows with the crowd costs thousands of times as much beside the largest one; caches
//! explain a factor of a few. The control arm is an operation that looks at everything, and must be found. So must two
//! mutants: each answers as the machine does, but searches everything that others have.

use std::time::{Duration, Instant};

use palisade_core::machine::{Record, ShareRecord};
use palisade_core::{
    Acquire, ClientId, Command, Effect, Entry, GrantRef, LeaseKey, Limits, LockMode, LockName,
    Machine, Outcome, Permits, Principal, RequestId, Span, Timestamp, Token, Ttl, Under, WallTime,
};

const CROWDS: [u32; 3] = [1, 1_000, 100_000];
const REPEATS: u32 = 300;

/// An operation this much dearer beside the largest crowd grows with it; one that walks a list of the crowd is dearer by
/// far.
const FACTOR: u32 = 12;
const SLACK: Duration = Duration::from_micros(4);

/// A machine with a crowd, and one client of its own that asks.
struct Stage {
    machine: Machine,
    effects: Vec<Effect>,
    serial: u64,
    crowd: u32,
    mutant: Option<&'static Mutant>,
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn client(text: &str) -> ClientId {
    ClientId::new(text).unwrap()
}

fn id(number: u64) -> [u8; 16] {
    u128::from(number).to_le_bytes()
}

impl Stage {
    fn new(crowd: u32) -> Stage {
        let mut stage = Stage {
            machine: Machine::new(0x5eed),
            effects: Vec::new(),
            serial: 0,
            crowd,
            mutant: None,
        };
        stage.apply(Command::Configure(Limits {
            waiters_per_lock: 1_000_000,
            waiters_per_client: 1_000_000,
            ..Limits::DEFAULT
        }));
        stage
    }

    fn apply(&mut self, command: Command) -> Outcome {
        self.effects.clear();
        if let Some(mutant) = self.mutant {
            std::hint::black_box((mutant.looks)(&self.machine, &command));
        }
        let entry = Entry {
            at: Timestamp::from_millis(1),
            wall: WallTime::default(),
            by: Principal::ANONYMOUS,
            command,
        };
        self.machine.apply(entry, &mut self.effects).outcome
    }

    fn next(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// A request of its own lease and id.
    fn ask(&mut self, lock: &str, by: &str) -> Acquire {
        let number = self.next();
        let key = LeaseKey::from_bytes(id(number));
        let under = Under::New { key, ttl: Ttl::MAX };
        let request = Some(RequestId::from_bytes(id(number)));
        Acquire::new(name(lock), client(by), under, request)
    }

    fn granted(&mut self, acquire: Acquire) -> GrantRef {
        let lock = acquire.lock.clone();
        match self.apply(Command::Acquire(acquire)) {
            Outcome::Granted(granted) => GrantRef {
                lock,
                key: granted.key,
                token: Some(granted.number()),
            },
            other => panic!("{other:?}"),
        }
    }

    fn turn(&mut self, acquire: Acquire) {
        let grant = self.granted(acquire);
        self.apply(Command::Release(grant));
    }

    /// Waits, and leaves the queue.
    fn wait(&mut self, acquire: Acquire) {
        let request = acquire.request.unwrap();
        let wait = Some(Span::from_millis(1_000));
        let outcome = self.apply(Command::Acquire(Acquire { wait, ..acquire }));
        assert_eq!(outcome, Outcome::Queued);
        self.apply(Command::Withdraw(request));
    }
}

/// A kind of thing that others have many of, and the function that makes them.
type Crowd = (&'static str, fn(&mut Stage));

const KINDS: [Crowd; 6] = [
    ("locks", |stage| {
        for n in 0..stage.crowd {
            let ask = stage.ask(&format!("lock/{n}"), &format!("c{n}"));
            stage.granted(ask);
        }
    }),
    ("leases of one client", |stage| {
        for n in 0..stage.crowd {
            let ask = stage.ask(&format!("lock/{n}"), "me");
            stage.granted(ask);
        }
    }),
    ("grants of one lease", |stage| {
        let first = stage.ask("first", "me");
        let under = Under::Existing {
            key: stage.granted(first).key,
            ttl: None,
        };
        for n in 0..stage.crowd {
            let ask = stage.ask(&format!("lock/{n}"), "me");
            stage.granted(Acquire { under, ..ask });
        }
    }),
    ("readers", |stage| {
        for n in 0..stage.crowd {
            let ask = stage.ask("crowd", &format!("c{n}"));
            let mode = LockMode::Shared;
            stage.granted(Acquire { mode, ..ask });
        }
    }),
    ("waiters", |stage| {
        let ask = stage.ask("queue", "holder");
        stage.granted(ask);
        for n in 0..stage.crowd {
            let ask = stage.ask("queue", &format!("c{n}"));
            let wait = Some(Span::from_millis(1_000_000));
            stage.apply(Command::Acquire(Acquire { wait, ..ask }));
        }
    }),
    ("waiters for permits", |stage| {
        let mode = |wanted| LockMode::Permits(Permits::new(wanted, 8).unwrap());
        let ask = stage.ask("permits", "holder");
        stage.granted(Acquire {
            mode: mode(8),
            ..ask
        });
        for n in 0..stage.crowd {
            let ask = stage.ask("permits", &format!("c{n}"));
            let wait = Some(Span::from_millis(1_000_000));
            let mode = mode(1);
            stage.apply(Command::Acquire(Acquire { wait, mode, ..ask }));
        }
    }),
];

/// The operations done beside a crowd. Each leaves everything as it was.
type Operation = (&'static str, fn(&mut Stage));

const OPERATIONS: &[Operation] = &[
    ("acquire and release", |stage| {
        let ask = stage.ask("free", "x");
        stage.turn(ask);
    }),
    ("acquire as a client that has much", |stage| {
        let ask = stage.ask("free", "me");
        stage.turn(ask);
    }),
    ("a try that is denied", |stage| {
        for lock in ["queue", "crowd", "permits", "lock/0"] {
            let ask = stage.ask(lock, "x");
            stage.apply(Command::Acquire(ask));
        }
    }),
    ("break with a wrong token", |stage| {
        for lock in ["queue", "crowd", "permits", "lock/0"] {
            let number = Token::new(1 << 50).unwrap();
            stage.apply(Command::Revoke {
                lock: name(lock),
                token: number,
                reason: "".into(),
            });
        }
    }),
    ("join, be broken", |stage| {
        let ask = stage.ask("crowd", "x");
        let mode = LockMode::Shared;
        let Outcome::Granted(granted) = stage.apply(Command::Acquire(Acquire { mode, ..ask }))
        else {
            return;
        };
        let revoked = stage.apply(Command::Revoke {
            lock: name("crowd"),
            token: granted.number(),
            reason: "".into(),
        });
        assert!(matches!(revoked, Outcome::Revoked { .. }));
    }),
    (
        "mode update, an upgrade that waits and is given up",
        |stage| {
            let ask = stage.ask("crowd", "x");
            let mode = LockMode::Update;
            let grant = stage.granted(Acquire { mode, ..ask });
            let ask = stage.ask("crowd", "x");
            let upgrade = Acquire {
                mode: LockMode::Upgrade,
                under: Under::Existing {
                    key: grant.key,
                    ttl: None,
                },
                wait: Some(Span::from_millis(1_000)),
                ..ask
            };
            let request = upgrade.request.unwrap();
            match stage.apply(Command::Acquire(upgrade)) {
                Outcome::Granted(granted) => {
                    let token = Some(granted.token);
                    stage.apply(Command::Release(GrantRef { token, ..grant }));
                }
                _ => {
                    stage.apply(Command::Withdraw(request));
                    stage.apply(Command::Release(grant));
                }
            }
        },
    ),
    ("wait and withdraw", |stage| {
        let held = stage.ask("held", "x");
        let grant = stage.granted(held);
        let ask = stage.ask("held", "y");
        stage.wait(ask);
        stage.apply(Command::Release(grant));
    }),
    ("a set that waits, and one that is granted", |stage| {
        let held = stage.ask("set/1", "x");
        let grant = stage.granted(held);
        for granted in [false, true] {
            let ask = stage.ask("set/0", "y");
            let also = [name("set/1"), name("set/2")].into_iter();
            let set = Acquire {
                also: also.collect(),
                ..ask
            };
            if granted {
                stage.apply(Command::Release(grant.clone()));
                let grant = stage.granted(set);
                for lock in ["set/0", "set/1", "set/2"] {
                    let lock = name(lock);
                    stage.apply(Command::Release(GrantRef {
                        lock,
                        ..grant.clone()
                    }));
                }
            } else {
                stage.wait(set)
            }
        }
    }),
    ("repeat and abandon", |stage| {
        let ask = stage.ask("free", "x");
        let request = ask.request.unwrap();
        for _ in 0..2 {
            stage.apply(Command::Acquire(ask.clone()));
        }
        stage.apply(Command::Abandon(request));
    }),
    ("change of the permits", |stage| {
        for permits in [7, 8] {
            let lock = name("permits");
            stage.apply(Command::Resize { lock, permits });
        }
    }),
    ("a wait that ends with its lease", |stage| {
        let held = stage.ask("held", "x");
        let held = stage.granted(held);
        let own = stage.ask("own", "y");
        let own = stage.granted(own);
        let ask = stage.ask("held", "y");
        let under = Under::Existing {
            key: own.key,
            ttl: None,
        };
        let wait = Some(Span::from_millis(1_000));
        stage.apply(Command::Acquire(Acquire { under, wait, ..ask }));
        stage.apply(Command::Release(own));
        stage.apply(Command::Release(held));
    }),
    ("show, and a page", |stage| {
        for lock in ["queue", "crowd", "permits", "lock/0"] {
            std::hint::black_box(stage.machine.view(lock, stage.machine.now()));
        }
        std::hint::black_box(stage.machine.page("nothing", 0, 4, stage.machine.now()));
    }),
];

/// One rule of cost removed (A13).
struct Mutant {
    what: &'static str,
    /// The crowd that it must be found beside, and the operations that must look dearer there. No other one may.
    beside: &'static str,
    finds: &'static [&'static str],
    /// How many records the command is about, found by a look at all of them.
    looks: fn(&Machine, &Command) -> usize,
}

const MUTANTS: [Mutant; 2] = [
    Mutant {
        what: "a break looks at every reader",
        beside: "readers",
        finds: &["break with a wrong token", "join, be broken"],
        looks: |machine, command| {
            let Command::Revoke { lock, token, .. } = command else {
                return 0;
            };
            let named = |record: &Record| match record {
                Record::Share(ShareRecord { grant, .. }) => {
                    grant.lock == *lock && grant.token == *token
                }
                _ => false,
            };
            machine.records().filter(named).count()
        },
    },
    Mutant {
        what: "a wait that is given up is looked for among all",
        beside: "waiters",
        finds: &[
            "wait and withdraw",
            "a set that waits, and one that is granted",
        ],
        looks: |machine, command| {
            let Command::Withdraw(request) = command else {
                return 0;
            };
            let named = |record: &Record| match record {
                Record::Waiter(waiter) => waiter.request == *request,
                _ => false,
            };
            machine.records().filter(named).count()
        },
    },
];

/// The least that an operation takes beside a crowd.
#[expect(
    clippy::disallowed_methods,
    reason = "how long an operation takes is measured, and compared within one run"
)]
fn least(stage: &mut Stage, repeats: u32, operation: fn(&mut Stage)) -> Duration {
    let times = (0..repeats).map(|_| {
        let begun = Instant::now();
        operation(stage);
        begun.elapsed()
    });
    times.min().unwrap()
}

/// An operation that looks at everything: it must be found.
fn looks_at_all(stage: &mut Stage) {
    let shares = stage.machine.records().count();
    std::hint::black_box(shares);
}

/// A page looks at 2,048 places at most, so its cost is compared with that of a thousand.
const BOUNDED_BY_A_THOUSAND: &[&str] = &["show, and a page"];

/// The operations that cost more beside the largest crowd.
fn dearer(kind: &str, stages: &mut [Stage; 3], repeats: u32) -> Vec<&'static str> {
    let mut dearer = Vec::new();
    for (what, operation) in OPERATIONS {
        let costs = stages.each_mut();
        let [one, thousand, most] = costs.map(|stage| least(stage, repeats, *operation));
        println!("{kind:22} {what:52} {one:>10.2?} {thousand:>10.2?} {most:>10.2?}");
        let bounded = BOUNDED_BY_A_THOUSAND.contains(what);
        let base = if bounded { one.max(thousand * 3) } else { one };
        if most > base * FACTOR + SLACK {
            dearer.push(*what);
        }
    }
    dearer
}

#[test]
fn no_operation_grows_with_what_others_have() {
    let mut grown = Vec::new();
    for (kind, fill) in KINDS {
        let mut stages = CROWDS.map(|crowd| {
            let mut stage = Stage::new(crowd);
            fill(&mut stage);
            stage
        });
        // The control: an operation that looks at all of them is far beyond the bound. It is measured first, while the
        // number of remembered operations is the same for all crowds.
        let [one, _, most] = stages
            .each_mut()
            .map(|stage| least(stage, 20, looks_at_all));
        assert!(most > one * FACTOR + SLACK, "{kind}: {one:?}, {most:?}");
        for mutant in MUTANTS.iter().filter(|mutant| mutant.beside == kind) {
            for stage in &mut stages {
                stage.mutant = Some(mutant);
            }
            println!("{}:", mutant.what);
            assert_eq!(
                dearer(kind, &mut stages, 10),
                mutant.finds,
                "{}",
                mutant.what
            );
            for stage in &mut stages {
                stage.mutant = None;
            }
        }
        let dearer = dearer(kind, &mut stages, REPEATS).into_iter();
        grown.extend(dearer.map(|what| format!("{what} beside {kind}")));
    }
    assert!(grown.is_empty(), "see the costs above: {grown:#?}");
}
