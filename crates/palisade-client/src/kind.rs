//! The kinds of locks that a [`LockRequest`](crate::LockRequest) can ask for. Each has its own options, so an
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

use palisade_core::{Delays, LockMode, Permits};

use crate::acquire::whole_ms;
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
    pub(crate) lock_delay: Duration,
    pub(crate) at_least_for: Duration,
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
    use palisade_core::{Delays, LockMode};

    use super::{Fault, Kind, Lease};

    /// The options that a kind adds to a request, and the guard that it makes of the grant.
    pub trait Asks {
        /// Returns the mode and the delays to request. An upgrade is a mode of its own.
        fn asks(&self) -> Result<(LockMode, Delays), Fault>;

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

impl Kind for Exclusive {
    type Guard = Lease;
}

impl sealed::Asks for Exclusive {
    fn asks(&self) -> Result<(LockMode, Delays), Fault> {
        let delays = Delays::new(
            whole_ms("a lock delay", self.lock_delay)?,
            whole_ms("at least for", self.at_least_for)?,
        )?;
        Ok((LockMode::Exclusive, delays))
    }

    fn guard(leases: Vec<Lease>) -> Lease {
        only(leases)
    }
}

impl Kind for Shared {
    type Guard = Lease;
}

impl sealed::Asks for Shared {
    fn asks(&self) -> Result<(LockMode, Delays), Fault> {
        let mode = if self.for_update {
            LockMode::Update
        } else {
            LockMode::Shared
        };
        Ok((mode, Delays::NONE))
    }

    fn guard(leases: Vec<Lease>) -> Lease {
        only(leases)
    }
}

impl Kind for Semaphore {
    type Guard = Lease;
}

impl sealed::Asks for Semaphore {
    fn asks(&self) -> Result<(LockMode, Delays), Fault> {
        let permits = Permits::new(self.permits, self.of)?;
        Ok((LockMode::Permits(permits), Delays::NONE))
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
    fn asks(&self) -> Result<(LockMode, Delays), Fault> {
        Ok((LockMode::Exclusive, Delays::NONE))
    }

    fn guard(leases: Vec<Lease>) -> Vec<Lease> {
        leases
    }
}

impl Kind for Upgrade {
    type Guard = Lease;
}

impl sealed::Asks for Upgrade {
    fn asks(&self) -> Result<(LockMode, Delays), Fault> {
        Ok((LockMode::Upgrade, Delays::NONE))
    }

    fn guard(leases: Vec<Lease>) -> Lease {
        only(leases)
    }
}
