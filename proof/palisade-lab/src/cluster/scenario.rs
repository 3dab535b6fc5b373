//! Faults in a fixed order, for which chance alone would need too many seeds. Each scenario starts with a working cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use palisade_core::Token;
use palisade_replica::node::Membership;
use palisade_replica::{NodeId, Stored, recovery};
use palisade_wal::Options;
use palisade_wal::testing::{CrashLoss, PutBack, SimStorage};

use super::client::Client;
use super::mutants::Mutant;
use super::nemesis::{fill_disk, hand_over, leader, leads};
use super::network::{CLIENT, Place};
use super::node;
use super::rule::Rule;
use super::runtime::{MS, hold, now, sleep, within};
use super::world::World;

/// Plays the one that the seed says.
pub(super) async fn play(world: &Arc<World>) {
    let Some(leader) = leader(world) else { return };
    let draw = world.fork(5).below(9);
    // Only five nodes have one to spare that is no voter.
    let spare = world.network.nodes() > 3 && world.fork(6).chance(600);
    match draw {
        _ if spare => count_a_learner(world, leader).await,
        _ if world.fork(7).chance(200) => leave_a_change_half_made(world, leader).await,
        0 => forget_votes(world, leader).await,
        1 => return_with_less(world, leader, Less::Nothing).await,
        2 => return_with_less(world, leader, Less::Older).await,
        3 => return_with_less(world, leader, Less::Torn).await,
        4 => fill_the_disk(world, leader).await,
        5 => snapshot_of_an_uncommitted_tail(world, leader).await,
        6 => set_disks_back(world, leader).await,
        7 => remove_beside_hung_nodes(world, leader).await,
        _ => lose_the_majority(world, leader).await,
    }
}

/// A leader is cut off. Another node is elected, and is cut off in its turn before it could say anything. Those that
/// elected it lose the power at that moment, and find the first leader again: they must not follow it any more
/// (rule R2).
async fn forget_votes(world: &Arc<World>, first: Place) {
    isolate(world, first);
    let until = now() + 3_000 * MS;
    let elected = loop {
        let elected = others(world, &[first]).find(|place| leads(world, *place));
        match elected {
            Some(elected) => break elected,
            None if now() > until => return,
            None => sleep(MS / 10).await,
        }
    };
    world.say(|| format!("node {elected} is elected and cut off, and the others lose the power"));
    world.network.heal();
    isolate(world, elected);
    for place in others(world, &[first, elected]) {
        world.kill(place, true, 2, 50 * MS);
    }
    sleep(3_000 * MS).await;
    world.network.heal();
    sleep(1_000 * MS).await;
}

/// The disk of a node that comes back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Less {
    Nothing,
    /// An older state of it, as of a virtual machine that was set back.
    Older,
    /// Its log up to a torn end: the disk lied about its syncs, and lost the power. The node was never started in
    /// between, so only the end of its log tells.
    Torn,
}

