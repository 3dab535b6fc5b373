//! Callers, the messages that reach the process, and the meaning of names.

use std::rc::Rc;

use palisade_core::{Acquire, GrantRef, LockMode, RequestId, Token};
use palisade_pipeline::Request;
use palisade_pipeline::orderer::ReplyAddress;

use super::call::Call;
use crate::sim::locks::Locks;

/// The destination of an answer: the client, its connection, and its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    pub(crate) client: u8,
    pub(crate) incarnation: u32,
    pub(crate) operation: u32,
}

/// A message that reached the process.
pub(crate) enum Incoming {
    Ask(ReplyTo, Request),
    Hangup(u8, u32),
    /// A single caller asks.
    Call(Rc<Call>, Request),
    /// A single caller is gone; whether its place is reserved for a while.
    Gone(RequestId, bool),
    /// A single caller is gone, with this grant unread.
    Unclaimed(GrantRef),
    /// A planned stop: first the waits end,
    Drain,
    /// then the process does.
    Stop,
}

/// The destination of an answer, and the grant that its request renews.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) to: ReplyTo,
    pub(super) call: Option<Rc<Call>>,
    pub(super) renews: Option<Token>,
    /// The semaphore that its request changes, and how many permits that gets.
    pub(super) resizes: Option<(u8, u8)>,
}

impl ReplyAddress for Caller {
    fn session(&self) -> Option<u64> {
        let of_session = self.call.is_none();
        of_session.then(|| session(self.to.client, self.to.incarnation))
    }

    fn is_gone(&self) -> bool {
        self.call.as_ref().is_some_and(|call| call.is_gone())
    }
}

/// Stands for the client in the address of a single caller; its number is the operation.
pub(crate) const SINGLE: u8 = u8::MAX - 1;

/// The number of a client's connection.
pub(super) fn session(client: u8, incarnation: u32) -> u64 {
    u64::from(client) << 32 | u64::from(incarnation)
}

/// The number in a name: its last digit.
pub(crate) fn index(name: &str) -> u8 {
    name.bytes()
        .next_back()
        .map_or(0, |digit| digit.wrapping_sub(b'0'))
}

/// The locks that a request is for.
pub(crate) fn locks_of<K, R>(acquire: &Acquire<K, R>) -> Locks {
    acquire.locks().map(|lock| index(lock)).collect()
}

/// How many permits a request wants of a semaphore.
pub(crate) fn wanted(mode: LockMode) -> u8 {
    mode.permits().map_or(0, |permits| permits.wanted() as u8)
}
