//! `cargo run --release -p chunk-store` plays the story, twice: without and with the check of versions. The
//! subcommands are its processes, and can be started by hand.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use chunk_store::client::ChunkClient;
use chunk_store::name::{ChunkId, ServerId};
use chunk_store::wire::ProblemCode;
use chunk_store::{Checks, Failure, master, server, story};
use clap::{Args, Parser, Subcommand};

/// The exit status of a command that was refused because of a later version.
const REFUSED: u8 = 3;

/// A GFS-style chunk store: a chunk's version is the fencing token of its primary's grant.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// End with the process that started this one.
    #[arg(long, global = true, hide = true)]
    die_with_parent: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve as the master.
    Master(Master),
    /// Serve as a chunk server.
    ChunkServer(ChunkServer),
    /// Make an empty chunk.
    Create(OneChunk),
    /// Append a record to a chunk.
    Write {
        #[command(flatten)]
        chunk: OneChunk,
        /// The record.
        data: String,
    },
    /// Print a chunk.
    Read(OneChunk),
    /// Print where the current replicas of a chunk are.
    Lookup(OneChunk),
    /// Copy a chunk, as it is now, under another name.
    Snapshot {
        #[command(flatten)]
        from: OneChunk,
        /// The new chunk.
        to: ChunkId,
    },
    /// Delete a chunk.
    Delete(OneChunk),
    /// Retire a chunk server that is gone for good: the master waits for it no more, and refuses it for ever.
    Retire {
        #[command(flatten)]
        at: At,
        /// The chunk server.
        server: ServerId,
        /// Also if it is live, may still report because the master started a moment ago, or has the only current replica of a
        /// chunk, which is lost then.
        #[arg(long)]
        force: bool,
    },
    /// Print the master's view.
    Status(At),
    /// Play the story of a paused primary, without and with the check of versions.
    Story(Story),
}

#[derive(Args)]
struct At {
    /// The master's address.
    #[arg(long)]
    master: SocketAddr,
    /// Give up after this many seconds.
    #[arg(long, default_value_t = 30)]
    timeout_s: u64,
}

impl At {
    fn client(&self) -> ChunkClient {
        ChunkClient::new(self.master, Duration::from_secs(self.timeout_s))
    }
}

#[derive(Args)]
struct OneChunk {
    #[command(flatten)]
    at: At,
    /// The chunk.
    chunk: ChunkId,
}

#[derive(Args)]
struct Master {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The folder of the master's record.
    #[arg(long)]
    data: PathBuf,
    /// The lock server.
    #[arg(long, default_value = "http://127.0.0.1:7420")]
    authority: String,
    /// How long the leases of primaries last without renewal.
    #[arg(long, default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    ttl_ms: u64,
    /// How many replicas a chunk should have.
    #[arg(long, default_value_t = 3)]
    copies: u8,
    /// Send nothing to a chunk server without a heartbeat for this long.
    #[arg(long, default_value_t = 10_000)]
    dead_after_ms: u64,
    /// Keep replicas that are of no use for this long.
    #[arg(long, default_value_t = 60_000)]
    collect_after_ms: u64,
    /// Wait this long for a chunk server.
    #[arg(long, default_value_t = 2_000)]
    timeout_ms: u64,
}

#[derive(Args)]
struct ChunkServer {
    /// Its name.
    server: ServerId,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The folder of its replicas.
    #[arg(long)]
    data: PathBuf,
    /// The master's address.
    #[arg(long)]
    master: SocketAddr,
    /// The lock server.
    #[arg(long, default_value = "http://127.0.0.1:7420")]
    authority: String,
    /// How long its lease lasts without renewal.
    #[arg(long, default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    ttl_ms: u64,
    /// The time from one heartbeat to the next.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..))]
    heartbeat_ms: u64,
    /// Wait this long for a secondary.
    #[arg(long, default_value_t = 2_000)]
    timeout_ms: u64,
    /// Check no versions, for comparison: corrupts data.
    #[arg(long)]
    danger_unfenced: bool,
    /// Answer without a sync, for comparison: loses data. Nothing is written, so a kill is like a power failure.
    #[arg(long)]
    danger_unsynced: bool,
    /// As the primary, stop this process (SIGSTOP) in front of this record, right after the check of the lease.
    #[arg(long)]
    freeze_at: Option<String>,
}

