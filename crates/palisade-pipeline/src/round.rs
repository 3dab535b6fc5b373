//! The authority's loop, without I/O: sleep, begin a batch, take requests in, write it down, let the answers out.
//!
//! ```text
//!             ┌──── Sleep ──► woke ────┐
//!             │                        ▼
//!   rest ─────┼──── GoOn ────────────► begin ──► fill ──► write ──► written ──► rest …
//!             │                                    │        │          │
//!             └──── Over                        inputs   the log   answers, events
//! ```
//!
//! Every step that decides anything is here: how long to sleep, when a batch is over although more has arrived, how a manual
//! clock stops wherever something falls due, how a planned stop ends. A stepper brings what a step needs: inputs, clocks, a
//! log. There are three, and they differ in nothing else: the pipeline's thread (`driver`), the lab's simulator, and a node of
//! its simulated cluster. So the loop that serves is the loop that is simulated.
//!
//! A stepper that takes the steps in another order is our own mistake, and an assertion says so.

use std::mem;

use palisade_core::{
    Away, Command, GrantRef, LeaseKey, LockName, Machine, Principal, RequestId, Span, Timestamp,
    WallTime,
};

use super::log::Writable;
use super::orderer::{DurableOutput, Moment, Orderer, ReplyAddress};
use super::request::{Answer, Asked, Failure, Request};

/// A message for the loop.
pub enum RoundInput<A> {
    /// A question, and where its answer goes.
    Ask(Asked, A),
    /// The caller of a waiting request went away before its answer.
    Gone {
        /// The principal that asked.
        by: Principal,
        /// The request.
        request: RequestId,
        /// Whether its place is reserved for a while.
        may_return: bool,
    },
    /// A grant reached nobody, and nobody can ask for it again.
    Unclaimed(Principal, GrantRef),
    /// A session ended.
    Hangup(u64),
    /// The authority is about to stop: no waiting request is granted any more. This is done when
    /// [`Round::is_draining`] is false after [`Round::written`].
    Drain,
    /// Stop, after all inputs that have arrived.
    Stop,
}

/// Where the inputs of a batch come from, and what the loop needs to take them in.
pub trait Inbox<A> {
    /// The next input that has arrived. The lab looks at the batch so far; the thread does not.
    fn next(&mut self, so_far: &Orderer<A>) -> Option<RoundInput<A>>;

    /// The authority's clock.
    fn now(&self) -> Timestamp;

    /// The secret of a new lease.
    fn key(&mut self) -> LeaseKey;
}

/// What comes before the next batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UntilNext {
    /// Nothing is to be done until an input arrives, or for this long; then [`Round::woke`].
    Sleep(Span),
    /// The batch begins at once, when a manual clock was moved by this much.
    GoOn(Span),
    /// The loop is over: it was asked to stop, and everything is written down.
    Over,
}

/// What makes a batch durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToWrite<'a> {
    /// These bytes, on stable storage.
    Entry(&'a [u8]),
    /// Nothing changed, but somebody gets an answer: the proof that this node has led until now.
    Confirm,
    /// Nothing.
    Nothing,
}

/// The loop.
pub struct Round<A> {
    orderer: Orderer<A>,
    manual_clock: bool,
    phase: LoopPhase,
    stop: Stopping,
    /// The batch was over before all inputs were taken in.
    more: bool,
    /// Waiting requests have still to give up their turn, in the next batch.
    draining: bool,
    advancing: Option<Advancing<A>>,
    /// No input has arrived since it last slept in vain.
    quiet: bool,
}

/// The step that the loop is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoopPhase {
    Between,
    Asleep { since: Timestamp, planned: Span },
    Begun,
}

/// How far a planned stop has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    Serving,
    Asked,
    /// Only what is owed to callers that left is still recorded, and the time, from which a restart goes on.
    Finishing,
}

/// A manual clock is being moved.
struct Advancing<A> {
    target: Timestamp,
    to: A,
}

impl<A: ReplyAddress> Round<A> {
    /// Goes on from the state a log ends in.
    #[must_use]
    pub fn new(machine: Machine, manual_clock: bool) -> Round<A> {
        Round {
            orderer: Orderer::new(machine, manual_clock),
            manual_clock,
            phase: LoopPhase::Between,
            stop: Stopping::Serving,
            more: false,
            draining: false,
            advancing: None,
            quiet: false,
        }
    }

