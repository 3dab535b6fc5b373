//! The losses of each arm under each nemesis, as bars.

use palisade_draw::Canvas;
use palisade_draw::bars::{Bar, Panel, room};

use super::Run;

const WIDE: f64 = 1100.0;

/// One bar for each arm of each completed run, all to one scale.
pub(super) fn draw(runs: &[Run]) -> Canvas {
    let mut rows = Vec::new();
    for run in runs.iter().filter(|run| !run.arms.is_empty()) {
        for report in &run.arms {
            let percent = report.share_lost() * 100.0;
            let (lost, acknowledged) = (report.lost.len(), report.acknowledged);
            rows.push(Some(Bar {
                name: format!("{}: {}", run.nemesis.word(), report.arm.word()),
                value: percent,
                words: format!("{lost} of {acknowledged} lost ({percent:.1} %)"),
                class: "bad",
                range: None,
            }));
        }
        rows.push(None);
    }
    let bars = || rows.iter().flatten();
    let panel = Panel {
        title: "Acknowledged adds that were lost".to_owned(),
        unit: "percent of all that were acknowledged; shorter is better".to_owned(),
        full: bars().map(|bar| bar.value).fold(5.0, f64::max),
        names: room(bars().map(|bar| bar.name.as_str())),
        rows,
    };
    let mut canvas = Canvas::new(WIDE, panel.height());
    panel.draw(&mut canvas, (0.0, 4.0), WIDE);
    canvas
}
