//! Acquires the lock and retries: an authority that cannot be reached may come back within `--wait`. At a
//! terminal it also says who holds the lock.

use std::collections::HashMap;
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::{Caution, Client, Error, Fault, Lease, Options};
use palisade_core::{Span, Timestamp, Ttl};

use crate::cli::{Failure, LOST, LockArgs, NOT_ACQUIRED, Out, RunArgs, millis, wall};

/// How much earlier than the lease the guard's deadline is: killing processes takes time.
pub(super) fn margin(ttl: Ttl) -> Span {
    Span::from_nanos(ttl.span().as_nanos() / 10).min(Span::from_millis(100))
}

/// Acquires the lock, or fails when `--wait` has passed.
pub(super) async fn acquire(args: &RunArgs, out: Out) -> Result<Vec<Lease>, Failure> {
    let lock_args = &args.lock_args;
    let until = BootClock.now().after(lock_args.wait().into());
    let (mut pause, mut warned) = (SHORTEST_PAUSE, false);
    loop {
        let fault = match attempt(args, until, out).await {
            Ok(leases) => return Ok(leases),
            Err(Error::Fault(fault)) if fault.is_transient() => fault,
            Err(error) => return Err(refused(&error, args)),
        };
        let left = until.since(BootClock.now());
        if left == Span::ZERO {
            return Err(refused(&fault.into(), args));
        }
        if !std::mem::replace(&mut warned, true) {
            warn(&fault, lock_args, left, out);
        }
        tokio::time::sleep(pause.min(left.to_duration())).await;
        if until.since(BootClock.now()) == Span::ZERO {
            // An attempt without a wait would be a try, which the client repeats for its own patience.
            return Err(refused(&fault.into(), args));
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

pub(super) fn refused(error: &Error, args: &RunArgs) -> Failure {
    let failure = Failure::of(error, &args.lock_args.connection.authority);
    // Granted too late to be useful; nothing has run.
    if failure.status == LOST {
        return Failure {
            status: NOT_ACQUIRED,
            ..failure
        };
    }
    failure
}

/// One attempt. The client abandons a request whose outcome is unknown, so another attempt is safe.
async fn attempt(args: &RunArgs, until: Timestamp, out: Out) -> Result<Vec<Lease>, Error> {
    let lock_args = &args.lock_args;
    let options = Options {
        caution: Caution::new(10_000, margin(lock_args.ttl)).unwrap_or_default(),
        notices: !args.no_notices,
        ..Options::default()
    };
    let client = lock_args.connection.connect(options).await?;
    if args.yield_on_wait.is_some() && client.service().listen().is_none() {
        let why = "say whether anybody waits: omit --yield-on-wait, or use a Palisade server";
        return Err(Fault::unsupported(why).into());
    }
    warn_of_take_over(&client, lock_args, out).await;
    let left = until.since(BootClock.now()).to_duration();
    tokio::select! {
        biased;
        leases = lock_args.acquire(&client, left) => leases,
        never = note_holders(&client, lock_args, out) => match never {},
    }
}

fn warn(fault: &Fault, lock_args: &LockArgs, left: Span, out: Out) {
    let url = palisade_client::without_secrets(&lock_args.connection.authority);
    out.warning(&format!(
        "{url}: {fault:#}; trying again for {}",
        millis(left.as_millis())
    ));
}

/// Warns: two jobs with the same client id take the lock from each other, and each ends the other's command.
async fn warn_of_take_over(client: &Client, lock_args: &LockArgs, out: Out) {
    let Some(id) = &lock_args.client_id else {
        return;
    };
    for lock in lock_args.locks() {
        // If the holder cannot be seen, there is no warning; the request itself will report the fault.
        let view = client.show(lock).await.ok();
        let holder = view.and_then(|view| view.holder);
        if let Some(holder) = holder.filter(|holder| holder.client.as_str() == id) {
            out.warning(&format!(
                "client id {id} already holds {lock} (token {}): this job takes the lock over, and the command that \
                 runs under it is ended. Give jobs on two machines different client ids, or none",
                holder.token
            ));
        }
    }
}

/// Says who holds the lock, once and after each change.
async fn note_holders(client: &Client, lock_args: &LockArgs, out: Out) -> std::convert::Infallible {
    let mut shown = HashMap::new();
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        for lock in lock_args.locks() {
            let Ok(view) = client.show(lock).await else {
                continue;
            };
            let Some(holder) = view.holder else {
                continue;
            };
            if shown.insert(lock, holder.token) == Some(holder.token) {
                continue;
            }
            let since = view.acquired_at.map(wall);
            out.note(&format!(
                "waiting for {lock}: held by {} (token {}){}; {} in the queue",
                holder.client,
                holder.token,
                since.map(|at| format!(" since {at}")).unwrap_or_default(),
                view.waiters
            ));
        }
    }
}

/// How often to ask who holds the lock.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The pause between two attempts to reach the authority.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
