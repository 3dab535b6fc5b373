//! The report as a picture: a panel for each workload, a bar for each system.

use std::fmt::Write as _;

use super::markdown::short;
use super::{Report, Row, Spread};
use crate::measure::median;
use crate::peers::system::System;
use crate::peers::workload::{self, Workload};

const WIDTH: f64 = 1_000.0;
const PANEL: f64 = 490.0;
const LEFT: f64 = 120.0;
const BAR: f64 = 250.0;
const ROW: f64 = 20.0;
/// The line that says what the figures are: beside a long title it would reach into the next panel.
const UNIT: f64 = 15.0;

/// One self-contained SVG.
pub(super) fn draw(report: &Report) -> String {
    let panels: Vec<(&Workload, Vec<&Row>)> = workload::ALL
        .iter()
        .map(|workload| (workload, report.of(workload).0))
        .filter(|(_, rows)| !rows.is_empty())
        .collect();
    let tallest = panels.iter().map(|(_, rows)| rows.len()).max();
    let tall = 50.0 + UNIT + ROW * tallest.unwrap_or(0) as f64;
    let height = 40.0 + tall * panels.len().div_ceil(2) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for (number, (workload, rows)) in panels.iter().enumerate() {
        let (x, y) = (
            10.0 + PANEL * (number % 2) as f64,
            24.0 + tall * (number / 2) as f64,
        );
        panel(&mut svg, x, y, workload, rows);
    }
    let escaped = report.machine.replace('&', "&amp;").replace('<', "&lt;");
    text(&mut svg, 10.0, height - 8.0, &escaped, "#666666");
    svg.push_str("</svg>\n");
    svg
}

fn figure(workload: &Workload, row: &Row) -> Spread {
    if workload.is_about_time() {
        row.spread(|sample| sample.p50)
    } else {
        row.spread(|sample| sample.per_second)
    }
}

fn panel(svg: &mut String, x: f64, y: f64, workload: &Workload, rows: &[&Row]) {
    let what = if workload.is_about_time() {
        "p50 in µs, shorter is better"
    } else {
        "per second, longer is better"
    };
    text(svg, x, y, workload.title, "#111111");
    text(svg, x, y + UNIT, what, "#666666");
    let spreads: Vec<Spread> = rows.iter().map(|row| figure(workload, row)).collect();
    let full = full(&spreads, workload.is_about_time());
    for (number, (row, spread)) in rows.iter().zip(spreads).enumerate() {
        let top = y + UNIT + 8.0 + ROW * number as f64;
        let own = row.profile.system == System::Palisade;
        let color = if own { "#2a6f4e" } else { "#9aa7b4" };
        text(svg, x, top + 13.0, row.profile.name, "#111111");
        let [from, to, end] =
            [spread.least, spread.most, spread.median].map(|figure| (figure / full).min(1.0) * BAR);
        rectangle(svg, x + LEFT, top + 2.0, end, 14.0, color);
        rectangle(svg, x + LEFT + from, top + 8.5, to - from, 1.0, "#111111");
        if spread.most > full {
            rectangle(svg, x + LEFT + BAR - 14.0, top, 4.0, 18.0, "#ffffff");
        }
        let said = short(spread.median);
        text(
            svg,
            x + LEFT + to.max(end) + 6.0,
            top + 13.0,
            &said,
            "#111111",
        );
    }
}

/// What the whole width stands for. A time that is so much longer than the middle one does not count: its bar is
/// drawn broken, so that a system that cannot keep up does not hide the others.
fn full(spreads: &[Spread], is_about_time: bool) -> f64 {
    const OUTLIER: f64 = 12.0;
    let limit = match is_about_time {
        true => OUTLIER * median(spreads.iter().map(|spread| spread.median).collect()),
        false => f64::INFINITY,
    };
    spreads
        .iter()
        .flat_map(|spread| [spread.median, spread.most])
        .filter(|figure| *figure <= limit)
        .fold(f64::MIN_POSITIVE, f64::max)
}

fn rectangle(svg: &mut String, x: f64, y: f64, width: f64, height: f64, color: &str) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\"/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, text: &str, color: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{color}\">{text}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_cannot_keep_up_does_not_hide_the_others_and_a_fast_one_is_drawn_whole() {
        let spread = |median, most| Spread {
            least: median,
            median,
            most,
        };
        let times = [spread(2.0, 3.0), spread(1.0, 9.0), spread(800.0, 900.0)];
        assert_eq!(full(&times, true), 9.0);
        assert_eq!(full(&times, false), 900.0);
    }
}
