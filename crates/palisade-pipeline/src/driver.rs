//! The one thread that drives the orderer: inbox, alarm, clock, log, answers and events.
//!
//! ```text
//!   inbox ──drain──► round ──► Orderer ──entry──► log.commit ──► answers, events
//!     ▲                                            (sync)
//!     └── more arrives meanwhile
//! ```
//!
//! A round accepts everything that is there. While it is being synced the next one gathers, so the batches grow with the
//! load and no timer decides how long to wait for more. The clock is read **after** a round is drained, for the reason
//! that the orderer's module names.

use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::vec::Drain;

use palisade_core::{Command, GrantRef, Machine, Outcome, Principal, Span, Timestamp};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep};

use super::clock::{Clock, boottime, processor_time, wall};
use super::handle::{Locks, Message, Outbox, Shared, Stopped};
use super::log::{Log, LogError};
use super::orderer::{Address, Moment, Orderer, ROOM, Released};
use super::random;
use super::request::{Answer, Asked, Failure, Operation, Request};
use super::stats::{count_answer, count_state, request_place};

/// Messages accepted for one round.
const ROUND: usize = 4_096;

pub(super) struct Driver {
    orderer: Orderer<Asker>,
    log: Box<dyn Log>,
    clock: Clock,
    inbox: UnboundedReceiver<Message>,
    shared: Arc<Shared>,
    /// Operations accepted when the last batch was published.
    published: u64,
    /// Whether no message has arrived since the alarm last rang.
    quiet: bool,
    stopping: bool,
    /// Notified when the places of all waiting requests are durable.
    drained: Vec<oneshot::Sender<()>>,
}

/// The caller that waits for one answer.
struct Asker {
    to: ReplyTo,
    operation: Operation,
    /// [`boottime`] when it asked.
    since: u64,
}

/// Where one answer goes.
enum ReplyTo {
    /// A single caller. If a grant finds it gone, its locks are given back for its principal.
    Call(oneshot::Sender<Answer>, Option<(Principal, Locks)>),
    /// An operation of a session.
    Session(Arc<Outbox>, u64),
}

impl Address for Asker {
    fn session(&self) -> Option<u64> {
        self.to.session()
    }

    fn is_gone(&self) -> bool {
        match &self.to {
            ReplyTo::Call(reply, _) => reply.is_closed(),
            ReplyTo::Session(..) => false,
        }
    }
}

impl ReplyTo {
    fn session(&self) -> Option<u64> {
        match self {
            ReplyTo::Call(..) => None,
            ReplyTo::Session(outbox, _) => Some(outbox.session),
        }
    }

    /// Sends one answer on its own.
    fn send(self, answer: Answer) {
        match self {
            ReplyTo::Call(reply, _) => drop(reply.send(answer)),
            ReplyTo::Session(outbox, id) => drop(outbox.answers.send(vec![(id, answer)])),
        }
    }
}

impl Driver {
    pub(super) fn new(
        machine: Machine,
        log: Box<dyn Log>,
        clock: Clock,
        inbox: UnboundedReceiver<Message>,
        shared: Arc<Shared>,
    ) -> Driver {
        Driver {
            orderer: Orderer::new(machine, clock.is_manual()),
            log,
            clock,
            inbox,
            published: shared.stats.operations.get(),
            shared,
            quiet: false,
            stopping: false,
            drained: Vec::new(),
        }
    }

    /// Works until it is asked to stop, or the log fails.
    pub(super) async fn run(mut self) {
        let ended = self.rounds().await;
        let stopped = self.end(ended);
        close(self.inbox, &self.shared, stopped);
    }

    /// Records `first`, then works until it is asked to stop, the log fails, or another node leads.
    pub(super) async fn lead(&mut self, first: Vec<Command>) -> Stopped {
        let mut ended = self.open(first);
        if ended.is_ok() {
            self.shared.begin_leading();
            ended = self.rounds().await;
            self.shared.end_leading();
        }
        self.end(ended)
    }

