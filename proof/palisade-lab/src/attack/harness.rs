//! The harness of the attacks: processes of the program under test, observed from outside.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::Timestamp;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::failure::text;
use super::http;
use super::tunnel::Secure;
use crate::chaos::process::{Line, Process};
use crate::chaos::server::{last_words, launch};

/// The context of every attack.
pub(super) struct Harness {
    /// The program under test.
    pub(super) binary: PathBuf,
    /// Whether to use the smaller amounts of a test.
    pub(super) short: bool,
    /// TLS and rules, if the servers have them.
    secure: Option<Secure>,
    folder: TempDir,
    started: Cell<u32>,
}

impl Harness {
    pub(super) fn new(binary: &Path, short: bool, secure: bool) -> Result<Harness, String> {
        let folder = TempDir::with_prefix("palisade-attack-").map_err(text)?;
        let secure = secure
            .then(|| Secure::new(binary, folder.path()))
            .transpose()?;
        Ok(Harness {
            binary: binary.to_owned(),
            short,
            secure,
            folder,
            started: Cell::new(0),
        })
    }

    /// Whether the servers have TLS and rules.
    pub(super) fn is_secure(&self) -> bool {
        self.secure.is_some()
    }

    /// The full amount, or the amount of a test.
    pub(super) fn amount<T>(&self, full: T, short: T) -> T {
        if self.short { short } else { full }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts `palisade serve` on a folder of the harness.
    pub(super) fn serve(&self, data: &str) -> Result<Program, String> {
        self.start(&Start::new("serve", &self.path(data)))
    }

    /// Starts `palisade store` on a folder of the harness.
    pub(super) fn store(&self, data: &str) -> Result<Program, String> {
        self.start(&Start::new("store", &self.path(data)))
    }

    /// Starts a server and waits until it serves; an error contains the end of its log.
    pub(super) fn start(&self, start: &Start) -> Result<Program, String> {
        let number = self.started.replace(self.started.get() + 1);
        let log = self.path(&format!("{number}-{}.log", start.role));
        let mut words = vec![self.binary.display().to_string(), start.role.to_owned()];
        let listen = start.listen.to_string();
        words.extend(["--json", "--listen", &listen, "--data"].map(str::to_owned));
        words.push(start.data.display().to_string());
        words.extend(start.arguments.iter().cloned());
        if let Some(secure) = &self.secure {
            words.extend(secure.arguments(start.role));
        }
        let line = Line {
            words,
            environment: Vec::new(),
            prefix: start.prefix.clone(),
        };
        let (process, mut said) = launch(&line, &log)?;
        if let Some(secure) = &self.secure {
            for name in ["listening", "admin"] {
                let at = said[name]
                    .as_str()
                    .map(|at| at.trim_start_matches("https://"));
                if let Some(to) = at.and_then(|at| at.parse().ok()) {
                    said[name] = secure.tunnel(to)?.to_string().into();
                }
            }
        }
        let address = said["listening"].as_str().and_then(|at| at.parse().ok());
        let address = address.ok_or_else(|| format!("no address in {said}"))?;
        Ok(Program {
            process,
            said,
            log,
            address,
        })
    }

    /// Runs a command of the program under test to its end.
    pub(super) fn run(&self, words: &[&str]) -> Result<Output, String> {
        let mut command = Command::new(&self.binary);
        command.args(words).stdin(Stdio::null());
        command.output().map_err(text)
    }

    /// Starts another program, which ends with the harness; `heard` gets each line that it prints.
    pub(super) fn other(
        &self,
        words: &[String],
        environment: &[(&str, &str)],
        heard: impl FnMut(Option<String>) + Send + 'static,
    ) -> Result<Process, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let line = Line {
            words: words.to_vec(),
            environment: environment.iter().map(owned).collect(),
            prefix: Vec::new(),
        };
        Process::start(&line, &self.path("others.log"), heard).map_err(text)
    }

    /// The end of the other programs' output.
    pub(super) fn others_last_words(&self) -> String {
        last_words(&self.path("others.log"))
    }

