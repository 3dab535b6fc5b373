//! The one thread that steps the loop ([`round`](super::round)): it brings the inbox, the alarm, the clocks and the log, and
//! sends the answers and events.
//!
//! ```text
//!   inbox ──gather──► Round ──entry──► log.commit ──► answers, events
//!     ▲                                  (sync)
//!     └── more arrives meanwhile
//! ```
//!
//! A round accepts everything that is there. While it is being synced the next one gathers, so the batches grow with the
//! load and no timer decides how long to wait for more. The clock is read **after** a round is gathered, for the reason
//! that the orderer's module names.

use std::any::Any;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::vec::{Drain, IntoIter};

use palisade_core::{Command, GrantRef, LeaseKey, Machine, Outcome, Principal, Span, Timestamp};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep};

use super::clock::{LogClock, ProcessorTime, boottime, wall};
use super::handle::{Locks, Message, Outbox, Shared, Stopped};
use super::log::{Log, LogError};
use super::orderer::{DurableOutput, Moment, Orderer, ROOM, ReplyAddress};
use super::random;
use super::replay;
use super::request::{Answer, Asked, Failure, Operation, Request};
use super::round::{Inbox, Round, RoundInput, ToWrite, UntilNext};
use super::stats::{Stats, count_answer, count_state, request_place};

/// Messages accepted for one round.
const ROUND: usize = 4_096;

pub(super) struct Driver {
    round: Round<Asker>,
    log: Box<dyn Log>,
    clock: LogClock,
    inbox: UnboundedReceiver<Message>,
    gathered: Arrived,
    shared: Arc<Shared>,
    processor: ProcessorTime,
    /// Operations accepted when the last batch was published.
    published: u64,
    /// Whether the last round that was gathered had a single message.
    lone: bool,
}

/// Messages that have arrived and are not in a batch yet.
#[derive(Default)]
struct Arrived {
    /// The rest of a session's message.
    begun: Option<BegunMessage>,
    messages: VecDeque<Message>,
    /// Notified when the places of all waiting requests are durable.
    drained: Vec<oneshot::Sender<()>>,
}

/// A session's message, of which some requests may be in a batch already.
struct BegunMessage {
    session: Arc<Outbox>,
    requests: IntoIter<(u64, Asked)>,
    sent: u64,
}

/// The messages, as the loop takes them in.
struct GatheredInbox<'a> {
    gathered: &'a mut Arrived,
    clock: &'a LogClock,
    stats: &'a Stats,
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

impl ReplyAddress for Asker {
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
}

impl Inbox<Asker> for GatheredInbox<'_> {
    #[inline]
    fn next(&mut self, _: &Orderer<Asker>) -> Option<RoundInput<Asker>> {
        loop {
            if let Some(begun) = &mut self.gathered.begun {
                if let Some((id, asked)) = begun.requests.next() {
                    let to = ReplyTo::Session(Arc::clone(&begun.session), id);
                    let since = begun.sent;
                    return Some(self.ask(asked, to, since));
                }
                self.gathered.begun = None;
            }
            return Some(match self.gathered.messages.pop_front()? {
                Message::Batch {
                    session,
                    requests,
                    sent,
                } => {
                    let requests = requests.into_iter();
                    self.gathered.begun = Some(BegunMessage {
                        session,
                        requests,
                        sent,
                    });
                    continue;
                }
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
                    self.ask(asked, ReplyTo::Call(reply, undo), sent)
                }
                Message::Gone {
                    by,
                    request,
                    may_return,
                } => RoundInput::Gone {
                    by,
                    request,
                    may_return,
                },
                Message::Unread(by, grant) => RoundInput::Unclaimed(by, grant),
                Message::Hangup(session) => RoundInput::Hangup(session),
                Message::Drain(drained) => {
                    self.gathered.drained.push(drained);
                    RoundInput::Drain
                }
                Message::Stop => RoundInput::Stop,
            });
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn key(&mut self) -> LeaseKey {
        random::lease_key()
    }
}

impl GatheredInbox<'_> {
    #[inline]
    fn ask(&self, asked: Asked, to: ReplyTo, since: u64) -> RoundInput<Asker> {
        self.stats.operations.add(1);
        let operation = Operation::of(&asked.request);
        let to = Asker {
            to,
            operation,
            since,
        };
        RoundInput::Ask(asked, to)
    }
}

