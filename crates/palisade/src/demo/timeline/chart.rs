//! Turns an act into a chart: lanes from top to bottom, then the same steps on an axis to scale.
//!
//! ```text
//! lock service │ ━━ lease of A ━━━━━━━━━━━━━━┥━━ lease of B ━━┥
//! client A     │ ━━ believes ━━━━━━━━━━━━━━━━╱╱ still believes ╱╱
//!              │   ▒▒ paused ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
//! client B     │        ┄┄ waits ┄┄┄┄┄┄┄┄┄┄┄━━ believes ━━━━━━
//! resource     │ ─○──○──────────────────────○────○───────⚠────  each sign has its label below it
//!              │ nothing ───────────────────────│ B ────│ A – B is gone
//! time         │ \  \ …           steps in order, connected to an axis to scale
//! ```
//!
//! On one machine a message takes a fraction of a millisecond and a lease takes seconds, so the lanes show steps in
//! order, each as far from the next as their texts need. The axis makes this room, so no label has to move.

use palisade_draw::axis::{Linear, Room, Steps, tracks};
use palisade_draw::timeline::Sign;
use palisade_draw::{Anchor, Canvas, Font, Layer, Rect, Shape, width};

use super::model::{Act, Message, Ruling, TimelineEvent};
use super::spans::{BarStyle, PictureRow, PictureSpan, ResourceStep};
use super::words::{LONG_MS, describe, duration, in_flight, seconds};

/// Width of the column of lane names.
pub(super) const GUTTER: f64 = 112.0;
/// Minimum width of the lanes.
pub(super) const PLOT: f64 = 888.0;
const MARGIN: f64 = 12.0;
/// The minimum distance between two steps.
const GAP: f64 = 13.0;
/// Moments closer than this count as one step, ms.
const SAME_MS: f64 = 0.02;
/// Free space on both sides of a text in its bar.
const PAD: f64 = 8.0;
const LINE: f64 = 15.0;
/// The distance from a sign's centre to the middle of the first line of its label.
const BELOW: f64 = 18.0;

/// A laid-out act: the lane names, which stay in place when the lanes are scrolled, and the lanes.
pub(super) struct Chart {
    pub(super) names: Canvas,
    pub(super) lanes: Canvas,
}

struct Layout<'a> {
    act: &'a Act,
    axis: Steps,
    names: Canvas,
    lanes: Canvas,
    /// The height reached so far.
    y: f64,
    /// The upper and lower edge of the bar of each row and track drawn so far.
    rows: Vec<(PictureRow, f64, f64)>,
    /// The vertical position of the resource's signs.
    signs: f64,
}

/// Lays out one act.
pub(super) fn chart(act: &Act) -> Chart {
    let (spans, steps) = (act.spans(), act.steps());
    let axis = axis(act, &spans, &steps);
    let right = axis.steps().last().map_or(0.0, |step| step.1) + MARGIN;
    let mut lanes = Canvas::new(right.max(PLOT), 0.0);
    for event in &act.events {
        lanes.note(describe(event));
    }
    let names = Canvas::new(GUTTER, 0.0);
    let (y, rows, signs) = (0.0, Vec::new(), 0.0);
    let mut layout = Layout {
        act,
        axis,
        names,
        lanes,
        y,
        rows,
        signs,
    };
    layout.lane("lock service", "", |layout| {
        layout.bars(&spans, &[PictureRow::Lease])
    });
    for (number, client) in act.clients().into_iter().enumerate() {
        layout.lane(
            &format!("client {client}"),
            &format!("c{}", number % 4),
            |layout| {
                let rows = [
                    PictureRow::Both(number),
                    PictureRow::Belief(number),
                    PictureRow::Pause(number),
                    PictureRow::Network(number),
                ];
                layout.bars(&spans, &rows);
            },
        );
    }
    layout.resource(&spans, &steps);
    layout.messages();
    layout.ends();
    layout.time();
    layout.finish()
}

