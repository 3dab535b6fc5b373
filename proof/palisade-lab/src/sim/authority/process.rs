//! The process: its memory, its clock and its processor time.

use std::collections::VecDeque;

use palisade_core::{Away, Machine, Span, Timestamp};
use palisade_pipeline::orderer::Presence;
use palisade_pipeline::round::{Rest, Round, Write};
use palisade_wal::Wal;

use super::caller::{Caller, Incoming};
use super::follower::Follower;
use super::intake::Coming;
use super::{Lab, seams};
use crate::sim::mutants::Mutant;

/// The size of the orderer's batches, small enough that some rounds need several, and the room requested for one.
const BATCH_BYTES: usize = 128;
pub(super) const ROOM: usize = 2 << 10;

/// The memory of the process, gone when it dies.
pub(super) struct Process {
    pub(super) round: Round<Caller>,
    pub(super) follower: Follower,
    pub(super) wal: Wal,
    /// The bytes for the log; empty if nothing changed.
    pub(super) batch: Vec<u8>,
    pub(super) inbox: VecDeque<Incoming>,
    pub(super) coming: Coming,
    /// The true absences, whatever a mutant tells the loop.
    pub(super) truth: Presence,
    /// The processor time it has used, and the part of it that was reported.
    pub(super) used: Span,
    reported: Span,
    /// The stamp of the last batch that the log had room for.
    pub(super) had_room: Timestamp,
    /// Whether the log had no room at the last request.
    pub(super) full: bool,
    resumed_at: Timestamp,
    boot_then: u64,
    /// What comes before its next batch, and since when.
    rests: (Rest, Timestamp),
    /// Since when it is busy.
    busy_since: Option<Timestamp>,
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
            round: Round::new(machine, false).with_batches_of(BATCH_BYTES),
            wal,
            batch: Vec::new(),
            inbox: VecDeque::new(),
            coming: Coming::default(),
            truth: Presence::new(now),
            used: Span::ZERO,
            reported: Span::ZERO,
            had_room: now,
            full: false,
            resumed_at: now,
            boot_then: local,
            rests: (Rest::GoOn(Span::ZERO), now),
            busy_since: None,
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
        let before = std::mem::replace(&mut self.reported, self.used);
        let span = self.used.as_nanos() - before.as_nanos();
        (span > 0).then_some(span)
    }

    /// A batch is over.
    pub(super) fn rest(&mut self, now: Timestamp) -> Rest {
        self.rests = (self.round.rest(now), now);
        self.rests.0
    }

    /// The time of its alarm on the machine's clock, while it sleeps.
    pub(super) fn alarm(&self) -> Option<u64> {
        match self.rests {
            (Rest::Sleep(planned), since) => Some(self.local_at(since.after(planned))),
            _ => None,
        }
    }

    /// Whether it has something to do.
    pub(super) fn is_awake(&self, local: u64) -> bool {
        let rings = self.alarm().is_none_or(|alarm| alarm <= local);
        rings || !self.inbox.is_empty() || self.busy_since.is_some()
    }

    /// Ends its sleep or its work. Returns the previous value of the clock.
    pub(super) fn wake(&mut self, now: Timestamp) -> Timestamp {
        if let Some(since) = self.busy_since.take() {
            self.used = self.used.plus(now.since(since));
        }
        let (Rest::Sleep(planned), since) = self.rests else {
            return now;
        };
        self.rests.0 = Rest::GoOn(Span::ZERO);
        self.truth.slept(now.since(since), planned, Span::ZERO);
        if self.round.woke(now, !self.inbox.is_empty(), Span::ZERO) {
            let _ = self.wal.seal_mark();
        }
        since
    }

    /// Reports the commands added to the batch before any message is taken in.
    pub(super) fn follow(&mut self, lab: &mut Lab) {
        let orderer = self.round.orderer();
        self.follower
            .follow(orderer, None, &mut lab.ids, &mut lab.facts);
    }

    /// The batch has everything that goes into it.
    pub(super) fn end_batch(&mut self, mutant: Option<Mutant>) {
        self.follower.end_batch();
        if let Write::Entry(entry) = self.round.write() {
            self.batch = seams::logged(entry, mutant);
        }
    }

    /// From now on it is busy with one thing for a while.
    pub(super) fn work(&mut self, now: Timestamp) {
        self.wake(now);
        self.busy_since = Some(now);
    }

    /// Its absence until `at`, if that was long enough to matter.
    pub(super) fn absence(&mut self, at: Timestamp) -> Option<Away> {
        let bears = self.round.machine().bears();
        self.truth.look(at, self.used, bears)
    }
}
