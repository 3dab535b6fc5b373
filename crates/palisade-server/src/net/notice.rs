//! Notices, which watchers receive.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use palisade_core::Event;

/// A message to a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// One change of a lock it watches.
    Change(Event),
    /// Changes, of all locks, that it did not get because it was too slow or disconnected.
    Missed {
        /// Their number.
        missed: u64,
        /// The revision of the last of them.
        upto: u64,
    },
}

/// A batch for all watchers of the same locks at one revision.
#[derive(Debug)]
pub(super) struct NoticeBatch {
    pub(super) notices: Vec<Notice>,
    encoded: OnceLock<Bytes>,
}

impl NoticeBatch {
    pub(super) fn new(notices: Vec<Notice>) -> Arc<NoticeBatch> {
        Arc::new(NoticeBatch {
            notices,
            encoded: OnceLock::new(),
        })
    }

    /// The notices as bytes. The first caller encodes them; all others use the result.
    pub(super) fn encoded(&self, encode: impl FnOnce(&[Notice]) -> Bytes) -> Bytes {
        self.encoded.get_or_init(|| encode(&self.notices)).clone()
    }
}
