//! A long time in which nobody asks for anything, and leaders that are killed one after the other. A lock that is closed opens in
//! time all the same (A14, R8).

use std::sync::Arc;

use openraft_rt::AsyncRuntime as _;
use openraft_rt_sim::SimRuntime;
use palisade_core::{GrantOptions, GrantRef, Outcome, RequestId, Wish};
use palisade_pipeline::{Answer, Request};

use super::client::{Client, lock_name};
use super::mutants::Mutant;
use super::nemesis::leader;
use super::network::Terms;
use super::runtime::{MS, now, sleep};
use super::world::World;
use super::{GIVEN_UP, begin};

/// For how long the lock is closed, and for how long each leader leads.
const CLOSED_MS: u64 = 20 * 60_000;
const LEADS_MS: u64 = 5 * 60_000;

/// The result for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quiet {
    /// How much longer the lock was closed than its grant asked for, in milliseconds; negative if it opened early.
    pub late_ms: i64,
    /// How many leaders were killed meanwhile.
    pub changes: u64,
}

/// Closes a lock for twenty minutes, and kills each leader after five, until the lock is open.
///
/// # Errors
/// The cluster did not serve, or the lock was not open after one and a half times its time.
pub fn quiet(seed: u64, mutant: Option<Mutant>) -> Result<Quiet, String> {
    SimRuntime::with_seed(seed).block_on(play(seed, mutant))
}

async fn play(seed: u64, mutant: Option<Mutant>) -> Result<Quiet, String> {
    let world = begin(Terms::default(), seed, mutant, false);
    let mut client = Client {
        world: Arc::clone(&world),
        number: 0,
        rng: world.fork(200),
        node: 0,
    };
    sleep(2_000 * MS).await;
    let since = close(&mut client).await?;
    let mut changes = 0;
    let elapsed_ms = || (now() - since) / MS;
    while elapsed_ms() < CLOSED_MS + CLOSED_MS / 2 {
        let opens = CLOSED_MS.saturating_sub(elapsed_ms()).max(1_000);
        sleep(opens.min(LEADS_MS) * MS).await;
        if is_open(&mut client).await? {
            let late_ms = elapsed_ms().cast_signed() - CLOSED_MS.cast_signed();
            return Ok(Quiet { late_ms, changes });
        }
        if opens > LEADS_MS {
            changes += 1;
            kill_leader(&world);
        }
    }
    Err(format!(
        "closed after {} ms and {changes} changes",
        elapsed_ms()
    ))
}

/// Has a lock granted with an at-least-for, and releases it at once. When it was granted, or later.
async fn close(client: &mut Client) -> Result<u64, String> {
    let request = RequestId::from_bytes(client.rng.bytes());
    let wish = client.wish(0, request, 60_000, None).ok_or("no wish")?;
    let options = GrantOptions::closing(0, CLOSED_MS).map_err(|error| error.to_string())?;
    let wish = Wish { options, ..wish };
    let asked = Request::Acquire(wish.clone());
    let Answer::Outcome(Outcome::Granted(grant)) = settled(client, asked).await? else {
        return Err("the lock was not granted".into());
    };
    let since = now();
    let release = Request::Release(GrantRef {
        lock: wish.lock,
        key: grant.key,
        token: Some(grant.token),
    });
    settled(client, release).await?;
    Ok(since)
}

async fn is_open(client: &mut Client) -> Result<bool, String> {
    let lock = lock_name(0).ok_or("no name")?;
    match settled(client, Request::Show(lock)).await? {
        Answer::Lock(view) => Ok(view.delayed.is_none()),
        other => Err(format!("{other:?}")),
    }
}

/// An answer of a node that leads.
async fn settled(client: &mut Client, request: Request) -> Result<Answer, String> {
    let until = now() + GIVEN_UP;
    while now() < until {
        match client.ask(request.clone(), 0).await {
            Some(Answer::Failed(_)) | None => sleep(10 * MS).await,
            Some(answer) => return Ok(answer),
        }
    }
    Err("nobody leads".into())
}

fn kill_leader(world: &Arc<World>) {
    if let Some(leads) = leader(world) {
        world.kill(leads, false, 0, 50 * MS);
    }
}
