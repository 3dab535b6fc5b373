//! The schedule of an act, step by step. Each step waits for the effect of the step before it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade_client::{Change, Client, Notice};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use super::process::Process;
use super::recorder::Recorder;
use super::{Act, LeaseOf, Outcome};
use crate::client::ChunkClient;
use crate::event::{Event, now_ms};
use crate::name::{ChunkId, ServerId};
use crate::wire::Standing;
use crate::{Checks, Failure};

/// Short, to keep the story short, and long enough that a busy machine does not end a lease by itself.
const TTL_MS: u64 = 4_000;
/// The patience of clients: longer than the pause of the primary.
const PATIENCE: Duration = Duration::from_secs(120);
const SERVERS: [&str; 3] = ["a", "b", "c"];

/// The processes of an act.
struct Stage {
    program: PathBuf,
    records: Arc<Recorder>,
    master: SocketAddr,
    _processes: Vec<Process>,
    servers: Vec<Process>,
    client: ChunkClient,
    _palisade: Child,
    _folder: TempDir,
}

/// Plays one act with processes of this `program` and of `palisade`, and reports it line by line.
///
/// # Errors A process that does not start, or a step that did not happen in time.
pub async fn run(
    program: &Path,
    palisade: &Path,
    checks: Checks,
    mut log: impl FnMut(String),
) -> Result<Act, Failure> {
    let started = now_ms();
    let folder = tempfile::tempdir()?;
    let (child, authority) = start_palisade(palisade, &folder.path().join("authority")).await?;
    let leases = Leases::watch(&authority).await?;
    let stage = Stage::start(program, &authority, checks, folder, child).await?;
    let mut played = Played::default();
    stage.play(&mut played, &mut log).await?;
    leases.task.abort();
    let mut records = stage.records.records();
    for record in &mut records {
        record.at_ms -= started;
    }
    let mut leases = leases
        .leases
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    for lease in &mut leases {
        lease.from_ms -= started;
        if let Some((at_ms, _)) = &mut lease.ended {
            *at_ms -= started;
        }
    }
    let pauses = played.pauses.into_iter();
    let pauses = pauses.map(|(server, from, to)| (server, from - started, to - started));
    Ok(Act {
        checks,
        records,
        leases,
        pauses: pauses.collect(),
        outcome: played.outcome,
    })
}

/// The schedule's own observations.
#[derive(Default)]
struct Played {
    pauses: Vec<(ServerId, f64, f64)>,
    outcome: Outcome,
}

impl Stage {
    async fn start(
        program: &Path,
        authority: &str,
        checks: Checks,
        folder: TempDir,
        palisade: Child,
    ) -> Result<Stage, Failure> {
        let records = Arc::new(Recorder::new());
        let data = |name: &str| folder.path().join(name).display().to_string();
        let ttl = TTL_MS.to_string();
        let own = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        let arguments = own(&[
            "master",
            "--data",
            &data("master"),
            "--authority",
            authority,
            "--ttl-ms",
            &ttl,
            "--dead-after-ms",
            "1500",
            "--collect-after-ms",
            "600",
            "--timeout-ms",
            "1000",
        ]);
        let master_process = Process::server(program, &arguments, &records)?;
        let listening = |event: &Event| match event {
            Event::Listening { address } => Some(*address),
            _ => None,
        };
        let master = records
            .until("the start of the master", 0, listening)
            .await?;
        let address = master.to_string();
        let mut servers = Vec::new();
        for server in SERVERS {
            let mut arguments = own(&[
                "chunk-server",
                server,
                "--data",
                &data(server),
                "--master",
                &address,
                "--authority",
                authority,
                "--ttl-ms",
                &ttl,
                "--heartbeat-ms",
                "200",
                "--timeout-ms",
                "1000",
            ]);
            if checks == Checks::DangerUnfenced {
                arguments.push("--danger-unfenced".to_owned());
            }
            if server == "a" {
                arguments.extend(own(&["--freeze-at", "a2"]));
            }
            servers.push(Process::server(program, &arguments, &records)?);
        }
        Ok(Stage {
            program: program.to_owned(),
            records,
            master,
            _processes: vec![master_process],
            servers,
            client: ChunkClient::new(master, PATIENCE),
            _palisade: palisade,
            _folder: folder,
        })
    }

