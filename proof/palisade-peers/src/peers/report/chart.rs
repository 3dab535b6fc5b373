//! The report as a picture: a panel for each workload, a bar for each system.

use palisade_draw::bars::{Bar, Panel, room};
use palisade_draw::style::sheet;
use palisade_draw::{Anchor, Canvas, Font};

use super::markdown::short;
use super::{Report, Row, Spread};
use crate::measure::median;
use crate::peers::workload::{self, Workload};

const EDGE: f64 = 20.0;
const COLUMN: f64 = 490.0;

/// One self-contained SVG.
pub(super) fn draw(report: &Report) -> String {
    drawing(report).to_svg(&sheet(&[], ""), "Palisade compared with other systems")
}

fn drawing(report: &Report) -> Canvas {
    let panels: Vec<Panel> = workload::ALL
        .iter()
        .map(|workload| (workload, report.of(workload).0))
        .filter(|(_, rows)| !rows.is_empty())
        .map(|(workload, rows)| panel(workload, &rows))
        .collect();
    let mut canvas = Canvas::new(2.0 * COLUMN + EDGE, EDGE);
    for pair in panels.chunks(2) {
        for (column, panel) in pair.iter().enumerate() {
            let at = (EDGE + COLUMN * column as f64, canvas.height);
            panel.draw(&mut canvas, at, COLUMN - 2.0 * EDGE);
        }
        canvas.height += pair.iter().map(Panel::height).fold(0.0, f64::max) + 18.0;
    }
    canvas.text(
        (EDGE, canvas.height),
        Anchor::Start,
        Font::Small,
        &report.machine,
        "soft",
    );
    canvas.height += 20.0;
    canvas
}

fn figure(workload: &Workload, row: &Row) -> Spread {
    if workload.is_about_time() {
        row.spread(|sample| sample.p50)
    } else {
        row.spread(|sample| sample.per_second)
    }
}

fn panel(workload: &Workload, rows: &[&Row]) -> Panel {
    let spreads: Vec<Spread> = rows.iter().map(|row| figure(workload, row)).collect();
    let unit = if workload.is_about_time() {
        "median µs, shorter is better; line: min to max"
    } else {
        "per second, longer is better; line: min to max"
    };
    let bars = rows.iter().zip(&spreads).map(|(row, spread)| Bar {
        name: row.profile.name.to_owned(),
        value: spread.median,
        words: short(spread.median),
        class: if row.profile.is_palisade() {
            "good"
        } else {
            "grey"
        },
        range: Some((spread.least, spread.most)),
    });
    Panel {
        title: workload.title.to_owned(),
        unit: unit.to_owned(),
        rows: bars.map(Some).collect(),
        full: full(&spreads, workload.is_about_time()),
        names: room(rows.iter().map(|row| row.profile.name)),
    }
}

/// The value at the full width. A time much longer than the median is ignored and its bar is drawn broken, so that a
/// system that cannot keep up does not hide the others.
fn full(spreads: &[Spread], is_about_time: bool) -> f64 {
    const OUTLIER: f64 = 12.0;
    let limit = if is_about_time {
        OUTLIER * median(spreads.iter().map(|spread| spread.median).collect())
    } else {
        f64::INFINITY
    };
    spreads
        .iter()
        .flat_map(|spread| [spread.median, spread.most])
        .filter(|figure| *figure <= limit)
        .fold(f64::MIN_POSITIVE, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::load::Sample;
    use crate::peers::system;

    #[test]
    fn an_outlier_does_not_hide_the_others_and_a_fast_system_is_drawn_whole() {
        let spread = |median, most| Spread {
            least: median,
            median,
            most,
        };
        let times = [spread(2.0, 3.0), spread(1.0, 9.0), spread(800.0, 900.0)];
        assert_eq!(full(&times, true), 9.0);
        assert_eq!(full(&times, false), 900.0);
    }

    #[test]
    fn no_texts_overlap_with_all_systems_in_all_panels_and_an_outlier() {
        let all: (&'static [Workload], &'static [system::Profile]) = (&workload::ALL, &system::ALL);
        let mut rows = Vec::new();
        for workload in all.0 {
            for (number, profile) in all.1.iter().enumerate() {
                let sample = |factor: f64| Sample {
                    per_second: 98_765.4 * factor,
                    p50: 10_f64.powi(number as i32) * factor,
                    p99: 9.0,
                    p999: 9.0,
                    cpu: 9.0,
                    operations: 1,
                };
                rows.push(Row {
                    workload,
                    profile,
                    samples: vec![sample(1.0), sample(3.0)],
                    syncs: Ok(1.0),
                    failed: None,
                });
            }
        }
        let canvas = drawing(&Report {
            machine: "4 cores".to_owned(),
            command: String::new(),
            load: [String::new(), String::new()],
            restless: 0,
            rows,
            held: Vec::new(),
        });
        assert_eq!(canvas.problems(), Vec::<String>::new());
        let own = canvas.marks.iter().filter(|mark| mark.class == "good");
        assert_eq!(
            own.count(),
            3 * all.0.len(),
            "Palisade’s bars in each panel"
        );
    }
}
