//! The commands for server operators: `serve`, `backup` and `restore`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::Uri;
use clap::{Args, ValueEnum, ValueHint};
use palisade_core::{Limits, Token, Ttl, limits};
use palisade_fence::store;
use palisade_pipeline::durable::{self, Restored};
use palisade_proto::Code;
use palisade_replica::peers::Key;
use palisade_replica::{Profile, recovery};
use palisade_server::shell::Listen;
use palisade_server::{memory, shell};
use palisade_wal::OpenError;
use serde_json::json;

use super::failure::{FAILED, Failure};
use super::network::{CallerCheck, NetworkArgs};
use super::output::Out;
use super::{help, value};
use crate::serve;

/// `palisade serve`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::SERVE_AFTER)]
pub(crate) struct ServeArgs {
    /// Where to listen: an IP address and a port (0 takes a free one), or unix:/PATH for a Unix socket, which the server's
    /// user and group may use. May be repeated, or several with commas between them.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7420", value_delimiter = ',', value_parser = value::listen_on)]
    listen: Vec<Listen>,
    /// The directory of the authority; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "./palisade-data", value_hint = ValueHint::DirPath)]
    data: PathBuf,
    /// Refuse to start if there is no authority in the directory: with a mistyped path or another working directory, a new
    /// one would begin.
    #[arg(long)]
    existing: bool,
    /// The shortest lease granted.
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = value::ttl, allow_hyphen_values = true)]
    min_ttl: Ttl,
    /// The longest lease granted.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = value::ttl, allow_hyphen_values = true)]
    max_ttl: Ttl,
    /// Whether time passes on its own. A manual clock moves only on request (POST /v1/clock/advance): for tests, never for
    /// locks that matter.
    #[arg(long, value_name = "KIND", default_value = "system")]
    clock: ClockKind,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The access file: the callers that this server knows, and their rights. SIGHUP reloads it. Without it, everybody who
    /// reaches the port may do everything.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    access: Option<PathBuf>,
    /// Append denials, breaks, supersedes, restores, changes of the cluster, new rules and the grants for which the access
    /// file asks to this file, as lines of JSON. It is opened again at SIGHUP. While it cannot be written, breaks and
    /// changes of the cluster are refused.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    audit: Option<PathBuf>,
    /// For how many locks, 1 or more, requests of one address may wait at a time (IPv6: one /64), or of one user of a Unix socket
    /// [default: half of those that the memory for requests has room for, 32768 or more].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    waits_per_address: Option<u32>,
    /// How many watches, 1 or more, one address may have open, or one user of a Unix socket [default: 5000, half of all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    watches_per_address: Option<u32>,
    /// Keep no history of locks (`palisade history`).
    #[arg(long, conflicts_with_all = ["history_age", "history_bytes"])]
    no_history: bool,
    /// How long the history keeps a grant after its end.
    #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = value::history_age)]
    history_age: Duration,
    /// How many bytes of grants the history keeps; its file is up to twice as large.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = value::size)]
    history_bytes: u64,
    #[command(flatten)]
    network: NetworkArgs,
}

impl ServeArgs {
    /// Where spans are sent.
    pub(super) fn collector(&self) -> Option<&crate::otlp::Endpoint> {
        self.network.otlp.as_ref()
    }
}

/// How a node of a cluster finds the others.
#[derive(Args, Clone, Debug)]
struct ClusterArgs {
    /// Form a cluster of these nodes, named by their peer addresses: the same list on each of them. Ignored once
    /// this node is a member.
    #[arg(long, value_name = "PEER,PEER,…", value_delimiter = ',', conflicts_with_all = ["join", "clock"])]
    cluster: Vec<String>,
    /// Join an existing cluster: the URL of one of its nodes, or of several.
    #[arg(
        long,
        value_name = "URL,URL,…",
        value_delimiter = ',',
        conflicts_with = "clock"
    )]
    join: Vec<String>,
    /// Where to listen for the other nodes [default: the address in --cluster with the same IP address as --listen;
    /// if there are several, or with --join, the port above that of --listen].
    #[arg(long, value_name = "ADDRESS", value_parser = value::listen)]
    peer_listen: Option<SocketAddr>,
    /// The address at which the other nodes reach this one, if it is not the one it listens on.
    #[arg(long, value_name = "PEER")]
    peer_address: Option<String>,
    /// The URL that this node gives to clients, if it is not the one it listens on.
    #[arg(long, value_name = "URL", value_parser = value::advertise)]
    advertise: Option<Uri>,
    /// How far apart the nodes are, the same on each of them: `rack` for round trips up to 5 ms and the soonest new leader,
    /// `region` for up to 20 ms, `multi-region` for up to 200 ms [default: region].
    #[arg(long, value_name = "PROFILE", value_parser = value::timers())]
    timers: Option<Profile>,
    /// A file with the secret that all nodes of the cluster share: at least 16 bytes. Required off loopback.
    #[arg(long, value_name = "FILE", env = "PALISADE_CLUSTER_KEY_FILE", value_hint = ValueHint::FilePath)]
    cluster_key_file: Option<PathBuf>,
    /// The CA of the nodes' certificates, in PEM [default: --tls-client-ca]. With --tls-cert the nodes speak TLS with each
    /// other, and each shows a certificate of this CA that is for the host of its peer address.
    #[arg(long, value_name = "FILE", requires = "tls_cert", value_hint = ValueHint::FilePath)]
    peer_ca: Option<PathBuf>,
}

