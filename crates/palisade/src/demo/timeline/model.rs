//! The records of the demo's processes, from which a timeline is drawn.
//!
//! Every time is in **milliseconds since the start of the act**, on one clock of one machine, as a fraction
//! (`2013.42`). Times are measured, so nothing here expects them to be round, sorted or complete.

use serde::{Deserialize, Serialize};

/// One run of the schedule against one kind of resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Act {
    pub(crate) name: ActName,
    pub(crate) title: String,
    /// Two sentences that say what to look for.
    pub(crate) explanation: String,
    /// The events, in any order.
    pub(crate) events: Vec<TimelineEvent>,
    /// The acknowledged writes, and the resource's final content.
    pub(crate) verdict: ActEnd,
}

/// The three resources the demo compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ActName {
    /// The resource checks nothing.
    Unfenced,
    /// The resource rejects a token below the highest one of any admitted write.
    Textbook,
    /// The holder's first operation is a claim, which raises the fence before the first read.
    Claim,
}

/// One recorded event; a JSON line is one of these, tagged by `"event"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum TimelineEvent {
    /// The lock service granted the lock.
    Granted(LeaseChange),
    /// A lease expired at the lock service.
    Expired(LeaseChange),
    /// The holder released the lock.
    Released(LeaseChange),
    /// A client believed during this time that it holds the lock, rightly or wrongly.
    Believed(Period),
    /// A client was stopped (SIGSTOP).
    Paused(Period),
    /// A message from a client to the lock service, and its answer.
    Request(LockMessage),
    /// A message from a client to the resource, and its verdict.
    Operation(ResourceMessage),
    /// The resource's content from now on.
    Content(Content),
}

/// A change of a lease at the lock service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LeaseChange {
    /// When the change was logged.
    pub(crate) at_ms: f64,
    pub(crate) client: String,
    pub(crate) token: u64,
    /// How long a granted lease lasts without renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_ms: Option<f64>,
}

/// A period in which a client believed or was stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Period {
    pub(crate) from_ms: f64,
    /// Absent if it never ended.
    pub(crate) to_ms: Option<f64>,
    pub(crate) client: String,
    /// The token of the believed grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<u64>,
}

/// The resource after a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Content {
    /// When the change was durable.
    pub(crate) at_ms: f64,
    pub(crate) items: Vec<String>,
    /// The fence's highest token; absent for a store without a fence.
    pub(crate) highest: Option<u64>,
}

/// The times of one message. Each process fills in its own observations; [`merge`] joins the halves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Message {
    /// Identifies the message, so that the records of sender and receiver can be joined.
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) client: String,
    /// When the client handed it to the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sent_ms: Option<f64>,
    /// When the receiver had read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) arrived_ms: Option<f64>,
    /// When the receiver had decided, durably.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) decided_ms: Option<f64>,
    /// When the client had read the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answered_ms: Option<f64>,
}

/// A message to the lock service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LockMessage {
    #[serde(flatten)]
    pub(crate) message: Message,
    pub(crate) request: LockMessageKind,
    /// The answer; absent if nobody saw one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<LockAnswer>,
}

/// A client's request to the lock service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LockMessageKind {
    /// Ask for the lock.
    Acquire,
    /// Give the lock back.
    Release,
}

/// The lock service's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LockAnswer {
    /// The lock is granted, with this token.
    Granted(u64),
    /// Released.
    Done,
    /// Refused for another reason: the code of the answer.
    Refused(String),
}

/// A message to the resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ResourceMessage {
    #[serde(flatten)]
    pub(crate) message: Message,
    pub(crate) operation: OperationKind,
    /// The fencing token of the operation; absent if none was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<u64>,
    /// The value that was written, or that a read returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    /// The resource's verdict; absent if nobody saw one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<Ruling>,
}

/// A client's request to the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OperationKind {
    /// Raise the fence to the token.
    Claim,
    /// Read the content.
    Read,
    /// Change the content.
    Write,
}

/// The resource's verdict on one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ruling {
    /// Executed without a check of a token.
    Unchecked,
    /// The fence admitted it.
    Admitted,
    /// The fence rejected it: its token is below this highest one.
    Rejected(u64),
}

/// An update: its client, and the item it added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Update {
    pub(crate) client: String,
    /// The item, spelled as in [`TimelineEvent::Content`].
    pub(crate) item: String,
}

/// The end of an act: the answers to the clients, and the resource's content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActEnd {
    /// Updates whose writer got "done".
    pub(crate) acknowledged: Vec<Update>,
    /// Updates whose writer got "rejected".
    pub(crate) rejected: Vec<Update>,
    /// The resource's content when the act ended.
    pub(crate) content: Vec<String>,
    /// Why the act did not follow its schedule, if so; the verdict then proves nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) incomplete: Option<String>,
}

/// The result of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActOutcome {
    /// An acknowledged update is gone.
    Lost,
    /// Every acknowledged update is present.
    Kept,
    /// The run did not follow the schedule.
    Incomplete,
}

impl Act {
    /// An act without events, with the demo's title and explanation.
    pub(crate) fn new(name: ActName) -> Self {
        Self {
            name,
            title: name.title().into(),
            explanation: name.explanation().into(),
            events: Vec::new(),
            verdict: ActEnd::default(),
        }
    }
}

