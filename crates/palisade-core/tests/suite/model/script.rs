//! Random scripts. A line names things by their position ("the second live grant", "one nanosecond
//! before the first lease ends"), so that most lines hit something.

use palisade_core::{
    Acquire, Away, Command, Entry, GrantOptions, GrantRef, Limits, LockMode, LockName, Permits,
    Principal, RequestId, Span, Timestamp, Token, Under,
};
use proptest::prelude::*;

use super::reference::{Reference, Wait};
use crate::world::{client_id, key, lock_name, principal, request, token, ttl, wall};

/// One line of a script.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    when: When,
    by: By,
    what: What,
}

/// The principal that asks.
#[derive(Clone, Copy, Debug)]
enum By {
    /// The principal whose lease or request is named; nobody known, if none is.
    Owner,
    /// Nobody known, or one of two principals.
    One(u8),
}

#[derive(Clone, Debug)]
enum When {
    Same,
    /// Nanoseconds.
    Later(u64),
    /// A whole millisecond.
    NextTick,
    /// Around the end of a lease: at it, or this many nanoseconds off.
    LeaseEnd(usize, i64),
    /// Around the deadline of a waiting request.
    WaitEnd(usize, i64),
    /// Around the instant at which a closed lock opens.
    Opening(usize, i64),
}

#[derive(Clone, Debug)]
enum What {
    /// The caller of a request that waits repeats it.
    Repeat(usize),
    Acquire {
        lock: u8,
        also: u8,
        client: u8,
        mode: LockMode,
        under: LeaseOf,
        wait: Option<u64>,
        request: Option<Asked>,
        noted: bool,
        options: GrantOptions,
    },
    /// A grant in mode update is upgraded, if there is one.
    Upgrade {
        which: usize,
        wait: Option<u64>,
        request: Option<Asked>,
        noted: bool,
    },
    Renew(Which, Option<u64>),
    Proclaim(Which, bool),
    Release(Which),
    Revoke {
        lock: u8,
        right: bool,
    },
    Open {
        lock: u8,
    },
    Resize {
        lock: u8,
        permits: u32,
    },
    Withdraw(Asked),
    Orphan(Asked),
    Abandon(Asked),
    Expire,
    Grace(Away),
    Leap(u64),
    Configure(Limits),
}

#[derive(Clone, Debug)]
enum LeaseOf {
    /// A key of its own, never seen before.
    Fresh(u64),
    /// A key from a small pool: sometimes in use, sometimes used before.
    Pool(u8, u64),
    Live(usize, Option<u64>),
    Dead(usize),
}

/// A request id.
#[derive(Clone, Debug)]
enum Asked {
    /// Never seen before.
    Fresh,
    /// From a small pool: sometimes seen before.
    Pool(u8),
    Waiting(usize),
    Answered(usize),
}

/// A grant to be named, with its token or without.
#[derive(Clone, Debug)]
enum Which {
    Live(usize, bool),
    Over(usize, bool),
    /// The key of one live grant with the lock of another.
    Crossed(usize, usize),
}

const TTLS: [u64; 3] = [100, 101, 250];
const LOCKS: [&str; 4] = ["x", "y", "z", "u"];
const CLIENTS: [&str; 4] = ["a", "b", "c", "d"];

pub(crate) fn scripts() -> impl Strategy<Value = Vec<Line>> {
    prop::collection::vec(line(), 1..120)
}

fn line() -> impl Strategy<Value = Line> {
    (when(), by(), what()).prop_map(|(when, by, what)| Line { when, by, what })
}

fn by() -> impl Strategy<Value = By> {
    prop_oneof![5 => Just(By::Owner), 3 => (0_u8..3).prop_map(By::One)]
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        6 => Just(When::Same),
        3 => (0_u64..40_000_000).prop_map(When::Later),
        1 => (0_u64..400_000_000).prop_map(When::Later),
        1 => Just(When::NextTick),
        3 => (0_usize..8, off()).prop_map(|(n, off)| When::LeaseEnd(n, off)),
        2 => (0_usize..8, off()).prop_map(|(n, off)| When::WaitEnd(n, off)),
        2 => (0_usize..8, off()).prop_map(|(n, off)| When::Opening(n, off)),
    ]
}

