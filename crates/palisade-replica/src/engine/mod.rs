//! The consensus engine, openraft: nothing outside this folder names it.
//!
//! ```text
//!   Engine ── propose, confirm, members ──► openraft::Raft
//!                                             │ storage: Store     (log and votes)
//!                                             │ machine: Applier   (committed entries, snapshots)
//!                                             └ network: Transport (messages, as bytes)
//! ```
//!
//! The settings, and the reasons for them:
//!
//! - a leader that was restarted does not lead again without an election, because it may have missed entries that
//!   were committed while it was away;
//! - pre-vote: a node that was cut off does not disturb a healthy leader when it comes back;
//! - a leader that hears no quorum pauses its appends, then tries again (rule R6): one that can send and not hear would
//!   otherwise keep others from electing a leader for as long as that lasts;
//! - snapshots and purges are made when [`Engine::snapshot_made`] is called, not by count.

mod convert;
mod error;
mod machine;
mod network;
mod soundness;
mod storage;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver as _;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::impls::ProgressResponder;
use openraft::metrics::RaftServerMetrics;
use openraft::type_config::alias::WatchReceiverOf;
use openraft::{
    AsyncRuntime, ChangeMembers, Config, Raft, RaftMetrics, ReadPolicy, ServerState, SnapshotPolicy,
};
use tokio::sync::watch;

use crate::applier::Applier;
use crate::entry::{Leader, LogId, Members, NodeId};
use crate::message::{PROBE, Reply, Request, probed};
use crate::store::{Store, WeakStore};
use crate::takeover::Takeover;
use crate::timers::{Profile, Timers};
use machine::ReplicatedMachine;
use network::{Incoming, Network, VoteGate};
use storage::LogStorage;
use types::{Batch, Types};

pub(crate) use network::MESSAGE_BYTES;
pub use network::Transport;
pub use soundness::Unsound;

/// The runtime that a node runs on: tokio's, or one in virtual time.
pub use openraft::AsyncRuntime as Runtime;

/// Tokio's, for nodes in real time.
pub use openraft::impls::TokioRuntime as Tokio;

/// A change of the members waits no longer for the one before it.
const CHANGING: Duration = Duration::from_secs(10);

/// The pause between two looks at whether a change is half made.
const COMPLETE: Duration = Duration::from_millis(100);

/// The most entries in one message.
const ENTRIES_AT_ONCE: u64 = 64;

/// After this long without a word from the leader another one would have been elected, if there were a majority.
const SILENT: Duration = Duration::from_secs(3);

/// How long things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The times that all nodes share.
    pub timers: Timers,
    /// Whether a leader that hears no quorum pauses (rule R6). One that does not, and that can send and not hear, keeps
    /// the cluster down.
    pub pauses: bool,
    /// The longest time for one part of a snapshot.
    pub snapshot_part: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            timers: Profile::default().timers(),
            pauses: true,
            snapshot_part: Duration::from_secs(5),
        }
    }
}

/// The input with which an engine starts.
pub struct EngineStart<T> {
    /// This node.
    pub node: NodeId,
    /// Its log.
    pub store: Store,
    /// Its machine.
    pub applier: Arc<Applier>,
    /// The way to the others.
    pub transport: T,
    /// How long things take.
    pub settings: Settings,
}

/// The role of this node in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It belongs to no cluster yet, or is being added to one.
    Learner,
    /// It follows.
    Follower,
    /// It stands for election.
    Candidate,
    /// It leads, as far as it knows.
    Leader,
    /// The engine ended: the log failed.
    Stopped,
}