    /// See [`Orderer::with_batches_of`].
    #[must_use]
    pub fn with_batches_of(self, bytes: usize) -> Round<A> {
        Round {
            orderer: self.orderer.with_batches_of(bytes),
            ..self
        }
    }

    /// Begins the first batch with commands that have to be recorded before any request is accepted. [`Round::write`] is
    /// next.
    pub fn open(&mut self, at: Timestamp, wall: WallTime, first: Vec<Command>) {
        self.enter(LoopPhase::Begun);
        self.orderer.open(at, wall, first);
    }

    /// Decides what comes before the next batch.
    pub fn rest(&mut self, now: Timestamp) -> UntilNext {
        assert_eq!(self.phase, LoopPhase::Between, "a batch is not over");
        if let Some(advancing) = &self.advancing {
            let due = self.orderer.next_due();
            let stops = due.filter(|due| *due < advancing.target);
            return UntilNext::GoOn(stops.unwrap_or(advancing.target).since(now));
        }
        if self.more || self.draining {
            return UntilNext::GoOn(Span::ZERO);
        }
        match self.stop {
            Stopping::Serving => self.sleep(now),
            Stopping::Asked => {
                self.stop = Stopping::Finishing;
                UntilNext::GoOn(Span::ZERO)
            }
            Stopping::Finishing if self.orderer.owes() => UntilNext::GoOn(Span::ZERO),
            Stopping::Finishing => UntilNext::Over,
        }
    }

    /// Until something is due, at most for a heartbeat. Waiting does not move a manual clock.
    fn sleep(&mut self, now: Timestamp) -> UntilNext {
        let heartbeat = self.orderer.heartbeat();
        let planned = match self.orderer.next_due() {
            Some(due) if !self.manual_clock || due <= now => heartbeat.min(due.since(now)),
            _ => heartbeat,
        };
        self.phase = LoopPhase::Asleep {
            since: now,
            planned,
        };
        UntilNext::Sleep(planned)
    }

    /// The sleep is over; an input has `arrived`, or has not. Other tasks on this thread `worked` meanwhile. Returns whether
    /// nothing has arrived since it last slept in vain, which is the time for housekeeping.
    pub fn woke(&mut self, now: Timestamp, arrived: bool, worked: Span) -> bool {
        let LoopPhase::Asleep { since, planned } = self.phase else {
            unreachable!("it was not asleep, but {:?}", self.phase);
        };
        self.phase = LoopPhase::Between;
        self.orderer.slept(now.since(since), planned, worked);
        if arrived {
            self.quiet = false;
        }
        // With nothing planned, more was due than one entry ends.
        !arrived && planned > Span::ZERO && mem::replace(&mut self.quiet, true)
    }

    /// Begins a batch; see [`Orderer::begin`]. The clocks were read after the inputs had arrived.
    pub fn begin(
        &mut self,
        now: Moment,
        room: Result<(), String>,
        writable: Writable,
    ) -> Option<Away> {
        self.enter(LoopPhase::Begun);
        self.more = false;
        self.orderer.limit_to(writable);
        self.orderer.begin(now, room)
    }

    /// Whether the batch takes one more input in. If not, the next one begins without a sleep.
    pub fn has_room(&mut self, now: impl FnOnce() -> Timestamp) -> bool {
        self.more = self.orderer.is_batch_over(now);
        !self.more
    }

    /// Takes inputs in, until the batch is over or no more have arrived.
    pub fn fill(&mut self, inbox: &mut impl Inbox<A>) {
        assert_eq!(self.phase, LoopPhase::Begun, "no batch has begun");
        if self.stop == Stopping::Finishing {
            return self.orderer.record_time();
        }
        if self.advancing.is_some() {
            self.advanced(inbox.now());
        }
        self.drain();
        while !self.draining
            && self.advancing.is_none()
            && self.has_room(|| inbox.now())
            && let Some(input) = inbox.next(&self.orderer)
        {
            self.take(input, inbox);
        }
    }

