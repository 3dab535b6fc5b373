//! What a seed decides before the run begins: who takes part, how bad the world is, what strikes when.
//!
//! A plan is plain data, so that a schedule can be made shorter by taking strikes out of it.

use super::rng::Rng;

/// Everything that is drawn before a run. What is drawn during it comes from the same seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it came from.
    pub seed: u64,
    /// Client processes, 2 – 4.
    pub clients: u8,
    /// Locks, each with a resource of the same number, 1 – 2.
    pub locks: u8,
    /// Every clock runs within the 1 % that the deadline rule allows for and never jumps. Else rates
    /// are 0.5 – 2 and clocks jump: two may then believe at once, and the fence alone is judged.
    pub tame: bool,
    /// How fast each machine's clock runs, in µs a second: clients, authority, resource.
    pub rates_ppm: [u64; NODES],
    /// How long things fail, in milliseconds.
    pub chaos_ms: u64,
    /// Leases, in milliseconds.
    pub ttl_ms: (u64, u64),
    /// Between read and write, in milliseconds.
    pub think_ms: (u64, u64),
    /// Messages lost, in a thousand.
    pub loss: u64,
    /// Messages delivered twice, in a thousand.
    pub duplication: u64,
    /// Messages that take up to seconds, in a thousand.
    pub spikes: u64,
    /// What a message takes, in microseconds; unequal delays reorder.
    pub delay_us: (u64, u64),
    /// What a sync takes, in microseconds.
    pub sync_us: (u64, u64),
    /// What strikes, and when, in milliseconds.
    pub strikes: Vec<(u64, Strike)>,
}

/// The most client processes.
pub(crate) const CLIENTS: usize = 4;
/// Clients, authority, resource.
pub(crate) const NODES: usize = CLIENTS + 2;
/// The authority among the nodes.
pub(crate) const AUTHORITY: u8 = CLIENTS as u8;
/// The resource among the nodes.
pub(crate) const RESOURCE: u8 = AUTHORITY + 1;

/// One thing the nemesis does; spans in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strike {
    /// A client does not run.
    PauseClient(u8, u64),
    /// Whoever holds a lock then does not run.
    PauseHolder(u8, u64),
    /// A client is killed, and started again under its old name.
    KillClient(u8, u64),
    /// The authority does not run.
    PauseAuthority(u64),
    /// The authority works on something long, and is there all the time.
    BusyAuthority(u64),
    /// The authority's machine loses power; what was not synced is lost as the number says.
    CrashAuthority(u64, u64),
    /// The same, and a bit of what is on its disk flips.
    FlipBit(u64, u64),
    /// The authority's process is killed; its disk loses nothing.
    KillAuthority(u64),
    /// Messages from one node to another are lost.
    Cut(u8, u8, u64),
    /// A node is alone.
    Isolate(u8, u64),
    /// A client's connection to the authority breaks.
    Break(u8),
    /// The resource's machine loses power.
    CrashResource(u64, u64),
    /// The resource does not run.
    PauseResource(u64),
    /// The resource's directory is backed up.
    BackUpResource,
    /// The resource's directory is lost and its last backup restored; an operator arms it anew.
    RestoreResource(u64),
    /// A resource loses its fence and not its data; an operator arms it anew.
    LoseFence(u8, u64),
    /// The authority's n-th next call to its disk fails.
    FailAuthorityDisk(u64),
    /// The resource's n-th next call to its disk fails.
    FailResourceDisk(u64),
    /// The authority's disk is full.
    FillDisk(u64),
    /// A clock jumps; only where clocks are not tame.
    JumpClock(u8, i64),
    /// The authority's wall clock jumps.
    JumpWall(i64),
    /// The authority's directory is backed up.
    Backup,
    /// The authority's directory is lost and the last backup restored.
    Restore(u64),
    /// An operator takes a lock away.
    Revoke(u8),
}

