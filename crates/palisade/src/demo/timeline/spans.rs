//! The elements of an act: periods of time, drawn as bars, and steps at the resource, drawn as signs.

use super::model::{
    Act, Content, LeaseChange, LockMessageKind, Message, OperationKind, Period, ResourceMessage,
    Ruling, TimelineEvent,
};
use super::words::{LONG_MS, asked, duration, in_flight, label, listed};

/// The rows of the picture from top to bottom. The number is the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PictureRow {
    /// Leases at the lock service.
    Lease,
    /// When this client and another one both believe that they hold the lock.
    Both(usize),
    /// When this client believes that it holds the lock, and when it waits.
    Belief(usize),
    /// When this client is stopped.
    Pause(usize),
    /// Messages of this client that the network delays.
    Network(usize),
    /// The fence's highest token.
    Fence,
    /// The resource's content.
    Content,
}

/// The style of a bar; each has a CSS class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BarStyle {
    /// A lease.
    Lease,
    /// A correct belief.
    Belief,
    /// A wrong belief: the lease is over.
    Gap,
    /// Waiting for the lock.
    Wait,
    /// Stopped.
    Pause,
    /// In the network.
    Network,
    /// Two beliefs at once.
    Both,
    /// The fence's highest token.
    Fence,
    /// A fence whose token fell, or content that lacks an acknowledged update.
    Lost,
    /// Content.
    Content,
}

/// A span of time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PictureSpan {
    /// The event that it shows, by index.
    pub(super) event: usize,
    /// Its row.
    pub(super) row: PictureRow,
    /// From when, ms.
    pub(super) from: f64,
    /// Until when, ms; never before `from`.
    pub(super) to: f64,
    /// The text on the bar.
    pub(super) words: String,
    /// Its style.
    pub(super) style: BarStyle,
}

/// An operation at the resource.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ResourceStep<'a> {
    /// The event that it shows, by index.
    pub(super) event: usize,
    /// When the resource decided, ms.
    pub(super) at: f64,
    /// The operation.
    pub(super) operation: &'a ResourceMessage,
    /// The text below its sign, line by line.
    pub(super) lines: Vec<String>,
    /// Whether it is a write that must not take effect.
    pub(super) is_dangerous: bool,
}

impl Act {
    /// The clients that events mention, by name.
    pub(super) fn clients(&self) -> Vec<&str> {
        let mut clients: Vec<&str> = self
            .events
            .iter()
            .filter_map(TimelineEvent::client)
            .collect();
        clients.sort_unstable();
        clients.dedup();
        clients
    }

    /// The number of a client.
    pub(super) fn number(&self, client: &str) -> usize {
        let clients = self.clients();
        clients
            .iter()
            .position(|known| *known == client)
            .unwrap_or(0)
    }

    /// The end of the picture: a little after the last event, ms.
    pub(super) fn end(&self) -> f64 {
        let last = self
            .events
            .iter()
            .flat_map(TimelineEvent::instants)
            .fold(0.0, f64::max);
        last * 1.03 + 1.0
    }

    /// Whether this write took effect after somebody else was granted the lock with a higher token.
    pub(super) fn is_dangerous(&self, operation: &ResourceMessage) -> bool {
        let done = matches!(
            operation.verdict,
            Some(Ruling::Admitted | Ruling::Unchecked)
        );
        let (Some(own), Some(decided)) = (operation.token, operation.message.decided_ms) else {
            return false;
        };
        let outdated = self.events.iter().any(|event| {
            matches!(event, TimelineEvent::Granted(next) if next.token > own && next.at_ms <= decided)
        });
        operation.operation == OperationKind::Write && done && outdated
    }

