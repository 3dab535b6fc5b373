//! The simulation: virtual time, the network and the authority.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use fastrand::Rng;
use palisade_core::{
    Away, ClientId, Command, Effect, Entry, Holder, Machine, Outcome, RequestId, Span, Timestamp,
    Token, WallTime,
};

use super::client::{Client, Step, Wish};
use super::shape::Shape;
use crate::history::event::{Answer, Call, Event};

/// An event at an instant; events at equal instants happen in the order in which they were scheduled.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum ScheduledEvent {
    /// A client takes its next step.
    Wake { client: usize },
    /// A request reaches the authority.
    Arrive { op: usize },
    /// An answer reaches its client.
    Back { op: usize, answer: usize },
    /// A client stops waiting for an answer.
    GiveUp { op: usize },
    /// The authority stops running.
    Leave,
    /// The authority runs again.
    Return { since: Timestamp, restarted: bool },
}

/// A call in flight.
struct Pending {
    client: usize,
    wish: Wish,
    done: bool,
}

pub(super) struct Simulation {
    rng: Rng,
    shape: Shape,
    machine: Machine,
    now: Timestamp,
    planned: BinaryHeap<Reverse<(Timestamp, u64, ScheduledEvent)>>,
    plans: u64,
    clients: Vec<Client>,
    ops: Vec<Pending>,
    answers: Vec<(Answer, Option<palisade_core::Granted>)>,
    waiting: BTreeMap<RequestId, usize>,
    /// The tokens of shared phases: a denial that is remembered may name one that is over.
    phases: BTreeSet<Token>,
    /// The denial of each request: a repeat gets the same answer.
    denials: BTreeMap<Box<str>, Answer>,
    /// Until when the authority is stopped.
    away: Option<Timestamp>,
    events: Vec<Event>,
    /// Stored only on request.
    log: Option<Vec<Entry>>,
}

impl Simulation {
    pub(super) fn new(seed: u64, shape: Shape) -> Simulation {
        let mut simulation = Simulation {
            rng: Rng::with_seed(seed),
            shape,
            machine: Machine::new(seed),
            now: Timestamp::ZERO,
            planned: BinaryHeap::new(),
            plans: 0,
            clients: Vec::new(),
            ops: Vec::new(),
            answers: Vec::new(),
            waiting: BTreeMap::new(),
            phases: BTreeSet::new(),
            denials: BTreeMap::new(),
            away: None,
            events: Vec::new(),
            log: None,
        };
        for number in 0..shape.clients {
            simulation.clients.push(Client::new(number));
            let nap = simulation.rng.u64(0..50_000_000);
            simulation.plan(nap, ScheduledEvent::Wake { client: number });
        }
        let first = simulation.rng.u64(200_000_000..10_000_000_000);
        simulation.plan(first, ScheduledEvent::Leave);
        simulation
    }

    pub(super) fn run_history(mut self) -> Vec<Event> {
        self.run();
        self.events
    }

    pub(super) fn run_log(mut self) -> Vec<Entry> {
        self.log = Some(Vec::new());
        self.run();
        self.log.unwrap_or_default()
    }

    /// Runs until all calls were made and none is in flight.
    fn run(&mut self) {
        while let Some(Reverse((at, ..))) = self.planned.peek() {
            let due = self.machine.next_due().map(|due| due.max(self.now));
            if let Some(due) = due.filter(|due| due < at && self.away.is_none()) {
                self.now = due;
                self.apply(Command::Expire);
                continue;
            }
            let Some(Reverse((at, _, event))) = self.planned.pop() else {
                break;
            };
            self.now = at;
            self.happen(event);
        }
    }

    fn plan(&mut self, after_ns: u64, event: ScheduledEvent) {
        let at = self.now.after(Span::from_nanos(after_ns));
        self.plans += 1;
        self.planned.push(Reverse((at, self.plans, event)));
    }

    /// Usually a fast network, sometimes a slow one.
    fn delay(&mut self) -> u64 {
        match self.rng.u8(0..40) {
            0 => self.rng.u64(1_000_000..1_500_000_000),
            1..8 => self.rng.u64(100_000..20_000_000),
            _ => self.rng.u64(20_000..1_000_000),
        }
    }

    fn lost(&mut self) -> bool {
        self.rng.u8(0..33) == 0
    }

