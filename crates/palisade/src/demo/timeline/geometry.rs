//! Rectangles, the width of text without a font, and the placing of labels.

/// The size of label text, in pixels.
pub(super) const TEXT: f64 = 12.5;
/// The height of a row of labels.
pub(super) const ROW: f64 = 19.0;
/// The distance from a leader line to the label it leads to.
pub(super) const ELBOW: f64 = 6.0;
/// The distance kept between two labels of a row.
const SPACING: f64 = 10.0;

/// An axis-parallel rectangle; y grows downwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rect {
    /// Left edge.
    pub(super) x: f64,
    /// Upper edge.
    pub(super) y: f64,
    /// Width.
    pub(super) w: f64,
    /// Height.
    pub(super) h: f64,
}

impl Rect {
    /// A rectangle by its left upper corner and its size.
    pub(super) fn new(x: f64, y: f64, w: f64, h: f64) -> Self {
        Self { x, y, w, h }
    }

    /// The right edge.
    pub(super) fn right(&self) -> f64 {
        self.x + self.w
    }

    /// The lower edge.
    pub(super) fn bottom(&self) -> f64 {
        self.y + self.h
    }

    /// The height of the middle.
    pub(super) fn middle(&self) -> f64 {
        self.y + self.h / 2.0
    }

    /// Whether the two share area; touching edges do not.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.x < other.right()
            && other.x < self.right()
            && self.y < other.bottom()
            && other.y < self.bottom()
    }
}

/// An upper estimate of the width of `text` in any usual sans-serif face; DejaVu Sans, the widest, was measured.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().map(char_width).sum::<f64>() * size
}

/// The width of a character, in em.
fn char_width(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' | '·' => 0.35,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '-' | '/' => 0.43,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '→' | '=' | '≈' => 0.99,
        'A'..='Z' => 0.76,
        c if c.is_ascii() || c == '“' || c == '”' => 0.64,
        _ => 1.05,
    }
}

/// Shortens `text` to `width` pixels with an ellipsis, at whole characters.
pub(super) fn shortened(text: &str, width: f64) -> String {
    if text_width(text, TEXT) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        if text_width(&short, TEXT) + TEXT * (char_width(c) + char_width('…')) > width {
            break;
        }
        short.push(c);
    }
    short + "…"
}

/// Where a label of a ladder ended up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slot {
    /// The left edge of the label.
    pub(super) left: f64,
    /// Its row, 0 being nearest to what it labels.
    pub(super) row: usize,
}

/// What becomes of a label that would run out of the bounds at the right.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edge {
    /// It is shifted to the left until it fits; its leader meets it from above.
    Shift,
    /// It ends left of its leader.
    Flip,
}

/// Places labels of given anchor x and width in rows so that no two overlap, and so that no leader line crosses a label
/// wherever that can be had.
///
/// A label starts just right of its leader. Anchors are taken from right to left, so that the labels of a crowded moment
/// form a ladder: the last one nearest, each earlier one a row further out with its leader left of all the others.
/// What works best at the right end depends on the widths, so a few ways are tried and the best one is kept.
pub(super) fn ladder(wishes: &[(f64, f64)], bounds: (f64, f64)) -> Vec<Slot> {
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order.sort_by(|a, b| wishes[*b].0.total_cmp(&wishes[*a].0).then(b.cmp(a)));
    let overflows = |index: &usize| wishes[*index].0 + ELBOW + wishes[*index].1 > bounds.1;
    let (late, early): (Vec<usize>, Vec<usize>) = order.iter().copied().partition(overflows);
    let mirrored: Vec<usize> = late.iter().rev().copied().collect();
    let orders = [
        order,
        [&*mirrored, &*early].concat(),
        [&*early, &*mirrored].concat(),
        [&*early, &*late].concat(),
    ];
    let ways = orders
        .iter()
        .flat_map(|order| [Edge::Shift, Edge::Flip].map(|edge| (order, edge)));
    let best = ways
        .map(|(order, edge)| place_all(wishes, bounds, order, edge))
        .min_by_key(|way| cost(way));
    best.unwrap_or_default()
        .into_iter()
        .map(|label| Slot {
            left: label.left,
            row: label.row,
        })
        .collect()
}

/// Places all labels in this order; the answer is in the order of the wishes.
fn place_all(
    wishes: &[(f64, f64)],
    bounds: (f64, f64),
    order: &[usize],
    edge: Edge,
) -> Vec<Placed> {
    let mut placed: Vec<Placed> = Vec::new();
    for index in order {
        let (anchor, width) = wishes[*index];
        let right_of = anchor + ELBOW;
        let flips = edge == Edge::Flip && right_of + width > bounds.1;
        let left = if flips {
            anchor - ELBOW - width
        } else {
            right_of
        };
        let left = left.min(bounds.1 - width).max(bounds.0);
        let label = Placed {
            index: *index,
            anchor,
            left,
            right: left + width,
            row: 0,
        };
        placed.push(lowest(label, &placed));
    }
    placed.sort_by_key(|label| label.index);
    placed
}

/// The label in the nearest row where it is in nobody's way; leaders are heeded if any row allows it.
fn lowest(label: Placed, placed: &[Placed]) -> Placed {
    let at = |row| Placed { row, ..label };
    let apart = |wish: &Placed| placed.iter().all(|other| !wish.collides(other));
    let clear = |wish: &Placed| {
        placed
            .iter()
            .all(|other| !wish.crosses(other) && !other.crosses(wish))
    };
    let rows = || (0..=placed.len()).map(at);
    // A row that nobody uses is always free, so the last resort is never taken.
    rows()
        .find(|wish| apart(wish) && clear(wish))
        .or_else(|| rows().find(apart))
        .unwrap_or(at(placed.len()))
}

/// How bad a placement is: crossings first, then rows.
fn cost(placed: &[Placed]) -> (usize, usize) {
    let crossings = placed
        .iter()
        .map(|label| placed.iter().filter(|other| label.crosses(other)).count())
        .sum();
    (
        crossings,
        placed.iter().map(|label| label.row).max().unwrap_or(0),
    )
}

/// A label that has its place.
#[derive(Clone, Copy)]
struct Placed {
    /// Which wish it is.
    index: usize,
    /// Where its leader runs.
    anchor: f64,
    /// Left edge.
    left: f64,
    /// Right edge.
    right: f64,
    /// Row.
    row: usize,
}

impl Placed {
    /// Whether two labels are in one row and too close.
    fn collides(&self, other: &Self) -> bool {
        self.row == other.row
            && self.left < other.right + SPACING
            && other.left < self.right + SPACING
    }

    /// Whether this label's leader runs through the other label.
    fn crosses(&self, other: &Self) -> bool {
        self.row > other.row && other.left - 3.0 < self.anchor && self.anchor < other.right + 3.0
    }
}
