//! Finds the worst moment of an arm: the lane and the period in which most was lost.

use std::collections::BTreeSet;

use crate::chaos::event::{Event, Fault, Target};
use crate::chaos::plan::Plan;
use crate::chaos::verdict::ArmReport;

/// A period of one lane.
pub(super) struct Moment<'a> {
    pub(super) lane: usize,
    /// Milliseconds since the world began.
    pub(super) from_ms: f64,
    pub(super) to_ms: f64,
    pub(super) workers: Vec<usize>,
    /// Events of the lane, including those shortly before.
    pub(super) events: Vec<&'a Event>,
    pub(super) faults: Vec<&'a Fault>,
    pub(super) lost: BTreeSet<&'a str>,
}

impl<'a> Moment<'a> {
    /// The worst moment; without losses, one with a rejection; otherwise none.
    pub(super) fn worst(report: &'a ArmReport, plan: &Plan) -> Option<Moment<'a>> {
        let ttl_ms = plan.ttl.as_secs_f64() * 1e3;
        let near = |lane: usize, at_ms: f64| {
            let same = report
                .lost
                .iter()
                .filter(|other| other.lane == lane && (other.at_ms - at_ms).abs() < ttl_ms);
            same.count()
        };
        let lost = report
            .lost
            .iter()
            .max_by_key(|lost| near(lost.lane, lost.at_ms))
            .map(|lost| (lost.lane, lost.at_ms));
        let reject = report.rejects.get(report.rejects.len() / 2);
        let (lane, at_ms) = lost.or(reject.map(|reject| (reject.lane, reject.at_ms)))?;
        let (from_ms, to_ms) = ((at_ms - 3.5 * ttl_ms).max(0.0), at_ms + 2.0 * ttl_ms);
        let team = lane / plan.lanes;
        let workers: Vec<usize> = (team * plan.workers..(team + 1) * plan.workers).collect();
        let events = report.record.events.iter().filter(|event| {
            event.line.lane == lane
                && event.at_ms > from_ms - 10.0 * ttl_ms
                && event.at_ms < to_ms + 10.0 * ttl_ms
        });
        let concerns = |fault: &Fault| match fault.target {
            Target::Worker(worker) => workers.contains(&worker),
            _ => true,
        };
        let faults = report
            .record
            .faults
            .iter()
            .filter(|fault| fault.to_ms > from_ms && fault.from_ms < to_ms && concerns(fault));
        Some(Moment {
            lane,
            from_ms,
            to_ms,
            events: events.collect(),
            faults: faults.collect(),
            lost: report
                .lost
                .iter()
                .map(|lost| lost.element.as_str())
                .collect(),
            workers,
        })
    }
}