impl ClusterArgs {
    /// `None` for a single server.
    fn settings(
        &self,
        listen: &[Listen],
        network: &NetworkArgs,
    ) -> Result<Option<serve::cluster::Settings>, Failure> {
        if self.cluster.is_empty() && self.join.is_empty() {
            return match self.given() {
                None => Ok(None),
                Some((flag, value)) => {
                    let why = format!(
                        "{flag} {value} is for the nodes of a cluster, and this is a single server"
                    );
                    Err(Failure::usage(why).hint(format!(
                        "leave {flag} out, or name the cluster: --cluster PEER,PEER,… on each of its nodes, or --join URL"
                    )))
                }
            };
        }
        let Some(listen) = listen.iter().find_map(Listen::tcp) else {
            let why = "the other nodes of a cluster, and its clients, cannot reach a Unix socket";
            return Err(Failure::usage(why).hint("add a port: --listen ADDRESS"));
        };
        let peer = self.peer_listen(listen)?;
        let peer_name = self
            .peer_address
            .clone()
            .unwrap_or_else(|| peer.to_string());
        let key = self.key()?;
        if key.is_none() && !peer.ip().is_loopback() {
            let why = format!(
                "other machines can reach {peer}, and could join the cluster or read its log"
            );
            return Err(Failure::usage(why).hint(
                "make a secret, `openssl rand -hex 32 > cluster.key`, copy it to every node, and name it \
                 with --cluster-key-file",
            ));
        }
        let peer_tls = network.to_peers(self.peer_ca.as_deref())?;
        if peer_tls.is_none() {
            network.admit(
                "--peer-listen",
                peer,
                CallerCheck::Known,
                "read what the nodes tell each other, and change it",
            )?;
        }
        let scheme = network.scheme();
        let url = match &self.advertise {
            Some(url) if url.scheme_str() != Some(scheme) => {
                let why = format!("--advertise {url} does not begin with {scheme}://");
                return Err(Failure::usage(why).hint(
                    "with --tls-cert the URL begins with https://, without it with http://",
                ));
            }
            Some(url) => url.to_string().trim_end_matches('/').to_owned(),
            None if listen.ip().is_unspecified() => {
                let why = format!("clients cannot be sent to {listen}");
                return Err(Failure::usage(why).hint(format!(
                    "name this node's URL: --advertise {scheme}://10.0.0.1:7420"
                )));
            }
            None => format!("{scheme}://{listen}"),
        };
        Ok(Some(serve::cluster::Settings {
            list: self.cluster.clone(),
            join: self.join.clone(),
            peer,
            peer_name,
            url,
            timers: self.timers.unwrap_or_default(),
            key,
            peer_tls,
            tls: network.to_others(self.peer_ca.as_deref()),
        }))
    }

    /// An option that only a node of a cluster has: three nodes without the list would be three authorities. A key that the
    /// environment names may be for another program.
    fn given(&self) -> Option<(&'static str, String)> {
        let path = |path: &PathBuf| path.display().to_string();
        let around = std::env::var_os("PALISADE_CLUSTER_KEY_FILE").map(PathBuf::from);
        let key = self.cluster_key_file.as_ref();
        let key = key.filter(|key| around.as_ref() != Some(key));
        let given = [
            ("--timers", self.timers.map(|timers| timers.to_string())),
            (
                "--peer-listen",
                self.peer_listen.map(|peer| peer.to_string()),
            ),
            ("--peer-address", self.peer_address.clone()),
            ("--advertise", self.advertise.as_ref().map(Uri::to_string)),
            ("--cluster-key-file", key.map(path)),
            ("--peer-ca", self.peer_ca.as_ref().map(path)),
        ];
        given
            .into_iter()
            .find_map(|(flag, value)| Some((flag, value?)))
    }

