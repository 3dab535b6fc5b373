//! The verdict on an arm's record: lost adds, reads that changed, rejects, repeated tokens.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::arm::Arm;
use super::event::{Event, Fault, Operation, Target, WorkerStep};
use super::kind::LockKind;
use super::nodes::Observed;
use super::world::WorldResults;

/// One arm of one run.
#[derive(Debug, Serialize)]
pub(super) struct ArmReport {
    pub(super) arm: Arm,
    pub(super) seconds: f64,
    pub(super) grants: u64,
    /// Adds that the resource acknowledged.
    pub(super) acknowledged: u64,
    /// The acknowledged adds that are missing from the final set.
    pub(super) lost: Vec<LostAdd>,
    /// Second reads under one grant that differ from the first, or from the holder's own write.
    pub(super) changed: Vec<ChangedRead>,
    /// The same figures for each kind of lock.
    pub(super) kinds: BTreeMap<LockKind, OfKind>,
    pub(super) rejects: Vec<Reject>,
    /// Operations without an answer.
    pub(super) unknown: u64,
    /// Calls to the authority that ended without a grant or a denial.
    pub(super) faults: u64,
    /// Exclusive grants with a token below that of an earlier grant of the same lock, by the workers' clocks: each is a
    /// live holder that a fence rejects. `None` if those clocks are wrong on purpose.
    pub(super) inverted_grants: Option<u64>,
    /// Numbers that were granted more than once for the same lock: tokens, and those of readers' grants.
    pub(super) repeated_tokens: Vec<Repeated>,
    /// The number of faults of each kind; figures in their descriptions are left out.
    pub(super) interventions: BTreeMap<String, u64>,
    /// The findings of a cluster's observers.
    pub(super) observed: Option<Observed>,
    #[serde(skip)]
    pub(super) record: Record,
}

/// The counts for one kind of lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct OfKind {
    pub(super) grants: u64,
    pub(super) acknowledged: u64,
    pub(super) lost: u64,
    /// Second reads.
    pub(super) reads: u64,
    /// Those that differ.
    pub(super) changed: u64,
    pub(super) rejects: u64,
}

/// All events, for the timeline.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) events: Vec<Event>,
    pub(super) faults: Vec<Fault>,
}

/// An acknowledged add that is missing.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LostAdd {
    pub(super) at_ms: f64,
    pub(super) lane: usize,
    pub(super) worker: usize,
    pub(super) token: Option<u64>,
    pub(super) element: String,
}

/// A read that differs from the holder's earlier read or write.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ChangedRead {
    pub(super) at_ms: f64,
    pub(super) lane: usize,
    pub(super) worker: usize,
    pub(super) token: Option<u64>,
}

/// An operation that the fence rejected.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Reject {
    pub(super) at_ms: f64,
    pub(super) lane: usize,
    pub(super) worker: usize,
    pub(super) token: Option<u64>,
    pub(super) highest: Option<u64>,
    pub(super) step: Operation,
}

/// A token that was granted twice.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Repeated {
    pub(super) lane: usize,
    pub(super) token: u64,
    pub(super) workers: (usize, usize),
    pub(super) at_ms: (f64, f64),
}

impl ArmReport {
    /// `clocks` says whether the workers' clocks are right.
    pub(super) fn of(results: WorldResults, clocks: bool) -> ArmReport {
        let WorldResults {
            arm,
            state,
            sets,
            seconds,
            observed,
        } = results;
        let kept: BTreeMap<usize, BTreeSet<String>> = sets
            .into_iter()
            .map(|(lane, set)| (lane, set.into_iter().collect()))
            .collect();
        let mut report = ArmReport {
            arm,
            seconds,
            grants: 0,
            acknowledged: 0,
            lost: Vec::new(),
            changed: Vec::new(),
            kinds: BTreeMap::new(),
            rejects: Vec::new(),
            unknown: 0,
            faults: 0,
            inverted_grants: clocks.then(|| inverted(&state.events)),
            repeated_tokens: Vec::new(),
            interventions: kinds(&state.faults),
            observed,
            record: Record::default(),
        };
        let mut granted = BTreeMap::new();
        for event in &state.events {
            report.take(event, &kept);
            report.grant(event, &mut granted);
        }
        report.record = Record {
            events: state.events,
            faults: state.faults,
        };
        report
    }

