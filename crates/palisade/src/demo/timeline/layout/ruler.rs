//! The axis at the foot of an act: ticks at round times, zigzags where it is stretched.

use super::super::axis::Stretch;
use super::super::geometry::{TEXT, text_width};
use super::super::scene::{Layer, Shape};
use super::super::spans::{duration, seconds};
use super::{Layout, PLOT};

impl Layout<'_> {
    /// Draws the axis.
    pub(super) fn ruler(&mut self) {
        let y = self.y + 2.0;
        let floor = y;
        let (first, last) = self.axis.domain();
        let ends = ((self.axis.x(first), y), (self.axis.x(last), y));
        self.scene.line(None, Layer::Bar, ends.0, ends.1, "axis");
        let mut reach = f64::MIN;
        for tick in self.axis.ticks() {
            let x = self.axis.x(tick);
            let text = tick_words(tick, last);
            let wide = text_width(&text, TEXT) + 4.0;
            let left = (x - wide / 2.0).clamp(0.0, PLOT - wide);
            if left < reach + 8.0 {
                continue;
            }
            reach = left + wide;
            self.scene
                .line(None, Layer::Ground, (x, 0.0), (x, floor), "grid");
            self.scene
                .line(None, Layer::Bar, (x, y - 4.0), (x, y + 4.0), "axis");
            self.scene.text(None, left, y + 16.0, &text, "tick");
        }
        self.stretches(y);
        self.y = y + 48.0;
    }

    /// Zigzags over the stretched parts, each with the time it really took.
    fn stretches(&mut self, y: f64) {
        let mut reach = f64::MIN;
        for stretch in self.axis.stretches() {
            self.scene.mark(
                None,
                Layer::Sign,
                Shape::Path(zigzag(&stretch, y)),
                "zigzag",
            );
            let text = format!("≈ {}", duration(stretch.ms));
            let wide = text_width(&text, TEXT) + 4.0;
            let left = ((stretch.left + stretch.right - wide) / 2.0).clamp(0.0, PLOT - wide);
            if left >= reach + 8.0 {
                self.scene.text(None, left, y + 34.0, &text, "stretch");
                reach = left + wide;
            }
        }
    }
}

/// The words at a tick: one unit for the whole axis, seconds where the act took that long.
fn tick_words(tick: f64, last: f64) -> String {
    match (tick == 0.0, last >= 1_000.0) {
        (true, _) => "0".to_owned(),
        (false, true) => seconds(tick),
        (false, false) => duration(tick),
    }
}

/// A zigzag along the axis.
fn zigzag(stretch: &Stretch, y: f64) -> String {
    use std::fmt::Write as _;
    let teeth = (((stretch.right - stretch.left) / 5.0).round() as usize).max(2);
    let step = (stretch.right - stretch.left) / teeth as f64;
    let mut path = format!("M{:.1} {y:.1}", stretch.left);
    for tooth in 1..=teeth {
        let swing = if tooth == teeth {
            0.0
        } else if tooth % 2 == 0 {
            3.5
        } else {
            -3.5
        };
        // Writing to a String cannot fail.
        let _ = write!(
            path,
            "L{:.1} {:.1}",
            stretch.left + step * tooth as f64,
            y + swing
        );
    }
    path
}
