//! A Palisade server as the authority.
//!
//! All operations of a connection travel in one plain session, with any number in flight:
//!
//! ```text
//!   caller ── (operation, oneshot) ──► queue ──► Connection: everything queued is one frame ──► server
//!   caller ◄── oneshot ◄──────────────────────── Connection: frames of replies ◄────────────── server
//! ```
//!
//! No operation needs a timer or a task of its own: a frame leaves as soon as the connection accepts it, and carries
//! everything queued by then. Watches and the rare request for a sequencer use gRPC.
//!
//! `unix:///run/palisade.sock` connects to a server on this machine by its Unix socket, without TLS. The server
//! authenticates the client by its token, or else by its uid.
//!
//! # A cluster
//!
//! `http://a:7420,http://b:7420,http://c:7420` names the nodes of one authority. The client connects to the leader; one
//! address is enough to find it. When the leader changes, an operation that was not sent waits up to 2 s for the next
//! leader. The caller repeats one that may have happened there, under the same request id. A waiting request keeps its
//! place in the queue, and leases are renewed at the new leader. Any node serves a watch.
//!
//! **Trust:** the client trusts the given addresses, and the leader's address that one of them names. It refuses a node
//! that reports another authority id than the first one. With `https://` each server must prove by its certificate that
//! the address is its own, and the client does not follow a leader without TLS. With `http://` there is no proof, so
//! use addresses on a trusted network.

mod address;
mod connection;
mod link;
mod listening;
mod nodes;
mod report;
mod request;
mod table;
mod unary;
mod watch;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use palisade_core::{AuthorityId, GrantRef, LockName, LockView, RequestId, Token, Ttl};
use palisade_proto::borrowed::Reply;
use palisade_proto::v1 as pb;
use palisade_tls::ClientFiles;

use crate::fault::Fault;
use crate::options::BearerToken;
use crate::service::{
    AcquireRequest, Acquired, Cursor, Events, LateWrite, Listening, LockService, Operation, Page,
    Proclamation, Released, Renewal, Reopened, Resized, Revocation, SequencerAnswer, Status,
};
use address::Address;
use link::Link;
use listening::SessionListening;
use nodes::Nodes;
use pb::request::Operation as Wish;
use request::Request;

/// Connections to a Palisade server, or to the leader of a cluster of them.
pub struct Palisade {
    authority: AuthorityId,
    nodes: Arc<Nodes>,
    links: Vec<Arc<Link>>,
    next: AtomicUsize,
}

impl Palisade {
    /// Opens this many connections to the server at `url`, or to the leader of the cluster whose nodes `url` lists,
    /// separated by commas.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an invalid address or a server that is not Palisade, [`Fault::Unreachable`] if nothing
    /// answers there, [`Fault::Unavailable`] if no node leads.
    pub async fn connect(url: &str, connections: usize) -> Result<Palisade, Fault> {
        let tls = ClientFiles::default();
        Palisade::connect_within(url, connections, Duration::ZERO, (&tls, None)).await
    }

    /// As [`Palisade::connect`], with credentials. If nodes answer and none leads, it looks for a leader for
    /// `patience`. Later, while none leads, an operation waits for half of `patience`, at most 2 s, before it fails as
    /// not sent. `shown` contains the certificate files for `https://` and the bearer token.
    ///
    /// # Errors
    /// As [`Palisade::connect`].
    pub async fn connect_within(
        url: &str,
        connections: usize,
        patience: Duration,
        shown: (&ClientFiles, Option<&BearerToken>),
    ) -> Result<Palisade, Fault> {
        let nodes = Arc::new(Nodes::new(Address::list(url)?, shown)?);
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Fault::invalid("a connection needs a Tokio runtime"));
        }
        if connections == 0 {
            return Err(Fault::invalid("a client needs at least 1 connection"));
        }
        let (first, authority) = Link::open(&nodes, None, patience).await?;
        let mut links = vec![Arc::new(first)];
        for _ in 1..connections {
            let expected = Some(authority.clone());
            links.push(Arc::new(Link::open(&nodes, expected, patience).await?.0));
        }
        Ok(Palisade {
            authority,
            nodes,
            links,
            next: AtomicUsize::new(0),
        })
    }

    /// Sends one operation. Connections share only the counter that chooses the next one.
    fn call(&self, request: Request) -> impl Future<Output = Result<Reply, Fault>> + use<> {
        let turn = match self.links.len() {
            1 => 0,
            links => self.next.fetch_add(1, Ordering::Relaxed) % links,
        };
        self.links[turn].call(request)
    }
}

