//! The operations of one connection that wait for their replies.

use std::sync::{Mutex, MutexGuard, PoisonError};

use palisade_proto::v1 as pb;
use tokio::sync::oneshot;

use crate::fault::Fault;

/// Where an operation's reply goes.
pub(super) type ReplyTo = oneshot::Sender<Result<pb::reply::Outcome, Fault>>;

/// Operations in flight, each under the id it was sent with.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    waiting: Vec<Option<ReplyTo>>,
    free: Vec<usize>,
    /// The connection is gone: nothing may be sent on it any more.
    closed: bool,
}

impl Table {
    /// Takes in operations that are about to be sent, and gives each its id. `false`, and nothing
    /// taken, if the connection is gone.
    pub(super) fn enter<O>(
        &self,
        operations: impl Iterator<Item = (O, ReplyTo)>,
        mut send: impl FnMut(u64, O),
    ) -> bool {
        let mut slots = self.lock();
        if slots.closed {
            return false;
        }
        for (operation, reply) in operations {
            send(slots.enter(reply), operation);
        }
        true
    }

    /// Whether the connection is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Hands out the replies of one frame.
    pub(super) fn settle(&self, replies: Vec<pb::Reply>) {
        let mut settled = Vec::with_capacity(replies.len());
        {
            let mut slots = self.lock();
            for reply in replies {
                if let (Some(to), Some(outcome)) = (slots.leave(reply.id), reply.outcome) {
                    settled.push((to, outcome));
                }
            }
        }
        // Callers are woken without the lock: they may send their next operation at once.
        for (to, outcome) in settled {
            let _ = to.send(Ok(outcome));
        }
    }

    /// The connection is gone: what was sent on it may have happened.
    pub(super) fn close(&self, why: &Fault) {
        let waiting = {
            let mut slots = self.lock();
            slots.closed = true;
            std::mem::take(&mut slots.waiting)
        };
        for to in waiting.into_iter().flatten() {
            let _ = to.send(Err(why.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn enter(&mut self, reply: ReplyTo) -> u64 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.waiting.push(None);
                self.waiting.len() - 1
            }
        };
        self.waiting[slot] = Some(reply);
        slot as u64 + 1
    }

    fn leave(&mut self, id: u64) -> Option<ReplyTo> {
        let slot = usize::try_from(id.checked_sub(1)?).ok()?;
        let reply = self.waiting.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(id: u64) -> pb::Reply {
        pb::Reply {
            id,
            outcome: Some(pb::reply::Outcome::Done(pb::Done {})),
        }
    }

    fn enter(table: &Table, reply: ReplyTo) -> Option<u64> {
        let mut id = None;
        table
            .enter([((), reply)].into_iter(), |given, ()| id = Some(given))
            .then_some(())?;
        id
    }

    #[test]
    fn a_reply_reaches_its_own_operation_and_frees_its_id() {
        let table = Table::default();
        let (one, mut first) = oneshot::channel();
        let (two, mut second) = oneshot::channel();
        assert_eq!((enter(&table, one), enter(&table, two)), (Some(1), Some(2)));
        table.settle(vec![done(2), done(2), done(0), done(77)]);
        assert!(second.try_recv().unwrap().is_ok() && first.try_recv().is_err());
        let (three, _third) = oneshot::channel();
        assert_eq!(enter(&table, three), Some(2));
    }

    #[test]
    fn what_was_in_flight_when_the_connection_broke_is_unknown_and_nothing_follows() {
        let table = Table::default();
        let (one, mut first) = oneshot::channel();
        enter(&table, one);
        table.close(&Fault::unknown_outcome("cut"));
        assert_eq!(
            first.try_recv().unwrap(),
            Err(Fault::unknown_outcome("cut"))
        );
        let (two, _second) = oneshot::channel();
        assert_eq!(enter(&table, two), None);
    }
}
