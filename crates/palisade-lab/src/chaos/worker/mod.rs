//! A worker process: acquires a lock, reads a set, thinks, and writes the set with one more element.
//!
//! ```text
//!   acquire ─► (claim) ─► read ─► lease.check()? ─► think ─► write ─► report the acknowledgement ─► release
//! ```
//!
//! It serves several lanes at once; each is a lock and the set that it guards. The lease renews itself, and is checked
//! before the thinking, but not again before the write. Between any check and its write there is a gap into which a
//! pause fits; here the gap is as wide as the thinking, so that pauses often hit it.

mod locks;
mod resource;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::event::{Operation, WorkerLine, WorkerStep};
use locks::{Grant, Locks};
use resource::{Answer, Resource};

/// A worker's task; its process gets it as one argument, in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Assignment {
    /// Unique in its world; elements begin with it.
    pub(super) name: String,
    /// The authority's URL.
    pub(super) authority: String,
    /// The resource's address.
    pub(super) store: String,
    pub(super) ttl_ms: u64,
    /// The shortest and the longest thinking time.
    pub(super) think_ms: (u64, u64),
    pub(super) lanes: Vec<usize>,
    /// Whether its first operation at the resource is a claim and its reads carry the token.
    pub(super) claims: bool,
    /// How many elements to add under one grant, each with its own write.
    pub(super) adds_per_grant: u64,
    /// The extra bytes of each element.
    pub(super) padding: usize,
    pub(super) seed: u64,
}

/// The name of a lane's lock and resource.
pub(super) fn lane_name(lane: usize) -> String {
    format!("set-{lane}")
}

/// The object that holds a lane's set: one element per line.
pub(super) const FILE: &str = "/set";

/// The elements of a set in the resource's format.
pub(super) fn elements(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let words = text.split_ascii_whitespace();
    words.map(str::to_owned).collect()
}

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
                    say(0, None, WorkerStep::Fault { why });
                    tokio::time::sleep(RETRY_PAUSE).await;
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
    part: Arc<Assignment>,
    added: u64,
}

/// The grant cannot be used further; the reason was already reported.
struct GrantEnded;

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
                    say(self.lane, token, WorkerStep::Granted);
                    let used = self.use_up(&grant).await;
                    grant.release().await;
                    say(self.lane, token, WorkerStep::Released);
                    if used.is_err() {
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                }
                Ok(None) => {}
                Err(why) => {
                    say(self.lane, None, WorkerStep::Fault { why });
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
            if *ended.borrow() {
                return;
            }
        }
    }

    async fn use_up(&mut self, grant: &Grant) -> Result<(), GrantEnded> {
        let token = grant.token;
        if self.part.claims {
            let claimed = self.resource.claim(grant).await;
            self.admitted(token, Operation::Claim, claimed)?;
            say(self.lane, token, WorkerStep::Claimed);
        }
        for sequence in 1..=self.part.adds_per_grant {
            let tokened = self.part.claims.then_some(grant);
            let read = self.resource.read(tokened).await;
            let mut set = self.admitted(token, Operation::Read, read)?;
            if !grant.believes() {
                say(self.lane, token, WorkerStep::Lost);
                return Err(GrantEnded);
            }
            say(self.lane, token, WorkerStep::Read);
            let (least, most) = self.part.think_ms;
            let think = Duration::from_millis(self.random.u64(least..=most));
            tokio::time::sleep(think).await;
            self.added += 1;
            let element = format!("{}.{}.{}", self.part.name, self.lane, self.added);
            set.push(element.clone() + &"_".repeat(self.part.padding));
            say(
                self.lane,
                token,
                WorkerStep::Sent {
                    element: element.clone(),
                },
            );
            // Sequence numbers distinguish the same holder's writes (rule F5).
            let sequence = self.part.claims.then_some(sequence);
            let written = self.resource.write(grant, sequence, &set).await;
            self.admitted(token, Operation::Write, written)?;
            say(self.lane, token, WorkerStep::Acknowledged { element });
        }
        Ok(())
    }

    fn admitted<T>(
        &self,
        token: Option<u64>,
        step: Operation,
        answer: Answer<T>,
    ) -> Result<T, GrantEnded> {
        let what = match answer {
            Answer::Admitted(value) => return Ok(value),
            Answer::Rejected { highest } => WorkerStep::Rejected { step, highest },
            Answer::Unknown(why) => WorkerStep::Unknown { step, why },
        };
        say(self.lane, token, what);
        Err(GrantEnded)
    }
}

/// Sends one line to the director at once. If the director is gone, there is nothing to do.
fn say(lane: usize, token: Option<u64>, what: WorkerStep) {
    let said = WorkerLine {
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

/// The pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The final content of the resource, on every lane.
///
/// # Errors
/// Why the resource cannot be read.
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
                Answer::Rejected { .. } => return Err(format!("{name}: an observer was rejected")),
                Answer::Unknown(why) => return Err(format!("{name}: {why}")),
            }
        }
        Ok(sets)
    };
    runtime
        .map_err(|error| error.to_string())?
        .block_on(reading)
}
