//! Real processes under real faults: release binaries, signals, sockets and disks.
//!
//! ```text
//!            seed ─► nemesis ──┬── SIGSTOP · SIGKILL · network · clocks · disks
//!                              ▼
//!   world "no fence"         world "textbook fence"      world "claim fence"      one schedule
//!   authority · store        authority · store           authority · store        a world each
//!   workers: lock, read,     …                           workers: lock, claim,
//!   think, write the set                                 read, think, write
//!   locks of every kind: exclusive · readers and writers · permits · several at once
//!                              │ every step, one line each
//!                              │ one line for each step
//!        event log ─► verdict: acknowledged − final set = lost; rejects; repeated tokens
//!                              ▼
//!                     chaos.json · chaos.html
//! ```
//!
//! A run proves something only if the control arms lose data: if holders were paused and the textbook fence loses less
//! than 5 % of its acknowledged adds, the run is void.
//!
//! Two sets of modules here import each other. The arguments name nemeses and authorities, and these are started with them
//! in a world whose workers they disturb: `args`, `fixture`, `nemesis`, `peers`, `verdict`, `worker`, `world`. A server
//! may be a node, and nodes are such servers: `nodes`, `server`.

mod args;
mod arm;
mod event;
mod event_log;
pub(crate) mod fixture;
mod kind;
mod lock;
mod nemesis;
mod nodes;
mod peers;
mod plan;
pub(crate) mod process;
mod program;
mod report;
mod run;
pub(crate) mod server;
mod stop;
mod verdict;
mod worker;
mod world;

use std::process::ExitCode;

pub use args::Chaos;
pub use fixture::shim::wall_seconds;
pub(crate) use program::program;
pub use worker::work;

impl Chaos {
    /// Runs to the end and writes the report. The help lists the exit statuses.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let exit = run::all(self).and_then(|report| {
            report.write(&self.report)?;
            println!("{}", report.summary());
            Ok(report.exit())
        });
        exit.unwrap_or_else(|why| {
            eprintln!("palisade-lab: {why}");
            ExitCode::from(4)
        })
    }
}
