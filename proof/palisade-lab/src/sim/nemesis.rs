//! Injects the faults, and ends them.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use palisade_core::{
    Acquire, ClientId, LockMode, LockName, Permits, RequestId, Span, Token, Ttl, Under,
};
use palisade_pipeline::Request;

use super::authority::{Call, Incoming, ReplyTo};
use super::clock::hold;
use super::fact::Fact;
use super::mutants::Mutant;
use super::plan::{AUTHORITY, CLIENTS, NODES, PlannedCall, PlannedFault, RESOURCE, lock_name};
use super::queue::Event;
use super::world::{MS, World};

/// Where answers to an operator go: nowhere.
const OPERATOR: ReplyTo = ReplyTo {
    client: u8::MAX,
    incarnation: 0,
    operation: 0,
};

impl World {
    pub(crate) fn nemesis(&mut self, event: Event) {
        match event {
            Event::PlannedFault(index) => {
                let fault = self.plan.faults[index].1.clone();
                if self.quiet || !fault.fits(&self.plan) {
                    return;
                }
                self.note(Fact::Nemesis(format!("{fault:?}")));
                self.fault(fault);
            }
            Event::StartAuthority => self.start_authority(),
            Event::StartResource => self.start_resource(),
            Event::Rearm(resource) => self.rearm(resource),
            Event::FreeDisk => self.authority.disk().fill(false),
            Event::Quiet => self.end_faults(),
            _ => {}
        }
    }

    fn fault(&mut self, fault: PlannedFault) {
        match fault {
            PlannedFault::PauseClient(client, ms) => self.pause(client, ms),
            PlannedFault::PauseHolder(lock, ms) => {
                if let Some(holder) = self.holder(lock) {
                    self.pause(holder, ms);
                }
            }
            PlannedFault::KillClient(client, ms) => {
                self.kill_client(client);
                self.after(ms * MS, Event::StartClient(client));
            }
            PlannedFault::PauseAuthority(ms) => self.pause(AUTHORITY, ms),
            PlannedFault::BusyAuthority(ms) => {
                self.authority.work();
                self.pause(AUTHORITY, ms);
            }
            PlannedFault::CrashAuthority(ms, chance) => self.crash_authority(ms, true, chance),
            PlannedFault::KillAuthority(ms) => self.crash_authority(ms, false, 0),
            PlannedFault::StopAuthority(ms) => {
                if self.is_idle() && self.authority.is_up() {
                    self.authority.stop();
                    self.authority_facts();
                    self.crash_authority(ms, false, 0);
                }
            }
            PlannedFault::FlipBit(ms, chance) => {
                self.crash_authority(ms, true, chance);
                if self.authority.disk().has_backup() {
                    let mut rng = self.rng.clone();
                    if self.authority.disk().flip(&mut rng) {
                        self.note(Fact::Damaged);
                        self.damaged = true;
                    }
                    self.rng = rng;
                }
            }
            PlannedFault::Restore(ms) => {
                if self.authority.disk().has_backup() {
                    self.crash_authority(ms, true, 0);
                    self.damaged = true;
                }
            }
            PlannedFault::Cut(from, to, ms) => {
                let until = self.now() + ms * MS;
                self.cuts.push((from, to, until));
            }
            PlannedFault::Isolate(node, ms) => {
                let until = self.now() + ms * MS;
                for other in (0..NODES as u8).filter(|other| *other != node) {
                    self.cuts.push((node, other, until));
                    self.cuts.push((other, node, until));
                }
            }
            PlannedFault::Break(client) => self.break_connection(client),
            PlannedFault::CrashResource(ms, chance) => {
                self.stop_resource(chance);
                self.after(ms * MS, Event::StartResource);
            }
            PlannedFault::PauseResource(ms) => self.pause(RESOURCE, ms),
            PlannedFault::BackUpResource => self.resource.back_up(),
            PlannedFault::RestoreResource(ms) => {
                self.stop_resource(0);
                self.resource_lost = true;
                self.after(ms * MS, Event::StartResource);
            }
            PlannedFault::LoseFence(lock, ms) => {
                let resource = self.plan.resource_of(lock, ms);
                self.resource.lose_fence(resource);
                self.resource_facts();
                self.after(ms * MS, Event::Rearm(resource));
            }
            PlannedFault::FailAuthorityDisk(call) => self.authority.disk().fail_in(call),
            PlannedFault::FailResourceDisk(call) => self.resource.fail_in(call),
            PlannedFault::FillDisk(ms) => {
                self.authority.disk().fill(true);
                self.after(ms * MS, Event::FreeDisk);
            }
            PlannedFault::JumpClock(node, ms) => self.jump(node, ms),
            PlannedFault::JumpWall(ms) => self.authority.jump_wall(ms),
            PlannedFault::Backup => self.authority.disk().back_up(),
            PlannedFault::Revoke(lock) => self.revoke(lock),
            PlannedFault::Call(call) => self.call(call),
            PlannedFault::Resize(lock, permits) => self.resize(lock, permits),
        }
    }

