//! Hears of grants at the authority, so that a loss and a request that waits are known before the next renewal.
//!
//! ```text
//!   guard made ─► Unnamed ──after GATHER──► named at the authority ─► news ─► the guard's hold, its waiters
//!                    ▲                                        │
//!                    └──────── all guards that hold ◄── it ended: after a pause, begin anew
//! ```
//!
//! A guard that is released within [`GATHER`] is never named, so a short hold costs nothing. Nothing here renews a lease or
//! suspends one; without it everything is learned later, from renewals.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use palisade_core::{LockName, Span, Token};
use tokio::sync::Notify;

use crate::clock::Sleep;
use crate::error::Loss;
use crate::fault::Fault;
use crate::random;
use crate::schedule::KeptGrant;
use crate::service::{GrantNews, Listened, Listening};
use crate::state::Core;

/// New grants, of which the authority does not tell yet.
#[derive(Debug)]
pub(crate) struct Unnamed {
    listens: bool,
    /// Whether the authority tells of grants at this moment.
    told: AtomicBool,
    grants: Mutex<Vec<Weak<KeptGrant>>>,
    /// There is one.
    some: Notify,
}

impl Unnamed {
    pub(crate) fn new(listens: bool) -> Unnamed {
        Unnamed {
            listens,
            told: AtomicBool::new(false),
            grants: Mutex::default(),
            some: Notify::const_new(),
        }
    }

    /// Whether the client listens at all.
    pub(crate) fn listens(&self) -> bool {
        self.listens
    }

    pub(crate) fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, kept: &Arc<KeptGrant>) {
        if !self.listens {
            return;
        }
        let mut grants = self.grants();
        if grants.len() == grants.capacity() {
            // Only those that are still there take room.
            grants.retain(|kept| kept.strong_count() > 0);
        }
        grants.push(Arc::downgrade(kept));
        if grants.len() == 1 {
            self.some.notify_one();
        }
    }

    fn take(&self) -> Vec<Weak<KeptGrant>> {
        std::mem::take(&mut *self.grants())
    }

    fn grants(&self) -> MutexGuard<'_, Vec<Weak<KeptGrant>>> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The guards whose grants the authority tells of.
type GuardsByGrant = HashMap<(LockName, Token), Weak<KeptGrant>>;

/// Listens as long as there are guards. Does not end.
pub(crate) async fn run(core: Arc<Core>) {
    let mut pause = SHORTEST_PAUSE;
    // Of an earlier task, whose runtime has ended.
    let mut grants: Vec<Weak<KeptGrant>> = {
        let schedule = core.schedule();
        let holding = schedule.leases().flat_map(|lease| lease.holding());
        holding.map(|kept| Arc::downgrade(&kept)).collect()
    };
    loop {
        grants.extend(core.unnamed.take());
        grants.retain(holds);
        while grants.is_empty() {
            core.unnamed.some.notified().await;
            core.clock.sleep_until(core.clock.now().after(GATHER)).await;
            grants.extend(core.unnamed.take().into_iter().filter(holds));
        }
        let Some(listening) = core.service.listen() else {
            return;
        };
        let mut named = GuardsByGrant::new();
        let (heard, ended) = listen(&core, listening, &mut named, grants).await;
        core.unnamed.told.store(false, Ordering::Relaxed);
        grants = named.into_values().collect();
        let rest = match ended {
            // An older server, which cannot listen.
            Some(Fault::Invalid(_) | Fault::Unsupported(_)) => USELESS_PAUSE,
            _ if heard => SHORTEST_PAUSE,
            _ => pause,
        };
        pause = rest.plus(rest).min(LONGEST_PAUSE);
        core.clock
            .sleep_until(core.clock.now().after(jittered(rest)))
            .await;
    }
}

/// Listens until nothing is told any more. Returns whether anything was heard, and why it ended.
async fn listen(
    core: &Core,
    mut listening: Box<dyn Listening>,
    named: &mut GuardsByGrant,
    grants: Vec<Weak<KeptGrant>>,
) -> (bool, Option<Fault>) {
    name(&mut *listening, named, grants);
    core.unnamed.told.store(true, Ordering::Relaxed);
    let mut heard = false;
    let mut gathering: Option<Sleep> = None;
    loop {
        tokio::select! {
            news = std::future::poll_fn(|cx| listening.poll_news(cx)) => match news {
                Some(Ok(news)) => {
                    heard = true;
                    apply(named, news);
                }
                Some(Err(fault)) => {
                    tracing::debug!(%fault, "the authority tells nothing of grants");
                    return (heard, Some(fault));
                }
                None => return (heard, None),
            },
            () = core.unnamed.some.notified(), if gathering.is_none() => {
                gathering = Some(core.clock.alarm(core.clock.now().after(GATHER)));
            }
            () = async { if let Some(gathering) = &mut gathering { gathering.await } }, if gathering.is_some() => {
                gathering = None;
                named.retain(|_, kept| kept.strong_count() > 0);
                name(&mut *listening, named, core.unnamed.take());
            }
        }
    }
}

fn name(listening: &mut dyn Listening, named: &mut GuardsByGrant, grants: Vec<Weak<KeptGrant>>) {
    let mut new = Vec::new();
    for weak in grants {
        let Some(kept) = weak.upgrade() else {
            continue;
        };
        if kept.hold.why().is_none()
            && let Some(number) = kept.grant.token
            && named
                .insert((kept.grant.lock.clone(), number), weak)
                .is_none()
        {
            new.push(Listened {
                grant: kept.grant.clone(),
                number,
                waiters: kept.waiters(),
            });
        }
    }
    if !new.is_empty() {
        listening.name(new);
    }
}

fn apply(named: &mut GuardsByGrant, news: GrantNews) {
    match news {
        GrantNews::Ended {
            lock,
            number,
            how,
            reason,
        } => {
            let kept = named.remove(&(lock, number));
            if let Some(kept) = kept.and_then(|kept| kept.upgrade()) {
                // If it is not over yet, its upgrade says so, or the next renewal.
                kept.ended(how.map_or(Loss::NotHeld, Loss::Ended), reason);
            }
        }
        GrantNews::Wanted {
            lock,
            number,
            waiters,
        } => {
            let kept = named.get(&(lock, number));
            if let Some(kept) = kept.and_then(Weak::upgrade) {
                kept.set_waiters(waiters);
            }
        }
    }
}

fn holds(kept: &Weak<KeptGrant>) -> bool {
    kept.upgrade().is_some_and(|kept| kept.hold.why().is_none())
}

/// Between a half and the whole of a pause, so that the clients of a server that was restarted do not come together.
fn jittered(pause: Span) -> Span {
    let half = pause.as_nanos() / 2;
    let drawn =
        random::bytes().map_or(0, |[first, second, ..]| u16::from_le_bytes([first, second]));
    Span::from_nanos(half + half / u64::from(u16::MAX) * u64::from(drawn))
}

/// How long new guards are gathered before the authority is asked about them.
const GATHER: Span = Span::from_millis(150);

/// Pauses before listening again, doubled each time that nothing was heard.
const SHORTEST_PAUSE: Span = Span::from_millis(500);
const LONGEST_PAUSE: Span = Span::from_millis(10_000);

/// The pause when the server does not understand the question.
const USELESS_PAUSE: Span = Span::from_millis(60_000);
