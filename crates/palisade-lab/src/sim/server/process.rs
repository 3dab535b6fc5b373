//! The process: what is in its memory.

use palisade_core::{Command, Effect, Machine, Span, Timestamp, WallTime};
use palisade_server::pipeline::codec::encode_head;
use palisade_wal::Wal;

use super::desk::Desk;
use super::{HEARTBEAT, Incoming};
use crate::sim::fact::Turn;

/// What is gone when it dies.
pub(super) struct Process {
    pub(super) machine: Machine,
    pub(super) wal: Wal,
    pub(super) resumed_at: Timestamp,
    pub(super) boot_then: u64,
    pub(super) at: Timestamp,
    pub(super) wall: WallTime,
    /// When it last looked at its clock, and since when it has had nothing to do.
    pub(super) looked: Timestamp,
    pub(super) idle_since: Option<Timestamp>,
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

    /// An idle process looked at its clock a beat ago, and gave its log the mark of rest.
    pub(super) fn look_back(&mut self, local: u64) {
        let now = self.now(local);
        let Some(since) = self.idle_since else {
            return;
        };
        if now.since(since).as_nanos() > HEARTBEAT {
            self.looked = self
                .looked
                .max(Timestamp::from_nanos(now.as_nanos() - HEARTBEAT));
            let _ = self.wal.seal_mark();
        }
    }
}