/// The axis of steps, with room for every text.
fn axis(act: &Act, spans: &[PictureSpan], steps: &[ResourceStep<'_>]) -> Steps {
    let end = act.end();
    let mut moments: Vec<f64> = spans.iter().flat_map(|span| [span.from, span.to]).collect();
    moments.extend(steps.iter().map(|step| step.at));
    // Starts a little before the first moment, so that its label has room on both sides.
    let first = moments
        .iter()
        .copied()
        .filter(|at| at.is_finite())
        .fold(0.0, f64::min)
        - 1.0;
    moments.extend([first, end]);
    let mut rooms: Vec<Room> = spans
        .iter()
        .map(|span| Room {
            from: span.from,
            to: span.to,
            width: width(&span.words, Font::SmallStrong) + 2.0 * PAD,
        })
        .collect();
    let half = |step: &ResourceStep<'_>| label_width(step) / 2.0 + 5.0;
    for pair in steps.windows(2) {
        rooms.push(Room {
            from: pair[0].at,
            to: pair[1].at,
            width: half(&pair[0]) + half(&pair[1]),
        });
    }
    rooms.extend(steps.first().map(|step| Room {
        from: first,
        to: step.at,
        width: half(step),
    }));
    rooms.extend(steps.last().map(|step| Room {
        from: step.at,
        to: end,
        width: half(step),
    }));
    Steps::new(moments, SAME_MS, (MARGIN, PLOT - 2.0 * MARGIN), GAP, &rooms)
}

fn label_width(step: &ResourceStep<'_>) -> f64 {
    let lines = step.lines.iter().map(|line| width(line, Font::SmallStrong));
    lines.fold(0.0, f64::max)
}

impl Layout<'_> {
    /// A lane: a background, a name in front, and the output of `draw`.
    fn lane(&mut self, name: &str, class: &str, draw: impl FnOnce(&mut Self)) {
        let top = self.y;
        self.y += 8.0;
        draw(self);
        let height = self.y + 4.0 - top;
        for canvas in [&mut self.lanes, &mut self.names] {
            canvas.about(None);
            let lane = Rect::new(0.0, top, canvas.width, height);
            canvas.rect(Layer::Ground, lane, 0.0, "lane");
        }
        self.name(top + 21.0, Font::Strong, name, class);
        self.y = top + height + 6.0;
    }

    fn name(&mut self, y: f64, font: Font, name: &str, class: &str) {
        let name = palisade_draw::shortened(name, GUTTER - 12.0, font);
        self.names.text((8.0, y), Anchor::Start, font, &name, class);
    }

    /// The bars of these rows.
    fn bars(&mut self, spans: &[PictureSpan], rows: &[PictureRow]) {
        for row in rows {
            let own: Vec<&PictureSpan> = spans.iter().filter(|span| span.row == *row).collect();
            let times: Vec<(f64, f64)> = own.iter().map(|span| (span.from, span.to)).collect();
            let tracks = tracks(&times);
            for track in 0..tracks.iter().map(|track| track + 1).max().unwrap_or(0) {
                let height = if matches!(
                    row,
                    PictureRow::Pause(_) | PictureRow::Network(_) | PictureRow::Both(_)
                ) {
                    19.0
                } else {
                    25.0
                };
                self.rows.push((*row, self.y, self.y + height));
                let on_track = own
                    .iter()
                    .zip(&tracks)
                    .filter(|(_, known)| **known == track);
                for (span, _) in on_track {
                    self.bar(span, height);
                }
                self.y += height + 4.0;
            }
        }
    }

    fn bar(&mut self, span: &PictureSpan, height: f64) {
        let (left, right) = (self.axis.x(span.from), self.axis.x(span.to));
        let bar = Rect::new(left, self.y, (right - left).max(2.0), height);
        let client = match span.row {
            PictureRow::Belief(number) => number,
            PictureRow::Lease => self.act.events[span.event]
                .client()
                .map_or(0, |id| self.act.number(id)),
            _ => 0,
        };
        let (class, font) = match span.style {
            BarStyle::Lease => (format!("tint-c{}", client % 4), Font::SmallStrong),
            BarStyle::Belief => (format!("tint-c{}", client % 4), Font::Small),
            BarStyle::Gap => ("gap".to_owned(), Font::SmallStrong),
            BarStyle::Wait => ("wait".to_owned(), Font::Small),
            BarStyle::Pause => ("pause".to_owned(), Font::Small),
            BarStyle::Network => ("network".to_owned(), Font::Small),
            BarStyle::Both => ("both".to_owned(), Font::SmallStrong),
            BarStyle::Fence => ("fence".to_owned(), Font::Small),
            BarStyle::Content => ("content".to_owned(), Font::Small),
            BarStyle::Lost => ("lost".to_owned(), Font::SmallStrong),
        };
        self.lanes.about(Some(span.event));
        let corner = if matches!(
            span.style,
            BarStyle::Lease | BarStyle::Belief | BarStyle::Gap
        ) {
            3.0
        } else {
            0.0
        };
        self.lanes.rect(Layer::Bar, bar, corner, class.clone());
        if matches!(span.style, BarStyle::Gap | BarStyle::Pause) {
            self.lanes
                .hatch(Layer::Bar, bar, 7.0, format!("{class}-hatch"));
        }
        if let (BarStyle::Both, Some(upper)) = (
            span.style,
            self.row(|row| matches!(row, PictureRow::Belief(_))),
        ) {
            let band = Rect::new(left, upper.1, right - left, bar.y - upper.1);
            self.lanes.rect(Layer::Ground, band, 0.0, "both-band");
        }
        // Moments of one step leave no room for text; a tooltip shows it.
        if width(&span.words, font) <= bar.w {
            let ink = if span.style == BarStyle::Lost {
                "bad"
            } else {
                ""
            };
            self.lanes.text_within(bar, font, &span.words, ink);
        }
    }

    /// The last row of this kind: its upper and lower edge.
    fn row(&self, wanted: impl Fn(&PictureRow) -> bool) -> Option<(f64, f64)> {
        let mut rows = self.rows.iter().rev();
        rows.find(|(row, ..)| wanted(row))
            .map(|(_, top, bottom)| (*top, *bottom))
    }

    fn resource(&mut self, spans: &[PictureSpan], steps: &[ResourceStep<'_>]) {
        let top = self.y;
        self.lane("resource", "", |layout| {
            layout.signs = layout.y + 14.0;
            let (left, right) = (MARGIN, layout.lanes.width - MARGIN);
            layout.lanes.about(None);
            layout.lanes.line(
                Layer::Ground,
                (left, layout.signs),
                (right, layout.signs),
                "life",
            );
            let spots: Vec<(f64, f64)> = steps
                .iter()
                .map(|step| (layout.axis.x(step.at), label_width(step) / 2.0 + 2.0))
                .map(|(x, half)| (x - half, x + half))
                .collect();
            let tracks = tracks(&spots);
            let lines = steps.iter().map(|step| step.lines.len()).max().unwrap_or(1);
            let tall = lines as f64 * LINE + 6.0;
            for (step, track) in steps.iter().zip(&tracks) {
                layout.step(step, *track as f64 * tall);
            }
            layout.y = layout.signs
                + 12.0
                + tall
                    * tracks
                        .iter()
                        .map(|track| track + 1)
                        .max()
                        .unwrap_or(1)
                        .max(1) as f64;
            for (row, name) in [
                (PictureRow::Fence, "highest token"),
                (PictureRow::Content, "the list holds"),
            ] {
                let top = layout.y;
                layout.bars(spans, &[row]);
                if layout.y > top {
                    layout.name(top + 12.5, Font::Small, name, "soft");
                }
            }
        });
        self.name(top + 38.0, Font::Small, self.act.name.resource(), "soft");
    }

    /// A sign on the line, and the label below it.
    fn step(&mut self, step: &ResourceStep<'_>, lower: f64) {
        let x = self.axis.x(step.at);
        self.lanes.about(Some(step.event));
        let rejected = matches!(step.operation.verdict, Some(Ruling::Rejected(_)));
        for (shape, class) in sign(step.operation.verdict, step.is_dangerous, (x, self.signs)) {
            self.lanes.mark(Layer::Sign, shape, class);
        }
        let client = format!("c{}", self.act.number(&step.operation.message.client) % 4);
        for (number, line) in step.lines.iter().enumerate() {
            let class = match (step.is_dangerous, rejected, number) {
                (true, ..) => "bad",
                (_, true, 1..) => "good",
                (_, _, 0) => &client,
                _ => "",
            };
            let font = if step.is_dangerous || rejected || number == 0 {
                Font::SmallStrong
            } else {
                Font::Small
            };
            let at = (x, self.signs + lower + BELOW + LINE * number as f64);
            self.lanes.text(at, Anchor::Middle, font, line, class);
        }
    }

    /// Messages and their answers, as arrows behind the bars.
    fn messages(&mut self) {
        let lease = self
            .row(|row| *row == PictureRow::Lease)
            .map_or(0.0, |row| row.1);
        for (event, entry) in self.act.events.iter().enumerate() {
            self.lanes.about(Some(event));
            match entry {
                TimelineEvent::Request(request) => {
                    let belief = PictureRow::Belief(self.act.number(&request.message.client));
                    let near = self.row(|row| *row == belief).map_or(lease, |row| row.0);
                    self.message(&request.message, near, lease + 1.0, "message");
                }
                TimelineEvent::Operation(operation) => {
                    let number = self.act.number(&operation.message.client);
                    let row = match in_flight(&operation.message) {
                        Some(_) => PictureRow::Network(number),
                        None => PictureRow::Belief(number),
                    };
                    let near = self.row(|known| *known == row).map_or(lease, |row| row.1);
                    let class = if self.act.is_dangerous(operation) {
                        "message danger"
                    } else {
                        "message"
                    };
                    self.message(&operation.message, near, self.signs - 9.0, class);
                }
                _ => {}
            }
        }
    }

    fn message(&mut self, message: &Message, near: f64, far: f64, class: &str) {
        let client = format!("line-c{}", self.act.number(&message.client) % 4);
        let there = message.arrived_ms.or(message.decided_ms);
        let back = message.decided_ms.or(message.arrived_ms);
        // A delayed message has a bar of its own, and its arrow starts at the end of the bar.
        let sent = in_flight(message).and(there).or(message.sent_ms).or(there);
        if let Some(sent) = sent {
            let from = (self.axis.x(sent), near);
            // The sign stands where the resource decided; a request that waits is decided much later.
            let quick = back
                .zip(there)
                .is_some_and(|(back, there)| back - there < LONG_MS);
            let end = if quick { back } else { there };
            let to = end.map_or((from.0 + 16.0, (near + far) / 2.0), |ms| {
                (self.axis.x(ms), far)
            });
            self.arrow(from, to, &format!("{client} {class}"));
        }
        if let (Some(from), Some(to)) = (back, message.answered_ms) {
            self.arrow(
                (self.axis.x(from), far),
                (self.axis.x(to), near),
                &format!("{client} answer"),
            );
        }
    }

    /// A line with an arrowhead.
    fn arrow(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let size = if class.contains("danger") { 11.0 } else { 7.0 };
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy).max(1e-6);
        let (ux, uy) = (dx / length * size, dy / length * size);
        let (neck, wing) = ((to.0 - ux, to.1 - uy), (-uy * 0.45, ux * 0.45));
        self.lanes.line(Layer::Line, from, neck, class);
        let head = format!(
            "M{:.1} {:.1}L{:.1} {:.1}L{:.1} {:.1}Z",
            to.0,
            to.1,
            neck.0 + wing.0,
            neck.1 + wing.1,
            neck.0 - wing.0,
            neck.1 - wing.1
        );
        let fill = if class.contains("danger") {
            "head bad".to_owned()
        } else {
            format!("head {}", &class[5..7])
        };
        self.lanes.mark(Layer::Line, Shape::Path(head), fill);
    }

    /// The end of each lease, down to the resource: later operations happen without the lease.
    fn ends(&mut self) {
        let bottom = self.signs - 12.0;
        for (event, entry) in self.act.events.iter().enumerate() {
            if let TimelineEvent::Expired(lease) | TimelineEvent::Released(lease) = entry {
                let x = self.axis.x(lease.at_ms);
                self.lanes.about(Some(event));
                self.lanes.line(Layer::Ground, (x, 4.0), (x, bottom), "end");
            }
        }
        self.lanes.about(None);
    }

    /// The axis to scale.
    fn time(&mut self) {
        let (top, y) = (self.y - 4.0, self.y + 26.0);
        let ends = self.axis.steps();
        let (Some(first), Some(last)) = (ends.first().copied(), ends.last().copied()) else {
            return;
        };
        let scale = Linear {
            from: (first.0 + 1.0).min(0.0),
            to: last.0,
            left: first.1,
            right: last.1,
        };
        let mut moments: Vec<f64> = self
            .act
            .events
            .iter()
            .flat_map(TimelineEvent::instants)
            .collect();
        moments.retain(|ms| ends.iter().any(|step| (step.0 - ms).abs() < SAME_MS));
        for ms in moments {
            self.lanes.line(
                Layer::Ground,
                (self.axis.x(ms), top),
                (scale.x(ms), y),
                "fan",
            );
        }
        self.lanes
            .line(Layer::Bar, (scale.left, y), (scale.right, y), "axis");
        for tick in scale.ticks(90.0) {
            let x = scale.x(tick);
            self.lanes.line(Layer::Bar, (x, y), (x, y + 5.0), "axis");
            let words = match (tick == 0.0, last.0 >= 1_000.0) {
                (true, _) => "0".to_owned(),
                (false, true) => seconds(tick),
                (false, false) => duration(tick),
            };
            if x + width(&words, Font::Small) / 2.0 < self.lanes.width {
                self.lanes.text(
                    (x.max(6.0), y + 15.0),
                    Anchor::Middle,
                    Font::Small,
                    &words,
                    "soft",
                );
            }
        }
        self.name(top + 8.0, Font::Small, "steps in order", "soft");
        self.name(y + 2.0, Font::Small, "time, to scale", "soft");
        self.y = y + 26.0;
    }

    fn finish(mut self) -> Chart {
        (self.names.height, self.lanes.height) = (self.y, self.y);
        Chart {
            names: self.names,
            lanes: self.lanes,
        }
    }
}

/// The sign of a verdict, distinguished by shape as well as by colour.
pub(super) fn sign(
    verdict: Option<Ruling>,
    is_dangerous: bool,
    at: (f64, f64),
) -> Vec<(Shape, String)> {
    let sign = match verdict {
        _ if is_dangerous => Sign::Dangerous,
        Some(Ruling::Rejected(_)) => Sign::Rejected,
        Some(Ruling::Admitted) => Sign::Admitted,
        Some(Ruling::Unchecked) | None => Sign::Unchecked,
    };
    sign.shapes(at)
}
