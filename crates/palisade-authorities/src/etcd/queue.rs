//! The path of one request through a lock's queue.

use std::sync::atomic::Ordering;
use std::time::Duration;

use palisade_core::{
    ClientId, GrantRef, Granted, Holder, LeaseId, LeaseKey, LockName, Span, Timestamp, Token, Ttl,
};

use super::keys::{lease_id, range};
use super::wire::{
    Alive, KeyValue, KeyWatch, TxnRequest, Wire, absent, created, first_of, get, last_before, op,
    put, ranged,
};
use super::{Etcd, fault};
use crate::wall_clock::wall;
use palisade_client::Fault;
use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::service::{AcquireRequest, Acquired, Under};

/// The names that a request has at the cluster. All of them are derived from the request id, so a repeated
/// step names the same key and the same lease.
pub(super) struct Ticket {
    pub(super) lease: i64,
    key: Vec<u8>,
}

/// The position of a request in the queue.
pub(super) struct QueuePosition {
    /// The create revision of its key.
    pub(super) token: Token,
    /// The cluster's revision at the time of the query.
    revision: i64,
    /// The preceding key; `None` if this request is first.
    before: Option<Vec<u8>>,
}

impl Ticket {
    fn of_request(root: &str, request: &AcquireRequest) -> Ticket {
        Ticket::new(root, &request.lock, request.request.as_bytes())
    }

    pub(super) fn of_grant(root: &str, grant: &GrantRef) -> Ticket {
        Ticket::new(root, &grant.lock, grant.key.as_bytes())
    }

    fn new(root: &str, lock: &LockName, id: &[u8; 16]) -> Ticket {
        let mut key = range(root, lock).0;
        key.extend_from_slice(LeaseKey::from_bytes(*id).to_hex().as_bytes());
        Ticket {
            lease: lease_id(id),
            key,
        }
    }

    /// Whether the key is still the one created at this revision (or at any).
    pub(super) async fn look(
        &self,
        wire: &Wire,
        token: Option<Token>,
    ) -> Result<Option<QueuePosition>, Fault> {
        let txn = TxnRequest {
            compare: vec![created(&self.key, token)],
            success: vec![op(get(&self.key))],
            failure: Vec::new(),
        };
        let mut found = wire.txn(txn).await?;
        let Some(own) = found.key(0) else {
            return Ok(None);
        };
        Ok(Some(QueuePosition {
            token: self::token(&own)?,
            revision: found.revision,
            before: None,
        }))
    }

    /// Deletes the key if it is still the one created at this revision; returns whether it was.
    pub(super) async fn leave(&self, wire: &Wire, token: Option<Token>) -> Result<bool, Fault> {
        wire.delete_as(&self.key, token).await
    }
}

/// Acquires a lock.
pub(super) async fn acquire(etcd: &Etcd, request: AcquireRequest) -> Result<Acquired, Fault> {
    let called = BootClock.now();
    let Under::New { ttl, .. } = request.under else {
        return Err(Fault::unsupported("put several locks under one lease"));
    };
    let seconds = whole_seconds(ttl)?;
    let ticket = Ticket::of_request(&etcd.root, &request);
    if request.wait.is_none()
        && let Some(first) = etcd.wire.first(&etcd.root, &request.lock).await?
        && first.key != ticket.key
    {
        return held(etcd, &first).await;
    }
    let sent = BootClock.now();
    match etcd.wire.grant(ticket.lease, seconds).await? {
        Alive::For(granted) if granted == ttl => {}
        Alive::For(granted) => {
            etcd.wire.revoke(ticket.lease).await?;
            return Err(Fault::invalid(format!(
                "a lease of {ttl}: this cluster grants {granted} ..= {}",
                Ttl::MAX
            )));
        }
        Alive::Gone => return Err(lost_its_position()),
    }
    let asked = QueuedAcquire {
        etcd,
        ticket,
        ttl,
        called,
        request,
    };
    asked.wait_for_grant(sent).await
}

