//! The places where mutants act: between the clients and the orderer, and between the orderer and its clocks.

use palisade_core::machine::{LiveGrant, Record, ShareRecord};
use palisade_core::{
    Acquire, Away, Command, Ending, Entry, GrantId, GrantOptions, GrantRef, Granted, LockMode,
    LockName, Machine, Outcome, Permits, Principal, Renewed, RequestId, Slots, Span, Timestamp,
    Token, Ttl, Under, Wish, set_of,
};
use palisade_pipeline::codec::{decode_batch, encode_by, encode_command, encode_head};
use palisade_pipeline::orderer::Moment;
use palisade_pipeline::{Answer, Asked, KeepsPlace, Request};

use super::caller::{Caller, index, locks_of, wanted};
use super::id_map::IdMap;
use super::queues::Waiting;
use crate::sim::fact::Fact;
use crate::sim::mutants::Mutant;
use crate::sim::plan::{LOCKS, lock_name};

/// Longer than a run.
const NO_END: Span = Span::from_millis(3_600_000);

/// A request for the orderer, with the machine's tokens.
pub(super) fn inward(
    request: Request,
    mutant: Option<Mutant>,
    machine: &Machine,
    at: Timestamp,
    ids: &mut IdMap,
) -> Request {
    match request {
        Request::Acquire(mut wish) => {
            ids.arrived(wish.request, &wish.lock);
            if mutant == Some(Mutant::WaiterUnchecked) {
                wish.wait = wish.wait.map(|wait| wait.plus(NO_END));
            }
            if mutant == Some(Mutant::WaitOutlivesLease)
                && wish.wait.is_some_and(|wait| wait > Span::ZERO)
                && wish.mode != LockMode::Upgrade
                && let Under::Existing { .. } = wish.under
            {
                wish.under = Under::new(Ttl::MIN);
            }
            if mutant == Some(Mutant::PermitsInPart) {
                wish.mode = in_part(wish.mode, &wish.lock, machine, at);
            }
            if mutant == Some(Mutant::ReservationIgnored) {
                let lock_delay_ms = wish.options.lock_delay().as_nanos() / 1_000_000;
                wish.options = GrantOptions::closing(lock_delay_ms, 0).unwrap_or_default();
            }
            Request::Acquire(match mutant {
                Some(Mutant::SetInPart) => free_part(wish, machine, at),
                Some(Mutant::SetWaitsForMore) => with_more(wish),
                _ => wish,
            })
        }
        Request::Renew { grant, ttl } => Request::Renew {
            grant: named(grant, ids),
            ttl,
        },
        Request::Release(grant) => {
            let grant = named(grant, ids);
            let present = machine.view(&grant.lock, at).and_then(|view| view.holder);
            Request::Release(match (mutant, present) {
                (Some(Mutant::ReleaseByName), Some(holder)) => ids.present(grant, holder.token),
                _ => grant,
            })
        }
        Request::Revoke {
            lock,
            token,
            reason,
        } => Request::Revoke {
            lock,
            token: ids.inward(token),
            reason,
        },
        other => other,
    }
}

/// A mutant: a request for more permits than are free becomes one for those that are.
fn in_part(mode: LockMode, lock: &LockName, machine: &Machine, at: Timestamp) -> LockMode {
    let LockMode::Permits(permits) = mode else {
        return mode;
    };
    let holders = machine.view(lock, at).map(|view| view.readers);
    let taken: u32 = holders
        .iter()
        .flatten()
        .map(|holder| holder.slots.count())
        .sum();
    let free = permits.of().saturating_sub(taken);
    match Permits::new(permits.wanted().min(free), permits.of()) {
        Ok(fewer) => LockMode::Permits(fewer),
        Err(_) => mode,
    }
}

fn is_free(lock: &LockName, machine: &Machine, at: Timestamp) -> bool {
    let view = machine.view(lock, at);
    view.is_none_or(|view| view.holder.is_none())
}

/// A mutant: a set becomes one of those of its locks that are free.
fn free_part(wish: Wish, machine: &Machine, at: Timestamp) -> Wish {
    let free = wish.locks().filter(|lock| is_free(lock, machine, at));
    match set_of(free.cloned().collect()) {
        Ok((lock, also)) => Wish { lock, also, ..wish },
        Err(_) => wish,
    }
}

/// A mutant: a set becomes one of all locks.
fn with_more(wish: Wish) -> Wish {
    let all = (0..LOCKS as u8).filter_map(|lock| LockName::new(&lock_name(lock)).ok());
    match set_of(all.collect()) {
        Ok((lock, also)) if !wish.also.is_empty() => Wish { lock, also, ..wish },
        _ => wish,
    }
}