/// How far a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Its role.
    pub role: Role,
    /// Its leadership, or the one it follows.
    pub vote: Leader,
    /// The leader, as far as this node knows. A leader that said nothing for 3 s is not named: a node that was removed
    /// would otherwise name the last one that it followed for ever.
    pub leader: Option<NodeId>,
    /// The index of its last entry.
    pub last: Option<u64>,
    /// Up to where entries are committed, as far as it knows.
    pub committed: Option<LogId>,
    /// Up to where they are applied.
    pub applied: Option<LogId>,
    /// Up to where a snapshot contains them.
    pub snapshot: Option<LogId>,
    /// Up to where they are purged.
    pub purged: Option<LogId>,
    /// The members of the cluster.
    pub members: Members,
    /// How far each node's log is known to be on stable storage. Only a leader knows.
    pub matched: BTreeMap<NodeId, Option<LogId>>,
}

/// Why a batch, or a read, must not be acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCommitted {
    /// This node does not lead; the batch is in no log.
    #[error("this node does not lead")]
    NotLeader,
    /// This node led when the batch was proposed, and no longer: another leader may commit it.
    #[error("another node took over before the batch was committed")]
    Unknown,
    /// The engine has ended.
    #[error("replication has stopped: {0}")]
    Stopped(String),
}

/// A change of the members that was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another node leads.
    #[error("this node does not lead")]
    NotLeader,
    /// Another change is under way.
    #[error(
        "another change of the members is under way; type the command again when `palisade cluster status` shows its result"
    )]
    Busy,
    /// For people.
    #[error("{0}")]
    Because(String),
}

/// A node of a cluster. Clones are the same node.
pub struct Engine<R: AsyncRuntime> {
    raft: Raft<Types<R>, ReplicatedMachine>,
    incoming: Arc<Incoming>,
    followed: Arc<Mutex<Followed<R>>>,
    takeover: Arc<Mutex<Option<Takeover>>>,
    store: WeakStore,
    unsound: Arc<watch::Sender<Option<Unsound>>>,
    changing: Arc<tokio::sync::Mutex<()>>,
    timers: Timers,
}

/// The latest leadership that sent entries or a heartbeat here, and what this node did since.
struct Followed<R: AsyncRuntime> {
    /// Which one, and when it sent something last.
    leader: Option<(Leader, R::Instant)>,
    /// When this node first asked for votes after that.
    stood: Option<R::Instant>,
}

impl<R: AsyncRuntime> Default for Followed<R> {
    fn default() -> Followed<R> {
        Followed {
            leader: None,
            stood: None,
        }
    }
}

impl<R: AsyncRuntime> Clone for Engine<R> {
    fn clone(&self) -> Self {
        Engine {
            raft: self.raft.clone(),
            incoming: Arc::clone(&self.incoming),
            followed: Arc::clone(&self.followed),
            takeover: Arc::clone(&self.takeover),
            store: self.store.clone(),
            unsound: Arc::clone(&self.unsound),
            changing: Arc::clone(&self.changing),
            timers: self.timers,
        }
    }
}

/// Measures how long something takes, by the runtime's clock; no decision depends on it.
pub(crate) struct Stopwatch<R: AsyncRuntime>(R::Instant);