/// A request with a live lease.
struct QueuedAcquire<'a> {
    etcd: &'a Etcd,
    ticket: Ticket,
    ttl: Ttl,
    called: Timestamp,
    request: AcquireRequest,
}

impl QueuedAcquire<'_> {
    /// Joins the queue and stays in it until the request is first or the wait is over. `alive` is the instant
    /// at which the last acknowledged keep-alive of the lease was sent.
    async fn wait_for_grant(self, mut alive: Timestamp) -> Result<Acquired, Fault> {
        let joined = match self.join().await {
            Err(fault) if self.request.wait.is_none() && !fault.is_transient() => {
                self.etcd.wire.revoke(self.ticket.lease).await?;
                return Err(fault);
            }
            joined => joined?,
        };
        let (token, first) = match joined {
            Joined::Position { token, first } => (token, first),
            Joined::Held(holder) => {
                self.etcd.wire.revoke(self.ticket.lease).await?;
                return held(self.etcd, &holder).await;
            }
            Joined::TokensExhausted => {
                self.etcd.wire.revoke(self.ticket.lease).await?;
                return Ok(Acquired::TokensExhausted);
            }
        };
        if first {
            return Ok(self.granted(token, alive));
        }
        let until = self.called.after(self.request.wait.unwrap_or(Span::ZERO));
        loop {
            let position = self.position(token).await?.ok_or_else(lost_its_position)?;
            let Some(before) = &position.before else {
                return Ok(self.granted(token, alive));
            };
            if BootClock.now() >= until {
                return self.give_up().await;
            }
            alive = self
                .wait(before, position.revision + 1, until, alive)
                .await?;
        }
    }

    /// Creates the key once.
    async fn join(&self) -> Result<Joined, Fault> {
        let (root, lock) = (&*self.etcd.root, &self.request.lock);
        let (start, end) = range(root, lock);
        let free = match self.request.wait {
            Some(_) => absent(&self.ticket.key, Vec::new()),
            // A try does not bypass waiting requests.
            None => absent(&start, end),
        };
        let txn = TxnRequest {
            compare: vec![free],
            success: vec![
                op(put(&self.ticket.key, self.value(), self.ticket.lease)),
                op(get(&self.ticket.key)),
                op(ranged(first_of(root, lock))),
            ],
            failure: vec![op(get(&self.ticket.key)), op(ranged(first_of(root, lock)))],
        };
        let mut found = self.etcd.wire.txn(txn).await?;
        let first = found.key(1);
        let Some(own) = found.key(0) else {
            let holder = first.ok_or_else(lost_its_position)?;
            return Ok(Joined::Held(holder));
        };
        let Ok(token) = token(&own) else {
            return Ok(Joined::TokensExhausted);
        };
        let first = first.is_some_and(|first| first.key == own.key);
        Ok(Joined::Position { token, first })
    }

    /// Reads the request's own key and its predecessor in one transaction: a missing predecessor means
    /// nothing if the request's own key is also gone.
    async fn position(&self, token: Token) -> Result<Option<QueuePosition>, Fault> {
        let before = last_before(&self.etcd.root, &self.request.lock, token);
        let txn = TxnRequest {
            compare: vec![created(&self.ticket.key, Some(token))],
            success: vec![op(ranged(before))],
            failure: Vec::new(),
        };
        let mut found = self.etcd.wire.txn(txn).await?;
        Ok(found.succeeded.then(|| QueuePosition {
            token,
            revision: found.revision,
            before: found.key(0).map(|key| key.key),
        }))
    }

    /// Waits until the preceding key is gone, the wait is over, or the lease was kept alive, which happens at
    /// a third of its time. Returns when the last keep-alive was sent.
    async fn wait(
        &self,
        before: &[u8],
        revision: i64,
        until: Timestamp,
        alive: Timestamp,
    ) -> Result<Timestamp, Fault> {
        let third = Span::from_nanos(self.ttl.span().as_nanos() / 3);
        let look = alive.after(third).min(until);
        let gone = async {
            let mut watch = self.etcd.wire.watch(before, revision).await?;
            is_gone(&mut watch).await
        };
        tokio::select! {
            woken = gone => {
                self.etcd.wake_ups.fetch_add(1, Ordering::Relaxed);
                return woken.map(|()| alive);
            }
            () = BootClock.sleep_until(look) => {}
        }
        let sent = BootClock.now();
        match self.etcd.wire.keep_alive(self.ticket.lease).await? {
            Alive::For(_) => Ok(sent),
            Alive::Gone => Err(lost_its_position()),
        }
    }

    /// Leaves the queue because the wait is over, whatever the request's position is now.
    async fn give_up(&self) -> Result<Acquired, Fault> {
        let (root, lock) = (&*self.etcd.root, &self.request.lock);
        let first = self.etcd.wire.first(root, lock).await?;
        self.etcd.wire.revoke(self.ticket.lease).await?;
        match first {
            Some(first) if first.key != self.ticket.key => held(self.etcd, &first).await,
            // The grant came too late to be used.
            _ => Err(Fault::unavailable(
                "the lock became free when the wait was already over",
            )),
        }
    }

    fn granted(&self, token: Token, alive: Timestamp) -> Acquired {
        let waited = alive.since(self.called);
        Acquired::Granted(Granted {
            token,
            shared: None,
            slots: palisade_core::Slots::NONE,
            lease: LeaseId(token),
            key: LeaseKey::from_bytes(*self.request.request.as_bytes()),
            ttl: self.ttl,
            valid_for: waited.plus(self.ttl.span()),
            waited,
            acquired_at: wall(),
        })
    }

    fn value(&self) -> Vec<u8> {
        let metadata = self.request.metadata.as_deref().unwrap_or("");
        format!("{}\n{metadata}", self.request.client).into_bytes()
    }
}

