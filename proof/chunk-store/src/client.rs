//! A client of the chunk store. It asks the master who has a chunk, and moves data to and from chunk servers itself.

use std::net::SocketAddr;
use std::time::Duration;

use palisade_core::Span;

use crate::event::now;
use crate::http::call;
use crate::name::{ChunkId, ServerId};
use crate::version::Version;
use crate::wire::{
    Append, Appended, Cloned, Content, Done, Named, PrimaryOf, Problem, ProblemCode, Read,
    Replicas, Retire, Snapshot, Status, WantPrimary,
};

/// Reads and writes chunks.
#[derive(Clone, Debug)]
pub struct ChunkClient {
    master: SocketAddr,
    limit: Duration,
}

/// The time from one attempt to the next.
const PAUSE: Duration = Duration::from_millis(50);

/// How long one replica is waited for; another one has the same content.
const ONE_REPLICA: Duration = Duration::from_secs(2);

impl ChunkClient {
    /// A client that gives up after `limit`.
    #[must_use]
    pub fn new(master: SocketAddr, limit: Duration) -> ChunkClient {
        ChunkClient { master, limit }
    }

    /// Makes an empty chunk.
    ///
    /// # Errors
    /// The master's refusal, or that it did not answer.
    pub async fn create(&self, chunk: &ChunkId) -> Result<(), Problem> {
        let chunk = chunk.clone();
        let _: Done = call(self.master, "/v1/create", &Named { chunk }, self.limit).await?;
        Ok(())
    }

    /// Deletes a chunk.
    ///
    /// # Errors
    /// The master's refusal, or that it did not answer.
    pub async fn delete(&self, chunk: &ChunkId) -> Result<(), Problem> {
        let chunk = chunk.clone();
        let _: Done = call(self.master, "/v1/delete", &Named { chunk }, self.limit).await?;
        Ok(())
    }

    /// Appends a record, and returns once it is durable at every replica of the chunk's version.
    ///
    /// # Errors
    /// [`ProblemCode::Stale`]: the primary was not the primary any more, and the record is not in the chunk.
    /// [`ProblemCode::Incomplete`] and [`ProblemCode::NoAnswer`]: it may be in the chunk; if it is appended again, it may
    /// be there twice.
    pub async fn append(&self, chunk: &ChunkId, data: &str) -> Result<Appended, Problem> {
        let until = now().after(Span::from(self.limit));
        let mut refused: Option<Version> = None;
        loop {
            let left = until.since(now()).to_duration();
            let want = WantPrimary {
                chunk: chunk.clone(),
                refused,
            };
            let problem = match call(self.master, "/v1/primary", &want, left).await {
                Ok(PrimaryOf { version, primary }) => {
                    let append = Append {
                        chunk: chunk.clone(),
                        version,
                        data: data.to_owned(),
                    };
                    let problem = match call(primary.address, "/v1/append", &append, left).await {
                        Ok(appended) => return Ok(appended),
                        Err(problem) => problem,
                    };
                    refused = Some(version);
                    problem
                }
                Err(problem) => problem,
            };
            // Nothing was written in these two cases.
            let again = matches!(
                problem.code,
                ProblemCode::NotPrimary | ProblemCode::Unavailable
            );
            if !again || until <= now() {
                return Err(problem);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reads a chunk from any of its current replicas.
    ///
    /// # Errors
    /// The last problem, if no current replica answered within the limit.
    pub async fn read(&self, chunk: &ChunkId) -> Result<Content, Problem> {
        let until = now().after(Span::from(self.limit));
        loop {
            let problem = match self.lookup(chunk).await {
                Ok(replicas) => match self.read_any(chunk, &replicas).await {
                    Ok(content) => return Ok(content),
                    Err(problem) => problem,
                },
                Err(problem) => problem,
            };
            let final_answer = matches!(problem.code, ProblemCode::Invalid);
            if final_answer || until <= now() {
                return Err(problem);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn read_any(&self, chunk: &ChunkId, replicas: &Replicas) -> Result<Content, Problem> {
        let mut last = Problem::new(ProblemCode::Unavailable, "no replica is there");
        for replica in &replicas.replicas {
            match self
                .read_from(replica.address, chunk, replicas.version)
                .await
            {
                Ok(content) => return Ok(content),
                Err(problem) => last = problem,
            }
        }
        Err(last)
    }

    /// Reads a chunk from one replica, at one version (rule K7).
    ///
    /// # Errors
    /// The replica's refusal if it has another version, or that it did not answer.
    pub async fn read_from(
        &self,
        replica: SocketAddr,
        chunk: &ChunkId,
        version: Version,
    ) -> Result<Content, Problem> {
        let chunk = chunk.clone();
        let read = Read { chunk, version };
        call(replica, "/v1/read", &read, self.limit.min(ONE_REPLICA)).await
    }

    /// Names the current replicas of a chunk.
    ///
    /// # Errors
    /// The master's refusal, or that it did not answer.
    pub async fn lookup(&self, chunk: &ChunkId) -> Result<Replicas, Problem> {
        let chunk = chunk.clone();
        call(self.master, "/v1/lookup", &Named { chunk }, self.limit).await
    }

    /// Copies a chunk, as it is now, under another name.
    ///
    /// # Errors
    /// The master's refusal, or that it did not answer.
    pub async fn snapshot(&self, from: &ChunkId, to: &ChunkId) -> Result<Cloned, Problem> {
        let snapshot = Snapshot {
            from: from.clone(),
            to: to.clone(),
        };
        call(self.master, "/v1/snapshot", &snapshot, self.limit).await
    }

    /// Retires a chunk server that is gone for good: nobody waits for it any more, and its name is refused for ever.
    ///
    /// # Errors
    /// [`ProblemCode::InUse`]: it is live, or has the only current replica of a chunk, and `force` is not set.
    /// [`ProblemCode::Unavailable`]: the master started a moment ago, and it may still report. Or the master did not
    /// answer.
    pub async fn retire(&self, server: &ServerId, force: bool) -> Result<(), Problem> {
        let server = server.clone();
        let _: Done = call(
            self.master,
            "/v1/retire",
            &Retire { server, force },
            self.limit,
        )
        .await?;
        Ok(())
    }

    /// The master's view.
    ///
    /// # Errors
    /// That it did not answer.
    pub async fn status(&self) -> Result<Status, Problem> {
        call(self.master, "/v1/status", &Done {}, self.limit).await
    }
}
