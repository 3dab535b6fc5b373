//! Readings of an event list: its instants, the words for each event, and the leases as spans.

use super::model::{
    Act, Admission, Answer, Event, Lane, Message, Operation, OperationKind, Request, RequestKind,
    Role,
};

/// A lease at the lock service, from its grant to its end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseSpan {
    /// Who held it.
    pub(super) client: String,
    /// Its fencing token.
    pub(super) token: u64,
    /// When it was granted, ms.
    pub(super) from_ms: f64,
    /// When it ended, ms; absent if it was alive at the end of the act.
    pub(super) to_ms: Option<f64>,
    /// The index of the grant among the events.
    pub(super) event: usize,
}

/// The leases of an act in the order of their events. A recorded end wins; without one a lease ends when its last TTL
/// has run out, if the act went on for that long.
pub(super) fn leases(events: &[Event]) -> Vec<LeaseSpan> {
    let last = events.iter().flat_map(instants).fold(0.0, f64::max);
    let grants = events
        .iter()
        .enumerate()
        .filter_map(|(event, entry)| match entry {
            Event::Granted {
                at_ms,
                client,
                token,
                ..
            } => Some((event, *at_ms, client.clone(), *token)),
            _ => None,
        });
    grants
        .map(|(event, from_ms, client, token)| {
            let ran_out = Some(deadline(events, token)).filter(|end| *end <= last);
            let to_ms = recorded_end(events, token)
                .or(ran_out)
                .map(|end| end.max(from_ms));
            LeaseSpan {
                client,
                token,
                from_ms,
                to_ms,
                event,
            }
        })
        .collect()
}

/// When the lease with this token would run out by its last grant or renewal.
fn deadline(events: &[Event], wanted: u64) -> f64 {
    let ends = events.iter().filter_map(|event| match event {
        Event::Granted {
            at_ms,
            token,
            ttl_ms,
            ..
        }
        | Event::Renewed {
            at_ms,
            token,
            ttl_ms,
            ..
        } if *token == wanted => Some(at_ms + ttl_ms),
        _ => None,
    });
    ends.fold(0.0, f64::max)
}

/// The first recorded expiry or release of the lease with this token.
fn recorded_end(events: &[Event], wanted: u64) -> Option<f64> {
    events.iter().find_map(|event| match event {
        Event::Expired { at_ms, token, .. } | Event::Released { at_ms, token, .. }
            if *token == wanted =>
        {
            Some(*at_ms)
        }
        _ => None,
    })
}

/// Every finite time that an event mentions, ms.
pub(super) fn instants(event: &Event) -> Vec<f64> {
    let times = match event {
        Event::Granted { at_ms, .. }
        | Event::Renewed { at_ms, .. }
        | Event::Expired { at_ms, .. }
        | Event::Released { at_ms, .. }
        | Event::Content { at_ms, .. } => vec![*at_ms],
        Event::Believed { from_ms, to_ms, .. } | Event::Paused { from_ms, to_ms, .. } => {
            std::iter::once(*from_ms).chain(*to_ms).collect()
        }
        Event::Request(Request { message, .. }) | Event::Operation(Operation { message, .. }) => {
            message.instants()
        }
    };
    times.into_iter().filter(|time| time.is_finite()).collect()
}

