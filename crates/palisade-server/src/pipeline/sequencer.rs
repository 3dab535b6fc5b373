//! The one thread that orders, stamps, applies and syncs.
//!
//! ```text
//!   inbox ──drain──► round ──stamp──► machine.apply ──► batch bytes ──► log.commit ──► answers, events
//!     ▲                                    │                               (sync)
//!     └── more arrives meanwhile           └─ nothing changed: not logged
//! ```
//!
//! A round takes in everything that is there. While it is being synced the next one gathers, so the
//! batches grow with the load and no timer decides how long to wait for company. The clock is read
//! **after** a round is drained: no request in it was sent later than its stamp, so a lease never
//! ends before its holder's own reckoning from the moment of sending.

use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;

use palisade_core::{
    Away, Change, Command, Effect, Ending, Entry, Event, Machine, Outcome, Span, Timestamp,
    WallTime,
};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep};

use super::clock::{Clock, processor_time, wall};
use super::codec::{encode_command, encode_head};
use super::desk::{Desk, ReplyTo};
use super::handle::{Message, Outbox, Shared, Stopped, gone};
use super::intake::{Step, step};
use super::log::{Log, LogFailed};
use super::presence::Presence;
use super::request::{Answer, Failure, Request};

/// The thread wakes at least this often to notice that it was itself away; more often where a live lease
/// does not bear a pause of this length.
const HEARTBEAT: Span = Span::from_millis(100);

/// Messages taken in for one round.
const ROUND: usize = 4_096;

/// Work on one batch before the clock is looked at again, so that whatever is asked, leases end in time; and
/// how many operations are done between two looks. A page of a listing counts for many.
const TURN: Span = Span::from_millis(10);
const LOOK_AFTER: usize = 256;
const PAGE_WEIGHT: usize = 64;

/// A batch is handed to the log when it has grown to this; the room asked of the log beforehand is
/// this and the longest command.
const BATCH_BYTES: usize = 1 << 20;
const COMMAND_BYTES: usize = 4 << 10;

pub(super) struct Sequencer {
    machine: Machine,
    log: Box<dyn Log>,
    clock: Clock,
    inbox: UnboundedReceiver<Message>,
    shared: Arc<Shared>,
    desk: Desk,
    /// The batch being built: its stamp, its bytes, and how many of them are the head.
    at: Timestamp,
    wall: WallTime,
    bytes: Vec<u8>,
    head: usize,
    effects: Vec<Effect>,
    events: Vec<Event>,
    /// Whether the log had no room when last asked.
    full: bool,
    /// What is owed to callers that left: recorded first thing in the next batch that has room.
    left: Vec<Command>,
    presence: Presence,
    /// Operations done since the clock was looked at.
    done: usize,
    /// Whether nothing was taken in since the alarm rang.
    quiet: bool,
    stopping: bool,
}

impl Sequencer {
    pub(super) fn new(
        machine: Machine,
        log: Box<dyn Log>,
        clock: Clock,
        inbox: UnboundedReceiver<Message>,
        shared: Arc<Shared>,
    ) -> Sequencer {
        Sequencer {
            at: machine.now(),
            presence: Presence::new(machine.now()),
            done: 0,
            machine,
            log,
            clock,
            inbox,
            shared,
            desk: Desk::default(),
            wall: wall(),
            bytes: Vec::new(),
            head: 0,
            effects: Vec::new(),
            events: Vec::new(),
            full: false,
            left: Vec::new(),
            quiet: false,
            stopping: false,
        }
    }

    /// Works until it is asked to stop or the log fails.
    pub(super) async fn run(mut self) {
        let stopped = match self.rounds().await {
            Ok(()) => {
                self.desk.dismiss();
                Stopped::Asked
            }
            Err(failed) => {
                self.desk.disown();
                Stopped::LogFailed(failed.0)
            }
        };
        self.turn_away();
        self.shared.stopped.send_replace(Some(stopped));
    }

