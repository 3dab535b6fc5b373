//! Axes, which map values to x coordinates.

/// A linear axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    /// The value at the left end.
    pub from: f64,
    /// The value at the right end.
    pub to: f64,
    /// The left end, in pixels.
    pub left: f64,
    /// The right end, in pixels.
    pub right: f64,
}

impl Linear {
    /// Returns the x coordinate of a value. Values outside the axis are drawn at its ends.
    #[must_use]
    pub fn x(&self, value: f64) -> f64 {
        let share = (value - self.from) / (self.to - self.from).max(f64::MIN_POSITIVE);
        self.left + share.clamp(0.0, 1.0) * (self.right - self.left)
    }

    /// Returns round values with a step of 1, 2 or 5 × 10ⁿ, at least this many pixels apart.
    #[must_use]
    pub fn ticks(&self, distance: f64) -> Vec<f64> {
        let scale =
            (self.right - self.left).max(1.0) / (self.to - self.from).max(f64::MIN_POSITIVE);
        let step = round_step(distance / scale);
        let (first, last) = (
            (self.from / step).ceil() as i64,
            (self.to / step + 1e-9).floor() as i64,
        );
        (first..=last).map(|count| count as f64 * step).collect()
    }
}

/// Returns the smallest of 1, 2, 5 × 10ⁿ that is not below `wanted`.
fn round_step(wanted: f64) -> f64 {
    let base = 10_f64.powf(wanted.max(1e-6).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * base);
    steps
        .into_iter()
        .find(|step| *step >= wanted)
        .unwrap_or(10.0 * base)
}

/// An axis of moments in order, with as much distance between them as the drawing needs. It is not to scale, and a
/// picture that uses it has to say so.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    /// (value, x), both rising.
    knots: Vec<(f64, f64)>,
}

/// A range of a [`Steps`] axis that needs a minimum width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// The first value.
    pub from: f64,
    /// The last value.
    pub to: f64,
    /// The minimum width in pixels.
    pub width: f64,
}

impl Steps {
    /// Creates an axis that starts at `left`, is as wide as necessary, but at least `width`, and has these moments as
    /// steps. Moments less than `same` apart are one step; others are at least `gap` pixels apart. Additional width is
    /// distributed by the logarithm of the times between the moments, so that moments of one event stay together.
    #[must_use]
    pub fn new(
        mut moments: Vec<f64>,
        same: f64,
        (left, width): (f64, f64),
        gap: f64,
        rooms: &[Room],
    ) -> Steps {
        moments.retain(|moment| moment.is_finite());
        moments.sort_by(f64::total_cmp);
        moments.dedup_by(|next, kept| *next - *kept < same);
        let weights: Vec<f64> = moments
            .windows(2)
            .map(|pair| (1.0 + pair[1] - pair[0]).ln() + 0.02)
            .collect();
        let mut gaps = vec![gap; weights.len()];
        let step = |value: f64| {
            moments
                .partition_point(|moment| *moment <= value)
                .saturating_sub(1)
        };
        let mut spans: Vec<_> = rooms
            .iter()
            .map(|room| (step(room.from), step(room.to), room.width))
            .collect();
        // Short ranges first: their additional width also counts for the longer ranges that contain them.
        spans.sort_by_key(|(from, to, _)| to.saturating_sub(*from));
        for (from, to, wanted) in spans {
            let Some(span) = gaps.get_mut(from..to).filter(|span| !span.is_empty()) else {
                continue;
            };
            share(span, &weights[from..to], wanted);
        }
        share(&mut gaps, &weights, width);
        let mut x = left;
        let mut knots: Vec<(f64, f64)> = moments
            .first()
            .map(|first| (*first, left))
            .into_iter()
            .collect();
        for (moment, gap) in moments.iter().skip(1).zip(gaps) {
            x += gap;
            knots.push((*moment, x));
        }
        Steps { knots }
    }

