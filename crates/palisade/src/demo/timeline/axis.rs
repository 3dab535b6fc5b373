//! The time axis: milliseconds to x, in order and as near to scale as legible.
//!
//! A lease lasts seconds and a message on one machine a fraction of a millisecond; on a true scale claim, read and
//! write would be one pixel. So neighbouring instants are kept [`CROWDED`] apart, and what is left of the width is
//! shared out in proportion to time. Order is never changed. Where the axis is stretched it is drawn as a zigzag and
//! says how much time the stretch really took.

use super::model::Event;
use super::spans::{instants, leases};

/// The distance that neighbouring instants are kept apart, in pixels.
const CROWDED: f64 = 11.0;
/// The largest share of the width that may go into keeping instants apart.
const STRETCH_SHARE: f64 = 0.7;
/// Instants closer than this are one, ms.
const SAME_MS: f64 = 0.02;
/// The least distance between two ticks on the unstretched scale, in pixels.
const TICK_DISTANCE: f64 = 90.0;

/// A strictly rising, piecewise linear map from milliseconds to x.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// (ms, x), both rising.
    knots: Vec<(f64, f64)>,
    /// Pixels per millisecond where nothing is stretched.
    scale: f64,
}

/// A part of the axis that is drawn wider than its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stretch {
    /// Its start, in pixels.
    pub(super) left: f64,
    /// Its end, in pixels.
    pub(super) right: f64,
    /// The time it really took, ms.
    pub(super) ms: f64,
}

impl Axis {
    /// An axis for these events between `left` and `right`.
    pub(super) fn new(events: &[Event], left: f64, right: f64) -> Self {
        let times = moments(events);
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let width = (right - left).max(1.0);
        let least = CROWDED.min(STRETCH_SHARE * width / gaps.len().max(1) as f64);
        let scale = fit(&gaps, least, width);
        let mut knots = vec![(times.first().copied().unwrap_or(0.0), left)];
        let mut x = left;
        for (gap, time) in gaps.iter().zip(times.iter().skip(1)) {
            x += (gap * scale).max(least);
            knots.push((*time, x));
        }
        Self { knots, scale }
    }

    /// Where a time is drawn. Times outside the axis are drawn at its ends.
    pub(super) fn x(&self, ms: f64) -> f64 {
        let after = self.knots.partition_point(|knot| knot.0 <= ms);
        match (self.knots.get(after.wrapping_sub(1)), self.knots.get(after)) {
            (Some(a), Some(b)) => a.1 + (ms - a.0) / (b.0 - a.0) * (b.1 - a.1),
            (Some(knot), None) | (None, Some(knot)) => knot.1,
            (None, None) => 0.0,
        }
    }

    /// The first and the last moment, ms.
    pub(super) fn domain(&self) -> (f64, f64) {
        let first = self.knots.first().map_or(0.0, |knot| knot.0);
        (first, self.knots.last().map_or(first, |knot| knot.0))
    }

    /// Round times worth a tick, ms: a 1-2-5 step that leaves room for the labels.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let (first, last) = self.domain();
        let step = round_step(TICK_DISTANCE / self.scale.max(1e-9));
        let start = (first / step).ceil() as i64;
        let end = (last / step).floor() as i64;
        (start..=end).map(|count| count as f64 * step).collect()
    }

    /// The stretched parts, neighbours joined.
    pub(super) fn stretches(&self) -> Vec<Stretch> {
        let mut found: Vec<Stretch> = Vec::new();
        for pair in self.knots.windows(2) {
            let (ms, left, right) = (pair[1].0 - pair[0].0, pair[0].1, pair[1].1);
            if right - left < 1.3 * self.scale * ms {
                continue;
            }
            match found
                .last_mut()
                .filter(|last| (last.right - left).abs() < 1e-6)
            {
                Some(last) => (last.right, last.ms) = (right, last.ms + ms),
                None => found.push(Stretch { left, right, ms }),
            }
        }
        found
    }
}

/// Every distinct moment of an act in order, from 0 (or before) to a little after the last event.
fn moments(events: &[Event]) -> Vec<f64> {
    let ends = leases(events).into_iter().filter_map(|lease| lease.to_ms);
    let mut times: Vec<f64> = events
        .iter()
        .flat_map(instants)
        .chain(ends)
        .filter(|time| time.is_finite())
        .collect();
    times.push(0.0);
    times.sort_by(f64::total_cmp);
    let last = times.last().copied().unwrap_or(0.0);
    let first = times.first().copied().unwrap_or(0.0);
    times.push(last + ((last - first) * 0.05).max(1.0));
    times.dedup_by(|next, kept| *next - *kept < SAME_MS);
    times
}

/// The scale at which all gaps, none drawn under `least`, fill the width. Found by bisection: the drawn width rises
/// with the scale.
fn fit(gaps: &[f64], least: f64, width: f64) -> f64 {
    let total: f64 = gaps.iter().sum();
    let (mut low, mut high) = (0.0, width / total.max(1e-9));
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        let drawn: f64 = gaps.iter().map(|gap| (gap * middle).max(least)).sum();
        if drawn > width {
            high = middle
        } else {
            low = middle
        }
    }
    low
}

/// The smallest of 1, 2, 5 × 10ⁿ milliseconds that is not below `wanted`.
fn round_step(wanted: f64) -> f64 {
    let base = 10_f64.powf(wanted.max(1e-6).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * base)
        .find(|step| *step >= wanted)
        .unwrap_or(10.0 * base)
}
