//! From an act to a scene: the lanes from top to bottom, then the axis.
//!
//! ```text
//! labels of grants and ends            ┐
//! ━━━━━ token 1 ━━━━━┥  ━━━ token 2 ━━ ┘ lock service: what is true
//! ━━━ believes it holds ━━━╱╱╱╱╱╱╱╱╱╱╱   client: what it believes; ╱ = belief without a lease
//! ──────▒▒▒ paused ▒▒▒──────             client: whether it runs
//! ────✓────✓──────────✕──────────────    resource: verdicts, labels, the fence's steps, the content
//! 0        1 s        2 s                axis
//! ```

mod authority;
mod client;
mod messages;
mod resource;
mod ruler;

use super::axis::Axis;
use super::geometry::{ROW, Rect, TEXT, shortened, text_width};
use super::model::{Act, Event, Lane, Role};
use super::scene::{Label, Layer, Run, Scene, Shape, Wish, slots, width};
use super::spans::{clients, describe, instants, lane_label};

/// Width of the plot.
pub(super) const PLOT: f64 = 1110.0;
/// Width of the gutter.
pub(super) const GUTTER: f64 = 130.0;
/// Space left of the axis.
const MARGIN: f64 = 14.0;
/// Space right of the axis, for the words on what comes last.
const ROOM: f64 = 60.0;
/// Space between lanes.
const LANE_GAP: f64 = 14.0;

/// The heights that messages run between.
#[derive(Clone, Debug, Default)]
struct Rails {
    /// The lower edge of the lock service's bar.
    authority: f64,
    /// Each client's line of life, in lane order.
    clients: Vec<f64>,
    /// For each client, the top of the next free row for words on delayed messages.
    delays: Vec<f64>,
    /// The upper edge of each client's bar of belief.
    beliefs: Vec<f64>,
    /// The resource's line.
    resource: f64,
}

/// A scene under construction.
struct Layout<'a> {
    /// What is drawn.
    act: &'a Act,
    /// Its client lanes.
    clients: Vec<Lane>,
    /// Where time is.
    axis: Axis,
    /// What is finished.
    scene: Scene,
    /// Where messages run.
    rails: Rails,
    /// The height reached so far.
    y: f64,
}

/// Lays out one act.
pub(super) fn scene(act: &Act) -> Scene {
    let titles = act.events.iter().map(describe).collect();
    let mut layout = Layout {
        act,
        clients: clients(act),
        axis: Axis::new(&act.events, MARGIN, PLOT - ROOM),
        scene: Scene {
            width: PLOT,
            titles,
            ..Scene::default()
        },
        rails: Rails::default(),
        y: 4.0,
    };
    layout.authority();
    for index in 0..layout.clients.len() {
        layout.client(index);
    }
    layout.resource();
    layout.messages();
    layout.ruler();
    layout.scene.height = layout.y;
    layout.scene
}

