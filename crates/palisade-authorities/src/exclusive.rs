//! The check for requests that these authorities do not support.

use palisade_client::service::AcquireRequest;
use palisade_client::{Fault, LockMode};

/// Refuses every request but that for one exclusive lock, before it is sent.
///
/// # Errors
/// [`Fault::Unsupported`] for a shared grant, for permits, for options of a grant, and for several locks at once.
pub(crate) fn only_exclusive(request: &AcquireRequest) -> Result<(), Fault> {
    if !request.options.is_none() {
        return Err(Fault::unsupported(
            "grant a lock with options (lock-delay, at-least-for and the like)",
        ));
    }
    if !request.also.is_empty() {
        return Err(Fault::unsupported("grant several locks at once"));
    }
    match request.mode {
        LockMode::Exclusive => Ok(()),
        LockMode::Shared => Err(Fault::unsupported("grant shared locks")),
        LockMode::Update | LockMode::Upgrade => {
            Err(Fault::unsupported("grant shared locks in mode update"))
        }
        LockMode::Permits(_) => Err(Fault::unsupported("grant permits of a semaphore")),
    }
}
