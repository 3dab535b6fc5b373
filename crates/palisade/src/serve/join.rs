//! How a new node comes into a cluster that is there.

use std::collections::BTreeMap;
use std::time::Duration;

use palisade_client::TlsFiles;
use palisade_proto::json::{AddMemberBody, ClusterReply};
use palisade_replica::peers::Peers;
use palisade_replica::{Engine, NodeId, Tokio};
use palisade_wal::Id;
use tokio::time::sleep;

use crate::cluster::{Error, Nodes};

/// How often a cluster that does not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// A cluster that was found.
pub(super) struct FoundCluster {
    pub(super) authority: Id,
    pub(super) incarnation: Id,
    pub(super) members: BTreeMap<NodeId, String>,
    /// The timers that its nodes share, if the one that answered says so.
    pub(super) timers: Option<String>,
}

/// Looks for the cluster at these URLs until one of them answers.
///
/// # Errors The server that answers is not a cluster.
pub(super) async fn find(urls: &[String], tls: &TlsFiles) -> Result<FoundCluster, String> {
    let nodes = Nodes::new(urls.to_vec(), tls).map_err(|error| error.to_string())?;
    let mut said = String::new();
    loop {
        match nodes.view().await {
            Ok(view) => {
                let id = |text: &str| text.parse::<Id>().map_err(|why| format!("{text}: {why}"));
                return Ok(FoundCluster {
                    authority: id(&view.authority)?,
                    incarnation: id(&view.incarnation)?,
                    members: members(&view)?,
                    timers: view.timers,
                });
            }
            Err(Error::Refused { message, .. }) => return Err(message),
            Err(Error::Unreachable(why)) if why != said => {
                tracing::info!("waiting for the cluster: {why}");
                said = why;
            }
            Err(Error::Unreachable(_)) => {}
        }
        sleep(AGAIN).await;
    }
}

fn members(view: &ClusterReply) -> Result<BTreeMap<NodeId, String>, String> {
    let members = view.members.iter().map(|member| {
        let node = member.node.parse::<NodeId>();
        let node = node.map_err(|why| format!("{}: {why}", member.node))?;
        Ok((node, member.peer.clone()))
    });
    members.collect()
}

/// A node that wants a vote.
pub(super) struct JoiningNode {
    pub(super) node: NodeId,
    pub(super) engine: Engine<Tokio>,
    pub(super) peers: Peers,
    /// Its own peer address.
    pub(super) address: String,
    /// URLs of the cluster, and peer addresses of nodes that know theirs.
    pub(super) urls: Vec<String>,
    pub(super) list: Vec<String>,
    /// The certificates for `https://`.
    pub(super) tls: TlsFiles,
}

impl JoiningNode {
    /// Asks to be added, until this node votes. A node that was removed does not ask.
    ///
    /// Also meets the listed nodes that are no members, once: one of another cluster refuses this one, and both logs say so.
    pub(super) async fn ask(self) {
        let body = AddMemberBody {
            node: self.node.to_string(),
            peer: self.address.clone(),
            promote: true,
            replaces: None,
        };
        let (mut said, mut looked) = (String::new(), false);
        loop {
            // A node whose leader is about to tell it that it is a member has nothing to ask for.
            sleep(AGAIN).await;
            let members = self.engine.progress().members;
            if !std::mem::replace(&mut looked, true) && !members.nodes.is_empty() {
                for address in &self.list {
                    let is_member = members.nodes.values().any(|member| member == address);
                    if !is_member && *address != self.address {
                        let _ = self.peers.meet(address).await;
                    }
                }
            }
            if members
                .voters
                .iter()
                .any(|voters| voters.contains(&self.node))
            {
                return;
            }
            if !members.nodes.is_empty() && !members.nodes.contains_key(&self.node) {
                tracing::warn!(
                    "this node was removed from its cluster: stop it; to bring it back, start it with --join and \
                     another --data"
                );
                return;
            }
            let asked = match Nodes::new(self.nodes().await, &self.tls) {
                Ok(nodes) => nodes.change("/v1/cluster/add", &body).await,
                Err(error) => Err(Error::Unreachable(error.to_string())),
            };
            match asked {
                Ok(_) => tracing::info!("this node is a member that votes"),
                Err(error) if error.to_string() != said => {
                    said = error.to_string();
                    tracing::warn!("not added to the cluster yet: {said}");
                }
                Err(_) => {}
            }
        }
    }

    async fn nodes(&self) -> Vec<String> {
        let mut urls = self.urls.clone();
        for address in self.list.iter().filter(|address| **address != self.address) {
            let met = self.peers.meet(address).await;
            urls.extend(met.map(|met| met.url));
        }
        urls
    }
}
