//! Order, stamp, apply, answer, without I/O.
//!
//! ```text
//!   begin (now, room)          request · gone · hang_up · unclaimed
//!         │                               │
//!         ▼                               ▼
//!   stamp · what is owed ·        machine.apply ──► bytes of the batch · answers · events
//!   Grace? · Expire?                                      │
//!                      the caller makes entry() durable ◄─┘
//!                          │ it is                  │ it may not be
//!                          ▼                        ▼
//!                      committed: answers       failed · deposed: each caller in flight is told
//!                      and events leave         that its outcome is unknown
//! ```
//!
//! The orderer reads no clock, draws no random number and waits for nothing; everything it needs is passed in. The
//! pipeline's driver runs it on a thread with a real log; the lab's simulator runs it in virtual time.
//!
//! The caller reads the clock for [`Orderer::begin`] **after** it has received the requests of the batch: none of them was
//! sent later than its stamp, so a lease never ends before its holder's own reckoning from the moment of sending.

mod intake;
mod presence;
mod replies;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::mem;
use std::vec::Drain;

use palisade_core::{
    Away, Command, Effect, Entry, Event, GrantRef, LeaseKey, LockName, Machine, Outcome, Principal,
    RequestId, Span, Timestamp, WallTime,
};

pub use presence::Presence;
pub use replies::ReplyAddress;

use super::codec::{encode_by, encode_command, encode_head, place, take_back, version_needed};
use super::log::Writable;
use super::request::{Answer, Asked, Failure, Request};
use intake::{Intake, intake};
use replies::Replies;

/// The orderer is to begin a batch at least this often, so that it notices its own absence; more often if a live lease
/// would not survive a pause of this length.
const HEARTBEAT: Span = Span::from_millis(100);

/// The longest work on one batch before it is made durable, so that leases end in time under any load; and the
/// number of operations between two looks at the clock. A page of a listing counts as many operations.
const TURN: Span = Span::from_millis(10);
const LOOK_AFTER: usize = 256;
const PAGE_WEIGHT: usize = 64;

/// While something is leased or closed, a quiet authority records the time (rule A14): first after [`FIRST_STAMP`], then
/// each time after twice as long since the last change, and at least every [`STAMP_EVERY`].
const FIRST_STAMP: Span = Span::from_millis(1_000);
const STAMP_EVERY: Span = Span::from_millis(60_000);

/// A batch is made durable when it has grown to this.
const BATCH_BYTES: usize = 1 << 20;

/// The refusal while a batch records what happened when the log had no room.
const CATCHING_UP: &str =
    "the log had no room until now, and what happened meanwhile is recorded first";

/// The room that the log must have for a batch: its full size and the longest request, which may be recorded twice.
pub const ROOM: usize = BATCH_BYTES + (40 << 10);

/// The clocks at the beginning of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The authority's clock. If it goes back, it counts as standing still.
    pub at: Timestamp,
    /// The wall clock, which decides nothing.
    pub wall: WallTime,
    /// The processor time that the ordering thread has used, at most a millisecond ago; none when the orderer is new.
    pub worked: Span,
}

/// Answers and events that may leave the authority, because the batch that they rest on is durable.
pub struct DurableOutput<'a, A> {
    /// Answers, in the order in which they were found.
    pub answers: Drain<'a, (A, Answer)>,
    /// Changes of locks, in the order of the log.
    pub events: Drain<'a, Event>,
}

/// The machine, the batch being built, and the addresses `A` at which answers are awaited.
///
/// A batch begins with [`begin`](Orderer::begin), or with [`open`](Orderer::open) for the first one, and ends
/// with [`committed`](Orderer::committed). [`request`](Orderer::request) is for the time between them.
pub struct Orderer<A> {
    machine: Machine,
    presence: Presence,
    manual_clock: bool,
    batch_bytes: usize,
    /// The batch: its stamp, its bytes, and how many of them are the head. Empty while none is being built.
    at: Timestamp,
    wall: WallTime,
    /// The principal that asked for the last command in it.
    by: Principal,
    bytes: Vec<u8>,
    head: usize,
    effects: Vec<Effect>,
    events: Vec<Event>,
    replies: Replies<A>,
    /// The reason the log accepts nothing now, if so, and the stamp of the last batch that it had room for.
    no_room: Option<String>,
    had_room: Timestamp,
    writable: Writable,
    /// Withdrawals and releases for callers that left: recorded first in the next batch that has room.
    owed: Vec<(Principal, Command)>,
    /// Operations done since the clock was looked at.
    done: usize,
    /// The stamps of the last batch that was logged, and of the last one that changed anything.
    logged: Timestamp,
    worked: Timestamp,
    /// How often leases were extended before this orderer.
    extended: u64,
    /// The authority is about to stop. The requests with places still to be recorded, the newest last.
    draining: Option<Vec<(Principal, RequestId)>>,
}

