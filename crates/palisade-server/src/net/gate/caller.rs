//! Authenticates the caller by token, certificate or uid: once for each session and each HTTP request, and again before
//! each decision.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request as HttpRequest, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use palisade_access::{Access, Bearer, Credential, Principal, Unknown};

use super::{Gate, denied, name, unauthenticated};
use crate::net::audit::Audit;
use crate::net::convert::Refusal;
use crate::net::quota::Demand;
use crate::net::rules::{Rules, wall_seconds};
use crate::shell::{Origin, Peer, PeerIdentity};

/// An authenticated caller.
#[derive(Clone, Debug)]
pub(in crate::net) struct Who {
    /// The credentials of its connection, which may expire before the connection ends.
    pub(super) caller: PeerIdentity,
    /// `None` without rules.
    pub(super) known: Option<KnownCaller>,
    /// The URL of the node that sent the request on, if one did.
    pub(super) forwarded: Option<Arc<str>>,
    /// Where its connection comes from.
    pub(super) origin: Option<Origin>,
    /// The same for a request of its own; `None` for a session, whose places end with it.
    pub(super) direct: Option<Origin>,
}

#[derive(Clone, Debug)]
pub(super) struct KnownCaller {
    credential: Credential,
    pub(super) principal: Principal,
    /// The network address that it comes from.
    pub(super) address: Option<IpAddr>,
    /// The principal as the log stores it.
    pub(super) by: palisade_core::Principal,
    /// The rules under which the principal was found.
    pub(super) access: Arc<Access>,
    /// Whether the credential expires, by the wall clock.
    ends: bool,
}

impl Who {
    pub(in crate::net) fn principal(&self) -> Option<&Principal> {
        self.known.as_ref().map(|known| &known.principal)
    }

    /// Where its connection comes from.
    pub(in crate::net) fn origin(&self) -> Option<Origin> {
        self.origin
    }

    pub(super) fn name(&self) -> &str {
        name(self.principal())
    }
}

impl KnownCaller {
    /// Whether its credentials are still valid.
    pub(super) fn check_time(&self) -> Result<(), Refusal> {
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

impl Gate {
    /// Authenticates the caller that opens a session, by the text of its token, its certificate or its uid.
    pub(in crate::net) fn identify(
        &self,
        peer: &Peer,
        token: Option<&str>,
    ) -> Result<Who, Refusal> {
        let settled = self.settle(&peer.caller, peer.origin.ip(), token);
        let settled = settled.map(|who| Who {
            origin: Some(peer.origin),
            ..who
        });
        settled.inspect_err(|refusal| denied(&self.audit, None, refusal))
    }

    /// Authenticates a caller.
    fn settle(
        &self,
        caller: &PeerIdentity,
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
            PeerIdentity::Anonymous => (Arc::default(), None),
            PeerIdentity::Certificate { names, .. } => (Arc::clone(names), None),
            PeerIdentity::Uid(uid) => (Arc::default(), Some(*uid)),
        };
        let credential = Credential { token, names, uid };
        let principal = access.identify(&credential, wall_seconds());
        let principal = principal.map_err(|unknown| unauthenticated(&unknown))?;
        Ok(Who {
            caller: caller.clone(),
            known: Some(KnownCaller {
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

    /// The rules, and who a caller is under them; `None` where there are no rules. A caller that no rules have identified is
    /// refused where there are some.
    pub(super) fn known<'a>(
        &'a self,
        who: &'a Who,
    ) -> Result<Option<(&'a Rules, &'a KnownCaller)>, Refusal> {
        match (&self.rules, &who.known) {
            (None, _) => Ok(None),
            (Some(rules), Some(known)) => Ok(Some((rules, known))),
            (Some(_), None) => Err(unauthenticated(&Unknown::Nothing)),
        }
    }

    /// The principal of a caller under the current rules; `None` without rules.
    pub(in crate::net) fn principal(&self, who: &Who) -> Result<Option<Principal>, Refusal> {
        let now = self.recorded(who, self.now(who))?;
        self.admit(who, None, Demand::request)?;
        Ok(now.map(|(_, principal)| principal))
    }

    /// Authenticates the caller again under the current rules: a token may have been revoked or have expired since.
    pub(super) fn now(&self, who: &Who) -> Result<Option<(Arc<Access>, Principal)>, Refusal> {
        let valid = who.caller.check_time();
        valid.map_err(|over| unauthenticated(&over))?;
        let Some((rules, known)) = self.known(who)? else {
            return Ok(None);
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
}

/// A principal as the log has it: one half of the SHA-256 of its name.
pub(in crate::net) fn by(principal: &Principal) -> palisade_core::Principal {
    match principal.id() {
        Some(id) => palisade_core::Principal::from_bytes(id),
        None => palisade_core::Principal::ANONYMOUS,
    }
}

/// The caller of an HTTP request, or the reason why it is unknown.
#[derive(Clone)]
struct Identified(Result<Who, Refusal>, Audit);

/// The middleware that settles who makes a request, in front of all others.
pub(in crate::net) async fn identify(
    State(gate): State<Arc<Gate>>,
    mut request: HttpRequest,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>();
    let forwarded = request.headers().get(FORWARDED);
    let forwarded = forwarded.map(|node| node.to_str().unwrap_or_default().into());
    let caller = match peer {
        // A certificate is that of the node that forwards; the request is its caller's.
        Some(peer) if forwarded.is_none() => peer.caller.clone(),
        _ => PeerIdentity::Anonymous,
    };
    let identified = match bearer(request.headers()) {
        Ok(token) => {
            let address = peer.and_then(|peer| peer.origin.ip());
            let who = gate.settle(&caller, address, token);
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
    let audit = gate.audit.clone();
    request
        .extensions_mut()
        .insert(Identified(identified, audit));
    next.run(request).await
}

/// The caller of this request, which needs a known one.
pub(in crate::net) fn who(extensions: &http::Extensions) -> Result<Who, Refusal> {
    match extensions.get::<Identified>() {
        Some(Identified(identified, audit)) => {
            let identified = identified.clone();
            identified.inspect_err(|refusal| denied(audit, None, refusal))
        }
        None => Err(unauthenticated(&Unknown::Nothing)),
    }
}

/// Whether the caller of this request is known.
pub(in crate::net) fn is_known(extensions: &http::Extensions) -> bool {
    let identified = extensions.get::<Identified>();
    identified.is_some_and(|Identified(identified, _)| identified.is_ok())
}

/// Whether a request may be sent on to the leader, which sees this node's certificate in place of the caller's: only a
/// token goes with it.
pub(in crate::net) fn goes_with(gate: &Gate, headers: &HeaderMap) -> bool {
    !gate.is_closed() || headers.contains_key(AUTHORIZATION)
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

/// Set on a forwarded request, to the node that forwarded it. A request that has it is never forwarded again.
pub(in crate::net) const FORWARDED: HeaderName = HeaderName::from_static("x-palisade-forwarded");
