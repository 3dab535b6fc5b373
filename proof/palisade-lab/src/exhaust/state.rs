//! One state of the search. Equal states count as one, whatever led to them.

use palisade_core::Token;
use palisade_core::fence::{FenceState, Mark, Sequence, Written};

use super::authority::MachineId;
use super::scope::Scope;

/// The complete state.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) machine: MachineId,
    pub(super) clients: Vec<Client>,
    /// Writes in flight, sorted.
    pub(super) network: Vec<Message>,
    /// Of the lock, or of each slot, or of each lock of a set; the second is unused for a plain lock.
    pub(super) resources: [Resource; 2],
    /// The highest token ever issued, even if the authority has forgotten it.
    pub(super) issued: Option<Token>,
    /// Below this token also a live holder may be refused: an operator armed the fence there, or the authority was
    /// restored.
    pub(super) floor: Option<Token>,
    /// The state from which a restore would start.
    pub(super) backup: MachineId,
    pub(super) left: Left,
}

/// A resource.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Resource {
    /// `None`: lost, and not yet armed again. Fences are lost together.
    pub(super) fence: Option<Kept>,
    /// The set at the resource, one bit per add.
    pub(super) value: u32,
    /// The adds whose writers got an acknowledgement.
    pub(super) acknowledged: u32,
}

/// How many events of each kind may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Left {
    pub(super) grants: u8,
    pub(super) resends: u8,
    pub(super) crashes: u8,
}

/// One contender.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) phase: Phase,
    /// The number of its wishes so far; numbers its requests and leases.
    pub(super) asks: u8,
    /// The token of its grant; the guard never changes it.
    pub(super) token: Option<Token>,
    /// The number of its grant; if it is shared, not its token.
    pub(super) grant: Option<Token>,
    /// Whether it was a writer in this wish and is a reader now.
    pub(super) downgraded: bool,
    /// Whether it has asked for the upgrade of its grant in this wish, and the result.
    pub(super) upgrade: Upgrade,
    /// The first of its resources: that of its slot.
    pub(super) slot: u8,
    /// How many of its resources it has claimed.
    pub(super) claimed: u8,
    /// How many of its resources it has read.
    pub(super) read: u8,
    /// The sets that it read, with its own adds.
    pub(super) known: [u32; 2],
    /// How many writes of this grant were acknowledged; they go to its resources in turns.
    pub(super) written: u8,
}

impl Client {
    /// Nothing asked for.
    pub(super) const NEW: Client = Client {
        phase: Phase::Idle,
        asks: 0,
        token: None,
        grant: None,
        downgraded: false,
        upgrade: Upgrade::None,
        slot: 0,
        claimed: 0,
        read: 0,
        known: [0; 2],
        written: 0,
    };
}

/// How far a reader's upgrade is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Upgrade {
    None,
    /// It waits.
    Asked,
    /// It was given up while it waited.
    GivenUp,
    /// It was granted: the reader is the writer.
    Granted,
}

/// The phase of a contender.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Has not requested anything yet, or has finished.
    Idle,
    /// In the queue.
    Waiting,
    /// Was in the queue of an authority that crashed, or of another node.
    Forgotten,
    /// Has a token.
    Holding,
    /// Has raised the fence.
    Claimed,
    /// Knows the set.
    Read,
    /// Has sent a write and waits for its answer.
    Sent,
}

/// A write in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Message {
    pub(super) client: u8,
    /// The wish of the client; an answer to an earlier wish is ignored.
    pub(super) ask: u8,
    /// The number of the write within the grant.
    pub(super) turn: u8,
    pub(super) resource: u8,
    /// The number of the write within the grant and the resource.
    pub(super) number: u8,
    pub(super) token: Token,
    /// The whole set according to its writer.
    pub(super) value: u32,
}

/// A fence's state without names, which nobody uses here.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Kept {
    mark: Option<(Token, LastWrite)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum LastWrite {
    Nothing,
    Unnumbered,
    Through(Sequence),
}

impl State {
    pub(super) fn first(scope: Scope, machine: MachineId) -> State {
        let resource = Resource {
            fence: Some(Kept::default()),
            value: 0,
            acknowledged: 0,
        };
        State {
            machine,
            clients: vec![Client::NEW; usize::from(scope.clients)],
            network: Vec::new(),
            resources: [resource; 2],
            issued: None,
            floor: None,
            backup: machine,
            left: Left {
                grants: scope.grants,
                resends: scope.resends,
                crashes: scope.crashes,
            },
        }
    }

    pub(super) fn is_armed(&self) -> bool {
        self.resources[0].fence.is_some()
    }

    /// Acknowledged adds that are gone.
    pub(super) fn lost(&self) -> u32 {
        let lost = self
            .resources
            .iter()
            .map(|resource| resource.acknowledged & !resource.value);
        lost.fold(0, |all, lost| all | lost)
    }

    /// All fences are the same from now on.
    pub(super) fn set_fences(&mut self, fence: Option<Kept>) {
        for resource in &mut self.resources {
            resource.fence = fence;
        }
    }

    pub(super) fn send(&mut self, message: Message) {
        let place = self.network.partition_point(|other| *other < message);
        self.network.insert(place, message);
    }
}

impl Message {
    /// The bit of the next add.
    pub(super) fn bit(&self) -> u32 {
        let number = (self.client * 4 + self.ask - 1) * 2 + self.number;
        1 << number
    }
}

impl Kept {
    pub(super) fn of(state: &FenceState) -> Kept {
        Kept {
            mark: state.mark.map(|mark| {
                let wrote = match mark.written {
                    Written::Nothing => LastWrite::Nothing,
                    Written::Unnumbered => LastWrite::Unnumbered,
                    Written::Through(last) => LastWrite::Through(last),
                };
                (mark.token, wrote)
            }),
        }
    }

    pub(super) fn state(self) -> FenceState {
        FenceState {
            mark: self.mark.map(|(token, wrote)| Mark {
                token,
                written: match wrote {
                    LastWrite::Nothing => Written::Nothing,
                    LastWrite::Unnumbered => Written::Unnumbered,
                    LastWrite::Through(last) => Written::Through(last),
                },
            }),
            ..FenceState::default()
        }
    }
}
