//! A moment as a drawing: a row for each worker, with what it held, when it thought, and what became of its writes.

use std::fmt::Write as _;

use super::moment::Moment;
use crate::chaos::event::{Event, Target, What};

const GUTTER: f64 = 100.0;
const WIDE: f64 = 1100.0;
const ROW: f64 = 58.0;

struct Drawing<'a> {
    moment: &'a Moment<'a>,
    body: String,
}

/// The drawing of a moment.
pub(super) fn draw(moment: &Moment<'_>, label: &str) -> String {
    let mut drawing = Drawing {
        moment,
        body: String::new(),
    };
    let high = ROW * moment.workers.len() as f64;
    drawing.ground(high);
    for (row, worker) in moment.workers.iter().enumerate() {
        drawing.worker(row, *worker);
    }
    format!(
        "<svg viewBox=\"0 0 {WIDE} {:.0}\" role=\"img\" aria-label=\"{label}\"><defs><pattern id=\"hatch\" width=\"6\" \
         height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" \
         y1=\"0\" x2=\"0\" y2=\"6\"/></pattern></defs>{}</svg>",
        high + 30.0,
        drawing.body
    )
}

impl Drawing<'_> {
    fn x(&self, at_ms: f64) -> f64 {
        let moment = self.moment;
        let share = (at_ms - moment.from_ms) / (moment.to_ms - moment.from_ms);
        GUTTER + share.clamp(0.0, 1.0) * (WIDE - GUTTER - 10.0)
    }

    fn inside(&self, at_ms: f64) -> bool {
        (self.moment.from_ms..=self.moment.to_ms).contains(&at_ms)
    }

    /// The rows, the times below them, and what concerned everybody.
    fn ground(&mut self, high: f64) {
        let moment = self.moment;
        for (row, worker) in moment.workers.iter().enumerate() {
            let y = ROW * row as f64;
            let _ = write!(
                self.body,
                "<rect class=\"lane\" x=\"{GUTTER}\" y=\"{:.1}\" width=\"{}\" height=\"{}\"/>\
                 <text class=\"strong\" x=\"0\" y=\"{:.1}\">worker {worker}</text>",
                y + 2.0,
                WIDE - GUTTER - 10.0,
                ROW - 4.0,
                y + ROW / 2.0 + 4.0
            );
        }
        for fault in &moment.faults {
            if !matches!(fault.target, Target::Worker(_)) {
                let (from, to) = (self.x(fault.from_ms), self.x(fault.to_ms));
                let _ = write!(
                    self.body,
                    "<rect class=\"outage\" x=\"{from:.1}\" y=\"0\" width=\"{:.1}\" height=\"{high}\">\
                     <title>{:?}: {}</title></rect>",
                    (to - from).max(1.5),
                    fault.target,
                    fault.what
                );
            }
        }
        let step = step(moment.to_ms - moment.from_ms);
        let mut at = 0.0;
        while at <= moment.to_ms - moment.from_ms {
            let x = self.x(moment.from_ms + at);
            let _ = write!(
                self.body,
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{high}\"/>\
                 <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{}\">{at:.0} ms</text>",
                high + 18.0,
                if at == 0.0 { "start" } else { "middle" }
            );
            at += step;
        }
    }

    fn worker(&mut self, row: usize, worker: usize) {
        let y = ROW * row as f64;
        let moment = self.moment;
        let own: Vec<&Event> = moment
            .events
            .iter()
            .copied()
            .filter(|event| event.worker == worker)
            .collect();
        self.spans(&own, y);
        for fault in &moment.faults {
            if fault.target == Target::Worker(worker) {
                let (from, to) = (self.x(fault.from_ms), self.x(fault.to_ms));
                let _ = write!(
                    self.body,
                    "<rect class=\"pause\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"9\"><title>{}</title></rect>",
                    y + ROW - 13.0,
                    (to - from).max(2.0),
                    fault.what
                );
            }
        }
        own.iter().for_each(|event| self.mark(event, y));
    }

    /// From grant to release, and from read to write.
    fn spans(&mut self, own: &[&Event], y: f64) {
        let (mut hold, mut think) = (None, None);
        let mut spans: Vec<(&str, f64, f64, Option<u64>)> = Vec::new();
        for event in own {
            let at = event.at_ms;
            match event.said.what {
                What::Granted => hold = Some(at),
                What::Read => think = Some(at),
                What::Sent { .. } => {
                    spans.extend(think.take().map(|from| ("think", from, at, None)))
                }
                What::Released => {
                    spans.extend(hold.take().map(|from| ("hold", from, at, event.said.token)));
                }
                _ => {}
            }
        }
        // The end of what nobody ended lies behind the picture.
        let token = own.last().and_then(|event| event.said.token);
        spans.extend(hold.map(|from| ("hold", from, f64::INFINITY, token)));
        spans.extend(think.map(|from| ("think", from, f64::INFINITY, None)));
        spans.sort_by_key(|span| span.0 != "hold");
        for (class, from, to, token) in spans {
            if to < self.moment.from_ms || from > self.moment.to_ms {
                continue;
            }
            let (left, right) = (self.x(from), self.x(to));
            let (top, tall) = match class {
                "hold" => (y + 8.0, ROW - 24.0),
                _ => (y + 28.0, ROW - 46.0),
            };
            let _ = write!(
                self.body,
                "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{tall:.1}\"/>",
                (right - left).max(1.0)
            );
            if let Some(token) = token.filter(|_| right - left > 58.0) {
                let _ = write!(
                    self.body,
                    "<text class=\"in\" x=\"{:.1}\" y=\"{:.1}\">token {token}</text>",
                    left + 9.0,
                    y + 21.0
                );
            }
        }
    }

    fn mark(&mut self, event: &Event, y: f64) {
        if !self.inside(event.at_ms) {
            return;
        }
        let (x, middle) = (self.x(event.at_ms), y + 34.0);
        let title = |words: &str| format!("<title>{words}, {:.1} ms</title>", event.at_ms);
        let _ = match &event.said.what {
            What::Claimed => write!(
                self.body,
                "<path class=\"claimed\" d=\"M{x:.1} {:.1}l5 8h-10z\">{}</path>",
                y + 9.0,
                title("claimed")
            ),
            What::Read => write!(
                self.body,
                "<circle class=\"read\" cx=\"{x:.1}\" cy=\"{middle:.1}\" r=\"4\">{}</circle>",
                title("read the set")
            ),
            What::Acknowledged { element } if self.moment.lost.contains(element.as_str()) => {
                let (cross, ink) = (
                    title(&format!("{element}: acknowledged, and lost")),
                    x + 9.0,
                );
                write!(
                    self.body,
                    "<path class=\"lost\" d=\"M{:.1} {:.1}l10 10m0 -10l-10 10\">{cross}</path>\
                     <text class=\"in ink-lost\" x=\"{ink:.1}\" y=\"{:.1}\">lost</text>",
                    x - 5.0,
                    middle - 5.0,
                    middle + 4.0
                )
            }
            What::Acknowledged { element } => write!(
                self.body,
                "<circle class=\"kept\" cx=\"{x:.1}\" cy=\"{middle:.1}\" r=\"5\">{}</circle>",
                title(&format!("{element}: acknowledged, and kept"))
            ),
            What::Rejected { step, highest } => {
                let (token, highest) = (event.said.token.unwrap_or(0), highest.unwrap_or(0));
                write!(
                    self.body,
                    "<rect class=\"reject\" x=\"{:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\">{}</rect>\
                     <text class=\"in ink-reject\" x=\"{:.1}\" y=\"{:.1}\">{token} &lt; {highest}</text>",
                    x - 5.0,
                    middle - 5.0,
                    title(&format!(
                        "{step:?} refused: token {token} is below {highest}"
                    )),
                    x + 8.0,
                    middle + 4.0
                )
            }
            _ => Ok(()),
        };
    }
}

/// A round distance between two marks of the axis.
fn step(span_ms: f64) -> f64 {
    let rough = span_ms / 8.0;
    let magnitude = 10_f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].map(|times| times * magnitude);
    round
        .into_iter()
        .find(|round| *round >= rough)
        .unwrap_or(rough)
}
