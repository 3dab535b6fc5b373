//! A laid-out act as plain data: shapes and labels with coordinates, nothing yet written down.

use super::geometry::{ROW, Rect, TEXT, ladder, text_width};

/// What lies over what; later layers cover earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layer {
    /// Lane backgrounds.
    Lane,
    /// Grid, lines of life, and the bands between lanes.
    Ground,
    /// Bars and strips.
    Bar,
    /// Messages.
    Arrow,
    /// Verdict signs.
    Sign,
}

/// A geometric shape.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    /// A straight line between two points.
    Line((f64, f64), (f64, f64)),
    /// A rectangle with rounded corners of this radius.
    Rect(Rect, f64),
    /// SVG path data; written by this crate, never taken from events.
    Path(String),
}

/// A shape with the CSS classes that colour it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mark {
    /// The event it shows, by index.
    pub(super) event: Option<usize>,
    /// Its layer.
    pub(super) layer: Layer,
    /// The shape.
    pub(super) shape: Shape,
    /// CSS classes.
    pub(super) class: String,
}

/// A sign with a meaning of its own, told apart by shape and not only by colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// Admitted: a disc with a tick.
    Admit,
    /// Rejected: a square with a cross.
    Reject,
    /// Done without a check: an empty ring.
    Unchecked,
    /// No verdict seen: a dotted ring.
    Unknown,
    /// The fence was raised: a triangle.
    Raise,
}

/// A part of a label.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Run {
    /// Text with CSS classes.
    Text(String, String),
    /// Text in a frame with CSS classes.
    Chip(String, String),
    /// A sign.
    Sign(Sign),
}

impl Run {
    /// The width it takes, gap to its right neighbour included.
    pub(super) fn width(&self) -> f64 {
        match self {
            Self::Text(text, class) => {
                text_width(text, TEXT) * if class.contains("strong") { 1.08 } else { 1.0 } + 4.0
            }
            Self::Chip(text, _) => text_width(text, TEXT) + 16.0,
            Self::Sign(_) => 19.0,
        }
    }
}

/// A line of runs at a place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Label {
    /// The event it tells of, by index.
    pub(super) event: Option<usize>,
    /// The area that is reserved for it.
    pub(super) rect: Rect,
    /// Its parts from left to right.
    pub(super) runs: Vec<Run>,
    /// Where its leader line starts; the leader ends at the label.
    pub(super) leader: Option<(f64, f64)>,
}

/// A label that still needs a place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wish {
    /// The event it tells of, by index.
    pub(super) event: Option<usize>,
    /// The x it belongs to.
    pub(super) x: f64,
    /// The y its leader starts at.
    pub(super) y: f64,
    /// Its parts.
    pub(super) runs: Vec<Run>,
}

/// A laid-out act: the plot, and the gutter with the lane names that stays put when the plot is scrolled.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scene {
    /// Width of the plot.
    pub(super) width: f64,
    /// Height of plot and gutter.
    pub(super) height: f64,
    /// Shapes of the plot.
    pub(super) marks: Vec<Mark>,
    /// Labels of the plot.
    pub(super) labels: Vec<Label>,
    /// Lane names.
    pub(super) gutter: Vec<Label>,
    /// Lane backgrounds in the gutter (y and height).
    pub(super) lanes: Vec<(f64, f64)>,
    /// A sentence for each event, by index.
    pub(super) titles: Vec<String>,
}

impl Scene {
    /// Adds a shape.
    pub(super) fn mark(
        &mut self,
        event: Option<usize>,
        layer: Layer,
        shape: Shape,
        class: impl Into<String>,
    ) {
        self.marks.push(Mark {
            event,
            layer,
            shape,
            class: class.into(),
        });
    }

    /// Adds a straight line.
    pub(super) fn line(
        &mut self,
        event: Option<usize>,
        layer: Layer,
        a: (f64, f64),
        b: (f64, f64),
        class: &str,
    ) {
        self.mark(event, layer, Shape::Line(a, b), class);
    }

    /// Adds a text whose reserved area starts at `x` and is centred on `middle`.
    pub(super) fn text(
        &mut self,
        event: Option<usize>,
        x: f64,
        middle: f64,
        text: &str,
        class: &str,
    ) {
        let run = Run::Text(text.to_owned(), class.to_owned());
        let rect = Rect::new(x, middle - TEXT * 0.6, run.width(), TEXT * 1.2);
        self.labels.push(Label {
            event,
            rect,
            runs: vec![run],
            leader: None,
        });
    }

    /// Places wishes as a ladder whose row 0 starts at `y`, growing down or (`up`) with its lowest row ending there.
    pub(super) fn place(&mut self, wishes: Vec<Wish>, slots: &[(f64, usize)], y: f64, up: bool) {
        for (wish, (left, row)) in wishes.into_iter().zip(slots) {
            let offset = *row as f64 * ROW;
            let top = if up { y - ROW - offset } else { y + offset };
            let rect = Rect::new(*left, top + 1.0, width(&wish.runs), ROW - 2.0);
            self.labels.push(Label {
                event: wish.event,
                rect,
                runs: wish.runs,
                leader: Some((wish.x, wish.y)),
            });
        }
    }
}

/// The width of a line of runs.
pub(super) fn width(runs: &[Run]) -> f64 {
    runs.iter().map(Run::width).sum()
}

/// The slots (left edge and row) for these wishes, and how many rows they take.
pub(super) fn slots(wishes: &[Wish], bounds: (f64, f64)) -> (Vec<(f64, usize)>, usize) {
    let sizes: Vec<(f64, f64)> = wishes
        .iter()
        .map(|wish| (wish.x, width(&wish.runs)))
        .collect();
    let slots = ladder(&sizes, bounds);
    let rows = slots.iter().map(|slot| slot.row + 1).max().unwrap_or(0);
    (
        slots
            .into_iter()
            .map(|slot| (slot.left, slot.row))
            .collect(),
        rows,
    )
}

/// Where the leader from `anchor` bends, and where it meets the label: at its nearer side, or above or below it.
pub(super) fn leader_end(label: &Label, anchor: (f64, f64)) -> ((f64, f64), (f64, f64)) {
    let area = label.rect;
    let within = area.x <= anchor.0 && anchor.0 <= area.right();
    let edge = if anchor.1 < area.y {
        area.y
    } else {
        area.bottom()
    };
    let y = if within { edge } else { area.middle() };
    ((anchor.0, y), (anchor.0.clamp(area.x, area.right()), y))
}

/// Diagonal strokes that fill a rectangle, as path data; no pattern element, so no ids that could clash in one page.
pub(super) fn hatch(rect: Rect, step: f64) -> String {
    use std::fmt::Write as _;
    let mut path = String::new();
    let mut start = rect.x - rect.h;
    while start < rect.right() {
        let (low, high) = (start.max(rect.x), (start + rect.h).min(rect.right()));
        if high > low {
            let (y1, y2) = (
                rect.bottom() - (low - start),
                rect.bottom() - (high - start),
            );
            // Writing to a String cannot fail.
            let _ = write!(path, "M{low:.1} {y1:.1}L{high:.1} {y2:.1}");
        }
        start += step;
    }
    path
}