/// A node comes back under its id with less than it had acknowledged, and would make up a majority with nodes that are
/// behind as well. It must be refused (rules R14, R24); the operator stops it then, and it is not replaced.
async fn return_with_less(world: &Arc<World>, leads: Place, less: Less) {
    // There are no handshakes with that mutant, and the losses of its disks must reveal it.
    if world.mutant == Some(Mutant::LyingDisk) {
        return;
    }
    let voters = voters(world, leads);
    let Some(returns) = voters.iter().copied().find(|place| *place != leads) else {
        return;
    };
    let disk = world.network.host(returns).disk.clone();
    let older = match less {
        Less::Torn => {
            disk.set_lying(true);
            sleep(500 * MS).await;
            disk.set_lying(false);
            disk.crash(CrashLoss::Torn(world.seed))
        }
        Less::Nothing | Less::Older => disk.crash(CrashLoss::KeepAll),
    };
    if less != Less::Torn {
        for _ in 0..2 {
            world.kill(returns, false, 0, 50 * MS);
            sleep(1_000 * MS).await;
        }
    }
    let both = [leads, returns];
    let behind = voters.iter().copied().filter(|place| !both.contains(place));
    let behind: Vec<Place> = behind.take((voters.len() - 1) / 2).collect();
    // Only a leader meets all others, and only those who met it refuse it.
    for place in behind.iter().copied().chain([leads]) {
        hand_over(world, place);
        sleep(1_000 * MS).await;
        if leader(world) != Some(place) {
            return;
        }
    }
    behind.iter().for_each(|place| isolate(world, *place));
    sleep(1_500 * MS).await;

    world.stop(returns, false, 0);
    world.network.heal();
    let ahead = others(world, &behind).filter(|place| *place != returns);
    ahead.for_each(|place| isolate(world, place));
    // In half of the seeds, the nodes that remember it were restarted since.
    if (world.seed / 3) % 2 == 1 {
        for place in &behind {
            world.kill(*place, false, 0, 10 * MS);
        }
    }
    let way = PutBack::ALL[(world.seed / 3) as usize % PutBack::ALL.len()];
    let copied = {
        let mut host = world.network.host(returns);
        let copied = host.disk.put_back(&older, way);
        host.lost = true;
        host.disk = match less {
            Less::Nothing => SimStorage::new(world.seed ^ 0x77),
            Less::Older | Less::Torn => older,
        };
        copied
    };
    world.say(|| format!("node {returns} comes back with less; {behind:?} are behind as well"));
    if less == Less::Older && node::open(&copied).is_ok() {
        let what = format!("node {returns} opens a copy that was put back: {way:?}");
        hold(&world.check).broken(Rule::Sound, what);
    }
    let left = world.network.host(returns).disk.crash(CrashLoss::KeepAll);
    // A log that is damaged before its end is refused by the node itself.
    let mut refused = less == Less::Torn && node::open(&left).is_err();
    if !refused {
        world.start_later(returns, 0);
    }
    for _ in 0..300 {
        sleep(10 * MS).await;
        if !refused && world.network.host(returns).refused.is_some() {
            refused = world.stop(returns, false, 0);
        }
    }
    let off = [Mutant::HandshakeOff, Mutant::TornReturns].map(Some);
    if !refused && !off.contains(&world.mutant) {
        let what = format!("node {returns} lost what it had acknowledged, and nobody refuses it");
        hold(&world.check).broken(Rule::Sound, what);
    }
    world.network.heal();
    sleep(1_000 * MS).await;
}

/// The disks of all nodes but one are set back, as those of virtual machines, so that each directory takes itself for the
/// newest one and they are a majority among themselves. The one that is intact tells them, and they must stop; nothing is
/// granted until the disks are put forward again (rules R14, R24).
async fn set_disks_back(world: &Arc<World>, intact: Place) {
    if world.mutant == Some(Mutant::LyingDisk) {
        return;
    }
    let voters = voters(world, intact).into_iter();
    let back: Vec<Place> = voters.filter(|place| *place != intact).collect();
    // Each node's memory of the others is on its disk, too.
    let older = |place: &Place| {
        let host = world.network.host(*place);
        (host.disk.crash(CrashLoss::KeepAll), host.remembered.clone())
    };
    let older: Vec<_> = back.iter().map(older).collect();
    sleep(3_000 * MS).await;
    let mut newest = Vec::new();
    for (place, older) in back.iter().zip(older) {
        world.stop(*place, false, 0);
        let mut host = world.network.host(*place);
        let disk = std::mem::replace(&mut host.disk, older.0);
        newest.push((disk, std::mem::replace(&mut host.remembered, older.1)));
        host.lost = true;
    }
    world.say(|| format!("the disks of {back:?} are set back, and that of node {intact} is not"));
    back.iter().for_each(|place| world.start_later(*place, 0));
    sleep(3_000 * MS).await;
    for (place, newest) in back.iter().zip(newest) {
        world.stop(*place, false, 0);
        let mut host = world.network.host(*place);
        (host.disk, host.remembered) = newest;
        (host.lost, host.refused) = (false, None);
        drop(host);
        world.start_later(*place, 0);
    }
    sleep(1_000 * MS).await;
}

/// As many nodes hang as a cluster tolerates, with their connections open, and an operator removes a node that is alive. The
/// nodes left would have no live majority, so the removal is refused, and the cluster serves every client (rule R19).
async fn remove_beside_hung_nodes(world: &Arc<World>, leads: Place) {
    let voters = voters(world, leads);
    let mut rest = voters.iter().copied().filter(|place| *place != leads);
    let hung: Vec<Place> = rest.by_ref().take((voters.len() - 1) / 2).collect();
    let (Some(removed), Some(engine)) = (rest.next(), world.network.host(leads).engine.clone())
    else {
        return;
    };
    let processes = hung.iter();
    let processes: Vec<_> = processes
        .filter_map(|place| world.network.host(*place).process.clone())
        .collect();
    processes.iter().for_each(|process| process.pause());
    world.say(|| format!("{hung:?} hang, and node {removed} is removed"));
    sleep(3_000 * MS).await;
    let alive = |node: NodeId| {
        let (host, node) = (world.network.host(leads), node.0 as Place);
        match world.mutant {
            Some(Mutant::ConnectedIsAlive) => host.connected.contains_key(&node),
            _ => {
                let answered = host.answered.get(&node);
                answered.is_some_and(|at| now() - at < 2_000 * MS)
            }
        }
    };
    let membership = Membership::new(&engine, NodeId(leads.into()), &alive);
    let remove = membership.remove(NodeId(removed.into()));
    // One that is accepted, and cannot end, is waited for by nobody.
    let _ = within(2_000 * MS, remove).await;
    hold(&world.served).clear();
    sleep(2_500 * MS).await;
    if hold(&world.served).is_empty() {
        let what = format!("nobody is served after a removal beside {hung:?}, which hang");
        hold(&world.check).broken(Rule::Serves, what);
    }
    processes.iter().for_each(|process| process.go_on());
    sleep(1_000 * MS).await;
}

