//! Classifies reported replicas and decides about them. Pure: the record, the reports and `now` in, decisions out.
//!
//! | reported version | a member of the chunk's version | answer |
//! |---|---|---|
//! | between the published one and the one being installed | yes | current |
//! | between these | no | stale |
//! | lower | – | stale |
//! | higher than any that was granted | – | ahead: an alarm |
//! | of a chunk that does not exist | – | unknown |

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use palisade_core::{Span, Timestamp};

use super::record::{Chunk, MasterRecord};
use crate::name::{ChunkId, ServerId};
use crate::version::Version;
use crate::wire::Standing;

/// The last heartbeat of a chunk server.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) at: Timestamp,
    pub(crate) address: SocketAddr,
    pub(crate) replicas: BTreeMap<ChunkId, Held>,
}

/// A replica of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) version: Version,
    pub(crate) standing: Standing,
    /// Since when it has had this version and this verdict.
    pub(crate) since: Timestamp,
}

/// The reports since the master started.
pub(crate) type Reports = BTreeMap<ServerId, Report>;

/// The settings of decisions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    /// How many replicas a chunk should have.
    pub(crate) copies: usize,
    /// A server without a heartbeat for this long is not sent anything.
    pub(crate) dead_after: Span,
    /// A useless replica stays for this long.
    pub(crate) collect_after: Span,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Delete a replica, if it still has this version.
    Collect {
        server: ServerId,
        chunk: ChunkId,
        version: Version,
    },
    /// Make a replica anew.
    Add { server: ServerId, chunk: ChunkId },
    /// A version was installed and never published: publish another one.
    Grant { chunk: ChunkId },
}

impl Decision {
    pub(crate) fn chunk(&self) -> &ChunkId {
        match self {
            Decision::Collect { chunk, .. }
            | Decision::Add { chunk, .. }
            | Decision::Grant { chunk } => chunk,
        }
    }
}

/// Classifies a reported replica (rule K5).
pub(crate) fn standing(chunk: Option<&Chunk>, server: &ServerId, version: Version) -> Standing {
    let Some(chunk) = chunk else {
        return Standing::Unknown;
    };
    if chunk.highest().is_none_or(|highest| version > highest) {
        Standing::Ahead
    } else if chunk.is_current(server, version) {
        Standing::Current
    } else {
        Standing::Stale
    }
}

impl Placement {
    /// Whether a server's last heartbeat is recent.
    pub(crate) fn is_live(&self, report: &Report, now: Timestamp) -> bool {
        now.since(report.at) < self.dead_after
    }

    /// The servers that look-ups name (rule K6): live, and current by their last report.
    pub(crate) fn current<'a>(
        &self,
        id: &'a ChunkId,
        chunk: &'a Chunk,
        reports: &'a Reports,
        now: Timestamp,
    ) -> impl Iterator<Item = (&'a ServerId, &'a Report)> {
        let placement = *self;
        reports.iter().filter(move |(server, report)| {
            let held = report.replicas.get(id);
            placement.is_live(report, now)
                && held.is_some_and(|held| chunk.is_current(server, held.version))
        })
    }

    /// The replicas that may take part in the next version: the current ones, or those that will be the first.
    pub(crate) fn candidates<'a>(
        &self,
        id: &'a ChunkId,
        chunk: &'a Chunk,
        reports: &'a Reports,
        now: Timestamp,
    ) -> Vec<(&'a ServerId, &'a Report)> {
        if chunk.published.is_some() {
            return self.current(id, chunk, reports, now).collect();
        }
        let live = reports
            .iter()
            .filter(|(_, report)| self.is_live(report, now));
        live.filter(|(server, _)| chunk.members.contains(*server))
            .collect()
    }

    /// The servers for the replicas of a new chunk: live, without a replica of that name, and with the fewest replicas.
    pub(crate) fn for_new(
        &self,
        id: &ChunkId,
        reports: &Reports,
        now: Timestamp,
    ) -> BTreeSet<ServerId> {
        let mut free = self.without(id, reports, now);
        free.truncate(self.copies);
        free.into_iter().cloned().collect()
    }

    fn without<'a>(&self, id: &ChunkId, reports: &'a Reports, now: Timestamp) -> Vec<&'a ServerId> {
        let mut free: Vec<_> = reports
            .iter()
            .filter(|(_, report)| self.is_live(report, now) && !report.replicas.contains_key(id))
            .collect();
        free.sort_by_key(|(server, report)| (report.replicas.len(), *server));
        free.into_iter().map(|(server, _)| server).collect()
    }

    /// Decides the next actions (rule K6). Nothing is collected or copied before every server has reported, because
    /// until then nobody knows which copies exist.
    pub(crate) fn decide(
        &self,
        record: &MasterRecord,
        reports: &Reports,
        now: Timestamp,
    ) -> Vec<Decision> {
        if !all_reported(record, reports) {
            return Vec::new();
        }
        let mut decisions = self.collections(record, reports, now);
        for (id, chunk) in &record.chunks {
            if chunk.installing.is_some() {
                decisions.push(Decision::Grant { chunk: id.clone() });
                continue;
            }
            let copies = self.current(id, chunk, reports, now).count();
            if chunk.published.is_none() || copies == 0 || copies >= self.copies {
                continue;
            }
            let target = self.without(id, reports, now).first().copied().cloned();
            decisions.extend(target.map(|server| Decision::Add {
                server,
                chunk: id.clone(),
            }));
        }
        decisions
    }

    /// The replicas to delete: never a current one, and a stale one only while there is a current one.
    fn collections(
        &self,
        record: &MasterRecord,
        reports: &Reports,
        now: Timestamp,
    ) -> Vec<Decision> {
        let mut decisions = Vec::new();
        for (server, report) in reports {
            if !self.is_live(report, now) {
                continue;
            }
            for (id, held) in &report.replicas {
                let chunk = record.chunks.get(id);
                let useless = match (standing(chunk, server, held.version), chunk) {
                    (Standing::Unknown, _) => true,
                    (Standing::Stale, Some(chunk)) => {
                        self.current(id, chunk, reports, now).next().is_some()
                    }
                    _ => false,
                };
                let judged_so = matches!(held.standing, Standing::Unknown | Standing::Stale);
                if useless && judged_so && now.since(held.since) >= self.collect_after {
                    decisions.push(Decision::Collect {
                        server: server.clone(),
                        chunk: id.clone(),
                        version: held.version,
                    });
                }
            }
        }
        decisions
    }
}