    /// Runs a shell command in the folder of the harness.
    pub(super) fn shell(&self, line: &str) -> Result<(), String> {
        let mut command = Command::new("sh");
        command.args(["-ec", line]).current_dir(self.folder.path());
        let output = command.output().map_err(text)?;
        if output.status.success() {
            Ok(())
        } else {
            Err(format!(
                "{line}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ))
        }
    }
}

/// How to start a server.
pub(super) struct Start {
    role: &'static str,
    data: PathBuf,
    pub(super) listen: SocketAddr,
    pub(super) arguments: Vec<String>,
    /// The words in front of its command.
    pub(super) prefix: Vec<String>,
}

impl Start {
    pub(super) fn new(role: &'static str, data: &Path) -> Start {
        Start {
            role,
            data: data.to_owned(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            arguments: Vec::new(),
            prefix: Vec::new(),
        }
    }

    /// Starts it under a kernel limit such as `--nofile=1024:1024`.
    pub(super) fn limited(mut self, limit: &str) -> Start {
        self.prefix = ["prlimit", limit].map(str::to_owned).to_vec();
        self
    }

    pub(super) fn with(mut self, arguments: &[&str]) -> Start {
        self.arguments
            .extend(arguments.iter().map(|word| (*word).to_owned()));
        self
    }
}

/// A running server of the program under test.
pub(super) struct Program {
    pub(super) process: Process,
    pub(super) said: Value,
    log: PathBuf,
    pub(super) address: SocketAddr,
}

impl Program {
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it is running and still reports that it serves.
    pub(super) fn serves(&mut self) -> bool {
        let healthy = http::get(self.address, "/healthz").is_ok_and(|reply| reply.status == 200);
        healthy && !self.process.is_over()
    }

    /// Sends SIGTERM and waits for the end: how long that took, or an error after a minute.
    pub(super) fn terminate(mut self) -> Result<Duration, String> {
        let begun = now();
        self.process.send(Signal::TERM);
        until(Duration::from_secs(60), || self.process.is_over())
            .then(|| elapsed(begun))
            .ok_or_else(|| "it did not stop within a minute of SIGTERM".to_owned())
    }

    /// The processor time that it has used.
    pub(super) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()));
        let stat = stat.unwrap_or_default();
        // The fields after the name, which may contain spaces: user and system time are the 12th and 13th of them.
        let fields = stat
            .rsplit_once(") ")
            .map_or("", |(_, fields)| fields)
            .split(' ');
        let ticks = fields
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<f64>().ok());
        ticks.sum::<f64>() / rustix::param::clock_ticks_per_second() as f64
    }

    /// Its private memory in MiB; 0 when it is gone.
    pub(super) fn memory_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let line = status.unwrap_or_default();
        let kib = line.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = kib.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok());
        kib.unwrap_or(0) / 1024
    }

    /// Watches it for at most this long and returns by how many MiB its memory grew above `before`. Stops early above
    /// `most`, so that an attack does not exhaust this machine's memory.
    pub(super) fn growth_mib(&mut self, before: u64, most: u64, time: Duration) -> u64 {
        let mut peak = 0;
        until(time, || {
            peak = peak.max(self.memory_mib().saturating_sub(before));
            peak > most || self.process.is_over()
        });
        peak
    }
}

/// The current time of a clock that also counts suspend.
pub(super) fn now() -> Timestamp {
    BootClock.now()
}

pub(super) fn elapsed(since: Timestamp) -> Duration {
    now().since(since).to_duration()
}

/// Waits for a condition, at most this long; returns whether it was met.
pub(super) fn until(time: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let begun = now();
    loop {
        if holds() {
            return true;
        }
        if elapsed(begun) >= time {
            return false;
        }
        pause(Duration::from_millis(5));
    }
}

/// Waits: many attacks consist of nothing else.
#[expect(
    clippy::disallowed_methods,
    reason = "the subject of these attacks is what processes do in real time"
)]
pub(super) fn pause(time: Duration) {
    std::thread::sleep(time); // real time: other processes are watched
}
