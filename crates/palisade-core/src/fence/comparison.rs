//! The fence of the textbooks, to compare with. Nothing but [`Mode::Textbook`](super::Mode) leads here.

use super::{FenceState, Mark, Op, Pass, Reject, Verdict, Written};

/// Only writes check, only writes raise: `token < highest` is refused, all else is admitted.
///
/// A claim proves nothing here, a read neither, and numbers and names are not looked at. A delayed
/// write of the old holder is therefore admitted until the new holder's first *write*.
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