    /// The machine, the log and the inbox, to go on with after a leadership.
    pub(super) fn into_parts(self) -> (Machine, Box<dyn Log>, UnboundedReceiver<Message>) {
        (self.orderer.into_machine(), self.log, self.inbox)
    }

    /// Answers every caller that still waits.
    fn end(&mut self, ended: Result<(), LogError>) -> Stopped {
        let (stopped, answers) = match ended {
            Ok(()) => (Stopped::Asked, self.orderer.stopped()),
            Err(LogError::Failed(why)) => (Stopped::LogFailed(why), self.orderer.failed()),
            // A pipeline that was asked to stop does not wait for another leadership.
            Err(LogError::Deposed) if self.stopping => (Stopped::Asked, self.orderer.deposed()),
            Err(LogError::Deposed) => (Stopped::Deposed, self.orderer.deposed()),
        };
        // Failures only: there is nothing to give back.
        let _ = send(answers);
        stopped
    }

    /// The first batch of this process: commands that have to be recorded before any request is accepted.
    pub(super) fn open(&mut self, first: Vec<Command>) -> Result<(), LogError> {
        let graces = first
            .iter()
            .filter(|command| matches!(command, Command::Grace(_)));
        self.shared.stats.graces.add(graces.count() as u64);
        self.orderer.open(self.clock.now(), wall(), first);
        self.publish()
    }

    async fn rounds(&mut self) -> Result<(), LogError> {
        let heartbeat = self.orderer.heartbeat().to_duration();
        let (mut gathered, mut alarm) = (Vec::new(), pin!(sleep(heartbeat)));
        while !self.stopping {
            self.gather(&mut gathered, alarm.as_mut()).await;
            let mut messages = gathered.drain(..);
            if let Err(error) = self.round(&mut messages) {
                let refusal = self.refusal(&error);
                for message in messages {
                    self.stopping |= matches!(message, Message::Stop);
                    turn_away(message, &refusal);
                }
                return Err(error);
            }
        }
        self.finish()?;
        self.log.idle();
        Ok(())
    }

    /// Writes the last batches of a planned stop: the commands still to be recorded for callers that left, and the time,
    /// from which a restart goes on.
    fn finish(&mut self) -> Result<(), LogError> {
        loop {
            self.begin()?;
            self.orderer.record_time();
            self.publish()?;
            if !self.orderer.owes() {
                return Ok(());
            }
        }
    }

    /// Waits for something to do, then takes everything that is there.
    async fn gather(&mut self, round: &mut Vec<Message>, mut alarm: Pin<&mut Sleep>) {
        let (sleeps, worked) = (self.clock.now(), processor_time());
        let heartbeat = self.orderer.heartbeat().to_duration();
        let planned = self.clock.until(self.orderer.next_due(), heartbeat);
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
        let nothing_to_do = self.clock.now().since(sleeps);
        let neighbours = processor_time()
            .as_nanos()
            .saturating_sub(worked.as_nanos());
        let neighbours = Span::from_nanos(neighbours);
        self.orderer
            .slept(nothing_to_do, planned.into(), neighbours);
        if rang {
            if planned.is_zero() {
                // More may be due than one entry ends. The neighbours have their turn between two of them.
                yield_now().await;
            } else if mem::replace(&mut self.quiet, true) {
                self.log.idle();
            }
            return;
        }
        self.quiet = false;
        // The neighbours read their requests and write their answers now: a sync is next, and they would wait
        // for it.
        yield_now().await;
        while round.len() <= ROUND
            && let Ok(message) = self.inbox.try_recv()
        {
            round.push(message);
        }
    }

    fn round(&mut self, messages: &mut Drain<'_, Message>) -> Result<(), LogError> {
        self.begin()?;
        for message in messages {
            self.message(message)?;
        }
        self.publish()
    }

