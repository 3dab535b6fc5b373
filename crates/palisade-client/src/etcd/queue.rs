//! One request's way through a lock's queue.

use std::sync::atomic::Ordering;
use std::time::Duration;

use palisade_core::{
    ClientId, GrantRef, Granted, Holder, LeaseId, LeaseKey, LockName, Span, Timestamp, Token, Ttl,
};

use super::wire::{
    Alive, KeyValue, TxnRequest, Watch, Wire, absent, created, first_of, get, last_before, op, put,
    ranged,
};
use super::{Etcd, fault};
use crate::clock::{BootClock, Clock as _, wall};
use crate::fault::Fault;
use crate::service::{AcquireRequest, Acquired, Under};

/// What a request is called at the cluster. All of it follows from the request id, so that whatever is
/// repeated names the same key and the same lease.
pub(super) struct Ticket {
    pub(super) lease: i64,
    key: Vec<u8>,
}

/// Where a request stands.
pub(super) struct Place {
    /// The create revision of its key.
    pub(super) token: Token,
    /// The cluster's revision at the look.
    revision: i64,
    /// The key before it; `None` when it is first.
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
    ) -> Result<Option<Place>, Fault> {
        let txn = TxnRequest {
            compare: vec![created(&self.key, token)],
            success: vec![op(get(&self.key))],
            failure: Vec::new(),
        };
        let mut found = wire.txn(txn).await?;
        let Some(own) = found.key(0) else {
            return Ok(None);
        };
        Ok(Some(Place {
            token: self::token(&own)?,
            revision: found.revision,
            before: None,
        }))
    }

    /// Takes the key away if it is still the one created at this revision; whether it was.
    pub(super) async fn leave(&self, wire: &Wire, token: Option<Token>) -> Result<bool, Fault> {
        wire.delete_as(&self.key, token).await
    }
}

/// Asks for a lock.
pub(super) async fn acquire(etcd: &Etcd, request: AcquireRequest) -> Result<Acquired, Fault> {
    let called = BootClock.now();
    let Under::New(ttl) = request.under else {
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
        Alive::Gone => return Err(lost_its_place()),
    }
    let asked = Asked {
        etcd,
        ticket,
        ttl,
        called,
        request,
    };
    asked.stand(sent).await
}

/// A request whose lease lives.
struct Asked<'a> {
    etcd: &'a Etcd,
    ticket: Ticket,
    ttl: Ttl,
    called: Timestamp,
    request: AcquireRequest,
}

