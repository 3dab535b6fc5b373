//! The possible next steps and their results.

use palisade_core::fence::FenceState;
use palisade_core::limits::RESTORE_LEAP;
use palisade_core::{Granted, Outcome, Token};

use super::authority::{Authority, Step, Stepped};
use super::resource::{Decision, ResourceOp, decide};
use super::scope::{Scope, name};
use super::state::{Client, Kept, Message, Phase, Resource, State, Upgrade};
use super::weakness::{Weakness, Wrong};

/// A possible step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// A client requests the lock.
    Acquire(u8),
    /// It requests again with the same request id: the answer was lost or late.
    AskAgain(u8),
    Claim(u8),
    Read(u8),
    Write(u8),
    /// It sends its write again; the first copy may still be in flight.
    Resend(u8),
    /// A write reaches the resource, and its answer reaches the client.
    Deliver(Message),
    /// A write reaches the resource, but the answer is lost.
    DeliverUnheard(Message),
    /// A writer becomes a reader.
    Downgrade(u8),
    /// A reader in mode update wants to become the writer.
    Upgrade(u8),
    /// It gives that up while it waits for other readers.
    GiveUpUpgrade(u8),
    Release(u8),
    /// A release that was already executed arrives again.
    ReleaseAgain(u8),
    /// The holder's lease expires.
    Expire,
    ClientCrash(u8),
    AuthorityRestart,
    /// Another node takes over from the authority.
    LeaderChange,
    /// No caller of a request that waits came back in time.
    WindowEnd,
    Backup,
    AuthorityRestore,
    FenceLost,
    Rearm,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "write {} of {}", self.number, name(self.client))
    }
}

/// The settings of the search, and the authority's states.
pub(super) struct World {
    pub(super) scope: Scope,
    pub(super) weakness: Option<Weakness>,
    pub(super) authority: Authority,
}

impl World {
    /// All possible next steps.
    pub(super) fn actions(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for (client, number) in state.clients.iter().zip(0..) {
            self.client_actions(state, client, number, &mut actions);
        }
        for (place, message) in state.network.iter().enumerate() {
            // Two equal copies are one choice.
            let copy = place > 0 && state.network[place - 1] == *message;
            if state.is_armed() && !copy {
                actions.push(Action::Deliver(*message));
                let client = &state.clients[usize::from(message.client)];
                if state.left.resends > 0 && awaits(client, *message) {
                    actions.push(Action::DeliverUnheard(*message));
                }
            }
        }
        if self.authority.is_held(state.machine) {
            actions.push(Action::Expire);
        }
        if self.authority.has_orphans(state.machine) {
            actions.push(Action::WindowEnd);
        }
        if !state.is_armed() && state.issued.is_some() {
            actions.push(Action::Rearm);
        }
        if state.left.crashes > 0 {
            actions.push(Action::AuthorityRestart);
            actions.push(Action::LeaderChange);
            actions.push(Action::FenceLost);
            actions.push(Action::AuthorityRestore);
            if state.backup != state.machine {
                actions.push(Action::Backup);
            }
        }
        actions
    }

