//! The bars and signs of an act, computed from its records alone: the picture cannot show more than the run proved.

use std::collections::BTreeMap;

use palisade_draw::timeline::Sign;

use super::super::chart::Lanes;
use super::super::{Act, LeaseOf};
use crate::Checks;
use crate::event::{Event, Record};
use crate::name::ChunkId;
use crate::version::Version;
use crate::wire::Standing;

/// The name of the lane of look-ups.
pub(in super::super) const LOCATED: &str = "look-ups";
/// The chunk of the story.
const CHUNK: &str = "log";
const SERVERS: [&str; 3] = ["a", "b", "c"];

/// A period of time.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Bar {
    pub(in super::super) from: f64,
    pub(in super::super) to: f64,
    pub(in super::super) words: String,
    pub(in super::super) style: BarStyle,
}

/// How a bar looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum BarStyle {
    /// The lease of the holder with this number.
    Lease(usize),
    /// A replica, or the servers that look-ups name.
    Content,
    /// A replica that was found stale.
    Stale,
    /// A server that is stopped.
    Pause,
    /// A replica that lacks a record it had.
    Lost,
}

/// A mutation at a replica.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Step {
    pub(in super::super) at: f64,
    pub(in super::super) sign: Sign,
    /// The text below the sign, line by line.
    pub(in super::super) lines: Vec<String>,
}

/// A replica's state from one moment to the next.
#[derive(Default)]
struct Replica {
    from: f64,
    version: Option<Version>,
    content: Vec<String>,
    gone: Vec<String>,
    stale: bool,
}

impl Act {
    /// The content of the lanes.
    pub(in super::super) fn lanes(&self) -> Lanes {
        let last = self
            .records
            .iter()
            .map(|record| record.at_ms)
            .fold(0.0, f64::max);
        let end = last * 1.02 + 1.0;
        Lanes {
            leases: self
                .leases
                .iter()
                .map(|lease| lease_bar(lease, end))
                .collect(),
            servers: SERVERS
                .iter()
                .map(|server| {
                    (
                        (*server).to_owned(),
                        self.bars(server, end),
                        self.steps(server),
                    )
                })
                .collect(),
            located: self.located(end),
            end,
        }
    }

    /// The records about the chunk, in order of time.
    fn about(&self) -> Vec<&Record> {
        let about = |record: &&Record| {
            record
                .event
                .chunk()
                .is_some_and(|chunk| chunk.as_str() == CHUNK)
        };
        let mut records: Vec<&Record> = self.records.iter().filter(about).collect();
        records.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
        records
    }

    /// The replica of a server, and its pauses.
    fn bars(&self, name: &str, end: f64) -> Vec<Bar> {
        let mut bars: Vec<Bar> = Vec::new();
        let mut now: Option<Replica> = None;
        for Record { at_ms, event } in self.about() {
            if event.server().is_none_or(|server| server.as_str() != name) {
                continue;
            }
            let before = now.as_ref();
            let next = match event {
                Event::Installed {
                    version, content, ..
                }
                | Event::Copied {
                    version, content, ..
                } => Replica {
                    version: Some(*version),
                    content: content.clone(),
                    ..Replica::default()
                },
                Event::Applied { content, .. } => Replica {
                    version: before.and_then(|before| before.version),
                    gone: before.map_or(Vec::new(), |before| missing(&before.content, content)),
                    content: content.clone(),
                    stale: before.is_some_and(|before| before.stale),
                    from: 0.0,
                },
                Event::Judged {
                    standing: Standing::Stale,
                    ..
                } => {
                    let Some(before) = before.filter(|before| !before.stale) else {
                        continue;
                    };
                    Replica {
                        version: before.version,
                        content: before.content.clone(),
                        gone: Vec::new(),
                        stale: true,
                        from: 0.0,
                    }
                }
                Event::Collected { .. } => {
                    bars.extend(now.take().map(|before| before.bar(*at_ms)));
                    continue;
                }
                _ => continue,
            };
            bars.extend(now.take().map(|before| before.bar(*at_ms)));
            now = Some(Replica {
                from: *at_ms,
                ..next
            });
        }
        bars.extend(now.map(|last| last.bar(end)));
        let paused = self
            .pauses
            .iter()
            .filter(|(server, ..)| server.as_str() == name);
        bars.extend(paused.map(|(server, from, to)| Bar {
            from: *from,
            to: *to,
            words: format!(
                "{server} is stopped (SIGSTOP): {:.1} s",
                (to - from) / 1_000.0
            ),
            style: BarStyle::Pause,
        }));
        bars
    }

