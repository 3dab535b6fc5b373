//! A moment as a drawing: for each worker a row with its grants, its thinking, and the results of its writes.

use palisade_draw::axis::Linear;
use palisade_draw::{Anchor, Canvas, Font, Layer, Rect, Shape, width};

use super::moment::Moment;
use crate::chaos::event::{Event, Target, WorkerStep};

pub(super) const GUTTER: f64 = 100.0;
pub(super) const WIDE: f64 = 1100.0;
const ROW: f64 = 58.0;

struct Drawing<'a> {
    moment: &'a Moment<'a>,
    axis: Linear,
    canvas: Canvas,
    /// Where the last text of the row ends, so that the next one does not overlap it.
    reached: f64,
}

/// The drawing of a moment.
pub(super) fn draw(moment: &Moment<'_>) -> Canvas {
    let high = ROW * moment.workers.len() as f64;
    let mut drawing = Drawing {
        moment,
        axis: Linear {
            from: moment.from_ms,
            to: moment.to_ms,
            left: GUTTER,
            right: WIDE - 10.0,
        },
        canvas: Canvas::new(WIDE, high + 30.0),
        reached: 0.0,
    };
    drawing.ground(high);
    for (row, worker) in moment.workers.iter().enumerate() {
        drawing.worker(ROW * row as f64, *worker);
    }
    drawing.canvas
}

