//! The strategies as a picture: what was lost, what was rejected, how long it took.

use std::fmt::Write as _;

use super::Outcome;
use super::gate::Passed;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 330.0;
const ROW: f64 = 30.0;
const BAR: f64 = 220.0;

/// One self-contained SVG.
pub(super) fn draw(rows: &[(&'static str, Outcome)], gate: &[Passed], machine: &str) -> String {
    let job: Vec<_> = rows
        .iter()
        .map(|(name, outcome)| (*name, outcome))
        .collect();
    let crowd: Vec<_> = gate
        .iter()
        .map(|passed| (passed.name, &passed.outcome))
        .collect();
    let height = 190.0 + ROW * (job.len() + crowd.len()) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    let below = chart(
        &mut svg,
        "Acknowledged additions that were lost; writes rejected; time",
        &job,
        30.0,
    );
    chart(
        &mut svg,
        "The gatekeeper: a crowd after one row",
        &crowd,
        below + 40.0,
    );
    text(&mut svg, 20.0, height - 12.0, machine, "#666666", false);
    svg.push_str("</svg>\n");
    svg
}

/// Returns where it ends.
fn chart(svg: &mut String, title: &str, rows: &[(&str, &Outcome)], top: f64) -> f64 {
    text(svg, 20.0, top, title, "#111111", true);
    let most = rows
        .iter()
        .map(|(_, outcome)| outcome.lost + outcome.rejected)
        .max();
    let most = most.unwrap_or(0).max(1) as f64;
    let longest = rows
        .iter()
        .map(|(_, outcome)| outcome.millis)
        .fold(1.0, f64::max);
    let mut y = top + 14.0;
    for (name, outcome) in rows {
        let (lost, rejected) = (
            outcome.lost as f64 / most * BAR,
            outcome.rejected as f64 / most * BAR,
        );
        text(svg, 20.0, y + 16.0, name, "#111111", false);
        bar(svg, LEFT, y + 4.0, lost, "#c0392b");
        bar(svg, LEFT + lost, y + 4.0, rejected, "#e0a030");
        let said = format!("{} lost, {} rejected", outcome.lost, outcome.rejected);
        let color = if outcome.lost > 0 {
            "#c0392b"
        } else {
            "#111111"
        };
        text(
            svg,
            LEFT + lost + rejected + 6.0,
            y + 16.0,
            &said,
            color,
            false,
        );
        let time = outcome.millis / longest * 70.0;
        bar(svg, WIDTH - 130.0, y + 4.0, time, "#7f8c9a");
        let seconds = format!("{:.1} s", outcome.millis / 1e3);
        text(
            svg,
            WIDTH - 126.0 + time,
            y + 16.0,
            &seconds,
            "#111111",
            false,
        );
        y += ROW;
    }
    y
}

fn bar(svg: &mut String, x: f64, y: f64, width: f64, color: &str) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"17\" fill=\"{color}\"/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, text: &str, color: &str, strong: bool) {
    let weight = if strong { "600" } else { "400" };
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{color}\" font-weight=\"{weight}\">{text}</text>"
    );
}
