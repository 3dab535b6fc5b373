//! Single callers: each asks one question over a connection of its own, as over HTTP, and may be gone before it has the
//! answer. What the process hears of that is what the product's handle tells its loop.

use std::cell::RefCell;

use palisade_core::{GrantRef, LockName, Outcome, RequestId};
use palisade_pipeline::Answer;

use super::caller::{Incoming, ReplyTo, SINGLE};
use crate::sim::plan::PlannedCall;

/// A caller of an acquire, and its connection.
pub(crate) struct Call {
    number: u32,
    lock: LockName,
    request: RequestId,
    pub(crate) plan: PlannedCall,
    state: RefCell<CallState>,
}

enum CallState {
    Asks,
    /// Its answer has left, and it has not read it.
    Unread(Option<GrantRef>),
    Read,
    Gone,
}

impl Call {
    pub(crate) fn new(number: u32, lock: LockName, request: RequestId, plan: PlannedCall) -> Call {
        Call {
            number,
            lock,
            request,
            plan,
            state: RefCell::new(CallState::Asks),
        }
    }

    /// Where its answer goes.
    pub(super) fn to(&self) -> ReplyTo {
        ReplyTo {
            client: SINGLE,
            incarnation: 0,
            operation: self.number,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(&*self.state.borrow(), CallState::Gone)
    }

    /// Its answer leaves. Returns a grant that reaches nobody and that nobody can ask for again.
    pub(super) fn answer(&self, answer: &Answer) -> Option<GrantRef> {
        let grant = match answer {
            Answer::Outcome(Outcome::Granted(granted)) if !self.plan.may_ask_again => {
                Some(GrantRef {
                    lock: self.lock.clone(),
                    key: granted.key,
                    token: Some(granted.number()),
                })
            }
            _ => None,
        };
        if self.is_gone() {
            return grant;
        }
        self.state.replace(CallState::Unread(grant));
        None
    }

    pub(crate) fn reads(&self) {
        if !self.is_gone() {
            self.state.replace(CallState::Read);
        }
    }

    /// It goes away. Returns what the process hears: nothing if it has its answer.
    pub(crate) fn leaves(&self) -> Vec<Incoming> {
        let gone = Incoming::Gone(self.request, self.plan.keeps_place);
        match self.state.replace(CallState::Gone) {
            CallState::Asks | CallState::Unread(None) => vec![gone],
            CallState::Unread(Some(grant)) => vec![Incoming::Unclaimed(grant), gone],
            CallState::Read | CallState::Gone => Vec::new(),
        }
    }
}
