//! The lane of a client: above, what it believes; below, whether it runs and what it sends.
//!
//! The gap between belief and truth is drawn as a band of its own: from the end of the lease at the lock service down to
//! the client that goes on believing.

use super::super::geometry::{ROW, Rect};
use super::super::model::Event;
use super::super::scene::{Layer, Shape, Wish, hatch, slots};
use super::super::spans::{duration, leases};
use super::messages::delay_words;
use super::{Layout, MARGIN, PLOT, said};

/// Height of the bar of belief.
const BELIEF: f64 = 22.0;
/// Height of a pause.
const PAUSE: f64 = 18.0;

/// A client's belief in one token.
struct Belief<'a> {
    /// The event, by index.
    event: usize,
    /// The client's lane.
    lane: usize,
    /// Who believes.
    client: &'a str,
    /// In which token.
    token: u64,
    /// From when, ms.
    from_ms: f64,
    /// Until when, ms.
    to_ms: Option<f64>,
}

impl Layout<'_> {
    /// Draws the lane of the client with this index.
    pub(super) fn client(&mut self, index: usize) {
        let top = self.y;
        let lane = self.clients[index].clone();
        self.both(index);
        let belief_y = self.y + 8.0;
        self.rails.beliefs.push(belief_y);
        let life = belief_y + BELIEF + 8.0 + PAUSE / 2.0;
        self.rails.clients.push(life);
        let (left, right) = (self.axis.x(self.axis.domain().0), PLOT);
        self.scene
            .line(None, Layer::Ground, (left, life), (right, life), "life");
        let (mut wishes, mut delays) = (Vec::new(), 0_usize);
        for (event, entry) in self.act.events.iter().enumerate() {
            match entry {
                Event::Believed {
                    from_ms,
                    to_ms,
                    client,
                    token,
                } if *client == lane.id => {
                    let belief = Belief {
                        event,
                        lane: index,
                        client,
                        token: *token,
                        from_ms: *from_ms,
                        to_ms: *to_ms,
                    };
                    wishes.extend(self.belief(&belief, belief_y, life));
                }
                Event::Paused {
                    from_ms,
                    to_ms,
                    client,
                } if *client == lane.id => {
                    wishes.extend(self.pause(event, index, (*from_ms, *to_ms), life));
                }
                Event::Operation(operation) if operation.message.client == lane.id => {
                    delays += usize::from(delay_words(operation).is_some());
                }
                _ => {}
            }
        }
        self.y = life + PAUSE / 2.0 + 6.0;
        self.labels_below(wishes);
        self.rails.delays.push(self.y);
        self.y += delays as f64 * ROW + 4.0;
        self.close_lane(
            top,
            (belief_y + life) / 2.0 + 4.0,
            &lane.label,
            &format!("ink-c{}", index % 4),
        );
    }

    /// The bar of a belief: solid while the lease is there, hatched where it is not.
    fn belief(&mut self, belief: &Belief<'_>, y: f64, life: f64) -> Option<Wish> {
        let (left, right) = self.span(belief.from_ms, belief.to_ms);
        let truth_ms = leases(&self.act.events)
            .into_iter()
            .find(|lease| lease.token == belief.token);
        let truth_ms = truth_ms.and_then(|lease| lease.to_ms);
        let border = truth_ms.map_or(right, |end| self.axis.x(end).clamp(left, right));
        let colour = self.colour(belief.client);
        let solid = Rect::new(left, y, border - left, BELIEF);
        self.scene.mark(
            Some(belief.event),
            Layer::Bar,
            Shape::Rect(solid, 3.0),
            format!("belief {colour}"),
        );
        let wordings = [
            format!("believes it holds the lock (token {})", belief.token),
            format!("believes: token {}", belief.token),
            "believes".to_owned(),
        ];
        let traffic = self.traffic(belief.lane);
        let written = self.bar_text(
            belief.event,
            solid,
            &wordings,
            &format!("on-{colour}"),
            &traffic,
        );
        if right - border > 0.5 {
            return self.gap(
                belief,
                Rect::new(border, y, right - border, BELIEF),
                truth_ms,
            );
        }
        let text = format!("believes it holds (token {})", belief.token);
        (!written).then(|| said(belief.event, left, life, text, ""))
    }

    /// The part of a belief without a lease.
    fn gap(&mut self, belief: &Belief<'_>, bar: Rect, truth_ms: Option<f64>) -> Option<Wish> {
        let event = Some(belief.event);
        let band = Rect::new(
            bar.x,
            self.rails.authority,
            bar.w,
            bar.y - self.rails.authority,
        );
        self.scene
            .mark(event, Layer::Ground, Shape::Rect(band, 0.0), "gap-band");
        self.scene
            .mark(event, Layer::Bar, Shape::Rect(bar, 3.0), "gap");
        self.scene
            .mark(event, Layer::Bar, Shape::Path(hatch(bar, 7.0)), "gap-hatch");
        let end = belief.to_ms.unwrap_or(self.axis.domain().1);
        let length = duration(end - truth_ms.unwrap_or(belief.from_ms));
        let open = if belief.to_ms.is_none() {
            "more than "
        } else {
            ""
        };
        let wordings = [
            format!("still believes it holds: {open}{length} after its lease ended"),
            format!("believes, without a lease: {open}{length}"),
            format!("believes, no lease: {open}{length}"),
        ];
        let traffic = self.traffic(belief.lane);
        let written = self.bar_text(belief.event, bar, &wordings, "strong on-gap", &traffic);
        let life = bar.bottom();
        (!written).then(|| {
            said(
                belief.event,
                bar.x + bar.w / 2.0,
                life,
                wordings[1].clone(),
                "strong",
            )
        })
    }

    /// A pause: hatched, with its length. The words keep off its start, where what was sent last leaves.
    fn pause(
        &mut self,
        event: usize,
        index: usize,
        (from_ms, to_ms): (f64, Option<f64>),
        life: f64,
    ) -> Option<Wish> {
        let (left, right) = self.span(from_ms, to_ms);
        let bar = Rect::new(left, life - PAUSE / 2.0, (right - left).max(2.0), PAUSE);
        self.scene
            .mark(Some(event), Layer::Bar, Shape::Rect(bar, 0.0), "pause");
        self.scene.mark(
            Some(event),
            Layer::Bar,
            Shape::Path(hatch(bar, 6.0)),
            "pause-hatch",
        );
        let length = duration(to_ms.unwrap_or(self.axis.domain().1) - from_ms);
        let wordings = [
            format!("paused (SIGSTOP) for {length}"),
            format!("paused {length}"),
        ];
        let mut traffic = self.traffic(index);
        traffic.extend((0..4).map(|step| left + 12.0 * f64::from(step)));
        let written = self.bar_text(event, bar, &wordings, "on-pause", &traffic);
        (!written).then(|| said(event, left, life, wordings[0].clone(), ""))
    }

    /// Where this client and one above it believed at the same time: a band between the two bars, and words for it
    /// above the lower one. Moves the height past the words.
    fn both(&mut self, index: usize) {
        let mut wishes = Vec::new();
        let mut bands = Vec::new();
        for above in 0..index {
            for (event, from_ms, to_ms) in self.shared_beliefs(above, index) {
                let (left, right) = (self.axis.x(from_ms), self.axis.x(to_ms));
                let words = format!("both believe they hold: {}", duration(to_ms - from_ms));
                wishes.push(said(event, left, 0.0, words, "strong on-both"));
                bands.push((event, left, right, self.rails.beliefs[above] + BELIEF));
            }
        }
        let (places, rows) = slots(&wishes, (MARGIN, PLOT - 4.0));
        self.y += rows as f64 * ROW;
        wishes.iter_mut().for_each(|wish| wish.y = self.y + 6.0);
        self.scene.place(wishes, &places, self.y + 2.0, true);
        for (event, left, right, upper) in bands {
            let band = Rect::new(left, upper, right - left, self.y + 8.0 - upper);
            self.scene.mark(
                Some(event),
                Layer::Ground,
                Shape::Rect(band, 0.0),
                "both-band",
            );
        }
    }

    /// The times at which two clients both believed, with the event of the lower one's belief.
    fn shared_beliefs(&self, above: usize, below: usize) -> Vec<(usize, f64, f64)> {
        let end = self.axis.domain().1;
        let beliefs = |lane: usize| {
            let id = &self.clients[lane].id;
            let events = self.act.events.iter().enumerate();
            events.filter_map(move |(event, entry)| match entry {
                Event::Believed {
                    from_ms,
                    to_ms,
                    client,
                    ..
                } if client == id => Some((event, *from_ms, to_ms.unwrap_or(end))),
                _ => None,
            })
        };
        let pairs =
            beliefs(below).flat_map(|lower| beliefs(above).map(move |upper| (lower, upper)));
        let shared =
            pairs.map(|(lower, upper)| (lower.0, lower.1.max(upper.1), lower.2.min(upper.2)));
        shared
            .filter(|(_, from_ms, to_ms)| from_ms < to_ms)
            .collect()
    }
}
