//! The primary of a chunk: it has the chunk's lock, orders the mutations, and sends them to the other replicas.

use std::sync::Arc;
use std::time::Duration;

use palisade_client::Lease;
use rustix::process::{Signal, getpid, kill_process};
use tokio::task::JoinSet;

use super::replica::{check_record, not_here};
use super::slots::Slot;
use super::{ChunkServer, Replica};
use crate::event::{Event, record};
use crate::http::call;
use crate::name::ChunkId;
use crate::version::{Position, Version};
use crate::wire::{
    Add, Append, Appended, Done, Grant, Granted, Location, Mutation, Problem, ProblemCode, Publish,
    Revoke,
};

/// The grant of a chunk's lock, and the replicas of its version.
pub(crate) struct Primary {
    lease: Lease,
    /// The other replicas; `None` until the version is published (rule K3).
    secondaries: Option<Vec<Location>>,
}

impl Primary {
    /// The chunk's version is the grant's token (rule K1).
    fn version(&self) -> Version {
        Version::of(self.lease.token())
    }
}

/// The longest wait for the end of a former lease.
const MAX_WAIT: Duration = Duration::from_secs(300);

impl ChunkServer {
    /// Takes a chunk's lock. The authority grants it only once the former lease has ended (rule K2).
    pub(super) async fn grant(self: Arc<Self>, request: Grant) -> Result<Granted, Problem> {
        let unavailable = |error: palisade_client::Error| {
            Problem::new(ProblemCode::Unavailable, format!("{error:#}"))
        };
        let wait = Duration::from_millis(request.wait_ms);
        if wait > MAX_WAIT {
            let message = format!("wait_ms is at most {}", MAX_WAIT.as_millis());
            return Err(Problem::new(ProblemCode::Invalid, message));
        }
        // A grant that it has already would be repeated: the next version is a new grant.
        self.step_down(&request.chunk).await;
        let lock = request
            .chunk
            .lock()
            .map_err(|error| Problem::new(ProblemCode::Invalid, error.to_string()))?;
        let asked = {
            let mut own = self.lease.lock().await;
            let lease = match own.take().filter(|lease| lease.check().is_ok()) {
                Some(lease) => lease,
                None => self.own_lease().await.map_err(unavailable)?,
            };
            let asked = self.client.lock(&lock).under(&lease).wait(wait);
            *own = Some(lease);
            asked
        };
        let lease = asked.acquire().await.map_err(unavailable)?;
        let granted = Granted {
            version: Version::of(lease.token()),
            authority: lease.authority().clone(),
        };
        record(Event::Granted {
            server: self.config.server.clone(),
            chunk: request.chunk.clone(),
            version: granted.version,
        });
        let mut slot = self.slots.made(&request.chunk).await;
        slot.primary = Some(Primary {
            lease,
            secondaries: None,
        });
        Ok(granted)
    }

    /// The lease of this server. A restarted server gets its own one back at once, because its client id is the same.
    async fn own_lease(&self) -> Result<Lease, palisade_client::Error> {
        let server = &self.config.server;
        let lock = format!("chunk-server/{server}");
        let request = self.client.lock(&lock).client_id(server.as_str());
        request
            .ttl(self.config.ttl)
            .wait(self.config.ttl)
            .acquire()
            .await
    }

    /// From now on it takes mutations: every replica has recorded the version.
    pub(super) async fn publish(self: Arc<Self>, request: Publish) -> Result<Done, Problem> {
        let mut slot = self.slots.found(&request.chunk).await?;
        match slot.primary.as_mut() {
            Some(primary) if primary.version() == request.version => {
                primary.secondaries = Some(request.secondaries);
                Ok(Done {})
            }
            _ => Err(not_primary(&request.chunk)),
        }
    }

    /// Stops being the primary, and acknowledges it when the lock is released (rule K2). The slot is locked, so no
    /// mutation is under way then.
    pub(super) async fn revoke(self: Arc<Self>, request: Revoke) -> Result<Done, Problem> {
        self.step_down(&request.chunk).await;
        Ok(Done {})
    }

    async fn step_down(&self, chunk: &ChunkId) {
        let Ok(mut slot) = self.slots.found(chunk).await else {
            return;
        };
        if let Some(primary) = slot.primary.take() {
            let version = primary.version();
            // Without an answer the lease still expires, and the authority makes the next primary wait for that.
            let _ = primary.lease.release().await;
            self.gave_up(chunk, version);
        }
    }

    /// Stops being the primary without waiting; the release goes on in the background.
    pub(super) fn give_up(&self, slot: &mut Slot) {
        if let (Some(primary), Some(replica)) = (slot.primary.take(), &slot.replica) {
            self.gave_up(&replica.chunk, primary.version());
        }
    }

