//! `palisade serve` and `palisade store` as processes that can be paused, killed and restarted at the same address.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::Value;

use super::lock::lock;
use super::nodes::Cluster;
use super::process::{Line, Process};

/// A server that faults can target. Its URL grants locks.
pub(super) trait Victim: Send + Sync {
    fn url(&self) -> String;
    fn pause(&self);
    fn resume(&self);
    fn kill(&self);
    /// Whether its process exists, even if paused.
    fn lives(&self) -> bool;
    /// Sets or removes an environment variable for the next start.
    fn set(&self, _name: &str, _value: Option<String>) {}
    /// Moves its movable clock to this many seconds off the right time.
    ///
    /// # Errors
    /// If it has no such clock.
    fn jump(&self, _seconds: i64) -> Result<(), String> {
        Err("this authority has no clock that can be moved".to_owned())
    }
    /// The cluster, if it is one.
    fn cluster(&self) -> Option<&Cluster> {
        None
    }
    /// Starts it again with the same data and address.
    ///
    /// # Errors
    /// Why it does not serve.
    fn start_again(&self) -> Result<(), String>;
}

/// A server of the program under test.
#[derive(Debug)]
pub(super) struct Server {
    line: Mutex<Line>,
    log: PathBuf,
    address: SocketAddr,
    process: Mutex<Option<Process>>,
}

/// Where and how to start a server for the first time.
#[derive(Clone, Debug)]
pub(super) struct Setup<'a> {
    pub(super) program: &'a Path,
    /// `serve` or `store`.
    pub(super) role: &'a str,
    pub(super) arguments: &'a [&'a str],
    pub(super) environment: Vec<(String, String)>,
    /// The folder for its data and its log.
    pub(super) folder: &'a Path,
    /// Its data folder, if it is elsewhere.
    pub(super) data: Option<PathBuf>,
    /// The address to listen on, with port 0.
    pub(super) listen: SocketAddr,
}

impl Server {
    pub(super) fn start(setup: &Setup<'_>) -> Result<Server, String> {
        let data = setup.data.clone();
        let data = data.unwrap_or_else(|| setup.folder.join(format!("{}-data", setup.role)));
        let words = |listen: SocketAddr| {
            let mut words = vec![setup.program.display().to_string(), setup.role.to_owned()];
            words.extend(["--json".to_owned(), "--listen".to_owned()]);
            words.extend([listen.to_string(), "--data".to_owned()]);
            words.push(data.display().to_string());
            words.extend(setup.arguments.iter().map(|word| (*word).to_owned()));
            // In a network of the lab's own.
            words.extend((!listen.ip().is_loopback()).then(|| "--insecure".to_owned()));
            words
        };
        let mut line = Line {
            words: words(setup.listen),
            environment: setup.environment.clone(),
            prefix: Vec::new(),
        };
        let log = setup.folder.join(format!("{}.log", setup.role));
        let (process, said) = launch(&line, &log)?;
        let address = said["listening"].as_str().and_then(|at| at.parse().ok());
        let address = address.ok_or_else(|| format!("no address in {said}"))?;
        line.words = words(address);
        Ok(Server {
            line: Mutex::new(line),
            log,
            address,
            process: Mutex::new(Some(process)),
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Victim for Server {
    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn pause(&self) {
        lock(&self.process).iter().for_each(Process::stop);
    }

    fn resume(&self) {
        lock(&self.process).iter().for_each(Process::resume);
    }

    fn kill(&self) {
        lock(&self.process).take();
    }

    fn start_again(&self) -> Result<(), String> {
        self.kill();
        let line = lock(&self.line).clone();
        let (process, _) = launch(&line, &self.log)?;
        *lock(&self.process) = Some(process);
        Ok(())
    }

    fn lives(&self) -> bool {
        let mut process = lock(&self.process);
        process.as_mut().is_some_and(|process| !process.is_over())
    }

    fn set(&self, name: &str, value: Option<String>) {
        let mut line = lock(&self.line);
        line.environment.retain(|(known, _)| known != name);
        line.environment
            .extend(value.map(|value| (name.to_owned(), value)));
    }
}

/// Starts it and waits for its first line, JSON with its address.
pub(crate) fn launch(line: &Line, log: &Path) -> Result<(Process, Value), String> {
    let (sender, lines) = channel();
    let process = Process::start(line, log, move |line| {
        // Nobody reads later lines, and nobody needs them.
        let _ = sender.send(line);
    });
    let what = line.words.join(" ");
    let process = process.map_err(|error| format!("{what}: {error}"))?;
    let first = lines.recv_timeout(START).ok().flatten();
    let said: Option<Value> = first.and_then(|line| serde_json::from_str(&line).ok());
    match said {
        Some(said) => Ok((process, said)),
        None => Err(format!("{what} did not start: {}", last_words(log))),
    }
}

/// The last line of a log, for a message.
pub(crate) fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    last.unwrap_or("its log is empty").to_owned()
}

/// How long a server may take to start.
const START: Duration = Duration::from_secs(60);