    fn client_actions(&self, state: &State, client: &Client, number: u8, to: &mut Vec<Action>) {
        let (left, armed) = (state.left, state.is_armed());
        let again = left.resends > 0;
        match client.phase {
            Phase::Idle => {
                // Contenders that never asked are interchangeable, unless their leases differ: the first of them asks next.
                let mut before = state.clients[..usize::from(number)].iter();
                let differs = self.scope.lasts_longer(number);
                let alike = client.asks == 0 && !differs && before.any(|other| other.asks == 0);
                if left.grants > 0 && !alike {
                    to.push(Action::Acquire(number));
                }
                if again && client.token.is_some() {
                    to.push(Action::ReleaseAgain(number));
                }
            }
            Phase::Waiting => {
                if again {
                    to.push(Action::AskAgain(number));
                }
                if client.upgrade == Upgrade::Asked {
                    to.push(Action::GiveUpUpgrade(number));
                }
            }
            Phase::Forgotten => to.push(Action::AskAgain(number)),
            Phase::Holding => {
                if again && !client.downgraded {
                    to.push(Action::AskAgain(number));
                }
                if armed && Weakness::claims(self.weakness) {
                    to.push(Action::Claim(number));
                } else if armed {
                    to.push(Action::Read(number));
                }
            }
            Phase::Claimed if armed => to.push(Action::Read(number)),
            Phase::Claimed => {}
            Phase::Read if !self.writes(client, number) => {
                to.push(Action::Release(number));
                let is_reader = client.upgrade == Upgrade::None && !client.downgraded;
                if self.scope.is_updater(number) && is_reader {
                    to.push(Action::Upgrade(number));
                }
            }
            Phase::Read => {
                if client.written < self.scope.writes * self.scope.locks {
                    to.push(Action::Write(number));
                }
                if client.written > 0 {
                    to.push(Action::Release(number));
                }
            }
            Phase::Sent if again => to.push(Action::Resend(number)),
            Phase::Sent => {}
        }
        let writes = self.writes(client, number);
        if self.scope.readers > 0 && writes && matches!(client.phase, Phase::Read | Phase::Sent) {
            to.push(Action::Downgrade(number));
        }
        if left.crashes > 0 && client.phase != Phase::Idle {
            to.push(Action::ClientCrash(number));
        }
    }

    /// Whether a client that holds may write.
    fn writes(&self, client: &Client, number: u8) -> bool {
        let writer = !self.scope.is_reader(number) || client.upgrade == Upgrade::Granted;
        writer && !client.downgraded
    }

    /// The next state, and its fault.
    pub(super) fn after(&mut self, state: &State, action: Action) -> (State, Option<Wrong>) {
        let mut next = state.clone();
        let wrong = self.happen(&mut next, action);
        let wrong = if next.lost() == 0 {
            wrong
        } else {
            Some(Wrong::Lost)
        };
        (next, wrong)
    }

    fn happen(&mut self, next: &mut State, action: Action) -> Option<Wrong> {
        match action {
            Action::Acquire(number) => {
                next.left.grants -= 1;
                let client = &mut next.clients[usize::from(number)];
                *client = Client {
                    asks: client.asks + 1,
                    phase: Phase::Waiting,
                    ..Client::NEW
                };
                self.ask(next, number)
            }
            Action::AskAgain(number) => {
                let client = &mut next.clients[usize::from(number)];
                match client.phase {
                    Phase::Forgotten => client.phase = Phase::Waiting,
                    _ => next.left.resends -= 1,
                }
                match client.upgrade {
                    Upgrade::None | Upgrade::GivenUp => self.ask(next, number),
                    Upgrade::Asked | Upgrade::Granted => self.upgrade(next, number),
                }
            }
            Action::Claim(number) => self.at_resource(next, number, ResourceOp::Claim),
            Action::Read(number) => self.at_resource(next, number, ResourceOp::Read),
            Action::Write(number) => {
                let message = self.write(next, number)?;
                next.clients[usize::from(number)].phase = Phase::Sent;
                next.send(message);
                None
            }
            Action::Resend(number) => {
                next.left.resends -= 1;
                let message = self.write(next, number)?;
                next.send(message);
                None
            }
            Action::Deliver(message) => self.deliver(next, message, true),
            Action::DeliverUnheard(message) => self.deliver(next, message, false),
            Action::Downgrade(number) => self.downgrade(next, number),
            Action::Upgrade(number) => self.upgrade(next, number),
            Action::GiveUpUpgrade(number) => self.give_up_upgrade(next, number),
            Action::Release(number) => {
                next.clients[usize::from(number)].phase = Phase::Idle;
                self.release(next, number)
            }
            Action::ReleaseAgain(number) => {
                next.left.resends -= 1;
                // An authority from a backup may have forgotten the earlier release.
                let own = next.clients[usize::from(number)].grant;
                let live = self.authority.live(next.machine);
                let others: Vec<Token> = live.filter(|live| Some(*live) != own).collect();
                let wrong = self.release(next, number);
                let freed = self.has_ended(next, &others);
                wrong.or(freed.then_some(Wrong::ReleasedAnother))
            }
            Action::Expire => self.authority_step(next, Step::Expire).1,
            Action::ClientCrash(number) => {
                next.left.crashes -= 1;
                let client = &mut next.clients[usize::from(number)];
                *client = Client {
                    asks: client.asks,
                    ..Client::NEW
                };
                None
            }
            Action::AuthorityRestart => self.back_again(next, Step::Restart),
            Action::LeaderChange => self.back_again(next, Step::Lead),
            Action::WindowEnd => self.authority_step(next, Step::EndWindow).1,
            Action::AuthorityRestore => {
                let step = Step::Restore {
                    backup: next.backup,
                    leap: self.weakness != Some(Weakness::NoLeap),
                    restarts: self.weakness == Some(Weakness::UpgradeAfterRestore),
                };
                let wrong = self.back_again(next, step);
                next.floor = next.issued;
                wrong
            }
            Action::Backup => {
                next.backup = next.machine;
                None
            }
            Action::FenceLost => {
                next.left.crashes -= 1;
                let forgets = self.weakness == Some(Weakness::FenceLost);
                next.set_fences(forgets.then(Kept::default));
                None
            }
            Action::Rearm => self.rearm(next),
        }
    }