impl<R: AsyncRuntime> Stopwatch<R> {
    pub(crate) fn start() -> Stopwatch<R> {
        Stopwatch(R::Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The role of a node, the leadership that it follows, and up to where entries are committed and applied.
pub(crate) type NodePlace = (Role, Leader, Option<LogId>, Option<LogId>);

fn role<R: AsyncRuntime>(metrics: &RaftMetrics<Types<R>>) -> Role {
    match (&metrics.running_state, metrics.state) {
        (Err(_), _) | (_, ServerState::Shutdown) => Role::Stopped,
        (_, ServerState::Learner) => Role::Learner,
        (_, ServerState::Follower) => Role::Follower,
        (_, ServerState::Candidate) => Role::Candidate,
        (_, ServerState::Leader) => Role::Leader,
    }
}

fn heard<R: AsyncRuntime>(metrics: &RaftMetrics<Types<R>>) -> Option<Duration> {
    // The only node that votes has to hear nobody, and the engine does not move that time then.
    let members = metrics.membership_config.membership();
    let mut voters = members.get_joint_config().iter().flatten();
    if voters.all(|voter| *voter == metrics.id) {
        return None;
    }
    metrics.last_quorum_acked.map(|at| at.elapsed())
}

impl<R: AsyncRuntime> Engine<R> {
    /// Starts a node on the runtime that runs this.
    ///
    /// # Errors
    /// If its log cannot be read.
    pub async fn start<T: Transport>(start: EngineStart<T>) -> io::Result<Engine<R>> {
        let EngineStart {
            node,
            store,
            applier,
            transport,
            settings,
        } = start;
        let timers = settings.timers;
        let silence = settings.pauses.then(|| timers.silence());
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let config = Config {
            cluster_name: "palisade".into(),
            heartbeat_interval: millis(timers.heartbeat()),
            election_timeout_min: millis(timers.election().0),
            // The engine takes it for the lease as well.
            election_timeout_max: millis(timers.lease()),
            quorum_loss_probe_interval: silence.map(millis),
            install_snapshot_timeout: millis(settings.snapshot_part),
            enable_leader_restore: Some(false),
            enable_pre_vote: Some(true),
            snapshot_policy: SnapshotPolicy::Never,
            // Only `snapshot_made` has entries purged.
            max_in_snapshot_log_to_keep: u64::MAX,
            replication_lag_threshold: u64::MAX,
            // One batch is under way at a time, so more entries than that belong to a node that catches up.
            max_payload_entries: ENTRIES_AT_ONCE,
            ..Config::default()
        };
        // By then it serves no longer (rule R5), so the pause costs nobody anything.
        let gate = Arc::new(VoteGate::new(timers.patience(), silence));
        let config = Arc::new(config.validate().map_err(io::Error::other)?);
        let weak = store.downgrade();
        let raft = Raft::new(
            node,
            config,
            Network::new(transport, Arc::clone(&gate)),
            LogStorage::new(store.clone()),
            ReplicatedMachine::new(applier, store),
        );
        let raft = raft.await.map_err(io::Error::other)?;
        let metrics: WatchReceiverOf<Types<R>, RaftMetrics<Types<R>>> = raft.metrics();
        gate.watch(move || heard(&metrics.borrow_watched()));
        let followed: Arc<Mutex<Followed<R>>> = Arc::default();
        let stands = Arc::clone(&followed);
        gate.note_votes(move || {
            let mut followed = stands.lock().unwrap_or_else(PoisonError::into_inner);
            followed.stood.get_or_insert_with(R::Instant::now);
        });
        Ok(Engine {
            raft,
            incoming: Arc::default(),
            followed,
            takeover: Arc::default(),
            store: weak,
            unsound: Arc::default(),
            changing: Arc::default(),
            timers,
        })
    }

    /// Makes the first members of a new cluster. This may be called on each of them, with the same members.
    ///
    /// # Errors
    /// If this node already belongs to a cluster.
    pub async fn form(&self, members: &Members) -> Result<(), Refused> {
        let nodes = members.nodes.clone();
        self.raft.initialize(nodes).await.map_err(error::not_formed)
    }

    /// Proposes a batch under a leadership of this node; gives its place in the log when a quorum has it on stable
    /// storage (rule R1). It is refused if that leadership is over, also when this node leads again: there may be
    /// entries in between that the proposer does not know.
    ///
    /// # Errors
    /// [`NotCommitted`].
    pub fn propose(
        &self,
        leader: Leader,
        batch: Arc<[u8]>,
    ) -> impl Future<Output = Result<LogId, NotCommitted>> + Send + 'static {
        let raft = self.raft.clone();
        async move {
            let (responder, committed, complete) = ProgressResponder::new();
            let write = raft.write(Batch(batch)).responder(responder);
            let sent = write.with_leader(convert::raft_leader(leader)).await;
            sent.map_err(|fatal| NotCommitted::Stopped(error::ended(&fatal)))?;
            if let Ok(id) = committed.await {
                return Ok(convert::log_id(id));
            }
            match complete.await {
                Ok(Ok(written)) => Ok(convert::log_id(written.log_id)),
                Ok(Err(ClientWriteError::ForwardToLeader(_))) => Err(NotCommitted::NotLeader),
                Ok(Err(_)) => Err(NotCommitted::Unknown),
                Err(_) => Err(NotCommitted::Stopped("the engine has ended".into())),
            }
        }
    }

    /// Makes sure that this node leads, by asking a quorum, and under which leadership. Returns an entry of this
    /// leadership: everything that was committed before the question is at or before that entry (rule R4).
    ///
    /// # Errors
    /// [`NotCommitted`].
    pub fn confirm(&self) -> impl Future<Output = Result<LogId, NotCommitted>> + Send + 'static {
        let raft = self.raft.clone();
        async move {
            match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
                Ok(linearizer) => Ok(convert::log_id(*linearizer.read_log_id().log_id())),
                Err(RaftError::Fatal(fatal)) => Err(NotCommitted::Stopped(error::ended(&fatal))),
                Err(_) => Err(NotCommitted::NotLeader),
            }
        }
    }

