//! The command line of `palisade gateway`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::Uri;
use clap::{Args, ValueHint};
use palisade_fence::http::{BadPolicy, LastRun, Policy, Routes, Tokenless};
use palisade_fence::sequencer::Check;
use palisade_proto::Code;
use palisade_server::shell::{self, BindError, Listen, Listeners, Shell};
use serde_json::json;
use tokio::net::TcpListener;

use super::failure::{FAILED, Failure, USAGE};
use super::help;
use super::network::{CallerCheck, NetworkArgs};
use super::output::{Out, facts};
use super::reports::ReportArgs;
use super::store::{FenceMode, JumpArgs, SequencerArgs, fence_warning};
use super::value;
use crate::data_directory;
use crate::export;
use crate::exposure;
use crate::gateway::{self, Gateway, GatewayDirectory, Ports, Timeouts, Upstream};
use crate::serve::cannot_listen;
use crate::service;
use crate::store::mode_name;

/// `palisade gateway`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::GATEWAY_AFTER)]
pub(crate) struct GatewayArgs {
    /// The HTTP API to fence: http://HOST:PORT or https://HOST:PORT, plus a base path if it has one.
    #[arg(long, value_name = "URL")]
    upstream: Uri,
    /// The CA of an https:// upstream, in PEM [default: those that this machine trusts].
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    upstream_ca_file: Option<PathBuf>,
    /// The directory of the marks; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "./palisade-gateway", value_hint = ValueHint::DirPath)]
    data: PathBuf,
    /// Refuse to start if the marks are missing: with a new directory, late writes would get through.
    #[arg(long)]
    expect_marks: bool,
    /// Where to listen: an IP address and a port (0 takes a free one), or unix:/PATH for a Unix socket, which the gateway's
    /// user and group may use. May be repeated, or several with commas between them.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7422", value_delimiter = ',', value_parser = value::listen_on)]
    listen: Vec<Listen>,
    /// Where to serve health, metrics and fences; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7423", value_parser = value::listen)]
    admin: SocketAddr,
    /// Maps paths to resources, for example '/accounts/{id:uint}=account:{id}'; the longest prefix wins. Types
    /// are uint, uint64, int, uuid, slug and name; each accepts one spelling of a value. Without routes, the
    /// whole upstream is the resource '/'.
    #[arg(long = "route", value_name = "PREFIX=RESOURCE")]
    routes: Vec<String>,
    /// Let writes that match no route through, unfenced.
    #[arg(long)]
    pass_unrouted: bool,
    /// Let writes without a token through until their resource is fenced.
    #[arg(long)]
    tokenless_until_fenced: bool,
    /// Let writes with the same token through one at a time.
    #[arg(long)]
    one_at_a_time: bool,
    /// How long a higher token waits for older writes to end before it is asked to try again: up to 24h.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = value::duration, allow_hyphen_values = true)]
    wait: Duration,
    /// How long the upstream may still work on a request after its connection was lost: up to 24h. Higher tokens wait
    /// this long after a time-out, after an answer that may come from a proxy, and after a crash of this gateway.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = value::duration, allow_hyphen_values = true)]
    settle: Duration,
    /// The upstream executes writes itself, and no proxy is in front of it: its 408, 499, 502, 503, 504 and
    /// 520 to 530 then also mean that a write has ended.
    #[arg(long)]
    upstream_answers_for_itself: bool,
    /// How long the body of a write may take to arrive: 1ms – 24h. A write is forwarded only when it is complete.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = time, allow_hyphen_values = true)]
    request_timeout: Duration,
    /// How long a write may take at the upstream, to the end of its answer: 1ms – 24h. Then it is cut off.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = time, allow_hyphen_values = true)]
    write_timeout: Duration,
    /// The longest body of a write, 1 – 1099511627776 (1 TiB).
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20, value_parser = bytes(), allow_hyphen_values = true)]
    request_bytes: u64,
    /// How much of the answer to a write is buffered for a client that does not read it, 1 byte – 1 TiB.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, value_parser = bytes(), allow_hyphen_values = true)]
    answer_bytes: u64,
    /// How many bytes of bodies are buffered for all writes together, 1 – 1 TiB.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20, value_parser = bytes(), allow_hyphen_values = true)]
    held_bytes: u64,
    /// How long the upstream may take to accept a connection: 1ms – 24h.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = time, allow_hyphen_values = true)]
    connect_timeout: Duration,
    /// How long the upstream may take to begin its answer: 1ms – 24h.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = time, allow_hyphen_values = true)]
    answer_timeout: Duration,
    /// How long a body that is passed on piece by piece may pause: 1ms – 24h.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = time, allow_hyphen_values = true)]
    idle_timeout: Duration,
    /// How long requests in flight may take after a shutdown signal: 1ms – 24h.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = value::duration, allow_hyphen_values = true)]
    drain: Duration,
    /// The rule that the fences apply. A directory keeps the mode it was created with.
    #[arg(long, value_name = "KIND", default_value = "claim")]
    fence: FenceMode,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    jump: JumpArgs,
    #[command(flatten)]
    sequencers: SequencerArgs,
    #[command(flatten)]
    reports: ReportArgs,
}