    /// Returns the x coordinate of a value: on its step, or in proportion between two steps. Values outside the axis
    /// are drawn at its ends.
    #[must_use]
    pub fn x(&self, value: f64) -> f64 {
        let after = self.knots.partition_point(|knot| knot.0 <= value);
        match (self.knots.get(after.wrapping_sub(1)), self.knots.get(after)) {
            (Some(a), Some(b)) => a.1 + (value - a.0) / (b.0 - a.0) * (b.1 - a.1),
            (Some(knot), None) | (None, Some(knot)) => knot.1,
            (None, None) => 0.0,
        }
    }

    /// Returns the steps, as value and x coordinate.
    #[must_use]
    pub fn steps(&self) -> &[(f64, f64)] {
        &self.knots
    }
}

/// Widens the gaps of a range to this sum, by their weights.
fn share(gaps: &mut [f64], weights: &[f64], wanted: f64) {
    let (missing, whole) = (
        wanted - gaps.iter().sum::<f64>(),
        weights.iter().sum::<f64>(),
    );
    for (gap, weight) in gaps.iter_mut().zip(weights) {
        *gap += (missing * weight / whole).max(0.0);
    }
}

/// Assigns a track to each span, counted from 0, so that no two spans on one track overlap. Spans may touch.
#[must_use]
pub fn tracks(spans: &[(f64, f64)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by(|a, b| spans[*a].0.total_cmp(&spans[*b].0));
    let (mut ends, mut tracks) = (Vec::<f64>::new(), vec![0; spans.len()]);
    for index in order {
        let (from, to) = spans[index];
        let free = ends
            .iter()
            .position(|end| *end <= from)
            .unwrap_or(ends.len());
        if free == ends.len() {
            ends.push(to);
        }
        (ends[free], tracks[index]) = (to.max(from), free);
    }
    tracks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_apart() {
        let axis = Linear {
            from: 0.0,
            to: 2_700.0,
            left: 10.0,
            right: 810.0,
        };
        assert_eq!(
            axis.ticks(100.0),
            [0.0, 500.0, 1_000.0, 1_500.0, 2_000.0, 2_500.0]
        );
        assert_eq!(
            (axis.x(0.0), axis.x(1_350.0), axis.x(9_999.0)),
            (10.0, 410.0, 810.0)
        );
        let flat = Linear { to: 0.0, ..axis };
        assert!(flat.x(0.0).is_finite() && flat.ticks(100.0).len() < 3);
    }

    #[test]
    fn spans_on_one_track_do_not_overlap() {
        let spans = [(5.0, 9.0), (0.0, 5.0), (1.0, 6.0), (6.0, 7.0)];
        assert_eq!(tracks(&spans), [0, 0, 1, 1]);
    }

    #[test]
    fn steps_keep_their_order_and_every_range_has_its_minimum_width() {
        let rooms = [
            Room {
                from: 1.0,
                to: 2.0,
                width: 90.0,
            },
            Room {
                from: 0.0,
                to: 1_000.0,
                width: 200.0,
            },
        ];
        let moments = vec![1_000.0, 0.0, 2.0, 1.0, 1.001, f64::NAN];
        let axis = Steps::new(moments, 0.01, (5.0, 0.0), 12.0, &rooms);
        assert_eq!(axis.steps().len(), 4);
        assert!(
            axis.steps()
                .windows(2)
                .all(|pair| pair[1].1 - pair[0].1 >= 12.0)
        );
        for room in rooms {
            assert!(
                axis.x(room.to) - axis.x(room.from) >= room.width - 1e-9,
                "{room:?}"
            );
        }
        assert!(axis.x(1.0) < axis.x(1.5) && axis.x(1.5) < axis.x(2.0));
        let wide = Steps::new(vec![0.0, 1.0, 2.0], 0.01, (5.0, 400.0), 12.0, &rooms);
        assert_eq!(wide.x(2.0), 405.0);
        assert_eq!(
            Steps::new(Vec::new(), 0.01, (0.0, 100.0), 12.0, &rooms).x(3.0),
            0.0
        );
    }
}
