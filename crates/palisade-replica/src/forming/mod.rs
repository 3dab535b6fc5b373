//! Decides how a node starts with `--cluster a,b,c`, after rounds of meeting the other nodes.
//!
//! ```text
//!   every node: meet all listed ones ──► decide ──► wait, and meet again
//!                                          ├──► Form: all are blank and propose the same founding
//!                                          ├──► Seed: this one alone has state, all others are blank
//!                                          ├──► Join: a cluster is there
//!                                          └──► Refused
//! ```
//!
//! **Never two clusters.** Each blank node puts a founding together from the introductions that it heard (the members;
//! authority and incarnation as the node with the smallest id drew them) and announces its digest. It forms when every
//! listed node is blank and announced the same digest. Two nodes that form with different foundings would each have heard
//! the other's digest, and a node changes its own only because it heard another draft or id, which are drawn at random
//! and so never come back. A node that finds a member at a listed address joins that cluster, or is refused. If it
//! announced that very founding, it forms, too: as a member with an empty log it could not tell at its next start that it
//! was removed meanwhile, and would ask to be added. A single server's directory seeds only after it heard from every
//! listed node that it is blank, so two of them always find each other.
//!
//! Nothing but the node's id outlives a crash before the directory is a member's, and nothing needs to: a node that comes
//! back finds either a cluster or the others waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use palisade_pipeline::codec;
use palisade_wal::{Id, Purpose};
use sha2::{Digest as _, Sha256};

use crate::codec::Put as _;
use crate::directory::Founding;
use crate::entry::NodeId;
use crate::peers::{Introduction, MOST_NODES, Peers, Standing};
use crate::timers::Profile;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

/// The nodes that are to form a cluster: their peer addresses, the same on each of them in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    addresses: Vec<String>,
}

impl List {
    /// The list of a node whose own peer address is `own`.
    ///
    /// # Errors
    /// A text with the fault.
    pub fn new(addresses: &[String], own: &str) -> Result<List, String> {
        let set: BTreeSet<&String> = addresses.iter().collect();
        if set.len() != addresses.len() {
            return Err(format!(
                "--cluster names an address twice: {}",
                addresses.join(",")
            ));
        }
        if set.len() > MOST_NODES {
            return Err(format!(
                "--cluster names {} addresses; a cluster has {MOST_NODES} nodes at most, and 3 or 5 are usual",
                set.len()
            ));
        }
        if !addresses.iter().any(|address| address == own) {
            return Err(format!(
                "--cluster {} does not contain this node's own peer address, {own}: every node has the same list, with \
                 itself in it",
                addresses.join(",")
            ));
        }
        Ok(List {
            addresses: set.into_iter().cloned().collect(),
        })
    }

    /// In ascending order.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// A warning for the operator if the number of nodes is even.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let nodes = self.addresses.len();
        (nodes.is_multiple_of(2)).then(|| {
            format!(
                "--cluster names {nodes} nodes: a majority of {nodes} is {}, so it survives the loss of no more nodes than \
                 {} would; use {} or {}",
                nodes / 2 + 1,
                nodes - 1,
                nodes - 1,
                nodes + 1
            )
        })
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.addresses.join(","))
    }
}

/// The next step of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It waits; the text says for which nodes, or for what.
    Wait(String),
    /// It makes its directory that of a member of a new cluster, which others may have formed already:
    /// [`Directory::form`](crate::Directory::form).
    Form(Founding),
    /// It converts its directory and is the only member of a new cluster:
    /// [`Directory::seed`](crate::Directory::seed). The other listed nodes will ask to be added.
    Seed,
    /// A cluster is there: [`Directory::join`](crate::Directory::join).
    Join(ExistingCluster),
}

/// A cluster that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingCluster {
    /// Its authority.
    pub authority: Id,
    /// The life of its log.
    pub incarnation: Id,
    /// Whether this node is one of its members already. Otherwise it has to be added, as with `--join`.
    pub is_member: bool,
    /// Where clients reach the members that were met.
    pub urls: Vec<String>,
}

/// The introduction of the node at each listed address, or the reason it could not be met.
pub type Views = BTreeMap<String, Result<Introduction, String>>;

