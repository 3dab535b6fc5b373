//! The run: one queue of events in virtual time, and everything that takes part.
//!
//! ```text
//!   client 0 … n (the real client, on a clock of its own)
//!      │ ▲   messages: delayed, lost, doubled, reordered, cut off
//!      ▼ │
//!   authority (machine, log)          resource (fence rule, log)
//! ```
//!
//! One thread. Each step takes the earliest event, lets the one process it concerns run until it waits
//! again, and puts what that process sent on its way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use palisade_core::{AuthorityId, LockName, Token};
use palisade_server::pipeline::{Answer, Failure, Request};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use super::clock::{MachineClock, Virtual, hold};
use super::fact::{Fact, What};
use super::mutants::Mutant;
use super::observer::Observer;
use super::plan::{AUTHORITY, NODES, Plan, RESOURCE};
use super::port::{Ask, Outgoing, Port, Reply};
use super::resource::{Job, Resource};
use super::rng::Rng;
use super::server::{Authority, Incoming, ReplyTo};
use super::worker::{Elements, Worker, lock_name};

/// How long everything may take once nothing fails any more, in milliseconds.
const QUIET_MS: u64 = 60_000;

pub(crate) const MS: u64 = 1_000_000;

#[derive(Clone)]
pub(crate) enum Event {
    ToAuthority(ReplyTo, Request),
    Hangup(u8, u32),
    ToClient(ReplyTo, Answer),
    Broken(u8, u32),
    ToResource(ReplyTo, Ask),
    FromResource(ReplyTo, Reply),
    RoundDone(u32),
    ResourceDone(u32),
    Effect(u32),
    Strike(usize),
    Resume(u8),
    StartClient(u8),
    StartAuthority,
    StartResource,
    Rearm(u8),
    FreeDisk,
    Quiet,
}

struct Entry {
    at: u64,
    serial: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.serial == other.serial
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

/// A client's machine.
pub(crate) struct Client {
    pub(crate) clock: Arc<MachineClock>,
    pub(crate) port: Option<Arc<Port>>,
    pub(crate) task: Option<AbortHandle>,
    pub(crate) life: u32,
    /// Counts its connections to the authority.
    pub(crate) session: u32,
    /// What arrived while it did not run.
    pub(crate) held: Vec<Event>,
    added: bool,
}

pub(crate) struct World {
    pub(crate) plan: Arc<Plan>,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) time: Arc<Virtual>,
    pub(crate) end: u64,
    queue: BinaryHeap<Reverse<Entry>>,
    serial: u64,
    pub(crate) rng: Rng,
    pub(crate) paused_until: [u64; NODES],
    pub(crate) cuts: Vec<(u8, u8, u64)>,
    pub(crate) quiet: bool,
    pub(crate) clients: Vec<Client>,
    pub(crate) authority: Authority,
    pub(crate) authority_clock: Arc<MachineClock>,
    pub(crate) authority_boot: u32,
    syncing: bool,
    pub(crate) damaged: bool,
    pub(crate) resource: Resource,
    pub(crate) resource_boot: u32,
    elements: Arc<Elements>,
    name: AuthorityId,
    /// The highest token that is out: what an operator would be given now.
    pub(crate) newest: Option<Token>,
    pub(crate) observer: Observer,
    runtime: Runtime,
}

impl World {
    pub(crate) fn new(plan: Plan, mutant: Option<Mutant>, trace: bool) -> Result<World, String> {
        let time = Arc::new(Virtual::default());
        let observer = Observer::new(&plan, trace);
        let plan = Arc::new(plan);
        let seed = plan.seed;
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .map_err(|error| text(&error))?;
        let clock = |node: u8| {
            let shown = u64::from(node + 1) * 3_600_000 * MS;
            MachineClock::new(Arc::clone(&time), shown, plan.rates_ppm[usize::from(node)])
        };
        let clients = (0..plan.clients)
            .map(|client| Client {
                clock: clock(client),
                port: None,
                task: None,
                life: 0,
                session: 0,
                held: Vec::new(),
                added: false,
            })
            .collect();
        let name = AuthorityId::new("sim").map_err(|error| text(&error))?;
        let locks = (0..plan.locks).map(|lock| LockName::new(&lock_name(lock)));
        let locks: Vec<LockName> = locks.collect::<Result<_, _>>().map_err(|error| text(&error))?;
        let authority_clock = clock(AUTHORITY);
        let mut world = World {
            end: (plan.chaos_ms + QUIET_MS) * MS,
            queue: BinaryHeap::new(),
            serial: 0,
            rng: Rng::fork(seed, 3),
            paused_until: [0; NODES],
            cuts: Vec::new(),
            quiet: false,
            clients,
            authority: Authority::new(seed, Arc::clone(&authority_clock), mutant),
            authority_clock,
            authority_boot: 0,
            syncing: false,
            damaged: false,
            resource: Resource::new(seed, locks, name.clone(), mutant),
            resource_boot: 0,
            elements: Arc::default(),
            name,
            newest: None,
            observer,
            runtime,
            time,
            mutant,
            plan,
        };
        world.open();
        Ok(world)
    }

