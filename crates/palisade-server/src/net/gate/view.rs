//! Filters answers to the parts that a caller may see.

use palisade_access::{Principal, Verb};
use palisade_core::{Ahead, ClientId, Holder, Outcome};
use palisade_pipeline::Answer;

use super::caller::Who;
use super::{Gate, name};
use crate::net::audit::AuditEvent;

/// The parts of an answer that its caller may see.
pub(in crate::net) enum VisibleParts {
    /// All of it.
    Everything,
    /// Not who else holds the lock.
    OthersHidden,
    /// The locks that the caller may observe.
    Observed(Box<Who>),
}

/// Replaces another principal's client id.
const HIDDEN: &str = "(hidden)";

impl Gate {
    /// The answer as its caller may see it, reported where an operator should know of it.
    #[inline]
    pub(in crate::net) fn show(
        &self,
        principal: Option<&Principal>,
        view: Option<&VisibleParts>,
        mut answer: Answer,
    ) -> Answer {
        self.report(principal, &answer);
        self.lease_keys.encrypt(&mut answer);
        match view {
            Some(view) => self.filter(view, answer),
            None => answer,
        }
    }

    /// Tells the operator of a caller that had the secret of a lease that is not its own.
    #[inline]
    fn report(&self, principal: Option<&Principal>, answer: &Answer) {
        if let Answer::Outcome(Outcome::WrongPrincipal { lock }) = answer
            && let (principal, lock) = (name(principal), lock.as_str())
            && let Some(left_out) = self.audit.refusal(Some(principal))
        {
            tracing::warn!(
                principal,
                lock,
                left_out,
                "security: a caller has the lock_token of another principal's lease; it was refused"
            );
            self.audit.note(&AuditEvent::WrongPrincipal {
                principal,
                lock,
                left_out,
            });
        }
    }

    /// Removes the parts of an answer that the caller may not see.
    fn filter(&self, view: &VisibleParts, mut answer: Answer) -> Answer {
        match (view, &mut answer) {
            (
                VisibleParts::OthersHidden,
                Answer::Outcome(
                    Outcome::Held(Holder { client, .. }) | Outcome::Behind(Ahead { client, .. }),
                ),
            ) => {
                // A constant within the limits.
                if let Ok(hidden) = ClientId::new(HIDDEN) {
                    *client = hidden;
                }
            }
            (VisibleParts::Observed(who), Answer::Locks { locks, .. }) => match self.now(who) {
                Ok(Some((access, principal))) => locks.retain(|view| {
                    let decided = access.decide(&principal, Verb::Observe, view.lock.as_str());
                    decided.is_ok()
                }),
                Ok(None) => {}
                Err(_) => locks.clear(),
            },
            _ => {}
        }
        answer
    }
}
