//! `palisade serve`: the lock server on its data directory.

pub(crate) mod cluster;
mod join;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use palisade_core::Limits;
use palisade_pipeline::durable::{self, Authority};
use palisade_replica::node;
use palisade_server::net::Cluster as _;
use palisade_server::shell::{BindError, Listen, Listeners};
use palisade_server::{net, shell};
use palisade_wal::TornTail;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::service::{self, stop_signal};
use crate::{data_directory, export, exposure, memory};

/// The server's settings from the command line.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Where to listen; port 0 takes a free one.
    pub(crate) listen: Vec<Listen>,
    /// The directory of the authority.
    pub(crate) data: PathBuf,
    /// Whether an authority must be there already.
    pub(crate) existing: bool,
    /// The operator's bounds.
    pub(crate) limits: Limits,
    /// The limits of connections and requests.
    pub(crate) network: shell::Settings,
    /// Whether the clock moves only on request.
    pub(crate) manual_clock: bool,
    /// How this server finds its cluster; `None` for a single server.
    pub(crate) cluster: Option<cluster::Settings>,
    /// The access file; `None` if everybody may do everything.
    pub(crate) access: Option<PathBuf>,
    /// Where security events are recorded.
    pub(crate) audit: Option<PathBuf>,
    /// The shares of one address.
    pub(crate) waits_per_address: Option<u32>,
    pub(crate) watches_per_address: Option<u32>,
    /// How long the history keeps a grant, and how many bytes of them; none if it is off.
    pub(crate) history: Option<(Duration, u64)>,
    /// Print the start message as one line of JSON.
    pub(crate) json: bool,
}

/// Why the server could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{source}; {}", cannot_listen(source, "--listen"))]
    Listen {
        #[from]
        source: BindError,
    },
    #[error("cannot open {data}: {source}")]
    Open {
        data: String,
        source: Box<durable::Error>,
    },
    #[error("cannot run a member of a cluster on {data}: {source}")]
    Cluster {
        data: String,
        source: Box<cluster::Error>,
    },
    #[error(transparent)]
    Directory(#[from] data_directory::UnusableDirectory),
    #[error(transparent)]
    Serve(#[from] net::ServeError),
    #[error(transparent)]
    Ports(#[from] shell::Error),
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// The next step if a port or a Unix socket cannot be opened; `flag` chooses another one.
pub(crate) fn cannot_listen(error: &BindError, flag: &str) -> String {
    if let Listen::Unix(path) = &error.at {
        let why = match error.source.kind() {
            std::io::ErrorKind::AddrInUse => "stop that server",
            std::io::ErrorKind::AlreadyExists => "remove it if nobody needs it",
            std::io::ErrorKind::NotFound => "make its directory",
            std::io::ErrorKind::PermissionDenied => {
                "let this server's user write to its directory, and to what is there"
            }
            _ => "look what is there",
        };
        let (path, unix) = (path.display(), "unix:/PATH");
        return format!("{why} ({path}), or choose another path with {flag} {unix}");
    }
    match error.source.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("another program listens there: choose another port with {flag}")
        }
        std::io::ErrorKind::PermissionDenied => {
            format!("ports below 1024 need CAP_NET_BIND_SERVICE: choose another port with {flag}")
        }
        std::io::ErrorKind::AddrNotAvailable => {
            format!("this machine has no such address: choose one of its own with {flag}")
        }
        _ => format!("choose another address with {flag}"),
    }
}

/// Runs the server until SIGTERM or SIGINT, or until its log fails.
///
/// Takes the port first, so that a second server on the same port never opens the directory. Every check comes before the
/// directory is opened or created, so a mistake leaves no new authority behind.
pub(crate) fn run(settings: &Settings) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(network_threads())
        .enable_all()
        .build()?;
    runtime.block_on(async {
        survive_file_size_limit()?;
        let named = [&settings.access, &settings.audit];
        let named = named.into_iter().filter_map(Option::as_deref);
        let own = data_directory::own_files(&settings.listen, named);
        let new = data_directory::check(&settings.data, &own, settings.existing)?;
        check(settings, new)?;
        let listeners = Listeners::bind(&settings.listen).await?;
        let Some(cluster) = &settings.cluster else {
            exposure::private_directory(&settings.data)?;
            return run_single(settings, listeners).await;
        };
        let prepared = cluster::prepare(cluster).await;
        let prepared = prepared.map_err(|source| not_started(settings, source))?;
        exposure::private_directory(&settings.data)?;
        run_member(settings, cluster, prepared, listeners).await
    })
}