/// Whether every server has reported since the master started.
pub(crate) fn all_reported(record: &MasterRecord, reports: &Reports) -> bool {
    missing(record, reports).next().is_none()
}

/// The servers that have not reported since the master started. Retired ones are not waited for.
pub(crate) fn missing<'a>(
    record: &'a MasterRecord,
    reports: &Reports,
) -> impl Iterator<Item = &'a ServerId> {
    let servers = record.servers.iter();
    servers.filter(|server| !reports.contains_key(*server))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACEMENT: Placement = Placement {
        copies: 3,
        dead_after: Span::from_millis(1_000),
        collect_after: Span::from_millis(500),
    };

    fn version(number: u64) -> Version {
        number.try_into().unwrap()
    }

    fn server(name: &str) -> ServerId {
        name.parse().unwrap()
    }

    fn log() -> ChunkId {
        "log".parse().unwrap()
    }

    /// The chunk `log` at version 6, with these members; the servers are a, b and c.
    fn record(members: &[&str]) -> MasterRecord {
        let chunk = Chunk {
            published: Some(version(6)),
            ..Chunk::new(members.iter().map(|name| server(name)).collect())
        };
        MasterRecord {
            servers: ["a", "b", "c"].map(server).into(),
            retired: BTreeSet::new(),
            chunks: [(log(), chunk)].into(),
        }
    }

    /// These servers reported `log` at these versions at 0 ms; 0 stands for no replica.
    fn reports(record: &MasterRecord, versions: &[(&str, u64)]) -> Reports {
        let report = |(name, number): &(&str, u64)| {
            let held = (*number > 0).then(|| {
                let standing = standing(record.chunks.get(&log()), &server(name), version(*number));
                let since = Timestamp::from_millis(0);
                let version = version(*number);
                (
                    log(),
                    Held {
                        version,
                        standing,
                        since,
                    },
                )
            });
            let report = Report {
                at: Timestamp::from_millis(0),
                address: ([127, 0, 0, 1], 1).into(),
                replicas: held.into_iter().collect(),
            };
            (server(name), report)
        };
        versions.iter().map(report).collect()
    }

    fn decide(record: &MasterRecord, versions: &[(&str, u64)], at: u64) -> Vec<Decision> {
        PLACEMENT.decide(
            record,
            &reports(record, versions),
            Timestamp::from_millis(at),
        )
    }

    fn collect(name: &str, number: u64) -> Decision {
        Decision::Collect {
            server: server(name),
            chunk: log(),
            version: version(number),
        }
    }

    fn add(name: &str) -> Decision {
        Decision::Add {
            server: server(name),
            chunk: log(),
        }
    }

    #[test]
    fn a_report_is_current_stale_unknown_or_ahead() {
        let record = record(&["b"]);
        let chunk = record.chunks.get(&log());
        let judge = |name, number| standing(chunk, &server(name), version(number));
        assert_eq!(judge("b", 6), Standing::Current);
        assert_eq!(judge("b", 5), Standing::Stale);
        assert_eq!(judge("b", 7), Standing::Ahead);
        assert_eq!(standing(None, &server("b"), version(6)), Standing::Unknown);
        assert_eq!(
            judge("a", 6),
            Standing::Stale,
            "it took no part in version 6"
        );
    }

    #[test]
    fn a_version_being_installed_is_current_and_never_ahead() {
        let mut record = record(&["a", "b"]);
        let chunk = record.chunks.get_mut(&log()).unwrap();
        chunk.installing = Some(version(9));
        let judge = |chunk: &Chunk, number| standing(Some(chunk), &server("a"), version(number));
        assert_eq!(judge(chunk, 9), Standing::Current);
        assert_eq!(judge(chunk, 6), Standing::Current);
        assert_eq!(judge(chunk, 10), Standing::Ahead);
        (chunk.published, chunk.installing) = (Some(version(9)), None);
        assert_eq!(judge(chunk, 6), Standing::Stale);
        // Before the first version, nothing was granted.
        assert_eq!(judge(&Chunk::default(), 1), Standing::Ahead);
    }

    #[test]
    fn look_ups_name_live_current_replicas_only() {
        let record = record(&["a", "b", "c"]);
        let chunk = &record.chunks[&log()];
        let mut reports = reports(&record, &[("a", 6), ("b", 5), ("c", 6)]);
        reports.get_mut(&server("c")).unwrap().at = Timestamp::from_millis(900);
        let id = log();
        let named = |at| {
            let current = PLACEMENT.current(&id, chunk, &reports, Timestamp::from_millis(at));
            current
                .map(|(server, _)| server.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(named(999), ["a", "c"]);
        assert_eq!(named(1_000), ["c"]);
    }

    #[test]
    fn a_stale_replica_is_collected_later_and_then_made_anew() {
        let record = record(&["b", "c"]);
        assert_eq!(decide(&record, &[("a", 4), ("b", 6), ("c", 6)], 499), []);
        let all = [("a", 4), ("b", 6), ("c", 6)];
        assert_eq!(decide(&record, &all, 500), [collect("a", 4)]);
        let gone = [("a", 0), ("b", 6), ("c", 6)];
        assert_eq!(decide(&record, &gone, 0), [add("a")]);
    }

    #[test]
    fn a_stale_replica_is_kept_while_no_current_one_is_there() {
        let record = record(&["b"]);
        // b has lost its replica, or is not live: the stale ones are all that is left.
        assert_eq!(decide(&record, &[("a", 4), ("b", 0), ("c", 4)], 999), []);
        let mut reports = reports(&record, &[("a", 4), ("b", 6), ("c", 4)]);
        for name in ["a", "c"] {
            reports.get_mut(&server(name)).unwrap().at = Timestamp::from_millis(1_000);
        }
        assert_eq!(
            PLACEMENT.decide(&record, &reports, Timestamp::from_millis(1_500)),
            []
        );
        // The control: with a live current one they are collected.
        reports.get_mut(&server("b")).unwrap().at = Timestamp::from_millis(1_000);
        assert_eq!(
            PLACEMENT.decide(&record, &reports, Timestamp::from_millis(1_500)),
            [collect("a", 4), collect("c", 4)]
        );
    }

    #[test]
    fn nothing_is_collected_before_every_server_has_reported() {
        let record = record(&["b"]);
        assert_eq!(decide(&record, &[("a", 4), ("b", 6)], 999), []);
        // The control: the third report is all that was missing.
        let all = [("a", 4), ("b", 6), ("c", 0)];
        assert_eq!(decide(&record, &all, 999), [collect("a", 4), add("c")]);
    }

    #[test]
    fn unknown_replicas_are_collected_and_those_ahead_never() {
        let mut record = record(&["b"]);
        let ahead = [("a", 9), ("b", 6), ("c", 9)];
        assert_eq!(decide(&record, &ahead, 999), []);
        record.chunks.clear();
        let unknown = [("a", 9), ("b", 6), ("c", 0)];
        assert_eq!(
            decide(&record, &unknown, 999),
            [collect("a", 9), collect("b", 6)]
        );
    }

    #[test]
    fn a_version_that_was_never_published_is_granted_anew() {
        let mut record = record(&["a", "b", "c"]);
        record.chunks.get_mut(&log()).unwrap().installing = Some(version(8));
        let all = [("a", 8), ("b", 6), ("c", 6)];
        assert_eq!(decide(&record, &all, 0), [Decision::Grant { chunk: log() }]);
    }

    #[test]
    fn a_new_chunk_goes_to_the_servers_with_the_fewest_replicas() {
        let record = record(&["a"]);
        let reports = reports(&record, &[("a", 6), ("b", 0), ("c", 0), ("d", 0)]);
        let chosen =
            PLACEMENT.for_new(&"new".parse().unwrap(), &reports, Timestamp::from_millis(0));
        assert_eq!(chosen, ["b", "c", "d"].map(server).into());
    }
}