    /// Whether this is the leadership of this node that lasts, as far as it knows.
    #[must_use]
    pub fn leads(&self, leader: Leader) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.state == ServerState::Leader && convert::vote(metrics.vote).leader == leader
    }

    /// The times that all nodes share.
    #[must_use]
    pub fn timers(&self) -> Timers {
        self.timers
    }

    /// How long ago a quorum last confirmed that this node leads, as far as it knows.
    #[must_use]
    pub fn quorum_heard(&self) -> Option<Duration> {
        heard(&self.raft.metrics().borrow_watched())
    }

    /// The part of [`progress`](Engine::progress) that costs no allocation, for those that look at every change.
    pub(crate) fn place(&self) -> NodePlace {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        (
            role(&metrics),
            convert::vote(metrics.vote).leader,
            metrics.cluster_committed.map(convert::log_id),
            metrics.last_applied.map(convert::log_id),
        )
    }

    /// How far this node is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let vote = convert::vote(metrics.vote);
        let role = role(&metrics);
        Progress {
            role,
            vote: vote.leader,
            leader: metrics
                .current_leader
                .filter(|_| self.is_led(role, vote.leader, heard(&metrics))),
            last: metrics.last_log_index,
            committed: metrics.cluster_committed.map(convert::log_id),
            applied: metrics.last_applied.map(convert::log_id),
            snapshot: metrics.snapshot.map(convert::log_id),
            purged: metrics.purged.map(convert::log_id),
            members: convert::members(metrics.membership_config.membership()),
            matched: metrics
                .replication
                .iter()
                .flatten()
                .map(|(node, matched)| (*node, matched.map(convert::log_id)))
                .collect(),
        }
    }

    /// Whether a leadership is not silent.
    fn is_led(&self, role: Role, leader: Leader, quorum_heard: Option<Duration>) -> bool {
        if role == Role::Leader {
            // One that was just elected has heard nobody yet.
            return quorum_heard.is_none_or(|heard| heard < SILENT);
        }
        let followed = self.followed();
        let followed = followed.leader;
        followed.is_some_and(|(of, at)| of == leader && at.elapsed() < SILENT)
    }

    fn followed(&self) -> MutexGuard<'_, Followed<R>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long the former leader was silent when this node first asked for votes, and how long ago that was.
    pub(crate) fn campaign(&self) -> (Option<Duration>, Option<Duration>) {
        let followed = self.followed();
        let Some(vote) = followed.stood.map(|stood| stood.elapsed()) else {
            return (None, None);
        };
        let silent = followed.leader.map(|(_, heard)| heard.elapsed());
        (silent.map(|silent| silent.saturating_sub(vote)), Some(vote))
    }

    /// The latest take-over of this node since it started.
    #[must_use]
    pub fn takeover(&self) -> Option<Takeover> {
        let takeover = self.takeover.lock();
        *takeover.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn took_over(&self, takeover: Takeover) {
        let shown = self.takeover.lock();
        *shown.unwrap_or_else(PoisonError::into_inner) = Some(takeover);
    }

    /// Notes that a leader was heard.
    fn follows(&self, leader: Leader) {
        let mut followed = self.followed();
        if followed.leader.is_none_or(|(before, _)| before <= leader) {
            *followed = Followed {
                leader: Some((leader, R::Instant::now())),
                stood: None,
            };
        }
    }

    /// Wakes when [`progress`](Engine::progress) may have changed, which it does with every batch.
    #[must_use]
    pub fn watch(&self) -> EngineWatch<R> {
        EngineWatch(self.raft.metrics())
    }

    /// Wakes when the leader, or the cluster's members, may have changed.
    #[must_use]
    pub fn watch_leader(&self) -> LeaderWatch<R> {
        LeaderWatch {
            shown: self.raft.metrics(),
            server: self.raft.server_metrics(),
            is_news: false,
        }
    }

    /// Answers a message of another node.
    pub async fn answer(&self, message: &[u8]) -> Vec<u8> {
        if message == PROBE {
            return probed(self.has_quorum());
        }
        let reply = match Request::decode(message) {
            Ok(request) if self.is_unsound(&request) => {
                Reply::Failed("it lacks what is committed here, and is not followed".into())
            }
            Ok(request) => {
                if let Request::Append { vote, .. } | Request::Snapshot { vote, .. } = &request {
                    self.follows(vote.leader);
                }
                self.incoming.answer(&self.raft, request).await
            }
            Err(malformed) => Reply::Failed(malformed.to_string()),
        };
        reply.encode()
    }

    /// Held while the members change: each change starts from the result of the one before (rule R18).
    ///
    /// # Errors
    /// [`Refused::Busy`] if another change takes too long.
    pub(crate) async fn change_members(&self) -> Result<tokio::sync::OwnedMutexGuard<()>, Refused> {
        let changing = Arc::clone(&self.changing).lock_owned();
        let held = R::timeout(CHANGING, changing).await;
        held.map_err(|_| Refused::Busy)
    }

    /// Adds a node that gets all entries and has no vote (rule R18). It may have to catch up.
    ///
    /// # Errors
    /// [`Refused`]; nothing changed, or another leader decides.
    pub async fn add_learner(&self, node: NodeId, address: &str) -> Result<(), Refused> {
        let added = self.raft.add_learner(node, address.to_owned(), false).await;
        added.map(drop).map_err(error::not_changed)
    }

    /// Removes a node that has no vote.
    ///
    /// # Errors
    /// [`Refused`]; nothing changed, or another leader decides.
    pub async fn remove_learner(&self, node: NodeId) -> Result<(), Refused> {
        let change = ChangeMembers::RemoveNodes(BTreeSet::from([node]));
        let changed = self.raft.change_membership(change, true).await;
        changed.map(drop).map_err(error::not_changed)
    }

    /// Makes these nodes the voters, by joint consensus (rule R18). Nodes that are no voters any more leave.
    ///
    /// # Errors
    /// [`Refused`].
    pub async fn set_voters(&self, voters: BTreeSet<NodeId>) -> Result<(), Refused> {
        let change = ChangeMembers::ReplaceAllVoters(voters);
        let changed = self.raft.change_membership(change, false).await;
        changed.map(drop).map_err(error::not_changed)
    }

    /// Makes the second step of a change of the members whenever this node leads and a former leader made only the first one:
    /// until then a majority of the former voters is needed, too (rule R18). Runs until the engine ends.
    pub async fn complete_changes(self) {
        let mut watch = self.watch();
        loop {
            match self.half_changed() {
                None if watch.changed().await.is_err() => return,
                None => {}
                // A change that this leader makes itself holds the lock, and completes.
                Some(_) => {
                    if let Ok(_changing) = self.change_members().await {
                        // A step that is not committed yet, or a leader that is none any more: this is tried again.
                        let _ = self.complete_change().await;
                    }
                }
            }
            R::sleep(COMPLETE).await;
        }
    }

    /// The same, once. The caller holds the lock of [`change_members`](Engine::change_members).
    pub(crate) async fn complete_change(&self) -> Result<(), Refused> {
        match self.half_changed() {
            Some(after) => self.set_voters(after).await,
            None => Ok(()),
        }
    }

    /// The voters to whom a change leads that is half made, if this node leads.
    fn half_changed(&self) -> Option<BTreeSet<NodeId>> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let steps = metrics.membership_config.membership().get_joint_config();
        match &steps[..] {
            [_, .., after] if role(&metrics) == Role::Leader => Some(after.clone()),
            _ => None,
        }
    }

    /// Asks `to` to lead (rule R22). It may decline.
    pub async fn hand_over(&self, to: NodeId) {
        let _ = self.raft.trigger().transfer_leader(to).await;
    }

    /// A new snapshot is on disk: entries that it contains need not stay in memory, except for the last `keep`.
    pub async fn snapshot_made(&self, keep: u64) {
        let before = self.progress().snapshot;
        let _ = self.raft.trigger().snapshot().await;
        let mut watch = self.watch();
        let known =
            async { while self.progress().snapshot == before && watch.changed().await.is_ok() {} };
        // It may be the one that is known already.
        let _ = R::timeout(Duration::from_secs(1), known).await;
        if let Some(snapshot) = self.progress().snapshot {
            let to = snapshot.index.saturating_sub(keep);
            let _ = self.raft.trigger().purge_log(to).await;
        }
    }

    /// Ends the engine. Another node may still commit entries that were proposed and not committed.
    pub async fn stop(&self) {
        let _ = self.raft.shutdown().await;
    }
}