    fn grant(&mut self, event: &Event, granted: &mut BTreeMap<(usize, u64), (usize, f64)>) {
        let WorkerStep::Granted {
            number: Some(token),
        } = event.line.what
        else {
            return;
        };
        let (lane, worker, at_ms) = (event.line.lane, event.worker, event.at_ms);
        if let Some((other, when)) = granted.insert((lane, token), (worker, at_ms)) {
            self.repeated_tokens.push(Repeated {
                lane,
                token,
                workers: (other, worker),
                at_ms: (when, at_ms),
            });
        }
    }

    fn take(&mut self, event: &Event, kept: &BTreeMap<usize, BTreeSet<String>>) {
        let (at_ms, worker) = (event.at_ms, event.worker);
        let (lane, token) = (event.line.lane, event.line.token);
        let of_kind = self.kinds.entry(event.line.kind).or_default();
        match &event.line.what {
            WorkerStep::Granted { .. } => {
                self.grants += 1;
                of_kind.grants += 1;
            }
            WorkerStep::ReadAgain { same } => {
                of_kind.reads += 1;
                if !same {
                    of_kind.changed += 1;
                    self.changed.push(ChangedRead {
                        at_ms,
                        lane,
                        worker,
                        token,
                    });
                }
            }
            WorkerStep::Acknowledged { element } => {
                self.acknowledged += 1;
                of_kind.acknowledged += 1;
                if !kept.get(&lane).is_some_and(|set| set.contains(element)) {
                    of_kind.lost += 1;
                    self.lost.push(LostAdd {
                        at_ms,
                        lane,
                        worker,
                        token,
                        element: element.clone(),
                    });
                }
            }
            WorkerStep::Rejected { step, highest } => {
                of_kind.rejects += 1;
                self.rejects.push(Reject {
                    at_ms,
                    lane,
                    worker,
                    token,
                    highest: *highest,
                    step: *step,
                });
            }
            WorkerStep::Unknown { .. } => self.unknown += 1,
            WorkerStep::Fault { .. } => self.faults += 1,
            _ => {}
        }
    }

    /// For each kind of lock, the acknowledged adds and the second reads.
    pub(super) fn done(&self) -> BTreeMap<LockKind, (u64, u64)> {
        let kinds = self.kinds.iter();
        kinds
            .map(|(kind, of)| (*kind, (of.acknowledged, of.reads)))
            .collect()
    }

    /// The fraction of acknowledged adds that are lost.
    pub(super) fn share_lost(&self) -> f64 {
        if self.acknowledged == 0 {
            return 0.0;
        }
        self.lost.len() as f64 / self.acknowledged as f64
    }
}

fn kinds(faults: &[Fault]) -> BTreeMap<String, u64> {
    let mut kinds = BTreeMap::new();
    for fault in faults {
        let words = fault.what.split(' ').map(|word| match word.parse::<f64>() {
            Ok(_) => "…",
            Err(_) => word,
        });
        let kind: Vec<&str> = words.collect();
        let target = match fault.target {
            Target::Worker(_) => "worker",
            Target::Authority => "authority",
            Target::Resource => "resource",
            Target::Network => "network",
            Target::Clocks => "clocks",
        };
        *kinds
            .entry(format!("{target}: {}", kind.join(" ")))
            .or_default() += 1;
    }
    kinds
}

