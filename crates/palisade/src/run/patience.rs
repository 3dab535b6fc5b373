//! Acquiring with patience: an authority that cannot be reached may come back while there is time to wait, and
//! whoever sits at the terminal sees what is waited for.

use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::{Caution, Client, Error, Fault, Lease, Options};
use palisade_core::{Span, Timestamp};

use super::guard::{margin, refused};
use crate::cli::{Failure, Out, RunArgs, Wish, millis};

/// Acquires the lock, until `--wait` is over.
pub(super) async fn acquire(args: &RunArgs, out: Out) -> Result<Lease, Failure> {
    let wish = &args.wish;
    let until = BootClock.now().after(wish.wait().into());
    let (mut pause, mut warned) = (SHORTEST_PAUSE, false);
    loop {
        let fault = match ask(wish, until, out).await {
            Ok(lease) => return Ok(lease),
            Err(Error::Fault(fault)) if fault.is_transient() => fault,
            Err(error) => return Err(refused(&error, args)),
        };
        let left = until.since(BootClock.now());
        if left == Span::ZERO {
            return Err(refused(&fault.into(), args));
        }
        if !std::mem::replace(&mut warned, true) {
            warn(&fault, wish, left, out);
        }
        tokio::time::sleep(pause.min(left.to_duration())).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// One attempt. A request whose outcome is unknown is abandoned by the client, so another one is safe.
async fn ask(wish: &Wish, until: Timestamp, out: Out) -> Result<Lease, Error> {
    let options = Options {
        caution: Caution::new(10_000, margin(wish.ttl)).unwrap_or_default(),
        ..Options::default()
    };
    let client = wish.connection.connect(options).await?;
    warn_of_take_over(&client, wish, out).await;
    let left = until.since(BootClock.now()).to_duration();
    tokio::select! {
        biased;
        lease = wish.ask(&client).wait(left).acquire() => lease,
        never = note_holders(&client, wish, out) => match never {},
    }
}

fn warn(fault: &Fault, wish: &Wish, left: Span, out: Out) {
    let url = palisade_client::without_secrets(&wish.connection.authority);
    out.warning(&format!(
        "{url}: {fault}; trying again for {}",
        millis(left.as_millis())
    ));
}

/// Two jobs with one client id take the lock from each other, and each ends the other's command.
async fn warn_of_take_over(client: &Client, wish: &Wish, out: Out) {
    let Some(id) = &wish.client_id else {
        return;
    };
    // What cannot be seen is not warned of; the request itself says what is wrong.
    let holder = client
        .show(&wish.lock)
        .await
        .ok()
        .and_then(|view| view.holder);
    if let Some(holder) = holder.filter(|holder| holder.client.as_str() == id) {
        out.warning(&format!(
            "{} is held by the client id {id} already (token {}): it is taken over, and a command that runs under \
             it is ended. Jobs on two machines need two client ids, or none",
            wish.lock, holder.token
        ));
    }
}

/// Says who has the lock, at first and whenever that changes.
async fn note_holders(client: &Client, wish: &Wish, out: Out) -> std::convert::Infallible {
    let mut told = None;
    loop {
        tokio::time::sleep(LOOK).await;
        let Ok(view) = client.show(&wish.lock).await else {
            continue;
        };
        let Some(holder) = view.holder.filter(|holder| told != Some(holder.token)) else {
            continue;
        };
        told = Some(holder.token);
        let since = view.acquired_at.map(crate::cli::wall);
        out.note(&format!(
            "waiting for {}: held by {} (token {}){}; {} in the queue",
            wish.lock,
            holder.client,
            holder.token,
            since.map(|at| format!(" since {at}")).unwrap_or_default(),
            view.waiters
        ));
    }
}

/// How often is looked who has the lock.
const LOOK: Duration = Duration::from_secs(1);

/// Between two attempts to reach the authority.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
