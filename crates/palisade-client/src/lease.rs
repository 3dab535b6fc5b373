//! The guard of a grant.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{
    AuthorityId, ClientId, GrantId, GrantRef, Granted, LeaseId, LeaseKey, LockMode, LockName,
    Slots, Timestamp, Token, Ttl, WallTime, slot_key,
};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Loss, Lost};
use crate::hold::Hold;
use crate::keeper::Keeper;
use crate::retry::{Cleanup, Task, repeat_until};
use crate::schedule::{Kept, KeptLease};
use crate::service::{Released, Sequencer};
use crate::state::Core;

/// A lock that is held, and renewed in the background, until this guard is released or dropped, or
/// the lease is lost.
///
/// The guard never extends what it may believe on anything but an acknowledged renewal of its lease,
/// counted from before that renewal was sent, on a clock that does not stop in suspend. One renewal serves
/// all guards of a lease and names their grants in turn; a guard whose grant alone was revoked learns it
/// when its turn comes.
///
/// A pause can fall between [`Lease::check`] and whatever is done next, so a check alone protects
/// nothing: pass [`Lease::token`] to the fence at the resource, first to claim, then with every read
/// and write.
#[must_use = "dropping the guard releases the lock"]
pub struct Lease {
    kept: Arc<Kept>,
    /// The lease that is renewed, perhaps with other guards' grants.
    lease: Arc<KeptLease>,
    keeper: Arc<Keeper>,
    facts: Facts,
    /// Nothing is left to release.
    settled: bool,
}

/// The facts that stay for the life of a grant.
#[derive(Clone, Debug)]
struct Facts {
    authority: AuthorityId,
    client: ClientId,
    token: Token,
    mode: LockMode,
    shared: Option<GrantId>,
    slots: Slots,
    lease: LeaseId,
    ttl: Ttl,
    acquired_at: WallTime,
    waited: Duration,
}

impl Lease {
    /// Takes charge of a grant whose acknowledged request was sent after `t0`. `lease` is what is renewed
    /// already for the grant's lease, if anything is.
    pub(crate) fn new(
        keeper: Arc<Keeper>,
        (lock, mode): (LockName, LockMode),
        client: ClientId,
        t0: Timestamp,
        granted: &Granted,
        lease: Option<Arc<KeptLease>>,
    ) -> Lease {
        let core = keeper.core();
        let deadline = core.caution.deadline(t0, granted.valid_for);
        let grant = GrantRef {
            lock,
            key: granted.key,
            token: Some(granted.number()),
        };
        let facts = Facts {
            authority: core.service.authority().clone(),
            client,
            token: granted.token,
            mode,
            shared: granted.shared,
            slots: granted.slots,
            lease: granted.lease,
            ttl: granted.ttl,
            acquired_at: granted.acquired_at,
            waited: granted.waited.to_duration(),
        };
        let hold = Hold::new(deadline);
        let (kept, lease) = (Arc::new(Kept { grant, hold }), lease.unwrap_or_default());
        keeper.keep(&lease, &kept);
        Lease {
            kept,
            lease,
            keeper,
            facts,
            settled: false,
        }
    }

    /// The fencing token: the number the resource's fence compares. It never changes, and stays
    /// readable after a loss, when a later holder's claim makes every fence refuse it.
    #[must_use]
    pub fn token(&self) -> Token {
        self.facts.token
    }

    /// The number that names the grant, if it is shared: readers of one phase have one fencing token. It is in the
    /// grant that [`Lease::detach`] returns.
    #[must_use]
    pub fn grant_id(&self) -> Option<GrantId> {
        self.facts.shared
    }

    /// Whether it is held alone, together with other readers, or as permits of a semaphore.
    #[must_use]
    pub fn mode(&self) -> LockMode {
        self.facts.mode
    }

    /// The slots of a semaphore that it holds; none for another kind of lock.
    #[must_use]
    pub fn slots(&self) -> Slots {
        self.facts.slots
    }

    /// The resource ids under which a fence keeps the ratchets of its slots ([`slot_key`]); none for another kind of
    /// lock. Each is claimed with [`Lease::token`].
    pub fn slot_keys(&self) -> impl Iterator<Item = LockName> {
        // The authority grants no slot whose key would be too long.
        self.slots()
            .iter()
            .filter_map(|slot| slot_key(self.lock(), slot).ok())
    }

    /// The lock.
    #[must_use]
    pub fn lock(&self) -> &LockName {
        &self.kept.grant.lock
    }

    /// Which authority granted it. A fence is bound to it: tokens of two authorities are never
    /// compared.
    #[must_use]
    pub fn authority(&self) -> &AuthorityId {
        &self.facts.authority
    }

    /// The client id of its holder, as listings show it.
    #[must_use]
    pub fn client_id(&self) -> &ClientId {
        &self.facts.client
    }

    /// The lease's public id.
    #[must_use]
    pub fn lease_id(&self) -> LeaseId {
        self.facts.lease
    }

    /// The lease's secret (`lock_token` in the HTTP interface). A program that has it may renew and release.
    /// Never send it to a resource.
    #[must_use]
    pub fn lease_key(&self) -> &LeaseKey {
        &self.kept.grant.key
    }

    /// How long the lease lasts from each renewal.
    #[must_use]
    pub fn ttl(&self) -> Ttl {
        self.facts.ttl
    }

    /// The authority's wall clock at the grant. For people; it decides nothing.
    #[must_use]
    pub fn acquired_at(&self) -> WallTime {
        self.facts.acquired_at
    }

