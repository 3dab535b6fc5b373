//! Sessions, and the basic operations on nodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{AuthorityId, GrantRef, LockName, RequestId, Span, Token, Ttl};
use tokio::sync::Mutex;
use zookeeper_client::{Acls, Client, CreateMode, Error, SessionState, Stat};

use super::address::Address;
use super::fault;
use super::node::{self, Child, QueueNode};
use palisade_client::Fault;
use palisade_client::service::fresh_request_id;

/// The time limit for opening a session.
const CONNECT: Duration = Duration::from_secs(6);

/// An ensemble, with one session for queries and one for each time to live.
pub(super) struct Ensemble {
    address: Address,
    query_session: Mutex<Arc<Client>>,
    leases: Mutex<HashMap<Ttl, Arc<Client>>>,
}

/// How long a holder may rely on its session after an acknowledged round trip to the leader.
///
/// The leader counts from when it last heard of the session, which through a follower may be half a tick ago; a
/// session lasts at least two ticks.
pub(super) fn valid_for(ttl: Ttl) -> Span {
    Span::from_nanos(ttl.span().as_nanos() / 3 * 2)
}

impl Ensemble {
    pub(super) async fn connect(address: Address) -> Result<Ensemble, Fault> {
        let query_session = open(&address.cluster, CONNECT, false).await?;
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        query_session
            .mkdir(&address.root, &persistent)
            .await
            .map_err(fault::of)?;
        Ok(Ensemble {
            address,
            query_session: Mutex::new(Arc::new(query_session)),
            leases: Mutex::default(),
        })
    }

    /// Returns the session for queries, and opens a new one if it has ended.
    pub(super) async fn query_session(&self) -> Result<Arc<Client>, Fault> {
        let mut query_session = self.query_session.lock().await;
        if query_session.state().is_terminated() {
            *query_session = Arc::new(open(&self.address.cluster, CONNECT, false).await?);
        }
        Ok(Arc::clone(&query_session))
    }

    /// Returns the session that carries the leases with this time to live; they end with it.
    pub(super) async fn lease(&self, ttl: Ttl) -> Result<Arc<Client>, Fault> {
        let mut leases = self.leases.lock().await;
        if let Some(session) = leases.get(&ttl)
            && !session.state().is_terminated()
        {
            return Ok(Arc::clone(session));
        }
        let asked = ttl.span().to_duration();
        // The session is not closed when this process ends: a grant may have been handed to another process.
        let session = open(&self.address.cluster, asked, true).await?;
        let granted = session.session_timeout();
        if granted != asked {
            let (granted, max) = (granted.as_millis(), Ttl::MAX.as_millis());
            let range = if granted > asked.as_millis() {
                format!("{granted} ms ..= {max} ms")
            } else {
                format!("100 ms ..= {granted} ms")
            };
            return Err(Fault::invalid(format!(
                "a lease of {ttl}: this ensemble's sessions last {range}"
            )));
        }
        let session = Arc::new(session);
        leases.insert(ttl, Arc::clone(&session));
        Ok(session)
    }

    /// Returns the authority id, which the first client draws.
    pub(super) async fn authority(&self) -> Result<AuthorityId, Fault> {
        let session = self.query_session().await?;
        let path = format!("{}/.authority", self.address.root);
        let drawn = fresh_request_id()?.to_hex();
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        match session.create(&path, drawn.as_bytes(), &persistent).await {
            Ok(_) | Err(Error::NodeExists) => {}
            Err(error) => return Err(fault::of(error)),
        }
        // A lagging member might not have the node yet.
        session.sync(&path).await.map_err(fault::of)?;
        let (id, _) = session.get_data(&path).await.map_err(fault::of)?;
        let id = String::from_utf8_lossy(&id).into_owned();
        Ok(AuthorityId::new(&format!("zookeeper:{id}"))?)
    }

    pub(super) fn root(&self) -> &str {
        &self.address.root
    }

    /// The parent node of a lock's queue.
    pub(super) fn directory(&self, lock: &LockName) -> String {
        format!("{}/{}", self.address.root, node::escape(lock))
    }

