//! The command line of `palisade store`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use palisade_core::Token;
use palisade_core::fence::{DEFAULT_MAX_JUMP, Mode, Rule};
use palisade_fence::sequencer::Check;
use palisade_fence::store::{Settings, Store};
use palisade_proto::Code;
use palisade_server::shell::{self, Listen, Listeners, Shell};
use serde_json::json;

use super::failure::{FAILED, Failure};
use super::network::{CallerCheck, NetworkArgs};
use super::output::{Out, facts};
use super::reports::ReportArgs;
use super::{help, value};
use crate::{data_directory, export, exposure, serve, service, store};

/// `palisade store`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::STORE_AFTER)]
pub(crate) struct StoreArgs {
    /// Where to listen: an IP address and a port (0 takes a free one), or unix:/PATH for a Unix socket, which the store's
    /// user and group may use. May be repeated, or several with commas between them.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7421", value_delimiter = ',', value_parser = value::listen_on)]
    listen: Vec<Listen>,
    /// The directory of the store; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "./palisade-store", value_hint = ValueHint::DirPath)]
    data: PathBuf,
    /// The rule that the fences apply. A directory keeps the mode it was created with.
    #[arg(long, value_name = "KIND", default_value = "claim")]
    fence: FenceMode,
    /// For comparison only: no check at all, also of writes without a token. CORRUPTS DATA as soon as a holder is late.
    #[arg(long, conflicts_with = "fence")]
    danger_unfenced: bool,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    jump: JumpArgs,
    #[command(flatten)]
    sequencers: SequencerArgs,
    #[command(flatten)]
    reports: ReportArgs,
}

/// The tokens that a fence accepts (rule Q3).
#[derive(Args, Clone, Debug)]
pub(super) struct SequencerArgs {
    /// The public keys of the authority, to check sequencers with: its /.well-known/jwks.json. It is read again when it
    /// has changed.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    keys: Option<PathBuf>,
    /// Admit no bare token: every token must come in a sequencer that the authority has signed.
    #[arg(long, requires = "keys")]
    require_signed: bool,
}

impl SequencerArgs {
    /// The check that the fences apply to sequencers.
    pub(super) fn check(&self) -> Result<Check, Failure> {
        let check = self.keys.as_deref().map(Check::with_file).transpose();
        let check = check.map_err(|bad| Failure::usage(format!("--keys: {bad}")))?;
        Ok(check.unwrap_or_default().required(self.require_signed))
    }
}

/// The largest step of tokens that a fence accepts (rule F10).
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct JumpArgs {
    /// How far a token may be above the highest that its resource has seen, 1 – 9007199254740991. The default covers one restore of
    /// the lock server; if a resource missed several restores, multiply by their number.
    #[arg(long, value_name = "TOKENS", default_value_t = DEFAULT_MAX_JUMP, allow_hyphen_values = true,
          value_parser = clap::value_parser!(u64).range(1..=Token::MAX.get()))]
    max_jump: u64,
}

impl JumpArgs {
    pub(super) const fn tokens(self) -> u64 {
        self.max_jump
    }