    fn gave_up(&self, chunk: &ChunkId, version: Version) {
        record(Event::GaveUp {
            server: self.config.server.clone(),
            chunk: chunk.clone(),
            version,
        });
    }

    /// Appends a record: orders it, applies it here, and acknowledges it once every other replica has it.
    pub(super) async fn append(self: Arc<Self>, request: Append) -> Result<Appended, Problem> {
        check_record(&request.data)?;
        let mut slot = self.slots.found(&request.chunk).await?;
        let (mutation, secondaries) = self.ordered(&slot, &request)?;
        if self.config.freeze_at.as_ref() == Some(&request.data) {
            self.freeze(&request.chunk);
        }
        let done = match self.carry_out(&mut slot, &mutation).await {
            Ok(()) => self.forward(&mutation, &secondaries).await,
            Err(problem) => Err(problem),
        };
        // A primary that does not reach all replicas of its version makes way for another version.
        if let Err(problem) = done {
            self.give_up(&mut slot);
            return Err(problem);
        }
        Ok(Appended {
            position: mutation.position,
            offset: mutation.offset,
        })
    }

    /// The mutation for a record, at its place in the order, if this server is the primary and may act.
    fn ordered(&self, slot: &Slot, request: &Append) -> Result<(Mutation, Vec<Location>), Problem> {
        let primary = slot.primary.as_ref();
        let primary = primary.filter(|primary| {
            primary.version() == request.version && primary.lease.check().is_ok()
        });
        let (Some(primary), Some(replica)) = (primary, &slot.replica) else {
            return Err(not_primary(&request.chunk));
        };
        let Some(secondaries) = primary.secondaries.clone() else {
            return Err(not_primary(&request.chunk));
        };
        let position = Position::next(replica.last, request.version)
            .map_err(|error| Problem::new(ProblemCode::NotPrimary, error.to_string()))?;
        let mutation = Mutation {
            chunk: request.chunk.clone(),
            authority: primary.lease.authority().clone(),
            position,
            after: replica.last,
            offset: replica.data.len() as u64,
            data: format!("{}\n", request.data),
        };
        Ok((mutation, secondaries))
    }

    /// Stops this process, as anything can at any moment.
    fn freeze(&self, chunk: &ChunkId) {
        record(Event::Freezing {
            server: self.config.server.clone(),
            chunk: chunk.clone(),
        });
        if let Err(error) = kill_process(getpid(), Signal::STOP) {
            eprintln!("cannot stop this process: {error}");
        }
    }

    /// Sends a mutation to all secondaries. Every one of them must have it.
    async fn forward(&self, mutation: &Mutation, to: &[Location]) -> Result<(), Problem> {
        let mut calls = JoinSet::new();
        for Location { address, .. } in to.iter().cloned() {
            let (mutation, limit) = (mutation.clone(), self.config.timeout);
            calls.spawn(async move { call::<Done>(address, "/v1/apply", &mutation, limit).await });
        }
        let mut worst = None;
        while let Some(ended) = calls.join_next().await {
            let problem = match ended {
                Ok(Ok(Done {})) => continue,
                Ok(Err(problem)) => problem,
                Err(error) => Problem::new(ProblemCode::NoAnswer, error.to_string()),
            };
            // That the version is over says more than that somebody was not reached.
            if worst.is_none() || problem.code == ProblemCode::Stale {
                worst = Some(problem);
            }
        }
        match worst {
            None => Ok(()),
            Some(problem) if problem.code == ProblemCode::Stale => Err(problem),
            Some(problem) => Err(Problem {
                code: ProblemCode::Incomplete,
                message: format!("not every replica has the record: {problem}"),
                ..problem
            }),
        }
    }

    /// Makes a replica anew at another server. The slot is locked meanwhile, so the copy misses no mutation, and every
    /// later one is sent there, too.
    pub(super) async fn add(self: Arc<Self>, request: Add) -> Result<Done, Problem> {
        let mut guard = self.slots.found(&request.chunk).await?;
        let slot = &mut *guard;
        let replica: &Replica = slot
            .replica
            .as_ref()
            .ok_or_else(|| not_here(&request.chunk))?;
        let primary = slot.primary.as_mut();
        let primary = primary.filter(|primary| {
            primary.version() == request.version && primary.lease.check().is_ok()
        });
        let secondaries = primary.and_then(|primary| primary.secondaries.as_mut());
        let secondaries = secondaries.ok_or_else(|| not_primary(&request.chunk))?;
        let (address, limit) = (request.target.address, self.config.timeout);
        let _: Done = call(address, "/v1/store", replica, limit).await?;
        secondaries.retain(|known| known.server != request.target.server);
        secondaries.push(request.target);
        Ok(Done {})
    }
}

fn not_primary(chunk: &ChunkId) -> Problem {
    let message = format!("this server is not the primary of {chunk}");
    Problem::new(ProblemCode::NotPrimary, message)
}
