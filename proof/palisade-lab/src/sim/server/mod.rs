//! The authority's process, driven one step at a time.
//!
//! ```text
//!   inbox ──► begin: Wal::reserve · Orderer::begin · each message ──► follower ──► facts
//!                                             │  (during the sync, more messages arrive)
//!                                             ▼
//!             finish: Wal::commit · Orderer::committed ──► answers, events
//! ```
//!
//! The orderer, its codec, its replay and the log are the product's. This module replaces the product's driver (inbox,
//! alarm, clock, log, output), which owns a thread and uses the kernel's clock.

mod caller;
mod disk;
mod follower;
mod id_map;
mod process;
mod queues;
mod recovered;
mod seams;

use std::sync::Arc;

use palisade_core::{Away, Command, LeaseKey, Limits, Span, Timestamp, WallTime, limits};
use palisade_pipeline::orderer::{Moment, Released};
use palisade_pipeline::{Answer, Request};
use palisade_wal::testing::Loss;

use super::clock::MachineClock;
use super::fact::Fact;
use super::mutants::Mutant;
use super::plan::{LOCKS, Plan};
use super::rng::Rng;
use caller::{Caller, index, session};
pub(crate) use caller::{Incoming, ReplyTo};
use disk::{Disk, Opened};
use follower::turn;
use id_map::IdMap;
use process::Process;
use queues::{hang_up_in_turn, only_orphans, overtake, waiting};
use recovered::recovered;

/// The operation of a request that the lab itself makes: no client waits for its answer.
const NOBODYS: u32 = u32::MAX;

/// The wall clock at the beginning of a simulation.
const FIRST_WALL_MS: u64 = 1_800_000_000_000;

/// The authority's machine: its disk, its clock, and usually a process.
pub(crate) struct Authority {
    mutant: Option<Mutant>,
    led: bool,
    /// How many permits each lock has at first.
    permits: [u8; LOCKS],
    clock: Arc<MachineClock>,
    wall_ms: i64,
    disk: Disk,
    ids: IdMap,
    rng: Rng,
    /// How many requests the lab itself has made.
    own_requests: u64,
    process: Option<Process>,
    was_here: bool,
    /// The last sign of life: the authority's clock, and the machine's. The kernel has it until the machine loses power.
    sign: Option<(Timestamp, u64)>,
    /// The facts since they were last taken.
    pub(crate) facts: Vec<Fact>,
    /// The answers sent.
    pub(crate) out: Vec<(ReplyTo, Answer)>,
}

impl Authority {
    pub(crate) fn new(plan: &Plan, clock: Arc<MachineClock>, mutant: Option<Mutant>) -> Authority {
        let seed = plan.seed;
        Authority {
            mutant,
            led: plan.led,
            permits: plan.permits,
            clock,
            wall_ms: FIRST_WALL_MS as i64,
            disk: Disk::new(seed),
            ids: IdMap::new(mutant),
            rng: Rng::fork(seed, 2),
            own_requests: 0,
            process: None,
            was_here: false,
            sign: None,
            facts: Vec::new(),
            out: Vec::new(),
        }
    }