impl Asked<'_> {
    /// Joins the queue and stays in it until it is first or the wait is over. `alive` is when the last
    /// acknowledged sign of life of the lease was sent.
    async fn stand(self, mut alive: Timestamp) -> Result<Acquired, Fault> {
        let joined = match self.join().await {
            Err(fault) if self.request.wait.is_none() && !fault.is_transient() => {
                self.etcd.wire.revoke(self.ticket.lease).await?;
                return Err(fault);
            }
            joined => joined?,
        };
        let (token, first) = match joined {
            Joined::Place { token, first } => (token, first),
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
            let place = self.place(token).await?.ok_or_else(lost_its_place)?;
            let Some(before) = &place.before else {
                return Ok(self.granted(token, alive));
            };
            if BootClock.now() >= until {
                return self.give_up().await;
            }
            alive = self.wait(before, place.revision + 1, until, alive).await?;
        }
    }

    /// Puts the key, once.
    async fn join(&self) -> Result<Joined, Fault> {
        let (root, lock) = (&*self.etcd.root, &self.request.lock);
        let (start, end) = range(root, lock);
        let free = match self.request.wait {
            Some(_) => absent(&self.ticket.key, Vec::new()),
            // A try goes past nobody.
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
            let holder = first.ok_or_else(lost_its_place)?;
            return Ok(Joined::Held(holder));
        };
        let Ok(token) = token(&own) else {
            return Ok(Joined::TokensExhausted);
        };
        let first = first.is_some_and(|first| first.key == own.key);
        Ok(Joined::Place { token, first })
    }

    /// The key and the one before it, in one look: a predecessor that is gone says nothing to who is
    /// gone itself.
    async fn place(&self, token: Token) -> Result<Option<Place>, Fault> {
        let before = last_before(&self.etcd.root, &self.request.lock, token);
        let txn = TxnRequest {
            compare: vec![created(&self.ticket.key, Some(token))],
            success: vec![op(ranged(before))],
            failure: Vec::new(),
        };
        let mut found = self.etcd.wire.txn(txn).await?;
        Ok(found.succeeded.then(|| Place {
            token,
            revision: found.revision,
            before: found.key(0).map(|key| key.key),
        }))
    }

    /// Until the key before is gone, or the wait over, or the lease was kept alive, which it is at a third
    /// of its time. Returns when its last sign of life was sent.
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
            Alive::Gone => Err(lost_its_place()),
        }
    }

    /// The wait is over: leaves the queue, whatever happened to it meanwhile.
    async fn give_up(&self) -> Result<Acquired, Fault> {
        let (root, lock) = (&*self.etcd.root, &self.request.lock);
        let first = self.etcd.wire.first(root, lock).await?;
        self.etcd.wire.revoke(self.ticket.lease).await?;
        match first {
            Some(first) if first.key != self.ticket.key => held(self.etcd, &first).await,
            // Its turn came too late to be seen.
            _ => Err(Fault::unavailable("its turn came when the wait was over")),
        }
    }

    fn granted(&self, token: Token, alive: Timestamp) -> Acquired {
        let waited = alive.since(self.called);
        Acquired::Granted(Granted {
            token,
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
    Place { token: Token, first: bool },
    Held(KeyValue),
    TokensExhausted,
}

async fn is_gone(watch: &mut Watch) -> Result<(), Fault> {
    loop {
        let told = watch.events.message().await;
        match told.map_err(|status| fault::changed(&status))? {
            // Compacted away, or the member lost its leader: look again.
            Some(told) if told.canceled || !told.events.is_empty() => return Ok(()),
            Some(_) => {}
            None => return Err(Fault::unknown_outcome("the watch was cut off")),
        }
    }
}

async fn held(etcd: &Etcd, first: &KeyValue) -> Result<Acquired, Fault> {
    Ok(Acquired::Held(holder(etcd, first).await?))
}

/// Whose key it is.
pub(super) async fn holder(etcd: &Etcd, first: &KeyValue) -> Result<Holder, Fault> {
    let left = etcd.wire.time_to_live(first.lease).await?;
    let (client, _) = value(first)?;
    Ok(Holder {
        client,
        token: token(first)?,
        remaining: Span::from(Duration::from_secs(left)),
    })
}

/// What a key says: who, and what it says about itself.
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

pub(super) fn revision(token: Token) -> i64 {
    // A token has 53 bits.
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// The keys of a lock: names are printable, so a NUL ends one for certain.
pub(super) fn range(root: &str, lock: &LockName) -> (Vec<u8>, Vec<u8>) {
    let start = [root.as_bytes(), lock.as_bytes(), b"\0"].concat();
    let end = [root.as_bytes(), lock.as_bytes(), b"\x01"].concat();
    (start, end)
}

/// The lease of a request: 62 random bits of its id, never zero (which lets etcd choose).
pub(super) fn lease_id(request: &[u8; 16]) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&request[..8]);
    (i64::from_be_bytes(bytes) & (i64::MAX >> 1)) | 1 << 62
}

fn whole_seconds(ttl: Ttl) -> Result<i64, Fault> {
    let millis = ttl.as_millis();
    if !millis.is_multiple_of(1_000) {
        return Err(Fault::invalid(format!(
            "a lease of {ttl}: etcd has whole seconds, 1 s ..= {} s",
            Ttl::MAX.as_millis() / 1_000
        )));
    }
    Ok(i64::from(millis / 1_000))
}

fn lost_its_place() -> Fault {
    Fault::unavailable("its lease ended while it waited, and its place in the queue with it")
}
