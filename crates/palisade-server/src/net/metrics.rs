//! `/metrics`: the counters of the pipeline and the network, in Prometheus' text formats.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use palisade_core::{Ending, WallTime};
use palisade_proto::json::{ClusterMember, ClusterReply, ClusterRole, CountsBody};

use super::cluster::Cluster;
use super::convert::json::{ending, wall_time};
use super::gate::{Gate, GatedPipeline, ObservedAll};
use super::history::History;
use super::rules::token_ends;
use super::session::Meters;
use super::settings::{Settings, ShownCounter};
use super::shares::Shares;
use crate::shell::{self, Shell};
use palisade_pipeline::clock::wall;
use palisade_pipeline::{Histogram, MetricResult, Operation, Stats, request_place};

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus' own format, version 0.0.4, which every version reads.
    Plain,
    /// OpenMetrics 1.0.0. A counter's name lacks the `_total` of its sample.
    OpenMetrics,
}

impl Format {
    /// The format that a request's `Accept` headers ask for. OpenMetrics only if they name it and do not prefer the
    /// other.
    pub(super) fn asked_for(accept: &str) -> Format {
        let (mut plain, mut open) = (0.0_f32, 0.0_f32);
        for range in accept.to_ascii_lowercase().split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let (mut liked, mut version) = (1.0, None);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name {
                    "q" => liked = value.parse().unwrap_or(0.0),
                    "version" => version = Some(value),
                    _ => {}
                }
            }
            match kind {
                "text/plain" | "text/*" | "*/*" => plain = plain.max(liked),
                "application/openmetrics-text" if version.is_none_or(|known| known == "1.0.0") => {
                    open = open.max(liked);
                }
                _ => {}
            }
        }
        if open > 0.0 && open >= plain {
            Format::OpenMetrics
        } else {
            Format::Plain
        }
    }

    /// The value of `Content-Type`.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Where the values come from.
pub(super) struct Metrics {
    gate: Arc<Gate>,
    pipeline: GatedPipeline,
    sessions: Arc<Meters>,
    watches: Arc<Shares>,
    /// `None` for a single server.
    cluster: Option<Arc<dyn Cluster>>,
    history: Arc<History>,
    /// The shell's counters, and how many connections may be open.
    shell: Arc<shell::Meters>,
    connections: u32,
    data: Option<PathBuf>,
    started: WallTime,
    /// Of the program around the server.
    around: Vec<ShownCounter>,
}

impl Metrics {
    pub(super) fn new(
        gate: Arc<Gate>,
        pipeline: GatedPipeline,
        (sessions, watches): (Arc<Meters>, Arc<Shares>),
        cluster: Option<Arc<dyn Cluster>>,
        history: Arc<History>,
        shell: &Shell,
        settings: &Settings,
    ) -> Metrics {
        Metrics {
            gate,
            pipeline,
            sessions,
            watches,
            cluster,
            history,
            shell: shell.meters(),
            connections: shell.connections(),
            data: settings.data.clone(),
            started: wall(),
            around: settings.counters.clone(),
        }
    }

    /// The counts of the status.
    pub(super) fn counts(&self) -> CountsBody {
        let stats = self.pipeline.stats();
        let history = self.history.is_kept().then(|| self.history.counts());
        CountsBody {
            since: wall_time(self.started),
            granted: stats.granted.get(),
            renewed: stats.renewed.get(),
            expired: stats.expired.get(),
            revoked: stats.revoked.get(),
            graces: stats.graces.get(),
            rejections_reported: history.map(|counts| counts.recorded),
            rejections_unknown: history.map(|counts| counts.unknown),
        }
    }

    /// When this server's certificate ends; `None` without TLS.
    pub(super) fn certificate_expires(&self) -> Option<String> {
        let second = self.shell.certificate_expires.load(Relaxed);
        (second > 0).then(|| wall_time(WallTime(second.saturating_mul(1_000))))
    }

