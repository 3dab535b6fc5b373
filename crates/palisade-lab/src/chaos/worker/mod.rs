//! A worker in a process of its own: hold the lock, read the set, think, write the set with one element more.
//!
//! ```text
//!   acquire ─► (claim) ─► read ─► lease.check()? ─► think ─► write ─► say what was acknowledged ─► release
//! ```
//!
//! It serves several lanes at once; each is a lock and the set that it guards. The lease renews itself, and is
//! checked before the thinking, not again before the write: between any check and its write there is a gap that
//! a pause fits into, and here it is as wide as the thinking, so that it is hit often.

mod locks;
mod resource;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::event::{Said, Step, What};
use locks::{Grant, Locks};
use resource::{Answer, Resource};

/// What one worker is to do; given to its process as one argument, in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    /// Unique in its world: elements begin with it.
    pub(super) name: String,
    /// The authority's URL.
    pub(super) authority: String,
    /// The resource's address.
    pub(super) store: String,
    pub(super) ttl_ms: u64,
    /// How long it thinks, at least and at most.
    pub(super) think_ms: (u64, u64),
    pub(super) lanes: Vec<usize>,
    /// Whether its first operation at the resource is a claim, and its reads carry the token.
    pub(super) claims: bool,
    /// Elements added under one grant, each by a write of its own.
    pub(super) adds_per_grant: u64,
    /// Bytes that each element has beside its name.
    pub(super) padding: usize,
    pub(super) seed: u64,
}

/// The name of a lane's lock and resource.
pub(super) fn lane_name(lane: usize) -> String {
    format!("set-{lane}")
}

/// The object that holds a lane's set: one element a line.
pub(super) const FILE: &str = "/set";

/// The elements of a set as the resource keeps it.
pub(super) fn elements(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let words = text.split_ascii_whitespace();
    words.map(str::to_owned).collect()
}

/// Works until standard input ends.
///
/// # Errors
/// A part that cannot be read, or no runtime.
pub fn work(part: &str) -> io::Result<()> {
    let part: Part = serde_json::from_str(part)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build()?.block_on(all_lanes(part));
    Ok(())
}

async fn all_lanes(part: Part) {
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
                    say(0, None, What::Fault { why });
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    };
    let locks = tokio::select! {
        locks = connecting => locks,
        _ = ended.wait_for(|ended| *ended) => return,
    };
    let lanes = part.lanes.iter().map(|lane| Lane {
        lane: *lane,
        resource: Resource::new(&part.store, &lane_name(*lane)),
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

struct Lane {
    lane: usize,
    resource: Resource,
    locks: Arc<Locks>,
    random: fastrand::Rng,
    part: Arc<Part>,
    added: u64,
}

/// Why a grant is not used further; it was told already.
struct Over;

impl Lane {
    async fn run(mut self, mut ended: watch::Receiver<bool>) {
        let locks = Arc::clone(&self.locks);
        let (name, ttl) = (
            lane_name(self.lane),
            Duration::from_millis(self.part.ttl_ms),
        );
        loop {
            let granted = tokio::select! {
                granted = locks.acquire(&name, ttl) => granted,
                _ = ended.wait_for(|ended| *ended) => return,
            };
            match granted {
                Ok(Some(grant)) => {
                    let token = grant.token;
                    say(self.lane, token, What::Granted);
                    let used = self.use_up(&grant).await;
                    grant.release().await;
                    say(self.lane, token, What::Released);
                    if used.is_err() {
                        tokio::time::sleep(BREATH).await;
                    }
                }
                Ok(None) => {}
                Err(why) => {
                    say(self.lane, None, What::Fault { why });
                    tokio::time::sleep(BREATH).await;
                }
            }
            if *ended.borrow() {
                return;
            }
        }
    }

    async fn use_up(&mut self, grant: &Grant) -> Result<(), Over> {
        let token = grant.token;
        if self.part.claims {
            let claimed = self.resource.claim(grant).await;
            self.admitted(token, Step::Claim, claimed)?;
            say(self.lane, token, What::Claimed);
        }
        for sequence in 1..=self.part.adds_per_grant {
            let tokened = self.part.claims.then_some(grant);
            let read = self.resource.read(tokened).await;
            let mut set = self.admitted(token, Step::Read, read)?;
            if !grant.believes() {
                say(self.lane, token, What::Lost);
                return Err(Over);
            }
            say(self.lane, token, What::Read);
            let (least, most) = self.part.think_ms;
            let think = Duration::from_millis(self.random.u64(least..=most));
            tokio::time::sleep(think).await;
            self.added += 1;
            let element = format!("{}.{}.{}", self.part.name, self.lane, self.added);
            set.push(element.clone() + &"_".repeat(self.part.padding));
            say(
                self.lane,
                token,
                What::Sent {
                    element: element.clone(),
                },
            );
            // The same holder's writes are told apart by their sequence (rule F5).
            let sequence = self.part.claims.then_some(sequence);
            let written = self.resource.write(grant, sequence, &set).await;
            self.admitted(token, Step::Write, written)?;
            say(self.lane, token, What::Acknowledged { element });
        }
        Ok(())
    }

    fn admitted<T>(&self, token: Option<u64>, step: Step, answer: Answer<T>) -> Result<T, Over> {
        let what = match answer {
            Answer::Admitted(value) => return Ok(value),
            Answer::Rejected { highest } => What::Rejected { step, highest },
            Answer::Unknown(why) => What::Unknown { step, why },
        };
        say(self.lane, token, what);
        Err(Over)
    }
}

/// One line to the director, at once. Without a director there is nothing to do.
fn say(lane: usize, token: Option<u64>, what: What) {
    let said = Said {
        lane,
        own_ns: BootClock.now().as_nanos(),
        token,
        what,
    };
    let Ok(mut line) = serde_json::to_vec(&said) else {
        return;
    };
    line.push(b'\n');
    let mut out = io::stdout().lock();
    if out.write_all(&line).and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

/// Between two tries after something failed.
const BREATH: Duration = Duration::from_millis(20);

/// What the resource has in the end, on every lane.
///
/// # Errors
/// Why it cannot be read.
pub(super) fn final_sets(
    store: &str,
    lanes: std::ops::Range<usize>,
) -> Result<BTreeMap<usize, Vec<String>>, String> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build();
    let reading = async {
        let mut sets = BTreeMap::new();
        for lane in lanes {
            let name = lane_name(lane);
            match Resource::new(store, &name).read(None).await {
                Answer::Admitted(set) => {
                    let names = set.iter().map(|name| name.trim_end_matches('_').to_owned());
                    sets.insert(lane, names.collect());
                }
                Answer::Rejected { .. } => return Err(format!("{name}: an observer was refused")),
                Answer::Unknown(why) => return Err(format!("{name}: {why}")),
            }
        }
        Ok(sets)
    };
    runtime
        .map_err(|error| error.to_string())?
        .block_on(reading)
}
