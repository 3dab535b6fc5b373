//! The operations of every fenced resource.

use std::future::Future;

use palisade_core::fence::{Pass, Sequence};

use crate::admitted::Admitted;
use crate::error::Result;

/// One fenced resource: keys and their bytes, which one token guards together.
///
/// Every operation checks and takes effect in one atomic step at the resource (rule F1), and answers once it is as
/// durable as the resource can make it. A holder **claims first**, so that the data it reads is still current when it
/// writes (rule F2); see [`enter`](crate::enter).
///
/// # Errors
/// Every operation except [`observe`](Fence::observe) can return [`Error::Rejected`](crate::Error::Rejected): nothing
/// changed, and the holder must stop. For other errors, [`kind`](crate::Error::kind) says what to do. If it is unknown
/// whether a write took effect, you can safely repeat it under the same [`Sequence`].
pub trait Fence: Send + Sync {
    /// Raises the fence to this token. From then on no lower token is admitted.
    fn claim(&self, pass: Pass<'_>) -> impl Future<Output = Result<Admitted<()>>> + Send;

    /// Reads in order to write (rule F3): a stale token is rejected, and a higher token is claimed first. Returns
    /// `None` if the key does not exist.
    fn read(
        &self,
        pass: Pass<'_>,
        key: &str,
    ) -> impl Future<Output = Result<Admitted<Option<Vec<u8>>>>> + Send;

    /// Changes the bytes under a key; a higher token is claimed in the same step.
    fn write(
        &self,
        pass: Pass<'_>,
        write: Write<'_>,
    ) -> impl Future<Output = Result<Admitted<()>>> + Send;

    /// Writes without a token. Once the resource is fenced, this is
    /// [`Reject::Tokenless`](palisade_core::fence::Reject::Tokenless) (rule F9); before that, the resource decides
    /// whether to allow it.
    fn write_tokenless(
        &self,
        key: &str,
        change: Edit<'_>,
    ) -> impl Future<Output = Result<Admitted<()>>> + Send;

    /// Reads without a token, for observers. It is never rejected, and proves nothing: a write must not depend on it.
    fn observe(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send;
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The key to change.
    pub key: &'a str,
    /// The change.
    pub change: Edit<'a>,
    /// Its number among the writes of this grant, which makes a repeat safe (rule F5).
    pub sequence: Option<Sequence>,
}

impl<'a> Write<'a> {
    /// Creates a write without a number.
    #[must_use]
    pub const fn new(key: &'a str, change: Edit<'a>) -> Write<'a> {
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
pub enum Edit<'a> {
    /// Replaces the bytes under the key with these.
    Put(&'a [u8]),
    /// Appends these bytes to the existing ones.
    Append(&'a [u8]),
    /// Deletes the key. Deleting a missing key is [`Reject::Missing`](palisade_core::fence::Reject::Missing)
    /// (rule F8).
    Delete,
}