    /// Whoever still stands in line is told that nothing happened.
    fn turn_away(&mut self) {
        self.inbox.close();
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Call { reply, .. } => {
                    let _ = reply.send(gone());
                }
                Message::Batch { session, requests } => {
                    let answers = requests.into_iter().map(|(id, _)| (id, gone())).collect();
                    let _ = session.answers.send(answers);
                }
                Message::Gone(_) | Message::Unread(_) | Message::Hangup(_) | Message::Stop => {}
            }
        }
    }

    /// The first batch of this process: what has to be recorded before anybody is served.
    pub(super) fn open(&mut self, first: Vec<Command>) -> Result<(), LogFailed> {
        self.stamp();
        for command in first {
            self.apply(command);
        }
        self.publish()
    }

    async fn rounds(&mut self) -> Result<(), LogFailed> {
        let (mut round, mut alarm) = (Vec::new(), pin!(sleep(HEARTBEAT.to_duration())));
        while !self.stopping {
            self.gather(&mut round, alarm.as_mut()).await;
            self.begin()?;
            for message in round.drain(..) {
                self.message(message)?;
            }
            self.publish()?;
        }
        self.log.idle();
        Ok(())
    }

    /// Waits for something to do, then takes everything that is there.
    async fn gather(&mut self, round: &mut Vec<Message>, mut alarm: Pin<&mut Sleep>) {
        let due = self.machine.next_due().filter(|_| !self.full);
        let sleeps = self.clock.now();
        let planned = self
            .clock
            .until(due, HEARTBEAT.min(self.machine.bears()).to_duration());
        #[expect(
            clippy::disallowed_methods,
            reason = "the runtime's timer rings by the runtime's clock; nothing is stamped with it"
        )]
        let latest = Instant::now() + planned;
        // Setting it is a system call, so it is not put off with every round: when it rings early, the round
        // is empty.
        if alarm.is_elapsed() || alarm.deadline() > latest {
            alarm.as_mut().reset(latest);
        }
        let rang = tokio::select! {
            biased;
            first = self.inbox.recv() => {
                self.stopping = first.is_none();
                round.extend(first);
                false
            }
            () = alarm => true,
        };
        self.presence
            .slept(self.clock.now().since(sleeps), planned.into());
        if rang {
            if mem::replace(&mut self.quiet, true) {
                self.log.idle();
            }
            return;
        }
        self.quiet = false;
        // The neighbours read what has come for them and write what they were answered: a sync is next,
        // and they would wait for it.
        yield_now().await;
        while round.len() <= ROUND
            && let Ok(message) = self.inbox.try_recv()
        {
            round.push(message);
        }
    }

    /// Stamps a batch, and records first what time has done.
    fn begin(&mut self) -> Result<(), LogFailed> {
        self.log.check()?;
        let was_full = mem::replace(
            &mut self.full,
            !self.log.has_room(BATCH_BYTES + COMMAND_BYTES),
        );
        self.shared.stats.log_full.set(self.full.into());
        self.stamp();
        let away = self.look();
        if self.full {
            return Ok(());
        }
        if was_full {
            self.grace(Away::Stalled);
        } else if let Some(away) = away {
            self.grace(away);
        }
        for command in mem::take(&mut self.left) {
            self.apply(command);
        }
        if self.machine.next_due().is_some_and(|due| due <= self.at) {
            self.apply(Command::Expire);
        }
        Ok(())
    }

    /// How the time since the last look was spent. A manual clock passes while nobody works.
    fn look(&mut self) -> Option<Away> {
        self.done = 0;
        if self.clock.is_manual() {
            return None;
        }
        let bears = self.machine.bears();
        self.presence.look(self.at, processor_time(), bears)
    }

    fn grace(&mut self, away: Away) {
        self.shared.stats.graces.add(1);
        self.apply(Command::Grace(away));
    }

    fn stamp(&mut self) {
        self.at = self.at.max(self.clock.now());
        self.wall = wall();
        self.bytes.clear();
        encode_head(&mut self.bytes, self.at, self.wall);
        self.head = self.bytes.len();
    }

    fn message(&mut self, message: Message) -> Result<(), LogFailed> {
        match message {
            Message::Call {
                request,
                reply,
                undo,
            } => {
                let undo = match &request {
                    Request::Acquire(acquire) if undo => Some(acquire.lock.clone()),
                    _ => None,
                };
                self.one(request, ReplyTo::Call(reply, undo))
            }
            Message::Batch { session, requests } => self.batch(&session, requests),
            Message::Gone(request) => {
                if self.desk.left(&request) {
                    self.leave(Command::Withdraw(request));
                }
                Ok(())
            }
            Message::Unread(grant) => {
                self.leave(Command::Release(grant));
                Ok(())
            }
            Message::Hangup(session) => {
                for request in self.desk.hangup(session) {
                    self.leave(Command::Withdraw(request));
                }
                Ok(())
            }
            Message::Stop => {
                self.stopping = true;
                Ok(())
            }
        }
    }

    fn batch(
        &mut self,
        session: &Arc<Outbox>,
        requests: Vec<(u64, Request)>,
    ) -> Result<(), LogFailed> {
        self.desk.open(session, requests.len());
        for (id, request) in requests {
            self.one(request, ReplyTo::Session(Arc::clone(session), id))?;
        }
        Ok(())
    }

    fn one(&mut self, request: Request, reply: ReplyTo) -> Result<(), LogFailed> {
        self.shared.stats.operations.add(1);
        self.done += match &request {
            Request::List { .. } => PAGE_WEIGHT,
            _ => 1,
        };
        if self.bytes.len() >= BATCH_BYTES || self.is_turn_over() {
            self.publish()?;
            self.begin()?;
        }
        match step(request, &self.machine, self.at, self.clock.is_manual()) {
            Step::Command(command) => self.carry_out(command, reply),
            Step::Answer(answer) => self.desk.answer(reply, answer),
            Step::Advance(by) => {
                let answer = self.advance(by)?;
                self.desk.answer(reply, answer);
            }
        }
        Ok(())
    }

    /// Whether the batch has taken so long that what is due should be looked at, and answers let out.
    fn is_turn_over(&mut self) -> bool {
        if self.done < LOOK_AFTER {
            return false;
        }
        self.done = 0;
        self.clock.now().since(self.at) > TURN
    }

    fn carry_out(&mut self, command: Command, reply: ReplyTo) {
        if self.full {
            let why = format!("{}; nothing happened", self.log.no_room());
            return self
                .desk
                .answer(reply, Answer::Failed(Failure::Unavailable(why)));
        }
        let waits_as = match &command {
            Command::Acquire(acquire) => acquire.request,
            _ => None,
        };
        match (self.apply(command), waits_as) {
            (Outcome::Queued, Some(request)) => self.desk.wait(request, reply),
            (outcome, _) => {
                self.count(&outcome);
                self.desk.answer(reply, Answer::Outcome(outcome));
            }
        }
    }

    /// Applies one command and puts it into the batch, unless it changed nothing.
    fn apply(&mut self, command: Command) -> Outcome {
        let before = self.bytes.len();
        encode_command(&mut self.bytes, &command);
        let entry = Entry {
            at: self.at,
            wall: self.wall,
            command,
        };
        let applied = self.machine.apply(entry, &mut self.effects);
        if !applied.changed {
            self.bytes.truncate(before);
        }
        if !self.effects.is_empty() {
            self.take_effects();
        }
        applied.outcome
    }

    fn take_effects(&mut self) {
        let mut effects = mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Settled { request, outcome } => {
                    self.count(&outcome);
                    self.desk.settle(&request, Answer::Outcome(outcome));
                }
                Effect::Event(event) => self.event(event),
            }
        }
        self.effects = effects;
    }

    fn event(&mut self, event: Event) {
        let stats = &self.shared.stats;
        let counter = match &event.change {
            Change::Granted { .. } => &stats.granted,
            Change::Ended { how, .. } => match how {
                Ending::Released => &stats.released,
                Ending::Expired => &stats.expired,
                Ending::Revoked => &stats.revoked,
                Ending::Superseded => &stats.superseded,
            },
        };
        counter.add(1);
        self.events.push(event);
    }

    fn count(&self, outcome: &Outcome) {
        let stats = &self.shared.stats;
        match outcome {
            Outcome::Held(_) => stats.held.add(1),
            Outcome::Renewed(_) => stats.renewed.add(1),
            Outcome::QueueFull(_) => stats.queue_full.add(1),
            Outcome::Invalid(_) => stats.invalid.add(1),
            _ => {}
        }
    }

    /// Makes the batch durable, then lets its answers and events out.
    fn publish(&mut self) -> Result<(), LogFailed> {
        let stats = &self.shared.stats;
        if self.bytes.len() > self.head {
            self.log.commit(&self.bytes)?;
            stats.batches.add(1);
            stats.log_bytes.add(self.bytes.len() as u64);
        }
        stats.locks.set(self.machine.locks() as u64);
        stats.leases.set(self.machine.leases() as u64);
        stats.waiters.set(self.machine.waiters() as u64);
        stats
            .next_token
            .set(self.machine.next_token().map_or(0, |token| token.get()));
        if !self.events.is_empty() {
            self.show_events();
        }
        // Given back at the beginning of the next round.
        self.left
            .extend(self.desk.send().into_iter().map(Command::Release));
        Ok(())
    }

    fn show_events(&mut self) {
        let shared = &self.shared;
        let revision = self.machine.revision();
        let batch: Arc<[Event]> = self.events.drain(..).collect();
        if shared.events.receiver_count() > 0 {
            let _ = shared.events.send(Arc::clone(&batch));
        }
        shared.recent.push(batch);
        // After that: who does not wait yet finds it there.
        if shared.news.receiver_count() > 0 {
            shared.news.send_replace(revision);
        }
    }

    /// Somebody left: recorded now, or as soon as the log has room again.
    fn leave(&mut self, command: Command) {
        if self.full {
            self.left.push(command);
        } else {
            self.apply(command);
        }
    }

    fn advance(&mut self, by: Span) -> Result<Answer, LogFailed> {
        if !self.clock.is_manual() {
            let why = "this authority's clock runs by itself; start it with --clock manual".into();
            return Ok(Answer::Failed(Failure::Refused(why)));
        }
        self.publish()?;
        self.clock.advance(by);
        self.begin()?;
        Ok(Answer::Clock(self.at.since(Timestamp::ZERO)))
    }
}