    fn authority_step(&mut self, next: &mut State, step: Step) -> (Outcome, Option<Wrong>) {
        let stepped = self.authority.step(next.machine, step);
        let Stepped {
            machine,
            outcome,
            granted,
            broken,
        } = &*stepped;
        next.machine = *machine;
        let mut wrong = broken.as_ref().map(|_| Wrong::Invariant);
        for (number, ask, granted) in granted {
            wrong = wrong.or(issue(next, granted.number()));
            let token = self.told(granted);
            let client = &mut next.clients[usize::from(*number)];
            if client.asks == *ask && client.phase == Phase::Waiting {
                if client.upgrade == Upgrade::Asked {
                    (client.upgrade, client.claimed) = (Upgrade::Granted, 0);
                }
                (client.phase, client.token) = (Phase::Holding, Some(token));
                (client.grant, client.slot) = (Some(granted.number()), slot(granted));
            } else if client.asks == *ask && client.phase == Phase::Forgotten {
                wrong = wrong.or(Some(Wrong::OrphanGranted));
            }
        }
        (outcome.clone(), wrong)
    }

    /// The token that a client gets.
    fn told(&self, granted: &Granted) -> Token {
        match self.weakness {
            Some(Weakness::ReaderTokens) => granted.number(),
            _ => granted.token,
        }
    }

    fn downgrade(&mut self, next: &mut State, number: u8) -> Option<Wrong> {
        let client = next.clients[usize::from(number)];
        let step = Step::Downgrade {
            client: number,
            ask: client.asks,
        };
        let (outcome, mut wrong) = self.authority_step(next, step);
        let client = &mut next.clients[usize::from(number)];
        let Outcome::Granted(granted) = outcome else {
            (client.phase, client.token) = (Phase::Idle, None);
            return wrong;
        };
        client.phase = Phase::Holding;
        client.grant = Some(granted.number());
        client.downgraded = true;
        (client.claimed, client.read, client.known) = (0, 0, [0; 2]);
        if self.weakness != Some(Weakness::DowngradeKeepsToken) {
            client.token = Some(granted.token);
        }
        // Readers behind it were granted in the same step, after it.
        let repeated = next.issued >= Some(granted.number());
        if !repeated {
            wrong = wrong.or(issue(next, granted.number()));
        }
        wrong
    }