    fn pause(&mut self, node: u8, ms: u64) {
        let until = self.now() + ms * MS;
        let paused = &mut self.paused_until[usize::from(node)];
        *paused = (*paused).max(until);
        self.after(ms * MS, Event::Resume(node));
    }

    /// The client that holds the lock.
    fn holder(&self, lock: u8) -> Option<u8> {
        (0..self.plan.clients).find(|client| {
            let port = self.clients[usize::from(*client)].port.as_ref();
            port.and_then(|port| port.believes(lock)).is_some()
        })
    }

    fn kill_client(&mut self, client: u8) {
        let machine = &mut self.clients[usize::from(client)];
        let Some(port) = machine.port.take() else {
            return;
        };
        port.kill();
        if let Some(task) = machine.task.take() {
            task.abort();
        }
        drop(std::mem::take(&mut *hold(&port.hand)));
        machine.held.clear();
        let session = machine.session;
        machine.incarnation += 1;
        machine.session += 1;
        self.settle(client);
        let delay = self.rng.between(1, 100);
        self.after(delay * MS, Event::Hangup(client, session));
    }

    fn break_connection(&mut self, client: u8) {
        let session = self.clients[usize::from(client)].session;
        let (there, here) = (self.rng.between(0, 100), self.rng.between(0, 100));
        self.after(there * MS, Event::Hangup(client, session));
        self.after(here * MS, Event::Broken(client, session));
    }

    fn crash_authority(&mut self, ms: u64, power: bool, chance: u64) {
        self.stop_authority(power, chance);
        self.paused_until[usize::from(AUTHORITY)] = 0;
        self.after(ms * MS, Event::StartAuthority);
    }

    fn start_authority(&mut self) {
        if self.authority.is_up() {
            return;
        }
        let restored = self.damaged;
        let ready = if restored {
            self.authority.restore(self.now()).map(drop)
        } else {
            Ok(())
        };
        let started = ready.and_then(|()| self.authority.start(restored));
        if started.is_err() {
            // If the disk is full or failing, the process's supervisor tries again.
            drop(self.authority.take_facts());
            self.authority.disk().restart();
            return self.after(100 * MS, Event::StartAuthority);
        }
        self.damaged = false;
        self.authority_facts();
    }

    fn start_resource(&mut self) {
        if self.resource.is_up() {
            return;
        }
        let restored = if self.resource_lost {
            self.resource.restore()
        } else {
            Ok(false)
        };
        if restored
            .and_then(|restored| self.resource.start(restored))
            .is_err()
        {
            self.stop_resource(0);
            return self.after(20 * MS, Event::StartResource);
        }
        self.resource_lost = false;
        self.resource_facts();
        for resource in 0..self.plan.resources() {
            self.after(50 * MS, Event::Rearm(resource));
        }
    }