    fn peer_listen(&self, listen: SocketAddr) -> Result<SocketAddr, Failure> {
        if let Some(peer) = self.peer_listen {
            return Ok(peer);
        }
        let above = SocketAddr::new(listen.ip(), listen.port().saturating_add(1));
        let listed = self
            .cluster
            .iter()
            .filter_map(|peer| peer.parse::<SocketAddr>().ok());
        let here: Vec<SocketAddr> = listed.filter(|peer| peer.ip() == listen.ip()).collect();
        match &here[..] {
            _ if listen.ip().is_unspecified() || listen.port() == 0 => {
                let why =
                    format!("with --listen {listen} this node's own peer address is not known");
                Err(Failure::usage(why).hint("name it with --peer-listen ADDRESS"))
            }
            [one] => Ok(*one),
            [] if !self.cluster.is_empty() => {
                let why =
                    format!("no address in --cluster has the IP address of --listen {listen}");
                Err(Failure::usage(why)
                    .hint("name this node's own with --peer-listen (and --peer-address)"))
            }
            _ => Ok(above),
        }
    }

    fn key(&self) -> Result<Option<Key>, Failure> {
        let Some(path) = &self.cluster_key_file else {
            return Ok(None);
        };
        let shown = path.display();
        let bytes =
            std::fs::read(path).map_err(|error| Failure::usage(format!("{shown}: {error}")))?;
        let key = Key::new(bytes.trim_ascii_end());
        key.map(Some)
            .map_err(|why| Failure::usage(format!("{shown}: {why}")))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClockKind {
    System,
    Manual,
}

/// `palisade backup`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BackupArgs {
    /// The new directory to create.
    #[arg(value_name = "TO", value_hint = ValueHint::DirPath)]
    to: PathBuf,
    /// The directory of the authority, whether or not its server is running.
    #[arg(long, value_name = "DIR", default_value = "./palisade-data", value_hint = ValueHint::DirPath)]
    data: PathBuf,
}

/// `palisade restore`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RestoreArgs {
    /// The backup; with --in-place, the directory itself.
    #[arg(value_name = "BACKUP", value_hint = ValueHint::DirPath)]
    backup: PathBuf,
    /// Start a new incarnation in the directory itself, keeping its contents: for files that were touched
    /// (chown, chmod) or replaced by an older copy.
    #[arg(long, conflicts_with = "data")]
    in_place: bool,
    /// The new directory to create.
    #[arg(long, value_name = "DIR", default_value = "./palisade-data", value_hint = ValueHint::DirPath)]
    data: PathBuf,
}

pub(super) fn serve(args: &ServeArgs, out: Out) -> Result<(), Failure> {
    serve::run(&settings(args, out.json)?).map_err(failed)
}

/// Checks the arguments, and the files that they name.
pub(super) fn settings(args: &ServeArgs, json: bool) -> Result<serve::Settings, Failure> {
    if args.min_ttl > args.max_ttl {
        let (min, max) = (args.min_ttl, args.max_ttl);
        return Err(Failure::usage(format!(
            "--min-ttl {min} is above --max-ttl {max}"
        )));
    }
    if let Some(file) = &args.access {
        // Before anything is opened; the server reads it again.
        palisade_access::file::read(file).map_err(|error| Failure::usage(error.to_string()))?;
    }
    let cluster = args.cluster.settings(&args.listen, &args.network)?;
    args.network.check_tls(&args.listen)?;
    args.network.admit_all(
        &args.listen,
        if args.access.is_some() {
            CallerCheck::Encrypted
        } else {
            CallerCheck::Known
        },
        "take or break any lock",
    )?;
    // Other nodes forward requests to the name that this one gives to clients.
    let advertised = args
        .cluster
        .advertise
        .iter()
        .flat_map(Uri::host)
        .map(str::to_owned);
    let network = shell::Settings {
        hosts: args.network.hosts(advertised),
        ..shell::Settings::default()
    };
    let mut network = args.network.bounds(network)?;
    if let Some(tls) = &mut network.tls {
        tls.certificate_optional = args.access.is_some();
    }
    Ok(serve::Settings {
        cluster,
        listen: args.listen.clone(),
        data: args.data.clone(),
        existing: args.existing,
        limits: Limits {
            min_ttl: args.min_ttl,
            max_ttl: args.max_ttl,
            // Half of the memory: queues, remembered answers and requests in flight need the rest.
            locks: limits::locks_in(memory::of_this_machine() / 2),
            ..Limits::DEFAULT
        },
        network,
        manual_clock: args.clock == ClockKind::Manual,
        access: args.access.clone(),
        audit: args.audit.clone(),
        waits_per_address: args.waits_per_address,
        watches_per_address: args.watches_per_address,
        history: (!args.no_history).then_some((args.history_age, args.history_bytes)),
        json,
    })
}

