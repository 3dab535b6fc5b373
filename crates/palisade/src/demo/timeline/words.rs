//! Texts for events and times.

use super::model::{
    Content, LeaseChange, LockAnswer, LockMessage, LockMessageKind, Message, OperationKind, Period,
    ResourceMessage, Ruling, TimelineEvent,
};

/// An event as one sentence, without its time.
pub(super) fn describe(event: &TimelineEvent) -> String {
    match event {
        TimelineEvent::Granted(LeaseChange {
            client,
            token,
            ttl_ms,
            ..
        }) => {
            let ttl = duration(ttl_ms.unwrap_or_default());
            format!("the lock service grants {client} a lease: token {token}, TTL {ttl}")
        }
        TimelineEvent::Expired(LeaseChange { client, token, .. }) => {
            format!("the lease of {client} (token {token}) expires")
        }
        TimelineEvent::Released(LeaseChange { client, token, .. }) => {
            format!("{client} releases the lock (token {token})")
        }
        TimelineEvent::Believed(period) => {
            let (client, length) = (&period.client, length(period));
            format!("{client} believes that it holds the lock {length}")
        }
        TimelineEvent::Paused(period) => {
            format!("{} is paused (SIGSTOP) {}", period.client, length(period))
        }
        TimelineEvent::Request(LockMessage {
            message,
            request,
            answer,
        }) => {
            let asked = match request {
                LockMessageKind::Acquire => "acquire",
                LockMessageKind::Release => "release",
            };
            let answered = match answer {
                Some(LockAnswer::Granted(token)) => format!("granted, token {token}"),
                Some(LockAnswer::Done) => "done".to_owned(),
                Some(LockAnswer::Refused(code)) => format!("refused: {code}"),
                None => "no answer seen".to_owned(),
            };
            format!("{} → lock service: {asked}; {answered}", message.client)
        }
        TimelineEvent::Operation(operation) => {
            let late = in_flight(&operation.message)
                .map(|ms| format!(" after {} in the network", duration(ms)));
            let (words, late) = (label(operation).join(", "), late.unwrap_or_default());
            format!("at the resource: {words}{late}")
        }
        TimelineEvent::Content(Content { items, highest, .. }) => {
            let fence = highest.map_or("no fence".to_owned(), |token| {
                format!("the fence stands at token {token}")
            });
            format!("the list holds {}; {fence}", listed(items))
        }
    }
}

/// The items of the list.
pub(super) fn listed(items: &[String]) -> String {
    match items {
        [] => "nothing".to_owned(),
        items => items.join(", "),
    }
}

fn length(period: &Period) -> String {
    let end = period.to_ms;
    end.map_or("to the end".to_owned(), |end| {
        format!("for {}", duration(end - period.from_ms))
    })
}

/// A client's request to the resource.
pub(super) fn asked(operation: &ResourceMessage) -> String {
    match operation.operation {
        OperationKind::Claim => "claims".to_owned(),
        OperationKind::Read => "reads".to_owned(),
        OperationKind::Write => format!(
            "writes “{}”",
            operation.value.as_deref().unwrap_or_default()
        ),
    }
}

/// The label of an operation, line by line: client and operation, token, and result.
pub(crate) fn label(operation: &ResourceMessage) -> Vec<String> {
    let mut lines = vec![format!("{} {}", operation.message.client, asked(operation))];
    lines.extend(operation.token.map(|token| format!("token {token}")));
    let is_read = operation.operation == OperationKind::Read;
    lines.push(match (operation.verdict, operation.value.as_deref()) {
        (Some(Ruling::Rejected(highest)), _) => {
            let token = operation.token.unwrap_or_default();
            format!("rejected: {token} < {highest}")
        }
        (Some(_), Some("")) if is_read => "finds nothing".to_owned(),
        (Some(_), Some(value)) if is_read => format!("finds “{value}”"),
        (Some(Ruling::Unchecked), _) => "not checked".to_owned(),
        (Some(Ruling::Admitted), _) => "admitted".to_owned(),
        (None, _) => "no verdict".to_owned(),
    });
    lines
}

/// How long a message was in flight, if that was long enough to show.
pub(super) fn in_flight(message: &Message) -> Option<f64> {
    let flight = message.arrived_ms? - message.sent_ms?;
    (flight >= LONG_MS).then_some(flight)
}

/// Only delays longer than this are shown, ms.
pub(super) const LONG_MS: f64 = 100.0;

/// A duration in a readable unit: `0.4 ms`, `38 ms`, `2.01 s`.
pub(crate) fn duration(ms: f64) -> String {
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
