//! The operations of one connection that wait for their replies.

use palisade_proto::borrowed::Reply;
use tokio::sync::oneshot;

use crate::fault::Fault;

/// The channel for an operation's reply.
pub(super) type ReplyTo = oneshot::Sender<Result<Reply, Fault>>;

/// Operations in flight, by the id with which they were sent.
#[derive(Debug, Default)]
pub(super) struct InFlightTable {
    waiting: Vec<Option<ReplyTo>>,
    free: Vec<usize>,
}

impl InFlightTable {
    /// Adds an operation just before it is sent, and returns its id, which is never 0.
    pub(super) fn enter(&mut self, reply: ReplyTo) -> u64 {
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

    /// Whether nothing is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.waiting.len()
    }

    /// Delivers a reply. A reply without a waiting caller is ignored.
    pub(super) fn settle(&mut self, id: u64, reply: Reply) {
        let slot = id
            .checked_sub(1)
            .and_then(|slot| usize::try_from(slot).ok());
        let Some(slot) = slot.filter(|slot| *slot < self.waiting.len()) else {
            return;
        };
        if let Some(to) = self.waiting[slot].take() {
            self.free.push(slot);
            let _ = to.send(Ok(reply));
        }
    }

    /// Closes the table of a lost connection, with an unknown outcome for every operation in flight.
    pub(super) fn close(self, why: &Fault) {
        for to in self.waiting.into_iter().flatten() {
            let _ = to.send(Err(why.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_proto::v1::Released;

    use super::*;

    fn done() -> Reply {
        Reply::Released(Released::default())
    }

    #[test]
    fn a_reply_reaches_its_own_operation_and_frees_its_id() {
        let mut table = InFlightTable::default();
        let (one, mut first) = oneshot::channel();
        let (two, mut second) = oneshot::channel();
        assert!(table.is_empty());
        assert_eq!((table.enter(one), table.enter(two)), (1, 2));
        for id in [2, 2, 0, 77, u64::MAX] {
            table.settle(id, done());
        }
        assert!(second.try_recv().unwrap().is_ok() && first.try_recv().is_err());
        assert!(!table.is_empty());
        let (three, _third) = oneshot::channel();
        assert_eq!(table.enter(three), 2);
    }

    #[test]
    fn operations_in_flight_when_the_connection_breaks_are_unknown() {
        let mut table = InFlightTable::default();
        let (one, mut first) = oneshot::channel();
        table.enter(one);
        table.close(&Fault::unknown_outcome("cut"));
        assert_eq!(
            first.try_recv().unwrap(),
            Err(Fault::unknown_outcome("cut"))
        );
    }
}
