//! The guard of a grant.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::fence::Pass;
use palisade_core::{
    AuthorityId, ClientId, GrantId, GrantRef, Granted, LeaseId, LeaseKey, LockMode, LockName,
    Slots, Timestamp, Token, Ttl, WallTime, slot_key,
};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Loss, Lost};
use crate::hold::Hold;
use crate::keeper::Keeper;
use crate::notices::Notices;
use crate::retry::{Cleanup, CleanupTask, repeat_until};
use crate::schedule::{KeptGrant, KeptLease};
use crate::service::{AcquireRequest, Released, Renewal, SequencerAnswer};
use crate::state::Core;

/// A held lock. It is renewed in the background until this guard is released or dropped, or the lease is lost.
///
/// Only an acknowledged renewal moves the guard's deadline. It counts from before that renewal was sent, on a clock
/// that continues during suspend. One renewal serves all guards of a lease and names one of their grants at a time; if
/// a single grant is revoked, its guard learns of it when that grant's turn comes.
///
/// The process can pause right after [`Lease::check`], so a check alone protects nothing. Pass [`Lease::token`] to the
/// fence at the resource: first to claim, then with every read and write.
#[must_use = "dropping the guard releases the lock"]
pub struct Lease {
    kept: Arc<KeptGrant>,
    /// The lease, which may also carry the grants of other guards.
    lease: Arc<KeptLease>,
    keeper: Arc<Keeper>,
    facts: Facts,
    /// Set when nothing is left to release.
    settled: bool,
}

/// The facts that never change during a grant.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) authority: AuthorityId,
    pub(crate) client: ClientId,
    pub(crate) token: Token,
    pub(crate) mode: LockMode,
    pub(crate) shared: Option<GrantId>,
    pub(crate) slots: Slots,
    pub(crate) lease: Option<LeaseId>,
    pub(crate) ttl: Ttl,
    pub(crate) acquired_at: Option<WallTime>,
    pub(crate) waited: Duration,
    /// The text that the request gave.
    pub(crate) metadata: Option<Box<str>>,
}

impl Facts {
    /// The number that names the grant, as [`Granted::number`].
    pub(crate) fn number(&self) -> Token {
        self.shared.map_or(self.token, |id| id.0)
    }
}