/// Checks the files that the settings name, and those in the directory beside the log. `new`: there is no log.
fn check(settings: &Settings, new: bool) -> Result<(), Error> {
    let cluster = settings.cluster.as_ref();
    // A member has keys of its own from its cluster's secret only, and that cluster may be older than its directory.
    let has_keys = cluster.is_none_or(|cluster| cluster.key.is_some());
    let file = |name| has_keys.then(|| settings.data.join(name));
    let network = net::Settings {
        sequencer_keys: file(net::KEY_FILE),
        lease_keys: file(net::LOCK_TOKEN_FILE),
        ..network(settings)
    };
    Ok(net::check(&network, new && cluster.is_none())?)
}

fn not_started(settings: &Settings, source: cluster::Error) -> Error {
    Error::Cluster {
        data: settings.data.display().to_string(),
        source: Box::new(source),
    }
}

async fn run_single(settings: &Settings, listeners: Listeners) -> Result<(), Error> {
    let opening = {
        let settings = settings.clone();
        tokio::task::spawn_blocking(move || open(&settings))
    };
    let why = "this server is starting: it reads its log";
    let opened = net::while_starting(&listeners, &settings.network, why, opening).await?;
    let authority = opened.map_err(std::io::Error::other)??;
    let stopped = stop_signal()?;
    warn_of_exposure(settings);
    announce(settings, &listeners.addresses()?, &authority);
    let handle = authority.pipeline.handle.clone();
    let network = net::Settings {
        sequencer_keys: Some(settings.data.join(net::KEY_FILE)),
        lease_keys: Some(settings.data.join(net::LOCK_TOKEN_FILE)),
        ..network(settings)
    };
    service::watch_over(&handle);
    service::ready();
    let spans = export::export_spans(Some(&handle));
    let served = net::serve(listeners, handle.clone(), None, network, Box::pin(stopped)).await;
    spans.finish().await;
    handle.stop();
    let _ = tokio::task::spawn_blocking(move || authority.join()).await;
    Ok(served?)
}

async fn run_member(
    settings: &Settings,
    cluster: &cluster::Settings,
    prepared: cluster::PreparedNode,
    listeners: Listeners,
) -> Result<(), Error> {
    let node = node::Settings {
        limits: settings.limits,
        give_memory_back: Some(memory::give_memory_back),
        ..node::Settings::default()
    };
    let not_started = |source| not_started(settings, source);
    let starting = cluster::start(&settings.data, cluster, prepared, &node);
    let stopped = stop_signal()?;
    let mut stopped = std::pin::pin!(stopped);
    let why = "this server is starting: it reads its log, or waits for the other nodes of its cluster, which its messages name";
    let starting = net::while_starting(&listeners, &settings.network, why, starting);
    // The other nodes may take any time to be there.
    let member = tokio::select! {
        started = starting => started?.map_err(not_started)?,
        () = &mut stopped => return Ok(()),
    };
    warn_of_exposure(settings);
    announce_member(settings, cluster, &member);
    let key = cluster.key.as_ref();
    let secret = key.map(|key| key.derive("clients")).transpose()?;
    let network = net::Settings {
        node: Some(cluster.url.clone()),
        to_leader: cluster.tls.clone(),
        cluster_secret: secret.map(net::ClusterSecret),
        sequencer_keys: secret.map(|_| settings.data.join(net::KEY_FILE)),
        // That of a single server that became a member.
        lease_keys: secret.map(|_| settings.data.join(net::LOCK_TOKEN_FILE)),
        ..network(settings)
    };
    let view = Arc::clone(&member.view);
    let mut lost = member.peers.lost();
    let told = lost.clone();
    let shutdown = async move {
        tokio::select! {
            () = stopped => view.hand_over().await,
            // It has no connections any more, so nothing can be handed over.
            () = async { drop(lost.wait_for(Option::is_some).await) } => {}
        }
    };
    let handle = member.node.handle().clone();
    let view = Arc::clone(&member.view);
    service::watch_over(&handle);
    service::ready();
    let spans = export::export_spans(Some(&handle));
    let shutdown = Box::pin(shutdown);
    let served = net::serve(listeners, handle.clone(), Some(view), network, shutdown).await;
    spans.finish().await;
    handle.stop();
    member.stop().await;
    let told = told.borrow().clone();
    if let Some(why) = told {
        return Err(not_started(cluster::marked(&settings.data, why)));
    }
    Ok(served?)
}

