//! Turns an act into lanes: the leases, each server's replica, and the servers that look-ups name; then the same
//! steps to scale.
//!
//! ```text
//! lock service │ ━━ a: token 2 ━━━━━━━━━━━┥━━ b: token 4 ━━━━━━━━━━━━━━━━┥
//! server a     │ ─○──○───────────────────────────────────────✗───────────  a sign for each mutation, with its label
//!              │ version 2: a1 ──────────────────────╱╱ stale ╱╱│ version 4: …
//!              │        ▒▒ paused ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
//! look-ups     │ a, b, c ────│ b ──────────│ b, c ─────────────│ a, b, c
//! time         │ \  \ …           steps in order, connected to an axis to scale
//! ```
//!
//! [`picture`](super::picture) and this module import each other: it draws charts, and says how wide they are.

use palisade_draw::axis::{Linear, Room, Steps, tracks};
use palisade_draw::timeline::Sign;
use palisade_draw::{Anchor, Canvas, Font, Layer, Rect, shortened, width};

use super::picture::spans::{Bar, BarStyle, LOCATED, Step};
use super::picture::{GUTTER, PLOT};

const MARGIN: f64 = 12.0;
/// The minimum distance between two steps.
const GAP: f64 = 13.0;
/// Moments closer than this count as one step, ms.
const SAME_MS: f64 = 0.5;
/// Free space on both sides of a text in its bar.
const PAD: f64 = 6.0;
const LINE: f64 = 15.0;
const BAR: f64 = 24.0;

/// The lanes of an act, and their names, which stand in front of them.
pub(super) struct Chart {
    pub(super) names: Canvas,
    pub(super) lanes: Canvas,
}

/// The content of the lanes.
pub(super) struct Lanes {
    pub(super) leases: Vec<Bar>,
    /// The servers, with the bars and the mutations of their replicas.
    pub(super) servers: Vec<(String, Vec<Bar>, Vec<Step>)>,
    pub(super) located: Vec<Bar>,
    /// The end of the picture, ms.
    pub(super) end: f64,
}

impl Lanes {
    fn bars(&self) -> impl Iterator<Item = &Bar> {
        let replicas = self.servers.iter().flat_map(|(_, bars, _)| bars);
        self.leases.iter().chain(replicas).chain(&self.located)
    }

    /// The axis of steps, with room for every text.
    fn axis(&self) -> Steps {
        let mut moments: Vec<f64> = self.bars().flat_map(|bar| [bar.from, bar.to]).collect();
        let steps = || self.servers.iter().map(|(_, _, steps)| steps);
        moments.extend(steps().flatten().map(|step| step.at));
        moments.push(self.end);
        let first = moments.iter().copied().fold(f64::MAX, f64::min) - 1.0;
        moments.push(first);
        let mut rooms: Vec<Room> = self
            .bars()
            .map(|bar| Room {
                from: bar.from,
                to: bar.to,
                width: width(&bar.words, Font::Small) + 2.0 * PAD,
            })
            .collect();
        for own in steps() {
            let edges = [None].into_iter().chain(own.iter().map(Some)).chain([None]);
            let edges: Vec<Option<&Step>> = edges.collect();
            for pair in edges.windows(2) {
                let half = |step: &Option<&Step>| step.map_or(0.0, label_width) / 2.0 + 4.0;
                rooms.push(Room {
                    from: pair[0].map_or(first, |step| step.at),
                    to: pair[1].map_or(self.end, |step| step.at),
                    width: half(&pair[0]) + half(&pair[1]),
                });
            }
        }
        Steps::new(moments, SAME_MS, (MARGIN, PLOT - 2.0 * MARGIN), GAP, &rooms)
    }
}

fn label_width(step: &Step) -> f64 {
    let lines = step.lines.iter().map(|line| width(line, Font::SmallStrong));
    lines.fold(0.0, f64::max)
}

struct Layout {
    axis: Steps,
    names: Canvas,
    lanes: Canvas,
    /// The height reached so far.
    y: f64,
}

/// Lays out an act.
pub(super) fn chart(of: &Lanes) -> Chart {
    let axis = of.axis();
    let right = axis.steps().last().map_or(0.0, |step| step.1) + MARGIN;
    let mut layout = Layout {
        axis,
        names: Canvas::new(GUTTER, 0.0),
        lanes: Canvas::new(right.max(PLOT), 0.0),
        y: 0.0,
    };
    layout.lane("lock service", "", |layout| layout.bars(&of.leases));
    for (number, (server, bars, steps)) in of.servers.iter().enumerate() {
        layout.lane(
            &format!("server {server}"),
            &format!("c{number}"),
            |layout| {
                layout.steps(steps);
                let (pauses, replicas): (Vec<Bar>, Vec<Bar>) = bars
                    .iter()
                    .cloned()
                    .partition(|bar| bar.style == BarStyle::Pause);
                layout.bars(&replicas);
                layout.bars(&pauses);
            },
        );
    }
    layout.lane(LOCATED, "", |layout| layout.bars(&of.located));
    layout.time(of);
    (layout.names.height, layout.lanes.height) = (layout.y, layout.y);
    Chart {
        names: layout.names,
        lanes: layout.lanes,
    }
}

