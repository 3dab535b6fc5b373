//! What a job runs under: a lease with a fencing token, or a lock without one.
//!
//! ```text
//!   --authority redlock://…   ─► Tokenless   no PALISADE_FENCING_TOKEN, and a warning that says so
//!   --authority anything else ─► Fenced
//! ```

use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::redlock::{self, Redlock};
use palisade_client::{Ending, Error, Lease, Released};
use palisade_core::{LockName, Span, Timestamp, Ttl};
use palisade_proto::Code;

use super::LAST_WORD;
use super::deadline::Hold;
use super::patience;
use crate::cli::{Failure, LOST, NOT_ACQUIRED, Out, RunArgs};

/// A lock that is held. It is renewed in the background until it is lost.
pub(super) enum Guard {
    Fenced(Lease),
    Tokenless { guard: redlock::Guard, ttl: Ttl },
}

/// The guard's deadline leaves time for SIGKILL to do its work: processes do not end in no time.
pub(super) fn margin(ttl: Ttl) -> Span {
    Span::from_nanos(ttl.span().as_nanos() / 10).min(Span::from_millis(100))
}

impl Guard {
    pub(super) async fn acquire(args: &RunArgs, out: Out) -> Result<Guard, Failure> {
        if args.wish.connection.is_redlock() {
            return tokenless(args, out).await;
        }
        patience::acquire(args, out).await.map(Guard::Fenced)
    }

    /// The lock.
    pub(super) fn lock(&self) -> &LockName {
        match self {
            Guard::Fenced(lease) => lease.lock(),
            Guard::Tokenless { guard, .. } => guard.lock(),
        }
    }

    /// What a job and a hook are told.
    pub(super) fn environment(&self, url: &str) -> Vec<(&'static str, String)> {
        let deadline = self.until();
        let mut told = vec![
            ("PALISADE_LOCK", self.lock().to_string()),
            ("PALISADE_AUTHORITY", url.to_owned()),
            (
                "PALISADE_DEADLINE_MS",
                (deadline.as_nanos() / 1_000_000).to_string(),
            ),
        ];
        if let Guard::Fenced(lease) = self {
            told.push(("PALISADE_FENCING_TOKEN", lease.token().to_string()));
            told.push(("PALISADE_AUTHORITY_ID", lease.authority().to_string()));
        }
        told
    }

    /// Until when the job may run, if it may at all.
    pub(super) fn deadline(&self) -> Result<Timestamp, Failure> {
        match self.look() {
            (_, Hold::Until(deadline)) => Ok(deadline),
            (_, Hold::Lost) => Err(self.loss()),
        }
    }

    /// What the guard says, and when.
    pub(super) fn look(&self) -> (Timestamp, Hold) {
        let (now, until) = (BootClock.now(), self.until());
        let held = match self {
            Guard::Fenced(lease) => lease.check().is_ok(),
            Guard::Tokenless { guard, .. } => guard.is_held(),
        };
        let hold = match held {
            true => Hold::Until(until),
            false => Hold::Lost,
        };
        (now, hold)
    }

    /// The clock is read first: read later it would move the deadline out.
    fn until(&self) -> Timestamp {
        let now = BootClock.now();
        match self {
            Guard::Fenced(lease) => now.after(lease.remaining().into()),
            Guard::Tokenless { guard, ttl } => {
                let left = Span::from(guard.remaining()).as_nanos();
                let left = left.saturating_sub(margin(*ttl).as_nanos());
                now.after(Span::from_nanos(left))
            }
        }
    }

    /// Completes when it is lost.
    pub(super) async fn lost(&self) {
        match self {
            Guard::Fenced(lease) => drop(lease.lost().await),
            Guard::Tokenless { guard, .. } => guard.lost().await,
        }
    }

