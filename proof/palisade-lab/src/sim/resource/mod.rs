//! The resource's process: the real fence rule and the real log, one operation at a time.
//!
//! ```text
//!   inbox ──► begin: Rule::decide · apply · encode fence and data in one frame
//!                                   │  (a sync's time passes)
//!             finish: Wal::commit ──┴──► answer
//! ```
//!
//! It works like the product's store (whose writer owns a thread): decide against the table, one frame for fence and
//! data (rules F1, F4), one sync, and only then the answer.

mod frame;

use std::collections::VecDeque;
use std::sync::Arc;

use palisade_core::fence::{FenceState, Mode, Op, Pass, Rearm, Reject, Rule, Verdict};
use palisade_core::limits::RESTORE_LEAP;
use palisade_core::{AuthorityId, LockName, Token};
use palisade_wal::testing::{CrashLoss, Fault, SimStorage};
use palisade_wal::{CreateOptions, Id, Options, Wal, backup_on, restore_on};

use crate::sim::authority::ReplyTo;
use crate::sim::fact::Fact;
use crate::sim::mutants::Mutant;
use crate::sim::port::{Ask, Reply, ResourceOp};
use crate::sim::rng::Rng;
use frame::{Object, read, write};

/// One operation that reached the resource.
pub(crate) struct Job {
    pub(crate) to: ReplyTo,
    pub(crate) ask: Ask,
}

/// The resource's machine.
pub(crate) struct Resource {
    mutant: Option<Mutant>,
    authority: AuthorityId,
    keys: Arc<[LockName]>,
    storage: SimStorage,
    backup: Option<SimStorage>,
    restores: u8,
    process: Option<Process>,
    pub(crate) facts: Vec<Fact>,
    pub(crate) out: Vec<(ReplyTo, Reply)>,
}

struct Process {
    wal: Wal,
    objects: Vec<Object>,
    inbox: VecDeque<Job>,
    under_way: Option<PendingOperation>,
    /// For a mutant: checked but not yet executed.
    late: VecDeque<Effect>,
}

struct PendingOperation {
    frame: Vec<u8>,
    to: ReplyTo,
    reply: Option<Reply>,
    facts: Vec<Fact>,
}

struct Effect {
    resource: u8,
    value: u128,
    to: ReplyTo,
    stored: Fact,
}