    /// A reader in mode update asks to become the writer, for the first time or again. It keeps its read.
    fn upgrade(&mut self, next: &mut State, number: u8) -> Option<Wrong> {
        let client = next.clients[usize::from(number)];
        let ask = client.asks;
        let step = match self.weakness {
            Some(Weakness::UpgradeQueues | Weakness::UpgradeEndsReaders)
                if client.upgrade == Upgrade::None =>
            {
                let queues = self.weakness == Some(Weakness::UpgradeQueues);
                Step::ReleaseAndUpgrade {
                    client: number,
                    ask,
                    queues,
                }
            }
            _ => Step::Upgrade {
                client: number,
                ask,
            },
        };
        let others: Vec<Token> = self.authority.live_but(next.machine, number).collect();
        let (outcome, wrong) = self.authority_step(next, step);
        let wrong = wrong.or(self.ended_another(next, &others));
        let client = &mut next.clients[usize::from(number)];
        let before = client.grant;
        let Outcome::Granted(granted) = outcome else {
            match outcome {
                Outcome::Queued => {
                    (client.phase, client.upgrade) = (Phase::Waiting, Upgrade::Asked)
                }
                _ => (client.phase, client.token, client.grant) = (Phase::Idle, None, None),
            }
            return wrong;
        };
        if before == Some(granted.number()) {
            return wrong;
        }
        let repeated = client.upgrade == Upgrade::Granted;
        // An authority from a backup may have forgotten the upgrade and grant it again.
        let restored = granted.number().get() > RESTORE_LEAP;
        (client.token, client.grant) = (Some(granted.token), Some(granted.number()));
        (client.phase, client.upgrade) = (Phase::Holding, Upgrade::Granted);
        client.claimed = 0;
        let wrong = wrong.or(issue(next, granted.number()));
        wrong.or((repeated && !restored).then_some(Wrong::TokenChanged))
    }

    /// A reader that gives up its upgrade still has its grant.
    fn give_up_upgrade(&mut self, next: &mut State, number: u8) -> Option<Wrong> {
        let client = &mut next.clients[usize::from(number)];
        (client.phase, client.upgrade) = (Phase::Read, Upgrade::GivenUp);
        let step = Step::GiveUpUpgrade {
            client: number,
            ask: client.asks,
        };
        let all: Vec<Token> = self.authority.live(next.machine).collect();
        let (_, wrong) = self.authority_step(next, step);
        wrong.or(self.ended_another(next, &all))
    }

    fn ended_another(&self, state: &State, before: &[Token]) -> Option<Wrong> {
        let ended = self.has_ended(state, before);
        ended.then_some(Wrong::EndedAnother)
    }

    /// Whether one of these grants is over.
    fn has_ended(&self, state: &State, grants: &[Token]) -> bool {
        let ended = |grant: &Token| {
            self.authority
                .live(state.machine)
                .all(|live| live != *grant)
        };
        grants.iter().any(ended)
    }

    fn ask(&mut self, next: &mut State, number: u8) -> Option<Wrong> {
        let client = next.clients[usize::from(number)];
        let step = Step::Acquire {
            client: number,
            ask: client.asks,
        };
        let (outcome, wrong) = self.authority_step(next, step);
        let client = &mut next.clients[usize::from(number)];
        match (outcome, client.grant) {
            (Outcome::Granted(granted), Some(before)) if granted.number() == before => wrong,
            // An authority from a backup may have forgotten the wish and grant it again.
            (Outcome::Granted(granted), Some(before)) => {
                let number = granted.number();
                let restored = before.get() < RESTORE_LEAP && number.get() > RESTORE_LEAP;
                (client.token, client.grant) = (Some(self.told(&granted)), Some(number));
                client.slot = slot(&granted);
                let wrong = wrong.or(issue(next, number));
                wrong.or((!restored).then_some(Wrong::TokenChanged))
            }
            (Outcome::Granted(granted), None) => {
                (client.phase, client.token) = (Phase::Holding, Some(self.told(&granted)));
                (client.grant, client.slot) = (Some(granted.number()), slot(&granted));
                wrong.or(issue(next, granted.number()))
            }
            // Also one that held the lock, if the authority is from a backup and does not know.
            (Outcome::Queued, _) => {
                (client.phase, client.token, client.grant) = (Phase::Waiting, None, None);
                wrong
            }
            _ => {
                (client.phase, client.token, client.grant) = (Phase::Idle, None, None);
                wrong
            }
        }
    }