    pub(crate) fn disk(&mut self) -> &mut Disk {
        &mut self.disk
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Starts the process from the disk: replay, then everything that must be recorded before the first request is
    /// served.
    pub(crate) fn start(&mut self, restored: bool) -> Result<(), String> {
        if self.disk.copy_opens() {
            self.facts.push(Fact::CopyOpened);
        }
        let Opened {
            wal,
            replay,
            returning,
        } = self.disk.open()?;
        let machine = match self.mutant {
            Some(Mutant::ResizeForgotten) => {
                seams::forget_resizes(&replay.finish(), &self.permits)?
            }
            _ => replay.finish(),
        };
        let led = self.led && !restored;
        let known = self.sign.filter(|_| !led && !restored);
        let resumed = known.and_then(|sign| resumed(sign, machine.now(), self.clock.nanos()));
        let (now, down) = resumed.map_or((machine.now(), None), |(now, down)| (now, Some(down)));
        let waiting = if led { waiting(&machine) } else { Vec::new() };
        if std::mem::replace(&mut self.was_here, true) {
            let recovered = recovered(
                &machine,
                (now, down.unwrap_or(Span::ZERO)),
                restored,
                &waiting,
                &mut self.ids,
            );
            self.facts.push(recovered);
        }
        let machine = match self.mutant {
            Some(Mutant::ClosingForgotten) => seams::forget_closings(&machine)?,
            Some(Mutant::ExtendedForEver) => seams::forget_extensions(&machine)?,
            _ => machine,
        };
        let mut process = Process::new(machine, wal, (now, self.clock.nanos()), self.mutant);
        let grace = returning && self.mutant != Some(Mutant::NoGrace);
        let away = match down {
            _ if led => Away::Led,
            Some(down) => Away::Down(down),
            None => Away::Restarted,
        };
        let mut first = Vec::from_iter(grace.then_some(Command::Grace(away)));
        first.extend(seams::of_orphans(waiting, self.mutant));
        first.push(Command::Configure(Limits::DEFAULT));
        let now = process.now(self.clock.nanos());
        process.orderer.open(now, self.wall(), first);
        self.process = Some(process);
        self.follow(None);
        if let Err(why) = self.finish() {
            self.process = None;
            return Err(why);
        }
        Ok(())
    }

    pub(crate) fn take_in(&mut self, message: Incoming) {
        if let Some(process) = &mut self.process {
            process.inbox.push_back(message);
        }
    }

    /// Whether there is a reason to begin a round.
    pub(crate) fn has_work(&self) -> bool {
        let local = self.clock.nanos();
        let process = self.process.as_ref();
        process.is_some_and(|process| process.is_awake(local))
    }

    /// The virtual instant of its alarm.
    pub(crate) fn next_alarm(&self) -> Option<u64> {
        let process = self.process.as_ref()?;
        process.alarm().map(|local| self.clock.when(local))
    }

    /// From now on the process is busy with one thing for a while.
    pub(crate) fn work(&mut self) {
        let local = self.clock.nanos();
        if let Some(process) = &mut self.process {
            process.work(process.now(local));
        }
    }

    /// The first half of a round: everything before the sync.
    pub(crate) fn begin(&mut self) {
        let (local, wall) = (self.clock.nanos(), self.wall());
        let Some(process) = &mut self.process else {
            return;
        };
        let at = process.now(local);
        let before = process.wake(at);
        let room = process.wal.reserve(process::ROOM);
        process.full = room.is_err();
        let room = match self.mutant {
            Some(Mutant::FullDiskIgnored) => Ok(()),
            _ => room.map_err(|full| full.to_string()),
        };
        // The truth, for the checkers.
        let at = process.orderer.now().max(at);
        let away = process.absence(at);
        let was_full = !process.orderer.takes_commands();
        let away = match was_full {
            true => Some(Away::Paused(at.since(process.had_room))),
            false => away,
        };
        let busy = process.report_busy();
        let worked = process.used;
        let now = Moment { at, wall, worked };
        let orderer = &mut process.orderer;
        let now = seams::moment(now, self.mutant, before, away, orderer);
        match self.mutant {
            Some(Mutant::WindowNeverEnds) if room.is_ok() && only_orphans(orderer.machine()) => {
                orderer.open(now.at, wall, vec![Command::Grace(Away::Led)]);
            }
            _ => drop(orderer.begin(now, room)),
        }
        self.facts.extend(busy.map(|span| Fact::Busy { span }));
        if process.full || !process.orderer.takes_commands() {
            self.facts.push(Fact::DiskFull);
        } else {
            process.had_room = at;
            if let Some(Away::Paused(away)) = away {
                let (at, away) = (at.as_nanos(), away.as_nanos());
                self.facts.push(Fact::Stalled { at, away });
            }
        }
        self.follow(None);
        while let Some(message) = self.next_message() {
            self.message(message);
        }
        if self.mutant == Some(Mutant::AnswerBeforeSync) {
            self.let_out();
        }
    }

    /// The next message, if it fits into the batch; otherwise it waits for the next batch.
    fn next_message(&mut self) -> Option<Incoming> {
        let local = self.clock.nanos();
        let process = self.process.as_mut()?;
        let now = process.now(local);
        if process.orderer.is_batch_over(|| now) {
            return None;
        }
        process.inbox.pop_front()
    }

    fn message(&mut self, message: Incoming) {
        match message {
            Incoming::Ask(to, request) => self.ask(to, request),
            Incoming::Hangup(client, incarnation) => self.hang_up(client, incarnation),
        }
    }

    fn ask(&mut self, to: ReplyTo, request: Request) {
        let Some(process) = &mut self.process else {
            return;
        };
        let wanted = match &request {
            Request::Acquire(wish) => wish.wait.map_or(0, Span::as_nanos),
            _ => 0,
        };
        let renews = match &request {
            Request::Renew { grant, .. } => grant.token,
            _ => None,
        };
        let resizes = match &request {
            Request::Resize { lock, permits } => Some((index(lock), *permits as u8)),
            _ => None,
        };
        if let Some(mutant) = self.mutant {
            overtake(mutant, process, &request, &mut self.ids);
        }
        let orderer = &mut process.orderer;
        let first = seams::first(&request, self.mutant, orderer.machine(), orderer.now());
        for own in first {
            let caller = Caller {
                to: ReplyTo {
                    operation: NOBODYS,
                    ..to
                },
                renews: None,
                resizes: None,
            };
            self.own_requests += 1;
            let key = LeaseKey::from_bytes(u128::from(self.own_requests).to_be_bytes());
            process.orderer.request(own, caller, || key);
            let (ids, facts) = (&mut self.ids, &mut self.facts);
            let follower = &mut process.follower;
            follower.follow(&process.orderer, None, ids, facts);
        }
        let (orderer, ids) = (&mut process.orderer, &mut self.ids);
        self.facts.extend(seams::taken(&request, ids));
        let (machine, at) = (orderer.machine(), orderer.now());
        let request = seams::inward(request, self.mutant, machine, at, ids);
        let rng = &mut self.rng;
        let caller = Caller {
            to,
            renews,
            resizes,
        };
        orderer.request(request, caller, || LeaseKey::from_bytes(rng.bytes()));
        self.follow(Some((to, wanted)));
    }

    fn hang_up(&mut self, client: u8, incarnation: u32) {
        let Some(process) = &mut self.process else {
            return;
        };
        let gone = process.follower.hang_up(client, incarnation).into_iter();
        self.facts
            .extend(gone.map(|request| Fact::Gone { request }));
        if self.mutant != Some(Mutant::WaiterUnchecked) {
            process.orderer.hang_up(session(client, incarnation));
        }
        self.follow(None);
    }

    /// Reports the commands added to the batch.
    fn follow(&mut self, asked: Option<follower::CallerAndWait>) {
        if let Some(process) = &mut self.process {
            let (ids, facts) = (&mut self.ids, &mut self.facts);
            let follower = &mut process.follower;
            follower.follow(&process.orderer, asked, ids, facts);
        }
    }

    /// Whether the current round has something to sync.
    pub(crate) fn has_batch(&self) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| !process.follower.batch.is_empty())
    }

    /// The second half: the sync, and the effects that become visible after it.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        let local = self.clock.nanos();
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        let follower = &mut process.follower;
        if !follower.batch.is_empty() {
            let committed = process.wal.commit(&follower.batch);
            if let Err(error) = committed
                && self.mutant != Some(Mutant::FailedSyncIgnored)
            {
                let full = process.full;
                self.facts.push(Fact::LogFailed { full });
                self.fail();
                return Err(error.to_string());
            }
            if disk::compact(&process.wal) {
                self.facts.push(Fact::Snapshot);
            }
        }
        follower.end_batch();
        self.let_out();
        if let Some(process) = &mut self.process {
            if process.orderer.takes_commands() {
                let at = process.orderer.now();
                self.sign = Some((at, process.local_at(at)));
            }
            process.sleep(process.now(local));
        }
        Ok(())
    }

    /// The batch is durable.
    fn let_out(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        let Released { answers, events } = process.orderer.committed();
        let seen = events.filter_map(|event| turn(&event, &self.ids));
        self.facts.extend(seen.map(Fact::Published));
        for (caller, answer) in answers {
            let answer = seams::outward(answer, caller, self.mutant, &self.ids);
            self.facts.extend(seams::acknowledged(&answer, caller));
            self.out.push((caller.to, answer));
        }
    }

    /// It is uncertain whether the batch is durable.
    fn fail(&mut self) {
        if self.mutant == Some(Mutant::FailedSyncAnswered) {
            return self.let_out();
        }
        if let Some(process) = &mut self.process {
            let answers = process.orderer.failed();
            self.out
                .extend(answers.map(|(caller, answer)| (caller.to, answer)));
        }
    }

    /// A planned stop: the waits end before any connection does. Then the process ends.
    pub(crate) fn stop(&mut self) {
        let mut more = true;
        while more {
            self.begin();
            self.facts.push(Fact::Stopping { begins: true });
            let Some(process) = &mut self.process else {
                return;
            };
            more = match self.mutant {
                Some(Mutant::StopOneByOne) => {
                    hang_up_in_turn(process, &mut self.ids);
                    false
                }
                _ => process.orderer.drain(),
            };
            self.follow(None);
            self.facts.push(Fact::Stopping { begins: false });
            if self.finish().is_err() {
                return;
            }
        }
    }

    /// The process dies with its memory. A batch whose sync is in progress is lost, torn or written, as the disk and
    /// `chance` decide.
    pub(crate) fn die(&mut self, power: bool, chance: u64) {
        let mut rng = Rng::new(chance);
        if let Some(mut process) = self.process.take()
            && !process.follower.batch.is_empty()
        {
            let batch = &process.follower.batch;
            match rng.below(4) {
                0 => {}
                1 => drop(process.wal.commit(batch)),
                call => {
                    self.disk.die_in(call - 1);
                    drop(process.wal.commit(batch));
                }
            }
        }
        if !power {
            return self.disk.restart();
        }
        self.sign = None;
        self.disk.crash(match rng.below(4) {
            0 => Loss::DropAll,
            1 => Loss::KeepAll,
            _ => Loss::Torn(rng.next()),
        });
    }

    /// The directory is lost; the last backup replaces it. `false`: there is none. `now`, in nanoseconds, is the
    /// operator's clock, which no fault changes.
    pub(crate) fn restore(&mut self, now: u64) -> Result<bool, String> {
        let leap = match self.mutant {
            Some(Mutant::RestoreWithoutLeap) => None,
            Some(Mutant::EqualLeaps) => Some(limits::RESTORE_LEAP),
            _ => limits::restore_leap(FIRST_WALL_MS + now / 1_000_000),
        };
        self.disk.restore(leap)
    }

    pub(crate) fn jump_wall(&mut self, by_ms: i64) {
        self.wall_ms += by_ms;
    }

    fn wall(&self) -> WallTime {
        let since_boot = (self.clock.nanos() / 1_000_000) as i64;
        WallTime(self.wall_ms.saturating_add(since_boot).max(0) as u64)
    }
}

/// For a process that starts at `local` on a log that ends at `last`: the time on the authority's clock, and how long
/// there was no process.
fn resumed((at, then): (Timestamp, u64), last: Timestamp, local: u64) -> Option<(Timestamp, Span)> {
    let there = at.max(last);
    let shows = at.after(Span::from_nanos(local.checked_sub(then)?));
    (shows >= there).then(|| (shows, shows.since(there)))
}
