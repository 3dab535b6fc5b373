//! The run: one queue of events in virtual time, and all participants.
//!
//! ```text
//!   client 0 … n (the real client, with its own clock)
//!      │ ▲   messages: delayed, lost, duplicated, reordered, cut off
//!      ▼ │
//!   authority (machine, log)          resource (fence rule, log)
//! ```
//!
//! One thread. Each step takes the earliest event, lets its process run until it waits again, and sends the
//! messages of the process.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8};

use palisade_core::{AuthorityId, LockName, Token};
use palisade_pipeline::{Answer, Failure, Request};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use super::authority::{Authority, Call, Incoming, ReplyTo};
use super::check::rule;
use super::clock::{MachineClock, VirtualTime, hold};
use super::counts::Counts;
use super::fact::Fact;
use super::mutants::Mutant;
use super::observer::{Observer, Run, Violation};
use super::plan::{AUTHORITY, LOCKS, NODES, Plan, RESOURCE};
use super::port::{Outgoing, Port};
use super::queue::{Event, Queue};
use super::resource::{Job, Resource};
use super::rng::Rng;
use super::target::Target;
use super::worker::{Elements, Worker};

/// How long everything may take after the faults end, in milliseconds.
const QUIET_MS: u64 = 60_000;

pub(crate) const MS: u64 = 1_000_000;

/// A client's machine.
pub(crate) struct Client {
    pub(crate) clock: Arc<MachineClock>,
    pub(crate) port: Option<Arc<Port>>,
    pub(crate) task: Option<AbortHandle>,
    pub(crate) incarnation: u32,
    /// Counts its connections to the authority.
    pub(crate) session: u32,
    /// Messages that arrived while it was paused.
    pub(crate) held: Vec<Event>,
    added: bool,
}

pub(crate) struct World {
    pub(crate) plan: Arc<Plan>,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) time: Arc<VirtualTime>,
    pub(crate) end: u64,
    queue: Queue,
    pub(crate) rng: Rng,
    pub(crate) paused_until: [u64; NODES],
    pub(crate) cuts: Vec<(u8, u8, u64)>,
    pub(crate) quiet: bool,
    /// The same, for the workers.
    pub(crate) workers_quiet: Arc<AtomicBool>,
    /// How many permits each semaphore has, as the clients know it.
    pub(crate) permits: Arc<[AtomicU8; LOCKS]>,
    pub(crate) clients: Vec<Client>,
    pub(crate) authority: Authority,
    pub(crate) authority_clock: Arc<MachineClock>,
    pub(crate) authority_boot: u32,
    /// The single callers since it started.
    pub(crate) calls: BTreeMap<u32, Rc<Call>>,
    pub(crate) next_call: u32,
    pub(crate) syncing: bool,
    pub(crate) damaged: bool,
    pub(crate) resource: Resource,
    pub(crate) resource_boot: u32,
    pub(crate) resource_lost: bool,
    elements: Arc<Elements>,
    /// The resources' keys.
    keys: Arc<[LockName]>,
    name: AuthorityId,
    /// The highest issued token: an operator would get this one now.
    pub(crate) newest: Option<Token>,
    pub(crate) observer: Observer,
    runtime: Runtime,
}