impl Drawing<'_> {
    /// Sets the explanation of the following marks.
    fn about(&mut self, words: String) {
        let note = self.canvas.note(words);
        self.canvas.about(Some(note));
    }

    /// The rows, the time axis below them, and faults that affect everybody.
    fn ground(&mut self, high: f64) {
        let moment = self.moment;
        for (row, worker) in moment.workers.iter().enumerate() {
            let y = ROW * row as f64;
            let lane = Rect::new(GUTTER, y + 2.0, WIDE - GUTTER - 10.0, ROW - 4.0);
            self.canvas.rect(Layer::Ground, lane, 0.0, "lane");
            let (at, name) = ((0.0, y + ROW / 2.0), format!("worker {worker}"));
            self.canvas.text(at, Anchor::Start, Font::Strong, &name, "");
        }
        for fault in &moment.faults {
            if !matches!(fault.target, Target::Worker(_)) {
                self.about(format!("{:?}: {}", fault.target, fault.what));
                self.span((fault.from_ms, fault.to_ms), (0.0, high), "outage");
            }
        }
        self.canvas.about(None);
        let from_start = Linear {
            from: 0.0,
            to: moment.to_ms - moment.from_ms,
            ..self.axis
        };
        for tick in from_start.ticks(120.0) {
            let (x, words) = (from_start.x(tick), format!("{tick:.0} ms"));
            self.canvas.line(Layer::Ground, (x, 0.0), (x, high), "grid");
            if x + width(&words, Font::Small) / 2.0 < WIDE {
                let at = (x, high + 14.0);
                self.canvas
                    .text(at, Anchor::Middle, Font::Small, &words, "soft");
            }
        }
    }

    /// A bar for this period at this height; returns its ends.
    fn span(&mut self, (from, to): (f64, f64), (y, h): (f64, f64), class: &str) -> (f64, f64) {
        let (left, right) = (self.axis.x(from), self.axis.x(to));
        let bar = Rect::new(left, y, (right - left).max(1.5), h);
        let layer = if class == "outage" {
            Layer::Ground
        } else {
            Layer::Bar
        };
        self.canvas.rect(layer, bar, 0.0, class);
        if class == "pause" {
            self.canvas.hatch(layer, bar, 6.0, "pause-hatch");
        }
        (left, right)
    }

    fn worker(&mut self, y: f64, worker: usize) {
        let moment = self.moment;
        let own = moment.events.iter().copied();
        let own: Vec<&Event> = own.filter(|event| event.worker == worker).collect();
        self.spans(&own, y);
        for fault in &moment.faults {
            if fault.target == Target::Worker(worker) {
                self.about(fault.what.clone());
                self.span((fault.from_ms, fault.to_ms), (y + ROW - 13.0, 9.0), "pause");
            }
        }
        self.reached = 0.0;
        own.iter().for_each(|event| self.mark(event, y));
        self.canvas.about(None);
    }

    /// From grant to release, and from read to write.
    fn spans(&mut self, own: &[&Event], y: f64) {
        let (mut hold, mut think) = (None, None);
        let mut spans: Vec<(&str, f64, f64, Option<u64>)> = Vec::new();
        for event in own {
            let at = event.at_ms;
            match event.line.what {
                WorkerStep::Granted { .. } => hold = hold.or(Some(at)),
                WorkerStep::Read => think = Some(at),
                WorkerStep::Sent { .. } | WorkerStep::ReadAgain { .. } => {
                    spans.extend(think.take().map(|from| ("think", from, at, None)))
                }
                WorkerStep::Released => {
                    spans.extend(hold.take().map(|from| ("hold", from, at, event.line.token)));
                }
                _ => {}
            }
        }
        // A span without an end extends beyond the picture.
        let token = own.last().and_then(|event| event.line.token);
        spans.extend(hold.map(|from| ("hold", from, f64::INFINITY, token)));
        spans.extend(think.map(|from| ("think", from, f64::INFINITY, None)));
        spans.sort_by_key(|span| span.0 != "hold");
        let mut reached = 0.0;
        for (class, from, to, token) in spans {
            if to < self.moment.from_ms || from > self.moment.to_ms {
                continue;
            }
            let place = match class {
                "hold" => (y + 8.0, ROW - 24.0),
                _ => (y + 28.0, ROW - 46.0),
            };
            let (left, right) = self.span((from, to), place, class);
            let words = token.map(|token| format!("token {token}"));
            let words = words.filter(|words| {
                let wide = width(words, Font::Small);
                left + 9.0 > reached && left + 9.0 + wide <= right
            });
            if let Some(words) = words {
                let at = (left + 9.0, y + 19.0);
                self.canvas.text(at, Anchor::Start, Font::Small, &words, "");
                reached = at.0 + width(&words, Font::Small);
            }
        }
    }

    fn mark(&mut self, event: &Event, y: f64) {
        if !(self.moment.from_ms..=self.moment.to_ms).contains(&event.at_ms) {
            return;
        }
        let (x, middle) = (self.axis.x(event.at_ms), y + 34.0);
        let (sign, explanation) = match &event.line.what {
            WorkerStep::Claimed => (sign(Sign::Claimed, (x, y + 5.0)), "claimed".to_owned()),
            WorkerStep::Read => (sign(Sign::Read, (x, middle)), "read the set".to_owned()),
            WorkerStep::ReadAgain { same: true } => (
                sign(Sign::Read, (x, middle)),
                "read again: the same".to_owned(),
            ),
            WorkerStep::ReadAgain { same: false } => (
                sign(Sign::Lost, (x, middle)),
                "read again: it has changed".to_owned(),
            ),
            WorkerStep::Acknowledged { element } if self.moment.lost.contains(element.as_str()) => {
                (
                    sign(Sign::Lost, (x, middle)),
                    format!("{element}: acknowledged, and lost"),
                )
            }
            WorkerStep::Acknowledged { element } => (
                sign(Sign::Kept, (x, middle)),
                format!("{element}: acknowledged, and kept"),
            ),
            WorkerStep::Rejected { step, highest } => {
                let (token, highest) = (event.line.token.unwrap_or(0), highest.unwrap_or(0));
                let words = format!("{step:?} rejected: token {token} is below {highest}");
                (sign(Sign::Rejected, (x, middle)), words)
            }
            _ => return,
        };
        let words = match &event.line.what {
            WorkerStep::Rejected { highest, .. } => {
                let (token, highest) = (event.line.token.unwrap_or(0), highest.unwrap_or(0));
                Some((format!("{token} < {highest}"), "c1"))
            }
            WorkerStep::ReadAgain { same: false } => Some(("changed".to_owned(), "bad")),
            _ if sign.1 == "loss" => Some(("lost".to_owned(), "bad")),
            _ => None,
        };
        self.about(format!("{explanation}, {:.1} ms", event.at_ms));
        self.canvas.mark(Layer::Sign, sign.0, sign.1);
        let Some((words, class)) = words else { return };
        let (left, wide) = (x + 9.0, width(&words, Font::SmallStrong));
        // If there is no room, a tooltip shows the text.
        if left > self.reached + 4.0 && left + wide < WIDE {
            let at = (left, middle);
            self.canvas
                .text(at, Anchor::Start, Font::SmallStrong, &words, class);
            self.reached = left + wide;
        }
    }
}

