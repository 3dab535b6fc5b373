//! From a request to what the log needs, or to an answer from what is there.

use palisade_core::{Acquire, Command, LeaseKey, LockView, Machine, Span, Timestamp, Under};

use super::random;
use super::request::{self, Answer, Failure, Request, Status};

/// What is to be done about a request.
pub(super) enum Step {
    /// It may change state.
    Command(Command),
    /// It only asked.
    Answer(Answer),
    /// It moves a manual clock.
    Advance(Span),
}

/// Decides what a request needs. `now` is the stamp of the batch it is in.
pub(super) fn step(request: Request, machine: &Machine, now: Timestamp, manual: bool) -> Step {
    Step::Command(match request {
        Request::Acquire(acquire) => match command(acquire) {
            Some(acquire) => Command::Acquire(acquire),
            None => return Step::Answer(no_duration()),
        },
        Request::Renew { grant, ttl } => Command::Renew { grant, ttl },
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
        Request::Advance(by) => return Step::Advance(by),
        Request::Show(lock) => {
            let view = machine.view(&lock, now);
            return Step::Answer(Answer::Lock(view.unwrap_or_else(|| LockView::free(lock))));
        }
        Request::List {
            prefix,
            cursor,
            limit,
        } => {
            let (locks, next) = machine.page(&prefix, cursor, limit, now);
            return Step::Answer(Answer::Locks { locks, next });
        }
        Request::Status => return Step::Answer(Answer::Status(status(machine, manual))),
    })
}

/// Adds what the log needs: the secret of a new lease. `None` if a new lease has no time to live.
fn command(acquire: request::Acquire) -> Option<Acquire> {
    let under = match (acquire.lease, acquire.ttl) {
        (Some(key), ttl) => Under::Existing { key, ttl },
        (None, Some(ttl)) => Under::New {
            key: LeaseKey::from_bytes(random::bytes()),
            ttl,
        },
        (None, None) => return None,
    };
    Some(Acquire {
        lock: acquire.lock,
        client: acquire.client,
        under,
        wait: acquire.wait,
        request: acquire.request,
        metadata: acquire.metadata,
    })
}

fn no_duration() -> Answer {
    Answer::Failed(Failure::Refused(
        "a new lease needs a duration (lease_duration_ms)".into(),
    ))
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
