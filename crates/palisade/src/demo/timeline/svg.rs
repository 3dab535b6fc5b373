//! Scenes written down as SVG. The only place, with `html`, where text meets markup: everything passes [`escape`].

use std::fmt::Write as _;

use super::geometry::{ROW, Rect, TEXT, text_width};
use super::layout::{GUTTER, PLOT, scene, wrapped};
use super::legend;
use super::model::{Act, Outcome, Verdict};
use super::scene::{Label, Mark, Run, Scene, Shape, leader_end, width};
use super::{sign, style};

/// The sentence that Palisade says first.
pub(super) const MESSAGE: &str = "No lock service can stop two processes from both believing they hold a lock. \
    The lease saves work; the fence keeps data safe.";
/// The outer margin of the stacked picture.
const MARGIN: f64 = 20.0;

/// One self-contained SVG with the legend and all acts, one below the other.
#[must_use]
pub(crate) fn svg(acts: &[Act]) -> String {
    let mut body = String::new();
    let mut y = MARGIN + 22.0;
    heading(
        &mut body,
        y,
        "What happens to a paused lock holder’s late write",
        "h1",
    );
    y += 28.0;
    heading(&mut body, y, MESSAGE, "");
    y = legend_block(&mut body, y + 16.0) + 22.0;
    for act in acts {
        y = act_block(&mut body, act, y);
    }
    let (w, h) = (GUTTER + PLOT + 2.0 * MARGIN, y);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tl\" viewBox=\"0 0 {w:.0} {h:.0}\" width=\"{w:.0}\" \
         height=\"{h:.0}\" role=\"img\" aria-label=\"{}\"><style>{}</style><rect class=\"paper\" width=\"{w:.0}\" \
         height=\"{h:.0}\"/>{body}</svg>\n",
        escape(MESSAGE),
        style::sheet()
    )
}

/// One act with heading, explanation, chart and verdict; returns the height reached.
fn act_block(body: &mut String, act: &Act, top: f64) -> f64 {
    let mut y = top + 20.0;
    heading(body, y, &act.title, "h2");
    for line in wrapped(&act.explanation, GUTTER + PLOT) {
        y += 20.0;
        heading(body, y, &line, "");
    }
    y += 14.0;
    let scene = scene(act);
    // Writing to a String cannot fail; the same holds below.
    let _ = write!(
        body,
        "<g transform=\"translate({MARGIN} {y:.1})\">{}</g>",
        gutter(&scene)
    );
    let _ = write!(
        body,
        "<g transform=\"translate({:.1} {y:.1})\">{}</g>",
        MARGIN + GUTTER,
        plot(&scene)
    );
    panel(body, &act.verdict, y + scene.height + 6.0) + 34.0
}

/// A line of text on the page, its baseline at `y`.
fn heading(body: &mut String, y: f64, text: &str, class: &str) {
    let _ = write!(
        body,
        "<text class=\"page {class}\" x=\"{MARGIN}\" y=\"{y:.1}\">{}</text>",
        escape(text)
    );
}

/// The legend, flowing over as many lines as it needs; returns the height reached.
fn legend_block(body: &mut String, top: f64) -> f64 {
    let (mut x, mut y) = (MARGIN, top);
    for item in legend::items() {
        let wide = legend::BOX.0 + 8.0 + text_width(item.words, TEXT) + 18.0;
        if x > MARGIN && x + wide > GUTTER + PLOT + 2.0 * MARGIN {
            (x, y) = (MARGIN, y + 24.0);
        }
        let _ = write!(body, "<g transform=\"translate({x:.1} {y:.1})\">");
        item.marks
            .iter()
            .for_each(|mark| write_shape(body, &mark.shape, &mark.class));
        let words = escape(item.words);
        let _ = write!(
            body,
            "<text class=\"page\" x=\"{:.1}\" y=\"13.5\">{words}</text></g>",
            legend::BOX.0 + 8.0
        );
        x += wide;
    }
    y + 24.0
}

/// The verdict as a panel; returns the height reached.
fn panel(body: &mut String, verdict: &Verdict, top: f64) -> f64 {
    let area = Rect::new(MARGIN, top, GUTTER + PLOT, 62.0);
    let (class, sign) = panel_class(verdict.outcome());
    write_shape(body, &Shape::Rect(area, 6.0), class);
    for (shape, class) in sign::shapes(sign, (MARGIN + 20.0, top + 19.0)) {
        write_shape(body, &shape, &class);
    }
    let headline = escape(&verdict.headline());
    let (x, y) = (MARGIN + 36.0, top + 24.0);
    let _ = write!(
        body,
        "<text class=\"h3 panel-text\" x=\"{x:.1}\" y=\"{y:.1}\">{headline}</text>"
    );
    let runs = evidence(verdict);
    let rect = Rect::new(MARGIN + 14.0, top + 36.0, width(&runs), ROW - 2.0);
    write_label(
        body,
        &Label {
            event: None,
            rect,
            runs,
            leader: None,
        },
    );
    area.bottom()
}

/// The class and the sign of a verdict's panel.
pub(super) fn panel_class(outcome: Outcome) -> (&'static str, super::scene::Sign) {
    match outcome {
        Outcome::Lost => ("lost-panel", super::scene::Sign::Reject),
        Outcome::Kept => ("kept-panel", super::scene::Sign::Admit),
        Outcome::Incomplete => ("incomplete-panel", super::scene::Sign::Unknown),
    }
}

