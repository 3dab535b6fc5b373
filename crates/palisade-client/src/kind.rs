//! The kinds of locks that a [`LockRequest`] can ask for. Each has its own options, so an
//! impossible request does not compile.
//!
//! | kind | made by | its own options | granted |
//! |---|---|---|---|
//! | [`Exclusive`] | [`Client::lock`](crate::Client::lock) | `lock_delay`, `at_least_for` | to one at a time |
//! | [`Shared`] | [`Client::lock_shared`](crate::Client::lock_shared) | `for_update` | to readers together, while no writer has it |
//! | [`Semaphore`] | [`Client::semaphore`](crate::Client::semaphore) | `permits` | to as many as it has permits |
//! | [`Set`] | [`Client::locks`](crate::Client::locks) | – | all of them or none, with one token |
//!
//! ```compile_fail,E0599
//! # fn wish(client: palisade_client::Client) {
//! // Readers leave no lock closed behind them: no such method.
//! let _ = client.lock_shared("report").lock_delay(palisade_client::secs(5));
//! # }
//! ```
//!
//! ```compile_fail,E0599
//! # fn wish(client: palisade_client::Client) {
//! // Several locks at once are exclusive: no such method.
//! let _ = client.locks(["account:7", "account:8"]).permits(2);
//! # }
//! ```

use palisade_core::{GrantOption, GrantOptions, LockMode, Permits};

use crate::acquire::{LockRequest, whole_ms};
use crate::fault::Fault;
use crate::lease::Lease;

use std::time::Duration;

/// A kind of lock. The kinds are the types of this module.
pub trait Kind: sealed::Asks {
    /// The guard, or guards, of a grant.
    type Guard;
}

/// One holder at a time.
#[derive(Clone, Debug, Default)]
pub struct Exclusive {
    options: GrantOptions,
    /// The first wrong value, which the request fails with.
    wrong: Option<Fault>,
}

/// Readers, which hold the lock together while no writer does.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    pub(crate) for_update: bool,
}

/// Some permits of a semaphore.
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(crate) permits: u32,
    pub(crate) of: u32,
}

/// Several exclusive locks at once.
#[derive(Clone, Debug)]
pub struct Set;

/// The reader in mode update that becomes the writer ([`Client::upgrade`](crate::Client::upgrade)).
#[derive(Clone, Debug)]
pub(crate) struct Upgrade;

pub(crate) mod sealed {
    use palisade_core::{GrantOptions, LockMode};

    use super::{Fault, Kind, Lease};

    /// The options that a kind adds to a request, and the guard that it makes of the grant.
    pub trait Asks {
        /// Returns the mode and the options to request. An upgrade is a mode of its own.
        fn asks(&self) -> Result<(LockMode, GrantOptions), Fault>;

        /// Makes the guard from the leases, one for each lock of the request.
        fn guard(leases: Vec<Lease>) -> <Self as Kind>::Guard
        where
            Self: Kind;
    }
}

/// The guard of a request for one lock.
fn only(mut leases: Vec<Lease>) -> Lease {
    leases.swap_remove(0)
}

impl Exclusive {
    fn set_time(&mut self, option: GrantOption, time: Duration) {
        self.set(option, whole_ms(option.given(), time));
    }

    fn set(&mut self, option: GrantOption, value: Result<u64, Fault>) {
        match value.and_then(|value| Ok(self.options.with(option, value)?)) {
            Ok(options) => self.options = options,
            Err(wrong) => drop(self.wrong.get_or_insert(wrong)),
        }
    }
}

impl LockRequest {
    /// Closes the lock for this long after the grant expires or an operator revokes it, but not after a release: 0 – 60
    /// s in whole milliseconds. While it is closed, nobody gets the lock, and waiters stay in their order. Use it for a
    /// resource that cannot be fenced: writes in flight get time to arrive, without any guarantee that they have.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.kind.set_time(GrantOption::LockDelay, delay);
        self
    }

    /// Keeps everyone else from the lock until this long after the grant: 0 – 24 h in whole milliseconds, even if it is
    /// released earlier or its lease ends earlier. After a release this client cannot get it either. Use it for a job
    /// that must not run twice within a period. The release reports how long the lock stays closed
    /// ([`Released::Delayed`](crate::Released::Delayed)).
    pub fn at_least_for(mut self, time: Duration) -> Self {
        self.kind.set_time(GrantOption::AtLeastFor, time);
        self
    }
}

impl Kind for Exclusive {
    type Guard = Lease;
}

impl sealed::Asks for Exclusive {
    fn asks(&self) -> Result<(LockMode, GrantOptions), Fault> {
        match &self.wrong {
            Some(wrong) => Err(wrong.clone()),
            None => Ok((LockMode::Exclusive, self.options)),
        }
    }

    fn guard(leases: Vec<Lease>) -> Lease {
        only(leases)
    }
}

impl Kind for Shared {
    type Guard = Lease;
}

impl sealed::Asks for Shared {
    fn asks(&self) -> Result<(LockMode, GrantOptions), Fault> {
        let mode = if self.for_update {
            LockMode::Update
        } else {
            LockMode::Shared
        };
        Ok((mode, GrantOptions::NONE))
    }

    fn guard(leases: Vec<Lease>) -> Lease {
        only(leases)
    }
}

impl Kind for Semaphore {
    type Guard = Lease;
}

impl sealed::Asks for Semaphore {
    fn asks(&self) -> Result<(LockMode, GrantOptions), Fault> {
        let permits = Permits::new(self.permits, self.of)?;
        Ok((LockMode::Permits(permits), GrantOptions::NONE))
    }

    fn guard(leases: Vec<Lease>) -> Lease {
        only(leases)
    }
}

impl Kind for Set {
    /// A guard for each lock, in the order of their names.
    type Guard = Vec<Lease>;
}

impl sealed::Asks for Set {
    fn asks(&self) -> Result<(LockMode, GrantOptions), Fault> {
        Ok((LockMode::Exclusive, GrantOptions::NONE))
    }

    fn guard(leases: Vec<Lease>) -> Vec<Lease> {
        leases
    }
}

impl Kind for Upgrade {
    type Guard = Lease;
}

impl sealed::Asks for Upgrade {
    fn asks(&self) -> Result<(LockMode, GrantOptions), Fault> {
        Ok((LockMode::Upgrade, GrantOptions::NONE))
    }

    fn guard(leases: Vec<Lease>) -> Lease {
        only(leases)
    }
}