enum Joined {
    Position { token: Token, first: bool },
    Held(KeyValue),
    TokensExhausted,
}

async fn is_gone(watch: &mut KeyWatch) -> Result<(), Fault> {
    loop {
        let answer = watch.events.message().await;
        match answer.map_err(fault::of_write)? {
            // The revision was compacted, or the member lost its leader: query again.
            Some(answer) if answer.canceled || !answer.events.is_empty() => return Ok(()),
            Some(_) => {}
            None => return Err(Fault::unknown_outcome("the watch ended")),
        }
    }
}

async fn held(etcd: &Etcd, first: &KeyValue) -> Result<Acquired, Fault> {
    Ok(Acquired::Held(holder(etcd, first).await?))
}

/// Returns the holder that a key belongs to.
pub(super) async fn holder(etcd: &Etcd, first: &KeyValue) -> Result<Holder, Fault> {
    let left = etcd.wire.time_to_live(first.lease).await?;
    let (client, _) = value(first)?;
    Ok(Holder {
        client,
        token: token(first)?,
        remaining: Span::from(Duration::from_secs(left)),
    })
}

/// Parses a key's value: the client id and the metadata.
pub(super) fn value(key: &KeyValue) -> Result<(ClientId, Option<Box<str>>), Fault> {
    let foreign = || Fault::invalid("a key under the root was not written by Palisade");
    let text = std::str::from_utf8(&key.value).map_err(|_| foreign())?;
    let (client, metadata) = text.split_once('\n').ok_or_else(foreign)?;
    let metadata = (!metadata.is_empty()).then(|| metadata.into());
    Ok((ClientId::new(client).map_err(|_| foreign())?, metadata))
}

pub(super) fn token(key: &KeyValue) -> Result<Token, Fault> {
    Ok(Token::new(u64::try_from(key.create_revision).unwrap_or(0))?)
}

fn whole_seconds(ttl: Ttl) -> Result<i64, Fault> {
    let millis = ttl.as_millis();
    if !millis.is_multiple_of(1_000) {
        return Err(Fault::invalid(format!(
            "a lease of {ttl}: etcd grants whole seconds, 1 s ..= {} s",
            Ttl::MAX.as_millis() / 1_000
        )));
    }
    Ok(i64::from(millis / 1_000))
}

fn lost_its_position() -> Fault {
    Fault::unavailable("its lease ended while it waited, so it lost its place in the queue")
}
