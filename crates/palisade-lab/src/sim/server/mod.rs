//! The authority's process, driven one step at a time.
//!
//! ```text
//!   inbox ──► begin: stamp · has_room · grace? · expire · apply each · encode
//!                                             │  (a sync's time passes; more messages gather)
//!                                             ▼
//!             finish: Wal::commit ──► answers, events
//! ```
//!
//! The machine, its codec, its replay and the log are the product's. The product's sequencer owns a
//! thread, a channel and the kernel's clock and cannot be stepped, so this module repeats the order of
//! its loop: take in, stamp, record what time did, apply, append, sync, and only then answer. Its
//! heartbeat is not simulated beat by beat: an idle, running authority counts as having looked at its
//! clock at most a beat ago.

mod apply;
mod desk;
mod disk;
mod ledger;
mod process;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use palisade_core::machine::Record;
use palisade_core::{Away, Command, Limits, Machine, RequestId, Span, Timestamp, WallTime, limits};
use palisade_server::pipeline::{Answer, Request};
use palisade_wal::testing::Loss;

use super::clock::MachineClock;
use super::fact::{Fact, Turn, What};
use super::mutants::Mutant;
use super::rng::Rng;
use desk::Desk;
pub(crate) use desk::ReplyTo;
use disk::{Disk, Opened};
use ledger::Ledger;
use process::{Absence, Process};

/// The wall clock when a simulation begins.
const FIRST_WALL_MS: u64 = 1_800_000_000_000;

/// As in the product's sequencer, in nanoseconds.
const HEARTBEAT: u64 = 100_000_000;

/// The room asked of the log for a round; the product asks for its own, larger batches.
const ROUND_BYTES: usize = 2 << 10;

/// A message that reached the process.
pub(crate) enum Incoming {
    Ask(ReplyTo, Request),
    Hangup(u8, u32),
}

/// The authority's machine: its disk, its clock, and a process on it most of the time.
pub(crate) struct Authority {
    mutant: Option<Mutant>,
    clock: Arc<MachineClock>,
    wall_ms: i64,
    disk: Disk,
    ledger: Ledger,
    rng: Rng,
    process: Option<Process>,
    was_here: bool,
    /// What happened since it was last taken away.
    pub(crate) facts: Vec<Fact>,
    /// Answers that left.
    pub(crate) out: Vec<(ReplyTo, Answer)>,
}

