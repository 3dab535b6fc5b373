//! Redlock over several independent Redis primaries: exclusion most of the time, and **no fencing
//! token**.
//!
//! ```text
//!   one random value ─► SET name value NX PX ttl at every primary, at once
//!                         │
//!        granted by most, within the time? ── yes ─► valid for ttl − time taken − drift
//!                         └── no ─► taken back everywhere
//! ```
//!
//! Use it only for work that may be done twice. It is an example of a lock with which a resource cannot be fenced:
//!
//! * No number grows from grant to grant (the value is random), so the resource cannot refuse a holder that was paused.
//!   The guard has no `token()`, and a program that passes it to a fence does not compile.
//! * Exclusion depends on the primaries' wall clocks. A clock that jumps forward on a single primary, or a
//!   primary that comes back without its grants, lets two clients hold the lock at once. `tests/suite/redlock.rs`
//!   shows both.
//!
//! ```compile_fail
//! # use palisade_authorities::redlock::RedlockGuard;
//! fn claim(token: palisade_client::Token) {}
//! fn fenced(guard: &RedlockGuard) {
//!     claim(guard.token()); // there is none
//! }
//! ```
//!
//! The algorithm is that of Redis's documentation ("Distributed locks with Redis"), with its drift of 1 % and 2 ms. For
//! data that must not be lost, use [`Redis`](crate::redis::Redis) or another authority with tokens.

mod guard;
mod primary;

use std::sync::Arc;
use std::time::Duration;

use palisade_core::holder::Caution;
use palisade_core::{LockName, Span, Ttl};

pub use guard::RedlockGuard;
use palisade_client::Error;
use palisade_client::Fault;
use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::service::fresh_request_id;
use primary::Primary;

/// Independent Redis primaries, a majority of which must agree.
#[derive(Clone)]
pub struct Redlock {
    primaries: Arc<[Primary]>,
}

impl Redlock {
    /// Connects to the primaries at `url`: `redlock://host[:6379],host[:port],…`. Their number is odd, and
    /// three or more.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an invalid address, [`Fault::Unreachable`] unless a majority answers.
    pub async fn connect(url: &str) -> Result<Redlock, Fault> {
        let hosts = crate::url::UrlParts::of(url, "redlock")?.hosts(PORT)?;
        if hosts.len() < 3 || hosts.len().is_multiple_of(2) {
            return Err(Fault::invalid(format!(
                "Redlock needs an odd number of primaries, 3 or more, not {}",
                hosts.len()
            )));
        }
        let primaries = hosts.iter().map(|host| Primary::at(host));
        let redlock = Redlock {
            primaries: primaries.collect::<Result<_, _>>()?,
        };
        let asked = redlock.primaries.iter().map(Primary::answers);
        let there = count(futures_util::future::join_all(asked).await);
        if there < redlock.quorum() {
            let all = redlock.primaries.len();
            return Err(Fault::unreachable(format!(
                "{there} of {all} primaries answer"
            )));
        }
        Ok(redlock)
    }

    /// Takes the lock `name` for `ttl` and renews it in the background. It waits up to `wait` (zero: one round), and
    /// tries again at random intervals: there is no queue and no order. Returns `None` if a majority never granted it.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for a name or a time to live outside its range. A primary that does not answer
    /// counts as a denial.
    pub async fn acquire(
        &self,
        name: &str,
        ttl: Duration,
        wait: Duration,
    ) -> Result<Option<RedlockGuard>, Error> {
        let lock = LockName::new(name)?;
        let ttl = Ttl::from_millis(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))?;
        let value = fresh_request_id()?.to_hex();
        let until = BootClock.now().after(Span::from(wait));
        loop {
            if let Some(guard) = self.round(&lock, ttl, &value).await {
                return Ok(Some(guard));
            }
            let now = BootClock.now();
            if now >= until {
                return Ok(None);
            }
            let [a, b, ..] = *fresh_request_id()?.as_bytes();
            let pause = Span::from_millis(10 + u64::from(u16::from_le_bytes([a, b]) % 90));
            BootClock.sleep_until(now.after(pause).min(until)).await;
        }
    }

    /// Asks every primary once.
    async fn round(&self, lock: &LockName, ttl: Ttl, value: &str) -> Option<RedlockGuard> {
        let sent = BootClock.now();
        let asked = self.primaries.iter().map(|one| one.set(lock, value, ttl));
        let granted = count(futures_util::future::join_all(asked).await);
        let deadline = CAUTION.deadline(sent, ttl.span());
        if granted >= self.quorum() && BootClock.now() < deadline {
            return Some(RedlockGuard::new(
                self.clone(),
                lock.clone(),
                value.into(),
                ttl,
                deadline,
            ));
        }
        self.delete(lock, value).await;
        None
    }

    /// Extends the lock at each primary that still has our value; returns whether most of them did.
    async fn extend(&self, lock: &LockName, value: &str, ttl: Ttl) -> bool {
        let asked = self
            .primaries
            .iter()
            .map(|one| one.extend(lock, value, ttl));
        count(futures_util::future::join_all(asked).await) >= self.quorum()
    }

    /// Deletes the lock at each primary that still has our value; returns whether most of them did.
    async fn delete(&self, lock: &LockName, value: &str) -> bool {
        let asked = self.primaries.iter().map(|one| one.delete(lock, value));
        count(futures_util::future::join_all(asked).await) >= self.quorum()
    }

    fn quorum(&self) -> usize {
        self.primaries.len() / 2 + 1
    }
}

fn count(answers: Vec<bool>) -> usize {
    answers.into_iter().filter(|yes| *yes).count()
}

const PORT: u16 = 6379;

/// Redlock's drift, 1 % and 2 ms, for either clock.
const CAUTION: Caution = match Caution::new(10_000, Span::from_millis(2)) {
    Some(caution) => caution,
    None => Caution::DEFAULT,
};
