//! Every rejection: a strip with a tick for each, and a table.

use palisade_draw::axis::Linear;
use palisade_draw::page::table;
use palisade_draw::{Anchor, Canvas, Font, Layer, Rect};

use super::timeline::{GUTTER, WIDE};
use crate::chaos::event::Operation;
use crate::chaos::verdict::ArmReport;

const ROW: f64 = 20.0;

/// Longer tables are only in the JSON report.
const ROWS: usize = 200;

/// The strip over the whole run, with a row for each operation.
pub(super) fn strip(report: &ArmReport) -> Canvas {
    let last = report.rejects.last().map_or(1.0, |last| last.at_ms);
    let axis = Linear {
        from: 0.0,
        to: last.max(report.seconds * 1e3),
        left: GUTTER,
        right: WIDE - 10.0,
    };
    let mut canvas = Canvas::new(WIDE, ROW * 3.0);
    for (row, step) in [Operation::Claim, Operation::Read, Operation::Write]
        .iter()
        .enumerate()
    {
        let y = row as f64 * ROW;
        let own: Vec<f64> = report
            .rejects
            .iter()
            .filter(|reject| reject.step == *step)
            .map(|reject| axis.x(reject.at_ms))
            .collect();
        let lane = Rect::new(GUTTER, y + 1.0, axis.right - GUTTER, ROW - 2.0);
        canvas.rect(Layer::Ground, lane, 0.0, "lane");
        let name = format!("{step:?}: {}", own.len()).to_lowercase();
        let at = (0.0, y + ROW / 2.0);
        canvas.text(at, Anchor::Start, Font::Small, &name, "soft");
        for x in own {
            canvas.line(Layer::Bar, (x, y + 3.0), (x, y + ROW - 3.0), "line-c1");
        }
    }
    canvas
}

/// The table of rejections.
pub(super) fn details(report: &ArmReport) -> String {
    let all = report.rejects.len();
    let more = if all > ROWS {
        format!("; the first {ROWS} here, all in chaos.json")
    } else {
        String::new()
    };
    let number = |number: Option<u64>| number.map_or("–".to_owned(), |number| number.to_string());
    let rows = report.rejects.iter().take(ROWS).map(|reject| {
        let cells = [
            format!("{:.1}", reject.at_ms),
            format!("set-{}", reject.lane),
            reject.worker.to_string(),
            format!("{:?}", reject.step).to_lowercase(),
            number(reject.token),
            number(reject.highest),
        ];
        cells.map(|cell| (cell, "")).to_vec()
    });
    let columns = ["ms#", "set", "worker#", "operation", "token#", "fence at#"];
    let rows = table(&columns, rows);
    format!("<details><summary>{all} rejections{more}</summary>{rows}</details>")
}