    /// The mutations that reached a server. One is dangerous if it took effect below the version of its replica.
    fn steps(&self, name: &str) -> Vec<Step> {
        let mut installed: BTreeMap<&ChunkId, Version> = BTreeMap::new();
        let mut steps = Vec::new();
        for Record { at_ms, event } in self.about() {
            if event.server().is_none_or(|server| server.as_str() != name) {
                continue;
            }
            let (sign, lines) = match event {
                Event::Installed { chunk, version, .. } | Event::Copied { chunk, version, .. } => {
                    installed.insert(chunk, *version);
                    continue;
                }
                Event::Applied {
                    chunk,
                    version,
                    data,
                    ..
                } => {
                    let over = installed.get(chunk).is_some_and(|own| version < own);
                    let (sign, last) = match (over, self.checks) {
                        (true, _) => (Sign::Dangerous, "not checked".to_owned()),
                        (false, Checks::Versions) => (Sign::Admitted, format!("version {version}")),
                        (false, _) => (Sign::Unchecked, format!("version {version}")),
                    };
                    (sign, vec![data.clone(), last])
                }
                Event::Refused {
                    version,
                    installed,
                    data,
                    ..
                } => {
                    let why = format!("refused: {version} < {installed}");
                    (Sign::Rejected, vec![data.clone(), why])
                }
                _ => continue,
            };
            steps.push(Step {
                at: *at_ms,
                sign,
                lines,
            });
        }
        steps
    }

    /// The servers that look-ups name.
    fn located(&self, end: f64) -> Vec<Bar> {
        let mut bars: Vec<Bar> = Vec::new();
        for Record { at_ms, event } in self.about() {
            let Event::Located { servers, .. } = event else {
                continue;
            };
            let names: Vec<&str> = servers.iter().map(|server| server.as_str()).collect();
            let words = if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            };
            match bars.last_mut() {
                Some(last) if last.words == words => continue,
                Some(last) => last.to = *at_ms,
                None => {}
            }
            bars.push(Bar {
                from: *at_ms,
                to: end,
                words,
                style: BarStyle::Content,
            });
        }
        bars
    }
}

impl Replica {
    fn bar(self, to: f64) -> Bar {
        let version = self.version.map_or(0, u64::from);
        let content = if self.content.is_empty() {
            "empty".to_owned()
        } else {
            self.content.join(", ")
        };
        let (style, words) = match (self.gone.is_empty(), self.stale) {
            (false, _) => {
                let gone = self.gone.join(", ");
                (
                    BarStyle::Lost,
                    format!("{version}: {content} ({gone} is gone)"),
                )
            }
            (true, true) => (BarStyle::Stale, format!("stale: version {version}")),
            (true, false) => (BarStyle::Content, format!("{version}: {content}")),
        };
        Bar {
            from: self.from,
            to: to.max(self.from),
            words,
            style,
        }
    }
}

fn missing(before: &[String], now: &[String]) -> Vec<String> {
    let gone = before.iter().filter(|record| !now.contains(record));
    gone.cloned().collect()
}

fn lease_bar(lease: &LeaseOf, end: f64) -> Bar {
    let LeaseOf { holder, token, .. } = lease;
    let number = SERVERS
        .iter()
        .position(|server| server == holder)
        .unwrap_or(3);
    let (to, how) = match &lease.ended {
        Some((at_ms, how)) => (*at_ms, format!(", {how}")),
        None => (end, String::new()),
    };
    // The master takes the lock under a name of its own.
    let holder = if number < 3 { holder } else { "master" };
    Bar {
        from: lease.from_ms,
        to: to.max(lease.from_ms),
        words: format!("{holder}: token {token}{how}"),
        style: BarStyle::Lease(number),
    }
}