/// A mutant: the machine that a restart finds does not know for how long locks are still closed.
pub(super) fn forget_closings(machine: &Machine) -> Result<Machine, String> {
    let now = machine.now();
    let records = machine.records().map(|mut record| {
        if let Record::Kept(kept) = &mut record {
            kept.closed = kept.closed.map(|until| until.min(now));
        }
        record
    });
    Machine::restore(0, records).map_err(|corrupt| corrupt.to_string())
}

/// A mutant: the machine that a restart finds does not know which leases were extended since their last renewal.
pub(super) fn forget_extensions(machine: &Machine) -> Result<Machine, String> {
    let records = machine.records().map(|mut record| {
        if let Record::Lease(lease) = &mut record {
            lease.extension = None;
        }
        record
    });
    Machine::restore(0, records).map_err(|corrupt| corrupt.to_string())
}

/// A mutant: the machine that a restart finds does not know that an operator has changed numbers of permits.
pub(super) fn forget_resizes(machine: &Machine, plan: &[u8; LOCKS]) -> Result<Machine, String> {
    let first = |lock: &LockName| u32::from(plan[usize::from(index(lock))]);
    let records = machine.records().map(|mut record| {
        match &mut record {
            Record::Share(share) => {
                let of = first(&share.grant.lock);
                share.permits = share.permits.map(|(_, slots)| (of, slots));
            }
            Record::Kept(kept) => kept.permits = kept.permits.map(|_| first(&kept.lock)),
            _ => {}
        }
        record
    });
    Machine::restore(0, records).map_err(|corrupt| corrupt.to_string())
}

fn named(grant: GrantRef, ids: &IdMap) -> GrantRef {
    let token = grant.token.map(|token| ids.inward(token));
    GrantRef { token, ..grant }
}

/// An answer for a client, with the issued tokens.
pub(super) fn outward(
    answer: Answer,
    caller: &Caller,
    mutant: Option<Mutant>,
    ids: &IdMap,
) -> Answer {
    let renewed = |renewed: Renewed| {
        Outcome::Renewed(Renewed {
            token: ids.outward(renewed.token),
            ..renewed
        })
    };
    let Answer::Outcome(outcome) = answer else {
        return answer;
    };
    Answer::Outcome(match outcome {
        Outcome::Granted(mut granted) => {
            granted.token = ids.outward(fencing(&granted, mutant, ids));
            granted.shared = granted.shared.map(|id| GrantId(ids.outward(id.0)));
            Outcome::Granted(granted)
        }
        Outcome::Renewed(answer) => renewed(answer),
        Outcome::Ended {
            token,
            how: Ending::Expired,
        } if caller.renews.is_some() && mutant == Some(Mutant::LateRenewal) => renewed(Renewed {
            token,
            ttl: Ttl::MIN,
            valid_for: Ttl::MIN.span(),
            near_deadline: true,
            waiters: 0,
        }),
        Outcome::Stale { named, highest } => Outcome::Stale {
            named: ids.outward(named),
            highest: ids.outward(highest),
        },
        other => other,
    })
}

/// The fencing token of a grant; mutants give readers another one.
fn fencing(granted: &Granted, mutant: Option<Mutant>, ids: &IdMap) -> Token {
    let Some(GrantId(number)) = granted.shared else {
        return granted.token;
    };
    match mutant {
        Some(Mutant::ReaderTokens) => number,
        Some(Mutant::PhaseTokenKept) => ids.first_phase(number).unwrap_or(granted.token),
        Some(Mutant::DowngradeKeepsToken) => ids.writer_before(granted).unwrap_or(granted.token),
        _ => granted.token,
    }
}

/// The lab's own requests before a request: as a stranger, and for two mutants.
pub(super) fn first(
    request: &Request,
    mutant: Option<Mutant>,
    machine: &Machine,
    at: Timestamp,
) -> Vec<Asked> {
    let own = match (mutant, request) {
        (Some(Mutant::SetHoldsPart), Request::Acquire(wish)) => free_lock_of(wish, machine, at),
        (Some(Mutant::SetReleasedWhole), Request::Release(grant)) => {
            return other_parts(grant, machine, at);
        }
        (Some(Mutant::AbandonTakesMore), Request::Abandon(request)) => {
            return others_of_lease(*request, machine);
        }
        (Some(Mutant::UpgradeEndsReaders), Request::Acquire(wish)) => {
            return other_readers(wish, machine);
        }
        (Some(Mutant::ResizeEndsHolders), Request::Resize { lock, permits }) => {
            return holders_beyond(lock, *permits, machine);
        }
        _ => None,
    };
    let stranger = || stranger(request, mutant, machine, at);
    own.or_else(stranger).into_iter().collect()
}

