//! Carries out the decisions of [`placement`](super::placement).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::Span;

use super::placement::Decision;
use super::{Master, lock, unavailable};
use crate::event::{self, Event};
use crate::http::call;
use crate::name::{ChunkId, ServerId};
use crate::wire::{Add, Collect, Done, Location, Problem, ProblemCode};

/// The time from one look to the next.
const PAUSE: Duration = Duration::from_millis(100);

/// How long nothing is tried again for a chunk.
const AFTER_FAILURE: Span = Span::from_millis(500);

/// Decides and acts as long as the process runs.
pub(super) async fn run(master: Arc<Master>) {
    let mut turns = tokio::time::interval(PAUSE);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        master.record_locations();
        let decisions = {
            let reports = lock(&master.reports);
            master
                .placement
                .decide(&master.record(), &reports, event::now())
        };
        for decision in decisions {
            let chunk = decision.chunk().clone();
            if master.is_postponed(&chunk) {
                continue;
            }
            // A chunk that somebody works on has its turn later, with another decision.
            if let Some(busy) = master.try_busy(&chunk) {
                let master = Arc::clone(&master);
                tokio::spawn(async move {
                    if let Err(problem) = master.carry_out(decision).await {
                        let message = problem.to_string();
                        event::record(Event::Postponed { message });
                        let until = event::now().after(AFTER_FAILURE);
                        lock(&master.postponed).insert(chunk, until);
                    }
                    drop(busy);
                });
            }
        }
    }
}

impl Master {
    fn is_postponed(&self, chunk: &ChunkId) -> bool {
        let postponed = lock(&self.postponed);
        postponed
            .get(chunk)
            .is_some_and(|until| event::now() < *until)
    }

    async fn carry_out(&self, decision: Decision) -> Result<(), Problem> {
        match decision {
            Decision::Collect {
                server,
                chunk,
                version,
            } => {
                let address = self.address(&server);
                let address = address.ok_or_else(|| unavailable("the server is gone"))?;
                let collect = Collect {
                    chunk: chunk.clone(),
                    version,
                };
                let _: Done = call(address, "/v1/collect", &collect, self.config.timeout).await?;
                if let Some(report) = lock(&self.reports).get_mut(&server) {
                    report.replicas.remove(&chunk);
                }
                Ok(())
            }
            Decision::Add { server, chunk } => {
                let joining = (chunk.clone(), server.clone());
                lock(&self.joining).insert(joining.clone());
                let added = self.add(&chunk, server).await;
                lock(&self.joining).remove(&joining);
                added
            }
            Decision::Grant { chunk } => {
                let now = self.chunk(&chunk)?;
                if now.installing.is_some() {
                    let _ = self.ensure_primary(&chunk, now.published).await?;
                }
                Ok(())
            }
        }
    }

    /// Makes a replica anew. The primary copies its own, and sends every later mutation there, too.
    async fn add(&self, chunk: &ChunkId, server: ServerId) -> Result<(), Problem> {
        let address = self.address(&server);
        let address = address.ok_or_else(|| unavailable("the server is gone"))?;
        let target = Location {
            server: server.clone(),
            address,
        };
        let mut refused = None;
        let version = loop {
            let primary = self.ensure_primary(chunk, refused).await?;
            let add = Add {
                chunk: chunk.clone(),
                version: primary.version,
                target: target.clone(),
            };
            let added: Result<Done, Problem> = call(
                primary.primary.address,
                "/v1/add",
                &add,
                2 * self.config.timeout,
            )
            .await;
            match added {
                Ok(Done {}) => break primary.version,
                Err(problem) if problem.code == ProblemCode::NotPrimary && refused.is_none() => {
                    refused = Some(primary.version);
                }
                Err(problem) => return Err(problem),
            }
        };
        self.change_chunk(chunk, |chunk| {
            chunk.members.insert(server.clone());
        })
        .await?;
        self.saw(chunk, version, &BTreeSet::from([server]));
        self.record_locations();
        Ok(())
    }
}
