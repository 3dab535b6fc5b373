//! A snapshot (rule K7): the leases are revoked first, so that nobody writes while the chunk is copied.
//!
//! The master then takes the chunk's lock itself. That proves that the former lease has ended, and gives the snapshot a
//! version: once the replicas have installed it, they refuse whatever a former primary still sends. The copies and the
//! reads of the new chunk carry this version.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::grants::NewVersion;
use super::record::Chunk;
use super::{Master, exists, unavailable};
use crate::event::{self, Event};
use crate::http::call;
use crate::name::ServerId;
use crate::version::Version;
use crate::wire::{CloneChunk, Cloned, Location, Problem, ProblemCode, Snapshot};

impl Master {
    /// Copies a chunk, as it is now, under another name.
    pub(super) async fn snapshot(self: Arc<Self>, request: Snapshot) -> Result<Cloned, Problem> {
        let Snapshot { from, to } = request;
        let _ = self.chunk(&from)?;
        let _busy = self.busy(&from).lock_owned().await;
        let chunk = self.chunk(&from)?;
        if self.record().chunks.contains_key(&to) {
            return Err(exists(&to));
        }
        if chunk.published.is_none() {
            let message = format!("{from} has no content yet");
            return Err(Problem::new(ProblemCode::NotFound, message));
        }
        self.revoke(&from, &chunk).await;
        let lock = from
            .lock()
            .map_err(|error| Problem::new(ProblemCode::Invalid, error.to_string()))?;
        let asked = self.client.lock(&lock).metadata("snapshot");
        let asked = asked.ttl(self.config.ttl).wait(self.longest_wait());
        let lease = asked
            .acquire()
            .await
            .map_err(|error| unavailable(&error.to_string()))?;
        let new = NewVersion {
            version: Version::of(lease.token()),
            authority: lease.authority().clone(),
        };
        let replicas = self.candidates(&from, &chunk);
        let Some((first, others)) = replicas.split_first() else {
            return Err(unavailable("no current replica is there to be copied"));
        };
        let members = self.install(&from, &chunk, &new, first, others).await?;
        self.publish(&from, &new, &members, None).await?;
        let request = CloneChunk {
            from,
            to,
            version: new.version,
        };
        let clones = self.clones(&request, &members).await?;
        let CloneChunk { to, version, .. } = request;
        let clone = Chunk {
            published: Some(version),
            ..Chunk::new(clones.clone())
        };
        let id = to.clone();
        self.change(move |record| {
            if record.chunks.contains_key(&id) {
                return Err(exists(&id));
            }
            record.chunks.insert(id, clone);
            Ok(())
        })
        .await?;
        self.saw(&to, version, &clones);
        self.record_locations();
        // If this is lost, the lease expires.
        let _ = lease.release().await;
        Ok(Cloned { version })
    }

    /// Has every replica copy itself, and returns the servers that did.
    async fn clones(
        &self,
        request: &CloneChunk,
        members: &[Location],
    ) -> Result<BTreeSet<ServerId>, Problem> {
        let mut clones = BTreeSet::new();
        let mut last = unavailable("no replica was copied");
        for member in members {
            let copied: Result<Cloned, Problem> =
                call(member.address, "/v1/clone", request, self.config.timeout).await;
            match copied {
                Ok(_) => {
                    clones.insert(member.server.clone());
                }
                Err(problem) => {
                    let message =
                        format!("{} did not copy {}: {problem}", member.server, request.from);
                    event::record(Event::Postponed { message });
                    last = problem;
                }
            }
        }
        if clones.is_empty() {
            Err(last)
        } else {
            Ok(clones)
        }
    }
}
