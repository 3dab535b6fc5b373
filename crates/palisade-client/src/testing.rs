//! A lock server in memory with levers, for the unit tests of programs that use this crate. It needs no binary, no
//! socket and no folder:
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), palisade_client::Error> {
//! use palisade_client::testing::MemoryServer;
//!
//! let server = MemoryServer::new()?;
//! let client = server.client()?; // for the program under test
//! let lease = client.lock("orders").ttl(std::time::Duration::from_millis(300)).acquire().await?;
//! server.revoke("orders", "the test").await?; // and see what the program does
//! lease.lost().await;
//! # Ok(())
//! # }
//! ```
//!
//! The client is the real one, with its renewals, deadlines and refusals, and the authority is the server's own pipeline
//! ([`InProcess`]). Nothing survives the process, everybody may do everything, and there are no certificates, clusters,
//! quotas, signed tokens or audit files.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use palisade_core::{
    AuthorityId, Change, Ending, GrantRef, Holder, LockName, LockView, RequestId, Token, Ttl,
};
use tokio::sync::watch;

use crate::client::Client;
use crate::clock::BootClock;
use crate::error::Error;
use crate::fault::Fault;
use crate::in_process::InProcess;
use crate::lease::Lease;
use crate::options::Options;
use crate::service::{
    AcquireRequest, Acquired, Cursor, Events, GrantNews, Listened, Listening, LockService, Notice,
    Operation, Page, Proclamation, Released, Renewal, Reopened, Resized, Revocation,
    SequencerAnswer, Status,
};

/// So long is a lease of another client, which ends only by a lever or its own release.
const HELD_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// An authority in memory. Its clients share it, and it has nothing to close.
pub struct MemoryServer {
    double: Arc<Double>,
    /// A client that no lever cuts off.
    inside: Client,
}

impl MemoryServer {
    /// Starts an authority.
    ///
    /// # Errors
    /// [`Fault::Unavailable`] if its thread could not be started.
    pub fn new() -> Result<MemoryServer, Error> {
        MemoryServer::on(Arc::new(InProcess::start()?))
    }

    /// Adds the levers to an authority, for example one with a manual clock ([`InProcess::with_manual_clock`]).
    ///
    /// # Errors
    /// [`Fault::Unavailable`] if the system has no random bytes.
    pub fn on(authority: Arc<InProcess>) -> Result<MemoryServer, Error> {
        let inside = Client::new(authority.clone())?;
        let double = Double {
            authority,
            state: watch::Sender::new(Reachability::Up),
            seen: Arc::default(),
        };
        Ok(MemoryServer {
            double: Arc::new(double),
            inside,
        })
    }

