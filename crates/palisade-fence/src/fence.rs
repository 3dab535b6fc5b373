//! What every fenced resource offers.

use std::error::Error;
use std::future::Future;

use palisade_core::fence::{Pass, Sequence};

use crate::checked::Checked;

/// One resource under a fence: keys and their bytes, guarded together by one token.
///
/// Every operation is one atomic step at the resource, check and effect together (rule F1), and is
/// answered when it is as durable as the resource can make it. A holder **claims first**: only then is
/// what it reads still true when it writes (rule F2); see [`enter`](crate::enter).
///
/// A method that returns `Err` met a fault; whether a write took effect is then unknown unless the
/// error says otherwise, and repeating it under the same [`Sequence`] is safe.
pub trait Fence: Send + Sync {
    /// What can go wrong besides a rejection.
    type Error: Error + Send + Sync + 'static;

    /// Raises the fence to this token.
    fn claim(
        &self,
        pass: Pass<'_>,
    ) -> impl Future<Output = Result<Checked<()>, Self::Error>> + Send;

    /// Reads in order to write (rule F3): rejected when stale; a higher token is claimed first.
    /// `None`: there is nothing under this key.
    fn read(
        &self,
        pass: Pass<'_>,
        key: &str,
    ) -> impl Future<Output = Result<Checked<Option<Vec<u8>>>, Self::Error>> + Send;

    /// Changes what is under a key; a higher token is claimed in the same step.
    fn write(
        &self,
        pass: Pass<'_>,
        write: Write<'_>,
    ) -> impl Future<Output = Result<Checked<()>, Self::Error>> + Send;

    /// A write by code that knows of no fence. Once the resource is fenced it is
    /// [`Reject::Tokenless`](palisade_core::fence::Reject::Tokenless) (rule F9); whether it works
    /// before that is the resource's own choice.
    fn write_tokenless(
        &self,
        key: &str,
        change: Change<'_>,
    ) -> impl Future<Output = Result<Checked<()>, Self::Error>> + Send;

    /// An observer's plain read: never rejected, proves nothing, must not feed a write.
    fn observe(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, Self::Error>> + Send;
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// What is changed.
    pub key: &'a str,
    /// How.
    pub change: Change<'a>,
    /// Its number among the writes of this grant: makes it safe to repeat (rule F5).
    pub sequence: Option<Sequence>,
}

impl<'a> Write<'a> {
    /// A write without a number.
    #[must_use]
    pub const fn new(key: &'a str, change: Change<'a>) -> Write<'a> {
        Write {
            key,
            change,
            sequence: None,
        }
    }

    /// The same write with a number.
    #[must_use]
    pub const fn numbered(self, sequence: Sequence) -> Write<'a> {
        Write {
            sequence: Some(sequence),
            ..self
        }
    }
}

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// The bytes under the key are these from now on.
    Put(&'a [u8]),
    /// These bytes come after what is there.
    Append(&'a [u8]),
    /// Nothing is there any more. Deleting what is not there is
    /// [`Reject::Missing`](palisade_core::fence::Reject::Missing) (rule F8).
    Delete,
}