    fn open(&mut self) {
        for index in 0..self.plan.strikes.len() {
            let at = self.plan.strikes[index].0 * MS;
            self.at(at, Event::Strike(index));
        }
        self.at(self.plan.chaos_ms * MS, Event::Quiet);
        self.at(0, Event::StartAuthority);
        self.at(0, Event::StartResource);
        for client in 0..self.plan.clients {
            self.at(0, Event::StartClient(client));
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.time.now()
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.serial += 1;
        let serial = self.serial;
        self.queue.push(Reverse(Entry { at, serial, event }));
    }

    pub(crate) fn after(&mut self, nanos: u64, event: Event) {
        self.at(self.now() + nanos, event);
    }

    pub(crate) fn note(&mut self, fact: Fact) {
        if let Fact::Added { client, .. } = &fact
            && self.quiet
        {
            self.clients[usize::from(*client)].added = true;
        }
        self.observer.see(self.now(), fact);
    }

    pub(crate) fn runs(&self, node: u8) -> bool {
        self.paused_until[usize::from(node)] <= self.now()
    }

    /// Takes steps until a rule is broken, everybody is served, or time is up.
    pub(crate) fn run(mut self) -> Observer {
        while self.observer.violation.is_none() && !self.served() {
            let Some(at) = self.step() else {
                break;
            };
            if at > self.end {
                break;
            }
        }
        self.note(Fact::Ended);
        for client in &mut self.clients {
            let lease = client
                .port
                .take()
                .and_then(|port| hold(&port.hand).take());
            drop(lease);
        }
        self.observer
    }

    fn served(&self) -> bool {
        self.quiet && self.clients.iter().all(|client| client.added)
    }

    /// One event; gives its time.
    fn step(&mut self) -> Option<u64> {
        let queued = self.queue.peek().map(|Reverse(entry)| entry.at);
        let alarm = (0..self.plan.clients)
            .filter(|client| self.runs(*client))
            .filter_map(|client| {
                let at = self.clients[usize::from(client)].clock.next_alarm()?;
                Some((at, client))
            })
            .min();
        let due = self
            .is_idle()
            .then(|| self.authority.next_due())
            .flatten();
        let first = [queued, alarm.map(|(at, _)| at), due];
        let at = first.into_iter().flatten().min()?.max(self.now());
        self.time.set(at);
        if queued.is_some_and(|queued| queued <= at) {
            if let Some(Reverse(entry)) = self.queue.pop() {
                self.event(entry.event);
            }
        } else if let Some((_, client)) = alarm.filter(|(alarm, _)| *alarm <= at) {
            self.clients[usize::from(client)].clock.ring();
            self.settle(client);
        }
        self.authority_works();
        self.resource_works();
        Some(at)
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::ToAuthority(to, request) => self.to_authority(to, request),
            Event::Hangup(client, session) => {
                self.authority.take_in(Incoming::Hangup(client, session));
            }
            Event::ToClient(ReplyTo { client, .. }, _)
            | Event::FromResource(ReplyTo { client, .. }, _)
            | Event::Broken(client, _) => self.to_client(client, event),
            Event::ToResource(to, ask) => {
                self.resource.take_in(Job { to, ask });
                self.resource_facts();
            }
            Event::RoundDone(boot) => self.round_done(boot),
            Event::ResourceDone(boot) => self.resource_done(boot),
            Event::Effect(boot) => {
                if boot == self.resource_boot {
                    self.resource.take_effect();
                    self.resource_facts();
                }
            }
            Event::StartClient(client) => self.start_client(client),
            Event::Resume(node) => self.resume(node),
            other => self.nemesis(other),
        }
    }