fn off() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(-1), Just(1), Just(500_000), Just(1_000_000)]
}

fn what() -> impl Strategy<Value = What> {
    let requested = prop::option::weighted(0.9, asked());
    let wait = prop::option::weighted(
        0.7,
        prop_oneof![
            1 => Just(0),
            1 => Just(1),
            1 => 1_000_000_u64..300_000_000,
            1 => 1_900_000_000_u64..2_100_000_000,
        ],
    );
    let upgrade_wait = prop::option::weighted(0.8, 1_000_000_u64..300_000_000);
    let lock = prop::sample::select(vec![0_u8, 0, 0, 0, 1, 2, 2, 2, 3]);
    let reads = prop_oneof![
        3 => Just(LockMode::Exclusive),
        3 => Just(LockMode::Shared),
        2 => Just(LockMode::Update),
    ];
    let mode = (reads, permits(), 0_u8..20);
    // One of the locks is a semaphore nearly always, and the others nearly never.
    let lock_and_mode = (lock, mode).prop_map(|(lock, (reads, permits, chance))| {
        let semaphore = (lock == 2) != (chance == 0);
        let mode = match (semaphore, reads) {
            (true, _) => LockMode::Permits(permits),
            (false, mode) => mode,
        };
        (lock, mode)
    });
    // Other locks of a set, a bit for each of `LOCKS`; the highest one puts them out of order.
    let also = prop::sample::select(vec![
        0_u8,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        1,
        2,
        3,
        8,
        9,
        10,
        11,
        8,
        9,
        10,
        11,
        4,
        9 + 128,
    ]);
    let who = (lock_and_mode, 0_u8..4).prop_map(|((lock, mode), client)| (lock, client, mode));
    let acquire = (
        who,
        lease_of(),
        wait,
        requested,
        any::<bool>(),
        (delays(), 0_u8..20),
        also,
    );
    prop_oneof![
           2 => (0_usize..4).prop_map(What::Repeat),
           14 => acquire.prop_map(|((lock, client, mode), under, wait, request, noted, (options, chance), also)| {
               // A set is nearly always exclusive and without delays.
               let plain = also != 0 && chance != 0 && lock != 2;
               let (mode, also) = match mode {
                   _ if plain => (LockMode::Exclusive, also),
                   LockMode::Permits(_) => (mode, 0),
                   _ => (mode, also),
               };
               // Nearly always, delays come only with the modes that they are for.
               let options = if (mode == LockMode::Exclusive && !plain) || chance == 0 { options
    } else { GrantOptions::NONE
    };
               What::Acquire { lock, also, client, mode, under, wait, request, noted, options }
           }),
           5 => (0_usize..4, upgrade_wait, prop::option::weighted(0.9, asked()), any::<bool>())
               .prop_map(|(which, wait, request, noted)| What::Upgrade { which, wait, request, noted }),
           4 => (which(), prop::option::weighted(0.3, time_to_live())).prop_map(|(w, t)| What::Renew(w, t)),
           3 => (which(), any::<bool>()).prop_map(|(which, some)| What::Proclaim(which, some)),
           6 => which().prop_map(What::Release),
           1 => (0_u8..4, any::<bool>()).prop_map(|(lock, right)| What::Revoke { lock, right }),
           1 => (0_u8..4).prop_map(|lock| What::Open { lock }),
           1 => (prop::sample::select(vec![0_u8, 2, 2, 2, 2]), 0_u32..5)
               .prop_map(|(lock, permits)| What::Resize { lock, permits }),
           1 => asked().prop_map(What::Withdraw),
           1 => asked().prop_map(What::Orphan),
           2 => asked().prop_map(What::Abandon),
           3 => Just(What::Expire),
           2 => prop_oneof![
               2 => Just(Away::Led),
               1 => Just(Away::Paused(palisade_core::limits::STALL)),
               1 => Just(Away::Restarted),
               1 => Just(Away::Restored),
               1 => (1..=499_u64).prop_map(|span| match span % 2 {
                   0 => Away::Down(Span::from_millis(span)),
                   _ => Away::Paused(Span::from_millis(span)),
               })
           ].prop_map(What::Grace),
           1 => prop_oneof![4 => 0_u64..3, 1 => Just(Token::MAX.get() - 20)].prop_map(What::Leap),
           1 => limits().prop_map(What::Configure),
       ]
}

