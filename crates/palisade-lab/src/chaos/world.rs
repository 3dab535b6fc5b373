//! One arm's world: an authority, a resource and workers, each a process of its own.
//!
//! ```text
//!   team: W workers ──┬─ L lanes, each a lock and a set; every worker of the team wants all of them
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
use super::ledger::{Ledger, State};
use super::process::{Line, Process};
use super::server::{Server, Setup, Victim, lock};
use super::stage::Stage;
use super::stop::Stop;
use super::worker::{self, Part};

/// What a world is like; the same for all arms.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The program under test.
    pub(super) program: PathBuf,
    pub(super) ttl: Duration,
    /// How long a worker thinks, at least and at most, in time to lives.
    pub(super) think: (f64, f64),
    pub(super) teams: usize,
    /// Workers in a team.
    pub(super) workers: usize,
    /// Lanes of a team.
    pub(super) lanes: usize,
    pub(super) adds_per_grant: u64,
    /// Bytes that each element has beside its name.
    pub(super) padding: usize,
    /// Acknowledged adds that the run goes for.
    pub(super) adds: u64,
    pub(super) seed: u64,
}

impl Plan {
    pub(super) fn all_workers(&self) -> std::ops::Range<usize> {
        0..self.teams * self.workers
    }

    pub(super) fn all_lanes(&self) -> std::ops::Range<usize> {
        0..self.teams * self.lanes
    }
}

/// Everything of one arm that lives. Dropping it ends all processes.
pub(super) struct World {
    pub(super) arm: Arm,
    pub(super) plan: Plan,
    pub(super) ledger: Arc<Ledger>,
    pub(super) authority: Arc<dyn Victim>,
    pub(super) store: Server,
    pub(super) stage: Stage,
    /// Whether the nemesis has done all that it has to do at least once.
    pub(super) covered: AtomicBool,
    workers: Vec<Mutex<Worker>>,
    folder: PathBuf,
}

#[derive(Debug, Default)]
struct Worker {
    process: Option<Process>,
    /// Processes started so far.
    lives: u32,
}

/// What is left of a world.
pub(super) struct Remains {
    pub(super) arm: Arm,
    pub(super) state: State,
    /// The final set of each lane.
    pub(super) sets: BTreeMap<usize, Vec<String>>,
    pub(super) seconds: f64,
}

impl World {
    /// Starts everything in this folder.
    pub(super) fn start(
        arm: Arm,
        plan: &Plan,
        folder: &Path,
        authority: Option<Arc<dyn Victim>>,
        mut stage: Stage,
    ) -> Result<World, String> {
        let authority: Arc<dyn Victim> = match authority {
            Some(authority) => authority,
            None => Arc::new(Server::start(&Setup {
                program: &plan.program,
                role: "serve",
                arguments: &[],
                environment: stage.authority_environment(),
                folder,
                data: stage.authority_data(),
                listen: stage.authority_listen(),
            })?),
        };
        let store = Server::start(&Setup {
            program: &plan.program,
            role: "store",
            arguments: arm.store_arguments(),
            environment: stage.resource_environment(),
            folder,
            data: stage.resource_data(),
            listen: stage.resource_listen(),
        })?;
        let ledger = Arc::new(Ledger::new());
        stage.connect(&authority.url(), store.address(), plan, &ledger)?;
        let world = World {
            arm,
            plan: plan.clone(),
            ledger,
            authority,
            store,
            stage,
            covered: AtomicBool::new(true),
            workers: plan.all_workers().map(|_| Mutex::default()).collect(),
            folder: folder.to_owned(),
        };
        for worker in plan.all_workers() {
            world.revive(worker)?;
        }
        Ok(world)
    }

    /// Starts a worker's process, the first or the next.
    pub(super) fn revive(&self, index: usize) -> Result<(), String> {
        let plan = &self.plan;
        let mut worker = lock(&self.workers[index]);
        let team = index / plan.workers;
        let millis = |ttls: f64| (plan.ttl.as_secs_f64() * 1_000.0 * ttls) as u64;
        let part = Part {
            name: format!("w{index}.{}", worker.lives),
            authority: self.stage.authority_for(index, &self.authority.url()),
            store: self.stage.resource_for(index, self.store.address()),
            ttl_ms: millis(1.0),
            think_ms: (millis(plan.think.0), millis(plan.think.1)),
            lanes: (team * plan.lanes..(team + 1) * plan.lanes).collect(),
            claims: self.arm == Arm::Claim,
            adds_per_grant: plan.adds_per_grant,
            padding: plan.padding,
            seed: plan.seed ^ (index as u64 + 1) << 16 ^ u64::from(worker.lives),
        };
        let part = serde_json::to_string(&part).map_err(|error| error.to_string())?;
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let line = Line {
            words: vec![own.display().to_string(), "chaos-worker".to_owned(), part],
            environment: self.stage.worker_environment(index),
            way: self.stage.worker_way(index),
        };
        let ledger = Arc::clone(&self.ledger);
        let heard = move |line: Option<String>| ledger.hear(index, line.as_deref());
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
        let from_ms = self.ledger.now_ms();
        let each = |act: fn(&Process)| lock(&self.workers[index]).process.iter().for_each(act);
        each(Process::stop);
        stop.comes_within(time);
        each(Process::go_on);
        let what = format!("SIGSTOP for {:.0} ms", time.as_secs_f64() * 1e3);
        self.ledger.note(from_ms, Target::Worker(index), what);
    }

    /// Kills a worker, and starts another in its place.
    pub(super) fn kill_worker(&self, index: usize) -> Result<(), String> {
        let from_ms = self.ledger.now_ms();
        lock(&self.workers[index]).process.take();
        let what = "SIGKILL and a new process".to_owned();
        self.ledger.note(from_ms, Target::Worker(index), what);
        self.revive(index)
    }

    /// Lets everybody come to an end, and looks at what the resource has kept.
    pub(super) fn end(mut self) -> Result<Remains, String> {
        let seconds = self.ledger.now_ms() / 1e3;
        for worker in &self.workers {
            lock(worker).process.iter_mut().for_each(Process::dismiss);
        }
        for (index, worker) in self.workers.iter().enumerate() {
            let lives = lock(worker).lives;
            self.ledger.ended(index, lives, LAST_STEPS);
            lock(worker).process.take();
            // Its last lines are heard before the end of its output is.
            self.ledger.ended(index, lives, LAST_STEPS);
        }
        let sets = worker::final_sets(&self.store.address().to_string(), self.plan.all_lanes())?;
        self.workers.clear();
        Ok(Remains {
            arm: self.arm,
            state: self.ledger.take(),
            sets,
            seconds,
        })
    }
}

/// How long a worker may take for its last grant.
const LAST_STEPS: Duration = Duration::from_secs(15);
