//! A chunk server: keeps replicas, is the primary of some chunks, and reports to the master.
//!
//! ```text
//!   master ── grant · install · publish · revoke · add · clone · collect ──►┐
//!   client ── append · read ───────────────────────────────────────────────►│ slot of the chunk ─► replica's file
//!   primary ─ apply · store ───────────────────────────────────────────────►┘
//!   heartbeat: (chunk, version) of every replica ──► master       one lease, renewed once for all chunks ──► authority
//! ```

mod heartbeat;
mod primary;
mod replica;
mod slots;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use palisade_client::{Client, Lease};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

pub use replica::Checks;

use crate::Failure;
use crate::durable::Folder;
use crate::event::{Event, record};
use crate::http;
use crate::name::ServerId;
use crate::wire::{
    CloneChunk, Cloned, Collect, Content, Done, Install, Installed, MAX_CHUNK, Mutation, Problem,
    ProblemCode, Read,
};
use replica::{Admitted, Replica};
use slots::Slots;

/// The configuration of a chunk server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Its name.
    pub server: ServerId,
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The folder of its replicas.
    pub data: PathBuf,
    /// The master.
    pub master: SocketAddr,
    /// The lock server.
    pub authority: String,
    /// How long its lease lasts without renewal.
    pub ttl: Duration,
    /// The time from one heartbeat to the next.
    pub heartbeat: Duration,
    /// How long it waits for a secondary.
    pub timeout: Duration,
    /// Whether replicas check versions.
    pub checks: Checks,
    /// Answers do not wait for the disk, for comparison: **loses data**. Writes stay in the memory of this process, so
    /// a kill loses them, as a power failure may lose writes that were not synced.
    pub danger_unsynced: bool,
    /// As the primary, it stops its own process in front of this record, right after it checked its lease. Garbage
    /// collection, a virtual machine or a full disk can do that to any process at any moment.
    pub freeze_at: Option<String>,
}

/// A running chunk server.
pub(crate) struct ChunkServer {
    config: ServerConfig,
    address: SocketAddr,
    client: Client,
    /// The lease under which all its grants are, so that one renewal serves all of them (rule K1).
    lease: Mutex<Option<Lease>>,
    slots: Slots,
}

/// Serves until the process ends.
///
/// # Errors
/// Why it cannot serve: the folder, a damaged replica, the port or the authority.
pub async fn serve(config: ServerConfig) -> Result<(), Failure> {
    let slots = Slots::open(Folder::open(&config.data)?, config.danger_unsynced)?;
    let client = Client::connect(&config.authority).await?;
    let listener = TcpListener::bind(config.listen).await?;
    let address = listener.local_addr()?;
    let server = Arc::new(ChunkServer {
        config,
        address,
        client,
        lease: Mutex::new(None),
        slots,
    });
    let router = http::routes!(server, {
        "/v1/grant" => grant,
        "/v1/install" => install,
        "/v1/publish" => publish,
        "/v1/revoke" => revoke,
        "/v1/append" => append,
        "/v1/apply" => apply,
        "/v1/add" => add,
        "/v1/store" => store,
        "/v1/read" => read,
        "/v1/clone" => clone_chunk,
        "/v1/collect" => collect,
    });
    record(Event::Listening { address });
    tokio::spawn(heartbeat::run(Arc::clone(&server)));
    http::serve(listener, router).await
}

impl ChunkServer {
    /// Records a version, durably, before it answers (rule K3).
    async fn install(self: Arc<Self>, request: Install) -> Result<Installed, Problem> {
        let mut slot = self.slots.made(&request.chunk).await;
        let next = match &slot.replica {
            Some(replica) => replica.install(self.config.checks, &request)?,
            None => Replica::first(&request)?,
        };
        let (last, content) = (next.last, next.records());
        self.slots.keep(&mut slot, next).await;
        record(Event::Installed {
            server: self.config.server.clone(),
            chunk: request.chunk,
            version: request.version,
            content,
        });
        Ok(Installed { last })
    }

    /// Carries a primary's mutation out.
    async fn apply(self: Arc<Self>, mutation: Mutation) -> Result<Done, Problem> {
        let mut slot = self.slots.found(&mutation.chunk).await?;
        self.carry_out(&mut slot, &mutation).await?;
        Ok(Done {})
    }