    async fn play(&self, played: &mut Played, log: &mut impl FnMut(String)) -> Result<(), Failure> {
        let [a, b, c] = self.servers.as_slice() else {
            return Err("the story needs three servers".into());
        };
        let _ = b;
        let chunk: ChunkId = "log".parse()?;
        self.until_live(&SERVERS).await?;
        self.client.create(&chunk).await?;
        self.write("client 1", "a1", played, log).await?;

        // c misses the change of the version, and a is frozen with a mutation in its hand.
        c.stop().await?;
        let c_stopped = now_ms();
        log("server c is stopped (SIGSTOP).".into());
        let late = self.start_client(&["write", "log", "a2"])?;
        let freezing = |event: &Event| matches!(event, Event::Freezing { .. }).then_some(());
        self.records
            .until("the pause of the primary", 0, freezing)
            .await?;
        a.until_stopped().await?;
        let a_stopped = now_ms();
        log("server a, the primary, checks its lease, which is valid, and is stopped before it sends a2.".into());
        self.until_live(&["b"]).await?;
        self.write("client 2", "b1", played, log).await?;

        // c comes back. Look-ups never name it before it is made anew.
        let from = self.records.len();
        let continued = now_ms();
        c.resume()?;
        played.pauses.push(("c".parse()?, c_stopped, continued));
        self.until_stale("c", from).await?;
        let named = self.client.lookup(&chunk).await?.replicas.into_iter();
        played.outcome.named_while_stale =
            named.map(|replica| replica.server.to_string()).collect();
        log(format!(
            "server c is back and stale; look-ups name {}.",
            played.outcome.named_while_stale.join(", ")
        ));
        self.until_located(&chunk, &["b", "c"], from).await?;
        log("server c’s replica was collected and made anew.".into());
        self.write("client 2", "b2", played, log).await?;

        // a continues where it stopped.
        let from = self.records.len();
        let continued = now_ms();
        a.resume()?;
        played.pauses.push(("a".parse()?, a_stopped, continued));
        log("server a continues, and sends a2.".into());
        let (line, _) = late.output().await?;
        played.heard("client 1", "a2", &line, log);
        self.until_stale("a", from).await?;
        self.until_located(&chunk, &SERVERS, from).await?;
        log("server a’s replica was stale, too; it was collected and made anew.".into());

        let copy: ChunkId = "log-copy".parse()?;
        let cloned = self.client.snapshot(&chunk, &copy).await?;
        log(format!(
            "log-copy is a snapshot at version {}; the primary’s lease was revoked for it.",
            cloned.version
        ));
        self.write("client 2", "c1", played, log).await?;
        self.compare(&chunk, &copy, &mut played.outcome).await
    }

    /// Writes a record with a process of its own.
    async fn write(
        &self,
        client: &str,
        data: &str,
        played: &mut Played,
        log: &mut impl FnMut(String),
    ) -> Result<(), Failure> {
        let (line, status) = self.start_client(&["write", "log", data])?.output().await?;
        if !status.success() {
            return Err(format!("{client} could not write {data}: {line}").into());
        }
        played.heard(client, data, &line, log);
        Ok(())
    }

    fn start_client(&self, words: &[&str]) -> Result<Process, Failure> {
        let (command, rest) = words.split_first().ok_or("no command")?;
        let (master, patience) = (self.master.to_string(), PATIENCE.as_secs().to_string());
        let arguments = [*command, "--master", &master, "--timeout-s", &patience];
        let arguments = arguments.iter().chain(rest).map(|word| (*word).to_owned());
        Process::client(&self.program, &arguments.collect::<Vec<_>>())
    }