/// Decides. `own` is this node's introduction, `views` are those of the others.
///
/// # Errors
/// The reason this node must not start, with the remedy.
pub fn decide(own: &Introduction, list: &List, views: &Views) -> Result<Decision, String> {
    let heard: Vec<&Introduction> = views
        .values()
        .filter_map(|view| view.as_ref().ok())
        .collect();
    two_with_one_id(own, &heard)?;
    if let Some(cluster) = cluster(&heard)? {
        return match (two_lives(own, &cluster, &heard), &own.standing) {
            (None, _) => found(own, cluster, &heard),
            (Some(why), Standing::Single { .. }) => Err(why),
            // The server may be the cluster's first node by now, and was met before.
            (Some(why), _) => Ok(Decision::Wait(why)),
        };
    }
    for other in &heard {
        same_list(own, list, other)?;
    }
    let singles = one_single(own, &heard)?;
    let missing = missing(own, list, views);
    if !missing.is_empty() {
        return Ok(Decision::Wait(format!(
            "waiting for {}",
            missing.join(", ")
        )));
    }
    match (&own.standing, singles) {
        (Standing::Single { .. }, _) => Ok(Decision::Seed),
        (_, Some(single)) => Ok(Decision::Wait(format!(
            "waiting for the node at {}, which has a server's locks, to form the cluster",
            single.address
        ))),
        _ => Ok(together(own, list, &heard)),
    }
}

fn two_with_one_id(own: &Introduction, heard: &[&Introduction]) -> Result<(), String> {
    let mut places = BTreeMap::from([(own.node, &own.address)]);
    for other in heard {
        if let Some(first) = places.insert(other.node, &other.address) {
            return Err(format!(
                "the nodes at {first} and {} have the same id, {}: one of the two directories is a copy. Start the \
                 node of the copy with another --data",
                other.address, other.node
            ));
        }
    }
    Ok(())
}

/// The cluster that the members belong to that were met.
fn cluster(heard: &[&Introduction]) -> Result<Option<ExistingCluster>, String> {
    let mut found: Option<(ExistingCluster, &String)> = None;
    for other in heard {
        let Standing::Member {
            authority,
            incarnation,
            ..
        } = other.standing
        else {
            continue;
        };
        let (cluster, _) = found.get_or_insert_with(|| {
            let cluster = ExistingCluster {
                authority,
                incarnation,
                is_member: false,
                urls: Vec::new(),
            };
            (cluster, &other.address)
        });
        if (cluster.authority, cluster.incarnation) == (authority, incarnation) {
            cluster.urls.push(other.url.clone());
            continue;
        }
        if let Some((cluster, first)) = &found {
            return Err(format!(
                "--cluster names nodes of two clusters: {first} belongs to {}, incarnation {}, and {} to {authority}, \
                 incarnation {incarnation}. Name those of one",
                cluster.authority, cluster.incarnation, other.address
            ));
        }
    }
    Ok(found.map(|(cluster, _)| cluster))
}

/// Whether a cluster is there beside a server that was restored or recovered out of it: a node that came into the older
/// one of the two would be lost to the other.
fn two_lives(
    own: &Introduction,
    cluster: &ExistingCluster,
    heard: &[&Introduction],
) -> Option<String> {
    let mut all = std::iter::once(own).chain(heard.iter().copied());
    let again = all.find(|one| match one.standing {
        Standing::Single { authority, .. } => authority == cluster.authority,
        _ => false,
    })?;
    Some(format!(
        "{} has the locks of {} as a restore or a recovery left them, and a cluster of the same authority is there: {}. \
         Stop the nodes of the older one of the two, and start them with another --data",
        again.address,
        cluster.authority,
        cluster.urls.join(", ")
    ))
}

