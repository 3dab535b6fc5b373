//! The load loops of `palisade bench`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use palisade_client::service::{AcquireRequest, Acquired, LockService, Renewal, Under};
use palisade_client::{Client, Error, Fault};
use palisade_core::{ClientId, GrantRef, LockName, Others, RequestId, Span, Ttl, set_of};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

use super::bound::{LockTurn, SetWait, waits};
use super::settings::{LoadKind, Settings};

const WARMING: u8 = 0;
const MEASURING: u8 = 1;
/// Measuring, while a loop asks for all locks at once (mode sets).
const BESIDE_SETS: u8 = 2;
const DONE: u8 = 3;

/// How many locks there are in mode sets.
const SET: usize = 8;

/// A wait that is longer than any queue of a benchmark.
const PATIENCE: Span = Span::from_millis(60_000);

/// The measurements of all loops.
pub(super) struct Measured {
    /// Nanoseconds of each acquire (or renewal); in mode sets while nobody asks for a set.
    pub(super) acquire: Histogram<u64>,
    /// Nanoseconds of each acquire of one lock beside sets.
    pub(super) beside: Histogram<u64>,
    /// Nanoseconds of each acquire of a set.
    pub(super) set: Histogram<u64>,
    /// How long each set waited at the server, and at most might have.
    pub(super) waits: Vec<SetWait>,
    /// Nanoseconds of each release.
    pub(super) release: Histogram<u64>,
    /// Nanoseconds from a release being sent to the next holder's grant being seen.
    pub(super) hand_off: Histogram<u64>,
    /// The tokens of each loop, in the order in which it got them.
    pub(super) tokens: Vec<Vec<u64>>,
    /// How long was measured.
    pub(super) elapsed: Duration,
}

/// The state that all loops share.
struct Shared {
    phase: AtomicU8,
    mode: LoadKind,
    ttl: Ttl,
    hold: Duration,
    /// When the contended lock was last released, on the monotonic clock; 0 before the first time.
    released_at: AtomicU64,
}

pub(super) struct Loops {
    shared: Arc<Shared>,
    services: Vec<Arc<dyn LockService>>,
    in_flight: usize,
    warmup: Duration,
    duration: Duration,
    /// An empty histogram, cloned for every loop.
    histogram: Histogram<u64>,
}

/// One loop: one lock or one set, one client id.
struct Loop {
    shared: Arc<Shared>,
    service: Arc<dyn LockService>,
    lock: LockName,
    /// The other locks of a set.
    also: Others,
    client: ClientId,
    requests: u128,
    acquire: Histogram<u64>,
    beside: Histogram<u64>,
    set: Histogram<u64>,
    release: Histogram<u64>,
    hand_off: Histogram<u64>,
    tokens: Vec<u64>,
    /// The turns of mode sets.
    turns: Vec<LockTurn>,
}

/// A loop's grant.
struct LoopGrant {
    grant: GrantRef,
    /// How long it waited at the server.
    waited: Span,
}

impl Loops {
    pub(super) fn new(settings: &Settings, clients: &[Client]) -> Result<Loops, Error> {
        let millis = u64::try_from(settings.ttl.as_millis()).unwrap_or(u64::MAX);
        let shared = Shared {
            phase: AtomicU8::new(WARMING),
            mode: settings.mode,
            ttl: Ttl::from_millis(millis)?,
            hold: settings.hold,
            released_at: AtomicU64::new(0),
        };
        let mut histogram = Histogram::new(3).map_err(|_| unexpected("no histogram"))?;
        histogram.auto(true);
        Ok(Loops {
            histogram,
            shared: Arc::new(shared),
            services: clients
                .iter()
                .map(|client| Arc::clone(client.service()))
                .collect(),
            in_flight: settings.in_flight,
            warmup: settings.warmup,
            duration: settings.duration,
        })
    }

