//! The operations of every fenced resource.

use std::error::Error;
use std::future::Future;

use palisade_core::fence::{Pass, Sequence};

use crate::checked::Checked;

/// One resource under a fence: keys and their bytes, guarded together by one token.
///
/// Every operation is one atomic step at the resource, check and effect together (rule F1), and is answered
/// when it is as durable as the resource can make it. A holder **claims first**: only then is the data that
/// it reads still current when it writes (rule F2); see [`enter`](crate::enter).
///
/// A method that returns `Err` met a fault. It is then unknown whether a write took effect, unless the error
/// says otherwise, and repeating it under the same [`Sequence`] is safe.
pub trait Fence: Send + Sync {
    /// The faults of this resource, which are not rejections.
    type Error: Error + Send + Sync + 'static;

    /// Raises the fence to this token.
    fn claim(
        &self,
        pass: Pass<'_>,
    ) -> impl Future<Output = Result<Checked<()>, Self::Error>> + Send;

    /// Reads in order to write (rule F3): a stale token is rejected; a higher token is claimed first. `None`:
    /// there is nothing under this key.
    fn read(
        &self,
        pass: Pass<'_>,
        key: &str,
    ) -> impl Future<Output = Result<Checked<Option<Vec<u8>>>, Self::Error>> + Send;

    /// Changes the bytes under a key; a higher token is claimed in the same step.
    fn write(
        &self,
        pass: Pass<'_>,
        write: Write<'_>,
    ) -> impl Future<Output = Result<Checked<()>, Self::Error>> + Send;

    /// A write by code without a token. Once the resource is fenced, it is
    /// [`Reject::Tokenless`](palisade_core::fence::Reject::Tokenless) (rule F9). Before that, the resource
    /// decides whether it is allowed.
    fn write_tokenless(
        &self,
        key: &str,
        change: Change<'_>,
    ) -> impl Future<Output = Result<Checked<()>, Self::Error>> + Send;

    /// A plain read for observers: never rejected, no proof of anything. A write must not depend on it.
    fn observe(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, Self::Error>> + Send;
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The key to change.
    pub key: &'a str,
    /// The change.
    pub change: Change<'a>,
    /// Its number among the writes of this grant, which makes it safe to repeat (rule F5).
    pub sequence: Option<Sequence>,
}

impl<'a> Write<'a> {
    /// Creates a write without a number.
    #[must_use]
    pub const fn new(key: &'a str, change: Change<'a>) -> Write<'a> {
        Write {
            key,
            change,
            sequence: None,
        }
    }

    /// Returns the same write with a number.
    #[must_use]
    pub const fn numbered(self, sequence: Sequence) -> Write<'a> {
        Write {
            sequence: Some(sequence),
            ..self
        }
    }
}

/// The effect of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Replaces the bytes under the key with these.
    Put(&'a [u8]),
    /// Appends these bytes to the existing ones.
    Append(&'a [u8]),
    /// Deletes the key. Deleting a missing key is [`Reject::Missing`](palisade_core::fence::Reject::Missing)
    /// (rule F8).
    Delete,
}