/// A number of bytes.
fn bytes() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..=Policy::MAX_BYTES as u64)
}

/// A time limit, which cannot be zero.
fn time(text: &str) -> Result<Duration, String> {
    let given = value::duration(text)?;
    if (Duration::from_millis(1)..=Policy::MAX).contains(&given) {
        Ok(given)
    } else {
        Err(format!("{given:?} is not between 1ms and 24h"))
    }
}

impl GatewayArgs {
    /// Where spans are sent.
    pub(super) fn collector(&self) -> Option<&crate::otlp::Endpoint> {
        self.network.otlp.as_ref()
    }

    fn routes(&self) -> Result<Routes, Failure> {
        let whole = ["/=/"];
        let lines = self.routes.iter().map(String::as_str);
        let parsed = if self.routes.is_empty() {
            Routes::parse(whole)
        } else {
            Routes::parse(lines)
        };
        let routes = parsed.map_err(|bad| wrong(bad.to_string()))?;
        Ok(routes.pass_unrouted(self.pass_unrouted))
    }

    fn upstream(&self) -> Result<Upstream, Failure> {
        let timeouts = Timeouts {
            connect: self.connect_timeout,
            answer: self.answer_timeout,
            idle: self.idle_timeout,
        };
        let (ca, clients) = (self.upstream_ca_file.as_deref(), self.network.scheme());
        Upstream::new(&self.upstream, ca, clients, timeouts).map_err(wrong)
    }

    fn policy(&self) -> Result<Policy, Failure> {
        let tokenless = if self.tokenless_until_fenced {
            Tokenless::UntilFenced
        } else {
            Tokenless::Refused
        };
        let policy = Policy {
            wait: self.wait,
            settle: self.settle,
            one_at_a_time: self.one_at_a_time,
            tokenless,
            request_time: self.request_timeout,
            flight: self.write_timeout,
            // The parser accepts nothing larger than a usize.
            request_bytes: self.request_bytes as usize,
            answer_bytes: self.answer_bytes as usize,
            held_bytes: self.held_bytes as usize,
            answers_for_itself: self.upstream_answers_for_itself,
            ..Policy::default()
        };
        let flagged =
            |bad: BadPolicy| wrong(format!("--{}", bad.to_string().replacen('_', "-", 1)));
        policy.check().map_err(flagged)?;
        Ok(policy)
    }
}

fn wrong(message: String) -> Failure {
    Failure::new(USAGE, Code::Invalid, message)
}

pub(super) fn gateway(args: &GatewayArgs, out: Out) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let served = runtime.block_on(serve(args, out));
    // Writes that are still running are not waited for: the drain gave them time.
    runtime.shutdown_background();
    served
}

/// The rights of anybody who reaches the two ports.
const ANYBODY: [&str; 2] = [
    "send requests to the upstream",
    "read which resources are fenced",
];

/// The arguments after all checks.
pub(super) struct CheckedArgs {
    routes: Routes,
    upstream: Upstream,
    policy: Policy,
    sequencers: Check,
    clients: shell::Settings,
}