    pub(super) const fn bound(self, rule: Rule) -> Rule {
        Rule {
            max_jump: Some(self.max_jump),
            ..rule
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FenceMode {
    /// Every operation with a token checks it and raises the fence; recommended
    Claim,
    /// Like claim, with one write per grant, for records that are published once
    Strict,
    /// For comparison only: checks only writes. LOSES ACKNOWLEDGED UPDATES
    Textbook,
}

impl FenceMode {
    pub(super) const fn rule(self) -> Rule {
        let mode = match self {
            FenceMode::Claim => Mode::Claim,
            FenceMode::Strict => Mode::Strict,
            FenceMode::Textbook => Mode::Textbook,
        };
        Rule {
            mode,
            ..Rule::CLAIM
        }
    }
}

impl StoreArgs {
    /// Where spans are sent.
    pub(super) fn collector(&self) -> Option<&crate::otlp::Endpoint> {
        self.network.otlp.as_ref()
    }

    fn rule(&self) -> Rule {
        let rule = if self.danger_unfenced {
            Rule {
                mode: Mode::DangerUnfenced,
                ..Rule::CLAIM
            }
        } else {
            self.fence.rule()
        };
        self.jump.bound(rule)
    }
}

/// The rights of anybody who reaches the port.
const ANYBODY: &str = "read and write every object";

pub(super) fn store(args: &StoreArgs, out: Out) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(args, out))
}

/// Checks the arguments.
pub(super) fn check(args: &StoreArgs) -> Result<(Settings, Check, shell::Settings), Failure> {
    args.network.check_tls(&args.listen)?;
    args.network
        .admit_all(&args.listen, CallerCheck::Known, ANYBODY)?;
    let settings = Settings::default().with_rule(args.rule());
    let network = shell::Settings {
        hosts: args.network.hosts(std::iter::empty()),
        ..store::settings(settings.limits.object_bytes)
    };
    let sequencers = args.sequencers.check()?;
    Ok((settings, sequencers, args.network.bounds(network)?))
}

async fn run(args: &StoreArgs, out: Out) -> Result<(), Failure> {
    serve::survive_file_size_limit()?;
    let (settings, sequencers, network) = check(args)?;
    let own = data_directory::own_files(&args.listen, []);
    data_directory::check(&args.data, &own, false)
        .map_err(|error| failed(Code::Internal, error.to_string()))?;
    Shell::check(&network).map_err(|error| failed(Code::Internal, error.to_string()))?;
    // Take the port first, so that a second store on the same port never opens the directory.
    let listeners = Listeners::bind(&args.listen).await.map_err(|error| {
        failed(Code::Internal, error.to_string()).hint(serve::cannot_listen(&error, "--listen"))
    })?;
    exposure::private_directory(&args.data)?;
    let opened = Store::open(&args.data, &settings);
    let store = opened.map_err(|error| {
        failed(
            Code::Internal,
            format!("cannot open {}: {}", args.data.display(), error.report()),
        )
    })?;
    if let Some(torn) = &store.recovered().torn {
        serve::report_torn(torn);
    }
    let shutdown = service::stop_signal()?;
    let reporter = args.reports.reporter().await?;
    exposure::warn_of_directory(&args.data);
    exposure::warn_of_addresses(&args.listen, args.network.scheme(), ANYBODY);
    announce(args, &listeners.addresses()?, out)?;
    service::ready();
    let spans = export::export_spans(None);
    let served = store::serve(listeners, store, (sequencers, reporter), network, shutdown).await;
    spans.finish().await;
    served.map_err(|why| failed(Code::Internal, format!("the store stopped: {why}")))
}

fn failed(code: Code, message: String) -> Failure {
    Failure::new(FAILED, code, message)
}

fn announce(args: &StoreArgs, at: &[Listen], out: Out) -> Result<(), Failure> {
    let urls = exposure::urls(at, args.network.scheme());
    let fence = store::mode_name(args.rule().mode);
    if out.json {
        return out.value(&json!({
            "listening": at.first().map(Listen::to_string), "url": urls.first(), "urls": urls, "data": args.data,
            "fence": fence,
        }));
    }
    out.text(&format!(
        "palisade {} · fenced store",
        env!("CARGO_PKG_VERSION")
    ))?;
    let rows = [
        ("listening", urls.join(", ")),
        ("data", args.data.display().to_string()),
        ("fence", fence.to_owned()),
    ];
    out.text(&facts(out, &rows))?;
    fence_warning(args.rule().mode, out)
}

/// Warns of a mode that does not protect data.
pub(super) fn fence_warning(mode: Mode, out: Out) -> Result<(), Failure> {
    match mode {
        Mode::Textbook => {
            out.text("\n  !! TEXTBOOK FENCE: it loses acknowledged updates. For comparison only.")
        }
        Mode::DangerUnfenced => {
            out.text("\n  !! NO FENCE: a late write corrupts data. For comparison only.")
        }
        Mode::Claim | Mode::Strict => Ok(()),
    }
}
