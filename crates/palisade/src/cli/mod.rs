//! The command line: arguments, output and exit statuses.
//!
//! ```text
//!   arguments → Cli (clap checks the values while parsing) → one function for each command → Out
//!                                                                 ↘ Failure: status, code, message, hint
//! ```
//!
//! [`crate::run`] and [`crate::service`] are called from here and import this module, too. The one takes the arguments of its
//! command and prints with the same [`Out`]. The other has the settings read again at SIGHUP, which is done here because
//! a setting is a flag.

mod args;
mod auth;
mod bench;
mod cluster;
mod cluster_check;
mod config;
mod demo;
mod doctor;
mod election;
mod failure;
mod fence;
mod gateway;
mod grant;
pub(crate) mod grant_options;
mod help;
mod history;
mod inspect;
mod logs;
mod network;
mod operator;
mod output;
mod pages;
mod recover;
mod reports;
mod runtime;
mod secret;
mod sequencer_keys;
mod settings;
mod shell;
mod store;
mod tfstate;
mod usage;
mod value;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use palisade_client::{Client, Options};
use palisade_proto::Code;

use args::AuthorityArgs;
use runtime::wait_for;
use settings::CommandLineRefused;

pub(crate) use args::{LockArgs, OnDeadline, RunArgs};
pub(crate) use failure::{FAILED, Failure, LOST, NOT_ACQUIRED, USAGE};
pub(crate) use grant::{lock_list, signed, slot_list};
pub(crate) use output::{Out, millis, wall};
pub(crate) use runtime::runtime;
pub(crate) use settings::compare_settings;
pub(crate) use shell::shell_word;
pub(crate) use value::{signal_name, wait};

/// Leases with fencing tokens
#[derive(Parser, Debug)]
#[command(
    name = "palisade",
    version,
    long_version = env!("PALISADE_VERSION"),
    long_about = help::FIRST,
    after_long_help = help::OVERVIEW,
    after_help = "More, with examples: palisade --help, palisade COMMAND --help",
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// Print JSON, one value per line; errors too, on standard error.
    #[arg(long, global = true)]
    json: bool,
    /// Log more to standard error; repeat for even more.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the lock server
    Serve(Box<operator::ServeArgs>),
    /// Hold a lock while a command runs
    #[command(visible_alias = "lock")]
    #[command(long_about = help::RUN)]
    Run(Box<RunArgs>),
    /// Campaign in an election, and run a command while leading
    #[command(long_about = help::ELECT)]
    Elect(Box<args::ElectArgs>),
    /// Print the leader of an election, and each change
    #[command(long_about = help::OBSERVE)]
    Observe(args::ObserveArgs),
    /// Change the value that a leader publishes
    Proclaim(args::ProclaimArgs),
    /// Acquire a lock and leave it to you
    #[command(long_about = help::ACQUIRE)]
    Acquire(Box<args::AcquireArgs>),
    /// Renew a lease for its full time
    Renew(args::RenewArgs),
    /// Print the fencing token as the authority signs it
    #[command(long_about = help::SEQUENCER)]
    Sequencer(args::SignArgs),
    /// Release a lock
    Release(args::ReleaseArgs),
    /// List the locks that are held
    Ls(args::LsArgs),
    /// Show who holds a lock
    Show(args::ShowArgs),
    /// Print events of locks as they happen
    Watch(args::WatchArgs),
    /// Tell who held a lock, since when, how it ended, and which late writes were refused
    History(history::HistoryArgs),
    /// Look at servers, a client, fences, a directory or a backup, and say what to do next
    #[command(long_about = help::DOCTOR)]
    Doctor(Box<doctor::DoctorArgs>),
    /// Take a lock from its holder
    #[command(long_about = help::BREAK)]
    Break(args::BreakArgs),
    /// Open a lock that is closed after its last grant
    #[command(long_about = help::OPEN)]
    Open(args::OpenArgs),
    /// Change how many permits a semaphore has
    #[command(long_about = help::PERMITS)]
    Permits(args::PermitsArgs),
    /// Install, inspect and re-arm the fences of resources
    #[command(subcommand)]
    Fence(fence::FenceCommand),
    /// Run the fenced store
    Store(Box<store::StoreArgs>),
    /// Put a fence in front of an HTTP API
    #[command(long_about = help::GATEWAY)]
    Gateway(Box<gateway::GatewayArgs>),
    /// Keep the states of Terraform and OpenTofu, and refuse late uploads
    #[command(long_about = help::TFSTATE)]
    Tfstate(Box<tfstate::TfstateArgs>),
    /// Show what happens to a paused holder, with and without fences
    Demo(demo::DemoArgs),
    #[command(name = "demo-worker", hide = true)]
    Worker(demo::WorkerArgs),
    /// Measure a lock server
    Bench(Box<bench::BenchArgs>),
    /// Make certificates and tokens, and check and explain rules
    #[command(subcommand)]
    Auth(auth::AuthCommand),
    /// Show and change the nodes of a cluster
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Check and show the settings of the commands that serve
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Copy an authority's directory, whether or not its server is running
    #[command(after_long_help = help::BACKUP_AFTER)]
    Backup(operator::BackupArgs),
    /// Create a new authority directory from a backup
    #[command(long_about = help::RESTORE)]
    Restore(operator::RestoreArgs),
    /// Print completions for a shell
    Completions(args::CompletionsArgs),
    /// Print or write the man pages
    Man(args::ManArgs),
}

