//! The real machine: each of its states is stored once, and each step from it is computed once.

use std::rc::Rc;

use foldhash::{HashMap, HashMapExt as _};
use palisade_core::limits::{MAX_WAIT, RESTORE_LEAP};
use palisade_core::machine::{LiveGrant, Record};
use palisade_core::{
    Acquire, Away, ClientId, Command, Effect, Entry, GrantRef, Granted, LeaseKey, LockMode,
    LockName, Machine, Others, Outcome, Permits, RequestId, Timestamp, Token, Ttl, Under, WallTime,
    invariants,
};
use palisade_pipeline::codec::encode_record;

use super::scope::{Scope, name};

/// Identifies one state of the machine.
pub(super) type MachineId = u32;

/// One step of the authority.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// A client requests its wish number `ask`, for the first time or again.
    Acquire {
        client: u8,
        ask: u8,
    },
    /// A client that holds by this wish becomes a reader.
    Downgrade {
        client: u8,
        ask: u8,
    },
    /// A reader in mode update wants to become the writer.
    Upgrade {
        client: u8,
        ask: u8,
    },
    /// The same, for two weaknesses: it, or the other readers, release first.
    ReleaseAndUpgrade {
        client: u8,
        ask: u8,
        queues: bool,
    },
    /// A reader gives its upgrade up while that waits.
    GiveUpUpgrade {
        client: u8,
        ask: u8,
    },
    Release {
        client: u8,
        ask: u8,
        token: Token,
    },
    /// Time passes until the holder's lease is over.
    Expire,
    /// The operator draws a token, by holding a lock of its own for a moment.
    Draw,
    /// The authority restarts on its own log.
    Restart,
    /// Another node takes over, with the same log.
    Lead,
    /// Time passes until the first window of an orphan is over.
    EndWindow,
    /// The authority starts from a backup instead.
    Restore {
        backup: MachineId,
        leap: bool,
        /// Whether it is taken for a restart.
        restarts: bool,
    },
}

/// The result of a step.
pub(super) struct Stepped {
    pub(super) machine: MachineId,
    pub(super) outcome: Outcome,
    /// The clients and wishes that were granted from the queue.
    pub(super) granted: Vec<(u8, u8, Granted)>,
    /// A violated invariant of the machine.
    pub(super) broken: Option<String>,
}

/// A state of the machine, with what is asked of it in every state of the search.
struct Reached {
    machine: Machine,
    /// When the first lease is over, if the lock is held.
    expires: Option<Timestamp>,
    /// When the first window of an orphan is over.
    window: Option<Timestamp>,
    /// The lock's live grants.
    live: Vec<Live>,
}

struct Live {
    client: u8,
    number: Token,
}

pub(super) struct Authority {
    states: Vec<Reached>,
    known: HashMap<Vec<u8>, MachineId>,
    steps: HashMap<(MachineId, Step), Rc<Stepped>>,
    lock: LockName,
    /// The other lock of a set.
    other: LockName,
    scope: Scope,
    clients: Vec<ClientId>,
    operator: (LockName, ClientId),
}

impl Authority {
    /// `None` only if letters were not valid names.
    pub(super) fn new(scope: Scope) -> Option<Authority> {
        let names = (0..scope.clients).map(|client| ClientId::new(&name(client)));
        let mut authority = Authority {
            states: Vec::new(),
            known: HashMap::new(),
            steps: HashMap::new(),
            lock: LockName::new("lock").ok()?,
            other: LockName::new("other").ok()?,
            scope,
            operator: (
                LockName::new("operator").ok()?,
                ClientId::new("operator").ok()?,
            ),
            clients: names.collect::<Result<_, _>>().ok()?,
        };
        let first = authority.keep(Machine::new(1));
        assert_eq!(first, Authority::FIRST);
        Some(authority)
    }

    /// The initial authority, before any request.
    pub(super) const FIRST: MachineId = 0;

    /// How many states of the machine were reached.
    pub(super) fn reached(&self) -> usize {
        self.states.len()
    }

    pub(super) fn is_held(&self, machine: MachineId) -> bool {
        self.state(machine).expires.is_some()
    }

    /// The numbers of the lock's live grants.
    pub(super) fn live(&self, machine: MachineId) -> impl Iterator<Item = Token> {
        let grants = self.state(machine).live.iter();
        grants.map(|grant| grant.number)
    }

    /// The same, without those of a client.
    pub(super) fn live_but(&self, machine: MachineId, client: u8) -> impl Iterator<Item = Token> {
        let grants = self.state(machine).live.iter();
        let others = grants.filter(move |grant| grant.client != client);
        others.map(|grant| grant.number)
    }

