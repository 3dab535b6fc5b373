//! The replicas of a chunk server: a slot for each chunk, and a file for each replica.
//!
//! [`primary`](super::primary) and this module import each other: a slot may have the primary, which works on the slot.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::primary::Primary;
use super::replica::{Replica, not_here};
use crate::Failure;
use crate::durable::{Folder, or_stop};
use crate::name::ChunkId;
use crate::version::Version;
use crate::wire::{Problem, Reported};

/// A server's replica of one chunk. Its lock is held during a mutation, so the mutations of a chunk run one after the
/// other.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) replica: Option<Replica>,
    pub(crate) primary: Option<Primary>,
}

type Shared = Arc<AsyncMutex<Slot>>;

/// A slot that nobody else works on.
pub(crate) type Held = OwnedMutexGuard<Slot>;

/// All slots.
pub(crate) struct Slots {
    folder: Arc<Folder>,
    /// Answers do not wait for the disk, and nothing is written: **loses data**.
    danger_unsynced: bool,
    slots: Mutex<BTreeMap<ChunkId, Shared>>,
    /// The versions on the disk, for heartbeats, which must not wait for a mutation.
    versions: Mutex<BTreeMap<ChunkId, Version>>,
}

const ENDING: &str = "chunk";

fn file(chunk: &ChunkId) -> String {
    format!("{chunk}.{ENDING}")
}

impl Slots {
    /// Reads all replicas. A damaged one keeps the server from starting, by its name.
    pub(crate) fn open(folder: Folder, danger_unsynced: bool) -> Result<Slots, Failure> {
        let (mut slots, mut versions) = (BTreeMap::new(), BTreeMap::new());
        for path in folder.files(ENDING)? {
            let replica = load(&path).map_err(|why| {
                format!(
                    "{} is damaged: {why}; remove it, and the replica is made anew",
                    path.display()
                )
            })?;
            versions.insert(replica.chunk.clone(), replica.version);
            let chunk = replica.chunk.clone();
            let slot = Slot {
                replica: Some(replica),
                primary: None,
            };
            slots.insert(chunk, Arc::new(AsyncMutex::new(slot)));
        }
        Ok(Slots {
            folder: Arc::new(folder),
            danger_unsynced,
            slots: Mutex::new(slots),
            versions: Mutex::new(versions),
        })
    }

    /// The slot of a chunk, made if it is missing.
    pub(crate) async fn made(&self, chunk: &ChunkId) -> Held {
        let slot = Arc::clone(lock(&self.slots).entry(chunk.clone()).or_default());
        slot.lock_owned().await
    }

    /// The slot of a chunk, if there is one.
    ///
    /// # Errors
    /// There is none. Requests for names that nobody has leave nothing behind.
    pub(crate) async fn found(&self, chunk: &ChunkId) -> Result<Held, Problem> {
        let slot = lock(&self.slots).get(chunk).cloned();
        Ok(slot.ok_or_else(|| not_here(chunk))?.lock_owned().await)
    }

    /// Puts a replica into its slot, once it is durable.
    pub(crate) async fn keep(&self, slot: &mut Slot, replica: Replica) {
        let (name, content) = (file(&replica.chunk), bytes(&replica));
        self.write(move |folder| folder.replace(&name, &content?))
            .await;
        lock(&self.versions).insert(replica.chunk.clone(), replica.version);
        slot.replica = Some(replica);
    }

    /// Removes the replica of a slot.
    pub(crate) async fn remove(&self, slot: &mut Slot, chunk: &ChunkId) {
        let name = file(chunk);
        self.write(move |folder| folder.remove(&name)).await;
        lock(&self.versions).remove(chunk);
        slot.replica = None;
    }

    /// Changes the folder. The change is on stable storage when this returns, unless syncs are skipped.
    async fn write(&self, change: impl FnOnce(&Folder) -> io::Result<()> + Send + 'static) {
        if self.danger_unsynced {
            return;
        }
        let folder = Arc::clone(&self.folder);
        or_stop(move || change(&folder)).await;
    }

    /// The replicas that a heartbeat reports (rule K5).
    pub(crate) fn reported(&self) -> Vec<Reported> {
        let versions = lock(&self.versions);
        let reported = versions.iter().map(|(chunk, version)| Reported {
            chunk: chunk.clone(),
            version: *version,
        });
        reported.collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is a single insertion or removal, so a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A checksum in hexadecimal, a line end, and the replica as JSON.
fn bytes(replica: &Replica) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(replica)?;
    let mut bytes = format!("{}\n", checksum(&json)).into_bytes();
    bytes.extend(json);
    Ok(bytes)
}

fn load(path: &Path) -> Result<Replica, Failure> {
    let bytes = std::fs::read(path)?;
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (sum, json) = bytes.split_at(end.ok_or("it has one line only")?);
    let json = json.get(1..).unwrap_or_default();
    if sum != checksum(json).as_bytes() {
        return Err("its checksum does not match".into());
    }
    let replica: Replica = serde_json::from_slice(json)?;
    if path
        .file_name()
        .is_some_and(|name| *name == *file(&replica.chunk))
    {
        Ok(replica)
    } else {
        Err(format!("it contains {}", replica.chunk).into())
    }
}

fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
