//! The lane of the lock service: each lease as a bar from its grant to its end, its token on it.

use super::super::geometry::{ROW, Rect};
use super::super::model::{Answer, Event, Request, RequestKind, Role};
use super::super::scene::{Layer, Shape, Wish, slots};
use super::super::spans::{LeaseSpan, duration, leases};
use super::{Layout, MARGIN, PLOT, said};

/// Height of a lease's bar.
const BAR: f64 = 24.0;

impl Layout<'_> {
    /// Draws the lane.
    pub(super) fn authority(&mut self) {
        let top = self.y;
        let mut wishes = self.authority_wishes();
        let (places, rows) = slots(&wishes, (MARGIN, PLOT - 4.0));
        let ceiling = top + 6.0 + rows as f64 * ROW;
        let rail = ceiling + 6.0;
        wishes.iter_mut().for_each(|wish| wish.y = rail);
        self.scene.place(wishes, &places, ceiling, true);
        for lease in leases(&self.act.events) {
            self.lease(&lease, rail);
        }
        self.lease_marks(rail);
        self.rails.authority = rail + BAR;
        self.y = rail + BAR + 8.0;
        let name = self.lane_name(Role::Authority, "lock service");
        self.close_lane(top, rail + BAR / 2.0, &name, "");
    }

    /// What is said above the bars: grants, ends, and requests that got nothing.
    fn authority_wishes(&self) -> Vec<Wish> {
        let events = self.act.events.iter().enumerate();
        events
            .filter_map(|(index, event)| self.authority_wish(index, event))
            .collect()
    }

    /// The label of one event above the bars, if it has one.
    fn authority_wish(&self, index: usize, event: &Event) -> Option<Wish> {
        let (ms, text) = match event {
            Event::Granted {
                at_ms,
                client,
                token,
                ttl_ms,
            } => (
                *at_ms,
                format!(
                    "grants {client} a lease: token {token}, TTL {}",
                    duration(*ttl_ms)
                ),
            ),
            Event::Expired { at_ms, client, .. } => (*at_ms, format!("lease of {client} expires")),
            Event::Released { at_ms, client, .. } => (*at_ms, format!("{client} releases")),
            Event::Request(request) => (request.message.arrived_ms?, refusal(request)?),
            _ => return None,
        };
        Some(said(index, self.axis.x(ms), 0.0, text, ""))
    }

    /// The bar of one lease, open at the right if it was alive at the end.
    fn lease(&mut self, lease: &LeaseSpan, rail: f64) {
        let (left, right) = self.span(lease.from_ms, lease.to_ms);
        let bar = Rect::new(left, rail, (right - left).max(2.0), BAR);
        let colour = self.colour(&lease.client);
        let event = Some(lease.event);
        self.scene.mark(
            event,
            Layer::Bar,
            Shape::Rect(bar, 3.0),
            format!("bar {colour}"),
        );
        let wordings = [
            format!("lease of {} · fencing token {}", lease.client, lease.token),
            format!("{} · token {}", lease.client, lease.token),
            format!("token {}", lease.token),
            lease.token.to_string(),
        ];
        self.bar_text(
            lease.event,
            bar,
            &wordings,
            &format!("strong on-{colour}"),
            &[],
        );
    }

    /// Renewals as notches, ends as posts.
    fn lease_marks(&mut self, rail: f64) {
        for (index, event) in self.act.events.iter().enumerate() {
            let (ms, class, reach) = match event {
                Event::Renewed { at_ms, .. } => (*at_ms, "notch", 0.0),
                Event::Granted { at_ms, .. } => (*at_ms, "post", 0.0),
                Event::Expired { at_ms, .. } => (*at_ms, "post end", 5.0),
                Event::Released { at_ms, .. } => (*at_ms, "post", 3.0),
                _ => continue,
            };
            let x = self.axis.x(ms);
            let from = if class == "notch" {
                rail + BAR - 7.0
            } else {
                rail - reach
            };
            self.scene.line(
                Some(index),
                Layer::Bar,
                (x, from),
                (x, rail + BAR + reach),
                class,
            );
        }
    }
}

/// A request that did not end in a grant, in words.
fn refusal(request: &Request) -> Option<String> {
    let client = &request.message.client;
    let asked = match request.request {
        RequestKind::Acquire => "acquire",
        RequestKind::Renew => "renew",
        RequestKind::Release => "release",
    };
    match request.answer.as_ref() {
        Some(Answer::Held(holder)) => Some(format!("{client}: {asked} · held by {holder}")),
        Some(Answer::Refused(code)) => Some(format!("{client}: {asked} · refused: {code}")),
        Some(Answer::Granted(_) | Answer::Done) => None,
        None => Some(format!("{client}: {asked} · no answer seen")),
    }
}
