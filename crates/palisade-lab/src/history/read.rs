//! From the text of a history to its operations: every call with the answer it got, if any.

use std::collections::BTreeMap;

use palisade_core::{ClientId, Timestamp};

use super::event::{Answer, Call, Event, Header};
use super::fields;

/// A call and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its name within the history.
    pub id: u64,
    /// Who asked.
    pub client: ClientId,
    /// What for.
    pub call: Call,
    /// Read before the request was sent.
    pub sent: Timestamp,
    /// The answer and when it was there; `None` is *unknown*: it took effect at any time, or never.
    pub answer: Option<(Timestamp, Answer)>,
}

/// A span in which the authority did not run, see [`Event::Away`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away {
    /// When it surely still ran.
    pub from: Timestamp,
    /// When it surely ran again.
    pub until: Timestamp,
}

/// A whole history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// What the authority promises.
    pub header: Header,
    /// In the order of their calls' lines.
    pub operations: Vec<Operation>,
    /// In order of their beginning.
    pub away: Vec<Away>,
}

/// A line that is not what it must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Unreadable {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong, and what was expected.
    pub what: String,
}

impl History {
    /// Reads a history from its text.
    ///
    /// # Errors
    /// [`Unreadable`] names the first line that is malformed, and what was expected there.
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

    /// Pairs calls and answers that were never written down.
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
                    return Err(format!("`id` {id} names another call already"));
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
                "call {id} cannot be answered so: {:?} to {:?}",
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

/// Which answers a call can get at all.
fn fits(call: &Call, answer: &Answer) -> bool {
    use Answer as A;
    if matches!(answer, A::Refused) {
        return true;
    }
    match call {
        Call::Acquire { .. } => matches!(
            answer,
            A::Granted { .. } | A::Held { .. } | A::Ended { .. } | A::NotHeld | A::Abandoned
        ),
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
        Call::Show { .. } => matches!(answer, A::Held { .. } | A::Free),
    }
}
