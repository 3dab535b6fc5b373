//! One arm's world: an authority, a resource and workers, each in its own process.
//!
//! ```text
//!   team: W workers ──┬─ L lanes, each a lock of some kind and its set, or several; every worker of the team contends
//!                     │  for all of them
//!                     ├──► authority      (one in each world)
//!                     └──► resource       (one in each world, with the arm's fence)
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::arm::Arm;
use super::event::Target;
use super::event_log::{EventLog, State};
use super::fixture::Fixture;
use super::lock::lock;
use super::nodes::{Cluster, Observed, Observers};
use super::plan::Plan;
use super::process::{Line, Process};
use super::server::{Server, Setup, Victim};
use super::stop::Stop;
use super::worker::{self, Assignment};

/// The running processes of one arm. Dropping it ends them all.
pub(super) struct World {
    pub(super) arm: Arm,
    pub(super) plan: Plan,
    pub(super) event_log: Arc<EventLog>,
    pub(super) authority: Arc<dyn Victim>,
    pub(super) store: Server,
    pub(super) fixture: Fixture,
    /// Whether the nemesis has made all its faults at least once.
    pub(super) covered: AtomicBool,
    /// Of a single server, if their history is recorded; a cluster has its own.
    observers: Option<Observers>,
    workers: Vec<Mutex<Worker>>,
    folder: PathBuf,
}

#[derive(Debug, Default)]
struct Worker {
    process: Option<Process>,
    /// The number of processes started so far.
    lives: u32,
}

/// The results of a world.
pub(super) struct WorldResults {
    pub(super) arm: Arm,
    pub(super) state: State,
    /// The final set of each lane; of several sets all elements.
    pub(super) sets: BTreeMap<usize, Vec<String>>,
    pub(super) seconds: f64,
    /// Of a cluster, and of a server whose history is recorded.
    pub(super) observed: Option<Observed>,
}

impl World {
    /// Starts all processes, with their files in this folder.
    pub(super) fn start(
        arm: Arm,
        plan: &Plan,
        folder: &Path,
        authority: Option<Arc<dyn Victim>>,
        mut fixture: Fixture,
    ) -> Result<World, String> {
        let mut observers = None;
        let authority: Arc<dyn Victim> = match authority {
            Some(authority) => authority,
            None => {
                let server = Server::start(&Setup {
                    program: &plan.program,
                    role: "serve",
                    arguments: &[],
                    environment: fixture.authority_environment(),
                    folder,
                    data: fixture.authority_data(),
                    listen: fixture.authority_listen(),
                })?;
                let observed = plan.records && server.address().ip().is_loopback();
                observers = observed.then(|| Observers::of_server(server.address(), plan.seed));
                Arc::new(server)
            }
        };
        let store = Server::start(&Setup {
            program: &plan.program,
            role: "store",
            arguments: arm.store_arguments(),
            environment: fixture.resource_environment(),
            folder,
            data: fixture.resource_data(),
            listen: fixture.resource_listen(),
        })?;
        let event_log = Arc::new(EventLog::new());
        fixture.connect(&authority.url(), store.address(), plan, &event_log)?;
        let world = World {
            arm,
            plan: plan.clone(),
            event_log,
            authority,
            store,
            fixture,
            covered: AtomicBool::new(true),
            observers,
            workers: plan.all_workers().map(|_| Mutex::default()).collect(),
            folder: folder.to_owned(),
        };
        for worker in plan.all_workers() {
            world.revive(worker)?;
        }
        Ok(world)
    }

    /// Starts a worker's process, the first or a replacement.
    pub(super) fn revive(&self, index: usize) -> Result<(), String> {
        let plan = &self.plan;
        let mut worker = lock(&self.workers[index]);
        let team = index / plan.workers;
        let millis = |ttls: f64| (plan.ttl.as_secs_f64() * 1_000.0 * ttls) as u64;
        let part = Assignment {
            name: format!("w{index}.{}", worker.lives),
            authority: self.fixture.authority_for(index, &self.authority.url()),
            store: self.fixture.resource_for(index, self.store.address()),
            ttl_ms: millis(1.0),
            think_ms: (millis(plan.think.0), millis(plan.think.1)),
            lanes: plan.lanes_of(team..team + 1).collect(),
            claims: self.arm == Arm::Claim,
            adds_per_grant: plan.adds_per_grant,
            padding: plan.padding,
            records: plan.records && self.arm == Arm::Claim,
            seed: plan.seed ^ (index as u64 + 1) << 16 ^ u64::from(worker.lives),
        };
        let part = serde_json::to_string(&part).map_err(|error| error.to_string())?;
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let line = Line {
            words: vec![own.display().to_string(), "chaos-worker".to_owned(), part],
            environment: self.fixture.worker_environment(index),
            prefix: self.fixture.worker_prefix(index),
        };
        let event_log = Arc::clone(&self.event_log);
        let heard = move |line: Option<String>| event_log.receive(index, line.as_deref());
        let process = Process::start(&line, &self.folder.join("workers.log"), heard);
        worker.process = Some(process.map_err(|error| format!("a worker: {error}"))?);
        worker.lives += 1;
        Ok(())
    }

    /// The folder of its servers and logs.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Stops a worker for a while.
    pub(super) fn pause_worker(&self, index: usize, time: Duration, stop: &Stop) {
        let from_ms = self.event_log.now_ms();
        let each = |act: fn(&Process)| lock(&self.workers[index]).process.iter().for_each(act);
        each(Process::stop);
        stop.comes_within(time);
        each(Process::resume);
        let what = format!("SIGSTOP for {:.0} ms", time.as_secs_f64() * 1e3);
        self.event_log.note(from_ms, Target::Worker(index), what);
    }

    /// Kills a worker and starts a replacement.
    pub(super) fn kill_worker(&self, index: usize) -> Result<(), String> {
        let from_ms = self.event_log.now_ms();
        lock(&self.workers[index]).process.take();
        let what = "SIGKILL and a new process".to_owned();
        self.event_log.note(from_ms, Target::Worker(index), what);
        self.revive(index)
    }

    /// Lets all workers finish, and reads the resource's final sets.
    pub(super) fn end(mut self) -> Result<WorldResults, String> {
        let seconds = self.event_log.now_ms() / 1e3;
        let observed = match self.observers.take() {
            Some(observers) => Some(observers.end()),
            None => self.authority.cluster().map(Cluster::finish),
        };
        for worker in &self.workers {
            lock(worker)
                .process
                .iter_mut()
                .for_each(Process::close_stdin);
        }
        for (index, worker) in self.workers.iter().enumerate() {
            let lives = lock(worker).lives;
            self.event_log.ended(index, lives, LAST_STEPS);
            lock(worker).process.take();
            // Its last lines arrive before the end of its output.
            self.event_log.ended(index, lives, LAST_STEPS);
        }
        let lanes = self.plan.lanes_of(0..self.plan.teams);
        let read = worker::final_sets(&self.store.address().to_string(), lanes)?;
        self.workers.clear();
        let mut state = self.event_log.take();
        if self.plan.records && self.arm == Arm::Claim {
            state.resources.extend(read.history);
        }
        Ok(WorldResults {
            arm: self.arm,
            state,
            sets: read.of_lanes,
            seconds,
            observed,
        })
    }
}

/// How long a worker may take for its last grant.
const LAST_STEPS: Duration = Duration::from_secs(15);