impl ActName {
    /// The act's name on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Unfenced => "unfenced",
            Self::Textbook => "textbook",
            Self::Claim => "claim",
        }
    }

    /// The default heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Unfenced => "Unfenced: the resource checks nothing",
            Self::Textbook => {
                "Textbook fence: only writes are checked, and only they raise the fence"
            }
            Self::Claim => "Claim fence: the new holder raises the fence before it reads",
        }
    }

    /// The default explanation: two sentences.
    pub(crate) fn explanation(self) -> &'static str {
        match self {
            Self::Unfenced => {
                "Client A is paused past the end of its lease, wakes up, still believes that it holds the lock, and \
                 writes what it computed before the pause. The resource takes the write, and the update that B was told \
                 is safe is overwritten."
            }
            Self::Textbook => {
                "A’s write is delayed in the network and arrives after B has read but before B has written: the fence has \
                 seen no higher token yet, so the write is admitted and acknowledged. B then writes what it computed \
                 from its earlier read, and A’s acknowledged update is gone."
            }
            Self::Claim => {
                "B’s first operation is a claim, which raises the fence to 2 before B reads anything. A’s delayed write \
                 carries token 1, is rejected, and A learns of it: nothing that was acknowledged is lost."
            }
        }
    }

    /// A short name of the resource.
    pub(crate) fn resource(self) -> &'static str {
        match self {
            Self::Unfenced => "no fence",
            Self::Textbook => "textbook fence",
            Self::Claim => "claim fence",
        }
    }
}

impl ActEnd {
    /// The act's result, computed from its records.
    pub(crate) fn outcome(&self) -> ActOutcome {
        match (&self.incomplete, self.lost().is_empty()) {
            (Some(_), _) => ActOutcome::Incomplete,
            (None, true) => ActOutcome::Kept,
            (None, false) => ActOutcome::Lost,
        }
    }

    /// The acknowledged updates that are missing from the final content.
    pub(crate) fn lost(&self) -> Vec<&Update> {
        self.acknowledged
            .iter()
            .filter(|update| !self.content.contains(&update.item))
            .collect()
    }

    /// The verdict in words.
    pub(crate) fn headline(&self) -> String {
        match self.outcome() {
            ActOutcome::Incomplete => format!(
                "inconclusive: {}",
                self.incomplete.as_deref().unwrap_or_default()
            ),
            ActOutcome::Lost => format!(
                "acknowledged update of {} lost",
                writers(self.lost().into_iter())
            ),
            ActOutcome::Kept if self.rejected.is_empty() => "nothing lost".to_owned(),
            ActOutcome::Kept => format!(
                "nothing lost: {}’s late write was rejected",
                writers(self.rejected.iter())
            ),
        }
    }
}

/// The distinct writers of these updates.
fn writers<'a>(updates: impl Iterator<Item = &'a Update>) -> String {
    let mut names: Vec<&str> = updates.map(|update| update.client.as_str()).collect();
    names.dedup();
    names.join(" and ")
}

/// Joins the records of one message that different processes wrote: records of equal kind and id become one event.
/// Other events pass through, in order.
#[must_use]
pub(crate) fn merge(records: impl IntoIterator<Item = TimelineEvent>) -> Vec<TimelineEvent> {
    let mut merged: Vec<TimelineEvent> = Vec::new();
    for record in records {
        if !merged.iter_mut().any(|known| known.absorb(&record)) {
            merged.push(record);
        }
    }
    merged
}

impl TimelineEvent {
    /// The client that the event is about, if any.
    pub(crate) fn client(&self) -> Option<&str> {
        match self {
            Self::Granted(lease) | Self::Expired(lease) | Self::Released(lease) => {
                Some(&lease.client)
            }
            Self::Believed(period) | Self::Paused(period) => Some(&period.client),
            Self::Request(LockMessage { message, .. })
            | Self::Operation(ResourceMessage { message, .. }) => Some(&message.client),
            Self::Content(_) => None,
        }
    }

    /// Every finite time that the event mentions.
    pub(crate) fn instants(&self) -> Vec<f64> {
        let times = match self {
            Self::Granted(LeaseChange { at_ms, .. })
            | Self::Expired(LeaseChange { at_ms, .. })
            | Self::Released(LeaseChange { at_ms, .. })
            | Self::Content(Content { at_ms, .. }) => vec![Some(*at_ms)],
            Self::Believed(period) | Self::Paused(period) => {
                vec![Some(period.from_ms), period.to_ms]
            }
            Self::Request(LockMessage { message: m, .. })
            | Self::Operation(ResourceMessage { message: m, .. }) => {
                vec![m.sent_ms, m.arrived_ms, m.decided_ms, m.answered_ms]
            }
        };
        let times = times.into_iter().flatten();
        times.filter(|time| time.is_finite()).collect()
    }

    /// Adds the times in `other` about the same message; false if it is about another message.
    fn absorb(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Self::Request(mine), Self::Request(theirs))
                if mine.message.id == theirs.message.id =>
            {
                mine.message.absorb(&theirs.message);
                mine.answer = mine.answer.take().or_else(|| theirs.answer.clone());
            }
            (Self::Operation(mine), Self::Operation(theirs))
                if mine.message.id == theirs.message.id =>
            {
                mine.message.absorb(&theirs.message);
                mine.token = mine.token.or(theirs.token);
                mine.value = mine.value.take().or_else(|| theirs.value.clone());
                mine.verdict = mine.verdict.or(theirs.verdict);
            }
            _ => return false,
        }
        true
    }
}

impl Message {
    /// Fills the gaps of this record from another one of the same message.
    fn absorb(&mut self, other: &Self) {
        if self.client.is_empty() {
            self.client.clone_from(&other.client);
        }
        self.sent_ms = self.sent_ms.or(other.sent_ms);
        self.arrived_ms = self.arrived_ms.or(other.arrived_ms);
        self.decided_ms = self.decided_ms.or(other.decided_ms);
        self.answered_ms = self.answered_ms.or(other.answered_ms);
    }
}