    /// All metrics as text. `oldest` is how long the oldest lock has been held, if that is known.
    pub(super) fn text(&self, _: &ObservedAll, oldest: Option<Duration>, format: Format) -> String {
        let mut text = String::with_capacity(4 * 1024);
        let mut metric = |name: &str, kind: &str, sample: &str, (_, help, value): MetricReader| {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{sample} {value}\n"
            );
        };
        let around = self.around.iter();
        let around =
            around.map(|counter| (counter.name, counter.help, counter.value.load(Relaxed)));
        for counter in self.counters().into_iter().chain(around) {
            let family = format!("palisade_{}", counter.0);
            let sample = format!("{family}_total");
            let name = match format {
                Format::Plain => &sample,
                Format::OpenMetrics => &family,
            };
            metric(name, "counter", &sample, counter);
        }
        for gauge in self.gauges() {
            let name = format!("palisade_{}", gauge.0);
            metric(&name, "gauge", &name, gauge);
        }
        if let Some(oldest) = oldest {
            let _ = write!(
                text,
                "# HELP {OLDEST} How long the lock that was granted first has been held; 0 if no lock is held\n\
             # TYPE {OLDEST} gauge\n{OLDEST} {:?}\n",
                oldest.as_secs_f64()
            );
        }
        self.process_text(&mut text);
        self.quota_text(&mut text, format);
        self.rejections_text(&mut text, format);
        for (name, help, unit, histogram) in self.histograms() {
            histogram_text(&mut text, name, help, unit, &[("", histogram)]);
        }
        let stats = self.pipeline.stats();
        histogram_text(
            &mut text,
            "hold_seconds",
            "How long grants lasted, by how they ended; by the wall clock",
            SECONDS,
            &ENDINGS.map(|how| {
                let labels = format!("how=\"{}\"", ending(how));
                (labels, &stats.hold[how as usize])
            }),
        );
        request_text(&mut text, stats);
        if let Some(cluster) = &self.cluster {
            cluster_text(&mut text, &cluster.view(), format);
        }
        if format == Format::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }

    /// The version, the start time and the free disk space: operators ask for these first when something is wrong. Values
    /// that the system does not report are left out.
    fn process_text(&self, text: &mut String) {
        let version = env!("CARGO_PKG_VERSION");
        let _ = write!(
            text,
            "# HELP palisade_build_info The version of the program, as a label\n# TYPE palisade_build_info gauge\n\
         palisade_build_info{{version=\"{version}\"}} 1\n"
        );
        if let Some(started) = started() {
            let _ = write!(
                text,
                "# HELP {START} When the process started, in seconds since 1970\n# TYPE {START} gauge\n{START} {started}\n"
            );
        }
        let data = self.data.as_ref();
        if let Some(disk) = data.and_then(|data| rustix::fs::statvfs(data).ok()) {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let _ = write!(
                text,
                "# HELP {FREE} Free bytes of the disk that has the data directory\n# TYPE {FREE} gauge\n{FREE} {free}\n"
            );
        }
        if let Some((open, limit)) = descriptors() {
            let _ = write!(
                text,
                "# HELP {OPEN_FILES} Files and connections that the process has open\n# TYPE {OPEN_FILES} gauge\n\
             {OPEN_FILES} {open}\n\
             # HELP {MOST_FILES} How many it may have open\n# TYPE {MOST_FILES} gauge\n{MOST_FILES} {limit}\n"
            );
        }
        let _ = write!(
            text,
            "# HELP {KEYS} The keys of lock_tokens that this server accepts, each with a fingerprint; the same on all nodes\n\
         # TYPE {KEYS} gauge\n"
        );
        for key in self.gate.lease_keys().fingerprints() {
            let _ = writeln!(text, "{KEYS}{{fingerprint=\"{key}\"}} 1");
        }
    }

    /// Refusals for a quota, by its bound.
    fn quota_text(&self, text: &mut String, format: Format) {
        let family = "palisade_over_quota";
        let name = match format {
            Format::Plain => "palisade_over_quota_total",
            Format::OpenMetrics => family,
        };
        let _ = write!(
            text,
            "# HELP {name} Requests refused because a quota was used up, by its bound\n# TYPE {name} counter\n"
        );
        for (bound, refused) in self.gate.quotas().refused() {
            let _ = writeln!(text, "{family}_total{{bound=\"{bound}\"}} {refused}");
        }
    }

    /// Refused late writes by the first part of the lock's name; those of further names have an empty one.
    fn rejections_text(&self, text: &mut String, format: Format) {
        let family = "palisade_rejections_by_prefix";
        let name = match format {
            Format::Plain => "palisade_rejections_by_prefix_total",
            Format::OpenMetrics => family,
        };
        let _ = write!(
            text,
            "# HELP {name} Refused late writes that the history has, by the lock's name up to its first slash or colon\n# TYPE {name} counter\n"
        );
        for (prefix, count) in self.history.recorded_by_prefix() {
            let prefix = prefix.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(text, "{family}_total{{prefix=\"{prefix}\"}} {count}");
        }
    }

    /// The values that only grow; `_total` is added to each name.
    fn counters(&self) -> [MetricReader; 31] {
        let (stats, net) = (self.pipeline.stats(), &self.sessions);
        let shell = &self.shell;
        [
            ("granted", "Grants issued", stats.granted.get()),
            (
                "held",
                "Acquires denied because another client held the lock, or it was closed after its last grant",
                stats.held.get(),
            ),
            ("renewed", "Leases renewed", stats.renewed.get()),
            (
                "renewed_near_deadline",
                "Leases renewed when less than a quarter of their time to live was left",
                stats.renewed_near_deadline.get(),
            ),
            (
                "late_renewals",
                "Renewals refused because the grant had expired, or was revoked or superseded: holders that came back",
                stats.late_renewals.get(),
            ),
            (
                "late_releases",
                "Releases refused for the same reasons: jobs that ended without the lock",
                stats.late_releases.get(),
            ),
            (
                "proclaimed",
                "Values that leaders of elections proclaimed",
                stats.proclaimed.get(),
            ),
            (
                "released",
                "Grants released by their holders",
                stats.released.get(),
            ),
            ("expired", "Grants whose lease expired", stats.expired.get()),
            (
                "revoked",
                "Grants revoked by an operator",
                stats.revoked.get(),
            ),
            (
                "superseded",
                "Grants replaced by the same client",
                stats.superseded.get(),
            ),
            (
                "invalid",
                "Requests refused as malformed",
                stats.invalid.get(),
            ),
            (
                "wrong_principal",
                "Requests with the key of another principal's lease, refused",
                stats.wrong_principal.get(),
            ),
            (
                "audit_lost",
                "Lines that could not be written to the audit file",
                self.gate.audit().lost(),
            ),
            (
                "audit_left_out",
                "Refusals without a line in the audit file, because their caller had too many",
                self.gate.audit().left_out(),
            ),
            (
                "rejections_reported",
                "Refused late writes that their clients or resources reported, and that the history has",
                self.history.counts().recorded,
            ),
            (
                "rejections_unknown",
                "Reports of refused writes whose grant the history does not have; they are not kept",
                self.history.counts().unknown,
            ),
            (
                "history_gaps",
                "Ranges of changes that the history lacks, found since the start",
                self.history.counts().gaps,
            ),
            (
                "queue_full",
                "Requests refused because a queue was full",
                stats.queue_full.get(),
            ),
            ("operations", "Operations received", stats.operations.get()),
            (
                "batches",
                "Batches made durable, one sync each",
                stats.batches.get(),
            ),
            (
                "log_bytes",
                "Bytes written to the log",
                stats.log_bytes.get(),
            ),
            (
                "graces",
                "How often leases got their full time again because the authority was down or stalled, or another node took over",
                stats.graces.get(),
            ),
            (
                "lease_extensions",
                "How often a lease was extended without a renewal for that",
                stats.extended.get(),
            ),
            (
                "connections_accepted",
                "Connections accepted",
                shell.accepted.load(Relaxed),
            ),
            (
                "connections_refused",
                "Connections closed at once because too many were open, in total or from one address",
                shell.refused.load(Relaxed),
            ),
            (
                "watches_refused",
                "Watches refused because too many were open, in total or from one address",
                self.watches.refused(),
            ),
            (
                "waits_refused",
                "Requests with a wait refused because too many from one address waited",
                self.gate.waits().refused(),
            ),
            (
                "tls_handshakes_failed",
                "TLS handshakes that failed or took too long",
                shell.handshakes_failed.load(Relaxed),
            ),
            (
                "requests",
                "HTTP and gRPC requests; a session counts as one",
                shell.requests.load(Relaxed),
            ),
            (
                "sessions_opened",
                "Sessions opened",
                net.sessions_opened.load(Relaxed),
            ),
        ]
    }

    /// Name, help, how many of its values are one of the metric's unit.
    fn histograms(&self) -> [(&'static str, &'static str, f64, &Histogram); 3] {
        let stats = self.pipeline.stats();
        [
            (
                "sync_seconds",
                "Time until a batch was durable; in a cluster, on the disks of a majority",
                SECONDS,
                &stats.sync,
            ),
            (
                "batch_operations",
                "Operations taken in for one batch",
                1.0,
                &stats.batch,
            ),
            (
                "wait_seconds",
                "How long requests that were granted had waited for the lock; 0 if it was free",
                SECONDS,
                &stats.wait,
            ),
        ]
    }

    fn gauges(&self) -> [MetricReader; 17] {
        let (stats, net) = (self.pipeline.stats(), &self.sessions);
        let shell = &self.shell;
        let rules = self.gate.rules();
        let (next_end, ended) = rules.map_or((0, 0), |access| token_ends(&access));
        [
            ("locks", "Locks held", stats.locks.get()),
            ("leases", "Live leases", stats.leases.get()),
            (
                "leases_extended",
                "Live leases that were extended since their last renewal, because the authority was away",
                stats.extended_now.get(),
            ),
            (
                "readers",
                "Grants of readers and of permits, which hold a lock together with others",
                stats.readers.get(),
            ),
            (
                "waiters",
                "Requests waiting for a lock",
                stats.waiters.get(),
            ),
            (
                "next_token",
                "The fencing token of the next grant; 0 when the range is exhausted",
                stats.next_token.get(),
            ),
            (
                "log_full",
                "1 while the log has no room (disk full), otherwise 0",
                stats.log_full.get(),
            ),
            (
                "history_unwritable",
                "1 while the history cannot be written, otherwise 0; locks are granted all the same",
                self.history.counts().unwritable.into(),
            ),
            ("connections", "Connections open", shell.open.load(Relaxed)),
            (
                "connections_limit",
                "Connections that may be open at the same time",
                self.connections.into(),
            ),
            ("sessions", "Sessions open", net.sessions.load(Relaxed)),
            ("watchers", "Watches open", self.watches.open()),
            (
                "certificate_expires_timestamp_seconds",
                "When this server's certificate ends, since 1970; 0 without TLS",
                shell.certificate_expires.load(Relaxed),
            ),
            (
                "client_ca_expires_timestamp_seconds",
                "When the first certificate of --tls-client-ca ends, since 1970; 0 without it",
                shell.client_ca_expires.load(Relaxed),
            ),
            (
                "client_crl_expires_timestamp_seconds",
                "When the first list of --tls-client-crl is due to be replaced, since 1970; 0 without it",
                shell.client_crl_expires.load(Relaxed),
            ),
            (
                "auth_token_expires_timestamp_seconds",
                "When the next bearer token of the access file ends, since 1970; 0 if none will",
                next_end,
            ),
            (
                "auth_tokens_expired",
                "Bearer tokens in the access file that have ended",
                ended,
            ),
        ]
    }
}