    pub(super) async fn run(self) -> Result<Measured, Error> {
        let mut tasks = JoinSet::new();
        let run = u64::from_le_bytes(random());
        for (at, service) in self.services.iter().enumerate() {
            for slot in 0..self.in_flight {
                let worker = Loop::new(&self, service, run, at, slot)?;
                tasks.spawn(worker.run());
            }
        }
        let sets = self.shared.mode == LoadKind::Sets;
        if let Some(service) = self.services.first().filter(|_| sets) {
            let worker = Loop::of_set(&self, service, run)?;
            tasks.spawn(worker.run());
        }
        tokio::time::sleep(self.warmup).await;
        let begin = now();
        self.shared.phase.store(MEASURING, Ordering::Relaxed);
        if sets {
            tokio::time::sleep(self.duration / 2).await;
            self.shared.phase.store(BESIDE_SETS, Ordering::Relaxed);
            tokio::time::sleep(self.duration / 2).await;
        } else {
            tokio::time::sleep(self.duration).await;
        }
        self.shared.phase.store(DONE, Ordering::Relaxed);
        let elapsed = Duration::from_nanos(now() - begin);
        let loops = self.services.len() * self.in_flight;
        let loops_of_lock: Vec<usize> = (0..SET)
            .map(|lock| (lock..loops).step_by(SET).count())
            .collect();
        collect(tasks, elapsed, &self.histogram, &loops_of_lock).await
    }
}

async fn collect(
    mut tasks: JoinSet<Result<Loop, Error>>,
    elapsed: Duration,
    empty: &Histogram<u64>,
    loops_of_lock: &[usize],
) -> Result<Measured, Error> {
    let mut all = Measured {
        acquire: empty.clone(),
        beside: empty.clone(),
        set: empty.clone(),
        waits: Vec::new(),
        release: empty.clone(),
        hand_off: empty.clone(),
        tokens: Vec::new(),
        elapsed,
    };
    let mut turns = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        let Ok(ended) = ended else { continue };
        let done = ended?;
        // The histograms have one shape, so adding them cannot fail.
        let _ = all.acquire.add(&done.acquire);
        let _ = all.beside.add(&done.beside);
        let _ = all.set.add(&done.set);
        let _ = all.release.add(&done.release);
        let _ = all.hand_off.add(&done.hand_off);
        all.tokens.push(done.tokens);
        turns.extend(done.turns);
    }
    all.waits = waits(turns, loops_of_lock);
    Ok(all)
}

impl Loop {
    fn new(
        loops: &Loops,
        service: &Arc<dyn LockService>,
        run: u64,
        at: usize,
        slot: usize,
    ) -> Result<Loop, Error> {
        let lock = match loops.shared.mode {
            LoadKind::Own | LoadKind::Renew => format!("bench/{run:x}/{at}/{slot}"),
            LoadKind::Contended => format!("bench/{run:x}"),
            LoadKind::Sets => of_eight(run, at * loops.in_flight + slot),
        };
        Ok(Loop {
            shared: Arc::clone(&loops.shared),
            service: Arc::clone(service),
            lock: LockName::new(&lock)?,
            also: Others::NONE,
            client: ClientId::new(&format!("bench-{run:x}-{at}-{slot}"))?,
            requests: u128::from_le_bytes(random()),
            acquire: loops.histogram.clone(),
            beside: loops.histogram.clone(),
            set: loops.histogram.clone(),
            release: loops.histogram.clone(),
            hand_off: loops.histogram.clone(),
            tokens: Vec::new(),
            turns: Vec::new(),
        })
    }

    /// The loop that asks for all eight locks at once.
    fn of_set(loops: &Loops, service: &Arc<dyn LockService>, run: u64) -> Result<Loop, Error> {
        let one = Loop::new(loops, service, run, 0, 0)?;
        let client = ClientId::new(&format!("bench-{run:x}-set"))?;
        let names = (0..SET).map(|number| LockName::new(&of_eight(run, number)));
        let (lock, also) = set_of(names.collect::<Result<_, _>>()?)?;
        Ok(Loop {
            lock,
            also,
            client,
            ..one
        })
    }

