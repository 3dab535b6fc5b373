//! One request's way through a lock's queue.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;
use palisade_core::{Granted, Holder, LeaseId, LeaseKey, Span, Timestamp, Token, Ttl};
use zookeeper_client::{Acls, Client, CreateMode, Error, EventType};

use super::ensemble::{self, children, stat};
use super::node::{self, Child, Data, Node};
use super::stake::Stake;
use super::{ZooKeeper, fault};
use crate::clock::{BootClock, Clock as _, wall};
use crate::fault::Fault;
use crate::service::{AcquireRequest, Acquired, Under};

/// A request's own node, if there is one. Two of one request (a create whose answer was lost, and a
/// member that lagged) are made one: the first stays.
pub(super) async fn own(
    session: &Client,
    directory: &str,
    request: &str,
) -> Result<Option<Node>, Fault> {
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

/// Deletes all that a request has below this node.
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

/// Asks for a lock.
pub(super) async fn acquire(
    zookeeper: &ZooKeeper,
    request: AcquireRequest,
) -> Result<Acquired, Fault> {
    let called = BootClock.now();
    let Under::New(ttl) = request.under else {
        return Err(Fault::unsupported("put several locks under one lease"));
    };
    let directory = zookeeper.ensemble.directory(&request.lock);
    let session = zookeeper.ensemble.lease(ttl).await?;
    ensemble::connected(&session)?;
    let id = *request.request.as_bytes();
    let stake = zookeeper.stakes.begin(&id, &session, &directory, ttl);
    let asked = Asked {
        zookeeper,
        session,
        directory,
        name: node::hex(&id),
        stake,
        ttl,
        called,
        request,
    };
    let answer = asked.stand().await;
    let stays = match &answer {
        Ok(acquired) => matches!(acquired, Acquired::Granted(_)),
        Err(fault) => fault.is_transient(),
    };
    if !stays {
        asked.stake.sweep().await?;
        zookeeper.stakes.forget(&id);
    }
    answer
}

/// Where a request stands in the queue.
struct Look {
    queue: Vec<Child>,
    place: usize,
    own: Node,
    /// When it was asked.
    sent: Timestamp,
}

/// Why a waiting request looks up.
enum Woken {
    /// The node before it is gone, and its own was there still when that happened.
    Ahead,
    /// The node before it is gone.
    Gone,
    /// It is time to look, and to prove the session.
    Time,
}

struct Asked<'a> {
    zookeeper: &'a ZooKeeper,
    session: Arc<Client>,
    directory: String,
    name: String,
    stake: Arc<Stake>,
    ttl: Ttl,
    called: Timestamp,
    request: AcquireRequest,
}