/// The name that Prometheus' own libraries give it.
const START: &str = "process_start_time_seconds";
const FREE: &str = "palisade_disk_free_bytes";
/// These two names, too.
const OPEN_FILES: &str = "process_open_fds";
const MOST_FILES: &str = "process_max_fds";
const KEYS: &str = "palisade_lock_token_key_info";

/// How many files are open, and how many may be.
fn descriptors() -> Option<(usize, u64)> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    Some((open, limit.current.unwrap_or(u64::MAX)))
}

/// The kernel counts a process's start from boot, and knows when that was.
fn started() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let ticks: u64 = stat.rsplit_once(')')?.1.split(' ').nth(20)?.parse().ok()?;
    let boot = std::fs::read_to_string("/proc/stat").ok()?;
    let boot = boot.lines().find_map(|line| line.strip_prefix("btime "))?;
    let second = rustix::param::clock_ticks_per_second().max(1);
    Some(boot.parse::<u64>().ok()? + ticks / second)
}

/// A metric of one histogram or several, each with its labels; both formats write it alike. `unit` is how many of the
/// values are one of the metric's unit.
#[expect(
    clippy::cast_precision_loss,
    reason = "the format has floating-point numbers only"
)]
fn histogram_text<L: AsRef<str>>(
    text: &mut String,
    name: &str,
    help: &str,
    unit: f64,
    histograms: &[(L, &Histogram)],
) {
    let name = format!("palisade_{name}");
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} histogram\n");
    for (labels, histogram) in histograms {
        let labels = labels.as_ref();
        let (before, alone) = match labels {
            "" => (String::new(), String::new()),
            labels => (format!("{labels},"), format!("{{{labels}}}")),
        };
        let mut count = 0;
        for (bound, values) in histogram.ranges() {
            count += values;
            let bound = bound.map_or("+Inf".to_owned(), |bound| {
                format!("{:?}", bound as f64 / unit)
            });
            let _ = writeln!(text, "{name}_bucket{{{before}le=\"{bound}\"}} {count}");
        }
        let sum = histogram.sum() as f64 / unit;
        let _ = write!(
            text,
            "{name}_sum{alone} {sum}\n{name}_count{alone} {count}\n"
        );
    }
}

