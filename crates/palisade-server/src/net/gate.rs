//! The gate: who is asking, and whether they may. Nothing reaches the pipeline without passing it.
//!
//! ```text
//!   token, certificate, uid ─► identify ─► Who ─┬─► permit(request) ─► Permitted ─► Pipeline::call, Session::submit
//!                                               ├─► observe_all()   ─► ObservedAll ─► metrics
//!                                               ├─► observe(prefix) ─► Observed  ─► watch
//!                                               └─► administer()    ─► Administered ─► changes of the cluster
//! ```
//!
//! `Permitted`, `ObservedAll`, `Observed` and `Administered` are made here only, and what they are needed for takes nothing else, so a
//! handler that forgets the question does not compile. The fields that could get around it are private to this module.
//!
//! Without an access file everybody who reaches the port may do everything. Identity is settled once for each session and
//! each HTTP request; while the file stays the same, a decision compares prefixes and nothing else.

use std::mem;
use std::net::IpAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use axum::extract::{Request as HttpRequest, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use palisade_access::{Access, Bearer, Credential, Denied, Principal, Unknown, Verb};
use palisade_core::{Ahead, ClientId, Holder, LockMode, LockName, Outcome, Renewed, RequestId};
use palisade_proto::Code;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::interval;

use super::app::App;
use super::audit::{Audit, Event, Recording};
use super::budget::OPERATION_BYTES;
use super::convert::Refusal;
use super::error::ServeError;
use super::forward::FORWARDED;
use super::lease_keys::LeaseKeys;
use super::places::{Named, Places};
use super::quota::{Demand, Held, Quotas};
use super::rules::{LOOK, Rules, wall_seconds};
use super::shares::{Full, Shares, Used};
use crate::shell::{Caller, Origin, Peer};
use palisade_pipeline::{
    self, Answer, Answers, Asked, Failure, Handle, Identity, KeepsPlace, Leading, Request, Since,
    Stats, Stopped,
};

/// The rules in force, what is used of quotas, and where what they decide is recorded.
pub(super) struct Gate {
    /// `None` without a file.
    rules: Option<Rules>,
    audit: Audit,
    quotas: Arc<Quotas>,
    waits: Arc<Shares>,
    lease_keys: LeaseKeys,
    places: Arc<Places>,
}

impl Who {
    pub(super) fn principal(&self) -> Option<&Principal> {
        self.known.as_ref().map(|known| &known.principal)
    }

    fn name(&self) -> &str {
        name(self.principal())
    }
}

/// What a principal is called in records.
fn name(principal: Option<&Principal>) -> &str {
    principal.map_or(palisade_access::ANONYMOUS, Principal::name)
}

/// Who is asking.
#[derive(Clone, Debug)]
pub(super) struct Who {
    /// What its connection has proved; it may end before the connection does.
    caller: Caller,
    /// `None` without rules.
    known: Option<Known>,
    /// The URL of the node that sent the request on, if one did.
    forwarded: Option<Arc<str>>,
    /// Where its connection comes from.
    origin: Option<Origin>,
    /// The same for a request of its own; `None` for a session, whose places end with it.
    direct: Option<Origin>,
}

#[derive(Clone, Debug)]
struct Known {
    credential: Credential,
    principal: Principal,
    /// The network address that it comes from.
    address: Option<IpAddr>,
    /// What stands for it in the log.
    by: palisade_core::Principal,
    /// The rules under which the principal was found.
    access: Arc<Access>,
    /// Whether the credential ends by itself, by the wall clock.
    ends: bool,
}

impl Known {
    /// Whether what it has shown is still valid.
    fn check_time(&self) -> Result<(), Refusal> {
        if !self.ends {
            return Ok(());
        }
        if let Some(Bearer::Jwt(jwt)) = &self.credential.token {
            let valid = jwt.check_time(wall_seconds());
            return valid.map_err(|bad| unauthenticated(&bad));
        }
        let found = self.access.identify(&self.credential, wall_seconds());
        found.map(drop).map_err(|unknown| unauthenticated(&unknown))
    }
}

/// A request that its caller may make.
pub(super) struct Permitted {
    asked: Asked,
    /// Whose place it is, if it waits under an id of its caller.
    place: Option<Returning>,
    /// The caller's name, if there are rules.
    principal: Option<Principal>,
    /// The URL of the node that sent it on, if one did.
    through: Option<Arc<str>>,
    view: View,
    /// What it uses until its answer.
    used: Used,
    /// Done only when this is on disk.
    recording: Recording,
}

/// A waiting request whose caller may come back.
struct Returning {
    places: Arc<Places>,
    named: Named,
    origin: Origin,
}

/// A caller that waits for an answer. If it goes away before that, its place is kept together with what it uses.
struct Waiting {
    place: Option<Returning>,
    keeps_place: KeepsPlace,
    used: Used,
}

impl Waiting {
    fn settle(mut self, answer: &Answer) {
        self.place = None;
        mem::take(&mut self.used).settle(answer);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(Returning {
            places,
            named,
            origin,
        }) = self.place.take()
            && places.keep(named, origin, mem::take(&mut self.used))
        {
            self.keeps_place.keep();
        }
    }
}

/// What the caller may see of the answer.
pub(super) enum View {
    /// All of it.
    Everything,
    /// Not who else holds the lock.
    OthersHidden,
    /// The locks that the caller may observe.
    Observed(Box<Who>),
}

/// A caller may observe all locks.
pub(super) struct ObservedAll(());

/// The locks that a caller may observe among those of a prefix.
pub(super) struct Observed {
    who: Who,
    /// What it asked for.
    prefix: Box<str>,
    /// The part of it that the rules grant.
    prefixes: Prefixes,
    /// What the watch uses of quotas.
    _held: Option<Held>,
}

/// The locks whose names begin with one of these; sorted, and none begins with another one.
pub(super) type Prefixes = Arc<[Box<str>]>;

impl Observed {
    /// Where the watcher's connection comes from.
    pub(super) fn origin(&self) -> Option<Origin> {
        self.who.origin
    }

    pub(super) fn prefixes(&self) -> Prefixes {
        Arc::clone(&self.prefixes)
    }
}

/// A caller may change the cluster.
pub(super) struct Administered(Who);

impl Gate {
    pub(super) fn new(
        path: Option<&Path>,
        audit: Audit,
        lease_keys: LeaseKeys,
        waits: Arc<Shares>,
        handle: Handle,
    ) -> Result<Gate, ServeError> {
        let rules = path.map(|path| Rules::open(path, &audit));
        Ok(Gate {
            rules: rules.transpose()?,
            audit,
            quotas: Quotas::new(handle),
            waits,
            lease_keys,
            places: Arc::default(),
        })
    }

    pub(super) fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    pub(super) fn waits(&self) -> &Shares {
        &self.waits
    }

    /// Counts the locks of prefixes that have a quota. Does not end.
    pub(super) async fn keep_counting(&self) {
        match &self.rules {
            Some(rules) => self.quotas.follow(|| rules.current()).await,
            None => std::future::pending().await,
        }
    }

    /// Whether there are rules at all.
    pub(super) fn is_closed(&self) -> bool {
        self.rules.is_some()
    }

    /// The rules in force; `None` without a file.
    pub(super) fn rules(&self) -> Option<Arc<Access>> {
        self.rules.as_ref().map(Rules::current)
    }

    pub(super) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Records a refusal.
    fn recorded<T>(&self, who: &Who, decided: Result<T, Refusal>) -> Result<T, Refusal> {
        decided.inspect_err(|refusal| denied(&self.audit, Some(who.name()), refusal))
    }

    /// The answer as its caller may see it, reported where an operator should know of it.
    #[inline]
    pub(super) fn show(
        &self,
        principal: Option<&Principal>,
        view: Option<&View>,
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
            self.audit.note(&Event::WrongPrincipal {
                principal,
                lock,
                left_out,
            });
        }
    }

    /// Who opens a session, by the text of its token, its certificate or its uid.
    pub(super) fn identify(&self, peer: &Peer, token: Option<&str>) -> Result<Who, Refusal> {
        let settled = self.settle(&peer.caller, peer.origin.ip(), token);
        let settled = settled.map(|who| Who {
            origin: Some(peer.origin),
            ..who
        });
        settled.inspect_err(|refusal| denied(&self.audit, None, refusal))
    }

    /// Who a caller is.
    fn settle(
        &self,
        caller: &Caller,
        address: Option<IpAddr>,
        token: Option<&str>,
    ) -> Result<Who, Refusal> {
        let Some(rules) = &self.rules else {
            return Ok(Who {
                caller: caller.clone(),
                known: None,
                forwarded: None,
                origin: None,
                direct: None,
            });
        };
        let access = rules.current();
        let token = token.map(|text| rules.bearer(&access, text)).transpose();
        let token = token.map_err(|bad| unauthenticated(&bad))?;
        let (names, uid) = match caller {
            Caller::Anonymous => (Arc::default(), None),
            Caller::Certificate { names, .. } => (Arc::clone(names), None),
            Caller::Uid(uid) => (Arc::default(), Some(*uid)),
        };
        let credential = Credential { token, names, uid };
        let principal = access.identify(&credential, wall_seconds());
        let principal = principal.map_err(|unknown| unauthenticated(&unknown))?;
        Ok(Who {
            caller: caller.clone(),
            known: Some(Known {
                address,
                by: by(&principal),
                principal,
                ends: access.ends(&credential),
                credential,
                access,
            }),
            forwarded: None,
            origin: None,
            direct: None,
        })
    }

    /// Who it is under the rules now in force: a token may have been revoked or have expired since.
    fn now(&self, who: &Who) -> Result<Option<(Arc<Access>, Principal)>, Refusal> {
        let valid = who.caller.check_time();
        valid.map_err(|over| unauthenticated(&over))?;
        let (Some(rules), Some(known)) = (&self.rules, &who.known) else {
            return match self.is_closed() {
                false => Ok(None),
                true => Err(unauthenticated(&Unknown::Nothing)),
            };
        };
        let access = rules.current();
        if Arc::ptr_eq(&access, &known.access) {
            known.check_time()?;
            return Ok(Some((access, known.principal.clone())));
        }
        let principal = access.identify(&known.credential, wall_seconds());
        let principal = principal.map_err(|unknown| unauthenticated(&unknown))?;
        Ok(Some((access, principal)))
    }

    /// Whether a caller may make this request.
    pub(super) fn permit(&self, who: &Who, mut request: Request) -> Result<Permitted, Refusal> {
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
            } => self.audit.be_sure(&Event::Break {
                principal,
                lock: lock.as_str(),
                fencing_token: token.get(),
                reason,
            }),
            Request::Open { lock, reason } => self.audit.be_sure(&Event::Open {
                principal,
                lock: lock.as_str(),
                reason,
            }),
            Request::Resize { lock, permits } => self.audit.be_sure(&Event::Permits {
                principal,
                lock: lock.as_str(),
                permits: *permits,
            }),
            Request::Advance(by) => self.audit.be_sure(&Event::Admin {
                principal,
                change: format!("move the clock by {} ms", by.as_millis()),
            }),
            _ => Recording::NotAsked,
        };
        let place = match (&request, who.direct) {
            (Request::Acquire(wish), Some(origin)) if wish.wait.is_some() => {
                wish.request.map(|id| Returning {
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
    pub(super) fn look_as_holder(&self, who: &Who, lock: LockName, _: &Renewed) -> Permitted {
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
            view: View::Everything,
            // The renewal was counted.
            used: Used::default(),
            recording: Recording::NotAsked,
        }
    }

    /// Whether a caller may make this request, as whom, and what it may see of the answer.
    fn decide(
        &self,
        who: &Who,
        request: &Request,
    ) -> Result<(palisade_core::Principal, Option<Principal>, View), Refusal> {
        let Some((access, principal)) = self.now(who)? else {
            return Ok((palisade_core::Principal::ANONYMOUS, None, View::Everything));
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
        let mut view = View::Everything;
        match request {
            Request::Acquire(wish) => {
                let verb = match wish.mode {
                    // Who reads for update may keep readers out.
                    LockMode::Exclusive
                    | LockMode::Update
                    | LockMode::Upgrade
                    | LockMode::Permits(_) => Verb::Hold,
                    LockMode::Shared => Verb::Share,
                };
                for name in wish.locks() {
                    lock(verb, name)?;
                    if lock(Verb::Observe, name).is_err() {
                        view = View::OthersHidden;
                    }
                }
            }
            // The key of the lease shows that the caller acquired it.
            Request::Renew { grant, .. } | Request::Release(grant) => {
                lock(Verb::Share, &grant.lock)?;
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
                view = View::Observed(Box::new(who.clone()));
            }
            // What a client needs in order to know whose tokens it gets; it names no lock.
            Request::Status => {}
            Request::Advance(_) => {
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

    /// Whether a caller may observe all locks.
    pub(super) fn observe_all(&self, who: &Who) -> Result<ObservedAll, Refusal> {
        self.recorded(who, self.decide_all(who, Verb::Observe))?;
        self.admit(who, None, Demand::request)?;
        Ok(ObservedAll(()))
    }

    /// Which locks of a prefix a caller may observe; it is refused if it may observe none of them.
    pub(super) fn observe(&self, who: &Who, prefix: &str) -> Result<Observed, Refusal> {
        let prefixes = self.recorded(who, self.observable(who, prefix))?;
        // A watch of several parts counts for what contains all of them: its own prefix.
        let within = match &*prefixes {
            [one] => one,
            _ => prefix,
        };
        Ok(Observed {
            _held: self.admit(who, Some(within), Demand::watch)?,
            prefixes,
            who: who.clone(),
            prefix: prefix.into(),
        })
    }

    /// A session of this caller begins.
    pub(super) fn open_session(&self, who: &Who) -> Result<Option<Held>, Refusal> {
        self.admit(who, None, Demand::session)
    }

    /// Takes what a request needs. Each lock of a set counts where its name belongs; if one does not fit, none is taken.
    fn admit_request(&self, who: &Who, request: &Request) -> Result<Used, Refusal> {
        let wait = match request {
            Request::Acquire(wish) if wish.wait.is_some() => {
                let locks = 1 + wish.also.len() as u64;
                let slot = self.waits.take(who.origin, locks);
                Some(Box::new(slot.map_err(Full::of_waits)?))
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
                        held.into_iter().for_each(Held::release);
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

    /// Takes what a request needs of the quotas that apply.
    fn admit(
        &self,
        who: &Who,
        within: Option<&str>,
        demand: impl FnOnce() -> Demand,
    ) -> Result<Option<Held>, Refusal> {
        let (Some(rules), Some(known)) = (&self.rules, &who.known) else {
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

    /// Whether the caller may observe the same locks as before. While the rules stay the same this costs one comparison,
    /// and with a JWT a look at the clock.
    pub(super) fn still_observes(&self, observed: &Observed) -> bool {
        match (&self.rules, &observed.who.known) {
            _ if observed.who.caller.check_time().is_err() => false,
            (Some(rules), Some(known)) if !Arc::ptr_eq(&rules.current(), &known.access) => {
                let now = self.observable(&observed.who, &observed.prefix);
                now.is_ok_and(|prefixes| prefixes == observed.prefixes)
            }
            (Some(_), Some(known)) => known.check_time().is_ok(),
            _ => true,
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

    /// Whether a caller has an operator's right to a lock. It is asked before the body is read; [`permit`](Gate::permit)
    /// asks again.
    pub(super) fn operate(&self, who: &Who, lock: &LockName) -> Result<(), Refusal> {
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
    pub(super) fn administer(&self, who: &Who) -> Result<Administered, Refusal> {
        self.recorded(who, self.decide_all(who, Verb::Admin))?;
        Ok(Administered(who.clone()))
    }

    /// Whether a caller may see the cluster.
    pub(super) fn view_cluster(&self, who: &Who) -> Result<(), Refusal> {
        match self.decide_all(who, Verb::Admin) {
            Ok(()) => Ok(()),
            Err(_) => self.observe_all(who).map(drop),
        }
    }

    /// Records a change of the cluster; it may be made when that is on disk.
    pub(super) async fn be_sure(&self, by: Administered, change: String) -> Result<(), Refusal> {
        let principal = by.0.name();
        self.audit
            .be_sure(&Event::Admin { principal, change })
            .await
    }

    fn decide_all(&self, who: &Who, verb: Verb) -> Result<(), Refusal> {
        match self.now(who)? {
            Some((access, principal)) => {
                let decided = access.decide_all(&principal, verb, "");
                decided.map_err(|denied| forbidden(&denied))
            }
            None => Ok(()),
        }
    }

    /// What the caller may see of an answer.
    fn filter(&self, view: &View, mut answer: Answer) -> Answer {
        match (view, &mut answer) {
            (
                View::OthersHidden,
                Answer::Outcome(
                    Outcome::Held(Holder { client, .. }) | Outcome::Behind(Ahead { client, .. }),
                ),
            ) => {
                // A constant within the limits.
                if let Ok(hidden) = ClientId::new(HIDDEN) {
                    *client = hidden;
                }
            }
            (View::Observed(who), Answer::Locks { locks, .. }) => match self.now(who) {
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

    /// Reads the file again at SIGHUP, until the server stops. A file with a mistake leaves the old rules in force.
    pub(super) async fn keep_reloading(&self, stopping: impl Future<Output = ()>) {
        let Some(rules) = &self.rules else {
            return stopping.await;
        };
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => {
                tracing::warn!(%error, "rules are not reloaded: SIGHUP cannot be received");
                return stopping.await;
            }
        };
        let mut stopping = pin!(stopping);
        let (mut look, mut seen) = (interval(LOOK), Vec::new());
        loop {
            tokio::select! {
                () = &mut stopping => return,
                _ = hangup.recv() => rules.reload(&self.audit),
                _ = look.tick() => rules.reload_keys(&mut seen, &self.audit),
            }
        }
    }
}

fn unauthenticated(why: &impl ToString) -> Refusal {
    Refusal::new(Code::Unauthenticated, why.to_string())
}

fn forbidden(denied: &Denied) -> Refusal {
    Refusal::new(Code::Forbidden, denied.to_string())
}

/// A principal as the log has it: one half of the SHA-256 of its name.
fn by(principal: &Principal) -> palisade_core::Principal {
    match principal.id() {
        Some(id) => palisade_core::Principal::from_bytes(id),
        None => palisade_core::Principal::ANONYMOUS,
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
        Request::Abandon(_) | Request::Status | Request::Advance(_) => None,
    }
}

/// The id of a request that may have a place kept for it.
fn request_id(request: &Request) -> Option<RequestId> {
    match request {
        Request::Acquire(wish) => wish.request,
        Request::Abandon(id) => Some(*id),
        _ => None,
    }
}

/// Records that a caller was refused. `None` for one that nobody knows.
fn denied(audit: &Audit, principal: Option<&str>, refusal: &Refusal) {
    if audit.is_on()
        && let Some(left_out) = audit.refusal(principal)
    {
        audit.note(&Event::Denied {
            principal,
            code: refusal.code.name(),
            message: &refusal.message,
            left_out,
        });
    }
}

/// What stands in place of another principal's client id.
const HIDDEN: &str = "(hidden)";

/// Who makes an HTTP request, or why that is not known.
#[derive(Clone)]
struct Identified(Result<Who, Refusal>, Audit);

/// The middleware that settles who makes a request, in front of all others.
pub(super) async fn identify(
    State(app): State<Arc<App>>,
    mut request: HttpRequest,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>();
    let forwarded = request.headers().get(FORWARDED);
    let forwarded = forwarded.map(|node| node.to_str().unwrap_or_default().into());
    let caller = match peer {
        // A certificate is that of the node that forwards; the request is its caller's.
        Some(peer) if forwarded.is_none() => peer.caller.clone(),
        _ => Caller::Anonymous,
    };
    let identified = match bearer(request.headers()) {
        Ok(token) => {
            let address = peer.and_then(|peer| peer.origin.ip());
            let who = app.gate.settle(&caller, address, token);
            let origin = peer.map(|peer| peer.origin);
            who.map(|who| Who {
                forwarded,
                origin,
                direct: origin,
                ..who
            })
        }
        Err(refusal) => Err(refusal),
    };
    let audit = app.gate.audit.clone();
    request
        .extensions_mut()
        .insert(Identified(identified, audit));
    next.run(request).await
}

/// Who makes this request, which needs a known caller.
pub(super) fn who(extensions: &http::Extensions) -> Result<Who, Refusal> {
    match extensions.get::<Identified>() {
        Some(Identified(identified, audit)) => {
            let identified = identified.clone();
            identified.inspect_err(|refusal| denied(audit, None, refusal))
        }
        None => Err(unauthenticated(&Unknown::Nothing)),
    }
}

/// Whether the caller of this request is known.
pub(super) fn is_known(extensions: &http::Extensions) -> bool {
    let identified = extensions.get::<Identified>();
    identified.is_some_and(|Identified(identified, _)| identified.is_ok())
}

/// Whether a request may be sent on to the leader, which sees this node's certificate in place of the caller's: only a
/// token goes with it.
pub(super) fn goes_with(app: &App, headers: &HeaderMap) -> bool {
    !app.gate.is_closed() || headers.contains_key(AUTHORIZATION)
}

/// The token of an `Authorization` header.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(value) = headers.get(AUTHORIZATION) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default();
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim())),
        _ => Err(unauthenticated(&"Authorization must be: Bearer pal_…")),
    }
}

/// The pipeline behind the gate.
pub(super) struct Pipeline(Handle);

impl Pipeline {
    pub(super) fn new(handle: Handle) -> Pipeline {
        Pipeline(handle)
    }

    /// Carries out a request; the answer contains only what the caller may see.
    pub(super) async fn call(&self, gate: &Gate, permitted: Permitted) -> Answer {
        if let Err(refusal) = permitted.recording.await {
            return Answer::Failed(Failure::Unavailable(refusal.message));
        }
        let keeps_place = permitted.asked.keeps_place.clone();
        let mut answer = pin!(self.0.call(permitted.asked));
        // Dropped before the call is, which tells the pipeline whether the place is kept.
        let waiting = Waiting {
            place: permitted.place,
            keeps_place,
            used: permitted.used,
        };
        let answer = answer.as_mut().await;
        waiting.settle(&answer);
        gate.show(permitted.principal.as_ref(), Some(&permitted.view), answer)
    }

    pub(super) fn session(&self) -> (Session, Answers) {
        let (session, answers) = self.0.session();
        (Session(session), answers)
    }

    pub(super) fn near<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = Option<T>> {
        let near = self.0.near(task);
        async move { near.await.ok() }
    }

    pub(super) fn since(&self, revision: u64) -> Since {
        self.0.since(revision)
    }

    pub(super) fn identity(&self) -> &Identity {
        self.0.identity()
    }

    pub(super) fn stats(&self) -> &Stats {
        self.0.stats()
    }

    pub(super) fn stopped(&self) -> watch::Receiver<Option<Stopped>> {
        self.0.stopped()
    }

    pub(super) fn leader(&self) -> Leading {
        self.0.leader()
    }

    pub(super) fn leading(&self) -> watch::Receiver<Leading> {
        self.0.leading()
    }

    pub(super) fn revision(&self) -> u64 {
        self.0.revision()
    }

    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.0.news()
    }
}

/// A session of the pipeline behind the gate.
pub(super) struct Session(palisade_pipeline::Session);

impl Session {
    /// Operations that wait for nothing, or whose recording has ended well.
    pub(super) fn submit(&self, operations: Vec<(u64, Permitted)>) {
        let operations = operations.into_iter();
        self.0.submit(
            operations
                .map(|(id, permitted)| (id, permitted.asked))
                .collect(),
        );
    }

    pub(super) fn hang_up(&self) {
        self.0.hang_up();
    }
}

impl Permitted {
    /// Who makes it, under the rules in force; `None` without rules.
    pub(super) fn principal(&self) -> Option<&str> {
        self.principal.as_ref().map(Principal::name)
    }

    pub(super) fn request(&self) -> &Request {
        &self.asked.request
    }

    /// The URL of the node that sent it on, if one did.
    pub(super) fn through(&self) -> Option<Arc<str>> {
        self.through.clone()
    }

    /// What it uses until its answer, for one that comes later.
    pub(super) fn take_used(&mut self) -> Used {
        mem::take(&mut self.used)
    }

    /// What must be on disk before it is submitted; `None` if it may be submitted at once.
    pub(super) fn take_recording(&mut self) -> Option<Recording> {
        match std::mem::replace(&mut self.recording, Recording::NotAsked) {
            Recording::NotAsked => None,
            recording => Some(recording),
        }
    }

    /// What its caller may see of the answer, for answers that come later; `None` without rules.
    pub(super) fn take_view(&mut self) -> Option<View> {
        let view = std::mem::replace(&mut self.view, View::Everything);
        self.principal.is_some().then_some(view)
    }
}