/// A leader makes the first step of a change, by which it leaves, and dies. Whoever leads next makes the second step (rule R18).
async fn leave_a_change_half_made(world: &Arc<World>, leads: Place) {
    let Some(engine) = world.network.host(leads).engine.clone() else {
        return;
    };
    let rest: Vec<Place> = voters(world, leads)
        .into_iter()
        .filter(|place| *place != leads)
        .collect();
    let steps = |place: Place| {
        let engine = world.network.host(place).engine.clone();
        engine.map_or(0, |engine| engine.progress().members.voters.len())
    };
    let after = rest.iter().map(|place| NodeId(u64::from(*place))).collect();
    world.background(async move {
        let _ = engine.set_voters(after).await;
    });
    let until = now() + 2_000 * MS;
    while rest.iter().filter(|place| steps(**place) > 1).count() <= rest.len() / 2 {
        if now() > until {
            return;
        }
        sleep(MS / 10).await;
    }
    world.say(|| format!("node {leads} dies between the two steps of a change"));
    world.kill(leads, false, 0, 5_000 * MS);
    sleep(4_000 * MS).await;
    if leader(world).is_some_and(|leader| steps(leader) > 1) {
        let what = "a change is half made for ever after its leader died".to_owned();
        hold(&world.check).broken(Rule::Serves, what);
    }
    sleep(2_000 * MS).await;
    // It comes back, so that the cluster has as many nodes as before.
    let engine = leader(world).and_then(|leader| world.network.host(leader).engine.clone());
    if let Some(engine) = engine {
        let (node, all) = (NodeId(leads.into()), rest.iter().chain([&leads]));
        let all = all.map(|place| NodeId(u64::from(*place))).collect();
        let added = within(2_000 * MS, engine.add_learner(node, &leads.to_string())).await;
        if added.is_some_and(|added| added.is_ok()) {
            let _ = within(2_000 * MS, engine.set_voters(all)).await;
        }
    }
}

/// So many starts fill a segment of a simulated log.
const STARTS: u64 = 100;

/// A leader has a batch that no other node has, and its log goes into a snapshot. Others go on without that batch
/// (rule R20).
async fn snapshot_of_an_uncommitted_tail(world: &Arc<World>, first: Place) {
    isolate(world, first);
    keep_readers_away(world, first);
    sleep(400 * MS).await;
    let store = || world.network.host(first).store.clone();
    let sealed = || store().map_or(0, |store| store.sealed_bytes());
    let before = sealed();
    // Each start writes to the log, until the segment that has the batch is full.
    for _ in 0..STARTS {
        world.kill(first, false, 0, 10 * MS);
        sleep(20 * MS).await;
        if sealed() > before {
            break;
        }
    }
    let store = store();
    if let Some(store) = store {
        let made = world.compact(first, &store);
        world.say(|| format!("node {first} made a snapshot: {made}"));
    }
    sleep(1_500 * MS).await;
    world.compare();
    // It comes back from the snapshot before anybody can send it another one.
    world.kill(first, false, 0, 50 * MS);
    sleep(100 * MS).await;
    world.compare();
    world.network.heal();
    sleep(1_000 * MS).await;
    world.kill(first, false, 0, 50 * MS);
    sleep(1_000 * MS).await;
}

/// A leader whose disk is full must let another node lead (rule R23).
async fn fill_the_disk(world: &Arc<World>, full: Place) {
    fill_disk(world, full);
    world.say(|| format!("the disk of node {full} is full"));
    sleep(2_500 * MS).await;
    hold(&world.served).clear();
    sleep(2_500 * MS).await;
    if hold(&world.served).is_empty() {
        let what = format!("nobody is served while the disk of node {full} is full");
        hold(&world.check).broken(Rule::Serves, what);
    }
    world.network.host(full).disk.set_capacity(None);
    sleep(1_000 * MS).await;
}

