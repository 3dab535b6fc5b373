//! Drives the authority and the resource: begins their rounds, ends them after the time of a sync, and reports
//! their effects.

use palisade_core::Token;

use super::authority::SINGLE;
use super::fact::{ChangeKind, Fact, LockChange};
use super::plan::{AUTHORITY, RESOURCE};
use super::port::Belief;
use super::queue::Event;
use super::world::{MS, World};

impl World {
    pub(crate) fn is_idle(&self) -> bool {
        !self.syncing && self.runs(AUTHORITY)
    }

    pub(crate) fn authority_works(&mut self) {
        if !self.is_idle() || !self.authority.has_work() {
            return;
        }
        self.round();
    }

    /// The first half of a round of the authority.
    pub(crate) fn round(&mut self) {
        self.authority.begin();
        self.syncing = true;
        self.authority_facts();
        let takes = if self.authority.has_batch() {
            self.sync_time()
        } else {
            0
        };
        self.after(takes, Event::RoundDone(self.authority_boot));
    }

    pub(crate) fn round_done(&mut self, boot: u32) {
        if boot != self.authority_boot {
            return;
        }
        if !self.runs(AUTHORITY) {
            let until = self.paused_until[usize::from(AUTHORITY)];
            return self.at(until, Event::RoundDone(boot));
        }
        self.syncing = false;
        let failed = self.authority.finish();
        self.authority_facts();
        if failed.is_err() {
            // A failed sync is never retried: the process stops and is started again (A6).
            self.stop_authority(false, 0);
            self.after(50 * MS, Event::StartAuthority);
        }
    }

    /// The authority's process is gone; connected clients learn it.
    pub(crate) fn stop_authority(&mut self, power: bool, chance: u64) {
        if self.authority.is_up() {
            self.authority.die(power, chance);
        }
        self.authority_boot += 1;
        self.calls.clear();
        self.syncing = false;
        for client in 0..self.plan.clients {
            let session = self.clients[usize::from(client)].session;
            let delay = self.rng.between(1, 50);
            self.after(delay * MS, Event::Broken(client, session));
        }
    }

    /// Reports the authority's actions, and sends its answers.
    pub(crate) fn authority_facts(&mut self) {
        for fact in self.authority.take_facts() {
            let granted = match &fact {
                Fact::Applied(turn) => matches!(turn.what, ChangeKind::Granted(_)).then_some(*turn),
                _ => None,
            };
            self.note(fact);
            if let Some(turn) = granted {
                self.newest = self.newest.max(Token::new(turn.token).ok());
                self.believers(&turn);
            }
        }
        for (to, answer) in std::mem::take(&mut self.authority.out) {
            if let (SINGLE, Some(call)) = (to.client, self.calls.get(&to.operation)) {
                self.after(call.plan.reads_after * MS, Event::CallerReads(to.operation));
            } else if usize::from(to.client) < self.clients.len() {
                self.send(AUTHORITY, to.client, "answer", Event::ToClient(to, answer));
            }
        }
    }

    /// Readers may believe together, and so may the holders of different slots.
    fn believers(&mut self, turn: &LockChange) {
        let LockChange {
            lock,
            client,
            token,
            phase,
            slots,
            ..
        } = *turn;
        let together = |belief: &Belief| match slots {
            0 => belief.shared && phase.is_some(),
            _ => belief.slots & slots == 0,
        };
        let believers: Vec<(u8, u64)> = (0..self.plan.clients)
            .filter(|other| *other != client)
            .filter_map(|other| {
                let port = self.clients[usize::from(other)].port.as_ref()?;
                let belief = port.believes(lock)?;
                (!together(&belief)).then_some((other, belief.number))
            })
            .collect();
        if !believers.is_empty() {
            self.note(Fact::Believers {
                lock,
                token,
                believers,
            });
        }
    }

    pub(crate) fn resource_works(&mut self) {
        if !self.runs(RESOURCE) || !self.resource.has_work() {
            return;
        }
        if self.resource.begin() {
            let later = self.rng.between(1, 60);
            self.after(later * MS, Event::Effect(self.resource_boot));
        }
        let takes = self.sync_time();
        self.after(takes, Event::ResourceDone(self.resource_boot));
    }

    pub(crate) fn resource_done(&mut self, boot: u32) {
        if boot != self.resource_boot {
            return;
        }
        if !self.runs(RESOURCE) {
            let until = self.paused_until[usize::from(RESOURCE)];
            return self.at(until, Event::ResourceDone(boot));
        }
        let failed = self.resource.finish();
        self.resource_facts();
        if failed.is_err() {
            self.stop_resource(0);
            self.after(20 * MS, Event::StartResource);
        }
    }

    pub(crate) fn stop_resource(&mut self, chance: u64) {
        self.resource.die(chance);
        self.resource_boot += 1;
    }

    pub(crate) fn resource_facts(&mut self) {
        for fact in std::mem::take(&mut self.resource.facts) {
            self.note(fact);
        }
        for (to, reply) in std::mem::take(&mut self.resource.out) {
            self.send(RESOURCE, to.client, "reply", Event::FromResource(to, reply));
        }
    }

    fn sync_time(&mut self) -> u64 {
        let (least, most) = self.plan.sync_us;
        let slow = !self.quiet && self.rng.chance(10);
        self.rng.between(least, most) * if slow { 100_000 } else { 1_000 }
    }
}
