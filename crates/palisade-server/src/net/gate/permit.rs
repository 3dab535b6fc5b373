//! Decides whether a caller may make a request, and under which principal. Only this module creates
//! [`Permitted`].

use std::mem;
use std::sync::Arc;

use palisade_access::{Principal, Verb};
use palisade_core::{LockMode, LockName, Renewed, RequestId};
use palisade_pipeline::{Asked, KeepsPlace, Request};

use super::caller::{Who, by};
use super::view::VisibleParts;
use super::waiting::ReturningCaller;
use super::{Gate, forbidden, name};
use crate::net::audit::{AuditEvent, Recording};
use crate::net::convert::Refusal;
use crate::net::shares::Used;

/// A request that its caller may make.
pub(in crate::net) struct Permitted {
    pub(super) asked: Asked,
    /// The place of its caller in a queue, if it waits under an id of that caller.
    pub(super) place: Option<ReturningCaller>,
    /// The caller's name, if there are rules.
    pub(super) principal: Option<Principal>,
    /// The URL of the node that sent it on, if one did.
    through: Option<Arc<str>>,
    pub(super) view: VisibleParts,
    /// The quota that it uses until its answer.
    pub(super) used: Used,
    /// Done only when this is on disk.
    pub(super) recording: Recording,
}

impl Gate {
    /// Whether a caller may make this request.
    pub(in crate::net) fn permit(
        &self,
        who: &Who,
        mut request: Request,
    ) -> Result<Permitted, Refusal> {
        self.lease_keys.decrypt(&mut request);
        let (by, known, view) = self.recorded(who, self.decide(who, &request))?;
        if let Some(again) = request_id(&request) {
            self.places.take_back(&(by, again));
        }
        let used = self.admit_request(who, &request)?;
        let principal = name(known.as_ref());
        let recording = match &request {
            Request::Revoke {
                lock,
                token,
                reason,
            } => self.audit.be_sure(&AuditEvent::Break {
                principal,
                lock: lock.as_str(),
                fencing_token: token.get(),
                reason,
            }),
            Request::Open { lock, reason } => self.audit.be_sure(&AuditEvent::Open {
                principal,
                lock: lock.as_str(),
                reason,
            }),
            Request::Resize { lock, permits } => self.audit.be_sure(&AuditEvent::Permits {
                principal,
                lock: lock.as_str(),
                permits: *permits,
            }),
            Request::Advance(by) => self.audit.be_sure(&AuditEvent::Admin {
                principal,
                change: format!("move the clock by {} ms", by.as_millis()),
            }),
            _ => Recording::NotAsked,
        };
        let place = match (&request, who.direct) {
            (Request::Acquire(wish), Some(origin)) if wish.wait.is_some() => {
                wish.request.map(|id| ReturningCaller {
                    places: Arc::clone(&self.places),
                    named: (by, id),
                    origin,
                })
            }
            _ => None,
        };
        let keeps_place = match place {
            Some(_) => KeepsPlace::undecided(),
            None => KeepsPlace::default(),
        };
        Ok(Permitted {
            asked: Asked {
                by,
                request,
                keeps_place,
            },
            place,
            principal: known,
            through: who.forwarded.clone(),
            view,
            used,
            recording,
        })
    }

    /// A look at a lock by a caller that has just renewed its grant on it: it has shown that it holds the lock.
    pub(in crate::net) fn look_as_holder(
        &self,
        who: &Who,
        lock: LockName,
        _: &Renewed,
    ) -> Permitted {
        Permitted {
            asked: Asked {
                by: who
                    .known
                    .as_ref()
                    .map_or(palisade_core::Principal::ANONYMOUS, |known| known.by),
                request: Request::Show(lock),
                keeps_place: KeepsPlace::default(),
            },
            place: None,
            principal: who.principal().cloned(),
            through: who.forwarded.clone(),
            view: VisibleParts::Everything,
            // The renewal was counted.
            used: Used::default(),
            recording: Recording::NotAsked,
        }
    }