/// See [`Engine::watch`].
pub struct EngineWatch<R: AsyncRuntime>(WatchReceiverOf<Types<R>, RaftMetrics<Types<R>>>);

impl<R: AsyncRuntime> EngineWatch<R> {
    /// Returns at the next change after the last one that was seen.
    ///
    /// # Errors
    /// When the engine has ended.
    pub async fn changed(&mut self) -> Result<(), NotCommitted> {
        self.0.changed().await.map_err(ended)
    }
}

/// See [`Engine::watch_leader`].
pub struct LeaderWatch<R: AsyncRuntime> {
    shown: WatchReceiverOf<Types<R>, RaftMetrics<Types<R>>>,
    server: WatchReceiverOf<Types<R>, RaftServerMetrics<Types<R>>>,
    /// A change was seen and not reported yet.
    is_news: bool,
}

impl<R: AsyncRuntime> LeaderWatch<R> {
    /// Returns at the next change after the last one that was seen. Nothing is lost when it is given up.
    ///
    /// # Errors
    /// When the engine has ended.
    pub async fn changed(&mut self) -> Result<(), NotCommitted> {
        if !self.is_news {
            self.server.changed().await.map_err(ended)?;
            self.is_news = true;
        }
        // The engine shows it here first, and a moment later elsewhere.
        while !self.is_shown() {
            self.shown.changed().await.map_err(ended)?;
        }
        self.is_news = false;
        Ok(())
    }

    fn is_shown(&self) -> bool {
        let (server, shown) = (self.server.borrow_watched(), self.shown.borrow_watched());
        (server.vote, server.state, server.current_leader)
            == (shown.vote, shown.state, shown.current_leader)
            && server.membership_config == shown.membership_config
    }
}

fn ended(_: impl std::fmt::Display) -> NotCommitted {
    NotCommitted::Stopped("the engine has ended".into())
}
