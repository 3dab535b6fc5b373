//! The guard of a job: a lease with a fencing token, or a lock without one.
//!
//! ```text
//!   --authority redlock://…   ─► Tokenless   no PALISADE_FENCING_TOKEN, and a warning that says so
//!   --authority anything else ─► Fenced
//! ```

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use palisade_authorities::redlock::{self, Redlock};
use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::{Ending, Error, Fault, Lease, LeaseNotice, Notices, Released};
use palisade_core::{LockName, Span, Timestamp, Ttl};
use palisade_proto::Code;

use super::deadline::GuardReport;
use super::patience::{self, margin, refused};
use super::watchdog::ReleaseCommand;
use crate::cli::grant_options;
use crate::cli::{
    Failure, LOST, LockArgs, NOT_ACQUIRED, OnDeadline, Out, RunArgs, lock_list, signed, slot_list,
};

/// How long to wait at the end for requests whose answers no longer matter.
pub(super) const SHUTDOWN_WAIT: Duration = Duration::from_millis(500);

/// A lock that is held and renewed in the background until it is lost.
pub(super) enum RunGuard {
    /// One lease, with a guard for each of its locks; the first is the one that was named first.
    Fenced(Lease, Vec<Lease>),
    Tokenless {
        guard: redlock::RedlockGuard,
        ttl: Ttl,
    },
}

impl RunGuard {
    pub(super) async fn acquire(args: &RunArgs, out: Out) -> Result<RunGuard, Failure> {
        if args.lock_args.connection.is_redlock() {
            return tokenless(args, out).await;
        }
        let mut leases = patience::acquire(args, out).await?;
        Ok(RunGuard::Fenced(leases.remove(0), leases))
    }

    /// The lock.
    pub(super) fn lock(&self) -> &LockName {
        match self {
            RunGuard::Fenced(lease, _) => lease.lock(),
            RunGuard::Tokenless { guard, .. } => guard.lock(),
        }
    }

    /// The variables of a job and its hook.
    pub(super) fn environment(&self, url: &str) -> Vec<(&'static str, String)> {
        let deadline = self.until();
        let mut variables = vec![
            ("PALISADE_LOCK", self.lock().to_string()),
            ("PALISADE_AUTHORITY", url.to_owned()),
            (
                "PALISADE_DEADLINE_MS",
                (deadline.as_nanos() / 1_000_000).to_string(),
            ),
        ];
        if let RunGuard::Fenced(lease, others) = self {
            variables.extend(lock_list(all(lease, others)).map(|locks| ("PALISADE_LOCKS", locks)));
            variables.push(("PALISADE_FENCING_TOKEN", lease.token().to_string()));
            variables.push(("PALISADE_AUTHORITY_ID", lease.authority().to_string()));
            let grant_id = lease.grant_id().map(|id| id.0.to_string());
            variables.extend(grant_id.map(|id| ("PALISADE_GRANT_ID", id)));
            variables.extend(slot_list(lease.slots()).map(|slots| ("PALISADE_SLOTS", slots)));
        }
        variables
    }

    /// The tokens of all locks as the authority signs them, one on each line.
    pub(super) async fn sequencers(&self, url: &str) -> Result<String, Failure> {
        let mut lines = Vec::new();
        if let RunGuard::Fenced(lease, others) = self {
            for lease in all(lease, others) {
                let answer = lease.sequencer().await;
                let answer = answer.map_err(|error| Failure::of(&error, url))?;
                lines.push(signed(lease.lock(), Some(lease.token()), answer)?);
            }
        }
        Ok(lines.join("\n"))
    }

    /// The command that releases the lock if this process is killed. It is empty with a lock-delay, which is meant for
    /// exactly such an end; a release would skip it.
    pub(super) fn release_command(&self, lock_args: &LockArgs) -> ReleaseCommand {
        let RunGuard::Fenced(lease, others) = self else {
            return ReleaseCommand::default();
        };
        if lock_args.options.lock_delay.is_some() {
            return ReleaseCommand::default();
        }
        let grants = all(lease, others).map(|lease| {
            let number = lease.grant_id().map_or(lease.token(), |id| id.0);
            let secret = lease.lease_key().to_hex();
            (lease.lock().to_string(), number.to_string(), secret)
        });
        ReleaseCommand {
            environment: lock_args.connection.environment(),
            flags: lock_args.connection.flags(),
            grants: grants.collect(),
        }
    }

    /// Until when the job may run; an error if the lock is lost.
    pub(super) fn deadline(&self) -> Result<Timestamp, Failure> {
        match self.state() {
            (_, GuardReport::Until(deadline)) => Ok(deadline),
            (_, GuardReport::Lost) => Err(self.loss()),
        }
    }

