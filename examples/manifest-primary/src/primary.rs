//! One primary: a process that appends entries while it holds the lock.

use std::time::Duration;

use palisade_client::{Client, secs};
use rustix::process::{Signal, getpid, kill_process};

use crate::{Failure, Manifest, Mode, Place, Swap};

/// Short, so that the story is; and long enough that no busy machine ends a lease by itself.
const TTL: Duration = secs(5);

/// What a primary is told to do.
#[derive(Clone)]
pub struct Orders {
    /// The lock server.
    pub authority: String,
    /// Where the manifest is.
    pub place: Place,
    /// Whether swaps are fenced.
    pub mode: Mode,
    /// What it appends, one after the other.
    pub entries: Vec<String>,
    /// In front of the swap for this entry its process freezes, after the lease was asked: what a
    /// collection of garbage, a virtual machine or a full disk does to any process, at the worst moment.
    pub freezes_at: Option<String>,
}

/// Becomes the primary, appends, and says of each entry on standard output what became of it.
///
/// # Errors
/// The authority's and the store's, and a lease that was lost in time to know it.
pub async fn serve(orders: &Orders) -> Result<(), Failure> {
    let manifest = Manifest::open(&orders.place, orders.mode).await?;
    let client = Client::connect(&orders.authority).await?;
    let lease = client
        .lock(&orders.place.folder)
        .ttl(TTL)
        .wait(secs(60))
        .acquire()
        .await?;
    let token = lease.token();
    let Some(mut known) = manifest.take_over(token).await? else {
        return Err("somebody newer has taken over already".into());
    };
    println!("primary {token}");
    for entry in &orders.entries {
        known.push(entry.clone());
        lease.check()?;
        if orders.freezes_at.as_ref() == Some(entry) {
            kill_process(getpid(), Signal::STOP)?;
        }
        match manifest.swap(token, &known).await? {
            Swap::Acknowledged => println!("acknowledged {entry}"),
            Swap::Rejected => {
                println!("rejected {entry}");
                return Ok(());
            }
        }
    }
    Ok(())
}
