//! Bar charts: a panel has a title, a bar in each row, and an axis with its unit.

use crate::axis::Linear;
use crate::{Anchor, Canvas, Font, Layer, Rect, width};

/// A row of a panel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// The name of the row; empty if another panel names the rows.
    pub name: String,
    /// The figure.
    pub value: f64,
    /// The label at the end of the bar.
    pub words: String,
    /// CSS classes of the bar.
    pub class: &'static str,
    /// The lowest and the highest figure, drawn as a line over the bar.
    pub range: Option<(f64, f64)>,
}

/// A panel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Panel {
    /// The title.
    pub title: String,
    /// The unit of the axis, and which direction is better.
    pub unit: String,
    /// The rows. `None` leaves a row empty.
    pub rows: Vec<Option<Bar>>,
    /// The figure at the end of the axis. A longer bar is drawn broken.
    pub full: f64,
    /// The width of the names in pixels; 0 if there are none.
    pub names: f64,
}

/// The height of a row.
pub const ROW: f64 = 22.0;
const BAR: f64 = 14.0;

/// Returns the width that these names need.
#[must_use]
pub fn room<'a>(names: impl IntoIterator<Item = &'a str>) -> f64 {
    let widest = names
        .into_iter()
        .map(|name| width(name, Font::Body))
        .fold(0.0, f64::max);
    if widest > 0.0 { widest + 10.0 } else { 0.0 }
}

impl Panel {
    /// Returns its height.
    #[must_use]
    pub fn height(&self) -> f64 {
        HEAD + ROW * self.rows.len() as f64 + FOOT
    }

    /// Draws the panel with its upper left corner at this point.
    pub fn draw(&self, canvas: &mut Canvas, (x, y): (f64, f64), wide: f64) {
        let words = self.rows.iter().flatten();
        let words = words
            .map(|bar| width(&bar.words, Font::Small))
            .fold(0.0, f64::max);
        let axis = Linear {
            from: 0.0,
            to: self.full.max(f64::MIN_POSITIVE),
            left: x + self.names,
            right: (x + wide - words - 10.0).max(x + self.names + 20.0),
        };
        // Above the bars, unless it is too long.
        let fits = axis.left + width(&self.title, Font::Strong) <= x + wide;
        let left = if fits { axis.left } else { x };
        canvas.text(
            (left, y + 10.0),
            Anchor::Start,
            Font::Strong,
            &self.title,
            "",
        );
        let (top, floor) = (y + HEAD, y + HEAD + ROW * self.rows.len() as f64);
        for (row, bar) in self.rows.iter().enumerate() {
            if let Some(bar) = bar {
                bar.draw(canvas, &axis, x, top + ROW * row as f64);
            }
        }
        let mut reached = axis.left - 40.0;
        for tick in axis.ticks(50.0) {
            let (at, words) = (axis.x(tick), figure(tick));
            canvas.line(Layer::Ground, (at, top), (at, floor + 4.0), "grid");
            let half = width(&words, Font::Small) / 2.0;
            if at - half > reached + 6.0 {
                canvas.text(
                    (at, floor + 12.0),
                    Anchor::Middle,
                    Font::Small,
                    &words,
                    "soft",
                );
                reached = at + half;
            }
        }
        canvas.line(
            Layer::Bar,
            (axis.left, top),
            (axis.left, floor + 4.0),
            "axis",
        );
        canvas.text(
            (axis.left, floor + 28.0),
            Anchor::Start,
            Font::Small,
            &self.unit,
            "soft",
        );
    }
}

impl Bar {
    fn draw(&self, canvas: &mut Canvas, axis: &Linear, x: f64, top: f64) {
        let middle = top + ROW / 2.0;
        canvas.text((x, middle), Anchor::Start, Font::Body, &self.name, "");
        let end = axis.x(self.value);
        let bar = Rect::new(axis.left, middle - BAR / 2.0, end - axis.left, BAR);
        canvas.rect(Layer::Bar, bar, 0.0, self.class);
        let mut reached = end;
        if let Some((least, most)) = self.range {
            let (from, to) = (axis.x(least), axis.x(most));
            canvas.line(Layer::Sign, (from, middle), (to, middle), "whisker");
            reached = to.max(end);
        }
        if self.value.max(self.range.map_or(0.0, |range| range.1)) > axis.to {
            let gap = Rect::new(axis.right - 16.0, middle - BAR, 5.0, 2.0 * BAR);
            canvas.rect(Layer::Sign, gap, 0.0, "paper");
        }
        canvas.text(
            (reached + 6.0, middle),
            Anchor::Start,
            Font::Small,
            &self.words,
            "",
        );
    }
}

/// Formats a figure of an axis: `0`, `0.5`, `12`, `1,500`, `20 k`, `3 M`.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{} M", value / 1e6),
        size if size >= 1e4 => format!("{} k", value / 1e3),
        size if size >= 1e3 => format!("{},{:03}", (value / 1e3).trunc(), value % 1e3),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

const HEAD: f64 = 24.0;
const FOOT: f64 = 42.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(values: &[f64], full: f64) -> (Panel, Canvas) {
        let bar = |value: &f64| {
            let (name, words) = (format!("system {value}"), format!("{value} lost"));
            Some(Bar {
                name,
                value: *value,
                words,
                class: "bad",
                range: Some((value / 2.0, value * 2.0)),
            })
        };
        let rows: Vec<_> = values.iter().map(bar).collect();
        let names = room(rows.iter().flatten().map(|bar| bar.name.as_str()));
        let panel = Panel {
            title: "Lost".into(),
            unit: "updates".into(),
            rows,
            full,
            names,
        };
        let mut canvas = Canvas::new(520.0, panel.height() + 20.0);
        panel.draw(&mut canvas, (10.0, 10.0), 500.0);
        (panel, canvas)
    }

    #[test]
    fn bars_are_proportional_to_their_figures_and_labels_stay_inside() {
        let (_, canvas) = panel(&[10.0, 5.0, 0.0], 20.0);
        assert_eq!(canvas.problems(), Vec::<String>::new());
        let bars = canvas.marks.iter().filter(|mark| mark.class == "bad");
        let wide: Vec<f64> = bars
            .map(|mark| match mark.shape {
                crate::Shape::Rect(rect, _) => rect.w,
                _ => 0.0,
            })
            .collect();
        assert!(
            (wide[0] - 2.0 * wide[1]).abs() < 1e-6 && wide[2] == 0.0,
            "{wide:?}"
        );
        assert!(!canvas.marks.iter().any(|mark| mark.class == "paper"));
    }

    #[test]
    fn a_bar_beyond_the_axis_is_broken_and_the_axis_has_its_unit() {
        let (_, canvas) = panel(&[10.0, 900.0], 20.0);
        assert!(canvas.marks.iter().any(|mark| mark.class == "paper"));
        assert!(canvas.texts.iter().any(|text| text.text == "updates"));
        assert!(canvas.texts.iter().any(|text| text.text == "20"));
    }

    #[test]
    fn figures_of_an_axis_are_short() {
        let all = [0.0, 0.5, 12.0, 1_500.0, 20_000.0, 3e6].map(figure);
        assert_eq!(all, ["0", "0.5", "12", "1,500", "20 k", "3 M"]);
    }
}
