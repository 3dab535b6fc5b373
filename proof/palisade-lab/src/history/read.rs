//! Parses a history into operations: each call with its answer, if any.

use std::collections::BTreeMap;

use palisade_core::{ClientId, LockMode, Slots, Timestamp};

use super::event::{Answer, Call, Event, Header};
use super::fields;

/// A call and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its id within the history.
    pub id: u64,
    /// The client.
    pub client: ClientId,
    /// The call itself.
    pub call: Call,
    /// Read before the request was sent.
    pub sent: Timestamp,
    /// The answer and when it arrived; `None` is *unknown*: it took effect at any time, or never.
    pub answer: Option<(Timestamp, Answer)>,
}

/// A period in which the authority did not run, see [`Event::Away`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away {
    /// When it was certainly still running.
    pub from: Timestamp,
    /// When it was certainly running again.
    pub until: Timestamp,
}

/// A whole history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The authority's promises.
    pub header: Header,
    /// In the order of their calls' lines.
    pub operations: Vec<Operation>,
    /// In the order of their beginnings.
    pub away: Vec<Away>,
}

/// A malformed line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Unreadable {
    /// Counted from 1.
    pub line: usize,
    /// The mistake, and the expected text.
    pub what: String,
}

impl History {
    /// Reads a history from its text.
    ///
    /// # Errors [`Unreadable`] names the first malformed line, and the expected text.
    pub fn parse(text: &str) -> Result<History, Unreadable> {
        let mut lines = (1..).zip(text.lines());
        let header = match lines.next() {
            Some((_, first)) => fields::parse_header(first),
            None => Err("the file is empty, expected a header".to_owned()),
        };
        let header = header.map_err(|what| Unreadable { line: 1, what })?;
        let mut reader = Reader::new(header);
        for (line, text) in lines {
            let event = fields::parse_event(text);
            event
                .and_then(|event| reader.take(event))
                .map_err(|what| Unreadable { line, what })?;
        }
        Ok(reader.finish())
    }

    /// Pairs calls and answers of events in memory.
    ///
    /// # Errors
    /// [`Unreadable`] as for the same events as lines after a header.
    pub fn from_events(
        header: Header,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<History, Unreadable> {
        let mut reader = Reader::new(header);
        for (line, event) in (2..).zip(events) {
            reader
                .take(event)
                .map_err(|what| Unreadable { line, what })?;
        }
        Ok(reader.finish())
    }
}

struct Reader {
    history: History,
    place_of: BTreeMap<u64, usize>,
}

impl Reader {
    fn new(header: Header) -> Reader {
        Reader {
            history: History {
                header,
                ..History::default()
            },
            place_of: BTreeMap::new(),
        }
    }

    fn take(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Call {
                at,
                id,
                client,
                call,
            } => {
                if self
                    .place_of
                    .insert(id, self.history.operations.len())
                    .is_some()
                {
                    return Err(format!("`id` {id} already names another call"));
                }
                self.history.operations.push(Operation {
                    id,
                    client,
                    call,
                    sent: at,
                    answer: None,
                });
                Ok(())
            }
            Event::Answer { at, id, answer } => self.answer(at, id, answer),
            Event::Away { at, until } => {
                self.history.away.push(Away { from: at, until });
                Ok(())
            }
        }
    }

    fn answer(&mut self, at: Timestamp, id: u64, answer: Answer) -> Result<(), String> {
        let place = self.place_of.get(&id);
        let operation = place
            .and_then(|place| self.history.operations.get_mut(*place))
            .ok_or_else(|| format!("an answer to call {id}, which no line above makes"))?;
        if operation.answer.is_some() {
            return Err(format!("a second answer to call {id}"));
        }
        if at < operation.sent {
            return Err(format!("`at` is before call {id} was sent"));
        }
        if !fits(&operation.call, &answer) {
            return Err(format!(
                "call {id} cannot have this answer: {:?} to {:?}",
                answer, operation.call
            ));
        }
        operation.answer = Some((at, answer));
        Ok(())
    }

    fn finish(mut self) -> History {
        self.history.away.sort_by_key(|away| away.from);
        self.history
    }
}

/// Whether a call can get this kind of answer.
fn fits(call: &Call, answer: &Answer) -> bool {
    use Answer as A;
    if matches!(answer, A::Refused) {
        return true;
    }
    match call {
        Call::Acquire { mode, .. } => {
            matches!(
                answer,
                A::Granted { slots, .. } if *slots == Slots::NONE || matches!(mode, LockMode::Permits(_))
            ) || matches!(
                answer,
                A::Denied
                    | A::Held { .. }
                    | A::HeldShared { .. }
                    | A::Ended { .. }
                    | A::NotHeld
                    | A::Abandoned
            )
        }
        Call::Renew { .. } => matches!(
            answer,
            A::Renewed { .. } | A::Ended { .. } | A::NotHeld | A::Stale { .. }
        ),
        Call::Release { .. } => matches!(
            answer,
            A::Released { .. } | A::Ended { .. } | A::NotHeld | A::Stale { .. }
        ),
        Call::Abandon { .. } => matches!(answer, A::Done),
        Call::Revoke { .. } => matches!(
            answer,
            A::Revoked { .. } | A::Ended { .. } | A::NotHeld | A::Stale { .. }
        ),
        Call::Show { .. } => matches!(
            answer,
            A::Denied | A::Held { .. } | A::HeldShared { .. } | A::Free
        ),
    }
}
