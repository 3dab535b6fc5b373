//! The picture of hand-written acts.

use super::super::{LeaseOf, Outcome};
use super::*;
use crate::Checks;
use crate::event::{Event, Record};
use crate::name::{ChunkId, ServerId};
use crate::version::Version;
use crate::wire::Standing;

fn server(name: &str) -> ServerId {
    name.parse().unwrap()
}

fn chunk() -> ChunkId {
    "log".parse().unwrap()
}

fn version(number: u64) -> Version {
    number.try_into().unwrap()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn installed(at_ms: f64, at: &str, number: u64, content: &str) -> Record {
    let event = Event::Installed {
        server: server(at),
        chunk: chunk(),
        version: version(number),
        content: words(content),
    };
    Record { at_ms, event }
}

fn applied(at_ms: f64, at: &str, number: u64, content: &str, data: &str) -> Record {
    let event = Event::Applied {
        server: server(at),
        chunk: chunk(),
        version: version(number),
        serial: 1.try_into().unwrap(),
        data: data.to_owned(),
        content: words(content),
    };
    Record { at_ms, event }
}

fn lease(holder: &str, token: u64, from_ms: f64, ended: Option<f64>) -> LeaseOf {
    LeaseOf {
        holder: holder.to_owned(),
        token: version(token).token(),
        from_ms,
        ended: ended.map(|at_ms| (at_ms, "expired".to_owned())),
    }
}

/// b is the primary of version 4, and a's mutation of version 2 arrives at 5 s.
fn act(checks: Checks) -> Act {
    let mut records = vec![
        installed(90.0, "a", 2, ""),
        installed(90.2, "b", 2, ""),
        applied(120.0, "a", 2, "a1", "a1"),
        applied(121.0, "b", 2, "a1", "a1"),
        installed(4_300.0, "b", 4, "a1"),
        applied(4_400.0, "b", 4, "a1 b1", "b1"),
    ];
    let late = match checks {
        Checks::DangerUnfenced => applied(5_000.0, "b", 2, "a1 a2", "a2").event,
        Checks::Versions => Event::Refused {
            server: server("b"),
            chunk: chunk(),
            version: version(2),
            installed: version(4),
            data: "a2".to_owned(),
        },
    };
    let stale = Event::Judged {
        server: server("a"),
        chunk: chunk(),
        version: version(2),
        standing: Standing::Stale,
    };
    let located = |at_ms, names: &str| Record {
        at_ms,
        event: Event::Located {
            chunk: chunk(),
            version: version(4),
            servers: words(names).iter().map(|name| server(name)).collect(),
        },
    };
    records.extend([
        Record {
            at_ms: 5_000.0,
            event: late,
        },
        Record {
            at_ms: 5_100.0,
            event: stale,
        },
        located(130.0, "a b"),
        located(1_600.0, "b"),
    ]);
    let lost = checks == Checks::DangerUnfenced;
    let told = |unfenced, fenced| words(if lost { unfenced } else { fenced });
    Act {
        checks,
        records,
        leases: vec![
            lease("a", 2, 80.0, Some(4_200.0)),
            lease("b", 4, 4_250.0, None),
        ],
        pauses: vec![(server("a"), 200.0, 4_990.0)],
        outcome: Outcome {
            acknowledged: told("a1 b1 a2", "a1 b1"),
            refused: told("", "a2"),
            content: told("a1 a2", "a1 b1"),
            ..Outcome::default()
        },
    }
}

#[test]
fn texts_do_not_overlap_and_stay_inside() {
    let drawn = drawing(&[act(Checks::DangerUnfenced), act(Checks::Versions)]);
    assert_eq!(drawn.problems(), Vec::<String>::new());
}

#[test]
fn the_dangerous_mutation_is_red_and_only_where_it_took_effect() {
    let signs = |checks| {
        let lanes = act(checks).lanes();
        let steps = lanes.servers.into_iter().flat_map(|(_, _, steps)| steps);
        steps.map(|step| step.sign).collect::<Vec<_>>()
    };
    let unfenced = signs(Checks::DangerUnfenced);
    assert_eq!(
        unfenced
            .iter()
            .filter(|sign| **sign == Sign::Dangerous)
            .count(),
        1
    );
    let fenced = signs(Checks::Versions);
    assert!(!fenced.contains(&Sign::Dangerous) && fenced.contains(&Sign::Rejected));
    let svg = svg(&[act(Checks::DangerUnfenced)]);
    assert!(svg.contains("b1 is gone") && svg.contains("b1 was acknowledged and is lost"));
}
