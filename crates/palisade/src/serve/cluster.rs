//! `palisade serve --cluster` and `--join`: a lock server that is a member of a cluster.
//!
//! ```text
//!   directory ──blank or single──► meet the listed nodes ──► form │ seed │ join ──┐
//!      └──────member──────────────────────────────────────────────────────────────┴──► node ──► serve
//! ```

mod interface;
mod watching;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use palisade_client::TlsFiles;
use palisade_core::AuthorityId;
use palisade_pipeline::{Failure, Handle, Identity, Leading, Writable, codec, seed};
use palisade_proto::json::AddMemberBody;
use palisade_replica::forming::{self, Decision, List};
use palisade_replica::node::{self, Engines, Membership, Node};
use palisade_replica::peers::{self, Introduction, Key, PeerStatus, Peers, Security, Standing};
use palisade_replica::{
    Directory, Engine, Leader, Log, Members, NodeId, Payload, Profile, Progress, Stored, Tokio,
    mark,
};
use palisade_server::net::MembershipChange;
use palisade_server::shell::keep_reloading;
use palisade_tls::{Server, ServerFiles};
use palisade_wal::{Opened, Options, Purpose};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::join;

/// How a node finds its cluster.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The peer addresses of a new cluster's nodes, the same on each of them.
    pub(crate) list: Vec<String>,
    /// URLs of a cluster that is there.
    pub(crate) join: Vec<String>,
    /// Where this node listens for its peers, and the address that they use.
    pub(crate) peer: SocketAddr,
    pub(crate) peer_name: String,
    /// The URL that this node gives to its clients.
    pub(crate) url: String,
    /// The times that all nodes share.
    pub(crate) timers: Profile,
    /// The secret that all nodes share.
    pub(crate) key: Option<Key>,
    /// The certificates for connections with other nodes.
    pub(crate) peer_tls: Option<ServerFiles>,
    /// The certificates for requests to other nodes at `https://` URLs.
    pub(crate) tls: TlsFiles,
}