    /// Decides whether a caller may make this request, under which principal, and which parts of the answer it
    /// may see.
    fn decide(
        &self,
        who: &Who,
        request: &Request,
    ) -> Result<(palisade_core::Principal, Option<Principal>, VisibleParts), Refusal> {
        let Some((access, principal)) = self.now(who)? else {
            return Ok((
                palisade_core::Principal::ANONYMOUS,
                None,
                VisibleParts::Everything,
            ));
        };
        let lock = |verb, lock: &LockName| {
            let decided = access.decide(&principal, verb, lock.as_str());
            decided.map(drop).map_err(|denied| forbidden(&denied))
        };
        let any = |verb| {
            access
                .decide_any(&principal, verb)
                .map_err(|denied| forbidden(&denied))
        };
        let mut view = VisibleParts::Everything;
        match request {
            Request::Acquire(wish) => {
                let verb = match wish.mode {
                    // A reader for update may keep other readers out.
                    LockMode::Exclusive
                    | LockMode::Update
                    | LockMode::Upgrade
                    | LockMode::Permits(_) => Verb::Hold,
                    LockMode::Shared => Verb::Share,
                };
                for name in wish.locks() {
                    lock(verb, name)?;
                    if lock(Verb::Observe, name).is_err() {
                        view = VisibleParts::OthersHidden;
                    }
                }
            }
            // The key of the lease shows that the caller acquired it.
            Request::Renew { grant, .. } | Request::Release(grant) => {
                lock(Verb::Share, &grant.lock)?;
            }
            Request::Listen(grants) => {
                for listened in grants {
                    lock(Verb::Share, &listened.grant.lock)?;
                }
            }
            Request::Proclaim { grant, .. } => lock(Verb::Hold, &grant.lock)?,
            // It names no lock; its id has 128 random bits.
            Request::Abandon(_) => any(Verb::Share)?,
            Request::Revoke { lock: name, .. }
            | Request::Open { lock: name, .. }
            | Request::Resize { lock: name, .. } => lock(Verb::Break, name)?,
            Request::Show(name) => lock(Verb::Observe, name)?,
            Request::List { .. } => {
                any(Verb::Observe)?;
                view = VisibleParts::Observed(Box::new(who.clone()));
            }
            // A client needs this to identify the authority whose tokens it gets; it names no lock.
            Request::Status => {}
            Request::Grants { .. } | Request::Advance(_) => {
                let decided = access.decide_all(&principal, Verb::Admin, "");
                decided.map_err(|denied| forbidden(&denied))?;
            }
        }
        let by = match &who.known {
            Some(known) if known.principal == principal => known.by,
            _ => by(&principal),
        };
        Ok((by, Some(principal), view))
    }
}

impl Permitted {
    /// The caller's principal under the current rules; `None` without rules.
    pub(in crate::net) fn principal(&self) -> Option<&str> {
        self.principal.as_ref().map(Principal::name)
    }

    pub(in crate::net) fn request(&self) -> &Request {
        &self.asked.request
    }

    /// The URL of the node that sent it on, if one did.
    pub(in crate::net) fn through(&self) -> Option<Arc<str>> {
        self.through.clone()
    }

    /// The quota that it uses until its answer, for an answer that comes later.
    pub(in crate::net) fn take_used(&mut self) -> Used {
        mem::take(&mut self.used)
    }

    /// The record that must be on disk before the request is submitted; `None` if it may be submitted at once.
    pub(in crate::net) fn take_recording(&mut self) -> Option<Recording> {
        match std::mem::replace(&mut self.recording, Recording::NotAsked) {
            Recording::NotAsked => None,
            recording => Some(recording),
        }
    }

    /// The view that filters the answer for its caller, for answers that come later; `None` without rules.
    pub(in crate::net) fn take_view(&mut self) -> Option<VisibleParts> {
        let view = std::mem::replace(&mut self.view, VisibleParts::Everything);
        self.principal.is_some().then_some(view)
    }
}

/// The id of a request whose place in a queue may be reserved.
fn request_id(request: &Request) -> Option<RequestId> {
    match request {
        Request::Acquire(wish) => wish.request,
        Request::Abandon(id) => Some(*id),
        _ => None,
    }
}