    /// Why it is lost, as far as this side knows.
    fn loss(&self) -> Failure {
        let lease = match self {
            Guard::Fenced(lease) => lease,
            Guard::Tokenless { guard, .. } => {
                let lock = guard.lock();
                let message = format!("{lock} is lost: most primaries did not extend it in time");
                return Failure::new(LOST, Code::Expired, message);
            }
        };
        match lease.check() {
            Err(lost) => Failure::new(LOST, lost.why.code(), lost.to_string()),
            // Ended at, or a grace before, the deadline that the job had: lost, whatever came later.
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

    /// Everything of the job is dead, so whoever waits can have the lock; if it is not known to be free.
    pub(super) async fn give_up(self) -> Failure {
        let mut failure = self.loss();
        failure
            .message
            .push_str("; everything of the command was ended");
        self.free().await;
        failure
    }

    /// Releases, whatever comes of it.
    pub(super) async fn free(self) {
        let release = async {
            match self {
                Guard::Fenced(lease) => drop(lease.release().await),
                Guard::Tokenless { guard, .. } => drop(guard.release().await),
            }
        };
        let _ = tokio::time::timeout(LAST_WORD, release).await;
    }

    /// Releases. The authority may say that the lock had been lost before: then it was, whatever the
    /// command did.
    pub(super) async fn release(self, out: Out) -> Option<Failure> {
        match self {
            Guard::Fenced(lease) => release(lease, out).await,
            Guard::Tokenless { guard, ttl } => {
                let lock = guard.lock().clone();
                if !guard.release().await {
                    // It was lost, or they did not answer: nobody can tell.
                    out.warning(&format!(
                        "{lock}: most primaries did not confirm the release; what they still have \
                         expires in at most {ttl}"
                    ));
                }
                None
            }
        }
    }
}

pub(super) fn refused(error: &Error, args: &RunArgs) -> Failure {
    let failure = Failure::of(error, &args.wish.connection.authority);
    // Granted too late to be of use; nothing has run.
    if failure.status == LOST {
        return Failure {
            status: NOT_ACQUIRED,
            ..failure
        };
    }
    failure
}

async fn tokenless(args: &RunArgs, out: Out) -> Result<Guard, Failure> {
    let wish = &args.wish;
    let url = &wish.connection.authority;
    if wish.client_id.is_some() || wish.metadata.is_some() {
        let why = "redlock:// keeps neither a client id nor metadata";
        return Err(Failure::usage(why).hint("leave --client-id and --metadata out"));
    }
    out.warning(
        "redlock:// has no fencing tokens: PALISADE_FENCING_TOKEN is not set, no resource can refuse a \
         late write, and two nodes may run this at once; it is for work that is merely wasted when it is \
         done twice",
    );
    let redlock = Redlock::connect(url).await;
    let redlock = redlock.map_err(|fault| Failure::of(&fault.into(), url))?;
    let (ttl, wait) = (wish.ttl.span().to_duration(), wish.wait());
    let granted = redlock.acquire(wish.lock.as_str(), ttl, wait).await;
    match granted.map_err(|error| refused(&error, args))? {
        Some(guard) => Ok(Guard::Tokenless {
            guard,
            ttl: wish.ttl,
        }),
        None => {
            let message = format!("{} is held: most primaries did not grant it", wish.lock);
            Err(Failure::new(NOT_ACQUIRED, Code::Held, message)
                .hint("Redlock does not say by whom; wait longer with --wait"))
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
        Ok(Released::Released | Released::Ended(Ending::Released)) => None,
        Ok(Released::Ended(Ending::Expired)) => was("the lease had expired", Code::Expired),
        Ok(Released::Ended(Ending::Revoked)) => was("an operator took it", Code::Revoked),
        Ok(Released::Ended(Ending::Superseded)) => {
            was("the same client id acquired it again", Code::Superseded)
        }
        Ok(Released::NotHeld) => was("it is not held", Code::NotHeld),
        Ok(Released::Stale { highest }) => {
            was(&format!("it is held with token {highest}"), Code::Stale)
        }
        Err(error) => {
            let message = format!("{lock} could not be released: {error}");
            let failure = Failure::new(0, error.code(), message);
            out.failure(&failure.hint(format!(
                "it expires by itself, at most {ttl} after the last renewal"
            )));
            None
        }
    }
}
