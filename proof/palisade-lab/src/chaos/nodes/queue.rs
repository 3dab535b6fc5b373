//! Places in a queue: three waiters come one after the other, and are granted in that order, whichever node leads by
//! then.
//!
//! A waiter that is cut off without a word notices that too late to keep its place, and so does one that this machine
//! did not run in time. Such a queue proves nothing and is only counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use serde_json::json;

use super::http::{Reply, ask};
use super::shared::{ANSWER, Shared};
use crate::chaos::lock::lock;

const WAITERS: usize = 3;
const WAIT: Duration = Duration::from_secs(40);
const RETRY: Duration = Duration::from_millis(20);
/// Half of the window in which a waiter's place is reserved.
const LATE: Duration = Duration::from_secs(1);

/// A waiter's grant, and the longest time between two of its attempts.
struct Granted {
    token: u64,
    away: Duration,
}

pub(super) fn run(shared: &Arc<Shared>) {
    let mut random = fastrand::Rng::new();
    for round in 0_u64.. {
        let silent = shared.silent();
        let order = queue(shared, &format!("queue-{round}"), &mut random);
        if shared.stop.comes_within(Duration::ZERO) {
            return;
        }
        let mut count = lock(&shared.queues);
        let kept = order
            .as_ref()
            .map(|granted| granted.is_sorted_by_key(|granted| granted.token));
        let late = order.iter().flatten().any(|granted| granted.away > LATE);
        match kept {
            Some(true) => count.kept += 1,
            Some(false) if !late && shared.silent() == silent => {
                let tokens: Vec<u64> = order
                    .iter()
                    .flatten()
                    .map(|granted| granted.token)
                    .collect();
                count.wrong.push(format!(
                    "queue-{round}: granted out of turn, tokens {tokens:?}"
                ));
            }
            _ => count.void += 1,
        }
    }
}

/// One queue: the grants of its waiters in the order of their requests.
fn queue(shared: &Arc<Shared>, name: &str, random: &mut fastrand::Rng) -> Option<Vec<Granted>> {
    let holder = acquire(shared, name, "holder", Duration::ZERO)?;
    let key = holder.0.body["lock_token"].as_str()?.to_owned();
    let mut waiting = Vec::new();
    for waiter in 0..WAITERS {
        let (done, granted) = channel();
        let (shared_, name_) = (Arc::clone(shared), name.to_owned());
        std::thread::spawn(move || {
            let granted = acquire(&shared_, &name_, &format!("waiter-{waiter}"), WAIT);
            if let Some((reply, _)) = &granted {
                release(
                    &shared_,
                    &name_,
                    reply.body["lock_token"].as_str().unwrap_or_default(),
                );
            }
            let _ = done.send(granted);
        });
        waiting.push(granted);
        until_queued(shared, name, waiter + 1)?;
    }
    shared
        .stop
        .comes_within(Duration::from_millis(random.u64(200..2_000)));
    release(shared, name, &key);
    let granted = waiting.iter().map(|granted| {
        let (reply, away) = granted.recv_timeout(2 * WAIT).ok().flatten()?;
        let token = reply.body["fencing_token"].as_u64()?;
        Some(Granted { token, away })
    });
    granted.collect()
}

/// Acquires, repeating the request at whichever node is ready; also the longest time between an answer and the next
/// attempt.
fn acquire(shared: &Shared, name: &str, client: &str, wait: Duration) -> Option<(Reply, Duration)> {
    let request = format!("{:032x}", fastrand::u128(..));
    let begun = BootClock.now();
    let (mut away, mut last) = (Duration::ZERO, begun);
    loop {
        let ready = ready(shared);
        let now = BootClock.now();
        away = away.max(now.since(last).to_duration());
        let waited = now.since(begun).to_duration();
        if waited > WAIT || shared.stop.comes_within(Duration::ZERO) {
            return None;
        }
        let Some(address) = ready else {
            shared.stop.comes_within(RETRY);
            continue;
        };
        let left = wait.saturating_sub(waited);
        let body = json!({
            "client_id": client, "request_id": request, "lease_duration_ms": 60_000, "wait_ms": left.as_millis() as u64,
        });
        let path = format!("/v1/locks/{name}/acquire");
        let reply = ask(address, &path, Some(&body.to_string()), left + ANSWER);
        last = BootClock.now();
        match reply {
            Some(reply) if reply.status == 200 => return Some((reply, away)),
            Some(reply) if reply.status < 500 => return None,
            _ => drop(shared.stop.comes_within(RETRY)),
        }
    }
}

/// A node that leads, or that knows who does: a wait that it sends on keeps its place when it dies.
fn ready(shared: &Shared) -> Option<SocketAddr> {
    around(shared)
        .take(shared.watched.addresses.len())
        .find(|address| {
            let ready = ask(*address, "/readyz", None, ANSWER);
            ready.is_some_and(|reply| reply.status == 200)
        })
}

fn release(shared: &Shared, name: &str, key: &str) {
    let body = json!({ "lock_token": key }).to_string();
    let path = format!("/v1/locks/{name}/release");
    let begun = BootClock.now();
    for address in around(shared) {
        let reply = ask(address, &path, Some(&body), ANSWER);
        let late = BootClock.now().since(begun).to_duration() > WAIT;
        if late || reply.is_some_and(|reply| reply.status < 500) || shared.stop.comes_within(RETRY)
        {
            return;
        }
    }
}

/// Waits until so many requests wait for the lock; nothing if that takes too long.
fn until_queued(shared: &Shared, name: &str, count: usize) -> Option<()> {
    let path = format!("/v1/locks/{name}");
    let begun = BootClock.now();
    for address in around(shared) {
        let reply = ask(address, &path, None, ANSWER);
        if reply.is_some_and(|reply| reply.body["waiters"] == count) {
            return Some(());
        }
        let late = BootClock.now().since(begun).to_duration() > WAIT;
        if late || shared.stop.comes_within(RETRY) {
            return None;
        }
    }
    None
}

/// The nodes, again and again, from any one on.
fn around(shared: &Shared) -> impl Iterator<Item = SocketAddr> + '_ {
    let addresses = &shared.watched.addresses;
    let first = fastrand::usize(0..addresses.len());
    addresses.iter().copied().cycle().skip(first)
}
