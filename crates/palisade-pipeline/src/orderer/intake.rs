//! Turns a request into a command for the log, or into an answer from the present state.

use palisade_core::{Command, LeaseKey, LockView, Machine, Principal, Timestamp};

use crate::request::{Answer, Failure, Request, Status};

/// The way a request is handled.
pub(super) enum Intake {
    /// It may change state.
    Command(Command),
    /// It is answered from the present state.
    Answer(Answer),
}

/// Decides how a request is handled. `now` is the stamp of the batch it is in; `key` draws the secret of a
/// new lease.
pub(super) fn intake(
    by: Principal,
    request: Request,
    machine: &Machine,
    now: Timestamp,
    manual_clock: bool,
    key: impl FnOnce() -> LeaseKey,
) -> Intake {
    Intake::Command(match request {
        Request::Acquire(wish) => Command::Acquire(wish.with_key(key)),
        Request::Renew { grant, ttl } => Command::Renew { grant, ttl },
        Request::Proclaim { grant, value } => Command::Proclaim { grant, value },
        Request::Release(grant) => Command::Release(grant),
        Request::Abandon(request) => Command::Abandon(request),
        Request::Revoke {
            lock,
            token,
            reason,
        } => Command::Revoke {
            lock,
            token,
            reason,
        },
        Request::Open { lock, reason } => Command::Open { lock, reason },
        Request::Resize { lock, permits } => Command::Resize { lock, permits },
        Request::Show(lock) => {
            let view = machine.view(&lock, now);
            let view = view.unwrap_or_else(|| LockView {
                revision: Some(machine.revision()),
                ..LockView::free(lock)
            });
            return Intake::Answer(Answer::Lock(Box::new(view)));
        }
        Request::Listen(grants) => {
            let states = grants.iter();
            let states = states.map(|listened| machine.grant_state(by, &listened.grant));
            return Intake::Answer(Answer::States(states.collect()));
        }
        Request::List {
            prefix,
            cursor,
            limit,
        } => {
            let (locks, next) = machine.page(&prefix, cursor, limit, now);
            return Intake::Answer(Answer::Locks { locks, next });
        }
        Request::Grants { cursor } => {
            let (grants, next) = machine.grants(cursor, now);
            return Intake::Answer(Answer::Grants { grants, next });
        }
        Request::Status => return Intake::Answer(Answer::Status(status(machine, manual_clock))),
        // A manual clock is moved by its owner, between two batches.
        Request::Advance(_) => {
            let why = "this authority's clock runs by itself; start it with --clock manual";
            return Intake::Answer(Answer::Failed(Failure::Refused(why.into())));
        }
    })
}

fn status(machine: &Machine, manual_clock: bool) -> Status {
    Status {
        next_token: machine.next_token(),
        locks: machine.locks(),
        leases: machine.leases(),
        waiters: machine.waiters(),
        manual_clock,
    }
}
