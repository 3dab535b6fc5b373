//! Every reject: a strip on which each is a tick, and a table.

use std::fmt::Write as _;

use crate::chaos::event::Step;
use crate::chaos::verdict::ArmReport;

const GUTTER: f64 = 100.0;
const WIDE: f64 = 1100.0;
const ROW: f64 = 20.0;

/// Longer tables are in the JSON report only.
const ROWS: usize = 200;

/// A tick for each, over the whole run, a row for each operation.
pub(super) fn strip(report: &ArmReport) -> String {
    let ends = report.rejects.last().map_or(1.0, |last| last.at_ms);
    let whole = ends.max(report.seconds * 1e3);
    let mut body = String::new();
    for (row, step) in [Step::Claim, Step::Read, Step::Write].iter().enumerate() {
        let y = row as f64 * ROW;
        let of_step = || report.rejects.iter().filter(|reject| reject.step == *step);
        let word = format!("{step:?}").to_lowercase();
        let _ = write!(
            body,
            "<rect class=\"lane\" x=\"{GUTTER}\" y=\"{:.1}\" width=\"{}\" height=\"{}\"/>\
             <text class=\"tick\" x=\"0\" y=\"{:.1}\">{word}: {}</text>",
            y + 1.0,
            WIDE - GUTTER - 10.0,
            ROW - 2.0,
            y + 14.0,
            of_step().count()
        );
        for reject in of_step() {
            let x = GUTTER + reject.at_ms / whole * (WIDE - GUTTER - 10.0);
            let _ = write!(
                body,
                "<line class=\"rejected-tick\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>",
                y + 3.0,
                y + ROW - 3.0
            );
        }
    }
    format!(
        "<svg viewBox=\"0 0 {WIDE} {}\" role=\"img\" aria-label=\"Every reject over time\">{body}</svg>",
        ROW * 3.0
    )
}

/// The same in figures.
pub(super) fn table(report: &ArmReport) -> String {
    let all = report.rejects.len();
    let more = match all > ROWS {
        true => format!("; the first {ROWS} here, all in chaos.json"),
        false => String::new(),
    };
    let mut body = format!(
        "<details><summary>{all} rejects{more}</summary><div class=\"scroll\"><table><tr><th>ms</th><th>lane</th>\
         <th>worker</th><th>operation</th><th>token</th><th>fence stood at</th></tr>"
    );
    let number = |number: Option<u64>| number.map_or("–".to_owned(), |number| number.to_string());
    for reject in report.rejects.iter().take(ROWS) {
        let _ = write!(
            body,
            "<tr><td>{:.1}</td><td>set-{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            reject.at_ms,
            reject.lane,
            reject.worker,
            format!("{:?}", reject.step).to_lowercase(),
            number(reject.token),
            number(reject.highest)
        );
    }
    body + "</table></div></details>"
}
