//! The master: knows the chunks and their versions, judges the reports of chunk servers, and chooses primaries.
//!
//! ```text
//!   heartbeat ──► reports ─┐
//!                          ├─► placement (pure): current, stale, unknown, ahead; collect, add, grant ──► maintenance
//!   durable record ────────┘
//!   client: primary? ──► grants: revoke ─► grant ─► install at all ─► record ─► publish ──► answer
//! ```
//!
//! Only the lock server decides who holds a lease, so the master cannot grant a second primary by mistake.

mod grants;
mod maintenance;
mod placement;
mod record;
mod retire;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade_client::Client;
use palisade_core::{Span, Timestamp};
use tokio::net::TcpListener;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::Failure;
use crate::durable::{Folder, or_stop};
use crate::event::{self, Event};
use crate::http;
use crate::name::{ChunkId, ServerId};
use crate::version::Version;
use crate::wire::{
    Done, Heartbeat, Judged, Location, Named, Problem, ProblemCode, Replicas, Reported, Standing,
    Status,
};
use placement::{Held, Placement, Report, Reports, all_reported, missing, standing};
use record::{Chunk, MasterRecord};

/// The configuration of a master.
#[derive(Clone, Debug)]
pub struct MasterConfig {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The folder of its record.
    pub data: PathBuf,
    /// The lock server.
    pub authority: String,
    /// How long the leases of chunk servers last without renewal.
    pub ttl: Duration,
    /// How many replicas a chunk should have.
    pub copies: usize,
    /// A chunk server without a heartbeat for this long is not sent anything.
    pub dead_after: Duration,
    /// A useless replica stays for this long.
    pub collect_after: Duration,
    /// How long it waits for a chunk server.
    pub timeout: Duration,
}

/// A running master.
pub(crate) struct Master {
    config: MasterConfig,
    /// When this process started.
    started: Timestamp,
    placement: Placement,
    client: Client,
    folder: Arc<Folder>,
    /// The record as it is on the disk.
    record: Mutex<Arc<MasterRecord>>,
    /// Held while the record changes.
    writer: AsyncMutex<()>,
    reports: Mutex<Reports>,
    /// Replicas that are being made anew: nothing is judged of them meanwhile.
    joining: Mutex<BTreeSet<(ChunkId, ServerId)>>,
    /// Held while a chunk gets a version, a replica or a snapshot.
    busy: Mutex<BTreeMap<ChunkId, Arc<AsyncMutex<()>>>>,
    /// The look-ups that were recorded last.
    located: Mutex<BTreeMap<ChunkId, (Version, Vec<ServerId>)>>,
    /// Chunks for which something failed, and until when nothing is tried.
    postponed: Mutex<BTreeMap<ChunkId, Timestamp>>,
    alarms: AtomicU64,
}

const FILE: &str = "master.json";

/// Serves until the process ends.
///
/// # Errors
/// Why it cannot serve: the folder, a damaged record, the port or the authority.
pub async fn serve(config: MasterConfig) -> Result<(), Failure> {
    let folder = Folder::open(&config.data)?;
    let path = folder.file(FILE);
    let record: MasterRecord = if path.exists() {
        serde_json::from_slice(&std::fs::read(&path)?)
            .map_err(|error| format!("{} is damaged: {error}", path.display()))?
    } else {
        MasterRecord::default()
    };
    let listener = TcpListener::bind(config.listen).await?;
    let address = listener.local_addr()?;
    let master = Arc::new(Master {
        started: event::now(),
        placement: Placement {
            copies: config.copies,
            dead_after: Span::from(config.dead_after),
            collect_after: Span::from(config.collect_after),
        },
        client: Client::connect(&config.authority).await?,
        folder: Arc::new(folder),
        record: Mutex::new(Arc::new(record)),
        writer: AsyncMutex::default(),
        reports: Mutex::default(),
        joining: Mutex::default(),
        busy: Mutex::default(),
        located: Mutex::default(),
        postponed: Mutex::default(),
        alarms: AtomicU64::new(0),
        config,
    });
    let router = http::routes!(master, {
        "/v1/heartbeat" => heartbeat,
        "/v1/create" => create,
        "/v1/delete" => delete,
        "/v1/primary" => primary,
        "/v1/lookup" => lookup,
        "/v1/snapshot" => snapshot,
        "/v1/status" => status,
        "/v1/retire" => retire,
    });
    event::record(Event::Listening { address });
    tokio::spawn(maintenance::run(Arc::clone(&master)));
    http::serve(listener, router).await
}