    fn happen(&mut self, event: ScheduledEvent) {
        match event {
            ScheduledEvent::Wake { client } => self.wake(client),
            ScheduledEvent::Arrive { op } => self.arrive(op),
            ScheduledEvent::Back { op, answer } => self.back(op, answer),
            ScheduledEvent::GiveUp { op } => self.give_up(op),
            ScheduledEvent::Leave => self.leave(),
            ScheduledEvent::Return { since, restarted } => self.come_back(since, restarted),
        }
    }

    fn wake(&mut self, client: usize) {
        if self.ops.len() >= self.shape.operations {
            return;
        }
        match self.clients[client].step(&mut self.rng, &self.shape) {
            Step::Ask(wish) => self.ask(client, wish),
            Step::Rest(nanos) => self.plan(nanos, ScheduledEvent::Wake { client }),
        }
    }

    fn ask(&mut self, client: usize, wish: Wish) {
        let op = self.ops.len();
        self.events.push(Event::Call {
            at: self.now,
            id: op as u64,
            client: self.clients[client].id.clone(),
            call: wish.call(),
        });
        if !self.lost() {
            let delay = self.delay();
            self.plan(delay, ScheduledEvent::Arrive { op });
        }
        let patience = wish.patience() + self.rng.u64(200_000_000..800_000_000);
        self.plan(patience, ScheduledEvent::GiveUp { op });
        self.ops.push(Pending {
            client,
            wish,
            done: false,
        });
    }

    fn arrive(&mut self, op: usize) {
        if let Some(until) = self.away {
            // The network keeps the request until the authority runs again.
            let wait = until.since(self.now).as_nanos() + 1;
            self.plan(wait, ScheduledEvent::Arrive { op });
            return;
        }
        let client = self.ops[op].client;
        let command = self.ops[op].wish.command(&self.clients[client].id, op);
        let Some(command) = command else {
            let answer = self.show(op);
            self.answer(op, answer, None);
            return;
        };
        let request = match &command {
            Command::Acquire(acquire) => acquire.request,
            _ => None,
        };
        let outcome = self.apply(command);
        match (outcome, request) {
            (Outcome::Queued, Some(request)) => {
                self.waiting.insert(request, op);
            }
            (outcome, _) => self.report(op, outcome),
        }
    }

    fn show(&self, op: usize) -> Answer {
        let call = self.ops[op].wish.call();
        match self.machine.holder(call.lock(), self.now) {
            Some(holder) if self.has_readers(op) => Answer::HeldShared {
                phase: holder.token,
            },
            Some(holder) => Answer::Held {
                token: holder.token,
                holder: holder.client,
            },
            None => Answer::Free,
        }
    }

    /// Whether the lock of an operation has readers now.
    fn has_readers(&self, op: usize) -> bool {
        let call = self.ops[op].wish.call();
        let view = self.machine.view(call.lock(), self.now);
        view.is_some_and(|view| view.reader_count > 0 && view.permits.is_none())
    }

    /// Whether the holder of the lock of an operation has this token now, and this name if one is given.
    fn is_held_with(&self, op: usize, token: Token, client: Option<&ClientId>) -> bool {
        let call = self.ops[op].wish.call();
        let holder = self.machine.holder(call.lock(), self.now);
        holder.is_some_and(|holder| {
            holder.token == token && client.is_none_or(|client| *client == holder.client)
        })
    }

    /// The authority may also name a client that waits, with the last token of the lock.
    fn denial(&mut self, op: usize, holder: Holder) -> Answer {
        let call = self.ops[op].wish.call();
        let answer = if self.phases.contains(&holder.token) {
            Answer::HeldShared {
                phase: holder.token,
            }
        } else if self.is_held_with(op, holder.token, Some(&holder.client)) && !call.is_of_set() {
            Answer::Held {
                token: holder.token,
                holder: holder.client,
            }
        } else {
            Answer::Denied
        };
        match call {
            Call::Acquire {
                request: Some(request),
                ..
            } => self.denials.entry(request).or_insert(answer).clone(),
            _ => answer,
        }
    }

    fn apply(&mut self, command: Command) -> Outcome {
        let mut effects = Vec::new();
        let entry = Entry {
            at: self.now,
            wall: WallTime(0),
            by: palisade_core::Principal::ANONYMOUS,
            command,
        };
        if let Some(log) = &mut self.log {
            log.push(entry.clone());
        }
        let outcome = self.machine.apply(entry, &mut effects).outcome;
        for effect in effects {
            if let Effect::Settled {
                request, outcome, ..
            } = effect
                && let Some(op) = self.waiting.remove(&request)
            {
                self.report(op, outcome);
            }
        }
        outcome
    }

