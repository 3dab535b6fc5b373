//! The authority's machine: the product's loop over a disk, a clock and a network of the lab.
//!
//! ```text
//!   inbox ──► begin: Wal::reserve · Round::begin · Round::fill ──► follower ──► facts
//!                                          │  (during the sync, more messages arrive)
//!                                          ▼
//!             finish: Wal::commit · Round::written · Round::rest ──► answers, events
//! ```
//!
//! The loop, its orderer, codec and replay, and the log are the product's. Here is what its thread has: an inbox, an alarm,
//! clocks and a log.

mod call;
mod caller;
mod disk;
mod follower;
mod id_map;
mod intake;
mod process;
mod queues;
mod recovered;
mod seams;

use std::sync::Arc;

use palisade_core::{
    Away, Command, GrantRef, Limits, Principal, Span, Timestamp, WallTime, limits,
};
use palisade_pipeline::orderer::{DurableOutput, Moment};
use palisade_pipeline::round::UntilNext;
use palisade_pipeline::{Answer, Returning, Writable, first_commands, take_over};
use palisade_wal::testing::CrashLoss;

use super::clock::MachineClock;
use super::fact::Fact;
use super::mutants::Mutant;
use super::plan::{LOCKS, Plan};
use super::rng::Rng;
pub(crate) use call::Call;
pub(crate) use caller::{Incoming, ReplyTo, SINGLE};
use disk::{Disk, Opened};
use follower::turn;
use id_map::IdMap;
use intake::SimInbox;
use process::Process;
use queues::{only_orphans, waiting};
use recovered::recovered;

/// The wall clock at the beginning of a simulation.
const FIRST_WALL_MS: u64 = 1_800_000_000_000;

/// The authority's machine: its disk, its clock, and usually a process.
pub(crate) struct Authority {
    lab: Lab,
    led: bool,
    /// How many permits each lock has at first.
    permits: [u8; LOCKS],
    clock: Arc<MachineClock>,
    wall_ms: i64,
    disk: Disk,
    process: Option<Process>,
    was_here: bool,
    /// The last sign of life: the authority's clock, and the machine's. The kernel has it until the machine loses power.
    sign: Option<(Timestamp, u64)>,
    /// A mutant let the batch's answers out before its sync.
    is_out: bool,
    /// The work that a mutant has made of absences.
    forged: Span,
    /// The answers sent.
    pub(crate) out: Vec<(ReplyTo, Answer)>,
}

/// What the lab knows and does, whichever process serves.
struct Lab {
    mutant: Option<Mutant>,
    ids: IdMap,
    rng: Rng,
    /// How many requests the lab itself has made.
    own_requests: u64,
    /// The facts since they were last taken.
    facts: Vec<Fact>,
}

impl Authority {
    pub(crate) fn new(plan: &Plan, clock: Arc<MachineClock>, mutant: Option<Mutant>) -> Authority {
        let seed = plan.seed;
        Authority {
            lab: Lab {
                mutant,
                ids: IdMap::new(mutant),
                rng: Rng::fork(seed, 2),
                own_requests: 0,
                facts: Vec::new(),
            },
            led: plan.led,
            permits: plan.permits,
            clock,
            wall_ms: FIRST_WALL_MS as i64,
            disk: Disk::new(seed),
            process: None,
            was_here: false,
            sign: None,
            is_out: false,
            forged: Span::ZERO,
            out: Vec::new(),
        }
    }

