//! Counts a request, a watch or a session against the quotas and against its address's share of the waits.

use palisade_pipeline::Request;

use super::Gate;
use super::caller::{Who, by};
use crate::net::budget::OPERATION_BYTES;
use crate::net::convert::Refusal;
use crate::net::quota::{Demand, QuotaUse};
use crate::net::shares::{ShareFull, Used};

impl Gate {
    /// A session of this caller begins.
    pub(in crate::net) fn open_session(&self, who: &Who) -> Result<Option<QuotaUse>, Refusal> {
        self.admit(who, None, Demand::session)
    }

    /// Reserves a request's use. Each lock of a set counts for its own prefix; if there is no room for one, nothing is
    /// reserved.
    pub(super) fn admit_request(&self, who: &Who, request: &Request) -> Result<Used, Refusal> {
        let wait = match request {
            Request::Acquire(wish) if wish.wait.is_some() => {
                let locks = 1 + wish.also.len() as u64;
                let slot = self.waits.take(who.origin, locks);
                Some(Box::new(slot.map_err(ShareFull::of_waits)?))
            }
            _ => None,
        };
        let demand = || Demand::of(request, OPERATION_BYTES);
        let mut held = Vec::from_iter(self.admit(who, name_of(request), demand)?);
        if let Request::Acquire(wish) = request {
            for lock in &*wish.also {
                let demand = || Demand::of_part(wish, lock, OPERATION_BYTES);
                match self.admit(who, Some(lock.as_str()), demand) {
                    Ok(more) => held.extend(more),
                    Err(refusal) => {
                        held.into_iter().for_each(QuotaUse::release);
                        return Err(refusal);
                    }
                }
            }
        }
        let opening = match request {
            Request::Open { lock, .. } => self.quotas.opening(lock).map(Box::new),
            _ => None,
        };
        Ok(Used {
            quotas: held,
            wait,
            opening,
        })
    }

    /// Reserves a request's use of the quotas that apply.
    pub(super) fn admit(
        &self,
        who: &Who,
        within: Option<&str>,
        demand: impl FnOnce() -> Demand,
    ) -> Result<Option<QuotaUse>, Refusal> {
        let Some((rules, known)) = self.known(who)? else {
            return Ok(None);
        };
        let access = rules.current();
        if !access.has_quotas() {
            return Ok(None);
        }
        // A token that was revoked or given to another principal meanwhile.
        let Some((_, principal)) = self.now(who)? else {
            return Ok(None);
        };
        let caller = (&principal, by(&principal), known.address);
        self.quotas.admit(&access, caller, within, demand())
    }
}

/// The locks that a request deals with: the name of one, or the prefix of all.
fn name_of(request: &Request) -> Option<&str> {
    match request {
        Request::Acquire(wish) => Some(wish.lock.as_str()),
        Request::Renew { grant, .. }
        | Request::Proclaim { grant, .. }
        | Request::Release(grant) => Some(grant.lock.as_str()),
        Request::Revoke { lock, .. }
        | Request::Open { lock, .. }
        | Request::Resize { lock, .. }
        | Request::Show(lock) => Some(lock.as_str()),
        Request::List { prefix, .. } => Some(prefix),
        // One request, whosever locks it is about.
        Request::Listen(_)
        | Request::Abandon(_)
        | Request::Grants { .. }
        | Request::Status
        | Request::Advance(_) => None,
    }
}
