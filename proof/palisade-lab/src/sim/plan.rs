//! A seed determines before the run: the participants, how unreliable the world is, and which faults happen when.
//!
//! A plan is plain data, so that a schedule can be shortened by removing faults.

use super::rng::Rng;

/// All choices made before a run. Choices during the run come from the same seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The number of client processes, 2 – 4.
    pub clients: u8,
    /// The number of locks, 1 – 3. A plain lock has a resource, and a semaphore has one for each of its slots.
    pub locks: u8,
    /// How many permits each lock has, if it is a semaphore; 0 for a plain lock.
    pub permits: [u8; LOCKS],
    /// Every clock stays within the 1 % that the deadline rule allows and never jumps. Otherwise rates are 0.5 – 2 and
    /// clocks jump: two clients may then believe at once, and only the fence is judged.
    pub tame: bool,
    /// The rate of each machine's clock, in µs per second: clients, authority, resource.
    pub rates_ppm: [u64; NODES],
    /// Where the authority is started again, another node of its cluster takes over: it begins with the grace of a new
    /// leader, and the queues stay.
    pub led: bool,
    /// Requests for shared grants, per thousand.
    pub readers: u64,
    /// Readers that ask for mode update, and upgrades of their grants, per thousand.
    pub updates: u64,
    /// Requests for two or three plain locks at once, per thousand.
    pub sets: u64,
    /// Requests for exclusive grants with a lock-delay, an at-least-for, or both, per thousand.
    pub delays: u64,
    /// How long faults happen, in milliseconds.
    pub chaos_ms: u64,
    /// The range of lease times, in milliseconds.
    pub ttl_ms: (u64, u64),
    /// The time between read and write, in milliseconds.
    pub think_ms: (u64, u64),
    /// Lost messages, per thousand.
    pub loss: u64,
    /// Messages delivered twice, per thousand.
    pub duplication: u64,
    /// Messages that take up to seconds, per thousand.
    pub spikes: u64,
    /// The delay of a message, in microseconds; unequal delays reorder messages.
    pub delay_us: (u64, u64),
    /// The duration of a sync, in microseconds.
    pub sync_us: (u64, u64),
    /// The faults and their times, in milliseconds.
    pub faults: Vec<(u64, PlannedFault)>,
}

/// The most client processes.
pub(crate) const CLIENTS: usize = 4;
/// The most locks.
pub(crate) const LOCKS: usize = 3;
/// The most permits of a semaphore.
pub(crate) const PERMITS: usize = 4;
/// Clients, authority, resource.
pub(crate) const NODES: usize = CLIENTS + 2;
/// The authority among the nodes.
pub(crate) const AUTHORITY: u8 = CLIENTS as u8;
/// The resource among the nodes.
pub(crate) const RESOURCE: u8 = AUTHORITY + 1;

/// The name of a lock by its number.
pub(crate) fn lock_name(lock: u8) -> String {
    format!("lock-{lock}")
}

