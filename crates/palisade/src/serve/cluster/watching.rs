//! A member watches while it runs: the leader, the nodes that answer, a leader without committed entries, and the versions
//! that every member reads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use palisade_pipeline::{Leading, codec};
use palisade_replica::node;
use palisade_replica::peers::{self, PeerStatus};
use palisade_replica::{NodeId, Role, Unsound};

use super::ClusterView;

/// How often every member is asked whether it is there.
const PROBE: Duration = Duration::from_secs(1);

/// A node is lost when there has been no connection to it for so long, after the 2 s of silence that a connection
/// survives. By then its callers know that it has no leader: their 2 s begin when they can repeat their requests
/// elsewhere.
const LOST: Duration = Duration::from_secs(3);

/// How long a node that cannot be told that it lost something is left alone.
const AGAIN: Duration = Duration::from_secs(1);

/// Tells the pipeline which URL the leader has, whenever that may have changed; hands over if this node's disk is full.
pub(super) async fn watch_leader(view: Arc<ClusterView>) {
    let mut moved = view.engine.watch_leader();
    let mut leading = view.handle.leading();
    let mut before = None;
    loop {
        let progress = view.progress();
        if progress.leader.is_some() && progress.leader != before {
            if before.is_some() {
                view.leader_changes.fetch_add(1, Ordering::Relaxed);
            }
            before = progress.leader;
        }
        // Others can acknowledge what this node cannot (rule R23).
        if view.handle.leader() == Leading::Here && view.disk.full().is_some() {
            view.hand_over().await;
        }
        let other = progress.leader.filter(|leader| *leader != view.node);
        let url = other.and_then(|leader| view.peers.client_url(leader));
        let unknown = url.is_none() && progress.role != Role::Leader;
        let leader = url.map_or(Leading::Nowhere, |url| Leading::At(url.into()));
        view.handle.set_leader(leader);
        let changed = async {
            tokio::select! {
                changed = moved.changed() => changed.is_ok(),
                changed = leading.changed() => changed.is_ok(),
            }
        };
        // There is one soon, or it introduces itself soon.
        let again = if unknown { 50 } else { 1_000 };
        if let Ok(false) = tokio::time::timeout(Duration::from_millis(again), changed).await {
            return;
        }
    }
}

/// Asks every member once a second whether it is there, also while nothing else is said between the two.
pub(super) async fn probe_peers(view: Arc<ClusterView>) {
    loop {
        let progress = view.engine.progress();
        for (node, address) in progress.members.nodes {
            if node == view.node {
                continue;
            }
            let (view, leader) = (Arc::clone(&view), progress.vote);
            tokio::spawn(async move {
                let leads = view.peers.probe(node, &address).await;
                if let Some(leads) = leads.filter(|_| leader.node == node) {
                    let alone = (!leads).then_some(leader);
                    *view.alone.lock().unwrap_or_else(PoisonError::into_inner) = alone;
                }
            });
        }
        tokio::time::sleep(PROBE).await;
    }
}

/// Reports a node that leads without entries that this one knows to be committed, and notifies that node.
pub(super) async fn watch_soundness(view: Arc<ClusterView>, data: PathBuf) {
    let mut unsound = view.engine.unsound();
    loop {
        let Ok(found) = unsound.wait_for(Option::is_some).await.map(|found| *found) else {
            return;
        };
        let Some(Unsound { leader, committed }) = found else {
            return;
        };
        tracing::error!(
            "node {} leads in term {} and asks this node ({}) to drop what is committed, up to {committed}. It does not: node \
             {} and the nodes that elected it have lost what they had acknowledged, or their disks were set back. {} may be \
             the only directory that has all: keep it, and a copy of it. Stop the other nodes, then type palisade cluster \
             recover --data {}, start it with --cluster, and give each other node another --data",
            leader.node,
            leader.term,
            view.node,
            leader.node,
            data.display(),
            data.display(),
        );
        let address = view.engine.progress().members.nodes.remove(&leader.node);
        // The node may be unreachable now. It leads until it is notified.
        loop {
            if let Some(address) = &address {
                let tell = view.peers.tell_of_loss(leader.node, address, committed);
                tell.await;
            }
            match tokio::time::timeout(AGAIN, unsound.changed()).await {
                Ok(Ok(())) => break,
                Ok(Err(_)) => return,
                Err(_) => {}
            }
        }
    }
}

/// Keeps up to date which nodes this one has lost, and logs which members answer nothing.
pub(super) async fn watch_peers(view: Arc<ClusterView>) {
    let (mut silent, mut far) = (BTreeMap::new(), BTreeSet::new());
    loop {
        let peers = view.peers.status();
        log_silence(&view, &peers, &mut silent);
        log_distance(&view, &peers, &mut far);
        let lost = peers
            .values()
            .filter(|peer| !peer.connected && peer.since >= LOST);
        let lost: BTreeSet<String> = lost.map(|peer| peer.url.clone()).collect();
        view.lost.send_if_modified(|before| {
            let changes = *before != lost;
            *before = lost;
            changes
        });
        tokio::time::sleep(LOST / 6).await;
    }
}

/// Logs once that round trips to a member are too long for the cluster's timers, and once that they are not any more.
fn log_distance(
    view: &ClusterView,
    peers: &BTreeMap<NodeId, PeerStatus>,
    far: &mut BTreeSet<NodeId>,
) {
    for (node, peer) in peers {
        let Some(shortest) = peer.shortest_round_trip else {
            continue;
        };
        match view.timers.contradicts(shortest) {
            Some(why) if far.insert(*node) => tracing::warn!(
                "node {node} at {} is too far away: {why}. Until then a healthy leader may be replaced",
                peer.address
            ),
            None if far.remove(node) => tracing::info!(
                "node {node} at {} is near enough for --timers {} again",
                peer.address,
                view.timers
            ),
            _ => {}
        }
    }
}

/// Logs once that a member answers nothing, and that it does again.
fn log_silence(
    view: &ClusterView,
    peers: &BTreeMap<NodeId, PeerStatus>,
    silent: &mut BTreeMap<NodeId, String>,
) {
    let members = view.engine.progress().members.nodes;
    silent.retain(|node, _| members.contains_key(node));
    for (node, address) in &members {
        let silence = peers.get(node).and_then(|peer| peer.silent);
        match silence {
            Some(silence) if silence >= LOST && !silent.contains_key(node) => {
                silent.insert(*node, address.clone());
                tracing::warn!(
                    "node {node} at {address} has answered nothing for {} s: its process hangs or is down, its disk stands \
                     still, or the network is cut. It does not count as alive; palisade cluster check NODE says which nodes \
                     may be stopped meanwhile",
                    silence.as_secs()
                );
            }
            Some(silence) if silence < peers::SILENT && silent.remove(node).is_some() => {
                tracing::info!("node {node} at {address} answers again");
            }
            _ => {}
        }
    }
}

/// Lets a leader write the batch versions that all members read (rule R21).
pub(super) async fn watch_versions(view: Arc<ClusterView>, readable: Arc<node::Readable>) {
    loop {
        let mut again = 50;
        // A node that knows no members does not lead.
        if let Some(writable) = view.writable() {
            if writable.version >= codec::newest_version() {
                again = 1_000;
            }
            readable.set(writable);
        }
        tokio::time::sleep(Duration::from_millis(again)).await;
    }
}
