//! The strategies as a picture: lost and rejected updates, and the time. Each is a panel with its own axis, because a
//! rejection is harmless: the worker starts again.

use palisade_draw::bars::{Bar, Panel, room};
use palisade_draw::style::sheet;
use palisade_draw::{Anchor, Canvas, Font};

use super::Outcome;
use super::contention::ArmResult;

const WIDTH: f64 = 1_000.0;
const EDGE: f64 = 20.0;
const COLUMN: f64 = 215.0;

/// One self-contained SVG.
pub(super) fn draw(rows: &[(&'static str, Outcome)], gate: &[ArmResult], machine: &str) -> String {
    drawing(rows, gate, machine).to_svg(
        &sheet(&[], ""),
        "What each strategy lost, what it rejected, and how long it took",
    )
}

/// A row of a table: its name and its figures, one per column.
type Row = (&'static str, [f64; 3]);

fn drawing(rows: &[(&'static str, Outcome)], gate: &[ArmResult], machine: &str) -> Canvas {
    let job: Vec<Row> = rows
        .iter()
        .map(|(name, outcome)| (*name, figures(outcome, outcome.millis / 1e3)))
        .collect();
    let crowd = gate
        .iter()
        .map(|passed| (passed.name, figures(&passed.outcome, passed.database_cpu)));
    let crowd: Vec<Row> = crowd.collect();
    let names = room(job.iter().chain(&crowd).map(|row| row.0));
    let mut canvas = Canvas::new(WIDTH.max(names + 3.0 * COLUMN + 2.0 * EDGE), 0.0);
    let title = "Which updates does each strategy lose?";
    canvas.text((EDGE, 30.0), Anchor::Start, Font::Heading, title, "");
    let y = table(
        &mut canvas,
        names,
        52.0,
        &job,
        ["seconds", "for the whole job"],
    );
    let title = "Contention: a crowd adds to one row. These axes are not those above.";
    canvas.text((EDGE, y + 18.0), Anchor::Start, Font::Heading, title, "");
    let y = table(
        &mut canvas,
        names,
        y + 40.0,
        &crowd,
        ["database CPU", "seconds"],
    );
    canvas.text((EDGE, y + 8.0), Anchor::Start, Font::Small, machine, "soft");
    canvas.height = y + 24.0;
    canvas
}

fn figures(outcome: &Outcome, cost: f64) -> [f64; 3] {
    [outcome.lost as f64, outcome.rejected as f64, cost]
}

/// A panel for each column; returns the height reached.
fn table(canvas: &mut Canvas, names: f64, top: f64, rows: &[Row], cost: [&str; 2]) -> f64 {
    let columns = [
        ["acknowledged but lost", "additions"],
        ["rejected, then repeated", "writes; harmless"],
        cost,
    ];
    let (mut reached, offset) = (top, names);
    for (column, [title, unit]) in columns.into_iter().enumerate() {
        let bar = |(name, figures): &Row| {
            let value = figures[column];
            Some(Bar {
                name: if column == 0 {
                    (*name).to_owned()
                } else {
                    String::new()
                },
                value,
                words: if column == 2 {
                    format!("{value:.1} s")
                } else {
                    format!("{value}")
                },
                class: if column == 0 { "bad" } else { "grey" },
                range: None,
            })
        };
        let names = if column == 0 { names } else { 0.0 };
        let panel = Panel {
            title: title.to_owned(),
            unit: unit.to_owned(),
            rows: rows.iter().map(bar).collect(),
            full: rows.iter().map(|row| row.1[column]).fold(10.0, f64::max),
            names,
        };
        let left = match column {
            0 => EDGE,
            column => EDGE + offset + column as f64 * COLUMN,
        };
        panel.draw(canvas, (left, top), COLUMN - 24.0 + names);
        reached = top + panel.height();
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lost: u64, rejected: u64) -> Outcome {
        Outcome {
            acknowledged: 200,
            rejected,
            lost,
            millis: 8_100.0,
        }
    }

    fn canvas() -> Canvas {
        let rows = [
            ("Palisade lock, claim + conditional write", outcome(0, 19)),
            ("no lock, no fence", outcome(174, 0)),
            ("no lock, conditional write on a version", outcome(0, 768)),
        ];
        let name = "conditional write alone";
        let gate = [ArmResult {
            name,
            outcome: outcome(0, 16_782),
            database_cpu: 11.6,
        }];
        drawing(&rows, &gate, "4 cores")
    }

    #[test]
    fn a_rejection_is_never_drawn_as_a_loss() {
        let bars = canvas().marks;
        let wide = |class: &str| {
            let own = bars.iter().filter(|mark| mark.class == class);
            let shapes = own.map(|mark| match mark.shape {
                palisade_draw::Shape::Rect(rect, _) => rect.w,
                _ => 0.0,
            });
            shapes.filter(|wide| *wide > 0.0).count()
        };
        assert_eq!(wide("bad"), 1, "one strategy lost something");
        assert_eq!(wide("grey"), 7, "three rejected, four took time");
    }

    #[test]
    fn every_panel_has_an_axis_with_figures_and_no_texts_overlap() {
        let canvas = canvas();
        assert_eq!(canvas.problems(), Vec::<String>::new());
        let zeros = canvas
            .texts
            .iter()
            .filter(|text| text.text == "0" && text.anchor == Anchor::Middle);
        assert_eq!(zeros.count(), 6);
        assert!(
            canvas
                .texts
                .iter()
                .any(|text| text.text.contains("not those above"))
        );
    }
}
