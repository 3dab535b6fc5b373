//! Sessions, and the few things that are done with nodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{AuthorityId, GrantRef, LockName, RequestId, Span, Token, Ttl};
use tokio::sync::Mutex;
use zookeeper_client::{Acls, Client, CreateMode, Error, SessionState, Stat};

use super::address::Address;
use super::node::{self, Child, Node};
use super::{fault, queue};
use crate::fault::Fault;
use crate::random;

/// How long opening a session is tried.
const CONNECT: Duration = Duration::from_secs(6);

/// An ensemble, one session to look with, and one for each time to live.
pub(super) struct Ensemble {
    address: Address,
    looking: Mutex<Arc<Client>>,
    leases: Mutex<HashMap<Ttl, Arc<Client>>>,
}

/// For how long after an acknowledged round trip to the leader a session's holder may believe in it.
///
/// The leader counts from when it hears of the session, which through a follower may be half a tick
/// ago; a session lasts at least two ticks.
pub(super) fn valid_for(ttl: Ttl) -> Span {
    Span::from_nanos(ttl.span().as_nanos() / 3 * 2)
}

impl Ensemble {
    pub(super) async fn connect(address: Address) -> Result<Ensemble, Fault> {
        let looking = open(&address.cluster, CONNECT, false).await?;
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        looking
            .mkdir(&address.root, &persistent)
            .await
            .map_err(fault::of)?;
        Ok(Ensemble {
            address,
            looking: Mutex::new(Arc::new(looking)),
            leases: Mutex::default(),
        })
    }

    /// The session for looking; a new one if it has ended.
    pub(super) async fn looking(&self) -> Result<Arc<Client>, Fault> {
        let mut looking = self.looking.lock().await;
        if looking.state().is_terminated() {
            *looking = Arc::new(open(&self.address.cluster, CONNECT, false).await?);
        }
        Ok(Arc::clone(&looking))
    }

    /// The session whose end is the end of leases that last this long.
    pub(super) async fn lease(&self, ttl: Ttl) -> Result<Arc<Client>, Fault> {
        let mut leases = self.leases.lock().await;
        if let Some(session) = leases.get(&ttl)
            && !session.state().is_terminated()
        {
            return Ok(Arc::clone(session));
        }
        let asked = ttl.span().to_duration();
        // Left alone when this process goes: a grant may have been handed to somebody else.
        let session = open(&self.address.cluster, asked, true).await?;
        let granted = session.session_timeout();
        if granted != asked {
            let (granted, max) = (granted.as_millis(), Ttl::MAX.as_millis());
            let range = match granted > asked.as_millis() {
                true => format!("{granted} ms ..= {max} ms"),
                false => format!("100 ms ..= {granted} ms"),
            };
            return Err(Fault::invalid(format!(
                "a lease of {ttl}: this ensemble's sessions last {range}"
            )));
        }
        let session = Arc::new(session);
        leases.insert(ttl, Arc::clone(&session));
        Ok(session)
    }

    /// The id drawn by the first who came here.
    pub(super) async fn authority(&self) -> Result<AuthorityId, Fault> {
        let session = self.looking().await?;
        let path = format!("{}/.authority", self.address.root);
        let drawn = RequestId::from_bytes(random::bytes()?).to_hex();
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        match session.create(&path, drawn.as_bytes(), &persistent).await {
            Ok(_) | Err(Error::NodeExists) => {}
            Err(error) => return Err(fault::of(error)),
        }
        // A member that lags might not have it yet.
        session.sync(&path).await.map_err(fault::of)?;
        let (id, _) = session.get_data(&path).await.map_err(fault::of)?;
        let id = String::from_utf8_lossy(&id).into_owned();
        Ok(AuthorityId::new(&format!("zookeeper:{id}"))?)
    }

    pub(super) fn root(&self) -> &str {
        &self.address.root
    }

    /// The node below which a lock's queue is.
    pub(super) fn directory(&self, lock: &LockName) -> String {
        format!("{}/{}", self.address.root, node::escape(lock))
    }