fn delays() -> impl Strategy<Value = GrantOptions> {
    let some = [
        (0, 0),
        (0, 0),
        (0, 0),
        (60, 0),
        (1, 0),
        (0, 150),
        (40, 90),
        (200, 1),
    ];
    prop::sample::select(some.to_vec())
        .prop_map(|(lock_delay, at_least)| GrantOptions::closing(lock_delay, at_least).unwrap())
}

fn permits() -> impl Strategy<Value = Permits> {
    let some = [
        (1, 3),
        (1, 3),
        (1, 3),
        (2, 3),
        (2, 3),
        (3, 3),
        (1, 2),
        (2, 4),
    ];
    prop::sample::select(some.to_vec()).prop_map(|(n, of)| Permits::new(n, of).unwrap())
}

fn asked() -> impl Strategy<Value = Asked> {
    prop_oneof![
        6 => Just(Asked::Fresh),
        1 => (0_u8..8).prop_map(Asked::Pool),
        1 => (0_usize..4).prop_map(Asked::Waiting),
        2 => (0_usize..6).prop_map(Asked::Answered),
    ]
}

fn time_to_live() -> impl Strategy<Value = u64> {
    prop::sample::select(&TTLS[..])
}

fn lease_of() -> impl Strategy<Value = LeaseOf> {
    prop_oneof![
        6 => time_to_live().prop_map(LeaseOf::Fresh),
        3 => (0_u8..2, time_to_live()).prop_map(|(n, ttl)| LeaseOf::Pool(n, ttl)),
        4 => (0_usize..4, prop::option::weighted(0.2, time_to_live()))
            .prop_map(|(n, ttl)| LeaseOf::Live(n, ttl)),
        1 => (0_usize..4).prop_map(LeaseOf::Dead),
    ]
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        5 => (0_usize..4, any::<bool>()).prop_map(|(n, with)| Which::Live(n, with)),
        3 => (0_usize..6, any::<bool>()).prop_map(|(n, with)| Which::Over(n, with)),
        1 => (0_usize..4, 0_usize..4).prop_map(|(a, b)| Which::Crossed(a, b)),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    let short_queue = Limits {
        waiters_per_lock: 1,
        ..Limits::DEFAULT
    };
    let modest_client = Limits {
        waiters_per_client: 1,
        ..Limits::DEFAULT
    };
    let few_locks = Limits {
        locks: 2,
        ..Limits::DEFAULT
    };
    let short_lease = Limits {
        max_ttl: ttl(101),
        ..Limits::DEFAULT
    };
    prop::sample::select(vec![
        Limits::DEFAULT,
        short_queue,
        modest_client,
        few_locks,
        short_lease,
    ])
}

impl Line {
    /// The entry that this line stands for in the state `known`; `n` is the number of the line.
    pub(crate) fn entry(&self, n: usize, now: Timestamp, known: &Reference) -> Entry {
        let at = self.when.instant(now, known).max(now);
        let command = self.what.command(n, known);
        Entry {
            at,
            wall: wall(at),
            by: self.by.of(&command, known),
            command,
        }
    }
}

impl By {
    fn of(self, command: &Command, known: &Reference) -> Principal {
        let By::Owner = self else {
            let By::One(n) = self else { unreachable!() };
            return principal(n);
        };
        let of_lease = |key| known.lease(key).map(|lease| lease.by);
        let of_request = |request: &RequestId| {
            let waits = known.waits.iter().map(|wait| (wait.by, wait.request));
            let answers = known.answers.iter().map(|known| (known.by, known.request));
            let mut asked = waits.chain(answers);
            asked.find(|(_, asked)| asked == request).map(|(by, _)| by)
        };
        let owner = match command {
            Command::Acquire(acquire) => match &acquire.under {
                Under::Existing { key, .. } => of_lease(key),
                Under::New { .. } => acquire.request.as_ref().and_then(of_request),
            },
            Command::Renew { grant, .. }
            | Command::Proclaim { grant, .. }
            | Command::Release(grant) => of_lease(&grant.key),
            Command::Withdraw(request) | Command::Orphan(request) | Command::Abandon(request) => {
                of_request(request)
            }
            _ => None,
        };
        owner.unwrap_or_default()
    }
}

