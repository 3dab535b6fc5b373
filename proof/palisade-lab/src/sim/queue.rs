//! The scheduled events, in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use palisade_pipeline::{Answer, Request};

use super::authority::ReplyTo;
use super::port::{Ask, Reply};

/// A scheduled event.
#[derive(Clone)]
pub(crate) enum Event {
    ToAuthority(ReplyTo, Request),
    Hangup(u8, u32),
    ToClient(ReplyTo, Answer),
    Broken(u8, u32),
    ToResource(ReplyTo, Ask),
    FromResource(ReplyTo, Reply),
    CallerReads(u32),
    CallerLeaves(u32),
    RoundDone(u32),
    ResourceDone(u32),
    Effect(u32),
    PlannedFault(usize),
    Resume(u8),
    StartClient(u8),
    StartAuthority,
    StartResource,
    Rearm(u8),
    FreeDisk,
    Quiet,
}

/// Events by time, then by the order in which they were scheduled.
#[derive(Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    serial: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, at: u64, event: Event) {
        self.serial += 1;
        let serial = self.serial;
        self.heap.push(Reverse(Entry { at, serial, event }));
    }

    pub(crate) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|Reverse(entry)| entry.event)
    }
}

struct Entry {
    at: u64,
    serial: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.serial == other.serial
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}