    /// Returns the holder's node of a lock.
    pub(super) async fn first(&self, lock: &LockName) -> Result<Option<QueueNode>, Fault> {
        let (session, directory) = (self.query_session().await?, self.directory(lock));
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

    /// Returns a grant's node, if it still exists with that token.
    pub(super) async fn find(&self, grant: &GrantRef) -> Result<Option<QueueNode>, Fault> {
        let (session, directory) = (self.query_session().await?, self.directory(&grant.lock));
        session.sync(&directory).await.map_err(fault::of)?;
        let request = node::hex(grant.key.as_bytes());
        let queue = children(&session, &directory).await?;
        let Some(own) = queue.iter().find(|child| child.is_of(&request)) else {
            return Ok(None);
        };
        let node = stat(&session, &directory, own).await?;
        Ok(node.filter(|node| grant.token.is_none_or(|token| token == node.token)))
    }

    /// Deletes a node, whose name never repeats; returns whether it existed.
    pub(super) async fn delete(&self, path: &str) -> Result<bool, Fault> {
        match self.query_session().await?.delete(path, None).await {
            Ok(()) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) => Err(fault::of(error)),
        }
    }

    /// Deletes all nodes of a request that this process does not remember.
    pub(super) async fn sweep_everywhere(&self, request: &RequestId) -> Result<(), Fault> {
        let (session, request) = (self.query_session().await?, request.to_hex());
        session.sync(self.root()).await.map_err(fault::of)?;
        let locks = session.list_children(self.root()).await;
        for lock in locks.map_err(fault::of)? {
            let directory = format!("{}/{lock}", self.root());
            sweep(&session, &directory, &request).await?;
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
        // No request was sent yet.
        Ok(Err(error)) => Err(match fault::of(error) {
            Fault::UnknownOutcome(why) => Fault::Unreachable(why),
            other => other,
        }),
        Err(_) => Err(Fault::unreachable("no session was opened in time")),
    }
}

/// Checks that a session is connected. A session without a connection proves nothing and counts as not held.
pub(super) fn connected(session: &Client) -> Result<(), Fault> {
    match session.state() {
        SessionState::SyncConnected => Ok(()),
        state => Err(Fault::unavailable(format!("the session is {state}"))),
    }
}

/// Returns a lock's queue; empty if there is no such lock.
pub(super) async fn children(session: &Client, directory: &str) -> Result<Vec<Child>, Fault> {
    match session.list_children(directory).await {
        Ok(names) => Ok(node::in_order(names)),
        Err(Error::NoNode) => Ok(Vec::new()),
        Err(error) => Err(fault::of(error)),
    }
}

/// Returns a child with its token; `None` if it is gone.
pub(super) async fn stat(
    session: &Client,
    directory: &str,
    child: &Child,
) -> Result<Option<QueueNode>, Fault> {
    let path = format!("{directory}/{}", child.name);
    let Some(stat) = session.check_stat(&path).await.map_err(fault::of)? else {
        return Ok(None);
    };
    node(directory, child, &stat).map(Some)
}

/// Returns a request's own node, if there is one. If a request has two nodes (after a create whose answer was
/// lost and a query through a lagging member), only the first is kept.
pub(super) async fn own(
    session: &Client,
    directory: &str,
    request: &str,
) -> Result<Option<QueueNode>, Fault> {
    let queue = children(session, directory).await?;
    let mut own = queue.iter().filter(|child| child.is_of(request));
    let Some(first) = own.next() else {
        return Ok(None);
    };
    for second in own {
        delete(session, directory, second).await?;
    }
    stat(session, directory, first).await
}

/// Deletes all nodes of a request below this node.
pub(super) async fn sweep(session: &Client, directory: &str, request: &str) -> Result<(), Fault> {
    session.sync(directory).await.map_err(fault::of)?;
    for child in children(session, directory).await? {
        if child.is_of(request) {
            delete(session, directory, &child).await?;
        }
    }
    Ok(())
}

async fn delete(session: &Client, directory: &str, child: &Child) -> Result<(), Fault> {
    let path = format!("{directory}/{}", child.name);
    match session.delete(&path, None).await {
        Ok(()) | Err(Error::NoNode) => Ok(()),
        Err(error) => Err(fault::of(error)),
    }
}

/// A child with its attributes.
pub(super) fn node(directory: &str, child: &Child, stat: &Stat) -> Result<QueueNode, Fault> {
    let path = format!("{directory}/{}", child.name);
    let token = node::token(stat).ok_or_else(exhausted)?;
    Ok(QueueNode { path, token })
}

fn exhausted() -> Fault {
    Fault::invalid(format!(
        "a czxid is larger than the last token, {}",
        Token::MAX
    ))
}