    fn rearm(&mut self, resource: u8) {
        let nobody = self.mutant == Some(Mutant::NoOperator);
        if nobody || !self.resource.is_unarmed(resource) && self.resource.is_up() {
            return;
        }
        // Above every token that anybody holds: otherwise the fence would forget its holder's old writes.
        let floor = self.newest.and_then(Token::next).unwrap_or(Token::FIRST);
        self.resource.rearm(resource, floor);
        self.resource_facts();
        self.after(50 * MS, Event::Rearm(resource));
    }

    fn jump(&mut self, node: u8, ms: i64) {
        let by = ms * MS as i64;
        match node {
            AUTHORITY => self.authority_clock.jump(by),
            RESOURCE => {}
            client => self.clients[usize::from(client)].clock.jump(by),
        }
    }

    fn revoke(&mut self, lock: u8) {
        let believed = (0..self.plan.clients).find_map(|client| {
            let port = self.clients[usize::from(client)].port.as_ref()?;
            port.believes(lock).map(|belief| belief.number)
        });
        let (Some(Ok(token)), Ok(lock)) =
            (believed.map(Token::new), LockName::new(&lock_name(lock)))
        else {
            return;
        };
        let reason = "sim".into();
        let request = Request::Revoke {
            lock,
            token,
            reason,
        };
        self.authority.take_in(Incoming::Ask(OPERATOR, request));
    }

    /// The clients learn the number at once; requests that they have already sent are refused.
    fn resize(&mut self, lock: u8, permits: u8) {
        let Ok(name) = LockName::new(&lock_name(lock)) else {
            return;
        };
        self.permits[usize::from(lock)].store(permits, Ordering::Relaxed);
        let request = Request::Resize {
            lock: name,
            permits: permits.into(),
        };
        self.authority.take_in(Incoming::Ask(OPERATOR, request));
    }

    /// A single caller asks. The handle draws a request's id for one that brings none.
    fn call(&mut self, planned: PlannedCall) {
        let number = self.next_call;
        let client = format!("caller-{}", CLIENTS as u32 + number % (10 - CLIENTS as u32));
        let of = self.permits[usize::from(planned.lock)].load(Ordering::Relaxed);
        let (Ok(lock), Ok(client), Ok(ttl)) = (
            LockName::new(&lock_name(planned.lock)),
            ClientId::new(&client),
            Ttl::from_millis(self.plan.ttl_ms.0),
        ) else {
            return;
        };
        if !self.authority.is_up() {
            return;
        }
        self.next_call += 1;
        let request = RequestId::from_bytes((u128::MAX - u128::from(number)).to_be_bytes());
        let call = Rc::new(Call::new(number, lock.clone(), request, planned));
        let wish = Acquire {
            wait: Some(Span::from_millis(planned.waits)),
            mode: Permits::new(1, of.into()).map_or(LockMode::Exclusive, LockMode::Permits),
            ..Acquire::new(lock, client, Under::new(ttl), Some(request))
        };
        self.calls.insert(number, Rc::clone(&call));
        self.authority
            .take_in(Incoming::Call(call, Request::Acquire(wish)));
        self.after(planned.stays * MS, Event::CallerLeaves(number));
    }

    /// From now on nothing fails, and everything that was down restarts.
    fn end_faults(&mut self) {
        self.quiet = true;
        self.workers_quiet.store(true, Ordering::Relaxed);
        self.cuts.clear();
        self.note(Fact::Quiet);
        self.authority.disk().fill(false);
        self.after(0, Event::StartAuthority);
        self.after(0, Event::StartResource);
        for node in 0..NODES as u8 {
            self.paused_until[usize::from(node)] = 0;
            self.after(0, Event::Resume(node));
        }
        for client in 0..self.plan.clients {
            self.after(0, Event::StartClient(client));
        }
        for resource in 0..self.plan.resources() {
            self.after(0, Event::Rearm(resource));
        }
    }
}