#[derive(Args, Default)]
struct Story {
    /// Draw the events into this SVG file.
    #[arg(long)]
    out: Option<PathBuf>,
    /// The program `palisade`; by default the one beside this program.
    #[arg(long)]
    palisade: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    let arguments = Arguments::parse();
    if arguments.die_with_parent {
        story::die_with_parent()?;
    }
    match arguments
        .command
        .unwrap_or(Command::Story(Story::default()))
    {
        Command::Master(its) => serve_master(its).await?,
        Command::ChunkServer(its) => serve_chunks(its).await?,
        Command::Story(its) => play(its).await?,
        command => return ask(command).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve_master(its: Master) -> Result<(), Failure> {
    master::serve(master::MasterConfig {
        listen: its.listen,
        data: its.data,
        authority: its.authority,
        ttl: Duration::from_millis(its.ttl_ms),
        copies: its.copies.into(),
        dead_after: Duration::from_millis(its.dead_after_ms),
        collect_after: Duration::from_millis(its.collect_after_ms),
        timeout: Duration::from_millis(its.timeout_ms),
    })
    .await
}

async fn serve_chunks(its: ChunkServer) -> Result<(), Failure> {
    server::serve(server::ServerConfig {
        server: its.server,
        listen: its.listen,
        data: its.data,
        master: its.master,
        authority: its.authority,
        ttl: Duration::from_millis(its.ttl_ms),
        heartbeat: Duration::from_millis(its.heartbeat_ms),
        timeout: Duration::from_millis(its.timeout_ms),
        checks: if its.danger_unfenced {
            Checks::DangerUnfenced
        } else {
            Checks::Versions
        },
        danger_unsynced: its.danger_unsynced,
        freeze_at: its.freeze_at,
    })
    .await
}

/// Runs a command of a client. A refusal because of a later version has an exit status of its own.
async fn ask(command: Command) -> Result<ExitCode, Failure> {
    let asked = match command {
        Command::Create(its) => {
            let created = its.at.client().create(&its.chunk).await;
            created.map(|()| format!("created {}", its.chunk))
        }
        Command::Write { chunk: its, data } => {
            let appended = its.at.client().append(&its.chunk, &data).await;
            appended.map(|appended| format!("acknowledged {data} at {}", appended.position))
        }
        Command::Read(its) => {
            let content = its.at.client().read(&its.chunk).await;
            content.map(|content| content.data.trim_end().to_owned())
        }
        Command::Lookup(its) => its.at.client().lookup(&its.chunk).await.map(|found| {
            let lines = found.replicas.iter();
            let lines = lines.map(|replica| format!("\n{} {}", replica.server, replica.address));
            format!("version {}{}", found.version, lines.collect::<String>())
        }),
        Command::Snapshot { from: its, to } => {
            let cloned = its.at.client().snapshot(&its.chunk, &to).await;
            cloned.map(|cloned| format!("{to} is {} at version {}", its.chunk, cloned.version))
        }
        Command::Delete(its) => {
            let deleted = its.at.client().delete(&its.chunk).await;
            deleted.map(|()| format!("deleted {}", its.chunk))
        }
        Command::Retire { at, server, force } => {
            let retired = at.client().retire(&server, force).await;
            retired.map(|()| format!("retired {server}"))
        }
        Command::Status(at) => match at.client().status().await {
            Ok(status) => Ok(serde_json::to_string(&status)?),
            Err(problem) => Err(problem),
        },
        Command::Master(_) | Command::ChunkServer(_) | Command::Story(_) => Ok(String::new()),
    };
    match asked {
        Ok(line) => {
            println!("{line}");
            Ok(ExitCode::SUCCESS)
        }
        Err(problem) if problem.code == ProblemCode::Stale => {
            println!("refused: {problem}");
            Ok(ExitCode::from(REFUSED))
        }
        Err(problem) => Err(problem.into()),
    }
}

async fn play(its: Story) -> Result<(), Failure> {
    let program = std::env::current_exe()?;
    let palisade = its
        .palisade
        .unwrap_or_else(|| program.with_file_name("palisade"));
    if !palisade.exists() {
        let message = format!(
            "{} is missing: cargo build --release -p palisade",
            palisade.display()
        );
        return Err(message.into());
    }
    let mut acts = Vec::new();
    for checks in [Checks::DangerUnfenced, Checks::Versions] {
        println!("{}", story::title(checks));
        let act = story::run(&program, &palisade, checks, |line| println!("  {line}")).await?;
        println!("  The chunk: {}.", act.outcome.content.join(", "));
        println!("  Acknowledged and lost: {:?}.\n", act.outcome.lost());
        acts.push(act);
    }
    if let Some(out) = its.out {
        std::fs::write(&out, story::svg(&acts))?;
        println!("Drawn: {}", out.display());
    }
    Ok(())
}