impl When {
    fn instant(&self, now: Timestamp, known: &Reference) -> Timestamp {
        let near = |end: Option<Timestamp>, off: i64| {
            end.map_or(now, |end| {
                Timestamp::from_nanos(end.as_nanos().saturating_add_signed(off))
            })
        };
        match *self {
            When::Same => now,
            When::Later(nanos) => now.after(Span::from_nanos(nanos)),
            When::NextTick => Timestamp::from_millis(now.as_nanos() / 1_000_000 + 1),
            When::LeaseEnd(n, off) => near(nth(&known.leases, n).map(|lease| lease.expires), off),
            When::WaitEnd(n, off) => near(nth(&known.waits, n).map(Wait::ends), off),
            When::Opening(n, off) => near(nth(&known.closed, n).map(|closed| closed.until), off),
        }
    }
}

impl What {
    fn command(&self, n: usize, known: &Reference) -> Command {
        match self.clone() {
            What::Repeat(which) => {
                let Some(wait) = nth(&known.waits, which) else {
                    return Command::Expire;
                };
                let under = LeaseOf::Fresh(100).resolve(n, known);
                Command::Acquire(Acquire {
                    mode: wait.mode,
                    also: wait.also.iter().cloned().collect(),
                    ..Acquire::new(
                        wait.lock.clone(),
                        wait.client.clone(),
                        under,
                        Some(wait.request),
                    )
                })
            }
            What::Acquire {
                lock,
                also,
                client,
                mode,
                under,
                wait,
                request: asked,
                noted,
                options,
            } => {
                let under = under.resolve(n, known);
                // A request that names a lease mostly comes from the lease's client.
                let own = match under {
                    Under::Existing { key, .. } => known.lease(&key).map(|lease| lease.client),
                    Under::New { .. } => None,
                };
                let names = set_of(lock, also);
                let stranger = client_id(CLIENTS[usize::from(client)]);
                Command::Acquire(Acquire {
                    lock: names[0].clone(),
                    also: names[1..].iter().cloned().collect(),
                    client: own.filter(|_| client != 3).unwrap_or(stranger),
                    mode,
                    under,
                    wait: wait.map(Span::from_nanos),
                    request: asked.map(|asked| asked.resolve(n, known)),
                    metadata: noted.then(|| format!("line {n}").into()),
                    options,
                })
            }
            What::Upgrade {
                which,
                wait,
                request: asked,
                noted,
            } => {
                let mut grants: Vec<_> = known.grants.iter().filter(|grant| grant.update).collect();
                if grants.is_empty() {
                    grants = known.grants.iter().collect();
                }
                let Some(grant) = nth(&grants, which) else {
                    return Command::Expire;
                };
                let under = Under::Existing {
                    key: grant.key,
                    ttl: None,
                };
                let asked = asked.map(|asked| asked.resolve(n, known));
                let (lock, client) = (grant.lock.clone(), grant.client.clone());
                Command::Acquire(Acquire {
                    mode: LockMode::Upgrade,
                    wait: wait.map(Span::from_nanos),
                    metadata: noted.then(|| format!("line {n}").into()),
                    ..Acquire::new(lock, client, under, asked)
                })
            }
            What::Renew(which, wanted) => Command::Renew {
                grant: which.resolve(known),
                ttl: wanted.map(ttl),
            },
            What::Proclaim(which, some) => Command::Proclaim {
                grant: which.resolve(known),
                value: if some {
                    format!("value {n}").into()
                } else {
                    "".into()
                },
            },
            What::Release(which) => Command::Release(which.resolve(known)),
            What::Revoke { lock, right } => {
                let lock = lock_of(lock);
                let current = known.grants.iter().find(|grant| grant.lock == lock);
                let token = current
                    .filter(|_| right)
                    .map_or(token(77), |grant| grant.token);
                Command::Revoke {
                    lock,
                    token,
                    reason: "stuck".into(),
                }
            }
            What::Open { lock } => Command::Open {
                lock: lock_of(lock),
                reason: "opened".into(),
            },
            What::Resize { lock, permits } => Command::Resize {
                lock: lock_of(lock),
                permits,
            },
            What::Withdraw(asked) => Command::Withdraw(asked.resolve(n, known)),
            What::Orphan(asked) => Command::Orphan(asked.resolve(n, known)),
            What::Abandon(asked) => Command::Abandon(asked.resolve(n, known)),
            What::Expire => Command::Expire,
            What::Grace(away) => Command::Grace(away),
            What::Leap(by) => Command::Leap { by },
            What::Configure(limits) => Command::Configure(limits),
        }
    }
}