impl Layout<'_> {
    /// The colour class of a client: `c0` to `c3`, by lane.
    fn colour(&self, client: &str) -> String {
        format!(
            "c{}",
            self.clients
                .iter()
                .position(|lane| lane.id == client)
                .unwrap_or(0)
                % 4
        )
    }

    /// A span of time in pixels, open to the right edge without an end, empty if it ends before it begins.
    fn span(&self, from_ms: f64, to_ms: Option<f64>) -> (f64, f64) {
        let left = self.axis.x(from_ms);
        (left, to_ms.map_or(PLOT, |end| self.axis.x(end).max(left)))
    }

    /// Closes a lane that began at `top`: its background and its name at `middle`.
    fn close_lane(&mut self, top: f64, middle: f64, name: &str, class: &str) {
        let height = self.y - top;
        self.scene.mark(
            None,
            Layer::Lane,
            Shape::Rect(Rect::new(0.0, top, PLOT, height), 0.0),
            "lane",
        );
        self.scene.lanes.push((top, height));
        let lines = wrapped(name, GUTTER - 18.0);
        let first = middle - (lines.len() as f64 - 1.0) * 8.0;
        for (index, line) in lines.into_iter().enumerate() {
            let run = Run::Text(line, format!("strong {class}"));
            let rect = Rect::new(
                10.0,
                first + index as f64 * 16.0 - TEXT * 0.6,
                width(std::slice::from_ref(&run)),
                TEXT * 1.2,
            );
            self.scene.gutter.push(Label {
                event: None,
                rect,
                runs: vec![run],
                leader: None,
            });
        }
        self.y += LANE_GAP;
    }

    /// Places labels below the current height and moves it past them.
    fn labels_below(&mut self, wishes: Vec<Wish>) {
        let (places, rows) = slots(&wishes, (MARGIN, PLOT - 4.0));
        self.scene.place(wishes, &places, self.y, false);
        self.y += rows as f64 * ROW;
    }

    /// Writes text into a bar if one of the wordings fits: the one that the fewest messages cross, of equals the first.
    /// Says whether one did.
    fn bar_text(
        &mut self,
        event: usize,
        bar: Rect,
        wordings: &[String],
        class: &str,
        traffic: &[f64],
    ) -> bool {
        let wide = |text: &str| text_width(text, TEXT) * 1.08 + 8.0;
        let fitting = wordings.iter().filter(|text| wide(text) + 8.0 <= bar.w);
        let placed = fitting.map(|text| {
            (
                text,
                calm(bar.x + 6.0, bar.right() - wide(text), wide(text), traffic),
            )
        });
        let best = placed.min_by_key(|(text, x)| crossed(*x, wide(text), traffic));
        let Some((text, x)) = best else { return false };
        let area = Rect::new(x, bar.y, wide(text), bar.h);
        // Bars that overlap in time share their height; the second one is told elsewhere.
        let free = self
            .scene
            .labels
            .iter()
            .all(|label| !label.rect.overlaps(&area));
        if free {
            self.scene.text(Some(event), x, bar.middle(), text, class);
        }
        free
    }

    /// Where messages cross the lane of the client with this index: requests from there or below, operations from above.
    fn traffic(&self, lane: usize) -> Vec<f64> {
        let rank = |client: &str| {
            self.clients
                .iter()
                .position(|lane| lane.id == client)
                .unwrap_or(0)
        };
        let passing = self.act.events.iter().filter(|event| match event {
            Event::Request(request) => rank(&request.message.client) >= lane,
            Event::Operation(operation) => rank(&operation.message.client) < lane,
            _ => false,
        });
        passing
            .flat_map(instants)
            .map(|ms| self.axis.x(ms))
            .collect()
    }

    /// The label of the lane with this role.
    fn lane_name(&self, role: Role, default: &str) -> String {
        lane_label(self.act, role, default)
    }
}

/// Breaks text at spaces (not at no-break spaces) into lines of at most this width, where it can.
pub(super) fn wrapped(text: &str, limit: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if text_width(&format!("{line} {word}"), TEXT) <= limit => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(shortened(word, limit)),
        }
    }
    lines
}

/// The leftmost start from `first` to `last` at which a text of this width has the least traffic across it.
fn calm(first: f64, last: f64, wide: f64, traffic: &[f64]) -> f64 {
    let steps = ((last - first) / 8.0).max(0.0) as usize;
    let starts = (0..=steps).map(|step| first + step as f64 * 8.0);
    starts
        .min_by_key(|x| crossed(*x, wide, traffic))
        .unwrap_or(first)
}

/// How many messages cross a text of this width that starts at `x`.
fn crossed(x: f64, wide: f64, traffic: &[f64]) -> usize {
    traffic
        .iter()
        .filter(|at| (x - 4.0..x + wide).contains(at))
        .count()
}

/// A label of plain text.
fn said(event: usize, x: f64, y: f64, text: String, class: &str) -> Wish {
    Wish {
        event: Some(event),
        x,
        y,
        runs: vec![Run::Text(text, class.to_owned())],
    }
}
