//! The engine's messages, as bytes over a [`Transport`].

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{SnapshotOf, VoteOf};
use openraft::{AsyncRuntime, OptionalSend, Raft, Snapshot, SnapshotMeta};

use super::convert;
use super::machine::ReplicatedMachine;
use super::types::Types;
use crate::entry::{LogId, Members, NodeId, Vote};
use crate::message::{Candidacy, Reply, Request};

/// The usual size of a message with entries for another node, or with a part of a snapshot; a single entry may be larger.
pub(crate) const MESSAGE_BYTES: usize = 1 << 20;

/// The way to another node: a message there, an answer back.
pub trait Transport: Clone + Send + Sync + 'static {
    /// Sends a message, and waits at most `within` for the answer.
    ///
    /// # Errors
    /// `ConnectionRefused` if the node cannot be reached at all: the engine then waits longer before it tries again.
    fn call(
        &self,
        to: NodeId,
        address: &str,
        message: Vec<u8>,
        within: Duration,
    ) -> impl Future<Output = io::Result<Vec<u8>>> + Send;
}

pub(super) struct Network<T> {
    transport: T,
    gate: Arc<VoteGate>,
}

impl<T: Transport> Network<T> {
    pub(super) fn new(transport: T, gate: Arc<VoteGate>) -> Network<T> {
        Network { transport, gate }
    }
}

/// Closed while a leader that hears no quorum sends nothing that renews the leases of its followers (rule R6). The engine
/// pauses its heartbeats in the same phases, but not the entries that it repeats because nobody acknowledged them.
///
/// ```text
///   quorum heard ──patience──► closed ──probe──► open ──probe──► closed ──► …
/// ```
pub(super) struct VoteGate {
    /// How long a quorum may be silent, and the length of a phase after that; `None` leaves the gate open.
    phases: Option<(Duration, Duration)>,
    /// How long ago a quorum was heard; nothing before the engine has started, and before a leader has heard one.
    heard: OnceLock<QuorumHeard>,
    /// Called when this node asks another one for its vote.
    asks_for_vote: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

type QuorumHeard = Box<dyn Fn() -> Option<Duration> + Send + Sync>;

impl VoteGate {
    pub(super) fn new(patience: Duration, probe: Option<Duration>) -> VoteGate {
        VoteGate {
            phases: probe.map(|probe| (patience, probe)),
            heard: OnceLock::new(),
            asks_for_vote: OnceLock::new(),
        }
    }

    pub(super) fn note_votes(&self, note: impl Fn() + Send + Sync + 'static) {
        let set = self.asks_for_vote.set(Box::new(note));
        assert!(set.is_ok(), "an engine notes its votes once");
    }

    pub(super) fn watch(&self, heard: impl Fn() -> Option<Duration> + Send + Sync + 'static) {
        let _ = self.heard.set(Box::new(heard));
    }

    pub(super) fn is_closed(&self) -> bool {
        let heard = self.heard.get().and_then(|heard| heard());
        let (Some((patience, probe)), Some(heard)) = (self.phases, heard) else {
            return false;
        };
        let beyond = heard.checked_sub(patience);
        beyond.is_some_and(|beyond| (beyond.as_nanos() / probe.as_nanos().max(1)).is_multiple_of(2))
    }
}

impl<R: AsyncRuntime, T: Transport> RaftNetworkFactory<Types<R>> for Network<T> {
    type Network = PeerNode<T>;

    async fn new_client(&mut self, target: NodeId, address: &String) -> PeerNode<T> {
        PeerNode {
            transport: self.transport.clone(),
            gate: Arc::clone(&self.gate),
            node: target,
            address: address.clone(),
        }
    }
}

/// One other node.
pub(super) struct PeerNode<T> {
    transport: T,
    gate: Arc<VoteGate>,
    node: NodeId,
    address: String,
}

impl<T: Transport> PeerNode<T> {
    async fn ask<R: AsyncRuntime>(
        &self,
        request: &Request,
        within: Duration,
    ) -> Result<Reply, RPCError<Types<R>>> {
        let renews = matches!(request, Request::Append { .. } | Request::Snapshot { .. });
        if renews && self.gate.is_closed() {
            let pause = io::Error::other("this leader hears no quorum, and pauses");
            return Err(RPCError::Unreachable(Unreachable::new(&pause)));
        }
        let message = request.encode();
        let answer = self
            .transport
            .call(self.node, &self.address, message, within);
        let answer = answer.await.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => RPCError::Unreachable(Unreachable::new(&error)),
            _ => RPCError::Network(NetworkError::new(&error)),
        })?;
        let reply = Reply::decode(&answer).map_err(|error| NetworkError::new(&error))?;
        match reply {
            Reply::Failed(why) => Err(NetworkError::from_string(why).into()),
            reply => Ok(reply),
        }
    }

    async fn ask_for_vote<R: AsyncRuntime>(
        &self,
        request: Request,
        option: RPCOption,
    ) -> Result<VoteResponse<Types<R>>, RPCError<Types<R>>> {
        if let Some(note) = self.gate.asks_for_vote.get() {
            note();
        }
        // The candidate asks nobody again before this is over.
        match self.ask::<R>(&request, option.hard_ttl()).await? {
            Reply::Vote {
                vote,
                last,
                granted,
            } => Ok(VoteResponse::new(
                convert::raft_vote(vote),
                last.map(convert::raft_log_id),
                granted,
            )),
            other => Err(unexpected::<R>(&other)),
        }
    }
}

