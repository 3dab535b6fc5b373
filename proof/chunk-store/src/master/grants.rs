//! A new version of a chunk: revoke, grant, install, publish (rules K1 - K3).
//!
//! ```text
//!   master            old primary      new primary        other replicas      lock server
//!     │── revoke ────────►│ release ────────────────────────────────────────────►│
//!     │   (no answer: its lease has to expire)                                   │
//!     │── grant ──────────────────────────►│ acquire chunk/… ───────────────────►│
//!     │◄──────────────────────── version ──│◄────────────────────────── token ───│
//!     │ record: installing                 │                   │
//!     │── install ────────────────────────►│── install ───────►│   each syncs, then acknowledges
//!     │ record: published, members         │                   │
//!     │── publish ────────────────────────►│ takes mutations   │
//!     │ and only now: answers clients
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::AuthorityId;
use tokio::task::JoinSet;

use super::record::Chunk;
use super::{Held, Master, location, lock, unavailable};
use crate::event::{self, Event};
use crate::http::call;
use crate::name::{ChunkId, ServerId};
use crate::version::Version;
use crate::wire::{
    Done, Expected, Grant, Granted, Install, Installed, Location, PrimaryOf, Problem, ProblemCode,
    Publish, Revoke, Standing, WantPrimary,
};

/// A version to install, and the authority that granted it.
pub(super) struct NewVersion {
    pub(super) version: Version,
    pub(super) authority: AuthorityId,
}

impl Master {
    /// Names the primary of a chunk, and chooses one if there is none.
    pub(super) async fn primary(
        self: Arc<Self>,
        request: WantPrimary,
    ) -> Result<PrimaryOf, Problem> {
        let _ = self.chunk(&request.chunk)?;
        let _busy = self.busy(&request.chunk).lock_owned().await;
        self.ensure_primary(&request.chunk, request.refused).await
    }

    /// The same, by a caller that has the chunk's lock of work.
    pub(super) async fn ensure_primary(
        &self,
        id: &ChunkId,
        refused: Option<Version>,
    ) -> Result<PrimaryOf, Problem> {
        let chunk = self.chunk(id)?;
        match self.known_primary(&chunk) {
            Some(known) if refused.is_none_or(|refused| refused < known.version) => Ok(known),
            _ => self.new_primary(id, &chunk).await,
        }
    }

    /// The published primary, if its server is live.
    fn known_primary(&self, chunk: &Chunk) -> Option<PrimaryOf> {
        let (version, server) = (chunk.published?, chunk.primary.as_ref()?);
        let reports = lock(&self.reports);
        let report = reports.get(server)?;
        let live = self.placement.is_live(report, event::now());
        live.then(|| PrimaryOf {
            version,
            primary: location(server, report),
        })
    }

    /// Makes another server, or the same one again, the primary.
    async fn new_primary(&self, id: &ChunkId, chunk: &Chunk) -> Result<PrimaryOf, Problem> {
        self.revoke(id, chunk).await;
        let replicas = self.candidates(id, chunk);
        let Some((first, others)) = replicas.split_first() else {
            return Err(unavailable(
                "no current replica is there to become the primary",
            ));
        };
        let asked = first.server.clone();
        self.change_chunk(id, |chunk| chunk.asked = Some(asked))
            .await?;
        let wait = self.longest_wait();
        let grant = Grant {
            chunk: id.clone(),
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
        };
        let limit = wait + self.config.timeout;
        let granted: Granted = call(first.address, "/v1/grant", &grant, limit).await?;
        let new = NewVersion {
            version: granted.version,
            authority: granted.authority,
        };
        let members = self.install(id, chunk, &new, first, others).await?;
        self.publish(id, &new, &members, Some(first)).await?;
        let secondaries = members.into_iter().filter(|member| member != first);
        let publish = Publish {
            chunk: id.clone(),
            version: new.version,
            secondaries: secondaries.collect(),
        };
        let _: Done = call(first.address, "/v1/publish", &publish, self.config.timeout).await?;
        Ok(PrimaryOf {
            version: new.version,
            primary: first.clone(),
        })
    }

    /// How long a former lease can last: its full time from a renewal a moment ago, and as much again for clocks and
    /// slow machines.
    pub(super) fn longest_wait(&self) -> Duration {
        2 * self.config.ttl
    }

