//! Whether renewals come, told to the person at the terminal and to the log.

use palisade_core::{LockName, Span, Timestamp, Ttl};

use super::deadline::Hold;
use crate::cli::{Out, millis};

/// What is told of a lease while its job runs.
pub(super) struct Renewals {
    out: Out,
    lock: LockName,
    ttl: Ttl,
    late: bool,
}

impl Renewals {
    pub(super) fn new(out: Out, lock: LockName, ttl: Ttl) -> Renewals {
        Renewals {
            out,
            lock,
            ttl,
            late: false,
        }
    }

    /// Warns once when half of the lease has gone by without a renewal: the first was due after a third.
    pub(super) fn look(&mut self, now: Timestamp, hold: Hold) {
        let Hold::Until(deadline) = hold else {
            return;
        };
        let left = deadline.since(now);
        let late = left < Span::from_nanos(self.ttl.span().as_nanos() / 2);
        if late && !self.late {
            self.out.warning(&format!(
                "the authority has acknowledged no renewal of {} for {}; unless one comes, the command is ended \
                 in less than {}",
                self.lock,
                millis((self.ttl.span().as_millis()).saturating_sub(left.as_millis())),
                millis(left.as_millis())
            ));
        } else if self.late && !late {
            self.out.warning(&format!("{} is renewed again", self.lock));
        }
        self.late = late;
    }
}
