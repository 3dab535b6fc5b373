//! The process: its memory, and how it spends its time.

use std::collections::VecDeque;
use std::mem;

use palisade_core::{Away, Machine, Span, Timestamp};
use palisade_pipeline::orderer::{Orderer, Presence};
use palisade_wal::Wal;

use super::caller::{Caller, Incoming};
use super::follower::Follower;
use crate::sim::mutants::Mutant;

/// The size of the orderer's batches, small enough that some rounds need several, and the room requested for one.
const BATCH_BYTES: usize = 128;
pub(super) const ROOM: usize = 2 << 10;

/// The memory of the process, gone when it dies.
pub(super) struct Process {
    pub(super) orderer: Orderer<Caller>,
    pub(super) follower: Follower,
    pub(super) wal: Wal,
    pub(super) inbox: VecDeque<Incoming>,
    /// The true absences, whatever a mutant tells the orderer.
    pub(super) truth: Presence,
    /// The processor time it has used.
    pub(super) used: Span,
    /// The part of it that was reported.
    reported: Span,
    /// The stamp of the last batch that the log had room for.
    pub(super) had_room: Timestamp,
    /// Whether the log had no room at the last request.
    pub(super) full: bool,
    resumed_at: Timestamp,
    boot_then: u64,
    asleep: Option<Sleep>,
    /// Since when it is busy.
    busy_since: Option<Timestamp>,
    /// Whether nothing arrived since it last woke for nothing.
    quiet: bool,
}

/// It waits for messages and for an alarm.
struct Sleep {
    since: Timestamp,
    planned: Span,
}

impl Process {
    /// Starts with a machine and a log; the authority's clock shows `now`, and the machine's `local`.
    pub(super) fn new(
        machine: Machine,
        wal: Wal,
        (now, local): (Timestamp, u64),
        mutant: Option<Mutant>,
    ) -> Process {
        Process {
            follower: Follower::new(machine.clone(), mutant),
            orderer: Orderer::new(machine, false).with_batches_of(BATCH_BYTES),
            wal,
            inbox: VecDeque::new(),
            truth: Presence::new(now),
            used: Span::ZERO,
            reported: Span::ZERO,
            had_room: now,
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

    /// The machine's clock at the moment when the authority's clock showed `at`.
    pub(super) fn local_at(&self, at: Timestamp) -> u64 {
        self.boot_then + at.since(self.resumed_at).as_nanos()
    }

    /// How long it was busy since it was last asked, in nanoseconds.
    pub(super) fn report_busy(&mut self) -> Option<u64> {
        let before = mem::replace(&mut self.reported, self.used);
        let span = self.used.as_nanos() - before.as_nanos();
        (span > 0).then_some(span)
    }

    /// Sleeps until a message arrives, something is due, or the heartbeat.
    pub(super) fn sleep(&mut self, now: Timestamp) {
        let heartbeat = self.orderer.heartbeat();
        let due = self.orderer.next_due().map(|due| due.since(now));
        let planned = due.map_or(heartbeat, |due| due.min(heartbeat));
        self.asleep = Some(Sleep {
            since: now,
            planned,
        });
    }

    /// The time of its alarm on the machine's clock.
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

    /// Ends its sleep or its work. Returns the previous value of the clock.
    pub(super) fn wake(&mut self, now: Timestamp) -> Timestamp {
        if let Some(since) = self.busy_since.take() {
            self.used = self.used.plus(now.since(since));
        }
        let Some(Sleep { since, planned }) = self.asleep.take() else {
            return now;
        };
        let span = now.since(since);
        self.truth.slept(span, planned, Span::ZERO);
        self.orderer.slept(span, planned, Span::ZERO);
        let was_quiet = mem::replace(&mut self.quiet, self.inbox.is_empty());
        if self.quiet && !was_quiet {
            let _ = self.wal.seal_mark();
        }
        since
    }

    /// From now on it is busy with one thing for a while.
    pub(super) fn work(&mut self, now: Timestamp) {
        self.wake(now);
        self.busy_since = Some(now);
    }

    /// Its absence until `at`, if that was long enough to matter.
    pub(super) fn absence(&mut self, at: Timestamp) -> Option<Away> {
        let bears = self.orderer.machine().bears();
        self.truth.look(at, self.used, bears)
    }
}
