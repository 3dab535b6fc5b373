//! What can go wrong besides a rejection.

use palisade_core::fence::FloorTooLow;
use redis::RedisError;

/// A fault at a fence in Redis, by what it left behind.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A name that is no name. Nothing was sent.
    #[error(transparent)]
    Invalid(#[from] crate::name::Invalid),
    /// Something else that cannot be meant. Nothing was sent.
    #[error("{0}")]
    Argument(String),
    /// Redis refused, or nobody knows: the connection broke after the script was sent. Repeat it under
    /// the same sequence number.
    #[error("Redis: {0}")]
    Redis(#[from] RedisError),
    /// The command failed, for example at a key of another type. Nothing took effect, nor was the fence
    /// raised.
    #[error("the command failed, and nothing was written: {0}")]
    Command(String),
    /// The user's own script failed. **What it did before stands**, and so does the raised fence: Redis
    /// takes nothing back. A repeat of a numbered write gets this same answer.
    #[error("the script failed; what it did before that stands: {0}")]
    Script(String),
    /// There is data and no fence state (rule F7). Nothing took effect. An operator re-arms the
    /// resource with a floor; so does who puts a fence on data that was there before.
    #[error(
        "{resource}: there is data without its fence state; an operator must re-arm the fence with a floor"
    )]
    Lost {
        /// The resource.
        resource: String,
    },
    /// A write without a token where no token has been yet: it would leave data without its fence.
    /// Nothing took effect.
    #[error("{resource}: the first write must carry a fencing token")]
    Unarmed {
        /// The resource.
        resource: String,
    },
    /// A mark that no fence can have written. Nothing took effect.
    #[error("{resource}: {holds:?} is no fence state")]
    Corrupt {
        /// The resource.
        resource: String,
        /// What is there.
        holds: String,
    },
    /// The server may throw marks away.
    #[error(
        "maxmemory-policy is {policy}: it evicts keys that never expire, fences among them; \
        set noeviction or a volatile-* policy"
    )]
    Evicting {
        /// The setting.
        policy: String,
    },
    /// The server is a replica: what it says may be old.
    #[error("this server is a replica; a fence needs the primary")]
    Replica,
    /// A re-arming that would lower the fence. Nothing took effect.
    #[error(transparent)]
    FloorTooLow(#[from] FloorTooLow),
    /// An answer that the script does not give.
    #[error("Redis answered what the fence's script never says: {0}")]
    Answer(String),
}