impl Master {
    /// Takes a chunk server's report, and returns the verdict about each replica (rule K5).
    async fn heartbeat(self: Arc<Self>, heartbeat: Heartbeat) -> Result<Judged, Problem> {
        let server = heartbeat.server.clone();
        if !self.record().servers.contains(&server) {
            self.change(move |record| {
                if record.retired.contains(&server) {
                    Err(retire::retired(&server))
                } else {
                    record.servers.insert(server);
                    Ok(())
                }
            })
            .await?;
        }
        let judged = self.judge(heartbeat)?;
        self.record_locations();
        Ok(judged)
    }

    fn judge(&self, heartbeat: Heartbeat) -> Result<Judged, Problem> {
        let server = heartbeat.server;
        let mut reports = lock(&self.reports);
        let (record, now) = (self.record(), event::now());
        if record.retired.contains(&server) {
            return Err(retire::retired(&server));
        }
        let before = reports.remove(&server).map(|report| report.replicas);
        let mut replicas = BTreeMap::new();
        for Reported { chunk, version } in heartbeat.replicas {
            if lock(&self.joining).contains(&(chunk.clone(), server.clone())) {
                continue;
            }
            let standing = standing(record.chunks.get(&chunk), &server, version);
            let known = before
                .as_ref()
                .and_then(|before| before.get(&chunk))
                .copied();
            let same = known.filter(|held| (held.version, held.standing) == (version, standing));
            if same.is_none() {
                self.judged(&server, &chunk, version, standing);
            }
            let since = same.map_or(now, |held| held.since);
            replicas.insert(
                chunk,
                Held {
                    version,
                    standing,
                    since,
                },
            );
        }
        let judged = replicas.iter();
        let judged = judged.map(|(chunk, held)| (chunk.clone(), held.standing));
        let judged = Judged {
            replicas: judged.collect(),
        };
        let (at, address) = (now, heartbeat.address);
        reports.insert(
            server,
            Report {
                at,
                address,
                replicas,
            },
        );
        Ok(judged)
    }

    /// Records a new judgement. `ahead` is an alarm: no durable authority lets it happen.
    fn judged(&self, server: &ServerId, chunk: &ChunkId, version: Version, standing: Standing) {
        if standing == Standing::Ahead {
            self.alarms.fetch_add(1, Ordering::Relaxed);
            eprintln!(
                "ALARM: {server} has {chunk} at version {version}, which was never granted here. It is refused and kept. \
                 Was this master's folder or the lock server restored from a backup?"
            );
        }
        event::record(Event::Judged {
            server: server.clone(),
            chunk: chunk.clone(),
            version,
            standing,
        });
    }

    /// Makes a chunk, without a version yet.
    async fn create(self: Arc<Self>, request: Named) -> Result<Done, Problem> {
        if self.record().chunks.contains_key(&request.chunk) {
            return Err(exists(&request.chunk));
        }
        let members = {
            let reports = lock(&self.reports);
            self.placement
                .for_new(&request.chunk, &reports, event::now())
        };
        if members.is_empty() {
            return Err(unavailable("no chunk server is there to take the chunk"));
        }
        self.change(move |record| {
            if record.chunks.contains_key(&request.chunk) {
                return Err(exists(&request.chunk));
            }
            record.chunks.insert(request.chunk, Chunk::new(members));
            Ok(Done {})
        })
        .await
    }

    /// Deletes a chunk. Its replicas are unknown from then on, and collected.
    async fn delete(self: Arc<Self>, request: Named) -> Result<Done, Problem> {
        let _ = self.chunk(&request.chunk)?;
        let _busy = self.busy(&request.chunk).lock_owned().await;
        let chunk = self.chunk(&request.chunk)?;
        self.revoke(&request.chunk, &chunk).await;
        self.change(move |record| {
            record.chunks.remove(&request.chunk);
            Ok(Done {})
        })
        .await
    }

    /// Names the current replicas of a chunk (rule K6).
    async fn lookup(self: Arc<Self>, request: Named) -> Result<Replicas, Problem> {
        let chunk = self.chunk(&request.chunk)?;
        let Some(version) = chunk.published else {
            let message = format!("{} has no content yet", request.chunk);
            return Err(Problem::new(ProblemCode::NotFound, message));
        };
        let replicas = self.locations(&request.chunk, &chunk);
        if replicas.is_empty() {
            let message = format!("no current replica of {} is there now", request.chunk);
            return Err(unavailable(&message));
        }
        Ok(Replicas { version, replicas })
    }