/// A mutant: a set that has to wait takes a lock that is free.
fn free_lock_of(wish: &Wish, machine: &Machine, at: Timestamp) -> Option<Asked> {
    if wish.locks().all(|lock| is_free(lock, machine, at)) {
        return None;
    }
    let free = wish.locks().find(|lock| is_free(lock, machine, at))?;
    let wish = Acquire::new(free.clone(), wish.client.clone(), wish.under, None);
    Some(Request::Acquire(wish).into())
}

/// A mutant: with one lock of a set the others are released.
fn other_parts(grant: &GrantRef, machine: &Machine, at: Timestamp) -> Vec<Asked> {
    let locks = (0..LOCKS as u8).filter_map(|lock| LockName::new(&lock_name(lock)).ok());
    let others = locks.filter(|lock| {
        let holder = machine.view(lock, at).and_then(|view| view.holder);
        *lock != grant.lock && holder.map(|holder| holder.token) == grant.token
    });
    let releases = others.map(|lock| {
        let grant = grant.clone();
        Request::Release(GrantRef { lock, ..grant }).into()
    });
    releases.collect()
}

/// A mutant: giving up a request also releases the other grants of its lease.
fn others_of_lease(request: RequestId, machine: &Machine) -> Vec<Asked> {
    let answers = machine.records().filter_map(|record| match record {
        Record::Answered(answered) if answered.request == request => Some(answered),
        _ => None,
    });
    let Some(answered) = answers.last() else {
        return Vec::new();
    };
    let Outcome::Granted(granted) = answered.outcome else {
        return Vec::new();
    };
    let named: Vec<&LockName> = answered.lock.iter().chain(&*answered.also).collect();
    let others = machine.records().filter_map(|record| match record {
        Record::Grant(grant) | Record::Share(ShareRecord { grant, .. })
            if grant.key == granted.key && !named.contains(&&grant.lock) =>
        {
            Some(release(grant))
        }
        _ => None,
    });
    others.map(Asked::from).collect()
}

/// A mutant: an upgrade does not wait for the other readers, which lose their grants.
fn other_readers(wish: &Wish, machine: &Machine) -> Vec<Asked> {
    if wish.mode != LockMode::Upgrade {
        return Vec::new();
    }
    let others = machine.records().filter_map(|record| match record {
        Record::Share(share) if share.grant.lock == wish.lock && !share.update => {
            Some(release(share.grant))
        }
        _ => None,
    });
    others.map(Asked::from).collect()
}

/// A mutant: the holders of slots beyond a lower number lose their grants.
fn holders_beyond(lock: &LockName, permits: u32, machine: &Machine) -> Vec<Asked> {
    let beyond = machine.records().filter_map(|record| match record {
        Record::Share(share)
            if share.grant.lock == *lock
                && share
                    .permits
                    .is_some_and(|(_, slots)| !slots.without(Slots::all(permits)).is_empty()) =>
        {
            Some(release(share.grant))
        }
        _ => None,
    });
    beyond.map(Asked::from).collect()
}

fn release(grant: LiveGrant) -> Request {
    Request::Release(GrantRef {
        lock: grant.lock,
        key: grant.key,
        token: Some(grant.token),
    })
}

/// A stranger who has read a listing asks for a lock with the holder's client id. It has a principal of its own, so it is
/// denied; for the mutant it has none, as the holder.
fn stranger(
    request: &Request,
    mutant: Option<Mutant>,
    machine: &Machine,
    at: Timestamp,
) -> Option<Asked> {
    let Request::Acquire(wish) = request else {
        return None;
    };
    let holder = machine.view(&wish.lock, at)?.holder?;
    let wish = Acquire::new(wish.lock.clone(), holder.client, Under::new(Ttl::MIN), None);
    let by = match mutant {
        Some(Mutant::PrincipalIgnored) => Principal::ANONYMOUS,
        _ => Principal::from_bytes([0xee; 16]),
    };
    Some(Asked {
        by,
        request: Request::Acquire(wish),
        keeps_place: KeepsPlace::default(),
    })
}