impl Authority {
    pub(crate) fn new(seed: u64, clock: Arc<MachineClock>, mutant: Option<Mutant>) -> Authority {
        Authority {
            mutant,
            clock,
            wall_ms: FIRST_WALL_MS as i64,
            disk: Disk::new(seed),
            ledger: Ledger::new(mutant),
            rng: Rng::fork(seed, 2),
            process: None,
            was_here: false,
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

    /// Starts the process on what the disk holds: replay, then everything that has to be recorded
    /// before anybody is served.
    pub(crate) fn start(&mut self, restored: bool) -> Result<(), String> {
        if self.disk.copy_opens() {
            self.facts.push(Fact::CopyOpened);
        }
        let Opened {
            wal,
            replay,
            returning,
        } = self.disk.open()?;
        let machine = replay.finish();
        let now = machine.now();
        let mut process = Process {
            wal,
            resumed_at: now,
            boot_then: self.clock.nanos(),
            at: now,
            wall: WallTime::default(),
            away: Absence::new(now),
            believed: Absence::new(now),
            idle_since: None,
            busy_since: None,
            used: Span::ZERO,
            inbox: Vec::new(),
            desk: Desk::default(),
            bytes: Vec::new(),
            head: 0,
            effects: Vec::new(),
            turns: Vec::new(),
            full: false,
            left: Vec::new(),
            machine,
        };
        if std::mem::replace(&mut self.was_here, true) {
            self.facts.push(self.recovered(&process.machine, restored));
        }
        process.stamp(self.clock.nanos(), self.wall());
        self.process = Some(process);
        if returning {
            self.grace(Away::Restarted);
        }
        self.apply(Command::Configure(Limits::DEFAULT));
        if let Err(why) = self.finish() {
            self.process = None;
            return Err(why);
        }
        Ok(())
    }

    /// Every lease gets its full time again. The mutant does nothing of it but what the same command
    /// does to requests that wait.
    fn grace(&mut self, away: Away) {
        if self.mutant != Some(Mutant::NoGrace) {
            self.apply(Command::Grace(away));
            return;
        }
        let process = self.process.iter().filter(|_| away == Away::Restarted);
        let waiting: Vec<RequestId> = process
            .flat_map(|process| process.machine.records())
            .filter_map(|record| match record {
                Record::Waiter(waiter) => Some(waiter.request),
                _ => None,
            })
            .collect();
        for request in waiting {
            self.apply(Command::Withdraw(request));
        }
    }

    fn recovered(&self, machine: &Machine, restored: bool) -> Fact {
        let (views, _) = machine.page("", 0, usize::MAX, Timestamp::ZERO);
        let mut live: Vec<(u8, u64, u8)> = views
            .into_iter()
            .filter_map(|view| {
                let holder = view.holder?;
                let token = self.ledger.outward(holder.token).get();
                Some((index(&view.lock), token, index(&holder.client)))
            })
            .collect();
        live.sort_unstable();
        Fact::Recovered {
            at: machine.now().as_nanos(),
            restored,
            next: machine.next_token().map_or(u64::MAX, |token| token.get()),
            live,
        }
    }

    pub(crate) fn take_in(&mut self, message: Incoming) {
        if let Some(process) = &mut self.process {
            process.inbox.push(message);
        }
    }

    /// Whether there is something to begin a round for.
    pub(crate) fn has_work(&self) -> bool {
        self.process.as_ref().is_some_and(|process| {
            !process.inbox.is_empty()
                || !process.full
                    && process
                        .machine
                        .next_due()
                        .is_some_and(|due| due <= process.now(self.clock.nanos()))
        })
    }

    /// The virtual instant at which something will be due.
    pub(crate) fn next_due(&self) -> Option<u64> {
        // A full disk waits for its next heartbeat.
        let process = self.process.as_ref().filter(|process| !process.full)?;
        let due = process.machine.next_due()?.as_nanos();
        let local = process.boot_then + due.saturating_sub(process.resumed_at.as_nanos());
        Some(self.clock.when(local))
    }

    /// The process stops running now, or its clock is about to jump: it last looked a beat ago.
    pub(crate) fn pause(&mut self) {
        let local = self.clock.nanos();
        if let Some(process) = &mut self.process {
            process.look_back(local, self.mutant);
            process.look(process.now(local), self.mutant);
        }
    }

    /// From now on the process works on something, and looks at nothing else for a while.
    pub(crate) fn work(&mut self) {
        self.pause();
        let local = self.clock.nanos();
        if let Some(process) = &mut self.process {
            process.busy_since = Some(process.now(local));
        }
    }

    /// The first half of a round: everything up to the sync.
    pub(crate) fn begin(&mut self) {
        let (local, wall) = (self.clock.nanos(), self.wall());
        let Some(process) = &mut self.process else {
            return;
        };
        process.look_back(local, self.mutant);
        let was_full =
            std::mem::replace(&mut process.full, process.wal.reserve(ROUND_BYTES).is_err());
        process.stamp(local, wall);
        process.look(process.at, self.mutant);
        let was_full = was_full.then_some(Away::Stalled);
        let away = was_full.or(process.away.take());
        let believed = was_full.or(process.believed.take());
        if process.full {
            self.facts.push(Fact::DiskFull);
        } else {
            let (at, left) = (process.at.as_nanos(), std::mem::take(&mut process.left));
            self.facts.extend(away.map(|away| Fact::Stalled {
                at,
                pause: match away {
                    Away::Paused(pause) => Some(pause.as_nanos()),
                    Away::Stalled | Away::Restarted => None,
                },
            }));
            if let Some(away) = believed {
                self.facts.push(Fact::Graced { at });
                self.grace(away);
            }
            for command in left {
                self.apply(command);
            }
            self.expire_due();
        }
        let inbox = self
            .process
            .as_mut()
            .map(|process| std::mem::take(&mut process.inbox));
        for message in inbox.unwrap_or_default() {
            self.message(message);
        }
        if self.mutant == Some(Mutant::AnswerBeforeSync) {
            self.let_out();
        }
    }

    /// Whether the round under way has something to sync.
    pub(crate) fn has_batch(&self) -> bool {
        let grown = |process: &Process| process.bytes.len() > process.head;
        self.process.as_ref().is_some_and(grown)
    }

    fn expire_due(&mut self) {
        let due = self.process.as_ref().is_some_and(|process| {
            process
                .machine
                .next_due()
                .is_some_and(|due| due <= process.at)
        });
        if due {
            self.apply(Command::Expire);
        }
    }

    /// The second half: the sync, and what may be seen after it.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        let local = self.clock.nanos();
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        if process.bytes.len() > process.head {
            let committed = process.wal.commit(&process.bytes);
            if let Err(error) = committed
                && self.mutant != Some(Mutant::FailedSyncIgnored)
            {
                return Err(error.to_string());
            }
            if disk::compact(&process.wal) {
                self.facts.push(Fact::Snapshot);
            }
        }
        process.bytes.clear();
        process.head = 0;
        if let Some(since) = process.busy_since.take() {
            process.used = process.used.plus(process.now(local).since(since));
        }
        process.idle_since = Some(process.now(local));
        self.facts
            .extend(process.turns.drain(..).map(Fact::Published));
        self.let_out();
        Ok(())
    }

    fn let_out(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        for (to, answer) in process.desk.take_ready() {
            self.facts.extend(apply::acknowledged(&answer));
            self.out.push((to, answer));
        }
    }

    /// The process is gone and so is what it had in memory. A batch whose sync was under way is lost,
    /// torn or there, as the disk and `chance` decide.
    pub(crate) fn die(&mut self, power: bool, chance: u64) {
        let mut rng = Rng::new(chance);
        if let Some(mut process) = self.process.take()
            && process.bytes.len() > process.head
        {
            match rng.below(4) {
                0 => {}
                1 => drop(process.wal.commit(&process.bytes)),
                call => {
                    self.disk.die_in(call - 1);
                    drop(process.wal.commit(&process.bytes));
                }
            }
        }
        if !power {
            return self.disk.restart();
        }
        self.disk.crash(match rng.below(4) {
            0 => Loss::DropAll,
            1 => Loss::KeepAll,
            _ => Loss::Torn(rng.next()),
        });
    }

    /// The directory is lost; the last backup takes its place. `false`: there is none.
    /// `now`, in nanoseconds, is the time by the operator's clock: none that the strikes set wrong.
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

/// The number in a name: its last digit.
pub(crate) fn index(name: &str) -> u8 {
    name.bytes()
        .next_back()
        .map_or(0, |digit| digit.wrapping_sub(b'0'))
}

fn turn(event: &palisade_core::Event, token: u64) -> Turn {
    use palisade_core::Change;
    Turn {
        lock: index(&event.lock),
        client: index(&event.client),
        token,
        at: event.at.as_nanos(),
        what: match &event.change {
            Change::Granted { ttl } => What::Granted(ttl.span().as_nanos()),
            Change::Ended { how, .. } => What::Ended(*how),
        },
    }
}