/// The meaning of a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Claimed,
    Read,
    Kept,
    Lost,
    Rejected,
}

/// The shape and class of a sign. Each sign has its own shape.
pub(super) fn sign(sign: Sign, (x, y): (f64, f64)) -> (Shape, &'static str) {
    match sign {
        Sign::Claimed => (
            Shape::Path(format!("M{x:.1} {:.1}l5 8h-10z", y - 4.0)),
            "claimed",
        ),
        Sign::Read => (Shape::Circle((x, y), 4.0), "read"),
        Sign::Kept => (Shape::Circle((x, y), 5.0), "good"),
        Sign::Lost => (
            Shape::Path(format!("M{:.1} {:.1}l10 10m0 -10l-10 10", x - 5.0, y - 5.0)),
            "loss",
        ),
        Sign::Rejected => (
            Shape::Rect(Rect::new(x - 5.0, y - 5.0, 10.0, 10.0), 0.0),
            "c1",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::event::{Fault, Operation, WorkerLine};
    use crate::chaos::kind::LockKind;

    fn event(at_ms: f64, worker: usize, token: u64, what: WorkerStep) -> Event {
        let line = WorkerLine {
            lane: 0,
            kind: LockKind::Exclusive,
            own_ns: 0,
            token: Some(token),
            what,
        };
        Event {
            at_ms,
            worker,
            line,
        }
    }

    #[test]
    fn a_crowded_moment_has_all_signs_and_no_overlapping_texts() {
        let element = "a".to_owned();
        let highest = Some(3);
        let number = Some(2);
        let mut events = vec![event(100.0, 0, 2, WorkerStep::Granted { number })];
        for step in 0..30 {
            let at = 110.0 + 7.0 * f64::from(step);
            let step = Operation::Write;
            events.push(event(at, 0, 2, WorkerStep::Rejected { step, highest }));
        }
        let element_lost = element.clone();
        let lost = WorkerStep::Acknowledged {
            element: element_lost,
        };
        events.push(event(500.0, 1, 3, lost));
        let (target, what) = (Target::Worker(0), "stopped".to_owned());
        let fault = Fault {
            from_ms: 200.0,
            to_ms: 300.0,
            target,
            what,
        };
        let canvas = draw(&Moment {
            lane: 0,
            from_ms: 50.0,
            to_ms: 1_100.0,
            workers: vec![0, 1],
            events: events.iter().collect(),
            faults: vec![&fault],
            lost: [element.as_str()].into(),
        });
        assert_eq!(canvas.problems(), Vec::<String>::new());
        let signs = |class: &str| {
            canvas
                .marks
                .iter()
                .filter(|mark| mark.class == class)
                .count()
        };
        assert_eq!((signs("c1"), signs("loss"), signs("pause")), (30, 1, 1));
        let said = |words: &str| {
            canvas
                .texts
                .iter()
                .filter(|text| text.text == words)
                .count()
        };
        assert!(said("lost") == 1 && said("2 < 3") > 1 && said("2 < 3") < 30);
    }
}