/// Checks the arguments.
pub(super) fn check(args: &GatewayArgs) -> Result<CheckedArgs, Failure> {
    let network = &args.network;
    let checked = CheckedArgs {
        routes: args.routes()?,
        upstream: args.upstream()?,
        policy: args.policy()?,
        sequencers: args.sequencers.check()?,
        clients: network.bounds(gateway::client_settings())?,
    };
    network.admit_all(&args.listen, CallerCheck::Encrypted, ANYBODY[0])?;
    network.admit("--admin", args.admin, CallerCheck::Known, ANYBODY[1])?;
    Ok(checked)
}

async fn serve(args: &GatewayArgs, out: Out) -> Result<(), Failure> {
    let CheckedArgs {
        routes,
        upstream,
        policy,
        sequencers,
        clients,
    } = check(args)?;
    let network = &args.network;
    let admin = shell::Settings {
        drain_timeout: args.drain,
        hosts: network.hosts(std::iter::empty()),
        tls: clients.tls.clone(),
        ..gateway::admin_settings()
    };
    let clients = shell::Settings {
        drain_timeout: args.drain,
        ..clients
    };
    for settings in [&clients, &admin] {
        Shell::check(settings).map_err(|error| failed(error.to_string()))?;
    }
    let ports = Ports {
        clients: Listeners::bind(&args.listen)
            .await
            .map_err(|error| unbound(&error, "--listen"))?,
        admin: TcpListener::bind(args.admin).await.map_err(|source| {
            let at = Listen::Tcp(args.admin);
            unbound(&BindError { at, source }, "--admin")
        })?,
    };
    if !gateway::marks(&args.data).exists() {
        let mut own = data_directory::own_files(&args.listen, []);
        own.push(gateway::marks(&data_directory::absolute(&args.data)));
        data_directory::check(&args.data, &own, false)
            .map_err(|error| failed(error.to_string()))?;
    }
    if !args.expect_marks {
        exposure::private_directory(&args.data)?;
    }
    let directory = GatewayDirectory::open(
        &args.data,
        args.jump.bound(args.fence.rule()),
        args.expect_marks,
    )
    .map_err(|error| failed(format!("cannot open {}: {error}", args.data.display())))?;
    let shutdown = service::stop_signal()?;
    let reporter = args.reports.reporter().await?;
    exposure::warn_of_directory(&args.data);
    exposure::warn_of_addresses(&args.listen, network.scheme(), ANYBODY[0]);
    exposure::warn_of_address("--admin", args.admin, network.scheme(), ANYBODY[1]);
    announce(args, &ports, directory.start(), out)?;
    let gateway = Gateway {
        directory,
        routes,
        upstream,
        policy,
        sequencers,
        reporter,
        clients,
        admin,
    };
    service::ready();
    let spans = export::export_spans(None);
    let served = gateway.serve(ports, shutdown).await;
    spans.finish().await;
    served.map_err(|why| failed(format!("the gateway stopped: {why}")))
}

fn unbound(error: &BindError, flag: &str) -> Failure {
    failed(error.to_string()).hint(cannot_listen(error, flag))
}

fn failed(message: String) -> Failure {
    Failure::new(FAILED, Code::Internal, message)
}

fn announce(args: &GatewayArgs, ports: &Ports, start: LastRun, out: Out) -> Result<(), Failure> {
    let (at, admin) = (ports.clients.addresses()?, ports.admin.local_addr()?);
    let scheme = args.network.scheme();
    let (urls, admin) = (exposure::urls(&at, scheme), format!("{scheme}://{admin}"));
    let mode = args.fence.rule().mode;
    let settling = start == LastRun::Unclean;
    if out.json {
        return out.value(&json!({
            "listening": at.first().map(Listen::to_string), "url": urls.first(), "urls": urls, "admin": admin,
            "upstream": args.upstream.to_string(), "data": args.data, "fence": mode_name(mode), "settling": settling,
        }));
    }
    out.text(&format!(
        "palisade {} · fenced gateway",
        env!("CARGO_PKG_VERSION")
    ))?;
    let rows = [
        ("listening", urls.join(", ")),
        ("upstream", args.upstream.to_string()),
        ("admin", admin),
        ("data", args.data.display().to_string()),
        ("fence", mode_name(mode).to_owned()),
    ];
    out.text(&facts(out, &rows))?;
    if settling {
        out.text(&format!(
            "\n  the last run did not end cleanly, so higher tokens wait for {:?} until its writes have ended",
            args.settle
        ))?;
    }
    fence_warning(mode, out)
}
