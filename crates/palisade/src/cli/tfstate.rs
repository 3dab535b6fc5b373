//! The command line of `palisade tfstate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use palisade_client::Options;
use palisade_core::Ttl;
use palisade_core::fence::Rule;
use palisade_fence::store::{Settings, Store};
use palisade_proto::Code;
use palisade_server::shell::{self, Listen, Listeners, Shell};
use serde_json::json;

use super::args::AuthorityArgs;
use super::failure::{FAILED, Failure};
use super::network::{CallerCheck, NetworkArgs};
use super::output::{Out, facts};
use super::store::JumpArgs;
use super::{help, value};
use crate::tfstate::{self, StatePolicy};
use crate::{data_directory, export, exposure, serve, service};

/// `palisade tfstate`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::TFSTATE_AFTER)]
pub(crate) struct TfstateArgs {
    /// Where to listen: an IP address and a port (0 takes a free one), or unix:/PATH for a Unix socket. May be repeated, or
    /// several with commas between them.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7424", value_delimiter = ',', value_parser = value::listen_on)]
    listen: Vec<Listen>,
    /// The directory of the states; created if it does not exist. States hold passwords: only this user can read it.
    #[arg(long, value_name = "DIR", default_value = "./palisade-tfstate", value_hint = ValueHint::DirPath)]
    data: PathBuf,
    /// How long a state stays locked after this server has died: 100ms – 24h.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = value::ttl, allow_hyphen_values = true)]
    ttl: Ttl,
    /// How many versions of each state are kept, 1 – 1000. They are in memory, compressed.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    versions: u64,
    /// The largest state, 1 – 1073741824 (1 GiB).
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(1..=1 << 30),
          allow_hyphen_values = true)]
    state_bytes: u64,
    /// Carry out Terraform's `force-unlock`, which names no lock, also for callers without a password.
    #[arg(long)]
    allow_blind_force_unlock: bool,
    #[command(flatten)]
    connection: AuthorityArgs,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    jump: JumpArgs,
}

/// An attempt that is open to anybody who reaches the port.
const ANYBODY: &str = "read every state that the authority lets them see";

impl TfstateArgs {
    /// Where spans are sent.
    pub(super) fn collector(&self) -> Option<&crate::otlp::Endpoint> {
        self.network.otlp.as_ref()
    }

    fn policy(&self) -> StatePolicy {
        let size = |given: u64| usize::try_from(given).unwrap_or(usize::MAX);
        StatePolicy {
            ttl: self.ttl,
            versions: size(self.versions),
            state_bytes: size(self.state_bytes),
            blind_unlock: self.allow_blind_force_unlock,
        }
    }
}

pub(super) fn tfstate(args: &TfstateArgs, out: Out) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(args, out))
}

/// Checks the arguments.
pub(super) fn check(args: &TfstateArgs) -> Result<(Settings, shell::Settings), Failure> {
    args.network.check_tls(&args.listen)?;
    args.network
        .admit_all(&args.listen, CallerCheck::Encrypted, ANYBODY)?;
    if args.connection.is_redlock() {
        return Err(super::only_run());
    }
    let settings = Settings::default().with_rule(args.jump.bound(Rule::CLAIM));
    let network = shell::Settings {
        hosts: args.network.hosts(std::iter::empty()),
        ..tfstate::settings(args.policy().state_bytes)
    };
    Ok((settings, args.network.bounds(network)?))
}

async fn run(args: &TfstateArgs, out: Out) -> Result<(), Failure> {
    serve::survive_file_size_limit()?;
    let (settings, network) = check(args)?;
    let options = Options {
        tls: args.connection.tls(),
        token: args
            .connection
            .token()
            .map_err(|fault| Failure::of(&fault.into(), &args.connection.authority))?,
        patience: PATIENCE,
        ..Options::default()
    };
    let callers = tfstate::StateCallers::new(args.connection.authority.clone(), options);
    let own = data_directory::own_files(&args.listen, []);
    data_directory::check(&args.data, &own, false).map_err(|error| failed(error.to_string()))?;
    Shell::check(&network).map_err(|error| failed(error.to_string()))?;
    if args.connection.authority.contains("https://") {
        palisade_tls::TlsClient::new(&args.connection.tls())
            .map_err(|error| failed(error.to_string()))?;
    }
    let listeners = Listeners::bind(&args.listen).await.map_err(|error| {
        failed(error.to_string()).hint(serve::cannot_listen(&error, "--listen"))
    })?;
    exposure::private_directory(&args.data)?;
    let opened = Store::open(&args.data, &settings);
    let store =
        opened.map_err(|error| failed(format!("cannot open {}: {error}", args.data.display())))?;
    if let Some(torn) = &store.recovered().torn {
        serve::report_torn(torn);
    }
    let shutdown = service::stop_signal()?;
    exposure::warn_of_directory(&args.data);
    exposure::warn_of_addresses(&args.listen, args.network.scheme(), ANYBODY);
    announce(args, &listeners.addresses()?, out)?;
    service::ready();
    let spans = export::export_spans(None);
    let served = tfstate::serve(listeners, store, callers, args.policy(), network, shutdown).await;
    spans.finish().await;
    served.map_err(|why| failed(format!("the server of states stopped: {why}")))
}

fn failed(message: String) -> Failure {
    Failure::new(FAILED, Code::Internal, message)
}

fn announce(args: &TfstateArgs, at: &[Listen], out: Out) -> Result<(), Failure> {
    let urls = exposure::urls(at, args.network.scheme());
    if out.json {
        return out.value(&json!({
            "listening": at.first().map(Listen::to_string), "url": urls.first(), "urls": urls, "data": args.data,
            "authority": args.connection.authority,
        }));
    }
    out.text(&format!(
        "palisade {} · Terraform states",
        env!("CARGO_PKG_VERSION")
    ))?;
    let address = urls.first().map(|url| format!("{url}/v1/tf/NAME"));
    let rows = [
        ("listening", urls.join(", ")),
        ("address", address.unwrap_or_default()),
        ("locks", args.connection.authority.clone()),
        ("data", args.data.display().to_string()),
    ];
    out.text(&facts(out, &rows))
}

/// How long an answer may wait for the authority; Terraform repeats a request that is answered 503.
const PATIENCE: Duration = Duration::from_secs(5);