/// Why a node could not become, or be, a member.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "cannot listen for other nodes on {at}: {source}; choose another address with --peer-listen"
    )]
    Listen {
        at: SocketAddr,
        source: std::io::Error,
    },
    #[error("{0}")]
    Refused(String),
    /// This node lost acknowledged entries, and its directory is marked.
    #[error("{0}")]
    Lost(String),
    #[error("cannot read the log of this node: {0}")]
    State(#[from] palisade_replica::StateError),
    #[error(transparent)]
    Certificates(#[from] palisade_tls::Error),
    #[error(transparent)]
    Open(#[from] palisade_wal::OpenError),
    #[error(transparent)]
    Directory(#[from] palisade_replica::DirectoryError),
    #[error(transparent)]
    Node(#[from] node::Error),
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// A running member.
pub(crate) struct Member {
    pub(crate) node: Node,
    pub(crate) peers: Peers,
    pub(crate) view: Arc<ClusterView>,
    pub(crate) created: bool,
}

/// A node's needs besides its directory.
pub(crate) struct PreparedNode {
    tls: Option<Arc<Server>>,
    listener: TcpListener,
    list: Option<List>,
}

/// Checks the certificates and the list, and takes the port for other nodes.
pub(crate) async fn prepare(settings: &Settings) -> Result<PreparedNode, Error> {
    let tls = certificates(settings)?;
    let mut asked = settings.join.iter().chain([&settings.url]);
    if asked.any(|url| url.starts_with("https://")) {
        palisade_tls::TlsClient::new(&settings.tls)?;
    }
    let list = match &settings.list[..] {
        [] => None,
        listed => Some(List::new(listed, &settings.peer_name).map_err(Error::Refused)?),
    };
    let listener = TcpListener::bind(settings.peer).await;
    let listener = listener.map_err(|source| Error::Listen {
        at: settings.peer,
        source,
    })?;
    Ok(PreparedNode {
        tls,
        listener,
        list,
    })
}

/// Opens the directory, becomes a member if it is not one yet, and starts the node. Waits as long as the other nodes
/// take to be there.
pub(crate) async fn start(
    data: &Path,
    settings: &Settings,
    prepared: PreparedNode,
    node: &node::Settings,
) -> Result<Member, Error> {
    let PreparedNode {
        tls,
        listener,
        list,
    } = prepared;
    let directory = Directory::lock(data)?;
    let purpose = directory.purpose()?;
    if let (Purpose::Member { .. }, Some(why)) = (purpose, mark::read(data)?) {
        return Err(Error::Lost(format!(
            "{why}\nTo go on, use `palisade cluster replace` with a new node, or `palisade cluster recover`"
        )));
    }
    let names = (&*settings.peer_name, &*settings.url);
    let own = forming::introduction(
        directory.node(),
        purpose,
        names,
        list.as_ref(),
        settings.timers,
    );
    let own = own.map_err(Error::Refused)?;
    let security = Security {
        key: settings.key.clone(),
        tls: tls.clone(),
    };
    let peers = Peers::new(security, peers::Settings::default(), own.clone());
    if let Some(tls) = tls {
        tokio::spawn(async move { keep_reloading(&tls).await });
    }
    let engines = Engines::start()?;
    let runtime = engines.handle().clone();
    let created = !matches!(purpose, Purpose::Member { .. });
    let mut serving = Some(peers.serve(listener));
    let opened = if created {
        serving.take().map(|serving| runtime.spawn(serving));
        found(&directory, data, settings, &peers, own, list.as_ref()).await?
    } else {
        directory.open(&Options::default())?
    };
    // Before anybody is called.
    let remembered = peers.remember(data.join("peers"), opened.identity().incarnation)?;
    runtime.spawn(remembered);
    let identity = identity(&opened)?;
    let (starts, report) = (opened.starts(), opened.report().clone());
    let stored = Stored::read(opened, seed())?;
    introduce_stored(&stored, &peers, &directory, starts)?;
    // A member is met only now: with less to say of itself, the others would take it for an older copy.
    serving.map(|serving| runtime.spawn(serving));
    if !created {
        // Before it votes.
        let asked = peers.ask_members(&members(&stored).nodes).await;
        asked.map_err(|why| marked(data, why))?;
    }
    let node_settings = node::Settings {
        engine: palisade_replica::Settings {
            timers: settings.timers.timers(),
            ..node.engine
        },
        ..*node
    };
    let node = Node::start(
        (stored, report),
        directory.node(),
        identity.clone(),
        peers.clone(),
        engines,
        &node_settings,
    );
    let node = node.await?;
    let view = ClusterView::new(&node, &peers, (directory.node(), &settings.url), &identity);
    introduce(&node, &peers, settings, &view, starts);
    let candidate = join::JoiningNode {
        node: directory.node(),
        engine: node.engine.clone(),
        peers: peers.clone(),
        address: settings.peer_name.clone(),
        urls: settings.join.clone(),
        list: settings.list.clone(),
        tls: settings.tls.clone(),
    };
    tokio::spawn(candidate.ask());
    tokio::spawn(watching::watch_leader(Arc::clone(&view)));
    tokio::spawn(watching::watch_peers(Arc::clone(&view)));
    tokio::spawn(watching::probe_peers(Arc::clone(&view)));
    tokio::spawn(watching::watch_soundness(
        Arc::clone(&view),
        data.to_owned(),
    ));
    tokio::spawn(watching::watch_versions(
        Arc::clone(&view),
        Arc::clone(&node.readable),
    ));
    Ok(Member {
        node,
        peers,
        view,
        created,
    })
}

/// The certificates for connections with other nodes, checked: with one for another host, every node would refuse this
/// one.
fn certificates(settings: &Settings) -> Result<Option<Arc<Server>>, Error> {
    let Some(files) = settings.peer_tls.clone() else {
        if !settings.peer.ip().to_canonical().is_loopback() {
            tracing::warn!(
                "--peer-listen {}: what the nodes tell each other is not encrypted, and a machine between them can read \
                 and change it. Start every node with --tls-cert, --tls-key and --peer-ca, or keep this port on a \
                 trusted network",
                settings.peer
            );
        }
        return Ok(None);
    };
    let tls = Server::speaking(files, vec![peers::PROTOCOL.to_vec()])?;
    let host = peers::host(&settings.peer_name);
    if tls.is_for(host) {
        return Ok(Some(Arc::new(tls)));
    }
    Err(Error::Refused(format!(
        "{} is not for {host}, where the other nodes reach this one ({}), so they would refuse it: make one with this \
         name (`palisade auth cert {host}`), or name another address with --peer-address",
        tls.certificate().display(),
        settings.peer_name
    )))
}

impl Member {
    /// Ends the node, after its pipeline was stopped.
    pub(crate) async fn stop(self) {
        self.peers.stop();
        drop(self.view);
        self.node.join().await;
    }
}

/// Makes a directory that is not a member's that of one, as soon as there is a cluster.
async fn found(
    directory: &Directory,
    data: &Path,
    settings: &Settings,
    peers: &Peers,
    own: Introduction,
    list: Option<&List>,
) -> Result<Opened, Error> {
    if let Some(list) = list {
        return form(directory, settings, peers, own, list).await;
    }
    if matches!(own.standing, Standing::Single { .. }) {
        return Err(Error::Refused(format!(
            "{} holds a single server's locks, so it cannot join another cluster; start it with --cluster to make it the \
             first member of a new one, or choose an empty directory with --data",
            data.display()
        )));
    }
    let cluster = join::find(&settings.join, &settings.tls)
        .await
        .map_err(Error::Refused)?;
    let timers = settings.timers;
    if let Some(theirs) = cluster.timers.filter(|theirs| *theirs != timers.name()) {
        return Err(Error::Refused(format!(
            "the cluster runs with --timers {theirs}, and this node with --timers {timers}: start it with --timers {theirs}"
        )));
    }
    let near = peers.check_round_trips(&cluster.members).await;
    near.map_err(Error::Refused)?;
    Ok(directory.join(cluster.authority, cluster.incarnation, &Options::default())?)
}

/// Meets the listed nodes until there is a cluster.
async fn form(
    directory: &Directory,
    settings: &Settings,
    peers: &Peers,
    own: Introduction,
    list: &List,
) -> Result<Opened, Error> {
    if let Some(warning) = list.warning() {
        tracing::warn!("{warning}");
    }
    let say = |why: &str| tracing::info!("forming a cluster of {list}: {why}");
    let decision = forming::meet(peers, own, list, say).await;
    let decision = decision.map_err(Error::Refused)?;
    // Before there is a cluster: its times are chosen here.
    let met = peers.status().into_iter();
    let met = met.map(|(node, peer)| (node, peer.address)).collect();
    let near = peers.check_round_trips(&met).await;
    near.map_err(Error::Refused)?;
    let options = Options::default();
    Ok(match decision {
        Decision::Form(founding) => directory.form(&founding, &options)?,
        Decision::Seed => directory.seed(&settings.peer_name, &options)?,
        Decision::Join(cluster) => {
            directory.join(cluster.authority, cluster.incarnation, &options)?
        }
        Decision::Wait(why) => return Err(Error::Refused(why)),
    })
}

fn identity(opened: &Opened) -> Result<Identity, Error> {
    let identity = opened.identity();
    let authority = AuthorityId::new(&identity.owner.to_string());
    Ok(Identity {
        authority: authority.map_err(|invalid| Error::Refused(invalid.to_string()))?,
        incarnation: identity.incarnation.to_string(),
    })
}

/// The members as of the last entry.
fn members(stored: &Stored) -> Members {
    let newest = stored.state.log.entries().rev();
    let mut newest = newest.filter_map(|entry| match &entry.payload {
        Payload::Members(members) => Some(members.clone()),
        Payload::Blank | Payload::Batch(_) => None,
    });
    newest
        .next()
        .unwrap_or_else(|| stored.state.members.1.clone())
}

/// From now on this node introduces itself with the state of its log; it answers nothing else yet.
fn introduce_stored(
    stored: &Stored,
    peers: &Peers,
    directory: &Directory,
    starts: u64,
) -> Result<(), Error> {
    let Purpose::Member { identity, .. } = directory.purpose()? else {
        return Ok(());
    };
    let log = &stored.state.log;
    let own = Introduction {
        starts,
        last: log.last(),
        history: log.history(peers::HISTORY),
        standing: Standing::Member {
            authority: identity.owner,
            incarnation: identity.incarnation,
            members: members(stored).nodes,
        },
        ..peers.own()
    };
    peers.introduce(move || own.clone());
    Ok(())
}

/// The error of a node that must not vote, whose directory says so from now on.
pub(super) fn marked(data: &Path, why: String) -> Error {
    if let Err(error) = mark::set(data, &why) {
        tracing::error!(%error, "the directory could not be marked: do not start this node again");
    }
    Error::Lost(why)
}

/// From now on this node answers its peers, and introduces itself as a member.
fn introduce(
    node: &Node,
    peers: &Peers,
    settings: &Settings,
    view: &Arc<ClusterView>,
    starts: u64,
) {
    let (address, url) = (settings.peer_name.clone(), settings.url.clone());
    let timers = settings.timers;
    let (of, store) = (Arc::clone(view), node.store.clone());
    peers.introduce(move || {
        let progress = of.engine.progress();
        Introduction {
            node: of.node,
            address: address.clone(),
            url: url.clone(),
            reads: codec::newest_version(),
            timers,
            starts,
            last: store.look(Log::last),
            history: store.look(|log| log.history(peers::HISTORY)),
            standing: of.standing(&progress),
        }
    });
    let engine = node.engine.clone();
    peers.answer(move |_, message| {
        let engine = engine.clone();
        async move { engine.answer(&message).await }
    });
}

/// The cluster as this node sees it.
pub(crate) struct ClusterView {
    node: NodeId,
    url: String,
    timers: Profile,
    authority: AuthorityId,
    incarnation: String,
    engine: Engine<Tokio>,
    peers: Peers,
    handle: Handle,
    disk: Arc<node::LogDisk>,
    leader_changes: AtomicU64,
    /// The term whose leader reported last that it reaches no quorum: no caller must be sent to it.
    alone: Mutex<Option<Leader>>,
    /// The URLs of the nodes that this one has lost.
    lost: watch::Sender<BTreeSet<String>>,
}

impl ClusterView {
    fn new(
        node: &Node,
        peers: &Peers,
        (id, url): (NodeId, &str),
        identity: &Identity,
    ) -> Arc<ClusterView> {
        Arc::new(ClusterView {
            node: id,
            url: url.to_owned(),
            timers: peers.own().timers,
            authority: identity.authority.clone(),
            incarnation: identity.incarnation.clone(),
            engine: node.engine.clone(),
            peers: peers.clone(),
            handle: node.handle().clone(),
            disk: Arc::clone(&node.disk),
            leader_changes: AtomicU64::new(0),
            alone: Mutex::default(),
            lost: watch::Sender::default(),
        })
    }

    /// How far this node is. A leader that reports that it reaches no quorum does not count as leader, though its followers
    /// may still hear from it now and then.
    fn progress(&self) -> Progress {
        let progress = self.engine.progress();
        let alone = *self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        let is_led = progress.leader == Some(self.node) || alone != Some(progress.vote);
        Progress {
            leader: progress.leader.filter(|_| is_led),
            ..progress
        }
    }

    fn standing(&self, progress: &Progress) -> Standing {
        let id = |text: &str| {
            text.parse()
                .unwrap_or(palisade_wal::Id::from_bytes([0; 16]))
        };
        Standing::Member {
            authority: id(&self.authority),
            incarnation: id(&self.incarnation),
            members: progress.members.nodes.clone(),
        }
    }

    /// Lets another node lead, if this one does (rule R22).
    pub(crate) async fn hand_over(&self) {
        if self.handle.leader() != Leading::Here {
            return;
        }
        let alive = |node| self.is_alive(node);
        let membership = Membership::new(&self.engine, self.node, &alive);
        let mut leading = self.handle.leading();
        // A node whose disk is full cannot record the other's term, so its engine goes on believing that it leads.
        tokio::select! {
            biased;
            done = membership.transfer(None) => match done {
                Ok(()) => tracing::info!("another node leads now"),
                Err(node::NotChanged::NotLeader) => {}
                Err(error) => tracing::warn!(%error, "no other node took over"),
            },
            _ = leading.wait_for(|leading| *leading != Leading::Here) => {}
        }
    }

    /// The batch versions that all members read, and the members that prevent a newer one.
    fn writable(&self) -> Option<Writable> {
        let (members, peers) = (self.engine.progress().members.nodes, self.peers.status());
        let reads = members.iter().map(|(node, address)| {
            let reads = if *node == self.node {
                Some(codec::newest_version())
            } else {
                peers.get(node).and_then(|peer| peer.reads)
            };
            (reads, node, address)
        });
        let (reads, node, address) = reads.min_by_key(|(reads, ..)| *reads)?;
        let refusal = match reads {
            Some(_) => Failure::Refused(format!(
                "node {node} at {address} runs an older version, which does not know this kind of request and could not \
                 read the log any more: upgrade that node first, or remove it (`palisade cluster remove {node}`)"
            )),
            None => Failure::Unavailable(format!(
                "the leader has not heard yet whether node {node} at {address} knows this kind of request, which was never \
                 used in this cluster: start that node, or remove it (`palisade cluster remove {node}`)"
            )),
        };
        Some(Writable {
            version: reads.unwrap_or(codec::VERSION),
            refusal,
        })
    }

    fn url_of(&self, node: NodeId) -> Option<String> {
        if node == self.node {
            Some(self.url.clone())
        } else {
            self.peers.client_url(node)
        }
    }

    fn is_alive(&self, node: NodeId) -> bool {
        node == self.node
            || self
                .peers
                .status()
                .get(&node)
                .is_some_and(PeerStatus::is_alive)
    }

    /// The members that answer when they are asked now: one that hangs since a second ago has answered lately.
    async fn answering(&self) -> BTreeSet<NodeId> {
        let members = self.engine.progress().members.nodes;
        self.peers.answering(&members).await
    }

    async fn carry_out(&self, change: MembershipChange) -> Result<(), node::NotChanged> {
        let answering = self.answering().await;
        let alive = |node| node == self.node || answering.contains(&node);
        let membership = Membership::new(&self.engine, self.node, &alive);
        match change {
            MembershipChange::Add(AddMemberBody {
                node,
                peer,
                promote,
                replaces,
            }) => {
                let (node, replaces) = (parse(&node)?, replaces.as_deref().map(parse).transpose()?);
                membership.add(node, &peer, replaces).await?;
                if !promote && replaces.is_none() {
                    return Ok(());
                }
                // It may have taken minutes to catch up.
                let answering = self.answering().await;
                let alive = |node| node == self.node || answering.contains(&node);
                let membership = Membership::new(&self.engine, self.node, &alive);
                membership.promote(node, replaces).await
            }
            MembershipChange::Promote(node) => membership.promote(parse(&node)?, None).await,
            MembershipChange::Remove(node) => membership.remove(parse(&node)?).await,
            MembershipChange::Transfer(to) => {
                membership
                    .transfer(to.as_deref().map(parse).transpose()?)
                    .await
            }
        }
    }
}

fn parse(node: &str) -> Result<NodeId, node::NotChanged> {
    node.parse()
        .map_err(|why: &str| node::NotChanged::Refused(format!("{node:?}: {why}")))
}