impl Lease {
    /// Creates the guard of a grant whose acknowledged request was sent after `t0`. `lease` is the lease's entry in the
    /// renewal schedule, if it already has one.
    pub(crate) fn new(
        keeper: Arc<Keeper>,
        (lock, mode): (LockName, LockMode),
        request: &AcquireRequest,
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
            client: request.client.clone(),
            token: granted.token,
            mode,
            shared: granted.shared,
            slots: granted.slots,
            lease: Some(granted.lease),
            ttl: granted.ttl,
            acquired_at: Some(granted.acquired_at),
            waited: granted.waited.to_duration(),
            metadata: request.metadata.clone(),
        };
        Lease::until(keeper, grant, deadline, facts, lease.unwrap_or_default())
    }

    /// Creates the guard of a grant that is held until `deadline`, and adds it to its lease.
    pub(crate) fn until(
        keeper: Arc<Keeper>,
        grant: GrantRef,
        deadline: Timestamp,
        facts: Facts,
        lease: Arc<KeptLease>,
    ) -> Lease {
        let kept = Arc::new(KeptGrant::new(grant, Hold::new(deadline)));
        keeper.keep(&lease, &kept);
        Lease {
            kept,
            lease,
            keeper,
            facts,
            settled: false,
        }
    }

    /// Returns the fencing token, which the fence at the resource compares. It never changes, and stays readable after
    /// a loss; a fence refuses it once a later holder has claimed.
    #[must_use]
    pub fn token(&self) -> Token {
        self.facts.token
    }

    /// Returns the token with its authority and its lock, to claim with. A fence that refuses it as stale reports that to the
    /// authority, whose history then shows the late write ([`Options::report_refusals`](crate::Options::report_refusals)).
    /// The report is best effort: it never delays or fails the refused call, and the lease stays as it is.
    ///
    /// A resource that was claimed with it refuses the tokens of other authorities and other locks (rule F6). The pass of a
    /// semaphore's permits names no lock, because each slot is a resource of its own.
    ///
    /// ```
    /// # #[cfg(feature = "in-process")]
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use palisade_client::Client;
    /// use palisade_fence::memory::Guarded;
    ///
    /// let total = Guarded::new(0);
    /// let lease = Client::in_process()?.lock("total").acquire().await?;
    /// total.claim(lease.pass())?;
    /// total.write(lease.pass().doing("add an order"), None, |total| *total += 1)?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "in-process"))]
    /// # fn main() {}
    /// ```
    #[must_use]
    pub fn pass(&self) -> Pass<'_> {
        let pass = Pass::new(self.token()).by(self.authority());
        let pass = match self.mode() {
            LockMode::Permits(_) => pass,
            _ => pass.of(self.lock()),
        };
        pass.reporting_to(self)
    }

    /// Returns the number that identifies a shared grant, because overlapping readers share one fencing token. The
    /// grant from [`Lease::detach`] contains it.
    #[must_use]
    pub fn grant_id(&self) -> Option<GrantId> {
        self.facts.shared
    }

    /// Returns the mode: exclusive, beside other readers, or as permits of a semaphore.
    #[must_use]
    pub fn mode(&self) -> LockMode {
        self.facts.mode
    }

    /// Returns the slots that it holds of a semaphore; none for another kind of lock.
    #[must_use]
    pub fn slots(&self) -> Slots {
        self.facts.slots
    }

    /// Returns the resource id of each slot at the fence ([`slot_key`]); none for another kind of lock. Claim each with
    /// [`Lease::token`].
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

    /// Returns the id of the authority that granted it. A fence never compares the tokens of two authorities.
    #[must_use]
    pub fn authority(&self) -> &AuthorityId {
        &self.facts.authority
    }

    /// Returns the holder's client id, as listings show it.
    #[must_use]
    pub fn client_id(&self) -> &ClientId {
        &self.facts.client
    }

    /// Returns the lease's public id; `None` for an adopted one, whose text does not say it.
    #[must_use]
    pub fn lease_id(&self) -> Option<LeaseId> {
        self.facts.lease
    }

    /// Returns the lease's secret (`lock_token` in the HTTP interface). A program that knows it can renew and release
    /// the lease. Never send it to a resource.
    #[must_use]
    pub fn lease_key(&self) -> &LeaseKey {
        &self.kept.grant.key
    }

    /// Returns how long the lease lasts after each renewal.
    #[must_use]
    pub fn ttl(&self) -> Ttl {
        self.facts.ttl
    }

    /// Returns the authority's wall clock at the grant; `None` for an adopted one. It is for display only.
    #[must_use]
    pub fn acquired_at(&self) -> Option<WallTime> {
        self.facts.acquired_at
    }

    /// Returns how long the request waited in the lock's queue.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.facts.waited
    }

    /// Checks by the holder's own clock whether it may still act. This takes nanoseconds and no round trip.
    ///
    /// # Errors
    /// [`Lost`] once the deadline has passed or the lease has ended in any other way.
    pub fn check(&self) -> Result<(), Lost> {
        if self.kept.hold.holds(self.keeper.core().clock.now()) {
            Ok(())
        } else {
            Err(self.loss())
        }
    }

    /// Returns how long the holder may still act if no further renewal is acknowledged.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.kept
            .hold
            .remaining(self.keeper.core().clock.now())
            .to_duration()
    }

    /// Completes when the lease is lost. It does not borrow the guard, so it can move into a task.
    ///
    /// It completes at the deadline at the latest, even if the runtime that renewed the lease has ended.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let (kept, keeper) = (Arc::clone(&self.kept), Arc::clone(&self.keeper));
        let token = self.facts.token;
        async move {
            // Without a runtime nothing is renewed, and the wait below ends at the deadline.
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

    /// Returns how many requests are known to wait for the lock; 0 if none is known. A holder may yield to them.
    ///
    /// The number comes with each renewal, and within a second over an open connection, unless
    /// [`Options::notices`](crate::Options::notices) is off.
    #[must_use]
    pub fn wanted(&self) -> u32 {
        self.kept.waiters()
    }

    /// Returns the operator's reason for the revocation that ended this guard, if the authority told it over an open connection.
    #[must_use]
    pub fn revoked_because(&self) -> Option<&str> {
        self.kept.reason()
    }

    /// Returns the news of this guard, from its present state on: renewals that fail while the lease still holds, requests
    /// that wait, and the loss. It does not borrow the guard, so it can move into a task.
    pub fn notices(&self) -> Notices {
        // Without a runtime nothing is renewed, and the news is the loss at the deadline.
        let _ = self.keeper.start();
        Notices::new(&self.kept, &self.keeper, self.facts.token)
    }

    /// Returns a token that is cancelled when the lease is lost. Cancelling it yourself does not affect the lease.
    ///
    /// If this is called on a Tokio runtime, the token is cancelled at the deadline at the latest, like
    /// [`Lease::lost`].
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        // The renewal task may end with its own runtime; this task then announces the deadline. Without a runtime, only
        // `check` does.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(self.lost());
        }
        self.kept.hold.signal().child_token()
    }

    /// Asks the authority once more for a grant whose deadline has passed. If it acknowledges a renewal of this very
    /// grant, the guard holds again, with a deadline that counts from before this call.
    ///
    /// Call this only if it is certain that nothing was done under the grant since the deadline: its process was stopped
    /// before, for example. For everybody else the loss is final. [`Lease::lost`] and [`Lease::cancellation_token`]
    /// that announced the loss stay as they are; ask for new ones.
    ///
    /// # Errors
    /// [`Error::Lost`] if the authority says that the grant is over, or if the guard was lost in another way than by its
    /// deadline. Call again after a transient fault, and after [`Loss::Deadline`]: that answer came too late to be of use.
    pub async fn resume(&mut self) -> Result<(), Error> {
        let Err(lost) = self.check() else {
            return Ok(());
        };
        if lost.why != Loss::Deadline {
            return Err(lost.into());
        }
        let core = Arc::clone(self.keeper.core());
        let t0 = core.clock.now();
        let renewal = core.service.renew(self.kept.grant.clone(), None).await?;
        let why = match acknowledged(&core, t0, renewal, self.token()) {
            Ok(deadline) => {
                self.replace_hold(Hold::new(deadline));
                self.keeper.keep(&self.lease, &self.kept);
                return self.check().map_err(Error::from);
            }
            Err(why) => why,
        };
        let over = Hold::new(t0);
        over.lose(why);
        self.replace_hold(over);
        Err(self.loss().into())
    }

    /// Puts another hold in the place of a lost one, whose entry in the schedule is gone.
    fn replace_hold(&mut self, hold: Hold) {
        let grant = self.kept.grant.clone();
        self.kept = Arc::new(KeptGrant::new(grant, hold));
        self.lease = Arc::default();
    }

    /// Requests a sequencer: the grant as the authority signed it, for a fence that does not trust bare numbers. It
    /// covers this lock only; each lock of a set has its own. Send it only to the resource: anyone who has it can
    /// present it until a higher token comes.
    ///
    /// # Errors
    /// Faults only; [`Fault::Unsupported`](crate::Fault::Unsupported) from an authority that does not sign.
    pub async fn sequencer(&self) -> Result<SequencerAnswer, Error> {
        let core = self.core();
        let until = core.clock.now().after(core.patience);
        let asked = repeat_until(core, until, || core.service.sequencer(self.grant().clone()));
        asked.await.map_err(Error::from)
    }

    /// Releases the lock and returns the authority's answer. With any answer, the guard counts as lost from the call
    /// on, before the release is sent.
    ///
    /// After every [`Released`] the grant is over; [`Released::Ended`] says how it had ended before.
    ///
    /// # Errors
    /// A fault if no answer came within [`Options::patience`](crate::Options::patience). The release then continues in
    /// the background, as it does when this future is dropped. [`Error::Lost`], and nothing is sent, if the lease was
    /// handed over.
    pub async fn release(mut self) -> Result<Released, Error> {
        if self.settled {
            return Err(self.loss().into());
        }
        self.stop(Loss::Released);
        let core = Arc::clone(self.keeper.core());
        let until = core.clock.now().after(core.patience);
        let grant = &self.kept.grant;
        let released = repeat_until(&core, until, || core.service.release(grant.clone())).await?;
        self.settled = true;
        Ok(released)
    }

    /// Stops renewing without releasing, and returns the grant for another program to renew or release. Without either,
    /// the lease expires. In this process the guard counts as released.
    #[must_use = "the grant can only be renewed or released with this"]
    pub fn detach(mut self) -> GrantRef {
        self.stop(Loss::Released);
        self.settled = true;
        self.kept.grant.clone()
    }

    pub(crate) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.keeper.core()
    }

    /// Returns the grant: its lock, key and number.
    pub(crate) fn grant(&self) -> &GrantRef {
        &self.kept.grant
    }

    /// Returns this guard's lease if this keeper renews it.
    pub(crate) fn kept_by(&self, keeper: &Arc<Keeper>) -> Option<Arc<KeptLease>> {
        Arc::ptr_eq(&self.keeper, keeper).then(|| Arc::clone(&self.lease))
    }

    /// Returns the grant and its deadline.
    pub(crate) fn kept(&self) -> &Arc<KeptGrant> {
        &self.kept
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether this guard's lease has a guard that holds and is none of `these`.
    pub(crate) fn has_others_than(&self, these: &[Lease]) -> bool {
        let is_one =
            |kept: &Arc<KeptGrant>| these.iter().any(|lease| Arc::ptr_eq(&lease.kept, kept));
        self.lease.has_others_than(is_one)
    }

    /// Returns the loss if the hold ended for another reason than `why`.
    pub(crate) fn ended_by(&self, why: Loss) -> Result<(), Lost> {
        match self.kept.hold.why() {
            Some(ended) if ended == why => Ok(()),
            _ => Err(self.loss()),
        }
    }

    /// Leaves renewals and the release to another process. The hold has ended.
    pub(crate) fn hand_over(&mut self) {
        self.keeper.forget(&self.lease);
        self.settled = true;
    }

    /// Marks the guard as released. Its lease may still be renewed for other grants.
    pub(crate) fn no_longer_holds(&self) {
        self.kept.hold.lose(Loss::Released);
    }

    /// Marks the guard as lost and stops renewing its grant.
    fn stop(&self, why: Loss) {
        self.kept.hold.lose(why);
        self.keeper.forget(&self.lease);
    }

    fn loss(&self) -> Lost {
        loss(&self.kept, self.facts.token)
    }

    /// Whether the authority has reported that the grant is over.
    fn is_over(&self) -> bool {
        self.kept
            .hold
            .why()
            .is_some_and(Loss::is_the_authoritys_word)
    }
}