impl World {
    pub(crate) fn new(plan: Plan, mutant: Option<Mutant>, trace: bool) -> Result<World, String> {
        let time = Arc::new(VirtualTime::default());
        let observer = Observer::new(&plan, mutant, trace);
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
                incarnation: 0,
                session: 0,
                held: Vec::new(),
                added: false,
            })
            .collect();
        let name = AuthorityId::new("sim").map_err(|error| text(&error))?;
        let keys = plan.targets().into_iter().map(Target::key);
        let keys: Arc<[LockName]> = keys
            .collect::<Result<_, _>>()
            .map_err(|error| text(&error))?;
        let authority_clock = clock(AUTHORITY);
        let mut world = World {
            end: (plan.chaos_ms + QUIET_MS) * MS,
            queue: Queue::default(),
            rng: Rng::fork(seed, 3),
            paused_until: [0; NODES],
            cuts: Vec::new(),
            quiet: false,
            workers_quiet: Arc::default(),
            permits: Arc::new(plan.permits.map(AtomicU8::new)),
            clients,
            authority: Authority::new(&plan, Arc::clone(&authority_clock), mutant),
            authority_clock,
            authority_boot: 0,
            calls: BTreeMap::new(),
            next_call: 0,
            syncing: false,
            damaged: false,
            resource: Resource::new(seed, Arc::clone(&keys), name.clone(), mutant),
            resource_boot: 0,
            resource_lost: false,
            elements: Arc::default(),
            keys,
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
        for index in 0..self.plan.faults.len() {
            let at = self.plan.faults[index].0 * MS;
            self.at(at, Event::PlannedFault(index));
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
        self.queue.push(at, event);
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

    /// Takes steps until a rule is broken, all clients are done, or time is up.
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
            let port = client.port.take();
            let leases = port.map(|port| std::mem::take(&mut *hold(&port.hand)));
            drop(leases);
        }
        self.observer
    }

    fn served(&self) -> bool {
        self.quiet && self.clients.iter().all(|client| client.added)
    }

    /// One event; returns its time.
    fn step(&mut self) -> Option<u64> {
        let queued = self.queue.next_at();
        let alarm = (0..self.plan.clients)
            .filter(|client| self.runs(*client))
            .filter_map(|client| {
                let at = self.clients[usize::from(client)].clock.next_alarm()?;
                Some((at, client))
            })
            .min();
        let due = self
            .is_idle()
            .then(|| self.authority.next_alarm())
            .flatten();
        let first = [queued, alarm.map(|(at, _)| at), due];
        let at = first.into_iter().flatten().min()?.max(self.now());
        self.time.set(at);
        if queued.is_some_and(|queued| queued <= at) {
            if let Some(event) = self.queue.pop() {
                self.event(event);
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
            Event::ToAuthority(to, request) => self.reaches_authority(to, request),
            Event::Hangup(client, session) => {
                self.authority.take_in(Incoming::Hangup(client, session));
            }
            Event::ToClient(ReplyTo { client, .. }, _)
            | Event::FromResource(ReplyTo { client, .. }, _)
            | Event::Broken(client, _) => self.reaches_client(client, event),
            Event::ToResource(to, ask) => {
                self.resource.take_in(Job { to, ask });
                self.resource_facts();
            }
            Event::CallerReads(number) => {
                if let Some(call) = self.calls.get(&number) {
                    call.reads();
                }
            }
            Event::CallerLeaves(number) => {
                let leaves = self.calls.remove(&number).map(|call| call.leaves());
                for heard in leaves.into_iter().flatten() {
                    self.authority.take_in(heard);
                }
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

    fn reaches_authority(&mut self, to: ReplyTo, request: Request) {
        if self.authority.is_up() {
            self.authority.take_in(Incoming::Ask(to, request));
        } else {
            let refused = Failure::Unavailable("connection refused".into());
            let answer = Event::ToClient(to, Answer::Failed(refused));
            self.send(AUTHORITY, to.client, "refused", answer);
        }
    }

    /// Delivers an event to a client, or keeps it until the client runs again.
    fn reaches_client(&mut self, client: u8, event: Event) {
        let runs = self.runs(client);
        let machine = &mut self.clients[usize::from(client)];
        if !runs {
            return machine.held.push(event);
        }
        let Some(port) = machine.port.clone() else {
            return;
        };
        match event {
            Event::ToClient(to, answer) if to.incarnation == machine.session => {
                port.answer(to.operation, answer);
            }
            Event::FromResource(to, reply) if to.incarnation == machine.incarnation => {
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
            self.reaches_client(node, event);
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
                100 + u64::from(client) + 10 * u64::from(machine.incarnation),
            ),
            plan: Arc::clone(&self.plan),
            elements: Arc::clone(&self.elements),
            keys: Arc::clone(&self.keys),
            quiet: Arc::clone(&self.workers_quiet),
            permits: Arc::clone(&self.permits),
            mutant: self.mutant,
        };
        machine.port = Some(port);
        machine.task = Some(self.runtime.spawn(worker.work()).abort_handle());
        self.settle(client);
    }

    /// Lets a client run until it waits again, and takes its messages.
    pub(crate) fn settle(&mut self, client: u8) {
        self.runtime.block_on(async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        });
        let machine = &self.clients[usize::from(client)];
        let (session, incarnation) = (machine.session, machine.incarnation);
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
                        incarnation: session,
                        operation,
                    };
                    self.send(client, AUTHORITY, what, Event::ToAuthority(to, request));
                }
                Outgoing::Resource(operation, ask) => {
                    let to = ReplyTo {
                        client,
                        incarnation,
                        operation,
                    };
                    self.send(client, RESOURCE, "ask", Event::ToResource(to, ask));
                }
            }
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

/// Runs a plan, with one rule removed or none.
///
/// A machine that cannot even start a run, and an assertion that fails, end in a violation that says so.
#[must_use]
pub fn run(plan: Plan, mutant: Option<Mutant>, trace: bool) -> Run {
    let ran = catch_unwind(AssertUnwindSafe(|| {
        World::new(plan, mutant, trace).map(|world| world.run().into_run())
    }));
    let (rule, what) = match ran {
        Ok(Ok(run)) => return run,
        Ok(Err(what)) => ("the simulation itself", what),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            (
                rule::ASSERTION,
                text.unwrap_or("it gave no reason").to_owned(),
            )
        }
    };
    Run {
        hash: 0,
        violation: Some(Violation { rule, what, at: 0 }),
        trace: Vec::new(),
        counts: Counts::default(),
    }
}