impl Asked {
    fn resolve(&self, n: usize, known: &Reference) -> RequestId {
        let fresh = request(100 + u8::try_from(n).unwrap());
        match *self {
            Asked::Fresh => fresh,
            Asked::Pool(n) => request(n),
            Asked::Waiting(n) => nth(&known.waits, n).map_or(fresh, |wait| wait.request),
            Asked::Answered(n) => nth_last(&known.answers, n).map_or(fresh, |known| known.request),
        }
    }
}

impl LeaseOf {
    fn resolve(&self, n: usize, known: &Reference) -> Under {
        let fresh = key(1_000 + u32::try_from(n).unwrap());
        match *self {
            LeaseOf::Fresh(ms) => Under::New {
                key: fresh,
                ttl: ttl(ms),
            },
            LeaseOf::Pool(n, ms) => Under::New {
                key: key(n.into()),
                ttl: ttl(ms),
            },
            LeaseOf::Live(n, ms) => {
                let key = nth(&known.leases, n).map_or(fresh, |lease| lease.key);
                Under::Existing {
                    key,
                    ttl: ms.map(ttl),
                }
            }
            LeaseOf::Dead(n) => {
                let key = nth_last(&known.over, n).map_or(fresh, |over| over.key);
                Under::Existing { key, ttl: None }
            }
        }
    }
}

impl Which {
    fn resolve(&self, known: &Reference) -> GrantRef {
        let nobody = GrantRef {
            lock: lock_of(0),
            key: key(999),
            token: None,
        };
        match *self {
            Which::Live(n, with) => nth(&known.grants, n).map_or(nobody, |grant| GrantRef {
                lock: grant.lock.clone(),
                key: grant.key,
                token: with.then_some(grant.token),
            }),
            Which::Over(n, with) => nth_last(&known.over, n).map_or(nobody, |over| GrantRef {
                lock: over.lock.clone(),
                key: over.key,
                token: with.then_some(over.token),
            }),
            Which::Crossed(lock, key) => {
                match (nth(&known.grants, lock), nth(&known.grants, key)) {
                    (Some(one), Some(other)) => GrantRef {
                        lock: one.lock.clone(),
                        key: other.key,
                        token: None,
                    },
                    _ => nobody,
                }
            }
        }
    }
}

/// A lock and others, in order unless the highest bit is set.
fn set_of(lock: u8, also: u8) -> Vec<LockName> {
    let others = (0..4).filter(|n| *n != lock && also & (1 << n) != 0);
    let mut names: Vec<LockName> = std::iter::once(lock).chain(others).map(lock_of).collect();
    names.sort();
    if also & 128 != 0 {
        names.reverse();
    }
    names
}

fn lock_of(n: u8) -> LockName {
    lock_name(LOCKS[usize::from(n)])
}

fn nth<T>(list: &[T], n: usize) -> Option<&T> {
    list.get(n % list.len().max(1))
}

fn nth_last<T>(list: &[T], n: usize) -> Option<&T> {
    list.get(list.len().checked_sub(1 + n % list.len().max(1))?)
}