    fn begin(&mut self) -> Result<(), LogError> {
        self.log.check()?;
        let room = match self.log.has_room(ROOM) {
            true => Ok(()),
            false => Err(self.log.no_room()),
        };
        let stats = &self.shared.stats;
        stats.log_full.set(room.is_err().into());
        let now = Moment {
            at: self.clock.now(),
            wall: wall(),
            worked: processor_time(),
        };
        self.orderer.limit_to(self.log.writable());
        let away = self.orderer.begin(now, room);
        stats.graces.add(away.is_some().into());
        Ok(())
    }

    fn message(&mut self, message: Message) -> Result<(), LogError> {
        match message {
            Message::Call {
                asked,
                reply,
                undo,
                sent,
            } => {
                let undo = match &asked.request {
                    Request::Acquire(acquire) if undo => Some((asked.by, Locks::of(acquire))),
                    _ => None,
                };
                return self.request(asked, ReplyTo::Call(reply, undo), sent);
            }
            Message::Batch {
                session,
                requests,
                sent,
            } => return self.batch(&session, requests, sent),
            Message::Gone {
                by,
                request,
                may_return,
            } => self.orderer.gone(by, request, may_return),
            Message::Unread(by, grant) => self.orderer.unclaimed(by, grant),
            Message::Hangup(session) => self.orderer.hang_up(session),
            Message::Drain(drained) => {
                while self.orderer.drain() {
                    self.next_batch(Span::ZERO)?;
                }
                self.drained.push(drained);
            }
            Message::Stop => self.stopping = true,
        }
        Ok(())
    }

    fn batch(
        &mut self,
        session: &Arc<Outbox>,
        requests: Vec<(u64, Asked)>,
        sent: u64,
    ) -> Result<(), LogError> {
        let mut requests = requests.into_iter();
        while let Some((id, asked)) = requests.next() {
            let to = ReplyTo::Session(Arc::clone(session), id);
            let done = self.request(asked, to, sent);
            if let Err(error) = done {
                session.refuse(requests, &self.refusal(&error));
                return Err(error);
            }
        }
        Ok(())
    }

    /// An error means that neither this request nor a later one was begun.
    fn request(&mut self, asked: Asked, to: ReplyTo, since: u64) -> Result<(), LogError> {
        self.shared.stats.operations.add(1);
        let advance = match &asked.request {
            Request::Advance(by) if self.clock.is_manual() => Some(*by),
            _ => None,
        };
        let next = match advance {
            Some(by) => self.advance(by),
            None if self.orderer.is_batch_over(|| self.clock.now()) => self.next_batch(Span::ZERO),
            None => Ok(()),
        };
        if let Err(error) = next {
            to.send(Answer::Failed(self.refusal(&error)));
            return Err(error);
        }
        let to = Asker {
            to,
            operation: Operation::of(&asked.request),
            since,
        };
        match advance {
            Some(_) => {
                let shows = self.orderer.now().since(Timestamp::ZERO);
                self.orderer.answer(to, Answer::Clock(shows));
            }
            None => self.orderer.request(asked, to, random::lease_key),
        }
        Ok(())
    }

    /// The answer to requests that were not begun, because the log accepts nothing more.
    fn refusal(&self, error: &LogError) -> Failure {
        match error {
            LogError::Deposed => self.shared.not_leader(),
            LogError::Failed(_) => Failure::stopping(),
        }
    }

    /// Moves a manual clock, and stops wherever something falls due. Everything between the two instants happens in its
    /// order, as it would in real time.
    fn advance(&mut self, by: Span) -> Result<(), LogError> {
        let target = self.clock.now().after(by);
        while let Some(due) = self.orderer.next_due().filter(|due| *due < target) {
            self.next_batch(due.since(self.clock.now()))?;
        }
        self.next_batch(target.since(self.clock.now()))
    }

    /// Ends the batch and begins another, after a manual clock has moved.
    fn next_batch(&mut self, advance: Span) -> Result<(), LogError> {
        self.publish()?;
        self.clock.advance(advance);
        self.begin()
    }