    /// The operations that reached the resource, in order of time.
    pub(super) fn steps(&self) -> Vec<ResourceStep<'_>> {
        let events = self.events.iter().enumerate();
        let mut steps: Vec<ResourceStep<'_>> = events
            .filter_map(|(event, entry)| {
                let TimelineEvent::Operation(operation) = entry else {
                    return None;
                };
                let message = &operation.message;
                let at = message
                    .decided_ms
                    .or(message.arrived_ms)
                    .or(message.sent_ms)?;
                let (lines, is_dangerous) = (label(operation), self.is_dangerous(operation));
                at.is_finite().then_some(ResourceStep {
                    event,
                    at,
                    operation,
                    lines,
                    is_dangerous,
                })
            })
            .collect();
        steps.sort_by(|a, b| a.at.total_cmp(&b.at));
        steps
    }

    /// All periods of time.
    pub(super) fn spans(&self) -> Vec<PictureSpan> {
        let mut spans = Vec::new();
        for (event, entry) in self.events.iter().enumerate() {
            self.add(&mut spans, event, entry);
        }
        self.shared_beliefs(&mut spans);
        self.states(&mut spans);
        spans
    }

    fn add(&self, spans: &mut Vec<PictureSpan>, event: usize, entry: &TimelineEvent) {
        let number = self.number(entry.client().unwrap_or_default());
        let mut add = |row, from, to: Option<f64>, style, words| {
            spans.extend(self.span(event, row, (from, to), style, words));
        };
        match entry {
            TimelineEvent::Granted(LeaseChange {
                at_ms,
                client,
                token,
                ttl_ms,
            }) => {
                let ttl = duration(ttl_ms.unwrap_or_default());
                let words = format!("lease of {client}: token {token}, TTL {ttl}");
                add(
                    PictureRow::Lease,
                    *at_ms,
                    self.lease_end(*token),
                    BarStyle::Lease,
                    words,
                );
            }
            TimelineEvent::Believed(Period {
                from_ms,
                to_ms,
                client,
                token,
            }) => {
                let (row, end) = (PictureRow::Belief(number), to_ms.unwrap_or(self.end()));
                let lease_end = token.and_then(|token| self.lease_end(token));
                let right = lease_end.unwrap_or(end).clamp(*from_ms, end.max(*from_ms));
                let words = format!("{client} believes that it holds the lock");
                add(row, *from_ms, Some(right), BarStyle::Belief, words);
                if end > right {
                    let words = format!("{client} still believes it: {}", duration(end - right));
                    add(row, right, Some(end), BarStyle::Gap, words);
                }
            }
            TimelineEvent::Paused(Period {
                from_ms,
                to_ms,
                client,
                ..
            }) => {
                let length = duration(to_ms.unwrap_or(self.end()) - from_ms);
                let words = format!("{client} is paused (SIGSTOP): {length}");
                add(
                    PictureRow::Pause(number),
                    *from_ms,
                    *to_ms,
                    BarStyle::Pause,
                    words,
                );
            }
            TimelineEvent::Request(request) if request.request == LockMessageKind::Acquire => {
                let message = &request.message;
                if let Some((from, to)) = waited(message) {
                    let words = format!(
                        "{} waits for the lock: {}",
                        message.client,
                        duration(to - from)
                    );
                    add(
                        PictureRow::Belief(number),
                        from,
                        Some(to),
                        BarStyle::Wait,
                        words,
                    );
                }
            }
            TimelineEvent::Operation(operation) => {
                let message = &operation.message;
                if let (Some(flight), Some(from)) = (in_flight(message), message.sent_ms) {
                    let (client, flight) = (&message.client, duration(flight));
                    let verb = asked(operation).replacen("writes", "write", 1);
                    let words = format!("{client}’s {verb} is in the network: {flight}");
                    add(
                        PictureRow::Network(number),
                        from,
                        message.arrived_ms,
                        BarStyle::Network,
                        words,
                    );
                }
            }
            _ => {}
        }
    }

    /// A span with finite ends in order. Without an end it lasts to the end of the picture.
    fn span(
        &self,
        event: usize,
        row: PictureRow,
        (from, to): (f64, Option<f64>),
        style: BarStyle,
        words: String,
    ) -> Option<PictureSpan> {
        let to = to.filter(|to| to.is_finite());
        let to = to.unwrap_or(self.end()).max(from);
        let span = PictureSpan {
            event,
            row,
            from,
            to,
            words,
            style,
        };
        from.is_finite().then_some(span)
    }

    /// When the lease with this token ended, ms; `None` if it did not.
    fn lease_end(&self, token: u64) -> Option<f64> {
        self.events.iter().find_map(|event| match event {
            TimelineEvent::Expired(end) | TimelineEvent::Released(end) if end.token == token => {
                Some(end.at_ms).filter(|at_ms| at_ms.is_finite())
            }
            _ => None,
        })
    }

    /// The times at which two clients both believed that they hold the lock.
    fn shared_beliefs(&self, spans: &mut Vec<PictureSpan>) {
        let events = self.events.iter().enumerate();
        let beliefs = events.filter_map(|(event, entry)| match entry {
            TimelineEvent::Believed(period) => Some((event, self.number(&period.client), period)),
            _ => None,
        });
        let beliefs: Vec<(usize, usize, &Period)> = beliefs.collect();
        let end = |period: &Period| period.to_ms.unwrap_or(self.end());
        for (event, lower, own) in &beliefs {
            for (_, upper, other) in &beliefs {
                let (from, to) = (own.from_ms.max(other.from_ms), end(own).min(end(other)));
                if upper < lower && from < to {
                    let words = format!("both believe it: {}", duration(to - from));
                    let row = PictureRow::Both(*lower);
                    spans.extend(self.span(*event, row, (from, Some(to)), BarStyle::Both, words));
                }
            }
        }
    }

    /// The fence's token and the resource's content, from one change to the next.
    fn states(&self, spans: &mut Vec<PictureSpan>) {
        let events = self.events.iter().enumerate();
        let states = events.filter_map(|(event, entry)| match entry {
            TimelineEvent::Content(content) if content.at_ms.is_finite() => Some((event, content)),
            _ => None,
        });
        let mut states: Vec<(usize, &Content)> = states.collect();
        states.sort_by(|a, b| a.1.at_ms.total_cmp(&b.1.at_ms));
        let mut fence: Vec<_> = states.clone();
        fence.dedup_by_key(|(_, content)| content.highest);
        for (number, (event, state)) in fence.iter().enumerate() {
            let Some(highest) = state.highest else {
                continue;
            };
            let fell = fence[..number]
                .iter()
                .any(|before| before.1.highest > Some(highest));
            let (style, words) = if fell {
                (BarStyle::Lost, format!("the fence FELL to token {highest}"))
            } else {
                (BarStyle::Fence, format!("fence at token {highest}"))
            };
            let to = fence.get(number + 1).map(|next| next.1.at_ms);
            spans.extend(self.span(*event, PictureRow::Fence, (state.at_ms, to), style, words));
        }
        states.dedup_by_key(|(_, content)| &content.items);
        let mut before: &[String] = &[];
        for (number, (event, Content { at_ms, items, .. })) in states.iter().enumerate() {
            let gone = before.iter().filter(|item| !items.contains(item));
            let gone: Vec<String> = gone.cloned().collect();
            let (style, words) = if gone.is_empty() {
                (BarStyle::Content, listed(items))
            } else {
                (
                    BarStyle::Lost,
                    format!("{} ({} is gone)", listed(items), listed(&gone)),
                )
            };
            let to = states.get(number + 1).map(|next| next.1.at_ms);
            spans.extend(self.span(*event, PictureRow::Content, (*at_ms, to), style, words));
            before = items;
        }
    }
}

/// From when to when a client waited for the answer, if that was long enough to show.
fn waited(message: &Message) -> Option<(f64, f64)> {
    let (from, to) = (
        message.sent_ms?,
        message.answered_ms.or(message.decided_ms)?,
    );
    (to - from >= LONG_MS).then_some((from, to))
}
