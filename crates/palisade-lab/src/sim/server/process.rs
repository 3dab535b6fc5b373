//! The process: its memory, and how its time is spent.

use std::collections::VecDeque;
use std::mem;

use palisade_core::{Away, Machine, Span, Timestamp};
use palisade_server::pipeline::orderer::{Address, Orderer, Presence};
use palisade_wal::Wal;

use super::follower::Follower;
use super::{Incoming, ReplyTo};
use crate::sim::mutants::Mutant;

/// The orderer's batches, so small that some rounds need several, and the room asked of the log for one.
const BATCH_BYTES: usize = 128;
pub(super) const ROOM: usize = 2 << 10;

/// The memory of the process, gone when it dies.
pub(super) struct Process {
    pub(super) orderer: Orderer<Caller>,
    pub(super) follower: Follower,
    pub(super) wal: Wal,
    pub(super) inbox: VecDeque<Incoming>,
    /// Judges its absences by what really happened, whatever a mutant tells the orderer.
    pub(super) truth: Presence,
    /// The processor time it has used.
    pub(super) used: Span,
    /// Whether the log had no room when last asked.
    pub(super) full: bool,
    resumed_at: Timestamp,
    boot_then: u64,
    asleep: Option<Sleep>,
    /// Since when it works on something long.
    busy_since: Option<Timestamp>,
    /// Whether nothing came in since it last woke for nothing.
    quiet: bool,
}

/// It waits for messages, and for an alarm.
struct Sleep {
    since: Timestamp,
    planned: Span,
}

/// Where an answer goes, and whether it is one to a renewal.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub(super) to: ReplyTo,
    pub(super) renews: bool,
}

impl Address for Caller {
    fn session(&self) -> Option<u64> {
        Some(session(self.to.client, self.to.life))
    }

    fn is_gone(&self) -> bool {
        false
    }
}

/// The number of a client's connection.
pub(super) fn session(client: u8, life: u32) -> u64 {
    u64::from(client) << 32 | u64::from(life)
}

impl Process {
    /// Begins with a machine and a log, while the clock shows `local`.
    pub(super) fn new(machine: Machine, wal: Wal, local: u64, mutant: Option<Mutant>) -> Process {
        let now = machine.now();
        Process {
            follower: Follower::new(machine.clone(), mutant),
            orderer: Orderer::new(machine, false).with_batches_of(BATCH_BYTES),
            wal,
            inbox: VecDeque::new(),
            truth: Presence::new(now),
            used: Span::ZERO,
            full: false,
            resumed_at: now,
            boot_then: local,
            asleep: None,
            busy_since: None,
            quiet: false,
        }
    }

    /// The authority's clock.
    pub(super) fn now(&self, local: u64) -> Timestamp {
        self.resumed_at
            .after(Span::from_nanos(local.saturating_sub(self.boot_then)))
    }

    /// Goes to sleep until a message comes, something is due, or the heartbeat.
    pub(super) fn sleep(&mut self, now: Timestamp) {
        let heartbeat = self.orderer.heartbeat();
        let due = self.orderer.next_due().map(|due| due.since(now));
        let planned = due.map_or(heartbeat, |due| due.min(heartbeat));
        self.asleep = Some(Sleep {
            since: now,
            planned,
        });
    }

    /// What the machine's clock shows when the alarm rings.
    pub(super) fn alarm(&self) -> Option<u64> {
        let Sleep { since, planned } = self.asleep.as_ref()?;
        let asleep_for = since.after(*planned).since(self.resumed_at);
        Some(self.boot_then + asleep_for.as_nanos())
    }

    /// Whether it has something to do.
    pub(super) fn is_awake(&self, local: u64) -> bool {
        let rings = self.alarm().is_some_and(|alarm| alarm <= local);
        rings || !self.inbox.is_empty() || self.busy_since.is_some()
    }

    /// Ends its sleep, or its work. Gives the clock as it was before that.
    pub(super) fn wake(&mut self, now: Timestamp) -> Timestamp {
        if let Some(since) = self.busy_since.take() {
            self.used = self.used.plus(now.since(since));
        }
        let Some(Sleep { since, planned }) = self.asleep.take() else {
            return now;
        };
        let span = now.since(since);
        self.truth.slept(span, planned);
        self.orderer.slept(span, planned);
        let was_quiet = mem::replace(&mut self.quiet, self.inbox.is_empty());
        if self.quiet && !was_quiet {
            let _ = self.wal.seal_mark();
        }
        since
    }

    /// From now on it works on something, and looks at nothing else for a while.
    pub(super) fn work(&mut self, now: Timestamp) {
        self.wake(now);
        self.busy_since = Some(now);
    }

    /// Whether it was away until `at`, for how long it matters.
    pub(super) fn absence(&mut self, at: Timestamp) -> Option<Away> {
        let bears = self.orderer.machine().bears();
        self.truth.look(at, self.used, bears)
    }
}
