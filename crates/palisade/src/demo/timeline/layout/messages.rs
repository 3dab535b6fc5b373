//! Messages as arrows between the lanes: sent at one moment, arrived at another, so never quite upright.

use super::super::geometry::{ROW, Rect, TEXT, text_width};
use super::super::model::{Event, Message, Operation};
use super::super::scene::{Layer, Shape};
use super::super::spans::{asked_words, duration, in_flight};
use super::{Layout, PLOT, calm};

/// How far short of a line an arrow ends, so that its head does not hide under a sign.
const CLEAR: f64 = 8.0;
/// The radius of the dot a message starts from.
const DOT: f64 = 2.5;
/// The length of an arrow's head.
const HEAD: f64 = 7.0;

impl Layout<'_> {
    /// Draws every message and its answer.
    pub(super) fn messages(&mut self) {
        for (index, event) in self.act.events.iter().enumerate() {
            match event {
                Event::Request(request) => {
                    let far = self.rails.authority + 1.0;
                    self.message(index, &request.message, far, "request");
                }
                Event::Operation(operation) => {
                    let far = self.rails.resource - CLEAR;
                    self.message(index, &operation.message, far, "operation");
                    self.delay(index, operation, far);
                }
                _ => {}
            }
        }
    }

    /// One message: the way there, and the way back where an answer was seen.
    fn message(&mut self, event: usize, message: &Message, far: f64, class: &str) {
        let lane = self
            .clients
            .iter()
            .position(|lane| lane.id == message.client)
            .unwrap_or(0);
        let near = self.rails.clients.get(lane).copied().unwrap_or(far);
        let colour = self.colour(&message.client);
        let there = message.arrived_ms.or(message.decided_ms);
        let back = message.decided_ms.or(message.arrived_ms);
        if let Some(sent) = message.sent_ms.or(there) {
            let start = (self.axis.x(sent), near);
            let delayed = if in_flight(message).is_some() || there.is_none() {
                " dashed"
            } else {
                ""
            };
            let dot = Shape::Rect(
                Rect::new(start.0 - DOT, start.1 - DOT, 2.0 * DOT, 2.0 * DOT),
                DOT,
            );
            self.scene
                .mark(Some(event), Layer::Arrow, dot, format!("head-{colour}"));
            let class = format!("{class} line-{colour}{delayed}");
            match there {
                Some(ms) => self.arrow(event, start, (self.axis.x(ms), far), &class),
                None => self.arrow(
                    event,
                    start,
                    (start.0 + 24.0, near + (far - near) * 0.45),
                    &class,
                ),
            }
        }
        if let (Some(from), Some(to)) = (back, message.answered_ms) {
            let class = format!("answer line-{colour}");
            self.arrow(
                event,
                (self.axis.x(from), far),
                (self.axis.x(to), near),
                &class,
            );
        }
    }

    /// Says how long the network held a message up: above its line, as far to the right as the line needs to have
    /// sunk below the row that was kept free for these words in the client's lane.
    fn delay(&mut self, event: usize, operation: &Operation, far: f64) {
        let Some((text, sent)) = delay_words(operation).zip(operation.message.sent_ms) else {
            return;
        };
        let lane = self
            .clients
            .iter()
            .position(|lane| lane.id == operation.message.client)
            .unwrap_or(0);
        let (Some(near), Some(row)) = (
            self.rails.clients.get(lane),
            self.rails.delays.get_mut(lane),
        ) else {
            return;
        };
        let top = *row;
        *row += ROW;
        let from = self.axis.x(sent);
        let run = operation
            .message
            .arrived_ms
            .map_or(24.0, |ms| self.axis.x(ms) - from);
        let x = from + run * (top + ROW - near) / (far - near).max(1.0) + 6.0;
        let wide = text_width(&text, TEXT) + 8.0;
        let x = calm(x, (from + run - wide).max(x), wide, &self.traffic(lane))
            .min(PLOT - wide)
            .max(0.0);
        self.scene
            .text(Some(event), x, top + ROW / 2.0, &text, "delayed");
    }

    /// A line with a head at its end.
    fn arrow(&mut self, event: usize, from: (f64, f64), to: (f64, f64), class: &str) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy).max(1e-6);
        let (ux, uy) = (dx / length, dy / length);
        let neck = (to.0 - ux * HEAD, to.1 - uy * HEAD);
        self.scene
            .line(Some(event), Layer::Arrow, from, neck, class);
        let (wx, wy) = (-uy * HEAD * 0.5, ux * HEAD * 0.5);
        let head = format!(
            "M{:.1} {:.1}L{:.1} {:.1}L{:.1} {:.1}Z",
            to.0,
            to.1,
            neck.0 + wx,
            neck.1 + wy,
            neck.0 - wx,
            neck.1 - wy
        );
        let class = class.replace(" dashed", "").replace("line-", "head-");
        self.scene
            .mark(Some(event), Layer::Arrow, Shape::Path(head), class);
    }
}

/// The words for a message that the network held up or swallowed; nothing for a quick one.
pub(super) fn delay_words(operation: &Operation) -> Option<String> {
    let asked = asked_words(operation);
    match (
        in_flight(&operation.message),
        operation.message.arrived_ms,
        operation.message.sent_ms,
    ) {
        (Some(flight), ..) => Some(format!("{asked}: {} in the network", duration(flight))),
        (None, None, Some(_)) => Some(format!("{asked}: never seen to arrive")),
        _ => None,
    }
}
