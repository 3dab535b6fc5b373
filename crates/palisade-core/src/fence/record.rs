//! The state of its fence that a resource stores, and the decision that every fence calls.

use alloc::vec::Vec;

use super::{FenceState, Mark, Mode, Op, Pass, Reject, Rule, Verdict, Written};

/// The state of a fence, and what its resource keeps to recognise and answer a repeated write (rule F5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceRecord {
    /// The state that orders tokens and sequence numbers.
    pub state: FenceState,
    /// The digest of the write with the last sequence number: a repeat must have the same digest.
    pub digest: Option<u64>,
    /// The answer to that write, if the resource keeps answers. The resource sets it in the step that carries
    /// the write out.
    pub result: Option<Vec<u8>>,
}

/// The record of a fence that nothing was written under: re-armed, or read back without numbered writes.
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
    /// The record of a fence that nothing was ever presented to.
    pub const EMPTY: FenceRecord = FenceRecord {
        state: FenceState {
            authority: None,
            lock: None,
            mark: None,
        },
        digest: None,
        result: None,
    };

    /// Judges one operation. Total: every record and every operation has a verdict.
    ///
    /// A `pass` of `None` is a write by code without a token (rule F9), which only [`Mode::DangerUnfenced`] always
    /// takes. `digest` belongs to a numbered write.
    /// After [`Verdict::Repeat`] the answer is [`FenceRecord::result`]. The caller carries out an admitted
    /// operation and stores the next record **in one atomic, durable step** (rule F1), and only then answers.
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

    /// Digest and result belong to the last number of the highest token: another number replaces them, another
    /// token forgets them.
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