fn unexpected<R: AsyncRuntime>(reply: &Reply) -> RPCError<Types<R>> {
    tracing::debug!(?reply, "an answer to another question");
    NetworkError::from_string("an answer to another question").into()
}

fn candidacy<R: AsyncRuntime>(request: VoteRequest<Types<R>>) -> Candidacy {
    Candidacy {
        vote: convert::vote(request.vote),
        last: request.last_log_id.map(convert::log_id),
        transfer: request.leadership_transfer,
    }
}

impl<R: AsyncRuntime, T: Transport> RaftNetworkV2<Types<R>> for PeerNode<T> {
    type SnapshotData = Arc<[u8]>;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types<R>>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types<R>>, RPCError<Types<R>>> {
        let request = Request::Append {
            vote: convert::vote(request.vote),
            previous: request.prev_log_id.map(convert::log_id),
            commit: request.leader_commit.map(convert::log_id),
            entries: request
                .entries
                .into_iter()
                .map(convert::entry::<R>)
                .collect(),
        };
        match self.ask::<R>(&request, option.soft_ttl()).await? {
            Reply::Appended => Ok(AppendEntriesResponse::Success),
            Reply::AppendedTo(last) => Ok(AppendEntriesResponse::PartialSuccess(
                last.map(convert::raft_log_id),
            )),
            Reply::Conflict => Ok(AppendEntriesResponse::Conflict),
            Reply::HigherVote(vote) => {
                Ok(AppendEntriesResponse::HigherVote(convert::raft_vote(vote)))
            }
            other => Err(unexpected::<R>(&other)),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types<R>>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types<R>>, RPCError<Types<R>>> {
        self.ask_for_vote::<R>(Request::Vote(candidacy::<R>(request)), option)
            .await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types<R>>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types<R>>, RPCError<Types<R>>> {
        self.ask_for_vote::<R>(Request::PreVote(candidacy::<R>(request)), option)
            .await
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<Types<R>>,
        snapshot: SnapshotOf<Types<R>, Arc<[u8]>>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types<R>>, StreamingError<Types<R>>> {
        let Snapshot { meta, snapshot } = snapshot;
        let vote = convert::vote(vote);
        let mut cancel = std::pin::pin!(cancel);
        let total = snapshot.len() as u64;
        let mut offset = 0;
        loop {
            let end = snapshot.len().min(offset + MESSAGE_BYTES);
            let request = Request::Snapshot {
                vote,
                applied: meta.last_log_id.map(convert::log_id),
                members: (
                    meta.last_membership.log_id().map(convert::log_id),
                    convert::members(meta.last_membership.membership()),
                ),
                offset: offset as u64,
                total,
                part: snapshot[offset..end].into(),
            };
            let ask = std::pin::pin!(self.ask::<R>(&request, option.soft_ttl()));
            let reply = match futures_util::future::select(ask, &mut cancel).await {
                futures_util::future::Either::Left((reply, _)) => reply?,
                futures_util::future::Either::Right((closed, _)) => return Err(closed.into()),
            };
            let Reply::Snapshot(theirs) = reply else {
                return Err(unexpected::<R>(&reply).into());
            };
            offset = end;
            if offset == snapshot.len() || theirs != vote {
                return Ok(SnapshotResponse::new(convert::raft_vote(theirs)));
            }
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types<R>>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types<R>>, RPCError<Types<R>>> {
        let request = Request::Transfer {
            from: convert::vote(*request.from_leader()),
            to: *request.to_node_id(),
            last: request.last_log_id().copied().map(convert::log_id),
        };
        match self.ask::<R>(&request, option.soft_ttl()).await? {
            Reply::Transfer(true) => Ok(Ok(())),
            Reply::Transfer(false) => {
                Err(NetworkError::from_string("the node did not take over").into())
            }
            other => Err(unexpected::<R>(&other)),
        }
    }
}

/// A snapshot that is being received. There is one at a time: one leader sends one.
#[derive(Default)]
pub(super) struct Incoming {
    part: Mutex<Option<Receiving>>,
}

struct Receiving {
    vote: Vote,
    applied: Option<LogId>,
    bytes: Vec<u8>,
}

impl Incoming {
    pub(super) async fn answer<R: AsyncRuntime>(
        &self,
        raft: &Raft<Types<R>, ReplicatedMachine>,
        request: Request,
    ) -> Reply {
        match request {
            Request::Append {
                vote,
                previous,
                entries,
                commit,
            } => {
                let answer = raft.append_entries(AppendEntriesRequest {
                    vote: convert::raft_vote(vote),
                    prev_log_id: previous.map(convert::raft_log_id),
                    leader_commit: commit.map(convert::raft_log_id),
                    entries: entries.into_iter().map(convert::raft_entry::<R>).collect(),
                });
                match answer.await {
                    Ok(AppendEntriesResponse::Success) => Reply::Appended,
                    Ok(AppendEntriesResponse::PartialSuccess(last)) => {
                        Reply::AppendedTo(last.map(convert::log_id))
                    }
                    Ok(AppendEntriesResponse::Conflict) => Reply::Conflict,
                    Ok(AppendEntriesResponse::HigherVote(vote)) => {
                        Reply::HigherVote(convert::vote(vote))
                    }
                    Err(error) => Reply::Failed(error.to_string()),
                }
            }
            Request::Vote(candidacy) => voted::<R, _>(raft.vote(request_vote(candidacy)).await),
            Request::PreVote(candidacy) => {
                voted::<R, _>(raft.pre_vote(request_vote(candidacy)).await)
            }
            Request::Snapshot {
                vote,
                applied,
                members,
                offset,
                total,
                part,
            } => match self.take_in(vote, applied, offset, total, &part) {
                Ok(None) => Reply::Snapshot(vote),
                Ok(Some(whole)) => install(raft, vote, applied, members, whole).await,
                Err(why) => Reply::Failed(why.into()),
            },
            Request::Transfer { from, to, last } => {
                let request = TransferLeaderRequest::new(
                    convert::raft_vote(from),
                    to,
                    last.map(convert::raft_log_id),
                );
                match raft.handle_transfer_leader(request).await {
                    Ok(answer) => Reply::Transfer(answer.is_ok()),
                    Err(error) => Reply::Failed(error.to_string()),
                }
            }
        }
    }

    /// Takes a part in; gives the whole snapshot with the last one.
    fn take_in(
        &self,
        vote: Vote,
        applied: Option<LogId>,
        offset: u64,
        total: u64,
        part: &[u8],
    ) -> Result<Option<Vec<u8>>, &'static str> {
        let mut receiving = self.part.lock().unwrap_or_else(PoisonError::into_inner);
        if offset == 0 {
            let bytes = Vec::new();
            *receiving = Some(Receiving {
                vote,
                applied,
                bytes,
            });
        }
        let Some(current) = &mut *receiving else {
            return Err("a part of a snapshot that was not begun");
        };
        let begun = (current.vote, current.applied) == (vote, applied);
        if !begun || current.bytes.len() as u64 != offset {
            return Err("a part of a snapshot that does not follow the one before");
        }
        // Nothing would end the transfer otherwise.
        if part.is_empty() || total - offset.min(total) < part.len() as u64 {
            return Err("a part of a snapshot that is longer than the snapshot, or empty");
        }
        current.bytes.extend_from_slice(part);
        let whole = current.bytes.len() as u64 >= total;
        Ok(whole
            .then(|| receiving.take())
            .flatten()
            .map(|all| all.bytes))
    }
}

async fn install<R: AsyncRuntime>(
    raft: &Raft<Types<R>, ReplicatedMachine>,
    vote: Vote,
    applied: Option<LogId>,
    members: (Option<LogId>, Members),
    bytes: Vec<u8>,
) -> Reply {
    let snapshot = Snapshot {
        meta: SnapshotMeta {
            last_log_id: applied.map(convert::raft_log_id),
            last_membership: convert::stored(members),
        },
        snapshot: Arc::from(bytes),
    };
    let installed = raft.install_full_snapshot(convert::raft_vote(vote), snapshot);
    match installed.await {
        Ok(response) => Reply::Snapshot(convert::vote(response.vote)),
        Err(error) => Reply::Failed(error.to_string()),
    }
}

fn request_vote<R: AsyncRuntime>(candidacy: Candidacy) -> VoteRequest<Types<R>> {
    VoteRequest {
        vote: convert::raft_vote(candidacy.vote),
        last_log_id: candidacy.last.map(convert::raft_log_id),
        leadership_transfer: candidacy.transfer,
    }
}

fn voted<R: AsyncRuntime, E: std::fmt::Display>(
    answer: Result<VoteResponse<Types<R>>, E>,
) -> Reply {
    match answer {
        Ok(answer) => Reply::Vote {
            vote: convert::vote(answer.vote),
            last: answer.last_log_id.map(convert::log_id),
            granted: answer.vote_granted,
        },
        Err(error) => Reply::Failed(error.to_string()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::entry::Leader;

    #[test]
    fn a_snapshot_is_taken_in_only_in_order_and_up_to_its_length() {
        let vote = Vote {
            leader: Leader::default(),
            committed: true,
        };
        let incoming = Incoming::default();
        let take = |offset, total, part: &[u8]| incoming.take_in(vote, None, offset, total, part);
        assert!(take(3, 6, b"def").is_err(), "it was not begun");
        assert_eq!(take(0, 6, b"abc"), Ok(None));
        assert!(take(2, 6, b"cde").is_err(), "it does not follow");
        assert!(take(3, 6, b"").is_err(), "it is empty");
        assert!(take(3, 6, b"defg").is_err(), "it is too long");
        assert_eq!(take(3, 6, b"def"), Ok(Some(b"abcdef".to_vec())));
        assert!(take(6, 6, b"g").is_err(), "it is over");
    }
}