/// Decides for a node that found a cluster.
fn found(
    own: &Introduction,
    mut cluster: ExistingCluster,
    heard: &[&Introduction],
) -> Result<Decision, String> {
    if let Standing::Single { authority, .. } = own.standing {
        return Err(format!(
            "the cluster {} is there, and this node's directory is that of a single server, {authority}, with locks of \
             its own: move the directory away and start with an empty one, or start without --cluster",
            cluster.authority
        ));
    }
    for other in heard {
        let Standing::Member { members, .. } = &other.standing else {
            continue;
        };
        if members.contains_key(&own.node) {
            let founding = Founding::new(cluster.authority, cluster.incarnation, members.clone());
            if own.standing.proposal() == Some(digest(&founding)) {
                return Ok(Decision::Form(founding));
            }
            cluster.is_member = true;
            return Ok(Decision::Join(cluster));
        }
    }
    let members = heard.iter().filter_map(|other| match &other.standing {
        Standing::Member { members, .. } => Some(members),
        _ => None,
    });
    let mut here = members.flatten().filter(|(_, at)| **at == own.address);
    if let Some((old, address)) = here.next() {
        return Err(format!(
            "the cluster {} knows {address} as node {old}, and this directory is that of node {}: was the disk of node \
             {old} lost? Type `palisade cluster replace {old} {}` on a node that runs, then start this one again",
            cluster.authority, own.node, own.node
        ));
    }
    Ok(Decision::Join(cluster))
}

fn same_list(own: &Introduction, list: &List, other: &Introduction) -> Result<(), String> {
    match other.standing.list() {
        Some(theirs) if theirs == list.addresses => Ok(()),
        Some(theirs) => Err(format!(
            "the nodes do not have the same --cluster: {} at {}, {} at {}. Start all of them with the same list",
            list,
            own.address,
            theirs.join(","),
            other.address
        )),
        None => Err(format!(
            "the node at {} was started with --join or alone, and {} with --cluster {list}: start both with --cluster",
            other.address, own.address
        )),
    }
}

/// The node with a server's state, if there is one.
fn one_single<'a>(
    own: &'a Introduction,
    heard: &[&'a Introduction],
) -> Result<Option<&'a Introduction>, String> {
    let all = std::iter::once(own).chain(heard.iter().copied());
    let authority = |of: &Introduction| match of.standing {
        Standing::Single { authority, .. } => Some(authority),
        _ => None,
    };
    let mut singles = all.filter_map(|one| Some((one, authority(one)?)));
    match (singles.next(), singles.next()) {
        (Some((first, authority)), Some((second, other))) => Err(format!(
            "two of the nodes have a server's locks: {} those of authority {authority}, {} those of {other}. Decide which \
             locks the cluster is to have, and start the other node with another --data",
            first.address, second.address
        )),
        (first, _) => Ok(first.map(|(single, _)| single)),
    }
}

/// The nodes that it waits for, each with the reason.
fn missing(own: &Introduction, list: &List, views: &Views) -> Vec<String> {
    let others = list
        .addresses
        .iter()
        .filter(|address| **address != own.address);
    others
        .filter_map(|address| match views.get(address) {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(format!("{address} ({why})")),
            None => Some(address.clone()),
        })
        .collect()
}

/// All are blank.
fn together(own: &Introduction, list: &List, heard: &[&Introduction]) -> Decision {
    let Some(founding) = founding(own, list, heard) else {
        return Decision::Wait("waiting for the others to be found at their addresses".into());
    };
    let ours = digest(&founding);
    let agrees = |one: &&Introduction| one.standing.proposal() == Some(ours);
    if agrees(&own) && heard.iter().all(agrees) {
        Decision::Form(founding)
    } else {
        Decision::Wait("all nodes are here; they agree on the new cluster".into())
    }
}

/// Announces a digest, once this blank node has heard from all listed nodes that they are blank. It stands until another
/// one takes its place: a node that is not heard for a round is no reason to forget it.
pub fn propose(own: &mut Introduction, list: &List, views: &Views) {
    let heard: Vec<&Introduction> = views
        .values()
        .filter_map(|view| view.as_ref().ok())
        .collect();
    let next = founding(own, list, &heard).map(|founding| digest(&founding));
    if let Standing::Blank { proposal, .. } = &mut own.standing {
        *proposal = next.or(*proposal);
    }
}