/// Returns the deadline of a grant with this token after the answer to a renewal that was sent at `t0`, or the reason why
/// the grant is over.
pub(crate) fn acknowledged(
    core: &Core,
    t0: Timestamp,
    answer: Renewal,
    token: Token,
) -> Result<Timestamp, Loss> {
    match answer {
        Renewal::Renewed(renewed) if renewed.token == token => {
            Ok(core.caution.deadline(t0, renewed.valid_for))
        }
        Renewal::Renewed(other) => Err(Loss::Stale {
            highest: other.token,
        }),
        Renewal::Ended(how) => Err(Loss::Ended(how)),
        Renewal::NotHeld => Err(Loss::NotHeld),
        Renewal::Stale { highest } => Err(Loss::Stale { highest }),
    }
}

pub(crate) fn loss(kept: &KeptGrant, token: Token) -> Lost {
    let why = kept.hold.why().unwrap_or(Loss::Deadline);
    Lost {
        lock: kept.grant.lock.clone(),
        token,
        why,
    }
}

impl Drop for Lease {
    /// Releases in the background. Call [`Lease::release`] to be sure that it arrived: a process that exits right after
    /// the drop may exit before the release is sent, and the lease then lasts until it expires.
    fn drop(&mut self) {
        if self.settled || self.is_over() {
            return self.keeper.forget(&self.lease);
        }
        let ttl = self.facts.ttl.span();
        self.stop(Loss::Released);
        // A renewal in flight may still extend the lease by a full time to live, and the authority's clock may run
        // slower.
        let until = self.keeper.core().clock.now().after(ttl.plus(ttl));
        self.keeper.send(Cleanup {
            task: CleanupTask::Release(self.kept.grant.clone()),
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
