//! A lock server, a master and chunk servers as processes, each on a free port and in a folder of its own.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use chunk_store::client::ChunkClient;
use chunk_store::event::{Event, Record};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

/// Short enough for a test, and long enough that a busy machine does not end a lease by itself.
pub(crate) const TTL: Duration = Duration::from_secs(4);

/// The longest wait for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Returns the program `palisade` of this build, and builds it if only this crate is tested.
pub(crate) fn palisade() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let binary = here.parent().unwrap().parent().unwrap().join("palisade");
    if !binary.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--release", "-p", "palisade"]);
        assert!(build.status().unwrap().success(), "palisade does not build");
    }
    binary
}

/// A process; it is killed when this value is dropped.
pub(crate) struct Process {
    child: Child,
    events: Receiver<Event>,
}

impl Process {
    fn start(arguments: &[String]) -> Process {
        let mut child = Command::new(env!("CARGO_BIN_EXE_chunk-store"))
            .arg("--die-with-parent")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, events) = channel();
        std::thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            for record in lines.filter_map(|line| serde_json::from_str::<Record>(&line).ok()) {
                let _ = sender.send(record.event);
            }
        });
        Process { child, events }
    }

    /// Waits for an event.
    pub(crate) fn until<T>(&self, what: &str, look: impl Fn(&Event) -> Option<T>) -> T {
        loop {
            let event = self.events.recv_timeout(LIMIT);
            let event = event.unwrap_or_else(|error| panic!("{what}: {error}"));
            if let Some(found) = look(&event) {
                return found;
            }
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until a signal has stopped it.
    pub(crate) fn until_stopped(&self) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    }

    /// Waits until it ends by itself.
    pub(crate) async fn until_ended(mut self) -> ExitStatus {
        poll("its end", async || self.child.try_wait().unwrap()).await
    }

    fn address(&self) -> SocketAddr {
        self.until("the start", |event| match event {
            Event::Listening { address } => Some(*address),
            _ => None,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes. Chunk servers are started one by one.
pub(crate) struct Cluster {
    pub(crate) authority: String,
    pub(crate) master: Option<Process>,
    pub(crate) address: SocketAddr,
    palisade: Child,
    folder: TempDir,
}

impl Cluster {
    pub(crate) fn start() -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let mut palisade = Command::new(palisade())
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data"])
            .arg(folder.path().join("authority"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(palisade.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let started: serde_json::Value = serde_json::from_str(&line).unwrap();
        let mut cluster = Cluster {
            authority: started["url"].as_str().unwrap().to_owned(),
            master: None,
            address: ([127, 0, 0, 1], 0).into(),
            palisade,
            folder,
        };
        cluster.start_master();
        cluster
    }

    /// Starts the master, or starts it again with its folder and address.
    pub(crate) fn start_master(&mut self) {
        self.master = None;
        let words = [
            "master",
            "--listen",
            &self.address.to_string(),
            "--data",
            &self.data("master"),
            "--authority",
            &self.authority,
            "--ttl-ms",
            &TTL.as_millis().to_string(),
            "--dead-after-ms",
            "1500",
            "--collect-after-ms",
            "200",
            "--timeout-ms",
            "1000",
        ]
        .map(str::to_owned);
        let master = Process::start(&words);
        self.address = master.address();
        self.master = Some(master);
    }

    /// Starts a chunk server, or starts it again with its folder.
    pub(crate) fn chunk_server(&self, name: &str, more: &[&str]) -> Process {
        let words = [
            "chunk-server",
            name,
            "--data",
            &self.data(name),
            "--master",
            &self.address.to_string(),
            "--authority",
            &self.authority,
            "--ttl-ms",
            &TTL.as_millis().to_string(),
            "--heartbeat-ms",
            "100",
            "--timeout-ms",
            "1000",
        ];
        let words: Vec<String> = words
            .iter()
            .chain(more)
            .map(|word| (*word).to_owned())
            .collect();
        let server = Process::start(&words);
        let _ = server.address();
        server
    }

    pub(crate) fn master(&self) -> &Process {
        self.master.as_ref().expect("the master runs")
    }

    pub(crate) fn client(&self) -> ChunkClient {
        ChunkClient::new(self.address, LIMIT)
    }

    pub(crate) fn data(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Waits until the master sees these servers live.
    pub(crate) async fn until_live(&self, servers: &[&str]) {
        let client = self.client();
        poll("live servers", async || {
            let live = client.status().await.unwrap().live;
            let live = live.iter().map(|server| server.as_str());
            live.eq(servers.iter().copied()).then_some(())
        })
        .await
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.palisade.kill();
        let _ = self.palisade.wait();
    }
}

/// Asks again and again until there is an answer.
pub(crate) async fn poll<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await; // real time: other processes have to act
        }
    };
    let found = tokio::time::timeout(LIMIT, found).await;
    found.unwrap_or_else(|_| panic!("{what}: not within {LIMIT:?}"))
}
