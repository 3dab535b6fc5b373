//! The record that a resource stores for its fence, and the decision that every fence calls.

use alloc::vec::Vec;

use super::{FenceState, Mark, Mode, Op, Pass, Reject, Rule, Verdict, Written};

/// The state of a fence, with the data to recognise and answer a repeated write (rule F5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceRecord {
    /// The state that orders tokens and sequence numbers.
    pub state: FenceState,
    /// The digest of the write with the last sequence number. A repeat must have the same digest.
    pub digest: Option<u64>,
    /// The answer to that write, if the resource stores answers. The resource sets it in the step that performs the
    /// write.
    pub result: Option<Vec<u8>>,
}

/// Creates the record of a fence without numbered writes: re-armed, or read back.
impl From<FenceState> for FenceRecord {
    fn from(state: FenceState) -> FenceRecord {
        FenceRecord {
            state,
            digest: None,
            result: None,
        }
    }
}

impl FenceRecord {
    /// The record of a new fence.
    pub const EMPTY: FenceRecord = FenceRecord {
        state: FenceState {
            authority: None,
            lock: None,
            mark: None,
        },
        digest: None,
        result: None,
    };

    /// Judges one operation. Every record and operation has a verdict.
    ///
    /// A `pass` of `None` is a write without a token (rule F9), which only [`Mode::DangerUnfenced`] always admits.
    /// `digest` belongs to a numbered write. After [`Verdict::Repeat`], answer with [`FenceRecord::result`]. The caller
    /// must perform an admitted operation and store the next record **in one atomic, durable step** (rule F1), and only
    /// then answer.
    pub fn decide(
        &self,
        rule: Rule,
        pass: Option<Pass<'_>>,
        op: Op,
        digest: Option<u64>,
    ) -> Verdict<FenceRecord> {
        let verdict = match pass {
            Some(pass) => rule.decide(&self.state, pass, op),
            None if rule.mode == Mode::DangerUnfenced => Verdict::Admit(None),
            None => self.state.decide_tokenless_write(),
        };
        match (verdict, op) {
            (Verdict::Repeat, Op::Write(Some(last))) if self.digest != digest => {
                Verdict::Reject(Reject::SequenceReused { last })
            }
            (verdict, _) => verdict.map(|state| self.then(state, digest)),
        }
    }

    /// Returns the record after an admitted operation. Digest and result belong to the last number of the highest
    /// token: another number replaces them, and another token clears them.
    fn then(&self, state: FenceState, digest: Option<u64>) -> FenceRecord {
        match state.mark {
            mark if mark == self.state.mark => FenceRecord {
                state,
                digest: self.digest,
                result: self.result.clone(),
            },
            Some(Mark {
                written: Written::Through(_),
                ..
            }) => FenceRecord {
                digest,
                ..state.into()
            },
            _ => state.into(),
        }
    }
}
