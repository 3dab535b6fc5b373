//! The path of one request through a lock's queue.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;
use palisade_core::{Granted, Holder, LeaseId, LeaseKey, Span, Timestamp, Token, Ttl};
use zookeeper_client::{Acls, Client, CreateMode, Error, EventType};

use super::ensemble::{self, children, own, stat};
use super::node::{self, Child, Data, QueueNode};
use super::registration::Registration;
use super::{ZooKeeper, fault};
use crate::wall_clock::wall;
use palisade_client::Fault;
use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::service::{AcquireRequest, Acquired, Under};

/// Acquires a lock.
pub(super) async fn acquire(
    zookeeper: &ZooKeeper,
    request: AcquireRequest,
) -> Result<Acquired, Fault> {
    let called = BootClock.now();
    let Under::New { ttl, .. } = request.under else {
        return Err(Fault::unsupported("put several locks under one lease"));
    };
    let directory = zookeeper.ensemble.directory(&request.lock);
    let session = zookeeper.ensemble.lease(ttl).await?;
    ensemble::connected(&session)?;
    let id = *request.request.as_bytes();
    let registration = zookeeper
        .registrations
        .begin(&id, &session, &directory, ttl);
    let asked = QueuedAcquire {
        zookeeper,
        session,
        directory,
        name: node::hex(&id),
        registration,
        ttl,
        called,
        request,
    };
    let answer = asked.wait_for_grant().await;
    let stays = match &answer {
        Ok(acquired) => matches!(acquired, Acquired::Granted(_)),
        Err(fault) => fault.is_transient(),
    };
    if !stays {
        asked.registration.sweep().await?;
        zookeeper.registrations.forget(&id);
    }
    answer
}

/// The position of a request in the queue.
struct QueuePosition {
    queue: Vec<Child>,
    place: usize,
    own: QueueNode,
    /// The time at which the query was sent.
    sent: Timestamp,
}

/// The reason why a waiting request checks its position.
enum Woken {
    /// The preceding node is gone, and the request's own node still existed at that moment.
    Ahead,
    /// The preceding node is gone.
    Gone,
    /// The time has come to check the position and to renew the session.
    Time,
}

struct QueuedAcquire<'a> {
    zookeeper: &'a ZooKeeper,
    session: Arc<Client>,
    directory: String,
    name: String,
    registration: Arc<Registration>,
    ttl: Ttl,
    called: Timestamp,
    request: AcquireRequest,
}