    pub(super) fn has_orphans(&self, machine: MachineId) -> bool {
        self.state(machine).window.is_some()
    }

    fn state(&self, machine: MachineId) -> &Reached {
        &self.states[machine as usize]
    }

    pub(super) fn step(&mut self, machine: MachineId, step: Step) -> Rc<Stepped> {
        if let Some(known) = self.steps.get(&(machine, step)) {
            return known.clone();
        }
        let stepped = Rc::new(self.take(machine, step));
        self.steps.insert((machine, step), stepped.clone());
        stepped
    }

    fn take(&mut self, from: MachineId, step: Step) -> Stepped {
        let begin = match step {
            Step::Restore { backup, .. } => backup,
            _ => from,
        };
        let mut machine = self.state(begin).machine.clone();
        let now = machine.now();
        let at = match step {
            Step::Expire => self.state(from).expires.unwrap_or(now),
            Step::EndWindow => self.state(from).window.unwrap_or(now),
            _ => now,
        };
        let mut effects = Vec::new();
        let mut apply = |machine: &mut Machine, command| {
            let entry = Entry {
                at,
                wall: WallTime(0),
                by: palisade_core::Principal::ANONYMOUS,
                command,
            };
            machine.apply(entry, &mut effects).outcome
        };
        let outcome = match step {
            Step::Acquire { client, ask } => {
                let acquire = self.acquire(client, ask);
                apply(&mut machine, Command::Acquire(acquire))
            }
            Step::Downgrade { client, ask } => {
                let acquire = Acquire {
                    mode: LockMode::Shared,
                    wait: None,
                    request: None,
                    under: Under::Existing {
                        key: key(client, ask),
                        ttl: None,
                    },
                    ..self.acquire(client, ask)
                };
                apply(&mut machine, Command::Acquire(acquire))
            }
            Step::Upgrade { client, ask } => {
                let upgrade = self.upgrade(client, ask);
                apply(&mut machine, Command::Acquire(upgrade))
            }
            Step::ReleaseAndUpgrade {
                client,
                ask,
                queues,
            } => {
                let mut upgrade = self.upgrade(client, ask);
                let own = key(client, ask);
                for grant in readers(&machine, &self.lock) {
                    if (grant.key == own) == queues {
                        apply(&mut machine, Command::Release(grant));
                    }
                }
                if queues {
                    upgrade.mode = LockMode::Exclusive;
                    upgrade.under = Under::New {
                        key: LeaseKey::from_bytes(*upgraded(client, ask).as_bytes()),
                        ttl: Ttl::MIN,
                    };
                }
                apply(&mut machine, Command::Acquire(upgrade))
            }
            Step::GiveUpUpgrade { client, ask } => {
                apply(&mut machine, Command::Abandon(upgraded(client, ask)))
            }
            Step::Release { client, ask, token } => {
                let grant = |lock: &LockName| GrantRef {
                    lock: lock.clone(),
                    key: key(client, ask),
                    token: Some(token),
                };
                for other in &*self.also() {
                    apply(&mut machine, Command::Release(grant(other)));
                }
                apply(&mut machine, Command::Release(grant(&self.lock)))
            }
            Step::Expire | Step::EndWindow => apply(&mut machine, Command::Expire),
            Step::Draw => {
                let (lock, operator) = (self.operator.0.clone(), self.operator.1.clone());
                let ask = u8::MAX;
                let outcome = apply(
                    &mut machine,
                    Command::Acquire(Acquire {
                        lock: lock.clone(),
                        client: operator,
                        also: Others::NONE,
                        mode: LockMode::Exclusive,
                        request: None,
                        wait: None,
                        ..self.acquire(0, ask)
                    }),
                );
                let (key, token) = (key(0, ask), None);
                apply(
                    &mut machine,
                    Command::Release(GrantRef { lock, key, token }),
                );
                outcome
            }
            Step::Restart => apply(&mut machine, Command::Grace(Away::Restarted)),
            Step::Lead => apply(&mut machine, Command::Grace(Away::Led)),
            // At the instant of the backup and in this order, as `palisade restore` does.
            Step::Restore { leap, restarts, .. } => {
                let away = if restarts {
                    Away::Restarted
                } else {
                    Away::Restored
                };
                let outcome = apply(&mut machine, Command::Grace(away));
                if leap {
                    apply(&mut machine, Command::Leap { by: RESTORE_LEAP });
                }
                outcome
            }
        };
        let granted = effects.into_iter().filter_map(|effect| match effect {
            Effect::Settled {
                request,
                outcome: Outcome::Granted(granted),
                ..
            } => {
                let (client, ask) = (request.as_bytes()[0], request.as_bytes()[1]);
                Some((client, ask, granted))
            }
            _ => None,
        });
        Stepped {
            granted: granted.collect(),
            broken: invariants::check(&machine)
                .err()
                .map(|broken| broken.to_string()),
            machine: self.keep(machine),
            outcome,
        }
    }

