//! A node of a cluster as a process runs it: its threads, its log, and the pipeline that serves while it leads.
//!
//! ```text
//!   palisade-order   pipeline: follows, or leads and commits through its leadership
//!   palisade-raft    engine and connections to the other nodes, one runtime
//!   palisade-log     writer: votes, entries, truncations; one frame, one fdatasync. A follower on a quick disk writes
//!                    its leader's entries on palisade-raft
//!   palisade-snap    snapshots of the sealed log
//! ```

mod leadership;
mod members;
mod writer;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use palisade_core::Limits;
use palisade_pipeline::durable::Snapshots;
use palisade_pipeline::{Handle, Identity, InTurns, Pipeline, seed, start_in_turns};
use palisade_wal::RecoveryReport;
use tokio::runtime::{self, Runtime};
use tokio::sync::watch;

use crate::applier::Applier;
use crate::engine::{self, Engine, EngineWatch, Tokio};
use crate::entry::NodeId;
use crate::peers::Peers;
use crate::state::StateError;
use crate::store::{Store, Stored};
use leadership::Candidate;
pub use leadership::Readable;
pub use members::{Membership, NotChanged};
pub use writer::LogDisk;

/// Entries that stay in memory behind a snapshot, for followers that are a little behind.
const KEEP: u64 = 1_024;

/// Commits are written down at the latest after this time. Usually the next entry carries them.
const SAVE_COMMIT: Duration = Duration::from_millis(100);

/// How a node is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// The operator's bounds, in force while this node leads.
    pub limits: Limits,
    /// How long things take between nodes.
    pub engine: engine::Settings,
    /// Called when much memory was freed.
    pub give_memory_back: Option<fn()>,
}

/// Why a node could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its log cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// No thread, or the engine refused the log.
    #[error("the node could not start: {0}")]
    Start(#[from] io::Error),
}

/// A running node.
pub struct Node {
    /// The way into its pipeline. Requests are refused while another node leads.
    pub pipeline: Pipeline,
    /// Consensus.
    pub engine: Engine<Tokio>,
    /// Its log, as the disk sees it.
    pub disk: Arc<LogDisk>,
    /// Which batches all members read.
    pub readable: Arc<Readable>,
    /// The findings at start-up.
    pub report: RecoveryReport,
    /// Its log, as its engine sees it.
    pub store: Store,
    snapshots: Snapshots,
    runtime: Engines,
    writer: JoinHandle<()>,
}

/// The runtime of the engine and its connections, made before them.
pub struct Engines {
    handle: runtime::Handle,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Engines {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the operating system gives none.
    pub fn start() -> io::Result<Engines> {
        let runtime: Runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, mut stopped) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("palisade-raft".into())
            .spawn(move || {
                let _ = runtime.block_on(stopped.wait_for(|stop| *stop));
            })?;
        Ok(Engines {
            handle,
            stop,
            thread,
        })
    }

    /// The runtime, to start tasks on.
    #[must_use]
    pub fn handle(&self) -> &runtime::Handle {
        &self.handle
    }
}

impl Node {
    /// Starts a node on its log. It follows from now on, and serves when it leads.
    ///
    /// # Errors
    /// [`Error`]; nothing was answered to other nodes.
    ///
    /// Not an `async fn`: the code of the engine would be generated in each program that starts a node.
    pub fn start<'a>(
        opened: (Stored, RecoveryReport),
        node: NodeId,
        identity: Identity,
        peers: Peers,
        engines: Engines,
        settings: &'a Settings,
    ) -> Pin<Box<dyn Future<Output = Result<Node, Error>> + Send + 'a>> {
        Box::pin(Node::start_with(
            opened,
            (node, identity),
            peers,
            engines,
            settings,
        ))
    }

    async fn start_with(
        (stored, report): (Stored, RecoveryReport),
        (node, identity): (NodeId, Identity),
        peers: Peers,
        engines: Engines,
        settings: &Settings,
    ) -> Result<Node, Error> {
        let Stored { writer, mut state } = stored;
        let revision = state.machine.machine().revision();
        let worked = Arc::new(AtomicBool::new(true));
        let compactor = writer.compactor();
        let log = std::mem::take(&mut state.log);
        let (queue, disk, writer) = writer::start(writer, node, Arc::clone(&worked))?;
        let store = Store::new(log, queue, compactor.clone(), seed());
        let applier = Arc::new(Applier::new(state, store.clone()));
        let start = engine::EngineStart {
            node,
            store: store.clone(),
            applier: Arc::clone(&applier),
            transport: peers,
            settings: settings.engine,
        };
        let started = engines.handle.spawn(Engine::<Tokio>::start(start)).await;
        let engine = started.map_err(io::Error::other)??;
        let readable = Arc::<Readable>::default();
        let candidate = Candidate::new(
            engine.clone(),
            Arc::clone(&applier),
            Arc::clone(&disk),
            Arc::clone(&readable),
        );
        let pipeline = start_in_turns(InTurns {
            identity,
            revision,
            elections: Box::new(candidate),
            limits: settings.limits,
        })?;
        applier.show_to(pipeline.handle.clone());
        let (make_with, raft, on) = (store.clone(), engine.clone(), engines.handle.clone());
        let make = move || {
            let made = make_with.compact()?;
            if made.is_some() {
                on.block_on(raft.snapshot_made(KEEP));
            }
            Ok(made)
        };
        engines
            .handle
            .spawn(save_commits(engine.watch(), store.clone()));
        engines.handle.spawn(engine.clone().complete_changes());
        let snapshots = Snapshots::start(compactor, worked, settings.give_memory_back, make)?;
        Ok(Node {
            pipeline,
            engine,
            disk,
            readable,
            report,
            store,
            snapshots,
            runtime: engines,
            writer,
        })
    }

    /// The way into the pipeline.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.pipeline.handle
    }

    /// Ends the node, after its pipeline was told to stop, and waits until the directory is free.
    pub async fn join(self) {
        let Node {
            pipeline,
            engine,
            disk,
            store,
            snapshots,
            runtime,
            writer,
            ..
        } = self;
        disk.end();
        let blocking = move || {
            let _ = pipeline.thread.join();
            drop(snapshots);
        };
        let _ = tokio::task::spawn_blocking(blocking).await;
        engine.stop().await;
        let _ = store.save_commit();
        runtime.stop.send_replace(true);
        drop((engine, store));
        let blocking = move || {
            let _ = runtime.thread.join();
            let _ = writer.join();
        };
        let _ = tokio::task::spawn_blocking(blocking).await;
    }
}

/// Writes the last commit of an idle node to its disk.
async fn save_commits(mut changes: EngineWatch<Tokio>, store: Store) {
    while changes.changed().await.is_ok() {
        tokio::time::sleep(SAVE_COMMIT).await;
        // A log that takes nothing more has stopped the node already.
        let _ = store.save_commit();
    }
}