impl Strike {
    /// Whether what it means is there: a plan made shorter may have fewer clients and locks.
    pub(crate) fn fits(&self, plan: &Plan) -> bool {
        match *self {
            Strike::PauseClient(client, _)
            | Strike::KillClient(client, _)
            | Strike::Break(client) => client < plan.clients,
            Strike::JumpClock(node, _) => node >= AUTHORITY || node < plan.clients,
            Strike::PauseHolder(lock, _) | Strike::LoseFence(lock, _) | Strike::Revoke(lock) => {
                lock < plan.locks
            }
            _ => true,
        }
    }
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Plan {
        let mut rng = Rng::fork(seed, 1);
        let rng = &mut rng;
        let tame = rng.chance(650);
        let clients = rng.between(2, CLIENTS as u64) as u8;
        let locks = if rng.chance(700) { 1 } else { 2 };
        let mut rates_ppm = [1_000_000; NODES];
        for rate in &mut rates_ppm {
            *rate = if tame {
                // Most often as far off as the rule allows.
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
            tame,
            rates_ppm,
            chaos_ms,
            ttl_ms: (ttl, ttl * 2),
            think_ms: (1, think),
            loss,
            duplication,
            spikes,
            delay_us: (100, slowest),
            sync_us: (80, rng.between(200, 4_000)),
            strikes: Vec::new(),
        };
        plan.strikes = strikes(rng, &plan);
        plan
    }
}

/// Each seed favours a few kinds of strikes: a uniform mix would rarely make two of a kind meet.
fn strikes(rng: &mut Rng, plan: &Plan) -> Vec<(u64, Strike)> {
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
        found.push((at, strike(rng, plan, kind.unwrap_or(0) as u64)));
    }
    back_up(rng, &mut found);
    found.sort_by_key(|(at, _)| *at);
    found
}

/// Whatever is going to be restored is backed up some time before.
fn back_up(rng: &mut Rng, strikes: &mut Vec<(u64, Strike)>) {
    let mut backups = Vec::new();
    for (at, strike) in strikes.iter() {
        let backup = match strike {
            Strike::Restore(_) | Strike::FlipBit(..) => Strike::Backup,
            Strike::RestoreResource(_) => Strike::BackUpResource,
            _ => continue,
        };
        backups.push((rng.between(10, *at), backup));
    }
    strikes.append(&mut backups);
}

const KINDS: u64 = 23;

fn strike(rng: &mut Rng, plan: &Plan, kind: u64) -> Strike {
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
        0 => Strike::PauseClient(client, span),
        1 => Strike::PauseHolder(lock, rng.between(ttl * 4 / 10, ttl * 2)),
        2 => Strike::KillClient(client, short),
        3 => Strike::PauseAuthority(rng.between(50, 3_000)),
        4 => Strike::CrashAuthority(short, rng.next()),
        5 => Strike::FlipBit(short, rng.next()),
        6 => Strike::KillAuthority(short),
        7 => Strike::Cut(node(rng), node(rng), span),
        8 => Strike::Isolate(node(rng), span),
        9 => Strike::Break(client),
        10 => Strike::CrashResource(short / 4, rng.next()),
        11 => Strike::LoseFence(lock, short / 2),
        12 => Strike::FailAuthorityDisk(rng.between(1, 12)),
        13 => Strike::FailResourceDisk(rng.between(1, 12)),
        14 => Strike::FillDisk(short),
        15 if !plan.tame => {
            let by = rng.between(0, 6_000) as i64;
            Strike::JumpClock(node(rng), by - 2_000)
        }
        15 | 16 => Strike::JumpWall(rng.between(0, 7_200_000) as i64 - 3_600_000),
        17 => Strike::Backup,
        18 => Strike::Restore(short),
        19 => Strike::PauseResource(span),
        20 => Strike::RestoreResource(short),
        21 => Strike::BusyAuthority(rng.between(50, 3_000)),
        _ => Strike::Revoke(lock),
    }
}
