//! Reports to the terminal and to the log whether renewals arrive.

use palisade_core::{LockName, Span, Timestamp, Ttl};

use super::deadline::GuardReport;
use crate::cli::{Out, millis};

/// Watches the renewals of a lease while its job runs.
pub(super) struct Renewals {
    out: Out,
    lock: LockName,
    ttl: Ttl,
    /// What happens to the command at the end.
    end: &'static str,
    late: bool,
}

impl Renewals {
    pub(super) fn new(out: Out, lock: LockName, ttl: Ttl, end: &'static str) -> Renewals {
        Renewals {
            out,
            lock,
            ttl,
            end,
            late: false,
        }
    }

    /// Warns once when half of the lease has passed without a renewal: the first was due after a third.
    pub(super) fn check(&mut self, now: Timestamp, hold: GuardReport) {
        let GuardReport::Until(deadline) = hold else {
            return;
        };
        let left = deadline.since(now);
        let late = left < Span::from_nanos(self.ttl.span().as_nanos() / 2);
        if late && !self.late {
            self.out.warning(&format!(
                "the authority has not acknowledged a renewal of {} for {}; without one, the command is {} \
                 in less than {}",
                self.lock,
                millis((self.ttl.span().as_millis()).saturating_sub(left.as_millis())),
                self.end,
                millis(left.as_millis())
            ));
        } else if self.late && !late {
            self.out.warning(&format!("{} is renewed again", self.lock));
        }
        self.late = late;
    }
}