fn inverted(events: &[Event]) -> u64 {
    // Readers and holders of permits are granted side by side, so the order in which they hear of it means nothing.
    let grants = events.iter().filter(|event| {
        let alone = matches!(event.line.kind, LockKind::Exclusive);
        alone && matches!(event.line.what, WorkerStep::Granted { .. })
    });
    let mut grants: Vec<_> = grants
        .filter_map(|event| Some((event.line.lane, event.line.own_ns, event.line.token?)))
        .collect();
    grants.sort_unstable();
    let mut highest = BTreeMap::new();
    let below = grants.iter().filter(|(lane, _, token)| {
        let highest = highest.entry(*lane).or_insert(*token);
        *highest = (*highest).max(*token);
        token < highest
    });
    below.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::event::WorkerLine;
    use crate::chaos::event_log::State;

    fn event(worker: usize, own_ns: u64, token: u64, what: WorkerStep) -> Event {
        let line = WorkerLine {
            lane: 0,
            kind: LockKind::Exclusive,
            own_ns,
            token: Some(token),
            what,
        };
        Event {
            at_ms: own_ns as f64,
            worker,
            line,
        }
    }

    fn report(events: Vec<Event>, kept: &[&str]) -> ArmReport {
        let mut state = State::default();
        state.events = events;
        let set = kept.iter().map(|name| (*name).to_owned()).collect();
        let results = WorldResults {
            arm: Arm::Claim,
            state,
            sets: BTreeMap::from([(0, set)]),
            seconds: 1.0,
            observed: None,
        };
        ArmReport::of(results, true)
    }

    fn acknowledged(name: &str) -> WorkerStep {
        let element = name.to_owned();
        WorkerStep::Acknowledged { element }
    }

    #[test]
    fn an_acknowledged_add_that_is_not_in_the_final_set_is_lost() {
        let events = vec![
            event(0, 1, 1, acknowledged("a")),
            event(1, 2, 2, acknowledged("b")),
        ];
        let report = report(events, &["b", "never acknowledged"]);
        let lost: Vec<_> = report.lost.iter().map(|lost| &*lost.element).collect();
        assert_eq!((report.acknowledged, lost), (2, vec!["a"]));
    }

    #[test]
    fn shared_tokens_are_repeated_and_lower_later_tokens_are_inverted() {
        let granted = |worker, own_ns, token| {
            let number = Some(token);
            event(worker, own_ns, token, WorkerStep::Granted { number })
        };
        let fine = report(vec![granted(0, 1, 1), granted(1, 2, 2)], &[]);
        assert_eq!(fine.inverted_grants, Some(0));
        assert!(fine.repeated_tokens.is_empty());
        // It arrived late, but was not granted late.
        let heard_late = report(vec![granted(0, 2, 2), granted(1, 1, 1)], &[]);
        assert_eq!(heard_late.inverted_grants, Some(0));
        let wrong = report(
            vec![granted(0, 1, 2), granted(1, 2, 1), granted(2, 3, 2)],
            &[],
        );
        assert_eq!(wrong.inverted_grants, Some(1));
        assert_eq!(wrong.repeated_tokens[0].workers, (0, 2));
    }

    #[test]
    fn readers_share_a_token_and_not_a_number_and_a_second_read_that_differs_is_told() {
        let reader = |worker, own_ns, what| {
            let mut event = event(worker, own_ns, 7, what);
            event.line.kind = LockKind::Readers;
            event
        };
        let granted = |number| WorkerStep::Granted {
            number: Some(number),
        };
        let same = |same| WorkerStep::ReadAgain { same };
        let fine = vec![
            reader(0, 1, granted(7)),
            reader(1, 2, granted(8)),
            reader(0, 3, same(true)),
        ];
        let kept = report(fine.clone(), &[]);
        assert!(kept.repeated_tokens.is_empty() && kept.changed.is_empty());
        assert_eq!(kept.kinds[&LockKind::Readers].reads, 1);
        let wrong = [reader(2, 4, granted(8)), reader(1, 5, same(false))];
        let wrong = report([fine, wrong.to_vec()].concat(), &[]);
        assert_eq!(wrong.repeated_tokens[0].workers, (1, 2));
        assert_eq!((wrong.changed.len(), wrong.changed[0].worker), (1, 1));
        assert_eq!(wrong.kinds[&LockKind::Readers].changed, 1);
    }
}