    /// Returns a client of this server.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn client(&self) -> Result<Client, Error> {
        self.client_with(&Options::default())
    }

    /// Returns a client of this server with the given settings; those of a connection have no effect.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn client_with(&self, options: &Options) -> Result<Client, Error> {
        Client::with(self.service(), Arc::new(BootClock), options)
    }

    /// Returns what its clients ask, for [`Client::with`] and a clock of the test's own.
    #[must_use]
    pub fn service(&self) -> Arc<dyn LockService> {
        self.double.clone()
    }

    /// Ends every grant of a lock, of readers the oldest 64, as if no renewal had come in time. Its holder learns of it
    /// from its next renewal, after a third of its time to live, so tests give the lock a short one.
    ///
    /// # Errors
    /// [`Fault::Invalid`] if this is not the name of a lock.
    pub async fn expire(&self, lock: &str) -> Result<(), Error> {
        self.end_all(lock, "", true).await
    }

    /// Takes a lock from everybody who holds it, as `palisade break` does. A holder learns of it as with
    /// [`MemoryServer::expire`].
    ///
    /// # Errors
    /// As [`MemoryServer::expire`].
    pub async fn revoke(&self, lock: &str, reason: &str) -> Result<(), Error> {
        self.end_all(lock, reason, false).await
    }

    async fn end_all(&self, lock: &str, reason: &str, expire: bool) -> Result<(), Error> {
        let view = self.inside.show(lock).await?;
        let alone = view.holder.map(|holder| holder.token);
        let mut numbers: Vec<_> = view.readers.iter().map(|reader| reader.id.0).collect();
        if numbers.is_empty() {
            numbers.extend(alone);
        }
        for number in numbers {
            if expire {
                let ended = (view.lock.clone(), number);
                self.double.seen().expired.insert(ended);
            }
            self.inside.revoke(lock, number, reason).await?;
        }
        Ok(())
    }

    /// Gives a free lock to another client, which keeps it until the guard is released or dropped, or a lever ends it.
    ///
    /// # Errors
    /// [`Error::Held`] and the other denials if it is not free.
    pub async fn hold(&self, lock: &str, client: &str) -> Result<Lease, Error> {
        // The same client id would take its own grant over.
        let view = self.inside.show(lock).await?;
        if let Some(holder) = view.holder {
            let lock = view.lock;
            return Err(Error::Held { lock, holder });
        }
        let request = self.inside.lock(lock).client_id(client).ttl(HELD_FOR);
        let lease = request.wait(Duration::ZERO).acquire().await?;
        self.double.saw_grant(lease.lock(), lease.token());
        Ok(lease)
    }

    /// From now on every request is answered that the server is not available, and nothing happens. The outcome of a
    /// request that waits is unknown to its client.
    pub fn down(&self) {
        self.double.switch(Reachability::Down);
    }

    /// From now on nothing is answered. Requests that still wait for their answers get them after [`MemoryServer::up`].
    pub fn stall(&self) {
        self.double.switch(Reachability::Stalled);
    }

    /// Ends [`MemoryServer::down`] and [`MemoryServer::stall`].
    pub fn up(&self) {
        self.double.switch(Reachability::Up);
    }

    /// Returns all tokens under which a lock was granted to a client of this server so far, in order.
    #[must_use]
    pub fn tokens(&self, lock: &str) -> Vec<Token> {
        let seen = self.double.seen();
        let tokens = LockName::new(lock).ok();
        let tokens = tokens.and_then(|lock| seen.tokens.get(&lock));
        tokens.into_iter().flatten().copied().collect()
    }

    /// Returns the client that has a lock now, the oldest of several; `None` if it is free.
    ///
    /// # Errors
    /// As [`MemoryServer::expire`].
    pub async fn holder(&self, lock: &str) -> Result<Option<Holder>, Error> {
        Ok(self.inside.show(lock).await?.holder)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reachability {
    Up,
    Down,
    Stalled,
}

/// The way from the clients to the authority, with the levers in it.
struct Double {
    authority: Arc<InProcess>,
    state: watch::Sender<Reachability>,
    seen: Arc<Mutex<GrantedTokens>>,
}

#[derive(Default)]
struct GrantedTokens {
    tokens: BTreeMap<LockName, BTreeSet<Token>>,
    /// The grants that the test let expire, by lock and number. The authority has revoked them.
    expired: HashSet<(LockName, Token)>,
}

impl GrantedTokens {
    /// Returns how a grant ended. The authority says of an expired one, too, that it was revoked.
    fn how(&self, how: Ending, lock: &LockName, number: Token) -> Ending {
        match how {
            Ending::Revoked if self.expired.contains(&(lock.clone(), number)) => Ending::Expired,
            how => how,
        }
    }
}

fn locked(seen: &Mutex<GrantedTokens>) -> MutexGuard<'_, GrantedTokens> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Double {
    fn seen(&self) -> MutexGuard<'_, GrantedTokens> {
        locked(&self.seen)
    }

    fn switch(&self, state: Reachability) {
        self.state.send_replace(state);
    }

    fn saw_grant(&self, lock: &LockName, token: Token) {
        let mut seen = self.seen();
        seen.tokens.entry(lock.clone()).or_default().insert(token);
    }

    fn how(&self, how: Ending, lock: &LockName, number: Option<Token>) -> Ending {
        match number {
            Some(number) => self.seen().how(how, lock, number),
            None => how,
        }
    }

    /// Carries an operation out as far as the levers let it.
    fn pass<'a, T: Send + 'a>(&'a self, operation: Operation<'a, T>) -> Operation<'a, T> {
        Box::pin(async move {
            let mut state = self.state.subscribe();
            answering(&mut state).await;
            if *state.borrow() == Reachability::Down {
                return Err(Fault::unavailable("the test took the server down"));
            }
            let answer = tokio::select! {
                biased;
                answer = operation => answer,
                () = down(&mut state) => Err(Fault::unknown_outcome("the test took the server down")),
            };
            answering(&mut state).await;
            answer
        })
    }
}

/// The events of a watch, which breaks when the server goes down.
struct BreakableWatch {
    events: Events,
    state: watch::Receiver<Reachability>,
    seen: Arc<Mutex<GrantedTokens>>,
}

impl BreakableWatch {
    async fn next(mut self) -> Option<(Result<Notice, Fault>, BreakableWatch)> {
        let mut next = tokio::select! {
            biased;
            () = down(&mut self.state) => return None,
            next = self.events.next() => next?,
        };
        answering(&mut self.state).await;
        if let Ok(Notice::Change(event)) = &mut next
            && let Change::Ended { how, reason, .. } = &mut event.change
        {
            let number = event.shared.map_or(event.token, |id| id.0);
            let told = locked(&self.seen).how(*how, &event.lock, number);
            if told != *how {
                (*how, *reason) = (told, None);
            }
        }
        Some((next, self))
    }
}

/// Waits while nothing is answered.
async fn answering(state: &mut watch::Receiver<Reachability>) {
    // The sender lives as long as the double, which its callers hold.
    let _ = state
        .wait_for(|state| *state != Reachability::Stalled)
        .await;
}

async fn down(state: &mut watch::Receiver<Reachability>) {
    if state
        .wait_for(|state| *state == Reachability::Down)
        .await
        .is_err()
    {
        std::future::pending().await
    }
}

/// News as the levers let it through. It ends when the server goes down.
struct DoubledListening {
    listening: Box<dyn Listening>,
    state: watch::Receiver<Reachability>,
    /// Completes when the state changes.
    changed: Pin<Box<dyn Future<Output = ()> + Send>>,
    seen: Arc<Mutex<GrantedTokens>>,
}

