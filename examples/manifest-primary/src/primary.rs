//! One primary: a process that appends entries while it holds the lock.

use std::time::Duration;

use palisade_client::{Client, secs};
use palisade_fence::rejection;
use rustix::process::{Signal, getpid, kill_process};

use crate::{Failure, Location, Manifest, Mode};

/// Short, to keep the demonstration short, and long enough that a busy machine does not end a lease by
/// itself.
const TTL: Duration = secs(5);

/// The configuration of a primary.
#[derive(Clone)]
pub struct PrimaryConfig {
    /// The lock server.
    pub authority: String,
    /// The location of the manifest.
    pub location: Location,
    /// Whether swaps are fenced.
    pub mode: Mode,
    /// The entries that it appends, one after the other.
    pub entries: Vec<String>,
    /// The process freezes before the swap for this entry, right after it checked the lease. Garbage collection,
    /// a virtual machine or a full disk can do that to any process at any moment.
    pub freezes_at: Option<String>,
}

/// Becomes the primary, appends the entries, and reports the outcome of each on standard output.
///
/// # Errors
/// Errors of the authority and the store, and a lease whose loss was noticed in time.
pub async fn serve(config: &PrimaryConfig) -> Result<(), Failure> {
    let manifest = Manifest::open(&config.location, config.mode).await?;
    let client = Client::connect(&config.authority).await?;
    let lease = client
        .lock(&config.location.folder)
        .ttl(TTL)
        .wait(secs(60))
        .acquire()
        .await?;
    let token = lease.token();
    let mut known = manifest.take_over(token).await?;
    println!("primary {token}");
    for entry in &config.entries {
        known.push(entry.clone());
        lease.check()?;
        if config.freezes_at.as_ref() == Some(entry) {
            kill_process(getpid(), Signal::STOP)?;
        }
        match manifest.swap(token, &known).await {
            Err(error) if rejection(&*error).is_some() => {
                println!("rejected {entry}");
                return Ok(());
            }
            swapped => swapped?,
        }
        println!("acknowledged {entry}");
    }
    Ok(())
}