    fn to_authority(&mut self, to: ReplyTo, request: Request) {
        if self.authority.is_up() {
            self.authority.take_in(Incoming::Ask(to, request));
        } else {
            let refused = Failure::Unavailable("connection refused".into());
            let answer = Event::ToClient(to, Answer::Failed(refused));
            self.send(AUTHORITY, to.client, "refused", answer);
        }
    }

    /// Lets a client have what arrived for it, or keeps it until the client runs again.
    fn to_client(&mut self, client: u8, event: Event) {
        let runs = self.runs(client);
        let machine = &mut self.clients[usize::from(client)];
        if !runs {
            return machine.held.push(event);
        }
        let Some(port) = machine.port.clone() else {
            return;
        };
        match event {
            Event::ToClient(to, answer) if to.life == machine.session => {
                port.answer(to.operation, answer);
            }
            Event::FromResource(to, reply) if to.life == machine.life => {
                port.reply(to.operation, reply);
            }
            Event::Broken(_, session) if session == machine.session => {
                machine.session += 1;
                port.broken();
            }
            _ => return,
        }
        self.settle(client);
    }

    fn resume(&mut self, node: u8) {
        if usize::from(node) >= self.clients.len() || !self.runs(node) {
            return;
        }
        let held = std::mem::take(&mut self.clients[usize::from(node)].held);
        for event in held {
            self.to_client(node, event);
        }
    }

    fn start_client(&mut self, client: u8) {
        let machine = &mut self.clients[usize::from(client)];
        if machine.port.is_some() {
            return;
        }
        let port = Port::new(Arc::clone(&machine.clock), self.name.clone(), self.mutant);
        let worker = Worker {
            me: client,
            port: Arc::clone(&port),
            rng: Rng::fork(
                self.plan.seed,
                100 + u64::from(client) + 10 * u64::from(machine.life),
            ),
            plan: Arc::clone(&self.plan),
            elements: Arc::clone(&self.elements),
            mutant: self.mutant,
        };
        machine.port = Some(port);
        machine.task = Some(self.runtime.spawn(worker.work()).abort_handle());
        self.settle(client);
    }

    /// Lets a client run until it waits again, and takes what it sent.
    pub(crate) fn settle(&mut self, client: u8) {
        self.runtime.block_on(async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
        let machine = &self.clients[usize::from(client)];
        let (session, life) = (machine.session, machine.life);
        let Some(port) = machine.port.clone() else {
            return;
        };
        let (out, facts) = port.take_out();
        for fact in facts {
            self.note(fact);
        }
        for message in out {
            match message {
                Outgoing::Authority(operation, request) => {
                    let what = kind(&request);
                    let to = ReplyTo {
                        client,
                        life: session,
                        operation,
                    };
                    self.send(client, AUTHORITY, what, Event::ToAuthority(to, request));
                }
                Outgoing::Resource(operation, ask) => {
                    let to = ReplyTo {
                        client,
                        life,
                        operation,
                    };
                    self.send(client, RESOURCE, "ask", Event::ToResource(to, ask));
                }
            }
        }
    }

    /// Puts a message on its way, or loses it, or doubles it.
    pub(crate) fn send(&mut self, from: u8, to: u8, what: &'static str, event: Event) {
        let copies = if !self.quiet && self.rng.chance(self.plan.duplication) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let delay_us = self.delay(from, to);
            self.note(Fact::Sent {
                from,
                to,
                what,
                delay_us,
            });
            if let Some(delay) = delay_us {
                self.after(delay * 1_000, event.clone());
            }
        }
    }

    fn delay(&mut self, from: u8, to: u8) -> Option<u64> {
        let now = self.now();
        if self.quiet {
            return Some(self.rng.between(100, 1_000));
        }
        let cut = |(a, b, until): &(u8, u8, u64)| (*a, *b) == (from, to) && now < *until;
        if self.cuts.iter().any(cut) || self.rng.chance(self.plan.loss) {
            return None;
        }
        let (least, most) = self.plan.delay_us;
        let usual = self.rng.between(least, most);
        if self.rng.chance(self.plan.spikes) {
            return Some(usual + self.rng.between(1, 3_000) * 1_000);
        }
        Some(usual)
    }

