//! Which locks a caller may observe: for watches and metrics.

use std::sync::Arc;

use palisade_access::Verb;

use super::caller::{Who, by};
use super::{Gate, forbidden};
use crate::net::convert::Refusal;
use crate::net::quota::{Demand, QuotaUse};
use crate::shell::Origin;

/// A caller may observe all locks.
pub(in crate::net) struct ObservedAll(());

/// The locks that a caller may observe among those of a prefix.
pub(in crate::net) struct ObservableLocks {
    who: Who,
    /// The prefix that it asked for.
    prefix: Box<str>,
    /// The part of it that the rules grant.
    prefixes: Prefixes,
    /// The quota that the watch uses.
    _held: Option<QuotaUse>,
}

/// The locks whose names begin with one of these; sorted, and none begins with another one.
pub(in crate::net) type Prefixes = Arc<[Box<str>]>;

impl ObservableLocks {
    /// Where the watcher's connection comes from.
    pub(in crate::net) fn origin(&self) -> Option<Origin> {
        self.who.origin
    }

    pub(in crate::net) fn prefixes(&self) -> Prefixes {
        Arc::clone(&self.prefixes)
    }
}

impl Gate {
    /// Whether a caller may observe all locks.
    pub(in crate::net) fn observe_all(&self, who: &Who) -> Result<ObservedAll, Refusal> {
        self.recorded(who, self.decide_all(who, Verb::Observe))?;
        self.admit(who, None, Demand::request)?;
        Ok(ObservedAll(()))
    }

    /// Which locks of a prefix a caller may observe; it is refused if it may observe none of them.
    pub(in crate::net) fn observe(
        &self,
        who: &Who,
        prefix: &str,
    ) -> Result<ObservableLocks, Refusal> {
        let prefixes = self.recorded(who, self.observable(who, prefix))?;
        // A watch of several prefixes counts for the prefix that contains all of them.
        let within = match &*prefixes {
            [one] => one,
            _ => prefix,
        };
        Ok(ObservableLocks {
            _held: self.admit(who, Some(within), Demand::watch)?,
            prefixes,
            who: who.clone(),
            prefix: prefix.into(),
        })
    }

    /// Which locks of a prefix a caller may read the history of: those that it may observe.
    pub(in crate::net) fn observe_past(
        &self,
        who: &Who,
        prefix: &str,
    ) -> Result<Prefixes, Refusal> {
        let prefixes = self.recorded(who, self.observable(who, prefix))?;
        self.admit(who, Some(prefix), Demand::request)?;
        Ok(prefixes)
    }

    /// The principal of a caller that reports a late write: one that may hold the lock, or observe it.
    pub(in crate::net) fn report_of(
        &self,
        who: &Who,
        lock: &str,
    ) -> Result<palisade_core::Principal, Refusal> {
        let by = self.recorded(who, self.reporter(who, lock))?;
        self.admit(who, Some(lock), Demand::request)?;
        Ok(by)
    }

    fn reporter(&self, who: &Who, lock: &str) -> Result<palisade_core::Principal, Refusal> {
        let Some((access, principal)) = self.now(who)? else {
            return Ok(palisade_core::Principal::ANONYMOUS);
        };
        let decided = access
            .decide(&principal, Verb::Hold, lock)
            .or_else(|_| access.decide(&principal, Verb::Share, lock))
            .or_else(|_| access.decide(&principal, Verb::Observe, lock));
        decided.map_err(|denied| forbidden(&denied))?;
        Ok(by(&principal))
    }

    /// Whether the caller may observe the same locks as before. While the rules stay the same this costs one comparison,
    /// and with a JWT a look at the clock.
    pub(in crate::net) fn still_observes(&self, observed: &ObservableLocks) -> bool {
        if observed.who.caller.check_time().is_err() {
            return false;
        }
        match self.known(&observed.who) {
            Err(_) => false,
            Ok(None) => true,
            Ok(Some((rules, known))) if !Arc::ptr_eq(&rules.current(), &known.access) => {
                let now = self.observable(&observed.who, &observed.prefix);
                now.is_ok_and(|prefixes| prefixes == observed.prefixes)
            }
            Ok(Some((_, known))) => known.check_time().is_ok(),
        }
    }

    fn observable(&self, who: &Who, prefix: &str) -> Result<Prefixes, Refusal> {
        let Some((access, principal)) = self.now(who)? else {
            return Ok(Arc::new([prefix.into()]));
        };
        let granted = access.decide_some(&principal, Verb::Observe, prefix);
        let granted = granted.map_err(|denied| forbidden(&denied))?;
        Ok(granted.into_iter().map(Box::from).collect())
    }
}
