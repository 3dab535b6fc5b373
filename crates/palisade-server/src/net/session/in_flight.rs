//! Counts the operations and bytes that a session has in flight, until their replies have left.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::sync::Arc;
use std::task::Context;

use palisade_pipeline::{Answer, Request};

use crate::net::budget::{BudgetShare, OPERATION_BYTES, SessionBudget};
use crate::net::gate::{Permitted, VisibleParts};
use crate::net::shares::Used;

/// Accepted operations whose replies have not left, and the memory that they take.
pub(super) struct InFlight {
    operations: usize,
    /// The operations that need state until their answer arrives, by id: none without rules, quotas, waits and sets.
    kept: HashMap<u64, PendingReplies>,
    /// The bytes that acquires of several locks take beyond those of an operation.
    set_bytes: usize,
    page: NextPage,
    /// The operations whose replies are in the frame being sent.
    leaving: usize,
    /// The bytes of a large frame that is not complete yet.
    arriving: usize,
    share: BudgetShare,
}

/// The state of the operations with one id until their answers arrive.
#[derive(Default)]
struct PendingReplies {
    /// Filters the answer for the client; only with rules, and then ids are unique.
    view: Option<VisibleParts>,
    /// Their use of quotas and waits.
    used: Vec<Used>,
    /// Their part of [`InFlight::set_bytes`].
    set_bytes: usize,
}

/// The page of a listing, which is made when the previous one has left.
#[derive(Default)]
struct NextPage {
    /// Its maximum size in bytes; 0 if none is being made.
    bytes: usize,
    /// The id of its operation.
    id: u64,
    /// Whether it is in the frame being sent.
    leaves: bool,
}

impl InFlight {
    pub(super) fn new(budget: &Arc<SessionBudget>) -> InFlight {
        InFlight {
            operations: 0,
            kept: HashMap::new(),
            set_bytes: 0,
            page: NextPage::default(),
            leaving: 0,
            arriving: 0,
            share: BudgetShare::new(budget),
        }
    }

    fn bytes(&self) -> usize {
        self.operations * OPERATION_BYTES + self.set_bytes + self.page.bytes + self.arriving
    }

    /// Whether there is less than this.
    pub(super) fn is_below(&self, operations: usize, bytes: usize) -> bool {
        self.operations < operations && self.bytes() < bytes
    }

    /// Whether there is memory for a frame that announces this many bytes. If not, the task is woken when another try
    /// may succeed.
    pub(super) fn may_arrive(&mut self, bytes: usize, cx: &Context<'_>) -> bool {
        self.arriving = if bytes > SMALL_FRAME { bytes } else { 0 };
        self.share.hold(self.bytes(), cx)
    }

    /// Whether there is memory for this many more operations.
    pub(super) fn may_take(&mut self, operations: usize, cx: &Context<'_>) -> bool {
        self.share
            .hold(self.bytes() + operations * OPERATION_BYTES, cx)
    }

    /// A frame with this many operations is decoded.
    pub(super) fn arrived(&mut self, operations: usize) {
        self.arriving = 0;
        self.operations += operations;
    }

    /// No more frames arrive.
    pub(super) fn close(&mut self) {
        self.arriving = 0;
    }

    /// Whether an operation with this id has an answer to come that not everybody may see.
    pub(super) fn has_view(&self, id: u64) -> bool {
        self.kept.get(&id).is_some_and(|kept| kept.view.is_some())
    }

    /// Stores a permitted operation's quota use and its caller's view until the answer arrives.
    pub(super) fn keep(&mut self, id: u64, permitted: &mut Permitted) {
        let used = permitted.take_used();
        let set_bytes = match permitted.request() {
            Request::Acquire(wish) => wish.also.len() * OPERATION_BYTES,
            Request::Listen(grants) => grants.len() * OPERATION_BYTES,
            _ => 0,
        };
        let view = permitted.take_view();
        if used.is_nothing() && set_bytes == 0 && view.is_none() {
            return;
        }
        let kept = self.kept.entry(id).or_default();
        if !used.is_nothing() {
            kept.used.push(used);
        }
        kept.set_bytes += set_bytes;
        self.set_bytes += set_bytes;
        kept.view = view.or(kept.view.take());
    }

    /// An operation has its answer, or will get none: frees its quota use, and returns its caller's view.
    pub(super) fn settle(&mut self, id: u64, answer: Option<&Answer>) -> Option<VisibleParts> {
        // Without rules, quotas, waits and sets there is nothing to look up.
        if self.kept.is_empty() {
            return None;
        }
        let Entry::Occupied(mut entry) = self.kept.entry(id) else {
            return None;
        };
        let kept = entry.get_mut();
        if let (Some(used), Some(answer)) = (kept.used.pop(), answer) {
            used.settle(answer);
        }
        self.set_bytes -= mem::take(&mut kept.set_bytes);
        let view = kept.view.take();
        if kept.used.is_empty() {
            entry.remove();
        }
        view
    }

    /// Begins the page of a listing of so many locks if the previous one has left and there is memory for it.
    pub(super) fn begin_page(&mut self, id: u64, limit: usize, cx: &Context<'_>) -> bool {
        let bytes = limit * OPERATION_BYTES;
        if self.page.bytes > 0 || !self.share.hold(self.bytes() + bytes, cx) {
            return false;
        }
        (self.page.bytes, self.page.id) = (bytes, id);
        true
    }

    /// Whether this is the operation whose page is being made.
    pub(super) fn is_page(&self, id: u64) -> bool {
        self.page.bytes > 0 && id == self.page.id
    }

    /// Whether the frame being sent takes no more replies.
    pub(super) fn frame_is_full(&self) -> bool {
        self.leaving >= FRAME_REPLIES
    }

    /// A reply is in the frame being sent.
    pub(super) fn leaves(&mut self) {
        self.leaving += 1;
    }

    /// A page is in the frame being sent.
    pub(super) fn page_leaves(&mut self) {
        self.page.leaves = true;
    }

    /// The replies of a frame have left: gives their memory back. Whether that were the last ones.
    pub(super) fn sent(&mut self) -> bool {
        if self.leaving == 0 {
            return false;
        }
        self.operations = self.operations.saturating_sub(self.leaving);
        self.leaving = 0;
        if mem::take(&mut self.page.leaves) {
            self.page.bytes = 0;
        }
        self.share.settle(self.bytes());
        if self.kept.is_empty() && self.kept.capacity() > KEPT_ROOM {
            self.kept = HashMap::new();
        }
        self.operations == 0
    }
}

/// A frame up to this size is not charged while it arrives.
const SMALL_FRAME: usize = 16 << 10;

/// A table with room for more operations does not outlast them.
const KEPT_ROOM: usize = 64;

/// The most replies in one frame. A full frame, or a page of a listing (which ends its frame), stays well under the
/// 4 MiB that gRPC clients accept by default.
const FRAME_REPLIES: usize = 1_024;