    fn release(&mut self, next: &mut State, number: u8) -> Option<Wrong> {
        let client = next.clients[usize::from(number)];
        let step = Step::Release {
            client: number,
            ask: client.asks,
            token: client.grant?,
        };
        self.authority_step(next, step).1
    }

    /// After a crash the queue is empty, after a change of leader it is one of orphans: clients that waited may ask
    /// again.
    fn back_again(&mut self, next: &mut State, step: Step) -> Option<Wrong> {
        next.left.crashes -= 1;
        let (_, wrong) = self.authority_step(next, step);
        for client in &mut next.clients {
            if client.phase == Phase::Waiting {
                client.phase = Phase::Forgotten;
            }
        }
        wrong
    }

    /// The floor is a token drawn for this purpose: nobody has written with it, and nobody will.
    fn rearm(&mut self, next: &mut State) -> Option<Wrong> {
        let mut wrong = None;
        if self.weakness != Some(Weakness::RearmedAtHolder) {
            let (outcome, broken) = self.authority_step(next, Step::Draw);
            let Outcome::Granted(drawn) = outcome else {
                return Some(Wrong::Invariant);
            };
            wrong = broken.or(issue(next, drawn.token));
        }
        next.floor = next.issued;
        let floor = next.issued.map(FenceState::floor);
        next.set_fences(floor.map(|floor| Kept::of(&floor)));
        wrong
    }

    fn at_resource(&self, next: &mut State, number: u8, ask: ResourceOp) -> Option<Wrong> {
        let machine = next.machine;
        let client = &mut next.clients[usize::from(number)];
        let place = match ask {
            ResourceOp::Claim => client.claimed,
            _ => client.read,
        };
        let resource = client.slot + place;
        let value = next.resources[usize::from(resource)].value;
        let fence = &mut self.fenced_by(&mut next.resources, resource).fence;
        let (token, kept) = (client.token?, (*fence)?);
        match decide(self.weakness, kept, token, ask) {
            Decision::Admit(kept) => {
                *fence = Some(kept);
                match ask {
                    ResourceOp::Claim => client.claimed += 1,
                    _ => {
                        client.read += 1;
                        client.known[usize::from(place)] = value;
                    }
                }
                client.phase = self.phase(client);
                None
            }
            Decision::Repeat => None,
            Decision::Reject => {
                let is_live = (self.authority.live(machine)).any(|live| Some(live) == client.grant);
                (client.phase, client.token) = (Phase::Idle, None);
                (client.claimed, client.read) = (0, 0);
                let unjust = is_live && next.floor < Some(token);
                refused(next, token).or(unjust.then_some(Wrong::LiveRefused))
            }
        }
    }

    /// The phase of a client that has claimed or read one more of its resources.
    fn phase(&self, client: &Client) -> Phase {
        let all = self.scope.locks;
        let enough = match self.weakness {
            Some(Weakness::ClaimsOne) => 1,
            Some(Weakness::ClaimsLate) => all.min(client.read + 1),
            weakness if Weakness::claims(weakness) => all,
            _ => 0,
        };
        if client.claimed < enough {
            Phase::Holding
        } else if client.read < all {
            Phase::Claimed
        } else {
            Phase::Read
        }
    }