    /// Judges a mutation, and makes it durable if it is admitted (rule K4).
    async fn carry_out(&self, slot: &mut slots::Slot, mutation: &Mutation) -> Result<(), Problem> {
        let here = slot.replica.as_ref();
        let replica = here.ok_or_else(|| replica::not_here(&mutation.chunk))?;
        let (server, chunk) = (self.config.server.clone(), mutation.chunk.clone());
        let version = mutation.position.version;
        let data = mutation.data.trim_end().to_owned();
        match replica.apply(self.config.checks, mutation) {
            Ok(Admitted::Repeat) => {}
            Ok(Admitted::Applied(next)) => {
                let content = next.records();
                self.slots.keep(slot, *next).await;
                record(Event::Applied {
                    server,
                    chunk,
                    version,
                    serial: mutation.position.serial,
                    data,
                    content,
                });
            }
            Err(problem) => {
                record(Event::Refused {
                    server,
                    chunk,
                    version,
                    installed: replica.version,
                    data,
                });
                return Err(problem);
            }
        }
        Ok(())
    }

    /// Takes a whole replica from a primary, where there is none.
    async fn store(self: Arc<Self>, replica: Replica) -> Result<Done, Problem> {
        let mut slot = self.slots.made(&replica.chunk).await;
        if replica.data.len() > MAX_CHUNK {
            return Err(Problem::new(ProblemCode::Invalid, "the chunk is too long"));
        }
        if let Some(here) = &slot.replica {
            let message = format!("there is a replica of {} here", replica.chunk);
            return Err(Problem::new(ProblemCode::Exists, message).at(here.version));
        }
        let copied = Event::Copied {
            server: self.config.server.clone(),
            chunk: replica.chunk.clone(),
            version: replica.version,
            content: replica.records(),
        };
        self.slots.keep(&mut slot, replica).await;
        record(copied);
        Ok(Done {})
    }

    async fn read(self: Arc<Self>, request: Read) -> Result<Content, Problem> {
        let slot = self.slots.found(&request.chunk).await?;
        let here = slot.replica.as_ref();
        let replica = here.ok_or_else(|| replica::not_here(&request.chunk))?;
        replica.read(self.config.checks, request.version)?;
        Ok(Content {
            version: replica.version,
            last: replica.last,
            data: replica.data.clone(),
        })
    }

    /// Copies a replica under another name (rule K7). A second time is the same.
    async fn clone_chunk(self: Arc<Self>, request: CloneChunk) -> Result<Cloned, Problem> {
        let slot = self.slots.found(&request.from).await?;
        let here = slot.replica.as_ref();
        let replica = here.ok_or_else(|| replica::not_here(&request.from))?;
        replica.read(self.config.checks, request.version)?;
        let clone = replica.clone_as(request.to.clone());
        drop(slot);
        let mut slot = self.slots.made(&request.to).await;
        if slot.replica.as_ref().is_some_and(|there| *there != clone) {
            let message = format!("there is a replica of {} here", request.to);
            return Err(Problem::new(ProblemCode::Exists, message));
        }
        let content = clone.records();
        self.slots.keep(&mut slot, clone).await;
        record(Event::Cloned {
            server: self.config.server.clone(),
            chunk: request.to,
            version: request.version,
            content,
        });
        Ok(Cloned {
            version: request.version,
        })
    }

    /// Deletes a replica, if it is still the one that the master judged (rule K6).
    async fn collect(self: Arc<Self>, request: Collect) -> Result<Done, Problem> {
        let Ok(mut slot) = self.slots.found(&request.chunk).await else {
            return Ok(Done {});
        };
        match &slot.replica {
            Some(replica) if replica.version != request.version => {
                let message = format!("this replica has version {} by now", replica.version);
                return Err(Problem::new(ProblemCode::Exists, message).at(replica.version));
            }
            Some(_) => {}
            None => return Ok(Done {}),
        }
        self.give_up(&mut slot);
        self.slots.remove(&mut slot, &request.chunk).await;
        record(Event::Collected {
            server: self.config.server.clone(),
            chunk: request.chunk,
            version: request.version,
        });
        Ok(Done {})
    }
}
