//! The resource's verdict: the real rule, and around it what each weakness leaves out.

use palisade_core::Token;
use palisade_core::fence::{Mode, Op, Pass, Rule, Sequence, Verdict};

use super::Weakness;
use super::state::Kept;

/// What the resource does with one operation.
pub(super) enum Decision {
    /// Carries it out and keeps this fence state.
    Admit(Kept),
    /// Answers what it answered the first time.
    Repeat,
    Reject,
}

/// What is asked of the resource.
#[derive(Clone, Copy)]
pub(super) enum Ask {
    Claim,
    Read,
    /// With the write's place among those of its grant.
    Write(u8),
}

pub(super) fn decide(weakness: Option<Weakness>, kept: Kept, token: Token, ask: Ask) -> Decision {
    let state = kept.state();
    let mode = match weakness {
        Some(Weakness::NoFence) => Mode::DangerUnfenced,
        Some(Weakness::TextbookFence | Weakness::StrictFence) => Mode::Textbook,
        _ => Mode::Claim,
    };
    let rule = Rule {
        mode,
        ..Rule::CLAIM
    };
    let op = match ask {
        Ask::Claim => Op::Claim,
        Ask::Read => Op::Read,
        Ask::Write(_) if weakness == Some(Weakness::NoSequence) => Op::Write(None),
        Ask::Write(number) => Op::Write(Sequence::new(number.into())),
    };
    if weakness == Some(Weakness::StrictFence)
        && matches!(ask, Ask::Write(_))
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

fn raises(weakness: Option<Weakness>, ask: Ask) -> bool {
    !(weakness == Some(Weakness::ReadWithoutRaising) && matches!(ask, Ask::Read))
}