    /// How long the request stood in the lock's queue.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.facts.waited
    }

    /// Whether the holder may still act, by its own clock at this moment. Costs nanoseconds and no
    /// round trip.
    ///
    /// # Errors
    /// [`Lost`] once the deadline has passed, or the lease ended in any other way.
    pub fn check(&self) -> Result<(), Lost> {
        if self.kept.hold.holds(self.keeper.core().clock.now()) {
            Ok(())
        } else {
            Err(self.loss())
        }
    }

    /// How long the holder may still act if no further renewal is acknowledged.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.kept
            .hold
            .remaining(self.keeper.core().clock.now())
            .to_duration()
    }

    /// Completes when the lease is lost. It does not borrow the guard, so it can move into a task.
    ///
    /// It comes at the deadline at the latest, also if the runtime that renewed the lease has ended.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let (kept, keeper) = (Arc::clone(&self.kept), Arc::clone(&self.keeper));
        let token = self.facts.token;
        async move {
            // Without a runtime for it nothing is renewed, and the deadline below stays.
            let _ = keeper.start();
            let clock = &keeper.core().clock;
            while let Some(deadline) = kept.hold.deadline() {
                tokio::select! {
                    () = kept.hold.signal().cancelled() => break,
                    () = clock.sleep_until(deadline) => drop(kept.hold.holds(clock.now())),
                }
            }
            loss(&kept, token)
        }
    }

    /// A token that is cancelled when the lease is lost. Cancelling it does nothing to the lease.
    ///
    /// Called on a Tokio runtime, it comes at the deadline at the latest, as [`Lease::lost`] does.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        // The task that renews may end with its own runtime, and then this one announces the deadline. Where there is
        // no runtime, `check` still says it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(self.lost());
        }
        self.kept.hold.signal().child_token()
    }

    /// Asks the authority to sign what this guard holds: a sequencer, for a fence that believes no bare number. It is for
    /// this lock alone; a set has one for each of its locks. Send it only to the resource: who has it can present it until a
    /// higher token comes.
    ///
    /// # Errors
    /// Faults only; [`Fault::Unsupported`](crate::Fault::Unsupported) from an authority that signs nothing.
    pub async fn sequencer(&self) -> Result<Sequencer, Error> {
        let core = self.core();
        let until = core.clock.now().after(core.patience);
        let asked = repeat_until(core, until, || core.service.sequencer(self.grant().clone()));
        asked.await.map_err(Error::from)
    }

    /// Gives the lock up and reports what the authority said. From the call on, whatever the answer,
    /// this process does not hold: that is recorded before the release is sent.
    ///
    /// Every [`Released`] is an end of the lease; [`Released::Ended`] tells how it had ended before.
    ///
    /// # Errors
    /// A fault if there was no answer for the client's patience. The release goes on in the
    /// background then, as it does when this future is dropped.
    pub async fn release(mut self) -> Result<Released, Error> {
        self.stop(Loss::Released);
        let core = Arc::clone(self.keeper.core());
        let until = core.clock.now().after(core.patience);
        let grant = &self.kept.grant;
        let released = repeat_until(&core, until, || core.service.release(grant.clone())).await?;
        self.settled = true;
        Ok(released)
    }

    /// Stops renewing without releasing: the lock stays with the program that gets the secret, until the
    /// lease expires. For this process it counts as given up.
    #[must_use = "the grant can only be renewed or released with this"]
    pub fn detach(mut self) -> GrantRef {
        self.stop(Loss::Released);
        self.settled = true;
        self.kept.grant.clone()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.keeper.core()
    }

    /// The grant, by name and secret.
    pub(crate) fn grant(&self) -> &GrantRef {
        &self.kept.grant
    }

    /// What is renewed for this guard, if it is this keeper that does it.
    pub(crate) fn kept_by(&self, keeper: &Arc<Keeper>) -> Option<Arc<KeptLease>> {
        Arc::ptr_eq(&self.keeper, keeper).then(|| Arc::clone(&self.lease))
    }

    /// What is known of the grant.
    pub(crate) fn kept(&self) -> &Arc<Kept> {
        &self.kept
    }

    /// Not held from now on by this guard; its lease may still be.
    pub(crate) fn no_longer_holds(&self) {
        self.kept.hold.lose(Loss::Released);
    }

    /// Not held from now on, and not renewed.
    fn stop(&self, why: Loss) {
        self.kept.hold.lose(why);
        self.keeper.forget(&self.lease);
    }

    fn loss(&self) -> Lost {
        loss(&self.kept, self.facts.token)
    }

    /// Whether the authority said that nothing is left of the grant.
    fn is_over(&self) -> bool {
        self.kept
            .hold
            .why()
            .is_some_and(Loss::is_the_authoritys_word)
    }
}

fn loss(kept: &Kept, token: Token) -> Lost {
    let why = kept.hold.why().unwrap_or(Loss::Deadline);
    Lost {
        lock: kept.grant.lock.clone(),
        token,
        why,
    }
}

impl Drop for Lease {
    /// Releases in the background. Call [`Lease::release`] to know that it arrived; a process that
    /// exits right after the drop may be gone before the release is, and then the lease expires.
    fn drop(&mut self) {
        if self.settled || self.is_over() {
            return self.keeper.forget(&self.lease);
        }
        let ttl = self.facts.ttl.span();
        self.stop(Loss::Released);
        // A renewal under way may still make it last a full time to live, on a clock that differs.
        let until = self.keeper.core().clock.now().after(ttl.plus(ttl));
        self.keeper.send(Cleanup {
            task: Task::Release(self.kept.grant.clone()),
            until,
        });
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("lock", &self.kept.grant.lock)
            .field("token", &self.facts.token)
            .field("client", &self.facts.client)
            .field("remaining", &self.remaining())
            .field("lost", &self.kept.hold.why())
            .finish_non_exhaustive()
    }
}