/// A leader reaches a learner, and too few of those that vote (rule R18).
async fn count_a_learner(world: &Arc<World>, leads: Place) {
    let Some(engine) = world.network.host(leads).engine.clone() else {
        return;
    };
    let voters = voters(world, leads).into_iter();
    let two = voters.filter(|place| *place != leads).take(2);
    let three: BTreeSet<Place> = two.chain([leads]).collect();
    let ids = three.iter().map(|place| NodeId((*place).into()));
    if engine.set_voters(ids.collect()).await.is_err() {
        return;
    }
    let Some(learner) = (0..world.network.nodes()).find(|place| !three.contains(place)) else {
        return;
    };
    let id = NodeId(learner.into());
    if engine.add_learner(id, &id.to_string()).await.is_err() {
        return;
    }
    sleep(1_000 * MS).await;
    // A batch that is under way when the others are cut off may have nothing for a client.
    for client in 0..world.clients {
        world.network.cut(CLIENT + client, leads);
    }
    sleep(100 * MS).await;
    world.say(|| format!("node {leads} reaches node {learner} only, which has no vote"));
    for apart in others(world, &[leads, learner]) {
        for place in [leads, learner] {
            world.network.cut(apart, place);
            world.network.cut(place, apart);
        }
    }
    let client = Client {
        world: Arc::clone(world),
        number: world.clients,
        rng: world.fork(7),
        node: leads,
    };
    // Nobody else asks for this lock.
    world.background(client.ask_here(world.locks));
    sleep(2_500 * MS).await;
    world.network.heal();
    sleep(1_000 * MS).await;
}

/// Only one node survives, which was behind, and it becomes a single server. Its tokens must be higher than all that were
/// issued (rule R26). The cluster itself continues here: the recovery uses a copy of the disk.
async fn lose_the_majority(world: &Arc<World>, leads: Place) {
    let mut voters = voters(world, leads).into_iter();
    let Some(left) = voters.find(|place| *place != leads) else {
        return;
    };
    isolate(world, left);
    sleep(1_500 * MS).await;
    let disk = world.network.host(left).disk.crash(CrashLoss::DropAll);
    let recovered = match world.mutant {
        Some(Mutant::NoLeap) => without_leap(&disk),
        _ => {
            let recovered = recovery::recover_on(Arc::new(disk), &Options::small(4 << 10));
            let next = recovered.map(|recovered| recovered.next_token);
            next.map_err(|error| error.to_string())
        }
    };
    let highest = hold(&world.check).highest();
    let wrong = match recovered {
        Ok(next) if next > highest => None,
        Ok(next) => {
            let [next, highest] = [next, highest].map(|token| token.map_or(0, Token::get));
            let what = format!("a recovery goes on with token {next}, and {highest} was seen");
            Some((Rule::TokenOrder, what))
        }
        Err(why) => Some((Rule::Sound, format!("a recovery: {why}"))),
    };
    if let Some((rule, what)) = wrong {
        hold(&world.check).broken(rule, what);
    }
    world.network.heal();
    sleep(1_000 * MS).await;
}

/// The next token of a server that has this log, all of which counts.
fn without_leap(disk: &SimStorage) -> Result<Option<Token>, String> {
    let opened = node::open(disk).map_err(|error| error.to_string())?;
    let stored = Stored::read(opened, 0).map_err(|error| error.to_string())?;
    let mut state = stored.state;
    state.commit_all().map_err(|error| error.to_string())?;
    Ok(state.machine.finish().next_token())
}

/// The nodes that vote, as the one that leads knows them.
fn voters(world: &World, leads: Place) -> Vec<Place> {
    let engine = world.network.host(leads).engine.clone();
    let mut sets = engine.map_or_else(Vec::new, |engine| engine.progress().members.voters);
    let voters = sets.pop().unwrap_or_default();
    voters.into_iter().map(|node| node.0 as Place).collect()
}

/// All nodes but these.
fn others(world: &World, but: &[Place]) -> impl Iterator<Item = Place> + use<> {
    let but = but.to_vec();
    (0..world.network.nodes()).filter(move |place| !but.contains(place))
}

/// A leader that is asked first finds out that it has no quorum, before it has anything to log.
fn keep_readers_away(world: &World, leads: Place) {
    for reader in world.clients - world.readers..world.clients {
        world.network.cut(CLIENT + reader, leads);
    }
}

/// Cuts a node off from all other nodes.
fn isolate(world: &World, place: Place) {
    for other in others(world, &[place]) {
        world.network.cut(other, place);
        world.network.cut(place, other);
    }
}
