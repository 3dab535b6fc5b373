//! The lane of the resource: verdicts on a line, their labels, the fence as a rising step, and the content as chips.

use super::super::geometry::Rect;
use super::super::model::{Admission, Event, Operation, Role};
use super::super::scene::{Layer, Run, Shape, Sign, Wish};
use super::super::spans::operation_words;
use super::{Layout, PLOT};

/// Height of the fence's step chart.
const FENCE: f64 = 30.0;
/// Height of the strip that shows when the content changed.
const STRIP: f64 = 8.0;

/// A state of the resource.
#[derive(Clone)]
struct State {
    /// The event, by index.
    event: usize,
    /// From where on, in pixels.
    x: f64,
    /// What it holds.
    items: Vec<String>,
    /// The fence.
    highest: Option<u64>,
}

impl Layout<'_> {
    /// Draws the lane.
    pub(super) fn resource(&mut self) {
        let top = self.y;
        let line = top + 16.0;
        self.rails.resource = line;
        let left = self.axis.x(self.axis.domain().0);
        self.scene
            .line(None, Layer::Ground, (left, line), (PLOT, line), "life");
        let wishes = self.verdicts(line);
        self.y = line + 14.0;
        self.labels_below(wishes);
        self.y += 10.0;
        let states = self.states();
        self.fence(&states);
        self.content(&states);
        self.y += 6.0;
        let name = self.lane_name(Role::Resource, "resource");
        self.close_lane(top, line + 6.0, &name, "");
    }

    /// A sign on the line for every operation that arrived, and the label that goes with it.
    fn verdicts(&mut self, line: f64) -> Vec<Wish> {
        let mut wishes = Vec::new();
        for (event, entry) in self.act.events.iter().enumerate() {
            let Event::Operation(operation) = entry else {
                continue;
            };
            let Some(ms) = operation
                .message
                .decided_ms
                .or(operation.message.arrived_ms)
            else {
                continue;
            };
            let x = self.axis.x(ms);
            let (sign, class) = sign(operation);
            super::super::sign::shapes(sign, (x, line))
                .into_iter()
                .for_each(|(shape, class)| {
                    self.scene.mark(Some(event), Layer::Sign, shape, class);
                });
            let colour = self.colour(&operation.message.client);
            let who = Run::Text(
                format!("{}:", operation.message.client),
                format!("strong ink-{colour}"),
            );
            let what = Run::Text(operation_words(operation), class.to_owned());
            wishes.push(Wish {
                event: Some(event),
                x,
                y: line + 7.0,
                runs: vec![Run::Sign(sign), who, what],
            });
        }
        wishes
    }

    /// The states of the resource in order of time.
    fn states(&self) -> Vec<State> {
        let events = self.act.events.iter().enumerate();
        let mut states: Vec<State> = events
            .filter_map(|(event, entry)| match entry {
                Event::Content {
                    at_ms,
                    items,
                    highest,
                } => Some(State {
                    event,
                    x: self.axis.x(*at_ms),
                    items: items.clone(),
                    highest: *highest,
                }),
                _ => None,
            })
            .collect();
        states.sort_by(|a, b| a.x.total_cmp(&b.x));
        states
    }

    /// The fence's highest token as a rising step; nothing for a store without a fence.
    fn fence(&mut self, states: &[State]) {
        let fenced: Vec<&State> = states
            .iter()
            .filter(|state| state.highest.is_some())
            .collect();
        let mut levels: Vec<u64> = fenced.iter().filter_map(|state| state.highest).collect();
        levels.sort_unstable();
        levels.dedup();
        if fenced.is_empty() {
            return;
        }
        let base = self.y + FENCE;
        let level = |state: &State| {
            let rank = state
                .highest
                .and_then(|highest| levels.iter().position(|known| *known == highest));
            base - 4.0 - (FENCE - 8.0) * rank.unwrap_or(0) as f64 / (levels.len() - 1).max(1) as f64
        };
        let ends = fenced.iter().skip(1).map(|next| next.x).chain([PLOT]);
        let mut before: Option<f64> = None;
        for (state, end) in fenced.iter().zip(ends) {
            let (event, y) = (Some(state.event), level(state));
            let area = Rect::new(state.x, y, (end - state.x).max(0.0), base - y);
            self.scene
                .mark(event, Layer::Bar, Shape::Rect(area, 0.0), "fence-area");
            if let Some(known) = before {
                self.scene
                    .line(event, Layer::Bar, (state.x, known), (state.x, y), "fence");
            }
            self.scene
                .line(event, Layer::Bar, (state.x, y), (end, y), "fence");
            before = Some(y);
        }
        self.y = base + 4.0;
    }

    /// The content: a strip that is cut where it changed, and what it holds from there on.
    fn content(&mut self, states: &[State]) {
        let ends: Vec<f64> = states
            .iter()
            .skip(1)
            .map(|next| next.x)
            .chain([PLOT])
            .collect();
        let mut wishes = Vec::new();
        let mut before: Option<&State> = None;
        for (state, end) in states.iter().zip(ends) {
            let strip = Rect::new(state.x, self.y, (end - state.x - 3.0).max(1.0), STRIP);
            self.scene.mark(
                Some(state.event),
                Layer::Bar,
                Shape::Rect(strip, 1.0),
                "strip",
            );
            let runs = state_runs(before, state);
            if !runs.is_empty() {
                wishes.push(Wish {
                    event: Some(state.event),
                    x: state.x,
                    y: self.y + STRIP,
                    runs,
                });
            }
            before = Some(state);
        }
        self.y += STRIP + 6.0;
        self.labels_below(wishes);
    }
}

/// What changed from one state to the next: the fence if it rose, the content if it differs, and what is gone from it.
fn state_runs(before: Option<&State>, state: &State) -> Vec<Run> {
    let mut runs = Vec::new();
    if let Some(highest) = state
        .highest
        .filter(|_| before.is_none_or(|known| known.highest != state.highest))
    {
        runs.extend(fence_runs(before.and_then(|known| known.highest), highest));
    }
    if before.is_none_or(|known| known.items != state.items) {
        runs.extend(
            state
                .items
                .iter()
                .map(|item| Run::Chip(item.clone(), "chip".to_owned())),
        );
        let gone = before
            .into_iter()
            .flat_map(|known| &known.items)
            .filter(|item| !state.items.contains(item));
        runs.extend(gone.map(|item| Run::Chip(item.clone(), "chip gone".to_owned())));
    }
    runs
}

/// The fence's new height. A fence only ever rises; one that fell is broken, and the picture says so.
fn fence_runs(before: Option<u64>, highest: u64) -> Vec<Run> {
    let words = |text: &str, class: &str| {
        Run::Text(
            format!("{text}: highest = {highest}"),
            format!("strong {class}"),
        )
    };
    match before {
        Some(known) if known > highest => vec![words("fence FELL", "ink-reject")],
        Some(_) => vec![Run::Sign(Sign::Raise), words("fence", "ink-fence")],
        None => vec![words("fence", "ink-fence")],
    }
}

/// The sign of an operation's verdict and the class of its words.
fn sign(operation: &Operation) -> (Sign, &'static str) {
    match operation.verdict {
        Some(Admission::Admitted) => (Sign::Admit, ""),
        Some(Admission::Rejected(_)) => (Sign::Reject, "strong ink-reject"),
        Some(Admission::Unchecked) => (Sign::Unchecked, ""),
        None => (Sign::Unknown, ""),
    }
}