    fn acquire(&self, client: u8, ask: u8) -> Acquire {
        let longer = if self.scope.lasts_longer(client) {
            50 * u64::from(client + 1)
        } else {
            0
        };
        let ttl = u64::from(Ttl::MIN.as_millis()) + longer;
        let exclusive = if !self.scope.is_reader(client) {
            LockMode::Exclusive
        } else if self.scope.is_updater(client) {
            LockMode::Update
        } else {
            LockMode::Shared
        };
        let permits = Permits::new(1, self.scope.slots.into());
        Acquire {
            also: self.also(),
            mode: permits.map_or(exclusive, LockMode::Permits),
            wait: Some(MAX_WAIT),
            ..Acquire::new(
                self.lock.clone(),
                self.clients[usize::from(client)].clone(),
                Under::New {
                    key: key(client, ask),
                    ttl: Ttl::from_millis(ttl).unwrap_or(Ttl::MIN),
                },
                Some(request(client, ask)),
            )
        }
    }

    fn upgrade(&self, client: u8, ask: u8) -> Acquire {
        Acquire {
            mode: LockMode::Upgrade,
            request: Some(upgraded(client, ask)),
            under: Under::Existing {
                key: key(client, ask),
                ttl: None,
            },
            ..self.acquire(client, ask)
        }
    }

    fn also(&self) -> Others {
        let others = (1..self.scope.locks).map(|_| self.other.clone());
        others.collect()
    }

    fn keep(&mut self, machine: Machine) -> MachineId {
        let next = u32::try_from(self.states.len()).unwrap_or(u32::MAX);
        let id = *self.known.entry(canonical(&machine)).or_insert(next);
        if id == next {
            self.states.push(Reached::new(machine, &self.lock));
        }
        id
    }
}

impl Reached {
    fn new(machine: Machine, lock: &LockName) -> Reached {
        let (mut live, mut window) = (Vec::new(), None::<Timestamp>);
        let mut add = |grant: &LiveGrant| {
            if grant.lock == *lock {
                let [client, ..] = *grant.key.as_bytes();
                let number = grant.token;
                live.push(Live { client, number });
            }
        };
        for record in machine.records() {
            match &record {
                Record::Grant(grant) => add(grant),
                Record::Share(share) => add(&share.grant),
                Record::Waiter(waiter) => {
                    window = window.into_iter().chain(waiter.orphan).min();
                }
                _ => {}
            }
        }
        let expires = machine.view(lock, machine.now()).and_then(|view| {
            let readers = view.readers.iter().map(|reader| &reader.holder);
            let remaining = readers.chain(&view.holder).map(|holder| holder.remaining);
            Some(machine.now().after(remaining.min()?))
        });
        Reached {
            machine,
            expires,
            window,
            live,
        }
    }
}

fn key(client: u8, ask: u8) -> LeaseKey {
    LeaseKey::from_bytes(*request(client, ask).as_bytes())
}

fn request(client: u8, ask: u8) -> RequestId {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1]) = (client, ask);
    RequestId::from_bytes(bytes)
}

/// The request to upgrade this wish's grant.
fn upgraded(client: u8, ask: u8) -> RequestId {
    let mut bytes = *request(client, ask).as_bytes();
    bytes[2] = 1;
    RequestId::from_bytes(bytes)
}

/// The shared grants of a lock.
fn readers(machine: &Machine, lock: &LockName) -> Vec<GrantRef> {
    let shares = machine.records().filter_map(|record| match record {
        Record::Share(share) if share.grant.lock == *lock => Some(GrantRef {
            lock: share.grant.lock,
            key: share.grant.key,
            token: Some(share.grant.token),
        }),
        _ => None,
    });
    shares.collect()
}

/// Equal for machines that will answer alike: a snapshot without the event counter.
fn canonical(machine: &Machine) -> Vec<u8> {
    let mut snapshot = Vec::new();
    for mut record in machine.records() {
        if let Record::Head(head) = &mut record {
            (head.revision, head.arrivals) = (0, 0);
        }
        encode_record(&mut snapshot, &record);
    }
    snapshot
}