fn network(settings: &Settings) -> net::Settings {
    net::Settings {
        shell: settings.network.clone(),
        access: settings.access.clone(),
        audit: settings.audit.clone(),
        waits_per_address: settings.waits_per_address,
        watches_per_address: settings.watches_per_address,
        history: settings.history.map(|(age, bytes)| net::HistorySettings {
            file: settings.data.join(HISTORY_FILE),
            age,
            bytes,
            leaves_free: None,
            past: Some(past(&settings.data, settings.cluster.is_some())),
        }),
        data: Some(settings.data.clone()),
        counters: export::counters(),
        ..net::Settings::default()
    }
}

/// The events that the log still has.
fn past(data: &Path, member: bool) -> net::PastEvents {
    let data = data.to_owned();
    net::PastEvents(Arc::new(move |after, each| {
        let read = if member {
            palisade_replica::events_after(&data, after, each).map_err(|why| why.to_string())
        } else {
            durable::events_after(&data, after, each).map_err(|why| why.to_string())
        };
        // This thread has replayed the log into a machine of its own, and keeps that machine's memory otherwise.
        memory::give_memory_back();
        read
    }))
}

/// The history's file in the directory of the authority. A backup does not have it.
pub(crate) const HISTORY_FILE: &str = "history.redb";

/// Called before the start is announced, so a reader of the announcement has seen every warning.
fn warn_of_exposure(settings: &Settings) {
    exposure::warn_of_directory(&settings.data);
    if let Some(path) = &settings.access {
        exposure::warn_of_access_file(path);
    }
    let scheme = exposure::scheme(&settings.network);
    exposure::warn_of_addresses(&settings.listen, scheme, "take or break any lock");
}

/// By default, a write beyond `ulimit -f` kills the process without a message. With a handler, the write fails and the
/// server reports it. The handler stays for the life of the process.
pub(crate) fn survive_file_size_limit() -> std::io::Result<()> {
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop)
}

/// Warns that the end of the log was cut off.
pub(crate) fn report_torn(torn: &TornTail) {
    tracing::warn!(
        file = %torn.file.display(),
        offset = torn.offset,
        bytes = torn.bytes,
        "the log ended with an incomplete batch, which was cut off. A crash during a write leaves \
         such a batch, and nothing in it was acknowledged. Damage to the last batch looks the same, but that batch was \
         acknowledged. The server cannot tell the two apart: if nothing crashed, check the disk"
    );
}

/// The number of network threads: half of the cores, at most four; with more than sixteen cores, a quarter of them. One
/// is too few for 64 connections; more of them spend their time waking each other (measured in `docs/evidence/performance.md`).
fn network_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).clamp(1, 4).max(cores / 4)
}

fn open(settings: &Settings) -> Result<Authority, Error> {
    let durable = durable::Settings {
        limits: settings.limits,
        manual_clock: settings.manual_clock,
        give_memory_back: Some(memory::give_memory_back),
        ..durable::Settings::default()
    };
    durable::open(&settings.data, &durable).map_err(|source| Error::Open {
        data: settings.data.display().to_string(),
        source: Box::new(source),
    })
}