    #[inline]
    fn take(&mut self, input: RoundInput<A>, inbox: &mut impl Inbox<A>) {
        match input {
            RoundInput::Ask(asked, to) => match asked.request {
                Request::Advance(by) if self.manual_clock => {
                    let target = inbox.now().after(by);
                    self.advancing = Some(Advancing { target, to });
                }
                _ => self.orderer.request(asked, to, || inbox.key()),
            },
            RoundInput::Gone {
                by,
                request,
                may_return,
            } => self.orderer.gone(by, request, may_return),
            RoundInput::Unclaimed(by, grant) => self.orderer.unclaimed(by, grant),
            RoundInput::Hangup(session) => self.orderer.hang_up(session),
            RoundInput::Drain => {
                self.draining = true;
                self.drain();
            }
            RoundInput::Stop => self.stop(),
        }
    }

    /// A manual clock that has come to its target is an answer. Everything between the two instants has happened in its order.
    fn advanced(&mut self, now: Timestamp) {
        if let Some(Advancing { to, .. }) =
            self.advancing.take_if(|advancing| advancing.target <= now)
        {
            let shows = self.orderer.now().since(Timestamp::ZERO);
            self.orderer.answer(to, Answer::Clock(shows));
        }
    }

    fn drain(&mut self) {
        if self.draining {
            self.draining = self.orderer.drain();
        }
    }

    /// The loop ends when everything that has arrived is done.
    pub fn stop(&mut self) {
        if self.stop == Stopping::Serving {
            self.stop = Stopping::Asked;
        }
    }

    /// Whether it was asked to stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stop != Stopping::Serving
    }

    /// Whether changes of queues are noted; see [`Orderer::note_queues`].
    pub fn note_queues(&mut self, on: bool) {
        self.orderer.note_queues(on);
    }

    /// The queues that have changed with this batch, once it is [`written`](Round::written).
    pub fn take_changed_queues(&mut self) -> Vec<(LockName, u32)> {
        self.orderer.take_changed_queues()
    }

    /// Whether waiting requests have still to give up their turn.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// What makes the batch durable.
    #[must_use]
    pub fn write(&self) -> ToWrite<'_> {
        match self.orderer.entry() {
            Some(entry) => ToWrite::Entry(entry),
            None if self.orderer.has_answers() => ToWrite::Confirm,
            None => ToWrite::Nothing,
        }
    }

    /// The batch is durable, so the answers and events that rest on it may leave.
    pub fn written(&mut self) -> DurableOutput<'_, A> {
        assert_eq!(self.phase, LoopPhase::Begun, "no batch has begun");
        self.phase = LoopPhase::Between;
        self.orderer.committed()
    }

    /// Everything that was due by this instant is durable when the batch is; `None` while the log has no room for it.
    #[must_use]
    pub fn alive(&self) -> Option<Timestamp> {
        let is_recorded = self.orderer.takes_commands();
        is_recorded.then(|| self.orderer.now())
    }

    /// A grant reached nobody; see [`Orderer::unclaimed`].
    pub fn unclaimed(&mut self, by: Principal, grant: GrantRef) {
        self.orderer.unclaimed(by, grant);
    }

    /// The orderer, to be looked at.
    #[must_use]
    pub fn orderer(&self) -> &Orderer<A> {
        &self.orderer
    }

    /// The state, with the batch being built.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        self.orderer.machine()
    }

    /// Gives the state up, with the last batch.
    #[must_use]
    pub fn into_machine(self) -> Machine {
        self.orderer.into_machine()
    }

    /// See [`Orderer::take_extended`].
    pub fn take_extended(&mut self) -> u64 {
        self.orderer.take_extended()
    }

    /// See [`Orderer::failed`].
    pub fn failed(&mut self) -> std::vec::Drain<'_, (A, Answer)> {
        self.forget_advance();
        self.orderer.failed()
    }

    /// See [`Orderer::deposed`].
    pub fn deposed(&mut self) -> std::vec::Drain<'_, (A, Answer)> {
        self.forget_advance();
        self.orderer.deposed()
    }

    /// See [`Orderer::stopped`].
    pub fn stopped(&mut self) -> std::vec::Drain<'_, (A, Answer)> {
        assert!(self.advancing.is_none(), "a clock is being moved");
        self.orderer.stopped()
    }

    /// A clock that was moved a part of its way.
    fn forget_advance(&mut self) {
        if let Some(Advancing { to, .. }) = self.advancing.take() {
            self.orderer.answer(to, Answer::Failed(Failure::lost()));
        }
    }

    fn enter(&mut self, phase: LoopPhase) {
        assert_eq!(
            self.phase,
            LoopPhase::Between,
            "the batch before is not over"
        );
        self.phase = phase;
    }
}

#[cfg(test)]
mod tests;