    async fn status(self: Arc<Self>, _: Done) -> Result<Status, Problem> {
        let (reports, now) = (lock(&self.reports), event::now());
        let record = self.record();
        let live = reports
            .iter()
            .filter(|(_, report)| self.placement.is_live(report, now));
        Ok(Status {
            live: live.map(|(server, _)| server.clone()).collect(),
            all_reported: all_reported(&record, &reports),
            missing: missing(&record, &reports).cloned().collect(),
            retired: record.retired.iter().cloned().collect(),
            alarms: self.alarms.load(Ordering::Relaxed),
        })
    }

    /// The durable record.
    fn record(&self) -> Arc<MasterRecord> {
        Arc::clone(&lock(&self.record))
    }

    fn chunk(&self, id: &ChunkId) -> Result<Chunk, Problem> {
        let chunk = self.record().chunks.get(id).cloned();
        chunk.ok_or_else(|| {
            let message = format!("there is no chunk {id}");
            Problem::new(ProblemCode::NotFound, message)
        })
    }

    /// Changes the record. It is on stable storage when this returns, and nobody saw it before.
    async fn change<T>(
        &self,
        change: impl FnOnce(&mut MasterRecord) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let _writing = self.writer.lock().await;
        let mut next = (*self.record()).clone();
        let changed = change(&mut next)?;
        let (folder, next) = (Arc::clone(&self.folder), Arc::new(next));
        let content = Arc::clone(&next);
        or_stop(move || folder.replace(FILE, &serde_json::to_vec_pretty(&*content)?)).await;
        *lock(&self.record) = next;
        Ok(changed)
    }

    /// Changes one chunk of the record.
    async fn change_chunk(
        &self,
        id: &ChunkId,
        change: impl FnOnce(&mut Chunk),
    ) -> Result<(), Problem> {
        self.change(|record| match record.chunks.get_mut(id) {
            Some(chunk) => {
                change(chunk);
                Ok(())
            }
            None => Err(Problem::new(
                ProblemCode::NotFound,
                format!("there is no chunk {id}"),
            )),
        })
        .await
    }

    /// The lock of work on a chunk; the caller has seen that the chunk exists.
    fn busy(&self, id: &ChunkId) -> Arc<AsyncMutex<()>> {
        Arc::clone(lock(&self.busy).entry(id.clone()).or_default())
    }

    /// The same, unless somebody works on the chunk now.
    fn try_busy(&self, id: &ChunkId) -> Option<OwnedMutexGuard<()>> {
        self.busy(id).try_lock_owned().ok()
    }

    fn locations(&self, id: &ChunkId, chunk: &Chunk) -> Vec<Location> {
        let reports = lock(&self.reports);
        let current = self.placement.current(id, chunk, &reports, event::now());
        let locations = current.map(|(server, report)| location(server, report));
        locations.collect()
    }

    /// Where a server listens, if it has reported since the master started.
    fn address(&self, server: &ServerId) -> Option<SocketAddr> {
        lock(&self.reports).get(server).map(|report| report.address)
    }

    /// Records the servers that look-ups name, where they changed.
    fn record_locations(&self) {
        for (id, chunk) in &self.record().chunks {
            let Some(version) = chunk.published else {
                continue;
            };
            let locations = self.locations(id, chunk).into_iter();
            let servers: Vec<ServerId> = locations.map(|location| location.server).collect();
            let mut located = lock(&self.located);
            if located.get(id) != Some(&(version, servers.clone())) {
                located.insert(id.clone(), (version, servers.clone()));
                event::record(Event::Located {
                    chunk: id.clone(),
                    version,
                    servers,
                });
            }
        }
    }
}

fn location(server: &ServerId, report: &Report) -> Location {
    Location {
        server: server.clone(),
        address: report.address,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is a single insertion, removal or assignment, so a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unavailable(message: &str) -> Problem {
    Problem::new(ProblemCode::Unavailable, message)
}

fn exists(chunk: &ChunkId) -> Problem {
    let message = format!("there is a chunk {chunk} already");
    Problem::new(ProblemCode::Exists, message)
}