    /// Makes the batch durable, then lets its answers and events out.
    fn publish(&mut self) -> Result<(), LogError> {
        let stats = &self.shared.stats;
        match self.orderer.entry() {
            Some(entry) => {
                let complete = boottime();
                self.log.commit(entry)?;
                stats.sync.add(boottime().saturating_sub(complete));
                stats.batches.add(1);
                stats.log_bytes.add(entry.len() as u64);
                let operations = stats.operations.get();
                stats
                    .batch
                    .add(operations - mem::replace(&mut self.published, operations));
            }
            None if self.orderer.has_answers() => self.log.confirm()?,
            None => {}
        }
        count_state(stats, self.orderer.machine());
        stats.extended.add(self.orderer.take_extended());
        let at = self.orderer.now();
        if self.orderer.takes_commands()
            && let Some(boottime) = self.clock.boottime_at(at)
        {
            self.log.alive(at, boottime);
        }
        let revision = self.orderer.machine().revision();
        let unclaimed = {
            let Released { answers, events } = self.orderer.committed();
            if !events.as_slice().is_empty() {
                self.shared.show(events.collect(), revision);
            }
            if !answers.as_slice().is_empty() {
                let now = boottime();
                for (asker, answer) in answers.as_slice() {
                    count_answer(stats, answer);
                    let place = request_place(asker.operation, answer.verdict());
                    stats.request[place].add(now.saturating_sub(asker.since));
                }
            }
            send(answers)
        };
        for (by, grant) in unclaimed {
            self.orderer.unclaimed(by, grant);
        }
        for drained in self.drained.drain(..) {
            let _ = drained.send(());
        }
        Ok(())
    }
}

/// Sends answers. Those of a session go in one message as long as no other comes between them. Returns the grants of
/// callers that were gone.
fn send(mut answers: Drain<'_, (Asker, Answer)>) -> Vec<(Principal, GrantRef)> {
    let mut unclaimed = Vec::new();
    while let Some((asker, answer)) = answers.next() {
        match asker.to {
            ReplyTo::Call(reply, undo) => {
                if let (Err(Answer::Outcome(Outcome::Granted(granted))), Some((by, locks))) =
                    (reply.send(answer), undo)
                {
                    unclaimed.extend(locks.grants(&granted).map(|grant| (by, grant)));
                }
            }
            ReplyTo::Session(outbox, id) => {
                let session = Some(outbox.session);
                let is_its = |(asker, _): &&(Asker, Answer)| asker.session() == session;
                let more = answers.as_slice().iter().take_while(is_its).count();
                let mut of_it = Vec::with_capacity(1 + more);
                of_it.push((id, answer));
                let more = answers.by_ref().take(more);
                of_it.extend(more.filter_map(|(asker, answer)| match asker.to {
                    ReplyTo::Session(_, id) => Some((id, answer)),
                    ReplyTo::Call(..) => None,
                }));
                let _ = outbox.answers.send(of_it);
            }
        }
    }
    unclaimed
}

/// The end of a pipeline.
pub(super) fn close(mut inbox: UnboundedReceiver<Message>, shared: &Shared, stopped: Stopped) {
    inbox.close();
    while let Ok(message) = inbox.try_recv() {
        turn_away(message, &Failure::stopping());
    }
    shared.stopped.send_replace(Some(stopped));
}

/// Answers a message that is not carried out: nothing happened.
pub(super) fn turn_away(message: Message, why: &Failure) {
    match message {
        Message::Call { reply, .. } => drop(reply.send(Answer::Failed(why.clone()))),
        Message::Batch {
            session, requests, ..
        } => session.refuse(requests.into_iter(), why),
        Message::Gone { .. }
        | Message::Unread(..)
        | Message::Hangup(_)
        | Message::Drain(_)
        | Message::Stop => {}
    }
}