    fn report(&mut self, op: usize, outcome: Outcome) {
        let (answer, granted) = match outcome {
            Outcome::Granted(granted) => {
                let shared = granted.shared.filter(|_| granted.slots.is_empty());
                self.phases.extend(shared.map(|_| granted.token));
                let answer = Answer::Granted {
                    token: granted.number(),
                    lease: granted.lease.0,
                    phase: shared.map(|_| granted.token),
                    slots: granted.slots,
                };
                (answer, Some(granted))
            }
            Outcome::Held(holder) => (self.denial(op, holder), None),
            Outcome::Renewed(renewed) => {
                let token = match self.ops[op].wish.call() {
                    Call::Renew { token, .. } => token,
                    _ => renewed.token,
                };
                (Answer::Renewed { token }, None)
            }
            Outcome::Released { token, .. } => (Answer::Released { token }, None),
            Outcome::Revoked { token } => (Answer::Revoked { token }, None),
            Outcome::Ended { token, how } => (Answer::Ended { token, how }, None),
            Outcome::NotHeld => (Answer::NotHeld, None),
            Outcome::Stale { highest, .. }
                if !self.has_readers(op) && self.is_held_with(op, highest, None) =>
            {
                (Answer::Stale { token: highest }, None)
            }
            Outcome::Stale { .. } => (Answer::Refused, None),
            Outcome::Abandoned => (Answer::Abandoned, None),
            Outcome::Done => (Answer::Done, None),
            Outcome::OtherNumber { .. } => (Answer::NotHeld, None),
            Outcome::Behind(_) => (Answer::Denied, None),
            Outcome::Queued
            | Outcome::Delayed(_)
            | Outcome::Proclaimed { .. }
            | Outcome::WrongPrincipal { .. }
            | Outcome::QueueFull(_)
            | Outcome::TokensExhausted
            | Outcome::TooManyLocks { .. }
            | Outcome::Invalid(_) => (Answer::Refused, None),
        };
        self.answer(op, answer, granted);
    }

    fn answer(&mut self, op: usize, answer: Answer, granted: Option<palisade_core::Granted>) {
        if self.lost() {
            return;
        }
        let number = self.answers.len();
        self.answers.push((answer, granted));
        let delay = self.delay();
        self.plan(delay, ScheduledEvent::Back { op, answer: number });
    }

    fn back(&mut self, op: usize, answer: usize) {
        let pending = &mut self.ops[op];
        if std::mem::replace(&mut pending.done, true) {
            return;
        }
        let (answer, granted) = self.answers[answer].clone();
        self.events.push(Event::Answer {
            at: self.now,
            id: op as u64,
            answer: answer.clone(),
        });
        let client = pending.client;
        let wish = pending.wish.clone();
        let nap = self.clients[client].handle_answer(&mut self.rng, &wish, &answer, granted);
        self.plan(nap, ScheduledEvent::Wake { client });
    }

    fn give_up(&mut self, op: usize) {
        let pending = &mut self.ops[op];
        if std::mem::replace(&mut pending.done, true) {
            return;
        }
        let (client, wish) = (pending.client, pending.wish.clone());
        let nap = self.clients[client].unanswered(&mut self.rng, wish);
        self.plan(nap, ScheduledEvent::Wake { client });
    }

    fn leave(&mut self) {
        if self.ops.len() >= self.shape.operations {
            return;
        }
        let length = self.rng.u64(10_000_000..3_000_000_000);
        self.away = Some(self.now.after(Span::from_nanos(length)));
        let restarted = self.rng.bool();
        let since = self.now;
        self.plan(length, ScheduledEvent::Return { since, restarted });
    }

    fn come_back(&mut self, since: Timestamp, restarted: bool) {
        self.away = None;
        let away = if restarted {
            self.waiting.clear();
            Away::Down(self.now.since(since))
        } else {
            Away::Paused(self.now.since(since))
        };
        self.apply(Command::Grace(away));
        // The timers check every millisecond, so a lease that ended just before may not have been noticed.
        let slack = Span::from_millis(2).as_nanos();
        self.events.push(Event::Away {
            at: Timestamp::from_nanos(since.as_nanos().saturating_sub(slack)),
            until: self.now,
        });
        let next = self.rng.u64(5_000_000_000..60_000_000_000);
        self.plan(next, ScheduledEvent::Leave);
    }
}