    /// The resource whose fence decides.
    fn fenced_by<'r>(&self, resources: &'r mut [Resource; 2], resource: u8) -> &'r mut Resource {
        match self.weakness {
            Some(Weakness::OneFenceForSlots) => &mut resources[0],
            _ => &mut resources[usize::from(resource)],
        }
    }

    /// The write that a client sends next, or sent last.
    fn write(&self, state: &State, number: u8) -> Option<Message> {
        let client = &state.clients[usize::from(number)];
        let (turn, of) = (client.written, self.scope.locks);
        let mut message = Message {
            client: number,
            ask: client.asks,
            turn,
            resource: client.slot + turn % of,
            number: turn / of,
            token: client.token?,
            value: client.known[usize::from(turn % of)],
        };
        message.value |= message.bit();
        Some(message)
    }

    fn deliver(&self, next: &mut State, message: Message, heard: bool) -> Option<Wrong> {
        if !heard {
            // Its writer sends it again.
            next.left.resends -= 1;
            next.send(message);
        }
        let place = next.network.iter().position(|other| *other == message)?;
        next.network.remove(place);
        let fence = &mut self.fenced_by(&mut next.resources, message.resource).fence;
        let kept = (*fence)?;
        let decision = decide(
            self.weakness,
            kept,
            message.token,
            ResourceOp::Write(message.number),
        );
        let client = &mut next.clients[usize::from(message.client)];
        let awaited = heard && awaits(client, message);
        let mut torn = None;
        match decision {
            Decision::Admit(kept) => {
                *fence = Some(kept);
                next.resources[usize::from(message.resource)].value = message.value;
                let claimed = matches!(client.phase, Phase::Claimed | Phase::Read);
                if client.downgraded && claimed && client.asks == message.ask {
                    return Some(Wrong::LateWrite);
                }
                torn = self
                    .is_torn(&next.clients, message)
                    .then_some(Wrong::TornRead);
            }
            Decision::Repeat => {}
            // Late duplicates are rightly rejected; a write whose client waits for the answer is not a duplicate.
            Decision::Reject if awaited => {
                (client.phase, client.token) = (Phase::Idle, None);
                (client.claimed, client.read) = (0, 0);
                return refused(next, message.token);
            }
            Decision::Reject => return None,
        }
        if awaited {
            let client = &mut next.clients[usize::from(message.client)];
            client.phase = Phase::Read;
            client.known[usize::from(message.turn % self.scope.locks)] = message.value;
            client.written += 1;
            next.resources[usize::from(message.resource)].acknowledged |= message.bit();
        }
        torn
    }

    /// Whether a later holder had begun to read its resources when this write was admitted at one of them.
    fn is_torn(&self, clients: &[Client], message: Message) -> bool {
        clients.iter().any(|client| {
            let own = client.slot..client.slot + self.scope.locks;
            let reads = client.phase != Phase::Idle && client.read > 0;
            reads && own.contains(&message.resource) && client.token > Some(message.token)
        })
    }
}

/// The slot of a grant of a permit, from 0.
fn slot(granted: &Granted) -> u8 {
    let slot = granted.slots.iter().next();
    slot.map_or(0, |slot| (slot - 1) as u8)
}

/// Whether the client waits for the answer to exactly this write.
fn awaits(client: &Client, message: Message) -> bool {
    client.phase == Phase::Sent && (client.asks, client.written) == (message.ask, message.turn)
}

/// The authority issues a token: it must be above every earlier one.
fn issue(state: &mut State, token: Token) -> Option<Wrong> {
    let repeated = state.issued.is_some_and(|issued| token <= issued);
    state.issued = state.issued.max(Some(token));
    repeated.then_some(Wrong::TokenRepeated)
}

/// Only a newer grant may cause a rejection.
fn refused(state: &State, token: Token) -> Option<Wrong> {
    (state.issued == Some(token)).then_some(Wrong::NewestRefused)
}