impl Driver {
    pub(super) fn new(
        machine: Machine,
        log: Box<dyn Log>,
        clock: LogClock,
        inbox: UnboundedReceiver<Message>,
        shared: Arc<Shared>,
    ) -> Driver {
        Driver {
            round: Round::new(machine, clock.is_manual()),
            log,
            clock,
            inbox,
            gathered: Arrived::default(),
            processor: ProcessorTime::default(),
            lone: false,
            published: shared.stats.operations.get(),
            shared,
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
    pub(super) fn into_parts(mut self) -> (Machine, Box<dyn Log>, UnboundedReceiver<Message>) {
        self.round.note_queues(false);
        (self.round.into_machine(), self.log, self.inbox)
    }

    /// Answers every caller that still waits.
    fn end(&mut self, ended: Result<(), LogError>) -> Stopped {
        if let Err(error) = &ended {
            self.turn_away_gathered(&self.refusal(error));
        }
        let (stopped, answers) = match ended {
            Ok(()) => (Stopped::Asked, self.round.stopped()),
            Err(LogError::Failed(why)) => (Stopped::LogFailed(why), self.round.failed()),
            // A pipeline that was asked to stop does not wait for another leadership.
            Err(LogError::Deposed) if self.round.is_stopping() => {
                (Stopped::Asked, self.round.deposed())
            }
            Err(LogError::Deposed) => (Stopped::Deposed, self.round.deposed()),
        };
        // Failures only: there is nothing to give back.
        let _ = send(answers);
        stopped
    }

    /// Answers the requests that are in no batch: nothing happened.
    fn turn_away_gathered(&mut self, refusal: &Failure) {
        if let Some(BegunMessage {
            session, requests, ..
        }) = self.gathered.begun.take()
            && requests.len() > 0
        {
            session.refuse(requests, refusal);
        }
        while let Some(message) = self.gathered.messages.pop_front() {
            if matches!(message, Message::Stop) {
                self.round.stop();
            }
            turn_away(message, refusal);
        }
    }

    /// The first batch of this process: commands that have to be recorded before any request is accepted. An assertion that
    /// fails meanwhile names its entry.
    pub(super) fn open(&mut self, first: Vec<Command>) -> Result<(), LogError> {
        let opened = catch_unwind(AssertUnwindSafe(|| self.first_batch(first)));
        opened.unwrap_or_else(|panic| self.name_entry(&*panic))
    }

    fn first_batch(&mut self, first: Vec<Command>) -> Result<(), LogError> {
        let graces = first
            .iter()
            .filter(|command| matches!(command, Command::Grace(_)));
        self.shared.stats.graces.add(graces.count() as u64);
        self.round.open(self.clock.now(), wall(), first);
        self.publish()
    }

    /// Works until it is asked to stop, or the log fails. An assertion that fails meanwhile names the entry of the batch being
    /// built.
    async fn rounds(&mut self) -> Result<(), LogError> {
        let ended = {
            let mut rounds = pin!(self.each_round());
            poll_fn(|context| {
                let polled = catch_unwind(AssertUnwindSafe(|| rounds.as_mut().poll(context)));
                polled.map_or_else(|panic| Poll::Ready(Err(panic)), |polled| polled.map(Ok))
            })
            .await
        };
        ended.unwrap_or_else(|panic| self.name_entry(&*panic))
    }

    /// Goes on with the panic of a failed assertion, whose message names the entry from here on.
    fn name_entry(&self, panic: &(dyn Any + Send)) -> ! {
        let why = replay::message_of(panic);
        let why = replay::failed_at(self.round.orderer().entry(), &why);
        resume_unwind(Box::new(why))
    }

    async fn each_round(&mut self) -> Result<(), LogError> {
        let heartbeat = self.round.orderer().heartbeat().to_duration();
        let mut alarm = pin!(sleep(heartbeat));
        loop {
            let mut boot = boottime();
            match self.round.rest(self.clock.at(boot)) {
                UntilNext::Sleep(planned) => {
                    boot = self.gather(boot, planned, alarm.as_mut()).await;
                }
                UntilNext::GoOn(advance) => drop(self.clock.advance(advance)),
                UntilNext::Over => break,
            }
            self.begin(boot)?;
            self.round.fill(&mut GatheredInbox {
                gathered: &mut self.gathered,
                clock: &self.clock,
                stats: &self.shared.stats,
            });
            self.publish()?;
        }
        self.log.idle();
        Ok(())
    }

    /// Waits for something to do, then takes everything that is there. It begins at this reading of [`boottime`], and
    /// returns a later one, which no gathered request was sent after.
    async fn gather(&mut self, boot: u64, planned: Span, mut alarm: Pin<&mut Sleep>) -> u64 {
        let worked = self.processor.at(boot);
        #[expect(
            clippy::disallowed_methods,
            reason = "the runtime's timer rings by the runtime's clock; nothing is stamped with it"
        )]
        let latest = Instant::now() + planned.to_duration();
        // Setting it is a system call, so it is not put off with every round: when it rings early, the round
        // is empty.
        if alarm.is_elapsed() || alarm.deadline() > latest {
            alarm.as_mut().reset(latest);
        }
        let (inbox, mut slept) = (&mut self.inbox, false);
        let arrival = poll_fn(|cx| {
            let arrival = inbox.poll_recv(cx);
            slept |= arrival.is_pending();
            arrival
        });
        let rang = tokio::select! {
            biased;
            first = arrival => {
                if first.is_none() {
                    self.round.stop();
                }
                self.gathered.messages.extend(first);
                false
            }
            () = alarm => true,
        };
        let was_lone = self.lone;
        if !rang {
            self.take_arrived();
        }
        let boot = boottime();
        let neighbours = self.processor.at(boot).as_nanos() - worked.as_nanos();
        let neighbours = Span::from_nanos(neighbours);
        if self.round.woke(self.clock.at(boot), !rang, neighbours) {
            self.log.idle();
        }
        // With nothing planned, more was due than one entry ends: the neighbours have their turn between two of them.
        // Otherwise a sync is next, and they would wait for it, so they read their requests and write their answers first.
        // A yield looks for what has arrived at their sockets, too, which is a system call. A lone caller has nobody to
        // wait for, and its neighbours had their turn while this task slept.
        let yields = if rang {
            planned == Span::ZERO
        } else {
            !(slept && was_lone && self.lone)
        };
        if !yields {
            return boot;
        }
        yield_now().await;
        if !rang {
            self.take_arrived();
        }
        boottime()
    }

