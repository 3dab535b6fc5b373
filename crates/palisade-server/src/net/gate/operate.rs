//! The operations of an operator: on other clients' locks, and on the cluster.

use palisade_access::Verb;
use palisade_core::LockName;

use super::caller::Who;
use super::{Gate, forbidden};
use crate::net::audit::AuditEvent;
use crate::net::convert::Refusal;

/// A caller may change the cluster.
pub(in crate::net) struct Administered(Who);

impl Gate {
    /// Whether a caller has an operator's right to a lock. It is asked before the body is read; [`permit`](Gate::permit)
    /// asks again.
    pub(in crate::net) fn operate(&self, who: &Who, lock: &LockName) -> Result<(), Refusal> {
        let decided = self.now(who).and_then(|now| match now {
            Some((access, principal)) => {
                let decided = access.decide(&principal, Verb::Break, lock.as_str());
                decided.map(drop).map_err(|denied| forbidden(&denied))
            }
            None => Ok(()),
        });
        self.recorded(who, decided)
    }

    /// Whether a caller may change the cluster.
    pub(in crate::net) fn administer(&self, who: &Who) -> Result<Administered, Refusal> {
        self.recorded(who, self.decide_all(who, Verb::Admin))?;
        Ok(Administered(who.clone()))
    }

    /// Whether a caller may see the cluster.
    pub(in crate::net) fn view_cluster(&self, who: &Who) -> Result<(), Refusal> {
        match self.decide_all(who, Verb::Admin) {
            Ok(()) => Ok(()),
            Err(_) => self.observe_all(who).map(drop),
        }
    }

    /// Records a change of the cluster; it may be made when that is on disk.
    pub(in crate::net) async fn be_sure(
        &self,
        by: Administered,
        change: String,
    ) -> Result<(), Refusal> {
        let principal = by.0.name();
        self.audit
            .be_sure(&AuditEvent::Admin { principal, change })
            .await
    }

    pub(super) fn decide_all(&self, who: &Who, verb: Verb) -> Result<(), Refusal> {
        match self.now(who)? {
            Some((access, principal)) => {
                let decided = access.decide_all(&principal, verb, "");
                decided.map_err(|denied| forbidden(&denied))
            }
            None => Ok(()),
        }
    }
}