/// Parses the command line and runs the command.
pub(crate) fn main() -> ExitCode {
    let cli = match settings::parse(usage::arguments(), &settings::environment) {
        Ok(cli) => cli,
        Err(CommandLineRefused::Words(error)) => return usage::refused(&error),
        Err(CommandLineRefused::Settings(failure)) => return usage::misconfigured(&failure),
    };
    let out = Out::new(cli.json);
    match logs::start(&cli).and_then(|()| cli.command.carry_out(out)) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            out.failure(&failure);
            ExitCode::from(failure.status)
        }
    }
}

impl Command {
    /// Runs the command; the status is that of the job, or 0.
    fn carry_out(self, out: Out) -> Result<u8, Failure> {
        if self.is_server() || matches!(self, Command::Bench(_)) {
            crate::memory::small_pages();
        }
        match self {
            Command::Run(args) => return crate::run::run(&args, out),
            Command::Elect(args) => return crate::run::run(&args.campaign(), out),
            Command::Observe(args) => return wait_for(election::observe(&args, out)),
            Command::Proclaim(args) => wait_for(election::proclaim(&args, out)),
            Command::Serve(args) => operator::serve(&args, out),
            Command::Acquire(args) => wait_for(grant::acquire(&args, out)),
            Command::Renew(args) => wait_for(grant::renew(&args, out)),
            Command::Sequencer(args) => wait_for(grant::sequencer(&args, out)),
            Command::Release(args) => wait_for(grant::release(&args, out)),
            Command::Ls(args) => wait_for(inspect::ls(&args, out)),
            Command::Show(args) => return wait_for(inspect::show(&args, out)),
            Command::Watch(args) => wait_for(inspect::watch(&args, out)),
            Command::History(args) => wait_for(history::carry_out(&args, out)),
            Command::Doctor(args) => return doctor::carry_out(&args, out),
            Command::Break(args) => wait_for(inspect::revoke(&args, out)),
            Command::Open(args) => wait_for(inspect::reopen(&args, out)),
            Command::Permits(args) => wait_for(inspect::resize(&args, out)),
            Command::Fence(command) => wait_for(fence::carry_out(command, out)),
            Command::Store(args) => store::store(&args, out),
            Command::Gateway(args) => gateway::gateway(&args, out),
            Command::Tfstate(args) => tfstate::tfstate(&args, out),
            Command::Demo(args) => demo::demo(&args, out),
            Command::Worker(args) => demo::worker(&args),
            Command::Bench(args) => bench::bench(&args, out),
            Command::Auth(command) => auth::carry_out(command, out),
            Command::Cluster(command) => wait_for(cluster::carry_out(command, out)),
            Command::Config(command) => config::carry_out(command, out),
            Command::Backup(args) => operator::backup(&args, out),
            Command::Restore(args) => operator::restore(&args, out),
            Command::Completions(args) => pages::completions(&args),
            Command::Man(args) => pages::man(&args),
        }?;
        Ok(0)
    }

    /// Checks the settings of a command that serves, and starts nothing.
    fn check(&self) -> Result<(), Failure> {
        match self {
            Command::Serve(args) => operator::settings(args, false).map(drop),
            Command::Store(args) => store::check(args).map(drop),
            Command::Gateway(args) => gateway::check(args).map(drop),
            Command::Tfstate(args) => tfstate::check(args).map(drop),
            _ => Ok(()),
        }
    }

    /// The name of a command that sends spans, and where to.
    fn collector(&self) -> Option<(&'static str, &crate::otlp::Endpoint)> {
        let (name, collector) = match self {
            Command::Serve(args) => ("serve", args.collector()),
            Command::Store(args) => ("store", args.collector()),
            Command::Gateway(args) => ("gateway", args.collector()),
            Command::Tfstate(args) => ("tfstate", args.collector()),
            _ => return None,
        };
        Some((name, collector?))
    }

    fn is_server(&self) -> bool {
        matches!(
            self,
            Command::Serve(_) | Command::Store(_) | Command::Gateway(_) | Command::Tfstate(_)
        )
    }
}

impl AuthorityArgs {
    /// Only `palisade run` supports Redlock's addresses.
    pub(crate) fn is_redlock(&self) -> bool {
        self.authority.starts_with("redlock://")
    }

    pub(crate) async fn open(&self, options: Options) -> Result<Client, Failure> {
        if self.is_redlock() {
            return Err(only_run());
        }
        let client = self.connect(options).await;
        client.map_err(|error| Failure::of(&error, &self.authority))
    }

    /// Connects to an authority that has fencing tokens; returns the client's own error.
    pub(crate) async fn connect(&self, options: Options) -> Result<Client, palisade_client::Error> {
        let options = Options {
            tls: self.tls(),
            token: self.token()?,
            ..options
        };
        palisade_authorities::client(&self.authority, options).await
    }
}

/// Why only `run` works with a lock that has no tokens.
fn only_run() -> Failure {
    let why = "redlock:// supports `palisade run` only: it has no fencing token that names a grant (acquire, \
               renew, release, break), keeps no record of who holds a lock (show, ls) and announces \
               nothing (watch)";
    Failure::new(FAILED, Code::Refused, why)
        .hint("use an authority with tokens; for a single Redis primary: redis://host")
}