pub(super) fn backup(args: &BackupArgs, out: Out) -> Result<(), Failure> {
    let (identity, entries, left_out) = match palisade_wal::backup(&args.data, &args.to) {
        Err(OpenError::Member { .. }) => {
            let made = recovery::back_up(&args.data, &args.to).map_err(failed)?;
            (made.identity, made.entries, made.left_out)
        }
        copied => {
            let report = copied.map_err(not_backed_up)?;
            (report.identity, report.last.map_or(0, |last| last.get()), 0)
        }
    };
    if left_out > 0 {
        out.warning(&format!(
            "the backup lacks {left_out} entries at the end of this node's log, because the node does not know that a \
             majority has them"
        ));
    }
    if out.json {
        let authority = identity.owner.to_string();
        return out.value(&json!({"backup": args.to, "authority": authority, "entries": entries}));
    }
    let (data, to) = (args.data.display(), args.to.display());
    out.text(&format!(
        "backed up {data} to {to} ({entries} log entries)\n\
         open it with: palisade restore {to} --data NEW-DIRECTORY"
    ))
}

/// The code that fits the caller's next step: use another folder, or the intended one.
fn not_backed_up(error: OpenError) -> Failure {
    let code = match &error {
        OpenError::Missing { .. } => Code::NotFound,
        OpenError::Exists { .. } | OpenError::NotEmpty { .. } => Code::Invalid,
        _ => Code::Internal,
    };
    Failure::new(FAILED, code, error.to_string())
}

/// How many locks a new directory holds, as they were at some moment.
pub(super) fn held(locks: usize, when: &str) -> String {
    match locks {
        1 => format!("1 lock is held as it was {when}; its lease gets its full time again"),
        _ => format!(
            "{locks} locks are held as they were {when}; their leases get their full time again"
        ),
    }
}

pub(super) fn restore(args: &RestoreArgs, out: Out) -> Result<(), Failure> {
    let data = if args.in_place {
        &args.backup
    } else {
        &args.data
    };
    let restored = if args.in_place {
        match durable::restore_in_place(data) {
            // It may be a store's directory.
            Err(durable::Error::Replay(error)) => {
                return store_in_place(data, out).map_err(|_| failed(error));
            }
            restored => restored,
        }
    } else {
        durable::restore(&args.backup, data)
    };
    let restored = restored.map_err(failed)?;
    if out.json {
        return out.value(&restored_json(data, &restored));
    }
    out.text(&format!(
        "restored {} into {data}\n\
         {}\x20 {}\n\n\
         Make sure the old server, or every node of the old cluster, never runs again, then: palisade serve --data \
         {data}\n\
         With --cluster it becomes the first node of a new cluster",
        args.backup.display(),
        identified(&restored),
        held(restored.locks, "at the backup"),
        data = data.display(),
    ))
}

/// For programs.
pub(super) fn restored_json(data: &Path, restored: &Restored) -> serde_json::Value {
    json!({
        "data": data,
        "authority": &*restored.identity.authority,
        "incarnation": restored.identity.incarnation,
        "next_token": restored.next_token.map(Token::get),
        "locks": restored.locks,
    })
}

/// For people, some lines.
pub(super) fn identified(restored: &Restored) -> String {
    let next_token = restored.next_token.map(Token::get);
    format!(
        "\x20 authority    {} (as before)\n\
         \x20 incarnation  {} (new)\n\
         \x20 next token   {}\n",
        restored.identity.authority,
        restored.identity.incarnation,
        next_token.map_or("none: the range is exhausted".into(), |token| token
            .to_string()),
    )
}

/// A store has no counter to advance: its fences are as old as its files.
fn store_in_place(data: &Path, out: Out) -> Result<(), Failure> {
    let resources = store::restore_in_place(data).map_err(failed)?;
    if out.json {
        return out.value(&json!({"data": data, "resources": resources}));
    }
    let data = data.display();
    out.text(&format!(
        "restored the fenced store {data} in place ({resources} resources)\n\n\
         If an older copy was put back, its fences are as old as the copy. Before you start it, raise the fence of \
         each resource above the newest token that was granted for it:\n\
         \x20 palisade fence rearm RESOURCE --data {data} --floor TOKEN"
    ))
}

pub(super) fn failed(error: impl ToString) -> Failure {
    Failure::new(FAILED, palisade_proto::Code::Internal, error.to_string())
}