/// One fault; durations in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedFault {
    /// A client is paused.
    PauseClient(u8, u64),
    /// The holder of a lock is paused.
    PauseHolder(u8, u64),
    /// A client is killed and started again under its old name.
    KillClient(u8, u64),
    /// The authority is paused.
    PauseAuthority(u64),
    /// The authority is busy with something long, but not away.
    BusyAuthority(u64),
    /// The authority's machine loses power; the number decides which unsynced writes are lost.
    CrashAuthority(u64, u64),
    /// The same, and a bit on its disk flips.
    FlipBit(u64, u64),
    /// The authority is asked to stop.
    StopAuthority(u64),
    /// The authority's process is killed; its disk loses nothing.
    KillAuthority(u64),
    /// Messages from one node to another are lost.
    Cut(u8, u8, u64),
    /// A node is isolated.
    Isolate(u8, u64),
    /// A client's connection to the authority breaks.
    Break(u8),
    /// The resource's machine loses power.
    CrashResource(u64, u64),
    /// The resource is paused.
    PauseResource(u64),
    /// The resource's directory is backed up.
    BackUpResource,
    /// The resource's directory is lost and its last backup restored; an operator re-arms its fences.
    RestoreResource(u64),
    /// A resource loses its fence but not its data; an operator re-arms it.
    LoseFence(u8, u64),
    /// The authority's n-th next disk operation fails.
    FailAuthorityDisk(u64),
    /// The resource's n-th next disk operation fails.
    FailResourceDisk(u64),
    /// The authority's disk is full.
    FillDisk(u64),
    /// A clock jumps; only if clocks are not tame.
    JumpClock(u8, i64),
    /// The authority's wall clock jumps.
    JumpWall(i64),
    /// The authority's directory is backed up.
    Backup,
    /// The authority's directory is lost and the last backup restored.
    Restore(u64),
    /// An operator revokes a lock.
    Revoke(u8),
    /// A single caller asks for a lock, and goes away.
    Call(PlannedCall),
    /// An operator gives a semaphore another number of permits: the lock, and how many.
    Resize(u8, u8),
}

/// A single caller; times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedCall {
    /// The lock.
    pub lock: u8,
    /// How long it wants to wait.
    pub waits: u64,
    /// After how long it goes away, with or without its answer.
    pub stays: u64,
    /// How long its answer lies unread.
    pub reads_after: u64,
    /// Whether it can ask again with its request's id.
    pub may_ask_again: bool,
    /// Whether its place is reserved for a while when it is gone.
    pub keeps_place: bool,
}

impl PlannedFault {
    /// Whether its targets exist: a shortened plan may have fewer clients and locks.
    pub(crate) fn fits(&self, plan: &Plan) -> bool {
        match *self {
            PlannedFault::PauseClient(client, _)
            | PlannedFault::KillClient(client, _)
            | PlannedFault::Break(client) => client < plan.clients,
            PlannedFault::JumpClock(node, _) => node >= AUTHORITY || node < plan.clients,
            PlannedFault::PauseHolder(lock, _)
            | PlannedFault::LoseFence(lock, _)
            | PlannedFault::Revoke(lock) => lock < plan.locks,
            PlannedFault::Call(PlannedCall { lock, .. }) => lock < plan.locks,
            PlannedFault::Resize(lock, permits) => {
                lock < plan.locks && permits <= plan.permits[usize::from(lock)]
            }
            _ => true,
        }
    }
}

impl Plan {
    /// The locks that a set may name.
    pub(crate) fn plain_locks(&self) -> Vec<u8> {
        let locks = (0..self.locks).zip(self.permits);
        let plain = locks.filter(|(_, permits)| *permits == 0);
        plain.map(|(lock, _)| lock).collect()
    }

    /// The plan of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Plan {
        let mut rng = Rng::fork(seed, 1);
        let rng = &mut rng;
        let tame = rng.chance(650);
        let clients = rng.between(2, CLIENTS as u64) as u8;
        let alone = if rng.chance(700) { 1 } else { 2 };
        let (sets, together) = sets(seed);
        let locks = together.unwrap_or(alone);
        let mut rates_ppm = [1_000_000; NODES];
        for rate in &mut rates_ppm {
            *rate = if tame {
                // Usually as far off as the rule allows.
                match rng.below(4) {
                    0 => rng.between(990_100, 1_009_900),
                    1 => 1_009_900,
                    _ => 990_100,
                }
            } else {
                rng.between(500_000, 2_000_000)
            };
        }
        let chaos_ms = rng.between(3_000, 8_000);
        let ttl = rng.between(200, 1_500);
        let quiet_net = rng.chance(200);
        let some = |rng: &mut Rng, most: u64| if quiet_net { 0 } else { rng.below(most + 1) };
        let (loss, duplication, spikes) = (some(rng, 80), some(rng, 120), some(rng, 60));
        let slowest = rng.between(300, 20_000);
        let think = rng.between(5, 150);
        let mut plan = Plan {
            seed,
            clients,
            locks,
            permits: permits(seed, sets),
            tame,
            rates_ppm,
            led: Rng::fork(seed, 4).chance(500),
            readers: [0, 300, 600][Rng::fork(seed, 6).below(3) as usize],
            updates: [0, 500][Rng::fork(seed, 15).below(2) as usize],
            sets,
            delays: [0, 0, 400][Rng::fork(seed, 8).below(3) as usize],
            chaos_ms,
            ttl_ms: (ttl, ttl * 2),
            think_ms: (1, think),
            loss,
            duplication,
            spikes,
            delay_us: (100, slowest),
            sync_us: (80, rng.between(200, 4_000)),
            faults: Vec::new(),
        };
        plan.faults = faults(rng, &plan);
        plan.faults.append(&mut resizes(&plan));
        plan.faults.append(&mut stops(&plan));
        plan.faults.append(&mut calls(&plan));
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }
}