impl Message {
    /// The recorded times in the order of a message's life.
    fn instants(&self) -> Vec<f64> {
        [
            self.sent_ms,
            self.arrived_ms,
            self.decided_ms,
            self.answered_ms,
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// The client an event is about, if any.
pub(super) fn client(event: &Event) -> Option<&str> {
    match event {
        Event::Granted { client, .. }
        | Event::Renewed { client, .. }
        | Event::Expired { client, .. }
        | Event::Released { client, .. }
        | Event::Believed { client, .. }
        | Event::Paused { client, .. } => Some(client),
        Event::Request(Request { message, .. }) | Event::Operation(Operation { message, .. }) => {
            Some(&message.client)
        }
        Event::Content { .. } => None,
    }
}

/// The client lanes of an act: those it names, then those only its events mention.
pub(super) fn clients(act: &Act) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = act
        .lanes
        .iter()
        .filter(|lane| lane.role == Role::Client)
        .cloned()
        .collect();
    for id in act.events.iter().filter_map(client) {
        if !lanes.iter().any(|lane| lane.id == id) {
            lanes.push(Lane {
                id: id.to_owned(),
                label: format!("client {id}"),
                role: Role::Client,
            });
        }
    }
    lanes
}

/// The label of the first lane with this role, or a default.
pub(super) fn lane_label(act: &Act, role: Role, default: &str) -> String {
    let lane = act.lanes.iter().find(|lane| lane.role == role);
    lane.map_or_else(|| default.to_owned(), |lane| lane.label.clone())
}

/// An event as one sentence, without its time.
pub(super) fn describe(event: &Event) -> String {
    match event {
        Event::Granted {
            client,
            token,
            ttl_ms,
            ..
        } => {
            format!(
                "lease granted to {client} with token {token}, TTL {}",
                duration(*ttl_ms)
            )
        }
        Event::Renewed {
            client,
            token,
            ttl_ms,
            ..
        } => {
            format!(
                "lease of {client} (token {token}) renewed for {}",
                duration(*ttl_ms)
            )
        }
        Event::Expired { client, token, .. } => {
            format!("lease of {client} (token {token}) expired")
        }
        Event::Released { client, token, .. } => {
            format!("lease of {client} (token {token}) released")
        }
        Event::Believed {
            from_ms,
            to_ms,
            client,
            token,
        } => {
            format!(
                "{client} believes it holds the lock with token {token}{}",
                span(*from_ms, *to_ms)
            )
        }
        Event::Paused {
            from_ms,
            to_ms,
            client,
        } => format!("{client} paused (SIGSTOP){}", span(*from_ms, *to_ms)),
        Event::Request(request) => format!(
            "{} → lock service: {}",
            request.message.client,
            request_words(request)
        ),
        Event::Operation(operation) => {
            let flight = in_flight(&operation.message)
                .map(|ms| format!(" ({} in the network)", duration(ms)));
            let highest = match operation.verdict {
                Some(Admission::Rejected(highest)) => format!(", highest is {highest}"),
                _ => String::new(),
            };
            let words = operation_words(operation);
            format!(
                "{} → resource: {words}{highest}{}",
                operation.message.client,
                flight.unwrap_or_default()
            )
        }
        Event::Content { items, highest, .. } => {
            let fence = highest.map_or_else(
                || "no fence".to_owned(),
                |token| format!("fence highest = {token}"),
            );
            format!("resource holds [{}], {fence}", items.join(", "))
        }
    }
}

/// ` for 3.1 s`, or that there was no end.
fn span(from_ms: f64, to_ms: Option<f64>) -> String {
    to_ms.map_or_else(
        || " to the end".to_owned(),
        |end| format!(" for {}", duration(end - from_ms)),
    )
}

/// What was asked of the lock service and what came back.
fn request_words(request: &Request) -> String {
    let asked = match request.request {
        RequestKind::Acquire => "acquire",
        RequestKind::Renew => "renew",
        RequestKind::Release => "release",
    };
    match &request.answer {
        Some(Answer::Granted(token)) => format!("{asked} · granted, token {token}"),
        Some(Answer::Done) => format!("{asked} · done"),
        Some(Answer::Held(holder)) => format!("{asked} · held by {holder}"),
        Some(Answer::Refused(code)) => format!("{asked} · refused: {code}"),
        None => format!("{asked} · no answer seen"),
    }
}

/// The label of an operation: what, with which token, and the verdict in a word.
pub(super) fn operation_words(operation: &Operation) -> String {
    let mut parts = vec![asked_words(operation)];
    parts.extend(operation.token.map(|token| format!("token {token}")));
    parts.push(match operation.verdict {
        Some(Admission::Unchecked) => "done unchecked".to_owned(),
        Some(Admission::Admitted) => "admitted".to_owned(),
        Some(Admission::Rejected(_)) => "rejected: stale".to_owned(),
        None => "no verdict seen".to_owned(),
    });
    parts.join(" · ")
}

/// What was asked of the resource.
pub(super) fn asked_words(operation: &Operation) -> String {
    let value = operation.value.as_deref();
    match (operation.operation, value) {
        (OperationKind::Claim, _) => "claim".to_owned(),
        (OperationKind::Read, Some("")) => "read → empty".to_owned(),
        (OperationKind::Read, Some(value)) => format!("read → “{value}”"),
        (OperationKind::Read, None) => "read".to_owned(),
        (OperationKind::Write, value) => format!("write “{}”", value.unwrap_or_default()),
    }
}

/// How long a message was under way, if that was long enough to be part of the story.
pub(super) fn in_flight(message: &Message) -> Option<f64> {
    const DELAYED_MS: f64 = 100.0;
    let flight = message.arrived_ms? - message.sent_ms?;
    (flight >= DELAYED_MS).then_some(flight)
}

/// A duration in the unit a person would use: `0.4 ms`, `38 ms`, `2.01 s`.
pub(super) fn duration(ms: f64) -> String {
    match ms.abs() {
        size if size < 0.095 => format!("{:.0} µs", ms * 1_000.0),
        size if size < 9.95 => format!("{ms:.1} ms"),
        size if size < 999.5 => format!("{ms:.0} ms"),
        _ => seconds(ms),
    }
}

/// Seconds with at most two decimals and no trailing zero.
pub(super) fn seconds(ms: f64) -> String {
    let text = format!("{:.2}", ms / 1_000.0);
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}
