//! The processes of an act: a lock server, a store, the network between them, and the workers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;

use super::authority::LockWatcher;
use super::clock::ActClock;
use super::error::Error;
use super::network::{Barrier, StoreRoutes};
use super::process::Process;
use super::recorder::{Note, Recorder};
use super::timeline::{ActName, Period, TimelineEvent};
use super::worker::{Assignment, Breakpoint};

/// The running processes of one act. Dropping it ends them all.
#[derive(Debug)]
pub(super) struct Environment {
    pub(super) act: ActName,
    pub(super) ttl: Duration,
    pub(super) clock: ActClock,
    pub(super) recorder: Arc<Recorder>,
    pub(super) network: StoreRoutes,
    pub(super) watcher: LockWatcher,
    workers: Vec<(String, Process)>,
    servers: [DemoServer; 2],
    folder: PathBuf,
}

/// A server of this program, and its address.
#[derive(Debug)]
struct DemoServer {
    process: Process,
    role: &'static str,
    address: String,
}

impl Environment {
    /// Starts both servers on free ports, with data and logs in this folder. The act's time begins when both are ready.
    pub(super) async fn build(
        act: ActName,
        ttl: Duration,
        folder: PathBuf,
    ) -> Result<Environment, Error> {
        let mode: &[&str] = match act {
            ActName::Unfenced => &["--danger-unfenced"],
            ActName::Textbook => &["--fence", "textbook"],
            ActName::Claim => &[],
        };
        let serve = DemoServer::start("serve", &[], &folder).await?;
        let store = DemoServer::start("store", mode, &folder).await?;
        let (clock, recorder) = (ActClock::start(), Arc::new(Recorder::new()));
        let network = StoreRoutes::new(store.address.clone(), clock, Arc::clone(&recorder));
        network
            .read_content()
            .await
            .map_err(|error| Error::start("store", &error.to_string()))?;
        let url = format!("http://{}", serve.address);
        let watcher = LockWatcher::open(&url, clock, Arc::clone(&recorder)).await;
        let watcher = watcher.map_err(|error| Error::start("serve", &format!("{error:#}")))?;
        let servers = [serve, store];
        Ok(Environment {
            act,
            ttl,
            clock,
            recorder,
            network,
            watcher,
            workers: Vec::new(),
            servers,
            folder,
        })
    }

    /// Starts a worker, whose writes stop at the barrier if there is one.
    pub(super) async fn start_worker(
        &mut self,
        client: &str,
        breakpoint: Breakpoint,
        barrier: Option<Arc<Barrier>>,
    ) -> io::Result<u32> {
        let assignment = Assignment {
            client: client.to_owned(),
            authority: format!("http://{}", self.servers[0].address),
            store: self.network.route(client, barrier).await?,
            ttl_ms: self.ttl.as_millis() as u64,
            wait_ms: (self.ttl + PATIENCE).as_millis() as u64,
            origin_nanos: self.clock.as_nanos(),
            claims: self.act == ActName::Claim,
            breakpoint,
        };
        let assignment = serde_json::to_string(&assignment)?;
        let log = self.folder.join(format!("worker-{client}.log"));
        let (recorder, name) = (Arc::clone(&self.recorder), client.to_owned());
        let process = Process::start(&["demo-worker", &assignment], &log, move |line| {
            recorder.note(&name, read(line))
        })?;
        let id = process.id();
        self.workers.push((client.to_owned(), process));
        Ok(id)
    }

    /// Stops a worker with SIGSTOP; returns the time, ms.
    pub(super) async fn pause(&self, client: &str) -> io::Result<f64> {
        self.worker(client)?.stop().await?;
        Ok(self.clock.now_ms())
    }

    /// Continues a stopped worker with SIGCONT, and records its pause.
    pub(super) fn resume(&self, client: &str, from_ms: f64) -> io::Result<f64> {
        let to_ms = self.clock.now_ms();
        self.worker(client)?.resume()?;
        let client = client.to_owned();
        self.recorder.record(TimelineEvent::Paused(Period {
            from_ms,
            to_ms: Some(to_ms),
            client,
            token: None,
        }));
        Ok(to_ms)
    }

    /// Lets a worker continue from its breakpoint.
    pub(super) fn pass_breakpoint(&mut self, client: &str) -> io::Result<()> {
        let found = self.workers.iter_mut().find(|(name, _)| name == client);
        found.map_or(Err(io::ErrorKind::NotFound.into()), |(_, process)| {
            process.pass_breakpoint()
        })
    }

    /// Waits until the client's request is in the lock's queue.
    pub(super) async fn queued(&self, client: &str) -> Result<f64, String> {
        let waiting = tokio::time::timeout(PATIENCE, self.watcher.queued(client)).await;
        let waiting = waiting.map_err(|_| format!("{client} never queued for the lock"))?;
        waiting.map_err(|error| format!("{error:#}"))
    }

    /// Every process: its role and its id.
    pub(super) fn processes(&self) -> Vec<(String, u32)> {
        let servers = self
            .servers
            .iter()
            .map(|server| (server.role.to_owned(), server.process.id()));
        let workers = self
            .workers
            .iter()
            .map(|(name, process)| (format!("worker {name}"), process.id()));
        servers.chain(workers).collect()
    }

    fn worker(&self, client: &str) -> io::Result<&Process> {
        let found = self.workers.iter().find(|(name, _)| name == client);
        found
            .map(|(_, process)| process)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl DemoServer {
    /// Starts `palisade serve` or `palisade store` and waits until it prints its address.
    async fn start(role: &'static str, more: &[&str], folder: &Path) -> Result<DemoServer, Error> {
        let data = folder.join(format!("{role}-data"));
        let data = data.to_string_lossy();
        let log = folder.join(format!("{role}.log"));
        let mut arguments = vec![role, "--json", "--listen", "127.0.0.1:0", "--data", &data];
        arguments.extend(more);
        let (sender, mut lines) = mpsc::unbounded_channel();
        let process = Process::start(&arguments, &log, move |line| {
            // Only the first line is read.
            let _ = sender.send(line);
        });
        let process = process.map_err(|error| Error::start(role, &error.to_string()))?;
        let first = tokio::time::timeout(PATIENCE, lines.recv()).await;
        let first: Option<Value> = first
            .ok()
            .flatten()
            .flatten()
            .and_then(|line| serde_json::from_str(&line).ok());
        let url = first.as_ref().and_then(|line| line["url"].as_str());
        match url.and_then(|url| url.strip_prefix("http://")) {
            Some(address) => Ok(DemoServer {
                address: address.to_owned(),
                process,
                role,
            }),
            None => Err(Error::start(role, &process.last_log_line())),
        }
    }
}

/// Parses a worker's line. A line that cannot be parsed ends the act and is shown.
fn read(line: Option<String>) -> Note {
    let Some(line) = line else { return Note::Ended };
    serde_json::from_str(&line).unwrap_or_else(|error| Note::Failed {
        message: format!("{error} in {line}"),
    })
}

/// The deadline of every step that should take almost no time.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