impl<A: ReplyAddress> Orderer<A> {
    /// Goes on from the state a log ends in. With a manual clock no absence is recognised: it may move while nothing
    /// works.
    #[must_use]
    pub fn new(machine: Machine, manual_clock: bool) -> Orderer<A> {
        Orderer {
            presence: Presence::new(machine.now()),
            logged: machine.now(),
            worked: machine.now(),
            had_room: machine.now(),
            extended: machine.extended(),
            at: machine.now(),
            wall: WallTime::default(),
            by: Principal::ANONYMOUS,
            machine,
            manual_clock,
            batch_bytes: BATCH_BYTES,
            bytes: Vec::new(),
            head: 0,
            effects: Vec::new(),
            events: Vec::new(),
            replies: Replies::default(),
            no_room: None,
            draining: None,
            writable: Writable::default(),
            owed: Vec::new(),
            done: 0,
        }
    }

    /// Makes the batches smaller: the log then needs room for this many bytes and one command.
    #[must_use]
    pub fn with_batches_of(self, bytes: usize) -> Orderer<A> {
        Orderer {
            batch_bytes: bytes,
            ..self
        }
    }

    /// The state, with the batch being built.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Gives the state up, with the last batch.
    #[must_use]
    pub fn into_machine(self) -> Machine {
        self.machine
    }