    async fn run(mut self) -> Result<Loop, Error> {
        if self.shared.mode == LoadKind::Renew {
            let granted = self
                .acquire()
                .await?
                .ok_or_else(|| unexpected("the loop's own lock is held"))?;
            while self.phase() != DONE {
                self.renew(&granted.grant).await?;
            }
            self.release(granted).await?;
            return Ok(self);
        }
        while !self.also.is_empty() && self.phase() < BESIDE_SETS {
            // real time: the measurement without sets goes on
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        while self.phase() != DONE {
            let Some(granted) = self.acquire().await? else {
                continue;
            };
            if !self.shared.hold.is_zero() {
                tokio::time::sleep(self.shared.hold).await;
            }
            self.release(granted).await?;
        }
        Ok(self)
    }

    fn phase(&self) -> u8 {
        self.shared.phase.load(Ordering::Relaxed)
    }

    async fn acquire(&mut self) -> Result<Option<LoopGrant>, Error> {
        let contended = self.shared.mode == LoadKind::Contended;
        let waits = contended || self.shared.mode == LoadKind::Sets;
        let request = AcquireRequest {
            wait: waits.then_some(PATIENCE),
            also: self.also.clone(),
            ..AcquireRequest::new(
                self.lock.clone(),
                self.client.clone(),
                Under::new(self.shared.ttl),
                self.next_request(),
            )
        };
        let sent = now();
        let outcome = self.service.acquire(request).await?;
        let seen = now();
        let Acquired::Granted(granted) = outcome else {
            return if waits {
                Ok(None)
            } else {
                Err(unexpected("a loop's own lock was not granted"))
            };
        };
        self.tokens.push(granted.token.get());
        match (self.phase(), self.also.is_empty()) {
            (MEASURING, true) => record(&mut self.acquire, seen - sent),
            (BESIDE_SETS, true) => record(&mut self.beside, seen - sent),
            (BESIDE_SETS, false) => record(&mut self.set, seen - sent),
            _ => {}
        }
        if self.phase() == MEASURING {
            let released = self.shared.released_at.load(Ordering::Acquire);
            if contended && granted.waited > Span::ZERO && released > 0 {
                record(&mut self.hand_off, seen.saturating_sub(released));
            }
        }
        let grant = GrantRef {
            lock: self.lock.clone(),
            key: granted.key,
            token: Some(granted.token),
        };
        let waited = granted.waited;
        Ok(Some(LoopGrant { grant, waited }))
    }

    async fn release(&mut self, granted: LoopGrant) -> Result<(), Error> {
        let sent = now();
        self.shared.released_at.store(sent, Ordering::Release);
        for lock in self.also.clone().iter() {
            let part = GrantRef {
                lock: lock.clone(),
                ..granted.grant.clone()
            };
            self.release_part(part, granted.waited).await?;
        }
        self.release_part(granted.grant, granted.waited).await?;
        if self.phase() == MEASURING {
            record(&mut self.release, now() - sent);
        }
        Ok(())
    }

    async fn release_part(&mut self, part: GrantRef, waited: Span) -> Result<(), Error> {
        let set_waited = (!self.also.is_empty()).then_some(waited.as_nanos());
        let (token, lock) = (part.token, number_of(&part.lock));
        let release_sent = now();
        self.service.release(part).await?;
        if let (LoadKind::Sets, Some(token), Some(lock)) = (self.shared.mode, token, lock) {
            self.turns.push(LockTurn {
                lock,
                token: token.get(),
                set_waited,
                release_sent,
                release_answered: now(),
            });
        }
        Ok(())
    }

    async fn renew(&mut self, grant: &GrantRef) -> Result<(), Error> {
        let sent = now();
        let renewal = self.service.renew(grant.clone(), None).await?;
        if !matches!(renewal, Renewal::Renewed(_)) {
            return Err(unexpected("a live lease was not renewed"));
        }
        if self.phase() == MEASURING {
            record(&mut self.acquire, now() - sent);
        }
        Ok(())
    }

    fn next_request(&mut self) -> RequestId {
        self.requests = self.requests.wrapping_add(1);
        RequestId::from_bytes(self.requests.to_le_bytes())
    }
}

/// One of the locks of mode sets.
fn of_eight(run: u64, number: usize) -> String {
    format!("bench/{run:x}/{}", number % SET)
}

/// The number of one of the locks of mode sets.
fn number_of(lock: &LockName) -> Option<usize> {
    let (_, number) = lock.as_str().rsplit_once('/')?;
    number.parse().ok()
}

fn unexpected(what: &str) -> Error {
    Error::Fault(Fault::unavailable(what))
}

fn record(histogram: &mut Histogram<u64>, nanos: u64) {
    // It grows as needed; only a latency of centuries would not fit.
    let _ = histogram.record(nanos);
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // For the names of a benchmark's locks: nothing depends on them being hard to guess.
    let _ = getrandom::fill(&mut bytes);
    bytes
}
