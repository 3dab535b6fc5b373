//! The picture of the story: one SVG file with an act below the other.

pub(super) mod spans;
#[cfg(test)]
mod tests;

use palisade_draw::legend::{self, LegendEntry, entry};
use palisade_draw::timeline::{Sign, style};
use palisade_draw::{Anchor, Canvas, Font, Layer, Rect, Shape};

use super::chart::{Chart, chart};
use super::{Act, title};

/// Width of the column of lane names.
pub(super) const GUTTER: f64 = 112.0;
/// Minimum width of the lanes.
pub(super) const PLOT: f64 = 1_000.0;
const EDGE: f64 = 20.0;
const TITLE: &str = "A chunk’s primary is paused past its lease, and continues";
const MESSAGE: &str = "The chunk’s version is the fencing token of its primary’s grant. \
    A replica that admits only its own version refuses the late mutation.";

/// Draws these acts. The picture follows the reader’s colour scheme.
#[must_use]
pub fn svg(acts: &[Act]) -> String {
    let verdicts: Vec<String> = acts
        .iter()
        .map(|act| format!("{}: {}.", title(act.checks), verdict(act).1))
        .collect();
    let label = format!("{TITLE}. {}", verdicts.join(" "));
    drawing(acts).to_svg(&style(), &label)
}

fn drawing(acts: &[Act]) -> Canvas {
    let charts: Vec<Chart> = acts.iter().map(|act| chart(&act.lanes())).collect();
    let wide = charts
        .iter()
        .map(|chart| chart.lanes.width + GUTTER)
        .fold(GUTTER + PLOT, f64::max);
    let mut canvas = Canvas::new(wide + 2.0 * EDGE, 0.0);
    canvas.text((EDGE, 32.0), Anchor::Start, Font::Title, TITLE, "");
    canvas.text((EDGE, 60.0), Anchor::Start, Font::Body, MESSAGE, "soft");
    let mut y = legend::draw(&mut canvas, legend(), (EDGE, EDGE + wide), 78.0) + 12.0;
    for (act, chart) in acts.iter().zip(charts) {
        let (class, words) = verdict(act);
        canvas.text(
            (EDGE, y + 10.0),
            Anchor::Start,
            Font::Heading,
            title(act.checks),
            "",
        );
        canvas.text((EDGE, y + 33.0), Anchor::Start, Font::Strong, &words, class);
        y += 50.0;
        let height = chart.lanes.height;
        canvas.part(EDGE, y, chart.names);
        canvas.part(EDGE + GUTTER, y, chart.lanes);
        y += height + 24.0;
    }
    canvas.height = y;
    canvas
}

/// The class and the words of an act's result.
fn verdict(act: &Act) -> (&'static str, String) {
    let (outcome, listed) = (&act.outcome, |records: &[String]| records.join(", "));
    let lost = outcome.lost().join(", ");
    let told = format!(
        "acknowledged {}; the chunk contains {}",
        listed(&outcome.acknowledged),
        listed(&outcome.content)
    );
    match (lost.is_empty(), outcome.refused.is_empty()) {
        (false, _) => (
            "bad",
            format!("{lost} was acknowledged and is lost: {told}"),
        ),
        (true, false) => {
            let refused = listed(&outcome.refused);
            (
                "good",
                format!("nothing is lost, {refused} was refused: {told}"),
            )
        }
        (true, true) => ("", told),
    }
}

/// The entries of the legend in reading order.
fn legend() -> Vec<LegendEntry> {
    let bar = |class: &str| {
        let shape = Shape::Rect(Rect::new(1.0, 2.0, 34.0, 14.0), 2.0);
        (shape, class.to_owned())
    };
    let hatched = |class: &str| {
        let mut canvas = Canvas::new(0.0, 0.0);
        let area = Rect::new(1.0, 2.0, 34.0, 14.0);
        canvas.hatch(Layer::Bar, area, 7.0, format!("{class}-hatch"));
        let strokes = canvas
            .marks
            .into_iter()
            .map(|mark| (mark.shape, mark.class));
        [bar(class)].into_iter().chain(strokes).collect::<Vec<_>>()
    };
    let signed = |sign: Sign, words| entry(sign.shapes((18.0, 9.0)), words);
    vec![
        signed(
            Sign::Dangerous,
            "a mutation that took effect below the replica’s version",
        ),
        signed(Sign::Rejected, "refused: its version is over"),
        signed(Sign::Admitted, "admitted: the replica’s own version"),
        signed(Sign::Unchecked, "done without a check"),
        entry([bar("tint-c0")], "lease of the primary"),
        entry([bar("content")], "a replica: its version and its records"),
        entry(hatched("gap"), "a stale replica"),
        entry(hatched("pause"), "stopped"),
        entry([bar("lost")], "an acknowledged record is gone"),
    ]
}
