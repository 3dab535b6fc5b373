//! Legends: a small drawing of each sign, and its meaning.

use std::fmt::Write as _;

use crate::{Anchor, Canvas, Font, Layer, Shape, escape, width};

/// The size of a key.
pub const KEY: (f64, f64) = (36.0, 18.0);

/// One entry.
#[derive(Clone, Debug, PartialEq)]
pub struct LegendEntry {
    /// The drawing, of size [`KEY`].
    pub key: Canvas,
    /// Its meaning.
    pub words: &'static str,
}

/// Creates an entry whose key has these shapes.
#[must_use]
pub fn entry(
    shapes: impl IntoIterator<Item = (Shape, String)>,
    words: &'static str,
) -> LegendEntry {
    let mut key = Canvas::new(KEY.0, KEY.1);
    for (shape, class) in shapes {
        key.mark(Layer::Bar, shape, class);
    }
    LegendEntry { key, words }
}

/// Draws a legend from `left` to `right`, over as many lines as it needs; returns the y coordinate below it.
pub fn draw(
    canvas: &mut Canvas,
    entries: Vec<LegendEntry>,
    (left, right): (f64, f64),
    top: f64,
) -> f64 {
    let (mut x, mut y) = (left, top);
    for entry in entries {
        let wide = KEY.0 + 8.0 + width(entry.words, Font::Small);
        if x > left && x + wide > right {
            (x, y) = (left, y + LINE);
        }
        canvas.part(x, y, entry.key);
        let at = (x + KEY.0 + 8.0, y + KEY.1 / 2.0);
        canvas.text(at, Anchor::Start, Font::Small, entry.words, "soft");
        x += wide + 18.0;
    }
    y + LINE
}

/// Returns the legend as an HTML list, which wraps on small screens.
#[must_use]
pub fn list(entries: &[LegendEntry]) -> String {
    let mut html = String::from("<ul class=\"legend\">");
    for LegendEntry { key, words } in entries {
        // Writing to a String cannot fail.
        let _ = write!(
            html,
            "<li>{}{}</li>",
            key.to_inline("key", ""),
            escape(words)
        );
    }
    html + "</ul>"
}

const LINE: f64 = 23.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legend_wraps_and_stays_inside() {
        let entries = vec![entry([], "a meaning of some length"); 7];
        let mut canvas = Canvas::new(500.0, 100.0);
        let reached = draw(&mut canvas, entries.clone(), (10.0, 490.0), 10.0);
        assert_eq!(reached, 10.0 + 4.0 * LINE);
        canvas.height = reached;
        assert_eq!(canvas.problems(), Vec::<String>::new());
        assert_eq!(list(&entries).matches("<li>").count(), 7);
    }
}