    pub(super) fn candidates(&self, id: &ChunkId, chunk: &Chunk) -> Vec<Location> {
        let reports = lock(&self.reports);
        let candidates = self.placement.candidates(id, chunk, &reports, event::now());
        let locations = candidates.into_iter();
        locations
            .map(|(server, report)| location(server, report))
            .collect()
    }

    /// Asks the server that may have the chunk's lock to release it. Without an acknowledgement its lease has to expire:
    /// the lock server makes the next holder wait for that (rule K2).
    pub(super) async fn revoke(&self, id: &ChunkId, chunk: &Chunk) {
        let Some(server) = &chunk.asked else {
            return;
        };
        let Some(address) = self.address(server) else {
            return;
        };
        let revoke = Revoke { chunk: id.clone() };
        let revoked: Result<Done, _> =
            call(address, "/v1/revoke", &revoke, self.config.timeout).await;
        if let Err(problem) = revoked {
            let message = format!("waiting for the lease of {server}: {problem}");
            event::record(Event::Postponed { message });
        }
    }

    /// Has every replica record the version, durably, and returns those that did (rule K3). `first` has to.
    pub(super) async fn install(
        &self,
        id: &ChunkId,
        chunk: &Chunk,
        new: &NewVersion,
        first: &Location,
        others: &[Location],
    ) -> Result<Vec<Location>, Problem> {
        if chunk
            .highest()
            .is_some_and(|highest| new.version <= highest)
        {
            let (version, highest) = (new.version, chunk.highest().map_or(0, u64::from));
            let message = format!(
                "the lock server granted version {version} of {id} after {highest}: it lost its data"
            );
            return Err(unavailable(&message));
        }
        self.change_chunk(id, |chunk| chunk.installing = Some(new.version))
            .await?;
        let install = |expected| Install {
            chunk: id.clone(),
            authority: new.authority.clone(),
            from: chunk.published,
            version: new.version,
            expected,
        };
        let limit = self.config.timeout;
        let installed: Installed =
            call(first.address, "/v1/install", &install(Expected::Any), limit).await?;
        let mut calls = JoinSet::new();
        for other in others.iter().cloned() {
            let install = install(Expected::Last(installed.last));
            calls.spawn(async move {
                let answer: Result<Installed, Problem> =
                    call(other.address, "/v1/install", &install, limit).await;
                answer.map(|_| other)
            });
        }
        let mut members = vec![first.clone()];
        while let Some(ended) = calls.join_next().await {
            match ended {
                Ok(Ok(member)) => members.push(member),
                // It takes no part: it is stale from now on.
                Ok(Err(problem)) => event::record(Event::Postponed {
                    message: format!(
                        "a replica of {id} takes no part in version {}: {problem}",
                        new.version
                    ),
                }),
                Err(error) => return Err(Problem::new(ProblemCode::NoAnswer, error.to_string())),
            }
        }
        Ok(members)
    }

    /// Records the version for clients, durably, after every replica has it.
    pub(super) async fn publish(
        &self,
        id: &ChunkId,
        new: &NewVersion,
        members: &[Location],
        primary: Option<&Location>,
    ) -> Result<(), Problem> {
        let version = new.version;
        let servers: BTreeSet<ServerId> =
            members.iter().map(|member| member.server.clone()).collect();
        let primary = primary.map(|primary| primary.server.clone());
        let published = Event::Published {
            chunk: id.clone(),
            version,
            primary: primary.clone(),
            members: servers.iter().cloned().collect(),
        };
        self.change_chunk(id, |chunk| {
            *chunk = Chunk {
                published: Some(version),
                installing: None,
                members: servers.clone(),
                asked: primary.clone(),
                primary,
            };
        })
        .await?;
        self.saw(id, version, &servers);
        event::record(published);
        self.record_locations();
        Ok(())
    }

    /// Notes that these servers have the version, as if they had just reported it.
    pub(super) fn saw(&self, id: &ChunkId, version: Version, servers: &BTreeSet<ServerId>) {
        let now = event::now();
        let mut reports = lock(&self.reports);
        for server in servers {
            if let Some(report) = reports.get_mut(server) {
                let held = Held {
                    version,
                    standing: Standing::Current,
                    since: now,
                };
                report.replicas.insert(id.clone(), held);
            }
        }
    }
}
