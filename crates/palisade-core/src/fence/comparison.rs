//! The textbook fence, for comparison. Only [`Mode::Textbook`](super::Mode) uses it.

use super::{FenceState, Mark, Op, Pass, Reject, Verdict, Written};

/// Checks and raises only with a write: refuses `token < highest` and admits everything else.
///
/// It ignores claims, reads, sequence numbers and names, so it admits a delayed write of the old holder until the new
/// holder's first *write*.
pub(super) fn textbook(state: &FenceState, pass: Pass<'_>, op: Op) -> Verdict {
    match (op, state.highest()) {
        (Op::Claim | Op::Read, _) => Verdict::Admit(None),
        (Op::Write(_), Some(highest)) if pass.token < highest => Verdict::Reject(Reject::Stale {
            presented: pass.token,
            highest,
        }),
        (Op::Write(_), _) => {
            let mark = Some(Mark {
                token: pass.token,
                written: Written::Unnumbered,
            });
            Verdict::Admit((state.mark != mark).then(|| FenceState {
                mark,
                ..FenceState::default()
            }))
        }
    }
}