/// How many requests are for several locks, and how many locks there are then. With this stream the seeds that
/// docs/evidence/found.md names have none.
fn sets(seed: u64) -> (u64, Option<u8>) {
    let mut rng = Rng::fork(seed, 14);
    match rng.below(3) {
        2 => (350, Some(rng.between(2, LOCKS as u64) as u8)),
        _ => (0, None),
    }
}

/// Most locks are plain; with sets at least two.
fn permits(seed: u64, sets: u64) -> [u8; LOCKS] {
    let mut rng = Rng::fork(seed, 7);
    let drawn: [u8; LOCKS] = std::array::from_fn(|_| {
        if rng.chance(250) {
            rng.between(2, PERMITS as u64) as u8
        } else {
            0
        }
    });
    match (sets, drawn) {
        (0, drawn) => drawn,
        (_, [.., last]) => [0, 0, last],
    }
}

/// In half of the seeds with semaphores an operator changes their numbers. There are never more than the resource has slots.
fn resizes(plan: &Plan) -> Vec<(u64, PlannedFault)> {
    let mut rng = Rng::fork(plan.seed, 16);
    let mut found = Vec::new();
    let locks = (0..plan.locks).zip(plan.permits);
    for (lock, most) in locks.filter(|(_, permits)| *permits > 0) {
        let count = if rng.chance(500) {
            rng.between(1, 6)
        } else {
            0
        };
        for _ in 0..count {
            let permits = rng.between(1, most.into()) as u8;
            let at = rng.between(50, plan.chaos_ms);
            found.push((at, PlannedFault::Resize(lock, permits)));
        }
    }
    found
}

/// In some seeds the authority is stopped as planned, once or several times. With a stream of their own the other faults stay
/// as they were.
fn stops(plan: &Plan) -> Vec<(u64, PlannedFault)> {
    let mut rng = Rng::fork(plan.seed, 18);
    let count = if rng.chance(250) {
        rng.between(1, 4)
    } else {
        0
    };
    let mut stop = || {
        let fault = PlannedFault::StopAuthority(rng.between(5, 500));
        (rng.between(50, plan.chaos_ms), fault)
    };
    (0..count).map(|_| stop()).collect()
}

/// In some seeds there are single callers beside the clients. With this stream the seeds that docs/evidence/found.md names have
/// none.
fn calls(plan: &Plan) -> Vec<(u64, PlannedFault)> {
    let mut rng = Rng::fork(plan.seed, 27);
    let count = if rng.chance(300) {
        rng.between(1, 16)
    } else {
        0
    };
    let ttl = plan.ttl_ms.1;
    let mut call = || {
        let call = PlannedCall {
            lock: rng.below(plan.locks.into()) as u8,
            waits: rng.below(2) * rng.between(1, 2 * ttl),
            stays: rng.between(0, ttl),
            reads_after: rng.between(0, 30),
            may_ask_again: rng.chance(300),
            keeps_place: rng.chance(300),
        };
        (rng.between(50, plan.chaos_ms), PlannedFault::Call(call))
    };
    (0..count).map(|_| call()).collect()
}