impl LockService for Palisade {
    fn authority(&self) -> &AuthorityId {
        &self.authority
    }

    /// A connection reopens on the runtime of its next caller.
    fn outlives_runtimes(&self) -> bool {
        true
    }

    fn listen(&self) -> Option<Box<dyn Listening>> {
        let link = Arc::clone(self.links.first()?);
        Some(Box::new(SessionListening::new(link)))
    }

    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired> {
        let mode = request.mode;
        Box::pin(async move { wire::acquired(self.call(request.into()).await?, mode) })
    }

    fn renew(&self, grant: GrantRef, ttl: Option<Ttl>) -> Operation<'_, Renewal> {
        let request = Request::Renew(grant, ttl);
        Box::pin(async move { wire::renewal(self.call(request).await?.into()) })
    }

    fn release(&self, grant: GrantRef) -> Operation<'_, Released> {
        let request = Request::Release(grant);
        Box::pin(async move { wire::released(self.call(request).await?.into()) })
    }

    fn proclaim(&self, grant: GrantRef, value: &str) -> Operation<'_, Proclamation> {
        let wish = Wish::Proclaim(pb::ProclaimRequest {
            lock: grant.lock.to_string(),
            lock_token: wire::bytes(grant.key.as_bytes()),
            fencing_token: grant.token.map_or(0, Token::get),
            value: value.to_owned(),
        });
        Box::pin(async move { wire::proclaimed(self.call(wish.into()).await?.into()) })
    }

    fn sequencer(&self, grant: GrantRef) -> Operation<'_, SequencerAnswer> {
        let request = pb::SequencerRequest {
            lock: grant.lock.to_string(),
            lock_token: wire::bytes(grant.key.as_bytes()),
            fencing_token: grant.token.map_or(0, Token::get),
        };
        Box::pin(unary::sequencer(&self.nodes, &self.authority, request))
    }

    fn abandon(&self, request: RequestId) -> Operation<'_, ()> {
        let request_id = wire::bytes(request.as_bytes());
        let wish = Wish::Abandon(pb::AbandonRequest { request_id });
        Box::pin(async move { wire::done(self.call(wish.into()).await?.into()) })
    }

    fn show(&self, lock: LockName) -> Operation<'_, LockView> {
        let wish = Wish::Show(pb::ShowRequest {
            lock: lock.to_string(),
        });
        Box::pin(async move { wire::shown(self.call(wish.into()).await?.into()) })
    }

    fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Operation<'_, Page> {
        let request = wire::list(prefix, after.as_ref(), limit);
        Box::pin(async move { wire::page(self.call(Wish::List(request?).into()).await?.into()) })
    }

    fn watch(&self, prefix: &str, after: Option<u64>) -> Operation<'_, Events> {
        let request = pb::WatchRequest {
            prefix: prefix.to_owned(),
            after_revision: after,
        };
        Box::pin(watch::open(&self.nodes, &self.authority, request))
    }

    fn revoke(&self, lock: LockName, token: Token, reason: &str) -> Operation<'_, Revocation> {
        let wish = Wish::Break(pb::BreakRequest {
            lock: lock.to_string(),
            fencing_token: token.get(),
            reason: reason.to_owned(),
        });
        Box::pin(async move { wire::revoked(self.call(wish.into()).await?.into()) })
    }

    fn reopen(&self, lock: LockName, reason: &str) -> Operation<'_, Reopened> {
        let wish = Wish::Open(pb::OpenRequest {
            lock: lock.to_string(),
            reason: reason.to_owned(),
        });
        Box::pin(async move { wire::reopened(self.call(wish.into()).await?.into()) })
    }

    fn resize(&self, lock: LockName, permits: u32) -> Operation<'_, Resized> {
        let wish = Wish::Resize(pb::ResizeRequest {
            lock: lock.to_string(),
            permits,
        });
        Box::pin(async move { wire::resized(self.call(wish.into()).await?.into()) })
    }

    fn report(&self, late: LateWrite) -> Operation<'_, ()> {
        Box::pin(report::send(&self.nodes, &self.authority, late))
    }

    fn status(&self) -> Operation<'_, Status> {
        let wish = Wish::Status(pb::StatusRequest {});
        Box::pin(async move { wire::status(self.call(wish.into()).await?.into()) })
    }
}