impl Asked<'_> {
    /// Joins the queue and stays in it until it is first or the wait is over.
    async fn stand(&self) -> Result<Acquired, Fault> {
        let until = self.called.after(self.request.wait.unwrap_or(Span::ZERO));
        if self.request.wait.is_none()
            && let Some(first) = self.somebody_else().await?
        {
            return Ok(Acquired::Held(first));
        }
        let mut look = self.join().await?;
        loop {
            ensemble::connected(&self.session)?;
            self.stake.goes_on(look.sent);
            let Some(before) = look.place.checked_sub(1).map(|before| &look.queue[before]) else {
                let granted = self.granted(look.own.token, look.sent);
                self.stake.granted(look.own);
                return Ok(granted);
            };
            if BootClock.now() >= until {
                return self.give_up(&look.queue[0]).await;
            }
            let woken = self.wait(before, &look, until).await?;
            let fresh = BootClock.now() < self.sign_of_life(look.sent);
            look = match woken {
                // Nobody stood before the one that is gone, and nobody ever joins before a node.
                Woken::Ahead if fresh && look.place == 1 => Look {
                    queue: look.queue.split_off(1),
                    place: 0,
                    ..look
                },
                Woken::Ahead | Woken::Gone if fresh => {
                    self.look(Some(look.own), Some(look.sent)).await?
                }
                _ => self.look(Some(look.own), None).await?,
            };
        }
    }

    /// Where it stands. `known` is its own node, if it has been seen before in this session: no other will
    /// ever have that name, so seeing the name is enough. `proven` is when the leader was last asked, if
    /// that is not to be done now: nobody ever joins the queue before a node, so being first stays true,
    /// and the session outlasts what that proof is good for.
    async fn look(&self, known: Option<Node>, proven: Option<Timestamp>) -> Result<Look, Fault> {
        let sent = proven.unwrap_or_else(|| BootClock.now());
        let prove = async {
            match proven {
                Some(_) => Ok(()),
                // Proves the session to the leader, and brings this member up to date.
                None => self.session.sync(&self.directory).await.map_err(fault::of),
            }
        };
        let (proved, queue) = tokio::join!(prove, children(&self.session, &self.directory));
        proved?;
        let queue = queue?;
        let place = queue.iter().position(|child| child.is_of(&self.name));
        let place = place.ok_or_else(lost_its_place)?;
        let own = match known {
            Some(known) => Some(known).filter(|known| known.path.ends_with(&queue[place].name)),
            None => stat(&self.session, &self.directory, &queue[place]).await?,
        };
        Ok(Look {
            queue,
            place,
            own: own.ok_or_else(lost_its_place)?,
            sent,
        })
    }

    /// Who has the lock, if it is not this very request.
    async fn somebody_else(&self) -> Result<Option<Holder>, Fault> {
        let queue = children(&self.session, &self.directory).await?;
        match queue.first() {
            Some(first) if !first.is_of(&self.name) => {
                holder(&self.session, &self.directory, first).await
            }
            _ => Ok(None),
        }
    }

    /// Creates the node and looks where it stands. One request has one node: the first it created.
    async fn join(&self) -> Result<Look, Fault> {
        let AcquireRequest {
            client, metadata, ..
        } = &self.request;
        let data = Data::write(client, self.ttl, metadata.as_deref());
        let path = format!("{}/{}", self.directory, node::name_of(&self.name));
        let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        loop {
            let sent = BootClock.now();
            // One session's operations are carried out in order, so the look sees the node and all
            // before it; and a write proves the session to the leader.
            let (created, queue) = tokio::join!(
                self.session.create(&path, &data, &ephemeral),
                children(&self.session, &self.directory)
            );
            match created {
                Ok((stat, _)) => {
                    let queue = queue?;
                    if queue.iter().filter(|child| child.is_of(&self.name)).count() > 1 {
                        // It was asked before: the first node stays.
                        own(&self.session, &self.directory, &self.name).await?;
                        return self.look(None, None).await;
                    }
                    let place = queue.iter().position(|child| child.is_of(&self.name));
                    let place = place.ok_or_else(lost_its_place)?;
                    return Ok(Look {
                        own: ensemble::node(&self.directory, &queue[place], &stat)?,
                        queue,
                        place,
                        sent,
                    });
                }
                // The first in a long time: the ensemble removes what is empty.
                Err(Error::NoNode) => {}
                Err(error) => return Err(fault::of(error)),
            }
            let container = CreateMode::Container.with_acls(Acls::anyone_all());
            match self.session.create(&self.directory, b"", &container).await {
                Ok(_) | Err(Error::NodeExists) => {}
                Err(error) => return Err(fault::of(error)),
            }
        }
    }

    /// Until the node before is gone, or it is time for a sign of life or the end of the wait.
    async fn wait(&self, before: &Child, look: &Look, until: Timestamp) -> Result<Woken, Fault> {
        let mut connection = self.session.state_watcher();
        let path = format!("{}/{}", self.directory, before.name);
        let (own, before) = tokio::join!(
            self.session.check_and_watch_stat(&look.own.path),
            self.session.check_and_watch_stat(&path)
        );
        let ((own, mine), (before, theirs)) = (own.map_err(fault::of)?, before.map_err(fault::of)?);
        if own.is_none() {
            return Err(lost_its_place());
        }
        let mut mine = pin!(mine.changed());
        if let Some(stat) = before {
            // The names order the queue and the transactions order the tokens. They agree, because a
            // container is only removed when it is empty; should they ever not, nobody is granted.
            let own = look.own.token;
            if node::token(&stat).is_none_or(|before| before >= own) {
                return Err(Fault::invalid(format!(
                    "{path} stands before a node of an earlier transaction ({own}): its sequence \
                     began again; delete it"
                )));
            }
            let time = self.sign_of_life(look.sent).min(until);
            let gone = tokio::select! {
                changed = theirs.changed() => {
                    self.zookeeper.wake_ups.fetch_add(1, Ordering::Relaxed);
                    // Anything else says something of the session, which is then to be proved.
                    changed.event_type == EventType::NodeDeleted
                }
                _ = &mut mine => false,
                () = BootClock.sleep_until(time) => false,
            };
            if !gone {
                return Ok(Woken::Time);
            }
        }
        // One connection tells what happens in the order in which it happens.
        let still = mine.now_or_never().is_none() && connection.changed().now_or_never().is_none();
        Ok(if still { Woken::Ahead } else { Woken::Gone })
    }

    /// When the session is to be proved again: at a third of its time.
    fn sign_of_life(&self, sent: Timestamp) -> Timestamp {
        sent.after(Span::from_nanos(self.ttl.span().as_nanos() / 3))
    }

    /// The wait is over; the node is swept by who called.
    async fn give_up(&self, first: &Child) -> Result<Acquired, Fault> {
        match holder(&self.session, &self.directory, first).await? {
            Some(holder) => Ok(Acquired::Held(holder)),
            None => Err(Fault::unavailable("its turn came when the wait was over")),
        }
    }

    fn granted(&self, token: Token, sent: Timestamp) -> Acquired {
        let waited = sent.since(self.called);
        Acquired::Granted(Granted {
            token,
            lease: LeaseId(token),
            key: LeaseKey::from_bytes(*self.request.request.as_bytes()),
            ttl: self.ttl,
            valid_for: waited.plus(ensemble::valid_for(self.ttl)),
            waited,
            acquired_at: wall(),
        })
    }
}

/// Whose node it is; `None` if it is gone.
pub(super) async fn holder(
    session: &Client,
    directory: &str,
    child: &Child,
) -> Result<Option<Holder>, Fault> {
    Ok(data(session, directory, child)
        .await?
        .map(|(holder, _)| holder))
}

/// Whose node it is, and what it says about itself.
pub(super) async fn data(
    session: &Client,
    directory: &str,
    child: &Child,
) -> Result<Option<(Holder, Option<Box<str>>)>, Fault> {
    let path = format!("{directory}/{}", child.name);
    let (data, stat) = match session.get_data(&path).await {
        Ok(found) => found,
        Err(Error::NoNode) => return Ok(None),
        Err(error) => return Err(fault::of(error)),
    };
    let data = Data::read(&data)?;
    let token = Token::new(u64::try_from(stat.czxid).unwrap_or(0))?;
    let holder = Holder {
        client: data.client,
        token,
        // How much of a session is left nobody tells; it is at most all of it.
        remaining: data.ttl.span(),
    };
    Ok(Some((holder, data.metadata)))
}

fn lost_its_place() -> Fault {
    Fault::unavailable("its session ended while it waited, and its place in the queue with it")
}