    pub(crate) fn disk(&mut self) -> &mut Disk {
        &mut self.disk
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// The facts since they were last taken.
    pub(crate) fn take_facts(&mut self) -> Vec<Fact> {
        std::mem::take(&mut self.lab.facts)
    }

    /// Starts the process from the disk: replay, then everything that must be recorded before the first request is
    /// served.
    pub(crate) fn start(&mut self, restored: bool) -> Result<(), String> {
        self.is_out = false;
        if self.disk.copy_opens() {
            self.lab.facts.push(Fact::CopyOpened);
        }
        let Opened {
            wal,
            replay,
            returning,
        } = self.disk.open()?;
        let machine = match self.lab.mutant {
            Some(Mutant::ResizeForgotten) => {
                seams::forget_resizes(&replay.finish(), &self.permits)?
            }
            _ => replay.finish(),
        };
        let (led, last, local) = (self.led && !restored, machine.now(), self.clock.nanos());
        let known = self.sign.filter(|_| !led && !restored);
        let resumed = known.and_then(|sign| Returning::resumed(sign, last, local));
        let returns = resumed.unwrap_or(Returning::Restarted);
        let (now, down) = match returns {
            Returning::Resumed { down, .. } => (returns.clock(last), down),
            _ => (returns.clock(last), Span::ZERO),
        };
        let waiting = if led { waiting(&machine) } else { Vec::new() };
        if std::mem::replace(&mut self.was_here, true) {
            let ids = &mut self.lab.ids;
            let recovered = recovered(&machine, (now, down), restored, &waiting, ids);
            self.lab.facts.push(recovered);
        }
        let machine = match self.lab.mutant {
            Some(Mutant::ClosingForgotten) => seams::forget_closings(&machine)?,
            Some(Mutant::ExtendedForEver) => seams::forget_extensions(&machine)?,
            _ => machine,
        };
        let mut process = Process::new(machine, wal, (now, local), self.lab.mutant);
        let mut first = if returning && led {
            take_over(Limits::DEFAULT)
        } else {
            first_commands(returning.then_some(returns), Limits::DEFAULT)
        };
        if self.lab.mutant == Some(Mutant::NoGrace) {
            first.retain(|command| !matches!(command, Command::Grace(_)));
        }
        first.extend(seams::of_orphans(waiting, self.lab.mutant));
        let now = process.now(self.clock.nanos());
        process.round.open(now, self.wall(), first);
        process.follow(&mut self.lab);
        process.end_batch(self.lab.mutant);
        self.process = Some(process);
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
        let (mutant, facts) = (self.lab.mutant, &mut self.lab.facts);
        let now = process.now(local);
        let before = process.wake(now);
        let room = process.wal.reserve(process::ROOM);
        process.full = room.is_err();
        let room = match mutant {
            Some(Mutant::FullDiskIgnored) => Ok(()),
            _ => room.map_err(|full| full.to_string()),
        };
        // The truth, for the checkers.
        let at = process.round.orderer().now().max(now);
        let away = process.absence(at);
        let was_full = !process.round.orderer().takes_commands();
        let away = if was_full {
            Some(Away::Paused(at.since(process.had_room)))
        } else {
            away
        };
        let busy = process.report_busy();
        let worked = process.used;
        let moment = Moment { at, wall, worked };
        let moment = seams::moment(moment, mutant, before, away, &mut self.forged);
        let round = &mut process.round;
        match mutant {
            Some(Mutant::WindowNeverEnds) if room.is_ok() && only_orphans(round.machine()) => {
                round.open(moment.at, wall, vec![Command::Grace(Away::Led)]);
            }
            _ => drop(round.begin(moment, room, Writable::default())),
        }
        facts.extend(busy.map(|span| Fact::Busy { span }));
        if process.full || !process.round.orderer().takes_commands() {
            facts.push(Fact::DiskFull);
        } else {
            process.had_room = at;
            if let Some(Away::Paused(away)) = away {
                let (at, away) = (at.as_nanos(), away.as_nanos());
                facts.push(Fact::Stalled { at, away });
            }
        }
        self.fill(now);
        if mutant == Some(Mutant::AnswerBeforeSync) {
            self.let_out();
            self.is_out = true;
        }
    }

    /// Takes the messages in that have arrived and fit into the batch.
    fn fill(&mut self, now: Timestamp) {
        let Some(process) = &mut self.process else {
            return;
        };
        process.follow(&mut self.lab);
        let drains = process.round.is_draining();
        let begins = drains.then_some(Fact::Stopping { begins: true });
        self.lab.facts.extend(begins);
        let mut intake = SimInbox {
            lab: &mut self.lab,
            follower: &mut process.follower,
            inbox: &mut process.inbox,
            coming: &mut process.coming,
            now,
            own_key: None,
            asked: None,
            drains,
        };
        process.round.fill(&mut intake);
        intake.report(process.round.orderer());
        process.end_batch(self.lab.mutant);
    }

    /// Whether the current round has something to sync.
    pub(crate) fn has_batch(&self) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| !process.batch.is_empty())
    }

    /// The second half: the sync, and the effects that become visible after it.
    pub(crate) fn finish(&mut self) -> Result<UntilNext, String> {
        let local = self.clock.nanos();
        let Some(process) = &mut self.process else {
            return Ok(UntilNext::Over);
        };
        let mutant = self.lab.mutant;
        let is_out = std::mem::take(&mut self.is_out);
        let batch = std::mem::take(&mut process.batch);
        if !batch.is_empty() {
            let committed = process.wal.commit(&batch);
            if let Err(error) = committed
                && mutant != Some(Mutant::FailedSyncIgnored)
            {
                let full = process.full;
                self.lab.facts.push(Fact::LogFailed { full });
                self.fail();
                return Err(error.to_string());
            }
            if disk::compact(&process.wal) {
                self.lab.facts.push(Fact::Snapshot);
            }
        }
        let alive = process.round.alive();
        if !is_out {
            self.let_out();
        }
        let Some(process) = &mut self.process else {
            return Ok(UntilNext::Over);
        };
        if let Some(at) = alive {
            self.sign = Some((at, process.local_at(at)));
        }
        Ok(process.rest(process.now(local)))
    }

    /// The batch is durable.
    fn let_out(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        let (mutant, facts, ids) = (self.lab.mutant, &mut self.lab.facts, &self.lab.ids);
        let DurableOutput { answers, events } = process.round.written();
        let seen = events.filter_map(|event| turn(&event, ids));
        facts.extend(seen.map(Fact::Published));
        let mut unclaimed: Vec<GrantRef> = Vec::new();
        for (caller, answer) in answers {
            if let Some(call) = &caller.call {
                unclaimed.extend(call.answer(&answer));
            }
            let answer = seams::outward(answer, &caller, mutant, ids);
            facts.extend(seams::acknowledged(&answer, &caller));
            self.out.push((caller.to, answer));
        }
        for grant in unclaimed {
            if let Some(grant) = self.lab.unclaimed(grant) {
                process.round.unclaimed(Principal::ANONYMOUS, grant);
            }
        }
    }

    /// It is uncertain whether the batch is durable.
    fn fail(&mut self) {
        if self.lab.mutant == Some(Mutant::FailedSyncAnswered) {
            return self.let_out();
        }
        if let Some(process) = &mut self.process {
            let answers = process.round.failed();
            self.out
                .extend(answers.map(|(caller, answer)| (caller.to, answer)));
        }
    }

    /// A planned stop: the waits end before any connection does. Then the process ends, when everything is written down.
    pub(crate) fn stop(&mut self) {
        self.take_in(Incoming::Drain);
        self.take_in(Incoming::Stop);
        loop {
            self.begin();
            match self.finish() {
                Ok(UntilNext::Over) => break,
                // Nothing has arrived, and the log has no room for what is owed.
                Ok(UntilNext::Sleep(_)) | Err(_) => return,
                Ok(UntilNext::GoOn(_)) => {}
            }
        }
        if let Some(process) = &mut self.process {
            let answers = process.round.stopped();
            self.out
                .extend(answers.map(|(caller, answer)| (caller.to, answer)));
        }
    }

    /// The process dies with its memory. A batch whose sync is in progress is lost, torn or written, as the disk and
    /// `chance` decide.
    pub(crate) fn die(&mut self, power: bool, chance: u64) {
        let mut rng = Rng::new(chance);
        if let Some(mut process) = self.process.take()
            && !process.batch.is_empty()
        {
            let batch = &process.batch;
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
            0 => CrashLoss::DropAll,
            1 => CrashLoss::KeepAll,
            _ => CrashLoss::Torn(rng.next()),
        });
    }

    /// The directory is lost; the last backup replaces it. `false`: there is none. `now`, in nanoseconds, is the
    /// operator's clock, which no fault changes.
    pub(crate) fn restore(&mut self, now: u64) -> Result<bool, String> {
        let leap = match self.lab.mutant {
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
