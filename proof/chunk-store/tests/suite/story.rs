//! The story with real processes: a lock server, a master, three chunk servers, clients, and signals.

use std::path::Path;

use chunk_store::event::Event;
use chunk_store::story::{self, Act};
use chunk_store::{Checks, wire::Standing};

use crate::cluster::palisade;

async fn act(checks: Checks) -> Act {
    let program = Path::new(env!("CARGO_BIN_EXE_chunk-store"));
    story::run(program, &palisade(), checks, |_| {})
        .await
        .unwrap()
}

/// The events about the chunk of the story, in order of time.
fn events(act: &Act) -> Vec<&Event> {
    let mut records: Vec<_> = act.records.iter().collect();
    records.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    let events = records.into_iter().map(|record| &record.event);
    events
        .filter(|event| event.chunk().is_some_and(|chunk| chunk.as_str() == "log"))
        .collect()
}

fn position(events: &[&Event], what: &str, found: impl Fn(&Event) -> bool) -> usize {
    let found = events.iter().position(|event| found(event));
    found.unwrap_or_else(|| panic!("{what} did not happen"))
}

fn by(event: &Event, name: &str) -> bool {
    event.server().is_some_and(|server| server.as_str() == name)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_late_mutations_are_refused_by_version_and_stale_replicas_are_made_anew() {
    let act = act(Checks::Versions).await;
    let outcome = &act.outcome;
    assert_eq!(outcome.acknowledged, ["a1", "b1", "b2", "c1"]);
    assert_eq!(outcome.refused, ["a2"]);
    assert_eq!(outcome.content, ["a1", "b1", "b2", "c1"]);
    assert_eq!(outcome.lost(), [""; 0]);
    assert!(outcome.replicas_agree);
    assert_eq!(outcome.replicas, 3);
    // The snapshot was made before c1.
    assert_eq!(outcome.snapshot, ["a1", "b1", "b2"]);
    let events = events(&act);
    for server in ["a", "c"] {
        let stale = position(&events, "stale", |event| {
            let stale = matches!(
                event,
                Event::Judged {
                    standing: Standing::Stale,
                    ..
                }
            );
            stale && by(event, server)
        });
        let collected = position(&events, "a collection", |event| {
            matches!(event, Event::Collected { .. }) && by(event, server)
        });
        let copied = position(&events, "a copy", |event| {
            matches!(event, Event::Copied { .. }) && by(event, server)
        });
        assert!(stale < collected && collected < copied, "{server}");
        // K6: no look-up names it meanwhile.
        let named = events[stale..copied].iter().any(|event| match event {
            Event::Located { servers, .. } => servers.iter().any(|its| its.as_str() == server),
            _ => false,
        });
        assert!(!named, "{server} was named");
    }
    // K4: the late mutation reached both other replicas, and both refused it.
    for server in ["b", "c"] {
        let refused = events.iter().any(|event| match event {
            Event::Refused {
                version,
                installed,
                data,
                ..
            } => by(event, server) && version < installed && data == "a2",
            _ => false,
        });
        assert!(refused, "{server} did not refuse a2");
    }
    every_version_is_installed_before_it_is_published(&events);
    no_grant_before_the_former_lease_ended(&act);
    let svg = story::svg(&[act]);
    assert!(svg.contains("refused: ") && !svg.contains("and is lost"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_check_of_versions_an_acknowledged_record_is_lost() {
    let act = act(Checks::DangerUnfenced).await;
    let outcome = &act.outcome;
    assert_eq!(outcome.acknowledged, ["a1", "b1", "b2", "a2", "c1"]);
    assert_eq!(outcome.refused, [""; 0]);
    assert_eq!(outcome.content, ["a1", "a2", "b2", "c1"]);
    assert_eq!(outcome.lost(), ["b1"]);
    assert_eq!(outcome.snapshot, ["a1", "a2", "b2"]);
    let svg = story::svg(&[act]);
    assert!(svg.contains("b1 was acknowledged and is lost") && svg.contains("not checked"));
}

/// K3: each member of a published version had recorded it before.
fn every_version_is_installed_before_it_is_published(events: &[&Event]) {
    let mut published = 0;
    for (at, event) in events.iter().enumerate() {
        let Event::Published {
            version: of,
            members,
            ..
        } = event
        else {
            continue;
        };
        published += 1;
        for member in members {
            let installed = events[..at].iter().any(|event| match event {
                Event::Installed {
                    server, version, ..
                } => server == member && version == of,
                _ => false,
            });
            assert!(installed, "{member} had not recorded version {of}");
        }
    }
    assert!(published >= 3, "{published}");
}

/// K1, K2: the versions of the lock server’s grants rise, and no two leases overlap.
fn no_grant_before_the_former_lease_ended(act: &Act) {
    assert!(act.leases.len() >= 4, "{:?}", act.leases);
    for pair in act.leases.windows(2) {
        assert!(pair[0].token < pair[1].token);
        let ended = pair[0].ended.as_ref().expect("an end");
        assert!(ended.0 <= pair[1].from_ms, "{pair:?}");
    }
    let (_, how) = act.leases[0].ended.as_ref().unwrap();
    assert_eq!(how, "expired", "the primary that was stopped");
}
