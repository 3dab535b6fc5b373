//! The operations of every fenced resource.

use std::future::Future;

use palisade_core::fence::{Pass, Sequence};

use crate::admitted::Admitted;
use crate::error::Result;

/// One resource under a fence: keys and their bytes, guarded together by one token.
///
/// Every operation is one atomic step at the resource, check and effect together (rule F1), and is answered
/// when it is as durable as the resource can make it. A holder **claims first**: only then is the data that
/// it reads still current when it writes (rule F2); see [`enter`](crate::enter).
///
/// # Errors
/// Every operation but [`observe`](Fence::observe) may answer [`Error::Rejected`](crate::Error::Rejected): nothing changed,
/// and the holder stops. The [`kind`](crate::Error::kind) of any other error says what to do; where it is unknown whether a
/// write took effect, repeating it under the same [`Sequence`] is safe.
pub trait Fence: Send + Sync {
    /// Raises the fence to this token. From then on no lower token is admitted.
    fn claim(&self, pass: Pass<'_>) -> impl Future<Output = Result<Admitted<()>>> + Send;

    /// Reads in order to write (rule F3): a stale token is rejected; a higher token is claimed first. `None`:
    /// there is nothing under this key.
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

    /// A write by code without a token. Once the resource is fenced, it is
    /// [`Reject::Tokenless`](palisade_core::fence::Reject::Tokenless) (rule F9). Before that, the resource
    /// decides whether it is allowed.
    fn write_tokenless(
        &self,
        key: &str,
        change: Change<'_>,
    ) -> impl Future<Output = Result<Admitted<()>>> + Send;

    /// A plain read for observers: never rejected, no proof of anything. A write must not depend on it.
    fn observe(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send;
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