impl Resource {
    pub(crate) fn new(
        seed: u64,
        keys: Arc<[LockName]>,
        authority: AuthorityId,
        mutant: Option<Mutant>,
    ) -> Resource {
        Resource {
            mutant,
            authority,
            keys,
            storage: SimStorage::new(seed),
            backup: None,
            restores: 0,
            process: None,
            facts: Vec::new(),
            out: Vec::new(),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Starts from the disk.
    pub(crate) fn start(&mut self, restored: bool) -> Result<(), String> {
        let create = CreateOptions {
            owner: Some(Id::from_bytes([8; 16])),
            incarnation: Some(Id::from_bytes([1; 16])),
        };
        let options = Options::small(4 << 10);
        let storage = Arc::new(self.storage.clone());
        let opened = Wal::open_or_create_on(storage, &create, &options)
            .map_err(|error| error.to_string())?;
        let fresh = Object {
            fence: Some(FenceState::default()),
            value: 0,
        };
        let mut objects = vec![fresh; self.keys.len()];
        let names = (&self.authority, &*self.keys);
        opened
            .replay(|_, frame| {
                read(frame, names, &mut objects)
                    .ok_or_else(|| "a frame of an unknown form".to_owned())
            })
            .map_err(|error| error.to_string())?;
        for (resource, object) in (0..).zip(&objects) {
            self.facts.push(Fact::ResourceRecovered {
                resource,
                value: object.value,
                highest: object.highest(),
                restored,
            });
        }
        self.process = Some(Process {
            wal: opened.into_wal(),
            objects,
            inbox: VecDeque::new(),
            under_way: None,
            late: VecDeque::new(),
        });
        if restored && self.mutant != Some(Mutant::RestoredFenceServed) {
            // A backup's data is refused until the fence is re-armed (F7).
            (0..self.keys.len() as u8).for_each(|resource| self.lose_fence(resource));
        }
        Ok(())
    }

    /// The machine loses power; a frame in flight is lost, torn or written.
    pub(crate) fn die(&mut self, chance: u64) {
        let mut rng = Rng::new(chance);
        if let Some(mut process) = self.process.take()
            && let Some(under_way) = process.under_way
        {
            match rng.below(4) {
                0 => {}
                1 => drop(process.wal.commit(&under_way.frame)),
                call => {
                    let call = self.storage.calls() + call - 1;
                    self.storage.fault_at(call, Fault::Crash);
                    drop(process.wal.commit(&under_way.frame));
                }
            }
        }
        self.storage = self.storage.crash(match rng.below(4) {
            0 => CrashLoss::DropAll,
            1 => CrashLoss::KeepAll,
            _ => CrashLoss::Torn(rng.next()),
        });
    }

    /// The n-th disk operation from now on fails.
    pub(crate) fn fail_in(&self, call: u64) {
        self.storage
            .fault_at(self.storage.calls() + call, Fault::Error);
    }

    pub(crate) fn back_up(&mut self) {
        let target = SimStorage::new(1);
        if backup_on(&self.storage, &target).is_ok() {
            self.backup = Some(target);
        }
    }

    /// Replaces the directory with the last backup; `false`: there is none.
    pub(crate) fn restore(&mut self) -> Result<bool, String> {
        let Some(backup) = &self.backup else {
            return Ok(false);
        };
        self.restores = self.restores.wrapping_add(1);
        let target = SimStorage::new(self.restores.into());
        let incarnation = Id::from_bytes([100 + self.restores % 100; 16]);
        restore_on(backup, &target, incarnation).map_err(|error| error.to_string())?;
        self.storage = target.restart();
        Ok(true)
    }

    pub(crate) fn take_in(&mut self, job: Job) {
        match &mut self.process {
            Some(process) => process.inbox.push_back(job),
            None => self.out.push((job.to, Reply::Unavailable)),
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        let idle = |process: &Process| process.under_way.is_none() && !process.inbox.is_empty();
        self.process.as_ref().is_some_and(idle)
    }

    /// One resource loses its fence but not its data.
    pub(crate) fn lose_fence(&mut self, resource: u8) {
        let served = self.mutant == Some(Mutant::LostFenceServed);
        if self.replace_fence(resource, served.then(FenceState::default)) {
            self.facts.push(Fact::FenceLost { resource });
        }
    }

    /// An operator re-arms a lost fence with a token that the authority just issued.
    pub(crate) fn rearm(&mut self, resource: u8, floor: Token) {
        let with = Rearm {
            floor,
            authority: Some(&self.authority),
            lower_from: None,
        };
        if self.is_unarmed(resource)
            && let Ok(armed) = FenceState::default().rearmed(&with)
            && self.replace_fence(resource, Some(armed))
        {
            let floor = floor.get();
            self.facts.push(Fact::Rearmed { resource, floor });
        }
    }

    /// Whether a resource waits for its operator.
    pub(crate) fn is_unarmed(&self, resource: u8) -> bool {
        let lost = |process: &Process| process.objects[usize::from(resource)].fence.is_none();
        self.process.as_ref().is_some_and(lost)
    }

    /// `true` if the change was attempted: a disk that failed meanwhile may have the new fence or not, which the next
    /// operation finds out.
    fn replace_fence(&mut self, resource: u8, fence: Option<FenceState>) -> bool {
        let Some(process) = &mut self.process else {
            return false;
        };
        // A frame in flight would bring the old fence back.
        if process.under_way.is_some() {
            return false;
        }
        let object = &mut process.objects[usize::from(resource)];
        object.fence = fence;
        let frame = write(resource, object);
        let _ = process.wal.commit(&frame);
        true
    }

    /// Decides and applies the next operation; the sync comes with [`Resource::finish`].
    ///
    /// `true`: a mutant postponed an effect, and [`Resource::take_effect`] must be called some time later.
    pub(crate) fn begin(&mut self) -> bool {
        let Some(job) = self
            .process
            .as_mut()
            .and_then(|process| process.inbox.pop_front())
        else {
            return false;
        };
        let Job { to, ask } = job;
        let (verdict, mut facts) = self.decide(to.client, ask);
        let Some(process) = &mut self.process else {
            return false;
        };
        let put_off = process.late.len();
        let object = &mut process.objects[usize::from(ask.resource)];
        let reply = match verdict {
            None => Some(Reply::Unavailable),
            Some(Verdict::Reject(_)) => Some(Reply::Rejected),
            Some(Verdict::Repeat) => Some(Reply::Admitted(object.value)),
            Some(Verdict::Admit(next)) => {
                if let Some(next) = next {
                    object.fence = Some(next);
                }
                match ask.op {
                    ResourceOp::Write { value, sequence } => {
                        let stored = Fact::Stored {
                            resource: ask.resource,
                            token: ask.token.get(),
                            sequence: sequence.get(),
                            value,
                        };
                        if self.mutant == Some(Mutant::EffectApart) {
                            let resource = ask.resource;
                            process.late.push_back(Effect {
                                resource,
                                value,
                                to,
                                stored,
                            });
                            None
                        } else {
                            object.value = value;
                            facts.push(stored);
                            Some(Reply::Admitted(value))
                        }
                    }
                    ResourceOp::Claim | ResourceOp::Read => Some(Reply::Admitted(object.value)),
                }
            }
        };
        let frame = match self.mutant {
            Some(Mutant::FenceApart) => write(
                ask.resource,
                &Object {
                    fence: Some(FenceState::default()),
                    value: object.value,
                },
            ),
            _ => write(ask.resource, object),
        };
        process.under_way = Some(PendingOperation {
            frame,
            to,
            reply,
            facts,
        });
        process.late.len() > put_off
    }

    /// Executes the first postponed effect.
    pub(crate) fn take_effect(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        let Some(effect) = process.late.pop_front() else {
            return;
        };
        let Effect {
            resource,
            value,
            to,
            stored,
        } = effect;
        let object = &mut process.objects[usize::from(resource)];
        object.value = value;
        if process.wal.commit(&write(resource, object)).is_ok() {
            self.facts.push(stored);
            self.out.push((to, Reply::Admitted(value)));
        }
    }

    fn rule(&self) -> Rule {
        let mode = match self.mutant {
            Some(Mutant::TextbookFence) => Mode::Textbook,
            Some(Mutant::NoFence) => Mode::DangerUnfenced,
            _ => Mode::Claim,
        };
        Rule {
            mode,
            // Schedules restore the authority many times; the default admits one restore.
            max_jump: Some(64 * RESTORE_LEAP),
        }
    }

    /// The rule's verdict; `None` without a fence.
    fn decide(&self, client: u8, ask: Ask) -> (Option<Verdict>, Vec<Fact>) {
        let object = self
            .process
            .as_ref()
            .map(|process| &process.objects[usize::from(ask.resource)]);
        let Some(fence) = object.and_then(|object| object.fence.as_ref()) else {
            return (None, Vec::new());
        };
        let pass = Pass::new(ask.token)
            .by(&self.authority)
            .of(&self.keys[usize::from(ask.resource)]);
        let (op, name) = match ask.op {
            ResourceOp::Claim => (Op::Claim, "claim"),
            ResourceOp::Read => (Op::Read, "read"),
            ResourceOp::Write { .. } if self.mutant == Some(Mutant::NumbersIgnored) => {
                (Op::Write(None), "write")
            }
            ResourceOp::Write { sequence, .. } => (Op::Write(Some(sequence)), "write"),
        };
        let verdict = match (self.mutant, op, self.rule().decide(fence, pass, op)) {
            (Some(Mutant::ClaimWithoutRaise), Op::Claim | Op::Read, Verdict::Admit(_)) => {
                Verdict::Admit(None)
            }
            (Some(Mutant::LowerAdmitted), _, Verdict::Reject(Reject::Stale { .. })) => {
                Verdict::Admit(None)
            }
            (_, _, verdict) => verdict,
        };
        let (resource, token) = (ask.resource, ask.token.get());
        let fact = match &verdict {
            Verdict::Reject(reject) => Fact::Rejected {
                resource,
                client,
                token,
                highest: fence.highest().map(Token::get),
                code: reject.code(),
            },
            _ => Fact::Admitted {
                resource,
                client,
                token,
                op: name,
            },
        };
        (Some(verdict), vec![fact])
    }

    /// The sync, and then the answer.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        let Some(under_way) = process.under_way.take() else {
            return Ok(());
        };
        process
            .wal
            .commit(&under_way.frame)
            .map_err(|error| error.to_string())?;
        self.facts.extend(under_way.facts);
        self.out
            .extend(under_way.reply.map(|reply| (under_way.to, reply)));
        Ok(())
    }
}
