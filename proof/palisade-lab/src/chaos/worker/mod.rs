//! A worker process: acquires a lock, reads a set, thinks, and writes the set with one more element.
//!
//! ```text
//!   acquire ─► (claim) ─► read ─► lease.check()? ─► think ─► write ─► report the acknowledgement ─► release
//! ```
//!
//! It serves several lanes at once; each is a lock of some kind and the set, or sets, that it guards. `turn.rs` contains
//! the actions of each kind of holder. The lease renews itself, and is checked before the thinking, but not again before
//! the write. Between any check and its write there is a gap into which a pause fits; here the gap is as wide as the
//! thinking, so that pauses often hit it.

mod assignment;
mod locks;
mod record;
mod resource;
mod say;
mod turn;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use palisade_client::clock::{BootClock, Clock as _};
use tokio::sync::watch;

use super::event::WorkerStep;
use super::kind::LockKind;
use locks::Locks;
use resource::{Answer, Store};
use say::say;
use turn::{Lane, RETRY_PAUSE};

pub(super) use assignment::Assignment;

/// Works until standard input ends.
///
/// # Errors
/// If the task cannot be parsed, or the runtime does not start.
pub fn work(part: &str) -> io::Result<()> {
    let part: Assignment = serde_json::from_str(part)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build()?.block_on(all_lanes(part));
    Ok(())
}

async fn all_lanes(part: Assignment) {
    let (end, mut ended) = watch::channel(false);
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = end.send(true);
    });
    let part = Arc::new(part);
    let connecting = async {
        loop {
            match Locks::connect(&part.authority).await {
                Ok(locks) => return Arc::new(locks),
                Err(why) => {
                    say(0, LockKind::Exclusive, None, WorkerStep::Fault { why });
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
    };
    let locks = tokio::select! {
        locks = connecting => locks,
        _ = ended.wait_for(|ended| *ended) => return,
    };
    let store = Store::new(&part.store);
    let lanes = part.lanes.iter().map(|(lane, kind)| Lane {
        lane: *lane,
        kind: *kind,
        store: store.clone(),
        locks: Arc::clone(&locks),
        random: fastrand::Rng::with_seed(part.seed ^ ((*lane as u64) << 32)),
        part: Arc::clone(&part),
        added: 0,
    });
    let lanes: Vec<_> = lanes
        .map(|lane| tokio::spawn(lane.run(ended.clone())))
        .collect();
    for lane in lanes {
        let _ = lane.await;
    }
}

/// The final content of the resources.
pub(super) struct FinalSets {
    /// The elements of each lane, of several resources together.
    pub(super) of_lanes: BTreeMap<usize, Vec<String>>,
    /// These reads, as lines of the history of resources.
    pub(super) history: Vec<String>,
}

/// Reads the final content of the resources of each lane.
///
/// # Errors
/// Why a resource cannot be read.
pub(super) fn final_sets(
    store: &str,
    lanes: impl Iterator<Item = (usize, LockKind)>,
) -> Result<FinalSets, String> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build();
    let reading = async {
        let store = Store::new(store);
        let mut sets: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        let mut history = Vec::new();
        for (lane, kind) in lanes {
            for name in kind.resources(lane) {
                let sent = BootClock.now();
                let set = match store.read(&name, None).await {
                    Answer::Admitted(set) => set,
                    Answer::Rejected { .. } => {
                        return Err(format!("{name}: an observer was rejected"));
                    }
                    Answer::Unknown(why) => return Err(format!("{name}: {why}")),
                };
                history.extend(record::last_read(&name, sent, &set));
                let names = set.iter().map(|name| name.trim_end_matches('_').to_owned());
                sets.entry(lane).or_default().extend(names);
            }
        }
        let of_lanes = sets;
        Ok(FinalSets { of_lanes, history })
    };
    runtime
        .map_err(|error| error.to_string())?
        .block_on(reading)
}