fn announce(settings: &Settings, at: &[Listen], authority: &Authority) {
    if authority.created {
        data_directory::warn_of_new(&settings.data);
    }
    let handle = &authority.pipeline.handle;
    let (identity, stats) = (handle.identity(), handle.stats());
    if let Some(torn) = &authority.report.torn {
        report_torn(torn);
    }
    let urls = exposure::urls(at, exposure::scheme(&settings.network));
    let text = if settings.json {
        serde_json::json!({
            "listening": at.first().map(Listen::to_string),
            "url": urls.first(),
            "urls": urls,
            "data": settings.data,
            "authority": &*identity.authority,
            "incarnation": identity.incarnation,
            "created": authority.created,
            "next_token": stats.next_token.get(),
            "locks": stats.locks.get(),
            "manual_clock": settings.manual_clock,
        })
        .to_string()
    } else {
        let curl = match at.first() {
            Some(Listen::Unix(path)) => {
                format!("--unix-socket {} http://localhost", path.display())
            }
            _ => urls.first().cloned().unwrap_or_default(),
        };
        let manual = format!(
            "\n  !! MANUAL CLOCK: nothing expires until you advance it with\n\
             \x20 !!   curl -X POST {curl}/v1/clock/advance -d '{{\"ms\": 1000}}'\n\
             \x20 !! Never use this for locks that matter.\n"
        );
        format!(
            "palisade {} · lock server\n\
             \x20 listening   {}  (HTTP/JSON and gRPC)\n\
             \x20 data        {}{}\n\
             \x20 authority   {}\n\
             \x20 next token  {}, {} held\n{}\n\
             \x20 try: palisade run hello -- sh -c 'echo I hold it, token $PALISADE_FENCING_TOKEN'",
            env!("CARGO_PKG_VERSION"),
            urls.join(", "),
            data_directory::absolute(&settings.data).display(),
            if authority.created { "  (NEW)" } else { "" },
            identity.authority,
            stats.next_token.get(),
            match stats.locks.get() {
                1 => "1 lock".to_owned(),
                locks => format!("{locks} locks"),
            },
            if settings.manual_clock { &*manual } else { "" },
        )
    };
    // If a reader has stopped reading (`| head`), the server goes on.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Says where this node is to be found.
fn announce_member(of: &Settings, settings: &cluster::Settings, member: &cluster::Member) {
    if let Some(torn) = &member.node.report.torn {
        report_torn(torn);
    }
    let view = member.view.view();
    let sockets = of.listen.iter().filter(|at| at.tcp().is_none());
    let sockets = sockets.map(|at| at.url("unix"));
    let urls: Vec<String> = [settings.url.clone()].into_iter().chain(sockets).collect();
    let text = if of.json {
        serde_json::json!({
            "listening": of.listen.first().map(Listen::to_string),
            "url": settings.url,
            "urls": urls,
            "peer": settings.peer_name,
            "node": view.node,
            "data": of.data,
            "authority": view.authority,
            "incarnation": view.incarnation,
            "created": member.created,
        })
        .to_string()
    } else {
        format!(
            "palisade {} · lock server, node {} of a cluster\n\
             \x20 listening   {}  (HTTP/JSON and gRPC; requests are forwarded to the leader)\n\
             \x20 peers       {}{}\n\
             \x20 data        {}{}\n\
             \x20 authority   {}\n\n\
             \x20 look: palisade cluster status --authority {}",
            env!("CARGO_PKG_VERSION"),
            view.node,
            urls.join(", "),
            settings.peer_name,
            if settings.peer_tls.is_some() {
                "  (TLS)"
            } else {
                ""
            },
            data_directory::absolute(&of.data).display(),
            if member.created { "  (new)" } else { "" },
            view.authority,
            settings.url,
        )
    };
    let _ = writeln!(std::io::stdout(), "{text}");
}
