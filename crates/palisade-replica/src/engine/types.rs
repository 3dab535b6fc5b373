//! The engine's types.

use std::marker::PhantomData;
use std::sync::Arc;

use openraft::batch::InlineBatch;
use openraft::impls::leader_id_adv::LeaderId;
use openraft::impls::{ProgressResponder, Vote as RaftVote};
use openraft::{AsyncRuntime, RaftTypeConfig};

use crate::entry::NodeId;

/// A batch on its way through the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch(pub(super) Arc<[u8]>);

impl std::fmt::Display for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// The engine's types on a runtime `R`.
pub(crate) struct Types<R>(PhantomData<fn() -> R>);

/// The traits that the engine demands of any type, and that a phantom always has.
macro_rules! phantom {
    ($($name:ident $body:tt)*) => {$( impl<R> $name for Types<R> $body )*};
}

phantom! {
    Copy {}
    Clone { fn clone(&self) -> Self { *self } }
    Default { fn default() -> Self { Types(PhantomData) } }
    Eq {}
    PartialEq { fn eq(&self, _: &Self) -> bool { true } }
    Ord { fn cmp(&self, _: &Self) -> std::cmp::Ordering { std::cmp::Ordering::Equal } }
    PartialOrd {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> { Some(self.cmp(other)) }
    }
}

impl<R> std::fmt::Debug for Types<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Types")
    }
}

impl<R: AsyncRuntime> RaftTypeConfig for Types<R> {
    type D = Batch;
    type R = ();
    type NodeId = NodeId;
    type Node = String;
    type Term = u64;
    type LeaderId = LeaderId<u64, NodeId>;
    type Vote = RaftVote<LeaderId<u64, NodeId>>;
    type Payload = openraft::EntryPayload<Batch, NodeId, String>;
    type Entry = openraft::Entry<LeaderId<u64, NodeId>, Self::Payload>;
    type AsyncRuntime = R;
    type Responder<T>
        = ProgressResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::AnyError;
}