    /// Takes what is in the inbox, up to a round.
    fn take_arrived(&mut self) {
        let messages = &mut self.gathered.messages;
        while messages.len() <= ROUND
            && let Ok(message) = self.inbox.try_recv()
        {
            messages.push_back(message);
        }
        self.lone = messages.len() == 1;
    }

    /// `boot`: a reading of [`boottime`] from after everything gathered had arrived.
    fn begin(&mut self, boot: u64) -> Result<(), LogError> {
        self.log.check()?;
        // A listener that registers later asks for the state of its queues later, too.
        self.round.note_queues(self.shared.listening.is_on());
        let room = if self.log.has_room(ROOM) {
            Ok(())
        } else {
            Err(self.log.no_room())
        };
        let stats = &self.shared.stats;
        stats.log_full.set(room.is_err().into());
        let now = Moment {
            at: self.clock.at(boot),
            wall: wall(),
            worked: self.processor.at(boot),
        };
        let away = self.round.begin(now, room, self.log.writable());
        stats.graces.add(away.is_some().into());
        Ok(())
    }

    /// The answer to requests that were not begun, because the log accepts nothing more.
    fn refusal(&self, error: &LogError) -> Failure {
        match error {
            LogError::Deposed => self.shared.not_leader(),
            LogError::Failed(_) => Failure::stopping(),
        }
    }

    /// Makes the batch durable, then lets its answers and events out.
    fn publish(&mut self) -> Result<(), LogError> {
        let stats = &self.shared.stats;
        match self.round.write() {
            ToWrite::Entry(entry) => {
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
            ToWrite::Confirm => self.log.confirm()?,
            ToWrite::Nothing => {}
        }
        count_state(stats, self.round.machine());
        stats.extended.add(self.round.take_extended());
        if let Some(at) = self.round.alive()
            && let Some(boottime) = self.clock.boottime_at(at)
        {
            self.log.alive(at, boottime);
        }
        let revision = self.round.machine().revision();
        let unclaimed = {
            let DurableOutput { answers, events } = self.round.written();
            if !events.as_slice().is_empty() {
                self.shared.show(events.collect(), revision);
            }
            if !answers.as_slice().is_empty() {
                let now = boottime();
                for (asker, answer) in answers.as_slice() {
                    count_answer(stats, asker.operation, answer);
                    let place = request_place(asker.operation, answer.verdict());
                    stats.request[place].add(now.saturating_sub(asker.since));
                }
            }
            send(answers)
        };
        for (by, grant) in unclaimed {
            self.round.unclaimed(by, grant);
        }
        if self.shared.listening.is_on() {
            self.shared
                .listening
                .queues(self.round.take_changed_queues());
        }
        if !self.round.is_draining() {
            for drained in self.gathered.drained.drain(..) {
                let _ = drained.send(());
            }
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
    shared.listening.end();
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