impl Layout {
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
        let name = shortened(name, GUTTER - 12.0, font);
        self.names.text((8.0, y), Anchor::Start, font, &name, class);
    }

    /// Bars, on as many rows as they need.
    fn bars(&mut self, bars: &[Bar]) {
        let times: Vec<(f64, f64)> = bars.iter().map(|bar| (bar.from, bar.to)).collect();
        let tracks = tracks(&times);
        for (bar, track) in bars.iter().zip(&tracks) {
            self.bar(bar, self.y + (BAR + 4.0) * *track as f64);
        }
        let rows = tracks.iter().map(|track| track + 1).max().unwrap_or(0);
        self.y += (BAR + 4.0) * rows as f64;
    }

    fn bar(&mut self, bar: &Bar, top: f64) {
        let (left, right) = (self.axis.x(bar.from), self.axis.x(bar.to));
        let area = Rect::new(left, top, (right - left).max(2.0), BAR);
        let class = match bar.style {
            BarStyle::Lease(holder) => format!("tint-c{}", holder % 4),
            BarStyle::Content => "content".to_owned(),
            BarStyle::Stale => "gap".to_owned(),
            BarStyle::Pause => "pause".to_owned(),
            BarStyle::Lost => "lost".to_owned(),
        };
        let note = self.lanes.note(bar.words.clone());
        self.lanes.about(Some(note));
        self.lanes.rect(Layer::Bar, area, 2.0, class.clone());
        if matches!(bar.style, BarStyle::Stale | BarStyle::Pause) {
            self.lanes
                .hatch(Layer::Bar, area, 7.0, format!("{class}-hatch"));
        }
        // Moments of one step leave no room for text; a tooltip shows it.
        if width(&bar.words, Font::Small) <= area.w {
            let ink = if bar.style == BarStyle::Lost {
                "bad"
            } else {
                ""
            };
            self.lanes.text_within(area, Font::Small, &bar.words, ink);
        }
        self.lanes.about(None);
    }

    /// The mutations of a replica: a sign on a line, and its label below it.
    fn steps(&mut self, steps: &[Step]) {
        let y = self.y + 10.0;
        let (left, right) = (MARGIN, self.lanes.width - MARGIN);
        self.lanes
            .line(Layer::Ground, (left, y), (right, y), "life");
        for step in steps {
            let x = self.axis.x(step.at);
            let note = self.lanes.note(step.lines.join(", "));
            self.lanes.about(Some(note));
            for (shape, class) in step.sign.shapes((x, y)) {
                self.lanes.mark(Layer::Sign, shape, class);
            }
            for (number, line) in step.lines.iter().enumerate() {
                let (font, class) = match (step.sign, number) {
                    (Sign::Dangerous, _) => (Font::SmallStrong, "bad"),
                    (Sign::Rejected, _) => (Font::SmallStrong, "good"),
                    (_, 0) => (Font::SmallStrong, ""),
                    _ => (Font::Small, "soft"),
                };
                let at = (x, y + 18.0 + LINE * number as f64);
                self.lanes.text(at, Anchor::Middle, font, line, class);
            }
        }
        self.lanes.about(None);
        let lines = steps.iter().map(|step| step.lines.len()).max().unwrap_or(0);
        self.y = y + 14.0 + LINE * lines as f64;
    }

    /// The steps, connected to an axis to scale.
    fn time(&mut self, of: &Lanes) {
        let (top, y) = (self.y - 4.0, self.y + 26.0);
        let ends = self.axis.steps().to_vec();
        let (Some(first), Some(last)) = (ends.first(), ends.last()) else {
            return;
        };
        let scale = Linear {
            from: (first.0 + 1.0).min(0.0),
            to: last.0,
            left: first.1,
            right: last.1,
        };
        let mut moments: Vec<f64> = of.bars().flat_map(|bar| [bar.from, bar.to]).collect();
        moments.sort_by(f64::total_cmp);
        moments.dedup_by(|next, kept| *next - *kept < SAME_MS);
        for ms in moments {
            let (from, to) = ((self.axis.x(ms), top), (scale.x(ms), y));
            self.lanes.line(Layer::Ground, from, to, "fan");
        }
        self.lanes
            .line(Layer::Bar, (scale.left, y), (scale.right, y), "axis");
        for tick in scale.ticks(90.0) {
            let x = scale.x(tick);
            self.lanes.line(Layer::Bar, (x, y), (x, y + 5.0), "axis");
            let words = format!("{} s", tick / 1_000.0);
            let half = width(&words, Font::Small) / 2.0;
            if x - half > 0.0 && x + half < self.lanes.width {
                let at = (x, y + 15.0);
                self.lanes
                    .text(at, Anchor::Middle, Font::Small, &words, "soft");
            }
        }
        self.name(top + 8.0, Font::Small, "steps in order", "soft");
        self.name(y + 2.0, Font::Small, "time, to scale", "soft");
        self.y = y + 26.0;
    }
}