    /// Who holds a lock.
    pub(super) async fn first(&self, lock: &LockName) -> Result<Option<Node>, Fault> {
        let (session, directory) = (self.looking().await?, self.directory(lock));
        loop {
            let queue = children(&session, &directory).await?;
            let Some(first) = queue.first() else {
                return Ok(None);
            };
            if let Some(node) = stat(&session, &directory, first).await? {
                return Ok(Some(node));
            }
        }
    }

    /// A grant's node, if it is still there with that token.
    pub(super) async fn find(&self, grant: &GrantRef) -> Result<Option<Node>, Fault> {
        let (session, directory) = (self.looking().await?, self.directory(&grant.lock));
        session.sync(&directory).await.map_err(fault::of)?;
        let request = node::hex(grant.key.as_bytes());
        let queue = children(&session, &directory).await?;
        let Some(own) = queue.iter().find(|child| child.is_of(&request)) else {
            return Ok(None);
        };
        let node = stat(&session, &directory, own).await?;
        Ok(node.filter(|node| grant.token.is_none_or(|token| token == node.token)))
    }

    /// Deletes a node, whose name never repeats; whether it was there.
    pub(super) async fn delete(&self, path: &str) -> Result<bool, Fault> {
        match self.looking().await?.delete(path, None).await {
            Ok(()) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) => Err(fault::of(error)),
        }
    }

    /// Deletes what a request left, when nobody here remembers where.
    pub(super) async fn sweep_everywhere(&self, request: &RequestId) -> Result<(), Fault> {
        let (session, request) = (self.looking().await?, request.to_hex());
        session.sync(self.root()).await.map_err(fault::of)?;
        let locks = session.list_children(self.root()).await;
        for lock in locks.map_err(fault::of)? {
            let directory = format!("{}/{lock}", self.root());
            queue::sweep(&session, &directory, &request).await?;
        }
        Ok(())
    }
}

async fn open(cluster: &str, timeout: Duration, detached: bool) -> Result<Client, Fault> {
    let mut connector = Client::connector()
        .with_session_timeout(timeout)
        .with_fail_eagerly();
    if detached {
        connector = connector.with_detached();
    }
    let connected = tokio::time::timeout(CONNECT, connector.connect(cluster)).await;
    match connected {
        Ok(Ok(client)) => Ok(client),
        // Nothing was asked for yet.
        Ok(Err(error)) => Err(match fault::of(error) {
            Fault::UnknownOutcome(why) => Fault::Unavailable(why),
            other => other,
        }),
        Err(_) => Err(Fault::unavailable("no session was opened in time")),
    }
}

/// A session that has no connection proves nothing: it counts as not held.
pub(super) fn connected(session: &Client) -> Result<(), Fault> {
    match session.state() {
        SessionState::SyncConnected => Ok(()),
        state => Err(Fault::unavailable(format!("the session is {state}"))),
    }
}

/// A lock's queue; empty if there is no such lock.
pub(super) async fn children(session: &Client, directory: &str) -> Result<Vec<Child>, Fault> {
    match session.list_children(directory).await {
        Ok(names) => Ok(node::in_order(names)),
        Err(Error::NoNode) => Ok(Vec::new()),
        Err(error) => Err(fault::of(error)),
    }
}

/// A child with its token; `None` if it is gone.
pub(super) async fn stat(
    session: &Client,
    directory: &str,
    child: &Child,
) -> Result<Option<Node>, Fault> {
    let path = format!("{directory}/{}", child.name);
    let Some(stat) = session.check_stat(&path).await.map_err(fault::of)? else {
        return Ok(None);
    };
    node(directory, child, &stat).map(Some)
}

/// A child with what is known of it.
pub(super) fn node(directory: &str, child: &Child, stat: &Stat) -> Result<Node, Fault> {
    let path = format!("{directory}/{}", child.name);
    let token = node::token(stat).ok_or_else(exhausted)?;
    Ok(Node { path, token })
}

fn exhausted() -> Fault {
    Fault::invalid(format!("a czxid is beyond the last token, {}", Token::MAX))
}
