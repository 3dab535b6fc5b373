//! A server process on a data directory that outlives it.

#![allow(dead_code, reason = "every test file uses a part of it")]

use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::service::{AcquireRequest, Under};
use palisade_client::{ClientId, LockName, Ttl};
use palisade_core::{RequestId, Span, Timestamp};
use rustix::process::{Pid, Signal, kill_process};

pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) url: String,
    /// Taken before the process was started.
    pub(crate) begun: Stopwatch,
}

/// Measures time from its creation.
pub(crate) struct Stopwatch(Timestamp);

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch(BootClock.now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        BootClock.now().since(self.0).to_duration()
    }
}

fn serve(data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command
        .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data"])
        .arg(data);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

impl ServerProcess {
    pub(crate) fn begin(data: &Path) -> ServerProcess {
        ServerProcess::begin_with(data, &[])
    }

    /// Starts it with these environment variables.
    pub(crate) fn begin_with(data: &Path, environment: &[(&str, &str)]) -> ServerProcess {
        let begun = Stopwatch::start();
        let mut command = serve(data);
        let mut child = command.envs(environment.iter().copied()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let started: serde_json::Value = serde_json::from_str(&line).expect("the start-up line");
        ServerProcess {
            child,
            url: started["url"].as_str().unwrap().to_owned(),
            begun,
        }
    }

    /// Starts a server and kills it this many microseconds later, during its start.
    pub(crate) fn start_and_kill(data: &Path, micros: u64) {
        let mut child = serve(data).spawn().unwrap();
        let watch = Stopwatch::start();
        while watch.elapsed() < Duration::from_micros(micros) {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    /// Sends the signal and waits for the end.
    pub(crate) fn end(&mut self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
        let status = self.child.wait().unwrap();
        assert!(
            signal == Signal::KILL || status.success(),
            "{signal:?}: {status}"
        );
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request with a request id of its own.
pub(crate) fn asking(
    lock: &str,
    client: &str,
    ttl: Duration,
    wait: Option<Duration>,
) -> AcquireRequest {
    let random = |salt: u64| RandomState::new().hash_one(salt).to_le_bytes();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&random(0));
    id[8..].copy_from_slice(&random(1));
    AcquireRequest {
        wait: wait.map(Span::from),
        ..AcquireRequest::new(
            LockName::new(lock).unwrap(),
            ClientId::new(client).unwrap(),
            Under::new(Ttl::from_millis(ttl.as_millis().try_into().unwrap()).unwrap()),
            RequestId::from_bytes(id),
        )
    }
}

/// Numbers from a seed (SplitMix64, Steele, Lea and Flood 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}