    /// The time, and the state of the guard at that time. A guard that is lost by its deadline is so at no earlier time.
    pub(super) fn state(&self) -> (Timestamp, GuardReport) {
        let (now, until) = (BootClock.now(), self.until());
        let held = match self {
            RunGuard::Fenced(lease, others) => {
                all(lease, others).all(|lease| lease.check().is_ok())
            }
            RunGuard::Tokenless { guard, .. } => guard.is_held(),
        };
        if held {
            (now, GuardReport::Until(until))
        } else {
            // Read again: the deadline may have come after the first reading.
            (BootClock.now(), GuardReport::Lost)
        }
    }

    /// Reads the clock first: a later reading would postpone the deadline.
    fn until(&self) -> Timestamp {
        let now = BootClock.now();
        match self {
            RunGuard::Fenced(lease, others) => {
                let left = all(lease, others).map(Lease::remaining).min();
                now.after(left.unwrap_or_default().into())
            }
            RunGuard::Tokenless { guard, ttl } => {
                let left = Span::from(guard.remaining()).as_nanos();
                let left = left.saturating_sub(margin(*ttl).as_nanos());
                now.after(Span::from_nanos(left))
            }
        }
    }

    /// Completes when the lock is lost.
    pub(super) fn lost(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        match self {
            RunGuard::Fenced(lease, others) => {
                let mut lost: Vec<_> = all(lease, others)
                    .map(|lease| Box::pin(lease.lost()))
                    .collect();
                Box::pin(std::future::poll_fn(move |cx| {
                    if lost
                        .iter_mut()
                        .any(|lost| lost.as_mut().poll(cx).is_ready())
                    {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                }))
            }
            RunGuard::Tokenless { guard, .. } => Box::pin(guard.lost()),
        }
    }

    /// Completes when requests are known to wait for a lock: with the lock and their number.
    pub(super) fn wanted(&self) -> Pin<Box<dyn Future<Output = (LockName, u32)>>> {
        let RunGuard::Fenced(lease, others) = self else {
            return Box::pin(std::future::pending());
        };
        let mut wanted: Vec<_> = all(lease, others)
            .map(|lease| Box::pin(first_wish(lease.lock().clone(), lease.notices())))
            .collect();
        Box::pin(std::future::poll_fn(move |cx| {
            let mut polled = wanted.iter_mut().map(|wanted| wanted.as_mut().poll(cx));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        }))
    }

    /// Asks the authority for every grant whose deadline has passed; see [`Lease::resume`].
    pub(super) async fn resume(&mut self) -> Result<(), Error> {
        let RunGuard::Fenced(lease, others) = self else {
            // Refused before it was acquired.
            return Err(Fault::unsupported("acknowledge the same token").into());
        };
        for lease in std::iter::once(lease).chain(others) {
            lease.resume().await?;
        }
        Ok(())
    }

    /// Why the lock is lost, as far as this side knows.
    fn loss(&self) -> Failure {
        let lease = match self {
            RunGuard::Fenced(lease, others) => {
                let lost = all(lease, others).find(|lease| lease.check().is_err());
                lost.unwrap_or(lease)
            }
            RunGuard::Tokenless { guard, .. } => {
                let lock = guard.lock();
                let message = format!("{lock} is lost: most primaries did not extend it in time");
                return Failure::new(LOST, Code::Expired, message);
            }
        };
        match lease.check() {
            Err(lost) => {
                let reason = lease.revoked_because().map(|why| format!(" ({why})"));
                let message = format!("{lost}{}", reason.unwrap_or_default());
                Failure::new(LOST, lost.why.code(), message)
            }
            // Ended at the deadline that the job had, or one grace before: lost, whatever was acknowledged later.
            Ok(()) => {
                let message = format!(
                    "{} (token {}) is lost: the command's deadline came before a renewal was noticed",
                    lease.lock(),
                    lease.token()
                );
                Failure::new(LOST, Code::Expired, message)
            }
        }
    }

    /// Every process of the job is dead, so a waiter can have the lock: releases it if it may still be held.
    pub(super) async fn give_up(self) -> Failure {
        let mut failure = self.loss();
        failure
            .message
            .push_str("; every process of the command was ended");
        self.free().await;
        failure
    }

    /// Releases, and ignores the result.
    pub(super) async fn free(self) {
        let release = async {
            match self {
                RunGuard::Fenced(lease, others) => {
                    for lease in others.into_iter().chain([lease]) {
                        drop(lease.release().await);
                    }
                }
                RunGuard::Tokenless { guard, .. } => drop(guard.release().await),
            }
        };
        let _ = tokio::time::timeout(SHUTDOWN_WAIT, release).await;
    }

    /// Releases. If the authority answers that the lock was already lost, that is a failure, whatever the command's
    /// status.
    pub(super) async fn release(self, out: Out) -> Option<Failure> {
        match self {
            RunGuard::Fenced(lease, others) => {
                let mut failure = None;
                for lease in others.into_iter().chain([lease]) {
                    let lost = release(lease, out).await;
                    failure = failure.or(lost);
                }
                failure
            }
            RunGuard::Tokenless { guard, ttl } => {
                let lock = guard.lock().clone();
                if !guard.release().await {
                    // It was lost, or the primaries did not answer: nobody can tell.
                    out.warning(&format!(
                        "{lock}: most primaries did not confirm the release; what they still hold \
                         expires in at most {ttl}"
                    ));
                }
                None
            }
        }
    }
}

/// Completes when somebody waits for a lease's lock.
async fn first_wish(lock: LockName, mut notices: Notices) -> (LockName, u32) {
    loop {
        match notices.next().await {
            Some(LeaseNotice::Wanted { waiters }) => return (lock, waiters),
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}

/// All guards of a job.
fn all<'a>(lease: &'a Lease, others: &'a [Lease]) -> impl Iterator<Item = &'a Lease> {
    std::iter::once(lease).chain(others)
}

async fn tokenless(args: &RunArgs, out: Out) -> Result<RunGuard, Failure> {
    let lock_args = &args.lock_args;
    let url = &lock_args.connection.authority;
    if lock_args.client_id.is_some() || lock_args.metadata.is_some() {
        let why = "redlock:// keeps neither a client id nor metadata";
        return Err(Failure::usage(why).hint("omit --client-id and --metadata"));
    }
    if lock_args.shared {
        let why = "redlock:// cannot grant shared locks";
        return Err(Failure::usage(why).hint("omit --shared, or use a Palisade server"));
    }
    if !lock_args.also.is_empty() {
        let why = "redlock:// cannot grant several locks at once";
        return Err(Failure::usage(why).hint("name one lock, or use a Palisade server"));
    }
    if lock_args.permits.is_some() {
        let why = "redlock:// cannot grant permits of a semaphore";
        return Err(Failure::usage(why).hint("omit --permits, or use a Palisade server"));
    }
    if args.on_deadline == OnDeadline::Freeze {
        let why = "redlock:// has no fencing token that could be acknowledged again";
        return Err(Failure::usage(why).hint("omit --on-deadline freeze, or use a Palisade server"));
    }
    if args.yield_on_wait.is_some() {
        let why = "redlock:// does not know whether anybody waits";
        return Err(Failure::usage(why).hint("omit --yield-on-wait, or use a Palisade server"));
    }
    if args.sequencer {
        let why = "redlock:// has no fencing tokens that could be signed";
        return Err(Failure::usage(why).hint("omit --sequencer, or use a Palisade server"));
    }
    if lock_args.options.is_given() {
        let why =
            "redlock:// cannot keep a lock closed after a grant, and knows no other option of one";
        let hint = format!("omit {}, or use a Palisade server", grant_options::flags());
        return Err(Failure::usage(why).hint(hint));
    }
    out.warning(
        "redlock:// has no fencing tokens: PALISADE_FENCING_TOKEN is not set, no resource can refuse a \
         late write, and two nodes may run this at once; use it only where running twice \
         is harmless",
    );
    let redlock = Redlock::connect(url).await;
    let redlock = redlock.map_err(|fault| Failure::of(&fault.into(), url))?;
    let (ttl, wait) = (lock_args.ttl.span().to_duration(), lock_args.wait());
    let granted = redlock.acquire(lock_args.lock.as_str(), ttl, wait).await;
    match granted.map_err(|error| refused(&error, args))? {
        Some(guard) => Ok(RunGuard::Tokenless {
            guard,
            ttl: lock_args.ttl,
        }),
        None => {
            let message = format!(
                "{} is held: most primaries did not grant it",
                lock_args.lock
            );
            Err(Failure::new(NOT_ACQUIRED, Code::Held, message)
                .hint("Redlock does not know the holder; wait longer with --wait"))
        }
    }
}

async fn release(lease: Lease, out: Out) -> Option<Failure> {
    let (lock, token, ttl) = (lease.lock().clone(), lease.token(), lease.ttl());
    let was = |how: &str, code: Code| {
        let message = format!("{lock} (token {token}) was lost before it was released: {how}");
        Some(Failure::new(LOST, code, message))
    };
    match lease.release().await {
        Ok(Released::Ended(Ending::Expired)) => was("the lease had expired", Code::Expired),
        Ok(Released::Ended(Ending::Revoked)) => was("an operator took it", Code::Revoked),
        Ok(Released::Ended(Ending::Superseded)) => {
            was("the same client id acquired it again", Code::Superseded)
        }
        Ok(Released::NotHeld) => was("it is not held", Code::NotHeld),
        Ok(Released::Stale { highest }) => was(
            &format!("token {token} is stale: {token} < {highest}"),
            Code::Stale,
        ),
        // Released, by this call or by an earlier one.
        Ok(_) => None,
        Err(error) => {
            let message = format!("{lock} could not be released: {error:#}");
            let failure = Failure::new(0, error.code(), message);
            out.failure(&failure.hint(format!(
                "it expires by itself, at most {ttl} after the last renewal"
            )));
            None
        }
    }
}