    fn sync_time(&mut self) -> u64 {
        let (least, most) = self.plan.sync_us;
        let slow = !self.quiet && self.rng.chance(10);
        self.rng.between(least, most) * if slow { 100_000 } else { 1_000 }
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.syncing && self.runs(AUTHORITY)
    }

    fn authority_works(&mut self) {
        if !self.is_idle() || !self.authority.has_work() {
            return;
        }
        self.round();
    }

    /// The first half of a round of the authority.
    pub(crate) fn round(&mut self) {
        self.authority.begin();
        self.syncing = true;
        self.authority_facts();
        let takes = if self.authority.has_batch() {
            self.sync_time()
        } else {
            0
        };
        self.after(takes, Event::RoundDone(self.authority_boot));
    }

    fn round_done(&mut self, boot: u32) {
        if boot != self.authority_boot {
            return;
        }
        if !self.runs(AUTHORITY) {
            let until = self.paused_until[usize::from(AUTHORITY)];
            return self.at(until, Event::RoundDone(boot));
        }
        self.syncing = false;
        let failed = self.authority.finish();
        self.authority_facts();
        if failed.is_err() {
            // A failed sync is never retried: the process stops, and is started again (A6).
            self.stop_authority(false, 0);
            self.after(50 * MS, Event::StartAuthority);
        }
    }

    /// The authority's process is gone; whoever is connected learns it.
    pub(crate) fn stop_authority(&mut self, power: bool, chance: u64) {
        if self.authority.is_up() {
            self.authority.die(power, chance);
        }
        self.authority_boot += 1;
        self.syncing = false;
        for client in 0..self.plan.clients {
            let session = self.clients[usize::from(client)].session;
            let delay = self.rng.between(1, 50);
            self.after(delay * MS, Event::Broken(client, session));
        }
    }

    /// Shows what the authority did, and lets its answers go.
    pub(crate) fn authority_facts(&mut self) {
        for fact in std::mem::take(&mut self.authority.facts) {
            let granted = match &fact {
                Fact::Applied(turn) => {
                    matches!(turn.what, What::Granted(_)).then_some((turn.lock, turn.client, turn.token))
                }
                _ => None,
            };
            self.note(fact);
            if let Some((lock, client, token)) = granted {
                self.newest = self.newest.max(Token::new(token).ok());
                self.believers(lock, client, token);
            }
        }
        for (to, answer) in std::mem::take(&mut self.authority.out) {
            if usize::from(to.client) < self.clients.len() {
                self.send(AUTHORITY, to.client, "answer", Event::ToClient(to, answer));
            }
        }
    }

    fn believers(&mut self, lock: u8, client: u8, token: u64) {
        let believers: Vec<(u8, u64)> = (0..self.plan.clients)
            .filter(|other| *other != client)
            .filter_map(|other| {
                let port = self.clients[usize::from(other)].port.as_ref()?;
                let (held, old) = port.believes()?;
                (held == lock).then_some((other, old))
            })
            .collect();
        if !believers.is_empty() {
            self.note(Fact::Believers {
                lock,
                token,
                believers,
            });
        }
    }

    fn resource_works(&mut self) {
        if !self.resource.has_work() {
            return;
        }
        if self.resource.begin() {
            let later = self.rng.between(1, 60);
            self.after(later * MS, Event::Effect(self.resource_boot));
        }
        let takes = self.sync_time();
        self.after(takes, Event::ResourceDone(self.resource_boot));
    }

    fn resource_done(&mut self, boot: u32) {
        if boot != self.resource_boot {
            return;
        }
        let failed = self.resource.finish();
        self.resource_facts();
        if failed.is_err() {
            self.stop_resource(0);
            self.after(20 * MS, Event::StartResource);
        }
    }

    pub(crate) fn stop_resource(&mut self, chance: u64) {
        self.resource.die(chance);
        self.resource_boot += 1;
    }

    pub(crate) fn resource_facts(&mut self) {
        for fact in std::mem::take(&mut self.resource.facts) {
            self.note(fact);
        }
        for (to, reply) in std::mem::take(&mut self.resource.out) {
            self.send(RESOURCE, to.client, "reply", Event::FromResource(to, reply));
        }
    }
}

fn kind(request: &Request) -> &'static str {
    match request {
        Request::Acquire(_) => "acquire",
        Request::Renew { .. } => "renew",
        Request::Release(_) => "release",
        Request::Abandon(_) => "abandon",
        _ => "other",
    }
}