    /// Waits until exactly these servers are live for the master.
    async fn until_live(&self, servers: &[&str]) -> Result<(), Failure> {
        let what = format!("that {} are live", servers.join(", "));
        let seen = async {
            loop {
                let live = self.client.status().await?.live;
                if live
                    .iter()
                    .map(ServerId::as_str)
                    .eq(servers.iter().copied())
                {
                    return Ok(());
                }
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::time::timeout(PATIENCE, seen)
            .await
            .map_err(|_| format!("{what} did not happen"))?
    }

    async fn until_stale(&self, server: &str, from: usize) -> Result<(), Failure> {
        let stale = |event: &Event| match event {
            Event::Judged {
                server: its,
                standing: Standing::Stale,
                ..
            } => (its.as_str() == server).then_some(()),
            _ => None,
        };
        let what = format!("that {server} was found stale");
        self.records.until(&what, from, stale).await
    }

    /// Waits until look-ups name exactly these servers.
    async fn until_located(
        &self,
        id: &ChunkId,
        servers: &[&str],
        from: usize,
    ) -> Result<(), Failure> {
        let located = |event: &Event| match event {
            Event::Located {
                chunk,
                servers: its,
                ..
            } if chunk == id => {
                let same = its.iter().map(ServerId::as_str).eq(servers.iter().copied());
                same.then_some(())
            }
            _ => None,
        };
        let what = format!("that look-ups name {}", servers.join(", "));
        self.records.until(&what, from, located).await
    }

    /// Reads the chunk from every current replica, and its snapshot.
    async fn compare(
        &self,
        chunk: &ChunkId,
        copy: &ChunkId,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let found = self.client.lookup(chunk).await?;
        let mut contents = Vec::new();
        for replica in &found.replicas {
            contents.push(
                self.client
                    .read_from(replica.address, chunk, found.version)
                    .await?
                    .data,
            );
        }
        let lines = |data: &str| data.lines().map(str::to_owned).collect();
        outcome.replicas = contents.len();
        outcome.replicas_agree = contents.windows(2).all(|pair| pair[0] == pair[1]);
        outcome.content = contents.first().map(|data| lines(data)).unwrap_or_default();
        outcome.snapshot = lines(&self.client.read(copy).await?.data);
        Ok(())
    }
}

impl Played {
    /// Records the answer that a client got.
    fn heard(&mut self, client: &str, data: &str, line: &str, log: &mut impl FnMut(String)) {
        log(format!("{client}: {line}"));
        match line.split_once(' ') {
            Some(("acknowledged", _)) => self.outcome.acknowledged.push(data.to_owned()),
            Some(("refused:", _)) => self.outcome.refused.push(data.to_owned()),
            _ => {}
        }
    }
}

const POLL: Duration = Duration::from_millis(50);

/// Starts a lock server on a free port, and returns its address.
async fn start_palisade(program: &Path, data: &Path) -> Result<(Child, String), Failure> {
    let mut child = Command::new(program)
        .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let output = child.stdout.take().ok_or("no output")?;
    let mut lines = BufReader::new(output).lines();
    let first = tokio::time::timeout(Duration::from_secs(60), lines.next_line()).await??;
    let started: serde_json::Value =
        serde_json::from_str(&first.ok_or("the lock server ended at once")?)?;
    let url = started.get("url").and_then(|url| url.as_str());
    Ok((
        child,
        url.ok_or("the lock server has no address")?.to_owned(),
    ))
}

/// The leases of chunks, as the lock server reports them.
struct Leases {
    leases: Arc<Mutex<Vec<LeaseOf>>>,
    task: JoinHandle<()>,
}

impl Leases {
    async fn watch(authority: &str) -> Result<Leases, Failure> {
        let client = Client::connect(authority).await?;
        let mut watch = client.watch("chunk/log").await?;
        let leases = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&leases);
        let task = tokio::spawn(async move {
            while let Ok(notice) = watch.next().await {
                let Notice::Change(event) = notice else {
                    continue;
                };
                if event.lock.as_str() != "chunk/log" {
                    continue;
                }
                let mut leases = seen.lock().unwrap_or_else(PoisonError::into_inner);
                match event.change {
                    Change::Granted { .. } => leases.push(LeaseOf {
                        holder: event.client.iter().map(ToString::to_string).collect(),
                        token: event.token,
                        from_ms: now_ms(),
                        ended: None,
                    }),
                    Change::Ended { how, .. } => {
                        let mut its = leases.iter_mut().filter(|its| its.token == event.token);
                        if let Some(lease) = its.next() {
                            lease.ended = Some((now_ms(), format!("{how:?}").to_lowercase()));
                        }
                    }
                    Change::Proclaimed | Change::Opened { .. } => {}
                }
            }
        });
        Ok(Leases { leases, task })
    }
}