impl QueuedAcquire<'_> {
    /// Joins the queue and stays in it until the request is first or the wait is over.
    async fn wait_for_grant(&self) -> Result<Acquired, Fault> {
        let until = self.called.after(self.request.wait.unwrap_or(Span::ZERO));
        if self.request.wait.is_none()
            && let Some(first) = self.other_holder().await?
        {
            return Ok(Acquired::Held(first));
        }
        let mut look = self.join().await?;
        loop {
            ensemble::connected(&self.session)?;
            self.registration.extend(look.sent);
            let Some(before) = look.place.checked_sub(1).map(|before| &look.queue[before]) else {
                let granted = self.granted(look.own.token, look.sent);
                self.registration.granted(look.own);
                return Ok(granted);
            };
            if BootClock.now() >= until {
                return self.give_up(&look.queue[0]).await;
            }
            let woken = self.wait(before, &look, until).await?;
            let fresh = BootClock.now() < self.sign_of_life(look.sent);
            look = match woken {
                // No node preceded the one that is gone, and no request ever joins ahead of a node.
                Woken::Ahead if fresh && look.place == 1 => QueuePosition {
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

    /// Returns the request's position. `known` is its own node, if it has been seen before in this session:
    /// no other node will ever have that name, so the name is enough. `proven` is the time of the last round
    /// trip to the leader, if no new one is needed: no request ever joins the queue ahead of a node, so being
    /// first stays true, and the session outlasts the validity of that proof.
    async fn look(
        &self,
        known: Option<QueueNode>,
        proven: Option<Timestamp>,
    ) -> Result<QueuePosition, Fault> {
        let sent = proven.unwrap_or_else(|| BootClock.now());
        let prove = async {
            match proven {
                Some(_) => Ok(()),
                // Confirms the session at the leader, and brings this member up to date.
                None => self.session.sync(&self.directory).await.map_err(fault::of),
            }
        };
        let (proved, queue) = tokio::join!(prove, children(&self.session, &self.directory));
        proved?;
        let queue = queue?;
        let place = queue.iter().position(|child| child.is_of(&self.name));
        let place = place.ok_or_else(lost_its_position)?;
        let own = match known {
            Some(known) => Some(known).filter(|known| known.path.ends_with(&queue[place].name)),
            None => stat(&self.session, &self.directory, &queue[place]).await?,
        };
        Ok(QueuePosition {
            queue,
            place,
            own: own.ok_or_else(lost_its_position)?,
            sent,
        })
    }

    /// Returns the holder of the lock, unless it is this very request.
    async fn other_holder(&self) -> Result<Option<Holder>, Fault> {
        let queue = children(&self.session, &self.directory).await?;
        match queue.first() {
            Some(first) if !first.is_of(&self.name) => {
                holder(&self.session, &self.directory, first).await
            }
            _ => Ok(None),
        }
    }

    /// Creates the node and returns its position. One request has one node: the first that it created.
    async fn join(&self) -> Result<QueuePosition, Fault> {
        let AcquireRequest {
            client, metadata, ..
        } = &self.request;
        let data = Data::write(client, self.ttl, metadata.as_deref());
        let path = format!("{}/{}", self.directory, node::name_of(&self.name));
        let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        loop {
            let sent = BootClock.now();
            // One session's operations are executed in order, so the query sees the node and all nodes before
            // it; and a write confirms the session at the leader.
            let (created, queue) = tokio::join!(
                self.session.create(&path, &data, &ephemeral),
                children(&self.session, &self.directory)
            );
            match created {
                Ok((stat, _)) => {
                    let queue = queue?;
                    if queue.iter().filter(|child| child.is_of(&self.name)).count() > 1 {
                        // The request was sent before: its first node stays.
                        own(&self.session, &self.directory, &self.name).await?;
                        return self.look(None, None).await;
                    }
                    let place = queue.iter().position(|child| child.is_of(&self.name));
                    let place = place.ok_or_else(lost_its_position)?;
                    return Ok(QueuePosition {
                        own: ensemble::node(&self.directory, &queue[place], &stat)?,
                        queue,
                        place,
                        sent,
                    });
                }
                // The lock's first request in a long time: the ensemble removes empty containers.
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

    /// Waits until the preceding node is gone, or it is time to confirm the session, or the wait is over.
    async fn wait(
        &self,
        before: &Child,
        look: &QueuePosition,
        until: Timestamp,
    ) -> Result<Woken, Fault> {
        let mut connection = self.session.state_watcher();
        let path = format!("{}/{}", self.directory, before.name);
        let (own, before) = tokio::join!(
            self.session.check_and_watch_stat(&look.own.path),
            self.session.check_and_watch_stat(&path)
        );
        let ((own, mine), (before, theirs)) = (own.map_err(fault::of)?, before.map_err(fault::of)?);
        if own.is_none() {
            return Err(lost_its_position());
        }
        let mut mine = pin!(mine.changed());
        if let Some(stat) = before {
            // The names order the queue and the transactions order the tokens. They agree, because a
            // container is only removed when it is empty. Should they ever disagree, no request is granted.
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
                    // Any other event concerns the session, which must then be confirmed.
                    changed.event_type == EventType::NodeDeleted
                }
                _ = &mut mine => false,
                () = BootClock.sleep_until(time) => false,
            };
            if !gone {
                return Ok(Woken::Time);
            }
        }
        // One connection reports events in the order in which they happen.
        let still = mine.now_or_never().is_none() && connection.changed().now_or_never().is_none();
        Ok(if still { Woken::Ahead } else { Woken::Gone })
    }

    /// The instant at which the session must be confirmed again: at a third of its time.
    fn sign_of_life(&self, sent: Timestamp) -> Timestamp {
        sent.after(Span::from_nanos(self.ttl.span().as_nanos() / 3))
    }

    /// Ends the wait; the caller deletes the node.
    async fn give_up(&self, first: &Child) -> Result<Acquired, Fault> {
        match holder(&self.session, &self.directory, first).await? {
            Some(holder) => Ok(Acquired::Held(holder)),
            None => Err(Fault::unavailable(
                "the lock became free when the wait was already over",
            )),
        }
    }

    fn granted(&self, token: Token, sent: Timestamp) -> Acquired {
        let waited = sent.since(self.called);
        Acquired::Granted(Granted {
            token,
            shared: None,
            slots: palisade_core::Slots::NONE,
            lease: LeaseId(token),
            key: LeaseKey::from_bytes(*self.request.request.as_bytes()),
            ttl: self.ttl,
            valid_for: waited.plus(ensemble::valid_for(self.ttl)),
            waited,
            acquired_at: wall(),
        })
    }
}

/// Returns the holder that a node belongs to; `None` if the node is gone.
pub(super) async fn holder(
    session: &Client,
    directory: &str,
    child: &Child,
) -> Result<Option<Holder>, Fault> {
    Ok(data(session, directory, child)
        .await?
        .map(|(holder, _)| holder))
}

/// Returns the owner of a node and its data.
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
        // The ensemble does not report how much of a session is left; at most it is all of it.
        remaining: data.ttl.span(),
    };
    Ok(Some((holder, data.metadata)))
}

fn lost_its_position() -> Fault {
    Fault::unavailable("its session ended while it waited, so it lost its place in the queue")
}