/// Each seed favours a few kinds of faults: a uniform mix would rarely make two of a kind coincide.
fn faults(rng: &mut Rng, plan: &Plan) -> Vec<(u64, PlannedFault)> {
    let weights: Vec<u64> = (0..KINDS)
        .map(|_| if rng.chance(500) { rng.below(8) } else { 0 })
        .collect();
    let total: u64 = weights.iter().sum();
    if total == 0 {
        return Vec::new();
    }
    let count = rng.between(2, 14);
    let mut found = Vec::new();
    for _ in 0..count {
        let at = rng.between(50, plan.chaos_ms);
        let mut pick = rng.below(total);
        let kind = weights.iter().position(|weight| {
            let here = pick < *weight;
            pick = pick.saturating_sub(*weight);
            here
        });
        found.push((at, fault(rng, plan, kind.unwrap_or(0) as u64)));
    }
    back_up(rng, &mut found);
    found.sort_by_key(|(at, _)| *at);
    found
}

/// Makes a backup some time before each restore.
fn back_up(rng: &mut Rng, faults: &mut Vec<(u64, PlannedFault)>) {
    let mut backups = Vec::new();
    for (at, fault) in faults.iter() {
        let backup = match fault {
            PlannedFault::Restore(_) | PlannedFault::FlipBit(..) => PlannedFault::Backup,
            PlannedFault::RestoreResource(_) => PlannedFault::BackUpResource,
            _ => continue,
        };
        backups.push((rng.between(10, *at), backup));
    }
    faults.append(&mut backups);
}

const KINDS: u64 = 23;

fn fault(rng: &mut Rng, plan: &Plan, kind: u64) -> PlannedFault {
    let client = rng.below(plan.clients.into()) as u8;
    let lock = rng.below(plan.locks.into()) as u8;
    let ttl = plan.ttl_ms.1;
    let span = rng.between(ttl / 3, ttl * 3);
    let short = rng.between(5, 1_500);
    let node = |rng: &mut Rng| match rng.below(u64::from(plan.clients) + 2) as u8 {
        node if node < plan.clients => node,
        other => other - plan.clients + AUTHORITY,
    };
    match kind {
        0 => PlannedFault::PauseClient(client, span),
        1 => PlannedFault::PauseHolder(lock, rng.between(ttl * 4 / 10, ttl * 2)),
        2 => PlannedFault::KillClient(client, short),
        3 => PlannedFault::PauseAuthority(rng.between(50, 3_000)),
        4 => PlannedFault::CrashAuthority(short, rng.next()),
        5 => PlannedFault::FlipBit(short, rng.next()),
        6 => PlannedFault::KillAuthority(short),
        7 => PlannedFault::Cut(node(rng), node(rng), span),
        8 => PlannedFault::Isolate(node(rng), span),
        9 => PlannedFault::Break(client),
        10 => PlannedFault::CrashResource(short / 4, rng.next()),
        11 => PlannedFault::LoseFence(lock, short / 2),
        12 => PlannedFault::FailAuthorityDisk(rng.between(1, 12)),
        13 => PlannedFault::FailResourceDisk(rng.between(1, 12)),
        14 => PlannedFault::FillDisk(short),
        15 if !plan.tame => {
            let by = rng.between(0, 6_000) as i64;
            PlannedFault::JumpClock(node(rng), by - 2_000)
        }
        15 | 16 => PlannedFault::JumpWall(rng.between(0, 7_200_000) as i64 - 3_600_000),
        17 => PlannedFault::Backup,
        18 => PlannedFault::Restore(short),
        19 => PlannedFault::PauseResource(span),
        20 => PlannedFault::RestoreResource(short),
        21 => PlannedFault::BusyAuthority(rng.between(50, 3_000)),
        _ => PlannedFault::Revoke(lock),
    }
}