/// The commands of a new leader for the requests that wait: none, except for two mutants.
pub(super) fn of_orphans(waiting: Vec<Waiting>, mutant: Option<Mutant>) -> Vec<Command> {
    let commands = waiting.into_iter().filter_map(|waiting| match mutant {
        Some(Mutant::OrphanGranted) => {
            let Waiting { record, locks } = waiting;
            let request = Some(record.request);
            let acquire = Acquire::of_all(locks, record.client, record.under, request).ok()?;
            Some(Command::Acquire(Acquire {
                mode: record.mode,
                ..acquire
            }))
        }
        Some(Mutant::OrphanOvertaken) => Some(Command::Withdraw(waiting.record.request)),
        _ => None,
    });
    commands.collect()
}

/// The time as reported to the loop. `before` is the clock before it woke, `away` its true absence, and `forged` the work that
/// a mutant has made of absences so far.
pub(super) fn moment(
    now: Moment,
    mutant: Option<Mutant>,
    before: Timestamp,
    away: Option<Away>,
    forged: &mut Span,
) -> Moment {
    match (mutant, away) {
        (Some(Mutant::WorkIsAway), _) => Moment {
            worked: Span::ZERO,
            ..now
        },
        (Some(Mutant::ClockReadFirst), _) => Moment { at: before, ..now },
        (Some(Mutant::NoGrace | Mutant::ShortForgotten), Some(Away::Paused(pause))) => {
            *forged = forged.plus(pause);
            Moment {
                worked: now.worked.plus(*forged),
                ..now
            }
        }
        _ => Moment {
            worked: now.worked.plus(*forged),
            ..now
        },
    }
}

/// The bytes for the log. A mutant leaves withdrawals out.
pub(super) fn logged(entry: &[u8], mutant: Option<Mutant>) -> Vec<u8> {
    if mutant != Some(Mutant::WithdrawalNotLogged) {
        return entry.to_vec();
    }
    let (mut batch, mut by) = (Vec::new(), Principal::ANONYMOUS);
    let decoded = decode_batch(
        entry,
        |Entry {
             at,
             wall,
             by: asks,
             command,
         }| {
            if matches!(command, Command::Withdraw(_)) {
                return;
            }
            if batch.is_empty() {
                encode_head(&mut batch, at, wall);
            }
            if std::mem::replace(&mut by, asks) != asks {
                encode_by(&mut batch, asks);
            }
            encode_command(&mut batch, &command);
        },
    );
    assert!(decoded.is_ok(), "a batch was encoded a moment ago");
    batch
}

/// The fact that a request arrived, if it may end a grant.
pub(super) fn taken(request: &Request, ids: &mut IdMap) -> Option<Fact> {
    match request {
        Request::Acquire(wish) => Some(Fact::AcquireTaken {
            locks: locks_of(wish),
            client: index(&wish.client),
            request: wish.request.map(|request| ids.number(request)),
            wanted: wanted(wish.mode),
            of: wish.mode.permits().map_or(0, |permits| permits.of() as u8),
            under: match wish.under {
                Under::Existing { key, .. } => ids.lease(key),
                Under::New { .. } => None,
            },
            lock_delay: wish.options.lock_delay().as_nanos(),
            at_least_for: wish.options.at_least_for().as_nanos(),
        }),
        Request::Release(grant) => {
            let (lock, token) = (index(&grant.lock), grant.token?.get());
            Some(Fact::ReleaseTaken { lock, token })
        }
        Request::Revoke { lock, token, .. } => Some(Fact::RevokeTaken {
            lock: index(lock),
            token: token.get(),
        }),
        Request::Resize { lock, permits } => Some(Fact::ResizeTaken {
            lock: index(lock),
            permits: *permits as u8,
        }),
        Request::Abandon(request) => Some(Fact::AbandonTaken {
            request: ids.number(*request),
        }),
        _ => None,
    }
}

/// The fact that an answer is sent, if it says "you hold" or, to an operator, that a number of permits has changed.
pub(super) fn acknowledged(answer: &Answer, caller: &Caller) -> Option<Fact> {
    let (token, fencing) = match answer {
        Answer::Outcome(Outcome::Granted(granted)) => (granted.number(), Some(granted.token)),
        Answer::Outcome(Outcome::Renewed(_)) => (caller.renews?, None),
        Answer::Outcome(Outcome::Done) => {
            let (lock, permits) = caller.resizes?;
            return Some(Fact::ResizeAcknowledged { lock, permits });
        }
        _ => return None,
    };
    Some(Fact::Acknowledged {
        token: token.get(),
        fencing: fencing.map(Token::get),
        renewal: fencing.is_none(),
    })
}
