//! What each arm lost under each nemesis, as bars.

use std::fmt::Write as _;

use super::Run;

const GUTTER: f64 = 270.0;
const WIDE: f64 = 1100.0;
const ROW: f64 = 22.0;

/// One bar for each arm of each run that took place.
pub(super) fn draw(runs: &[Run]) -> String {
    let most = runs
        .iter()
        .flat_map(|run| &run.arms)
        .map(|report| report.share_lost())
        .fold(0.05_f64, f64::max);
    let (mut body, mut y) = (String::new(), 8.0);
    for run in runs.iter().filter(|run| !run.arms.is_empty()) {
        let word = run.nemesis.word();
        // Writing to a String cannot fail; the same holds below.
        let _ = write!(
            body,
            "<text class=\"strong\" x=\"0\" y=\"{:.1}\">{word}</text>",
            y + 15.0
        );
        for report in &run.arms {
            let share = report.share_lost();
            let width = (share / most * (WIDE - GUTTER - 230.0)).max(2.0);
            let class = if report.lost.is_empty() {
                "none"
            } else {
                "lost"
            };
            let ink = if report.lost.is_empty() {
                "ink-kept"
            } else {
                "ink-lost"
            };
            let _ = write!(
                body,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
                 <rect class=\"bar-{class}\" x=\"{GUTTER}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"14\"/>\
                 <text class=\"{ink}\" x=\"{:.1}\" y=\"{:.1}\">{} of {} lost ({:.1} %)</text>",
                GUTTER - 10.0,
                y + 15.0,
                report.arm.word(),
                y + 4.0,
                GUTTER + width + 8.0,
                y + 15.0,
                report.lost.len(),
                report.acknowledged,
                share * 100.0
            );
            y += ROW;
        }
        y += 10.0;
    }
    format!(
        "<svg viewBox=\"0 0 {WIDE} {y}\" role=\"img\" aria-label=\"Acknowledged adds lost by each arm under each \
         nemesis\">{body}</svg>"
    )
}
