//! The engine's errors, as sentences. Its own texts are for its developers: they are logged at debug level only.

use openraft::AsyncRuntime;
use openraft::errors::{
    ChangeMembershipError, ClientWriteError, Fatal, InitializeError, RaftError,
};

use super::Refused;
use super::types::Types;

/// Why the engine has ended.
pub(super) fn ended<R: AsyncRuntime>(fatal: &Fatal<Types<R>>) -> String {
    tracing::debug!(error = %fatal, "the engine has ended");
    match fatal {
        Fatal::StorageError(_) => "the log of this node failed; its messages say how",
        Fatal::Panicked => {
            "the engine failed by itself; please report that, with the messages of this node"
        }
        Fatal::Stopped => "the engine has ended",
    }
    .to_owned()
}

/// Why no cluster was formed.
pub(super) fn not_formed<R: AsyncRuntime>(
    error: RaftError<Types<R>, InitializeError<Types<R>>>,
) -> Refused {
    Refused::Because(match &error {
        RaftError::APIError(InitializeError::NotAllowed(_)) => {
            "this node belongs to a cluster already".to_owned()
        }
        RaftError::APIError(InitializeError::NotInMembers(_)) => {
            "this node is not among the first members".to_owned()
        }
        RaftError::Fatal(fatal) => ended(fatal),
    })
}

/// Why the members did not change.
pub(super) fn not_changed<R: AsyncRuntime>(
    error: RaftError<Types<R>, ClientWriteError<Types<R>>>,
) -> Refused {
    tracing::debug!(%error, "the members did not change");
    let change = match &error {
        RaftError::Fatal(fatal) => return Refused::Because(ended(fatal)),
        RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => return Refused::NotLeader,
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => {
            return Refused::Because(
                "another node took over before the change was committed, and may still commit it: see `palisade cluster \
                 status`, and type the command again if it is not done"
                    .to_owned(),
            );
        }
        // Another leader changed them in between.
        RaftError::APIError(ClientWriteError::PreconditionFailed(_)) => return Refused::Busy,
        RaftError::APIError(ClientWriteError::ChangeMembershipError(change)) => change,
    };
    match change {
        ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_) => {
            Refused::Busy
        }
        ChangeMembershipError::EmptyMembership(_) => {
            Refused::Because("the last node cannot be removed; stop it instead".to_owned())
        }
        ChangeMembershipError::LearnerNotFound(missing) => Refused::Because(format!(
            "node {} is not a member; start it with --join, or add it first",
            missing.node_id
        )),
        ChangeMembershipError::UnsupportedMembershipTransition(_)
        | ChangeMembershipError::NodeMetadataChanged(_) => Refused::Because(
            "the members changed in between; see `palisade cluster status`, and type the command again".to_owned(),
        ),
    }
}