/// The time of requests. Combinations that have not occurred are left out, because they are the majority.
fn request_text(text: &mut String, stats: &Stats) {
    let mut seen = Vec::new();
    for operation in Operation::ALL {
        for verdict in MetricResult::ALL {
            let histogram = &stats.request[request_place(operation, verdict)];
            if histogram.ranges().any(|(_, values)| values > 0) {
                let (operation, verdict) = (operation.name(), verdict.name());
                let labels = format!("operation=\"{operation}\",outcome=\"{verdict}\"");
                seen.push((labels, histogram));
            }
        }
    }
    histogram_text(
        text,
        "request_seconds",
        "From a request's arrival to its answer, with the wait in a queue; denied: held, over, or a bound is reached",
        SECONDS,
        &seen,
    );
}

/// The metrics of a cluster's member; those of its peers have a label.
fn cluster_text(text: &mut String, view: &ClusterReply, format: Format) {
    let changes = match format {
        Format::Plain => "palisade_cluster_leader_changes_total",
        Format::OpenMetrics => "palisade_cluster_leader_changes",
    };
    let place = |index: Option<u64>| index.map_or(0, |index| index + 1);
    let lag = |of: Option<u64>| place(view.committed).saturating_sub(place(of));
    let _ = write!(
        text,
        "# HELP {changes} Leaders seen after the first\n# TYPE {changes} counter\n\
         palisade_cluster_leader_changes_total {}\n",
        view.leader_changes
    );
    for (name, help, value) in [
        (
            "leader",
            "1 if this node leads",
            u64::from(view.role == ClusterRole::Leader),
        ),
        (
            "has_leader",
            "1 if this node knows a leader",
            u64::from(view.leader.is_some()),
        ),
        ("term", "The term; it rises with every election", view.term),
        (
            "log_entries",
            "Entries in the log since the cluster began",
            place(view.last),
        ),
        (
            "committed_entries",
            "Entries known to be committed",
            place(view.committed),
        ),
        (
            "apply_lag_entries",
            "Committed entries that this node has not applied",
            lag(view.applied),
        ),
        (
            "snapshot_lag_entries",
            "Committed entries that are in no snapshot of this node",
            lag(view.snapshot),
        ),
        (
            "disk_full",
            "1 if this node's log finds no room",
            u64::from(view.disk_full.is_some()),
        ),
        (
            "members",
            "Members, learners included",
            view.members.len() as u64,
        ),
    ] {
        let _ = write!(
            text,
            "# HELP palisade_cluster_{name} {help}\n# TYPE palisade_cluster_{name} gauge\n\
             palisade_cluster_{name} {value}\n"
        );
    }
    if let Some(takeover) = view.takeover {
        let name = "palisade_cluster_takeover_seconds";
        let _ = writeln!(
            text,
            "# HELP {name} How long the phases of this node's latest take-over took\n# TYPE {name} gauge"
        );
        for (phase, ms) in takeover.phases() {
            let _ = writeln!(text, "{name}{{phase=\"{phase}\"}} {}", ms as f64 / 1e3);
        }
    }
    let peer = |text: &mut String,
                name: &str,
                help: &str,
                value: &dyn Fn(&ClusterMember) -> Option<u64>| {
        let name = format!("palisade_cluster_peer_{name}");
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n");
        for member in &view.members {
            if let Some(value) = value(member) {
                let _ = writeln!(text, "{name}{{node=\"{}\"}} {value}", member.node);
            }
        }
    };
    peer(
        text,
        "connected",
        "1 if this node is connected to the peer",
        &|member| member.connected.map(u64::from),
    );
    peer(
        text,
        "alive",
        "1 if the peer has answered within the last 2 s",
        &|member| member.connected.map(|_| u64::from(member.is_alive())),
    );
    peer(
        text,
        "silent_milliseconds",
        "For how long the peer has answered nothing, or no entries",
        &|member| member.silent_ms,
    );
    peer(
        text,
        "round_trip_microseconds",
        "The round trip of the last message to the peer",
        &|member| member.round_trip_us,
    );
    peer(
        text,
        "too_far",
        "1 if round trips to the peer take longer than the cluster's timers allow",
        &|member| {
            member
                .connected
                .map(|_| u64::from(member.too_far.is_some()))
        },
    );
    peer(
        text,
        "lag_entries",
        "Entries of this leader that the peer has not on disk",
        &|member| {
            (view.role == ClusterRole::Leader)
                .then(|| place(view.last).saturating_sub(place(member.matched)))
        },
    );
}

/// Nanoseconds in a second.
const SECONDS: f64 = 1e9;

const OLDEST: &str = "palisade_oldest_lock_seconds";

const ENDINGS: [Ending; 4] = [
    Ending::Released,
    Ending::Expired,
    Ending::Revoked,
    Ending::Superseded,
];

type MetricReader = (&'static str, &'static str, u64);