/// The evidence of a verdict: what was acknowledged, what is there, what is missing.
fn evidence(verdict: &Verdict) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut list = |title: &str, items: Vec<String>, class: &str| {
        runs.push(Run::Text(title.to_owned(), "panel-text".to_owned()));
        if items.is_empty() {
            runs.push(Run::Text("none".to_owned(), "panel-text".to_owned()));
        }
        runs.extend(
            items
                .into_iter()
                .map(|item| Run::Chip(item, class.to_owned())),
        );
        runs.push(Run::Text("   ".to_owned(), "panel-text".to_owned()));
    };
    let named = |updates: Vec<&super::model::Update>| {
        updates.iter().map(|update| update.item.clone()).collect()
    };
    list(
        "acknowledged:",
        named(verdict.acknowledged.iter().collect()),
        "chip",
    );
    list(
        "rejected:",
        named(verdict.rejected.iter().collect()),
        "chip",
    );
    list("final content:", verdict.content.clone(), "chip");
    list("acknowledged but gone:", named(verdict.lost()), "chip gone");
    runs
}

/// The plot of a scene: shapes by layer, then labels.
pub(super) fn plot(scene: &Scene) -> String {
    let mut out = String::new();
    let mut marks: Vec<&Mark> = scene.marks.iter().collect();
    marks.sort_by_key(|mark| mark.layer);
    for group in marks.chunk_by(|a, b| (a.layer, a.event) == (b.layer, b.event)) {
        open_event(&mut out, scene, group.first().and_then(|mark| mark.event));
        group
            .iter()
            .for_each(|mark| write_shape(&mut out, &mark.shape, &mark.class));
        out.push_str("</g>");
    }
    scene
        .labels
        .iter()
        .for_each(|label| write_leader(&mut out, label));
    for label in &scene.labels {
        open_event(&mut out, scene, label.event);
        write_label(&mut out, label);
        out.push_str("</g>");
    }
    out
}

/// The gutter of a scene: lane backgrounds and names.
pub(super) fn gutter(scene: &Scene) -> String {
    let mut out = String::new();
    for (y, h) in &scene.lanes {
        write_shape(
            &mut out,
            &Shape::Rect(Rect::new(0.0, *y, GUTTER, *h), 0.0),
            "lane",
        );
    }
    scene
        .gutter
        .iter()
        .for_each(|label| write_label(&mut out, label));
    out
}

/// Opens a group; one that shows an event carries its index and, on hovering, its sentence.
fn open_event(out: &mut String, scene: &Scene, event: Option<usize>) {
    match event.and_then(|index| Some((index, scene.titles.get(index)?))) {
        Some((index, title)) => {
            let _ = write!(
                out,
                "<g data-event=\"{index}\"><title>{}</title>",
                escape(title)
            );
        }
        None => out.push_str("<g>"),
    }
}

/// Writes a shape.
pub(super) fn write_shape(out: &mut String, shape: &Shape, class: &str) {
    let _ = match shape {
        Shape::Line(a, b) => write!(
            out,
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            a.0, a.1, b.0, b.1
        ),
        Shape::Rect(r, corner) => write!(
            out,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"{corner:.1}\"/>",
            r.x,
            r.y,
            r.w.max(0.0),
            r.h.max(0.0)
        ),
        Shape::Path(data) => write!(out, "<path class=\"{class}\" d=\"{data}\"/>"),
    };
}

/// Writes the leader line of a label.
fn write_leader(out: &mut String, label: &Label) {
    let Some(anchor) = label.leader else { return };
    let (bend, end) = leader_end(label, anchor);
    let _ = write!(
        out,
        "<path class=\"leader\" d=\"M{:.1} {:.1}L{:.1} {:.1}L{:.1} {:.1}\"/>",
        anchor.0, anchor.1, bend.0, bend.1, end.0, end.1
    );
}

/// Writes the runs of a label from left to right.
pub(super) fn write_label(out: &mut String, label: &Label) {
    let mut x = label.rect.x;
    let middle = label.rect.middle();
    for run in &label.runs {
        match run {
            Run::Text(text, class) if class == "tick" || class == "stretch" => {
                write_text(
                    out,
                    (label.rect.x + label.rect.w / 2.0, middle),
                    text,
                    class,
                    true,
                );
            }
            Run::Text(text, class) => write_text(out, (x + 2.0, middle), text, class, false),
            Run::Chip(text, class) => write_chip(
                out,
                Rect::new(x, middle - 8.0, run.width() - 4.0, 16.0),
                text,
                class,
            ),
            Run::Sign(sign) => {
                for (shape, class) in sign::shapes(*sign, (x + 9.0, middle)) {
                    write_shape(out, &shape, &class);
                }
            }
        }
        x += run.width();
    }
}

/// Writes text at a point, vertically centred.
fn write_text(out: &mut String, (x, middle): (f64, f64), text: &str, class: &str, centred: bool) {
    let anchor = if centred {
        " text-anchor=\"middle\""
    } else {
        ""
    };
    let y = middle + TEXT * 0.35;
    let text = escape(text);
    let _ = write!(
        out,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{text}</text>"
    );
}

/// Writes a chip; one that is gone is struck out.
fn write_chip(out: &mut String, area: Rect, text: &str, class: &str) {
    write_shape(out, &Shape::Rect(area, 8.0), class);
    let gone = class.contains("gone");
    let inner = if gone { "in-chip in-gone" } else { "in-chip" };
    write_text(
        out,
        (area.x + area.w / 2.0, area.middle()),
        text,
        inner,
        true,
    );
    if gone {
        let (left, right) = (
            (area.x + 4.0, area.bottom() - 3.0),
            (area.right() - 4.0, area.y + 3.0),
        );
        write_shape(out, &Shape::Line(left, right), "strike");
    }
}

/// Makes text safe in XML and HTML, in content and in quoted attributes; what XML cannot carry becomes U+FFFD.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\t' | '\n' | '\r' => safe.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}
