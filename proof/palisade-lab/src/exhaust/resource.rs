//! The resource's verdict: the real rule, without the part that each weakness drops.

use palisade_core::Token;
use palisade_core::fence::{Mode, Op, Pass, Rule, Sequence, Verdict};

use super::state::Kept;
use super::weakness::Weakness;

/// The resource's decision on one operation.
pub(super) enum Decision {
    /// Executes it and keeps this fence state.
    Admit(Kept),
    /// Repeats its first answer.
    Repeat,
    Reject,
}

/// An operation at the resource.
#[derive(Clone, Copy)]
pub(super) enum ResourceOp {
    Claim,
    Read,
    /// A write, with its number within the grant and the resource.
    Write(u8),
}

pub(super) fn decide(
    weakness: Option<Weakness>,
    kept: Kept,
    token: Token,
    ask: ResourceOp,
) -> Decision {
    let state = kept.state();
    let mode = match weakness {
        Some(Weakness::NoFence | Weakness::NoFenceForSlots) => Mode::DangerUnfenced,
        Some(Weakness::TextbookFence | Weakness::StrictFence) => Mode::Textbook,
        _ => Mode::Claim,
    };
    let rule = Rule {
        mode,
        ..Rule::CLAIM
    };
    let op = match ask {
        ResourceOp::Claim => Op::Claim,
        ResourceOp::Read => Op::Read,
        ResourceOp::Write(_) if weakness == Some(Weakness::NoSequence) => Op::Write(None),
        ResourceOp::Write(number) => Op::Write(Sequence::new(number.into())),
    };
    if weakness == Some(Weakness::StrictFence)
        && matches!(ask, ResourceOp::Write(_))
        && state.highest() == Some(token)
    {
        return Decision::Reject;
    }
    match rule.decide(&state, Pass::new(token), op) {
        Verdict::Admit(Some(next)) if raises(weakness, ask) => Decision::Admit(Kept::of(&next)),
        Verdict::Admit(_) => Decision::Admit(kept),
        Verdict::Repeat => Decision::Repeat,
        Verdict::Reject(_) => Decision::Reject,
    }
}

fn raises(weakness: Option<Weakness>, ask: ResourceOp) -> bool {
    let silent = matches!(
        weakness,
        Some(Weakness::ReadWithoutRaising | Weakness::ClaimsOne)
    );
    !(silent && matches!(ask, ResourceOp::Read))
}