    /// The stamp of the latest batch.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.at
    }

    /// The next instant at which something ends without a request; `None` also while the log has no room for its end.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.machine.next_due().filter(|_| self.no_room.is_none())
    }

    /// The longest sleep until the next batch begins: longer ones look like absence.
    #[must_use]
    pub fn heartbeat(&self) -> Span {
        HEARTBEAT.min(self.machine.bears())
    }

    /// The ordering thread had nothing to do for `span`, of which it had meant to sleep `planned`; other tasks on it
    /// `worked` meanwhile.
    pub fn slept(&mut self, span: Span, planned: Span, worked: Span) {
        self.presence.slept(span, planned, worked);
    }

    /// From now on requests that need a newer batch are refused (rule R21).
    pub fn limit_to(&mut self, writable: Writable) {
        self.writable = writable;
    }

    /// Begins the first batch with commands that have to be recorded before any request is accepted.
    pub fn open(&mut self, at: Timestamp, wall: WallTime, first: Vec<Command>) {
        self.stamp(at, wall);
        self.presence = Presence::new(self.at);
        self.had_room = self.at;
        for command in first {
            self.apply(Principal::ANONYMOUS, command);
        }
    }

    /// Begins a batch. First records the leases and waits that ended as time passed. Returns the absence for which leases
    /// got their time again (rule A7). An error in `room` is the reason the log accepts nothing: then nothing is applied
    /// until a batch has room, and leases get that time again, too.
    ///
    /// Callers that left meanwhile leave their queues before that (rule A10), in batches of their own. These batches have
    /// the time of the last one that had room, so that no lease ends by them.
    pub fn begin(&mut self, now: Moment, room: Result<(), String>) -> Option<Away> {
        let was_full = mem::replace(&mut self.no_room, room.err()).is_some();
        if was_full && self.no_room.is_none() && !self.owed.is_empty() {
            self.no_room = Some(CATCHING_UP.into());
            self.at = self.machine.now();
            self.stamp(self.at, now.wall);
            self.pay();
            return None;
        }
        self.stamp(now.at, now.wall);
        let found = self.look(now.worked);
        if self.no_room.is_some() {
            return None;
        }
        let had_room = mem::replace(&mut self.had_room, self.at);
        let away = if was_full {
            Some(Away::Paused(self.at.since(had_room)))
        } else {
            found
        };
        if let Some(away) = away {
            self.apply(Principal::ANONYMOUS, Command::Grace(away));
        }
        if !self.owed.is_empty() {
            self.pay();
        }
        if self.machine.next_due().is_some_and(|due| due <= self.at) {
            self.apply(Principal::ANONYMOUS, Command::Expire);
        }
        let quiet = self.logged.since(self.worked);
        let stamps_after = if self.manual_clock {
            Span::from_nanos(1)
        } else {
            quiet.clamp(FIRST_STAMP, STAMP_EVERY)
        };
        if self.at.since(self.logged) >= stamps_after {
            self.record_time();
        }
        away
    }

    /// Records the time with this batch, if it matters: something is leased or closed (rule A14). A restart then goes on
    /// from here.
    pub fn record_time(&mut self) {
        if self.takes_commands()
            && self.entry().is_none()
            && self.machine.locks() > 0
            && self.at > self.logged
        {
            self.put(Principal::ANONYMOUS, Command::Expire, true);
        }
    }

    /// Whether this batch applies commands. If not, the log has no room, or had none until now.
    #[must_use]
    pub fn takes_commands(&self) -> bool {
        self.no_room.is_none()
    }

    /// Whether the batch has grown so large, or taken so long, that it is to be made durable before another request is put
    /// into it. The clock is read once in some hundred operations.
    pub fn is_batch_over(&mut self, now: impl FnOnce() -> Timestamp) -> bool {
        if self.bytes.len() >= self.batch_bytes {
            return true;
        }
        if self.done < LOOK_AFTER {
            return false;
        }
        self.done = 0;
        now().since(self.at) > TURN
    }

    /// Takes a request in. A new lease gets the secret `key`.
    pub fn request(&mut self, asked: impl Into<Asked>, to: A, key: impl FnOnce() -> LeaseKey) {
        let Asked { by, request, .. } = asked.into();
        self.done += match &request {
            Request::List { .. } | Request::Grants { .. } => PAGE_WEIGHT,
            Request::Acquire(wish) => 1 + wish.also.len(),
            Request::Listen(grants) => grants.len(),
            _ => 1,
        };
        match intake(by, request, &self.machine, self.at, self.manual_clock, key) {
            Intake::Command(command) => self.carry_out(by, command, to),
            Intake::Answer(answer) => self.answer(to, answer),
        }
    }

    /// Adds an answer that is known without the machine; it leaves with this batch.
    pub fn answer(&mut self, to: A, answer: Answer) {
        self.replies.answer(to, answer);
    }

    /// The authority is about to stop: each waiting request becomes an orphan, so nobody is granted anything after its
    /// caller heard that the authority stops. Single callers hear it with this batch. The orphans keep their places for a
    /// new leader; a restart forgets them. Returns whether there are more, for the next batch.
    pub fn drain(&mut self) -> bool {
        let mut rest = self.draining.take().unwrap_or_else(|| {
            let mut waiting = self.replies.waiting();
            waiting.sort_by_cached_key(|(by, request)| self.machine.arrival(*by, request));
            waiting
        });
        while self.bytes.len() < self.batch_bytes
            && let Some((by, request)) = rest.pop()
        {
            self.leave_place(by, request);
        }
        let more = !rest.is_empty();
        self.draining = Some(rest);
        more
    }

    /// A request will not be granted by this process.
    fn leave_place(&mut self, by: Principal, request: RequestId) {
        self.record(by, left_by(request, true));
        let asked = (by, request);
        self.replies
            .settle_call(&asked, Answer::Failed(Failure::stopping()));
    }

    /// Whether something is still to be recorded, and can be.
    #[must_use]
    pub fn owes(&self) -> bool {
        !self.owed.is_empty() && self.takes_commands()
    }

    /// How often leases were extended since this was last asked.
    pub fn take_extended(&mut self) -> u64 {
        let extended = self.machine.extended();
        extended - mem::replace(&mut self.extended, extended)
    }

    /// The caller of a waiting request went away. Unless it was asked again elsewhere, the request leaves the queue, or is
    /// an orphan if its caller `may_return` and every member reads that.
    pub fn gone(&mut self, by: Principal, request: RequestId, may_return: bool) {
        if self.replies.gone(&(by, request)) && self.draining.is_none() {
            self.record(by, left_by(request, may_return));
        }
    }

    /// A session ended: its requests leave their queues. The last one to arrive leaves first, so that none is handed a
    /// lock that another one of them stood in front of.
    pub fn hang_up(&mut self, session: u64) {
        let mut left = self.replies.hang_up(session);
        if self.draining.is_some() {
            return;
        }
        left.sort_by_key(|(by, request)| Reverse(self.machine.arrival(*by, request)));
        for (by, request) in left {
            self.record(by, Command::Withdraw(request));
        }
    }

    /// A grant reached nobody, and nobody can ask for it again: it is released, with this batch or the next.
    pub fn unclaimed(&mut self, by: Principal, grant: GrantRef) {
        self.record(by, Command::Release(grant));
    }

    /// The bytes that must be durable before the batch is [`committed`](Orderer::committed); `None` if
    /// nothing changed.
    #[must_use]
    pub fn entry(&self) -> Option<&[u8]> {
        (self.bytes.len() > self.head).then_some(&self.bytes)
    }

    /// Whether changes of queues are noted; see [`Machine::note_queues`].
    pub fn note_queues(&mut self, on: bool) {
        self.machine.note_queues(on);
    }

    /// The queues that have changed with this batch; see [`Machine::take_changed_queues`].
    pub fn take_changed_queues(&mut self) -> Vec<(LockName, u32)> {
        self.machine.take_changed_queues()
    }

    /// Whether anybody gets an answer with this batch.
    #[must_use]
    pub fn has_answers(&self) -> bool {
        self.replies.has_answers()
    }

    /// The batch is durable and over, so the answers and events that rest on it may leave.
    pub fn committed(&mut self) -> DurableOutput<'_, A> {
        self.end_batch();
        DurableOutput {
            answers: self.replies.take(),
            events: self.events.drain(..),
        }
    }

    /// The log failed, so it is not certain that the batch is durable. Every caller in flight gets the answer that its
    /// outcome is unknown. The machine may be ahead of the log and must not be used any more.
    pub fn failed(&mut self) -> Drain<'_, (A, Answer)> {
        self.disown(|| Answer::Failed(Failure::lost()))
    }

    /// Another node leads, so the batch may be lost. Otherwise as [`failed`](Orderer::failed).
    pub fn deposed(&mut self) -> Drain<'_, (A, Answer)> {
        self.disown(|| {
            let why = "another node took over before this one answered".into();
            Answer::Failed(Failure::UnknownOutcome(why))
        })
    }

    /// The authority stops in order, after its last batch: requests that still wait got nothing.
    pub fn stopped(&mut self) -> Drain<'_, (A, Answer)> {
        self.replies
            .end_waits(|| Answer::Failed(Failure::stopping()));
        self.replies.take()
    }

    fn disown(&mut self, unknown: impl Fn() -> Answer) -> Drain<'_, (A, Answer)> {
        self.end_batch();
        self.events.clear();
        self.replies.replace(&unknown);
        self.replies.end_waits(unknown);
        self.replies.take()
    }

    fn end_batch(&mut self) {
        if self.entry().is_some() {
            self.logged = self.at;
        }
        self.bytes.clear();
        self.head = 0;
    }

    fn stamp(&mut self, at: Timestamp, wall: WallTime) {
        assert!(self.entry().is_none(), "the batch before is not over");
        self.at = self.at.max(at);
        self.wall = wall;
        self.bytes.clear();
        encode_head(&mut self.bytes, self.at, self.wall);
        self.by = Principal::ANONYMOUS;
        self.head = self.bytes.len();
    }

    /// How the time since the last look was spent.
    fn look(&mut self, worked: Span) -> Option<Away> {
        self.done = 0;
        if self.manual_clock {
            return None;
        }
        self.presence.look(self.at, worked, self.machine.bears())
    }

    fn carry_out(&mut self, by: Principal, command: Command, to: A) {
        if let Some(why) = &self.no_room {
            let why = format!("{why}; nothing happened");
            return self.answer(to, Answer::Failed(Failure::Unavailable(why)));
        }
        if version_needed(&command) > self.writable.version {
            return self.answer(to, Answer::Failed(self.writable.refusal.clone()));
        }
        let waits_as = match &command {
            Command::Acquire(acquire) => acquire.request,
            _ => None,
        };
        if let (Command::Acquire(acquire), Some(request)) = (&command, waits_as)
            && acquire.wait.is_none_or(|wait| wait == Span::ZERO)
            && self.machine.waiters() > 0
            && self.machine.arrival(by, &request).is_some()
        {
            return self.end_wait(by, command, request, to);
        }
        match (self.apply(by, command), waits_as) {
            (Outcome::Queued, Some(request)) => {
                self.replies.wait((by, request), to);
                if self.draining.is_some() {
                    self.leave_place(by, request);
                }
            }
            (outcome, _) => self.answer(to, Answer::Outcome(outcome)),
        }
    }

    /// A request that waits is asked again without a wait: it is answered at once. An orphan may have its turn; any other
    /// one leaves its queue, and is denied as one that never waited.
    fn end_wait(&mut self, by: Principal, again: Command, request: RequestId, to: A) {
        let mut outcome = self.apply(by, again.clone());
        if outcome == Outcome::Queued {
            self.replies.ask_elsewhere(&(by, request));
            self.apply(by, Command::Withdraw(request));
            outcome = self.apply(by, again);
        }
        self.answer(to, Answer::Outcome(outcome));
    }

    /// Records with this batch, or with the next one that there is and has room.
    fn record(&mut self, by: Principal, command: Command) {
        if self.bytes.is_empty() || self.no_room.is_some() {
            self.owed.push((by, command));
        } else {
            self.apply(by, command);
        }
    }

    /// Records the outstanding commands, as far as they fit into the batch. Orphans come first. Then the newest arrival
    /// leaves first, so that none of them is granted a lock when one ahead of it leaves. Last, grants that reached nobody
    /// are released.
    fn pay(&mut self) {
        let mut owed = mem::take(&mut self.owed);
        owed.sort_by_cached_key(|(by, command)| match command {
            Command::Orphan(_) => Some(u64::MAX),
            Command::Withdraw(request) => self.machine.arrival(*by, request),
            _ => None,
        });
        while self.bytes.len() < self.batch_bytes
            && let Some((by, command)) = owed.pop()
        {
            self.apply(by, command);
        }
        self.owed = owed;
    }

    /// Applies one command and puts it into the batch, unless it changed nothing.
    #[inline]
    fn apply(&mut self, by: Principal, command: Command) -> Outcome {
        self.put(by, command, false)
    }

    /// Applies one command and puts it into the batch. One that changed nothing is there for its instant alone, if it is to
    /// `stay`.
    fn put(&mut self, by: Principal, command: Command, stay: bool) -> Outcome {
        assert!(!self.bytes.is_empty(), "no batch has begun");
        let (before, last) = (place(&self.bytes), self.by);
        if by != last {
            encode_by(&mut self.bytes, by);
            self.by = by;
        }
        encode_command(&mut self.bytes, &command);
        let entry = Entry {
            at: self.at,
            wall: self.wall,
            by,
            command,
        };
        let applied = self.machine.apply(entry, &mut self.effects);
        if applied.changed {
            self.worked = self.at;
        } else if !stay {
            take_back(&mut self.bytes, before);
            self.by = last;
        }
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Settled {
                    by,
                    request,
                    outcome,
                } => {
                    let asked = (by, request);
                    self.replies.settle(&asked, Answer::Outcome(outcome));
                }
                Effect::Event(event) => self.events.push(event),
            }
        }
        applied.outcome
    }
}

/// The command for a request whose connection to its caller broke.
fn left_by(request: RequestId, may_return: bool) -> Command {
    if may_return {
        Command::Orphan(request)
    } else {
        Command::Withdraw(request)
    }
}
