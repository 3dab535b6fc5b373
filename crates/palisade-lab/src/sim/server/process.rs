//! The process: what is in its memory.

use palisade_core::{Away, Command, Effect, Machine, Span, Timestamp, WallTime, limits};
use palisade_server::pipeline::Presence;
use palisade_server::pipeline::codec::encode_head;
use palisade_wal::Wal;

use super::desk::Desk;
use super::{HEARTBEAT, Incoming};
use crate::sim::fact::Turn;
use crate::sim::mutants::Mutant;

/// What is gone when it dies.
pub(super) struct Process {
    pub(super) machine: Machine,
    pub(super) wal: Wal,
    pub(super) resumed_at: Timestamp,
    pub(super) boot_then: u64,
    pub(super) at: Timestamp,
    pub(super) wall: WallTime,
    /// What it was away, and what it takes for it: the same unless a mutant is at work.
    pub(super) away: Absence,
    pub(super) believed: Absence,
    /// Since when it has had nothing to do, or works on something long.
    pub(super) idle_since: Option<Timestamp>,
    pub(super) busy_since: Option<Timestamp>,
    /// The processor time it has used.
    pub(super) used: Span,
    pub(super) inbox: Vec<Incoming>,
    pub(super) desk: Desk,
    pub(super) bytes: Vec<u8>,
    pub(super) head: usize,
    pub(super) effects: Vec<Effect>,
    pub(super) turns: Vec<Turn>,
    pub(super) full: bool,
    pub(super) left: Vec<Command>,
}

impl Process {
    pub(super) fn now(&self, local: u64) -> Timestamp {
        self.resumed_at
            .after(Span::from_nanos(local.saturating_sub(self.boot_then)))
    }

    pub(super) fn stamp(&mut self, local: u64, wall: WallTime) {
        self.at = self.at.max(self.now(local));
        self.wall = wall;
        self.bytes.clear();
        encode_head(&mut self.bytes, self.at, wall);
        self.head = self.bytes.len();
    }

    /// An idle process looked at its clock a beat ago, and gave its log the mark of rest; a busy one works
    /// until now.
    pub(super) fn look_back(&mut self, local: u64, mutant: Option<Mutant>) {
        let now = self.now(local);
        if let Some(since) = self.busy_since.take() {
            self.used = self.used.plus(now.since(since));
        }
        let Some(since) = self.idle_since.take() else {
            return;
        };
        let idle = now.since(since).as_nanos();
        let beat = HEARTBEAT.min(self.machine.bears().as_nanos());
        if idle > beat {
            self.slept(idle - beat);
            self.look(since.after(Span::from_nanos(idle - beat)), mutant);
        }
        self.slept(idle.min(beat));
        if idle > HEARTBEAT {
            let _ = self.wal.seal_mark();
        }
    }

    fn slept(&mut self, nanos: u64) {
        let span = Span::from_nanos(nanos);
        self.away.presence.slept(span, span);
        self.believed.presence.slept(span, span);
    }

    /// A look at the clock. The mutants take work for absence, or forget that some leases are short.
    pub(super) fn look(&mut self, now: Timestamp, mutant: Option<Mutant>) {
        let bears = self.machine.bears();
        self.away.look(now, self.used, bears);
        let used = match mutant {
            Some(Mutant::WorkIsAway) => Span::ZERO,
            _ => self.used,
        };
        let bears = match mutant {
            Some(Mutant::ShortForgotten) => limits::STALL,
            _ => bears,
        };
        self.believed.look(now, used, bears);
    }
}

/// The product's own judgement of an absence, and what it has found since it was last asked.
pub(super) struct Absence {
    presence: Presence,
    found: Option<Away>,
}

impl Absence {
    pub(super) fn new(now: Timestamp) -> Absence {
        Absence {
            presence: Presence::new(now),
            found: None,
        }
    }

    fn look(&mut self, now: Timestamp, used: Span, bears: Span) {
        self.found = match (self.found, self.presence.look(now, used, bears)) {
            (Some(Away::Paused(a)), Some(Away::Paused(b))) => Some(Away::Paused(a.max(b))),
            (Some(Away::Paused(_)) | None, found @ Some(_)) => found,
            (found, _) => found,
        };
    }

    /// Forgets what it says.
    pub(super) fn take(&mut self) -> Option<Away> {
        self.found.take()
    }
}