impl DoubledListening {
    fn new(double: &Double, listening: Box<dyn Listening>) -> DoubledListening {
        let state = double.state.subscribe();
        DoubledListening {
            listening,
            changed: changed(&state),
            state,
            seen: Arc::clone(&double.seen),
        }
    }
}

fn changed(state: &watch::Receiver<Reachability>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let mut state = state.clone();
    let seen = *state.borrow_and_update();
    Box::pin(async move {
        // The sender lives as long as the double.
        let _ = state.wait_for(|state| *state != seen).await;
    })
}

impl Listening for DoubledListening {
    fn name(&mut self, grants: Vec<Listened>) {
        self.listening.name(grants);
    }

    fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<GrantNews, Fault>>> {
        while self.changed.as_mut().poll(cx).is_ready() {
            self.changed = changed(&self.state);
        }
        let state = *self.state.borrow();
        match state {
            Reachability::Down => return Poll::Ready(None),
            Reachability::Stalled => return Poll::Pending,
            Reachability::Up => {}
        }
        let mut news = ready!(self.listening.poll_news(cx));
        if let Some(Ok(GrantNews::Ended {
            lock,
            number,
            how: Some(how),
            reason,
        })) = &mut news
        {
            let told = locked(&self.seen).how(*how, lock, *number);
            if told != *how {
                (*how, *reason) = (told, None);
            }
        }
        Poll::Ready(news)
    }
}

impl LockService for Double {
    fn authority(&self) -> &AuthorityId {
        self.authority.authority()
    }

    fn outlives_runtimes(&self) -> bool {
        self.authority.outlives_runtimes()
    }

    fn listen(&self) -> Option<Box<dyn Listening>> {
        let listening = self.authority.listen()?;
        Some(Box::new(DoubledListening::new(self, listening)))
    }

    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired> {
        let locks = std::iter::once(&request.lock).chain(&*request.also);
        let locks: Vec<_> = locks.cloned().collect();
        let asked = self.authority.acquire(request);
        self.pass(Box::pin(async move {
            let acquired = asked.await?;
            if let Acquired::Granted(granted) = &acquired {
                for lock in &locks {
                    self.saw_grant(lock, granted.token);
                }
            }
            Ok(acquired)
        }))
    }

    fn renew(&self, grant: GrantRef, ttl: Option<Ttl>) -> Operation<'_, Renewal> {
        let (lock, number) = (grant.lock.clone(), grant.token);
        let asked = self.authority.renew(grant, ttl);
        self.pass(Box::pin(async move {
            Ok(match asked.await? {
                Renewal::Ended(how) => Renewal::Ended(self.how(how, &lock, number)),
                renewal => renewal,
            })
        }))
    }

    fn release(&self, grant: GrantRef) -> Operation<'_, Released> {
        let (lock, number) = (grant.lock.clone(), grant.token);
        let asked = self.authority.release(grant);
        self.pass(Box::pin(async move {
            Ok(match asked.await? {
                Released::Ended(how) => Released::Ended(self.how(how, &lock, number)),
                released => released,
            })
        }))
    }

    fn proclaim(&self, grant: GrantRef, value: &str) -> Operation<'_, Proclamation> {
        let (lock, number) = (grant.lock.clone(), grant.token);
        let asked = self.authority.proclaim(grant, value);
        self.pass(Box::pin(async move {
            Ok(match asked.await? {
                Proclamation::Ended(how) => Proclamation::Ended(self.how(how, &lock, number)),
                proclaimed => proclaimed,
            })
        }))
    }

    fn sequencer(&self, grant: GrantRef) -> Operation<'_, SequencerAnswer> {
        self.pass(self.authority.sequencer(grant))
    }

    fn abandon(&self, request: RequestId) -> Operation<'_, ()> {
        self.pass(self.authority.abandon(request))
    }

    fn show(&self, lock: LockName) -> Operation<'_, LockView> {
        self.pass(self.authority.show(lock))
    }

    fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Operation<'_, Page> {
        self.pass(self.authority.list(prefix, after, limit))
    }

    fn watch(&self, prefix: &str, after: Option<u64>) -> Operation<'_, Events> {
        let asked = self.authority.watch(prefix, after);
        self.pass(Box::pin(async move {
            let told = BreakableWatch {
                events: asked.await?,
                state: self.state.subscribe(),
                seen: Arc::clone(&self.seen),
            };
            Ok(Box::pin(stream::unfold(told, BreakableWatch::next)) as Events)
        }))
    }

    fn revoke(&self, lock: LockName, token: Token, reason: &str) -> Operation<'_, Revocation> {
        self.pass(self.authority.revoke(lock, token, reason))
    }

    fn reopen(&self, lock: LockName, reason: &str) -> Operation<'_, Reopened> {
        self.pass(self.authority.reopen(lock, reason))
    }

    fn resize(&self, lock: LockName, permits: u32) -> Operation<'_, Resized> {
        self.pass(self.authority.resize(lock, permits))
    }

    fn status(&self) -> Operation<'_, Status> {
        self.pass(self.authority.status())
    }
}