fn founding(own: &Introduction, list: &List, heard: &[&Introduction]) -> Option<Founding> {
    let all = || std::iter::once(own).chain(heard.iter().copied());
    let draft = |one: &Introduction| match one.standing {
        Standing::Blank { draft, .. } => Some(draft),
        _ => None,
    };
    let nodes: BTreeMap<NodeId, String> =
        all().map(|one| (one.node, one.address.clone())).collect();
    let places: BTreeSet<&String> = nodes.values().collect();
    let complete = places.into_iter().eq(&list.addresses) && nodes.len() == list.addresses.len();
    let drafts: Option<BTreeMap<NodeId, (Id, Id)>> =
        all().map(|one| Some((one.node, draft(one)?))).collect();
    let (authority, incarnation) = *drafts?.first_key_value()?.1;
    complete.then(|| Founding::new(authority, incarnation, nodes))
}

fn digest(founding: &Founding) -> [u8; 32] {
    let mut bytes = Vec::new();
    bytes.bytes(founding.authority.as_bytes());
    bytes.bytes(founding.incarnation.as_bytes());
    bytes.members(&founding.members);
    Sha256::digest(&bytes).into()
}

/// How often the others are met, and how many times of that an unchanged progress is said again.
const ROUND: Duration = Duration::from_millis(250);
const SAY_AGAIN: u32 = 20;

/// Meets the listed nodes until one of the decisions other than [`Decision::Wait`] is reached. `peers` serves already;
/// `own` is how this node introduces itself, as [`introduction`] makes it. `say` gets the nodes that it waits for: when
/// they change, and every few seconds.
///
/// # Errors
/// The reason this node must not start, with the remedy. The others have had a second to hear the same.
pub async fn meet(
    peers: &Peers,
    own: Introduction,
    list: &List,
    mut say: impl FnMut(&str),
) -> Result<Decision, String> {
    let (mut own, mut said, mut rounds) = (own, String::new(), 0);
    loop {
        let introduction = own.clone();
        peers.introduce(move || introduction.clone());
        let views = views(peers, &own, list).await;
        match decide(&own, list, &views) {
            Ok(Decision::Wait(why)) => {
                if why != said || rounds % SAY_AGAIN == 0 {
                    say(&why);
                    (said, rounds) = (why, 0);
                }
                rounds += 1;
            }
            Err(why) => {
                tokio::time::sleep(4 * ROUND).await;
                return Err(why);
            }
            Ok(decided) => return Ok(decided),
        }
        propose(&mut own, list, &views);
        tokio::time::sleep(ROUND).await;
    }
}

async fn views(peers: &Peers, own: &Introduction, list: &List) -> Views {
    let others = list
        .addresses
        .iter()
        .filter(|address| **address != own.address);
    let met = others.map(|address| async move { (address.clone(), peers.meet(address).await) });
    let met = futures_util::future::join_all(met).await;
    met.into_iter().collect()
}

/// How a node introduces itself that is not a member yet.
///
/// # Errors
/// A text, if no random numbers can be had.
pub fn introduction(
    node: NodeId,
    purpose: Purpose,
    (address, url): (&str, &str),
    list: Option<&List>,
    timers: Profile,
) -> Result<Introduction, String> {
    let list = list.map(|list| list.addresses.clone());
    let random = || {
        let mut bytes = [0; 16];
        let drawn = getrandom::fill(&mut bytes);
        drawn.map_err(|error| format!("cannot draw a random id: {error}"))?;
        Ok::<Id, String>(Id::from_bytes(bytes))
    };
    let standing = match purpose {
        Purpose::Blank => Standing::Blank {
            draft: (random()?, random()?),
            list,
            proposal: None,
        },
        Purpose::Single(identity) => Standing::Single {
            authority: identity.owner,
            list,
        },
        Purpose::Member { identity, .. } => Standing::Member {
            authority: identity.owner,
            incarnation: identity.incarnation,
            members: BTreeMap::new(),
        },
    };
    Ok(Introduction {
        node,
        address: address.to_owned(),
        url: url.to_owned(),
        reads: codec::newest_version(),
        timers,
        starts: 0,
        last: None,
        history: Vec::new(),
        standing,
    })
}
