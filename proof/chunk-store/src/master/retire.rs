//! The end of a chunk server: an operator says that it is gone for good.
//!
//! From then on nobody waits for its report, and it is refused by its name for ever. Nothing else has to be undone: its
//! lease expires at the lock server, and the next version of a chunk goes on without it.

use std::sync::Arc;

use palisade_core::Timestamp;

use super::placement::{Placement, Reports};
use super::record::MasterRecord;
use super::{Master, lock, unavailable};
use crate::event;
use crate::name::ServerId;
use crate::wire::{Done, Problem, ProblemCode, Retire};

impl Master {
    /// Retires a chunk server. It is on stable storage when this returns. A second time is the same.
    pub(super) async fn retire(self: Arc<Self>, request: Retire) -> Result<Done, Problem> {
        let Retire { server, force } = request;
        self.change(|record| {
            if record.retired.contains(&server) {
                return Ok(());
            }
            if !record.servers.contains(&server) {
                return Err(no_such_server(record, &server));
            }
            if !force {
                self.placement.is_gone(
                    &server,
                    &lock(&self.reports),
                    self.started,
                    event::now(),
                )?;
                is_dispensable(record, &server)?;
            }
            record.servers.remove(&server);
            record.retired.insert(server.clone());
            Ok(())
        })
        .await?;
        // A heartbeat that is judged after this finds the name in the record.
        lock(&self.reports).remove(&server);
        self.record_locations();
        Ok(Done {})
    }
}

impl Placement {
    /// Checks that a server is silent. After a start of the master, a live one has the same time to report.
    fn is_gone(
        &self,
        server: &ServerId,
        reports: &Reports,
        started: Timestamp,
        now: Timestamp,
    ) -> Result<(), Problem> {
        let report = reports.get(server);
        let silent = now.since(report.map_or(started, |report| report.at));
        if silent >= self.dead_after {
            return Ok(());
        }
        let silent = silent.as_millis();
        Err(match report {
            Some(_) => {
                let message = format!(
                    "{server} sent a heartbeat {silent} ms ago: stop its process first, or retire it all the same with --force"
                );
                Problem::new(ProblemCode::InUse, message)
            }
            None => unavailable(&format!(
                "the master started {silent} ms ago, and {server} may still report: ask again after {} ms",
                self.dead_after.as_millis()
            )),
        })
    }
}

/// Checks that every chunk with content has a current replica at another server.
fn is_dispensable(record: &MasterRecord, server: &ServerId) -> Result<(), Problem> {
    let mut only = record.chunks.iter().filter(|(_, chunk)| {
        let others = &mut chunk.members.iter().filter(|its| *its != server);
        chunk.published.is_some()
            && chunk.members.contains(server)
            && !others.any(|other| record.servers.contains(other))
    });
    match only.next() {
        None => Ok(()),
        Some((first, _)) => {
            let message = format!(
                "{server} has the only current replica of {first} (chunks like that: {}): start it again, or give them up \
                 and retire it with --force",
                1 + only.count()
            );
            Err(Problem::new(ProblemCode::InUse, message))
        }
    }
}

fn no_such_server(record: &MasterRecord, server: &ServerId) -> Problem {
    let known: Vec<&str> = record.servers.iter().map(ServerId::as_str).collect();
    let message = format!(
        "no chunk server {server} ever reported; these did: {}",
        known.join(", ")
    );
    Problem::new(ProblemCode::NotFound, message)
}

/// The answer to a heartbeat of a retired server.
pub(super) fn retired(server: &ServerId) -> Problem {
    let message = format!(
        "{server} was retired, and nothing that it has counts. Start this chunk server with another name; its folder may \
         stay, because its replicas are stale then, and are collected"
    );
    Problem::new(ProblemCode::Retired, message)
}

#[cfg(test)]
mod tests {
    use palisade_core::Span;

    use super::super::placement::Report;
    use super::*;

    const PLACEMENT: Placement = Placement {
        copies: 3,
        dead_after: Span::from_millis(1_000),
        collect_after: Span::from_millis(500),
    };

    #[test]
    fn a_server_is_gone_when_it_was_silent_for_long_enough() {
        let server: ServerId = "a".parse().unwrap();
        let at = Timestamp::from_millis;
        let gone = |reports: &Reports, now| {
            let gone = PLACEMENT.is_gone(&server, reports, at(5_000), at(now));
            gone.map_err(|problem| problem.code)
        };
        // It may report until the master has run for as long.
        let none = Reports::new();
        assert_eq!(gone(&none, 5_999), Err(ProblemCode::Unavailable));
        assert_eq!(gone(&none, 6_000), Ok(()));
        let report = Report {
            at: at(7_000),
            address: ([127, 0, 0, 1], 1).into(),
            replicas: [].into(),
        };
        let reported = Reports::from([(server.clone(), report)]);
        assert_eq!(gone(&reported, 7_999), Err(ProblemCode::InUse));
        assert_eq!(gone(&reported, 8_000), Ok(()));
    }
}
