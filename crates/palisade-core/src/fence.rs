//! The fence's decision: what a resource admits.
//!
//! ```text
//!   FenceRecord      ┐                           ┌ Admit    carry it out, store the next record, in one step
//!   Pass, Op, digest ├──► FenceRecord::decide ──►┼ Repeat   answer with the result recorded the first time
//!   Rule             ┘    (Rule::decide without  └ Reject   change nothing and say why
//!                          digest and result)
//! ```
//!
//! `vectors/fence.json` has the decision as data, for the implementations in other languages.
//!
//! The textbook check ("refuse a *write* below the highest seen") loses acknowledged updates: a
//! delayed write of the old holder may land between the new holder's read and its write. The cure is
//! to raise the fence **before the first read**, as HDFS's quorum journal does with
//! `newEpoch`, BookKeeper with the fencing read of ledger recovery and Kafka with producer epochs.
//! Here that is [`Op::Claim`], and every operation that carries a higher token claims implicitly.
//!
//! | presented | fence holds a lower token, or none | the same token | a higher token |
//! |---|---|---|---|
//! | claim, read | admit and raise | admit | reject: stale |
//! | write, no sequence number | admit and raise | admit | reject: stale |
//! | write, sequence number | admit and raise | higher: admit · equal: repeat · lower: reject | reject: stale |
//! | strict: second write | – | reject: already written | reject: stale |
//!
//! Nothing here does I/O or knows time: whether a lease has expired is the authority's
//! business. The fence orders, it does not enforce expiry.

mod comparison;
mod record;
#[cfg(test)]
mod tests;
mod verdict;

use core::fmt;

use crate::limits::restore_leap;
use crate::name::{AuthorityId, LockName};
use crate::token::Token;

pub use record::FenceRecord;
pub use verdict::{Reject, Verdict};

/// Position of a write among the writes of one grant, `0 ..= 2^53 - 1`; gaps are allowed.
///
/// With it (token, sequence number) is ordered lexicographically (rule F5): a late duplicate cannot
/// undo a later write of the same holder, and a retry gets the first answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

impl Sequence {
    /// The last sequence number: exact in JSON and SQL, like [`Token::MAX`].
    pub const MAX: Sequence = Sequence(Token::MAX.get());

    /// Takes a number from outside; `None` above [`Sequence::MAX`].
    #[must_use]
    pub const fn new(number: u64) -> Option<Sequence> {
        if number > Sequence::MAX.0 {
            None
        } else {
            Some(Sequence(number))
        }
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The state of a fence, kept in the same atomic, durable step as the data it guards (rules F1 and F4).
///
/// The default is a fence that nothing was ever presented to. It must not be used in place of a
/// state that was lost (rule F7): re-arm with [`FenceState::floor`] instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceState {
    /// The authority whose tokens count here, once one was named (rule F6).
    pub authority: Option<AuthorityId>,
    /// The lock whose tokens count here, once one was named (rule F6).
    pub lock: Option<LockName>,
    /// The highest token admitted; never goes down. `None`: not fenced yet.
    pub mark: Option<Mark>,
}

/// The highest token a fence has admitted, and what was written under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The highest token.
    pub token: Token,
    /// The write under that token.
    pub written: Written,
}

/// The write under the highest token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Nothing: it was claimed or read.
    Nothing,
    /// Something, never with a sequence number.
    Unnumbered,
    /// Something; this is the highest sequence number.
    Through(Sequence),
}

impl FenceState {
    /// A fence that refuses every token below `floor`: what an operator re-arms a resource with whose
    /// fence state was lost or restored (rule F7).
    ///
    /// The floor is a token the authority issued for this. It is not a holder's: the sequence numbers
    /// are forgotten, so a late duplicate of a write under the floor itself is admitted as if it were new.
    #[must_use]
    pub const fn floor(floor: Token) -> FenceState {
        let mark = Mark {
            token: floor,
            written: Written::Nothing,
        };
        FenceState {
            authority: None,
            lock: None,
            mark: Some(mark),
        }
    }

    /// The state that an operator re-arms a fence with (rule F7); what was written is forgotten.
    ///
    /// # Errors
    /// [`FloorTooLow`] if the fence stands above the floor: it would admit again whom it has refused.
    pub fn rearmed(&self, with: &Rearm<'_>) -> Result<FenceState, FloorTooLow> {
        match self.highest() {
            Some(highest) if highest > with.floor && with.lower_from != Some(highest) => {
                Err(FloorTooLow {
                    floor: with.floor,
                    highest,
                })
            }
            _ => Ok(FenceState {
                authority: with.authority.cloned(),
                ..FenceState::floor(with.floor)
            }),
        }
    }

    /// The highest token admitted, if any.
    #[must_use]
    pub fn highest(&self) -> Option<Token> {
        self.mark.map(|mark| mark.token)
    }

    /// The verdict on a write that carries no token (rule F9, sticky): admitted until the resource is
    /// fenced, rejected ever after. Reads without a token are an observer's and need no verdict.
    pub fn decide_tokenless_write(&self) -> Verdict {
        match self.highest() {
            None => Verdict::Admit(None),
            Some(highest) => Verdict::Reject(Reject::Tokenless { highest }),
        }
    }
}

/// How an operator re-arms a fence that was lost, restored or poisoned (rule F7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rearm<'a> {
    /// The lowest token admitted again: one that the authority issued for this, and not a holder's.
    pub floor: Token,
    /// The authority whose tokens count from now on; `None`: the first one that is named.
    pub authority: Option<&'a AuthorityId>,
    /// Lowers a poisoned fence (rule F10): the token at which it stands and which no authority issued,
    /// named as proof that the operator looked.
    pub lower_from: Option<Token>,
}

/// A fence is not re-armed below where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloorTooLow {
    /// The floor asked for.
    pub floor: Token,
    /// Where it stands.
    pub highest: Token,
}

impl core::error::Error for FloorTooLow {}

impl fmt::Display for FloorTooLow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FloorTooLow { floor, highest } = self;
        write!(
            f,
            "the fence stands at {highest}; with the floor {floor} it would admit holders it has refused"
        )
    }
}

/// A holder's proof at a resource: its token and, where it has them, the authority and the lock of that token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass<'a> {
    /// The fencing token of the grant.
    pub token: Token,
    /// The authority that issued it.
    pub authority: Option<&'a AuthorityId>,
    /// The lock it was issued for.
    pub lock: Option<&'a LockName>,
    /// Whether all of this was read from a sequencer whose signature was checked (rule Q3). No jump bound applies to it.
    pub signed: bool,
}

impl<'a> Pass<'a> {
    /// A bare token.
    #[must_use]
    pub const fn new(token: Token) -> Pass<'a> {
        Pass {
            token,
            authority: None,
            lock: None,
            signed: false,
        }
    }

    /// The same, from a sequencer whose signature was checked.
    #[must_use]
    pub const fn signed(self) -> Pass<'a> {
        Pass {
            signed: true,
            ..self
        }
    }

    /// Names the authority that issued the token.
    #[must_use]
    pub const fn by(self, authority: &'a AuthorityId) -> Pass<'a> {
        Pass {
            authority: Some(authority),
            ..self
        }
    }

    /// Names the lock that the token was issued for.
    #[must_use]
    pub const fn of(self, lock: &'a LockName) -> Pass<'a> {
        Pass {
            lock: Some(lock),
            ..self
        }
    }
}

/// A bare token, as [`Pass::new`].
impl From<Token> for Pass<'_> {
    fn from(token: Token) -> Self {
        Pass::new(token)
    }
}

/// An operation of a holder under its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Raise the fence, before the first read (rule F2).
    Claim,
    /// Read in order to write: a stale holder must not see, and a new one must fence first (rule F3).
    Read,
    /// Change the resource, with the write's number if the holder counts its writes.
    Write(Option<Sequence>),
}

/// How a fence decides: one rule for the whole life of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The kind of check.
    pub mode: Mode,
    /// How far one token may be above the highest (rule F10); the first token is a leap from zero.
    ///
    /// It keeps one unauthenticated request from shutting everybody out for ever. `None` lifts the
    /// bound, for tokens that came in a verified sequencer (Burrows 2006, "The Chubby lock service").
    pub max_jump: Option<u64>,
}

/// The checks that a fence makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The claim fence: every operation that carries a token checks and raises. The one to use.
    Claim,
    /// The claim fence with one write per grant, for records that are published once. A second write
    /// under the same token is [`Reject::AlreadyWritten`], never stale: it may be the holder's own.
    Strict,
    /// For comparison only: writes below the highest written token are refused, nothing else is
    /// checked. **Loses acknowledged updates.**
    Textbook,
    /// For comparison only: no check at all. **Corrupts data.**
    DangerUnfenced,
}

impl Rule {
    /// The claim fence with the default jump bound.
    pub const CLAIM: Rule = Rule {
        mode: Mode::Claim,
        max_jump: Some(DEFAULT_MAX_JUMP),
    };

    /// One write per grant, with the default jump bound.
    pub const STRICT: Rule = Rule {
        mode: Mode::Strict,
        max_jump: Some(DEFAULT_MAX_JUMP),
    };

    /// The same rule for tokens that came in a verified sequencer: any leap is believed (rule F10).
    #[must_use]
    pub const fn unbounded(self) -> Rule {
        Rule {
            max_jump: None,
            ..self
        }
    }

    /// Judges one operation by the state alone. Total: every state and every operation has a verdict. A repeat
    /// is recognised by its number; [`FenceRecord::decide`] compares the digest as well.
    pub fn decide(&self, state: &FenceState, pass: Pass<'_>, op: Op) -> Verdict {
        match self.mode {
            Mode::Claim | Mode::Strict => self.claim(state, pass, op),
            Mode::Textbook => comparison::textbook(state, pass, op),
            Mode::DangerUnfenced => Verdict::Admit(None),
        }
    }

    fn claim(&self, state: &FenceState, pass: Pass<'_>, op: Op) -> Verdict {
        if let Some(reject) = foreign(state, pass) {
            return Verdict::Reject(reject);
        }
        match state.mark {
            Some(mark) if pass.token < mark.token => Verdict::Reject(Reject::Stale {
                presented: pass.token,
                highest: mark.token,
            }),
            Some(mark) if pass.token == mark.token => match self.again(mark.written, op) {
                Ok(written) => admit(state, pass, written),
                Err(verdict) => verdict,
            },
            _ => self.raise(state, pass, op),
        }
    }

    /// A token above the highest: the jump bound is all that can stand in its way.
    fn raise(&self, state: &FenceState, pass: Pass<'_>, op: Op) -> Verdict {
        let highest = state.highest();
        let leap = pass.token.get() - highest.map_or(0, Token::get);
        match self.max_jump {
            Some(bound) if leap > bound && !pass.signed => {
                Verdict::Reject(Reject::Jump { highest, bound })
            }
            _ => admit(state, pass, Written::Nothing.then(op)),
        }
    }

    /// The highest token again: the same holder goes on, so only its own writes order it.
    fn again(&self, before: Written, op: Op) -> Result<Written, Verdict> {
        let Op::Write(number) = op else {
            return Ok(before);
        };
        match (before, number) {
            (Written::Through(last), Some(number)) if number == last => Err(Verdict::Repeat),
            (Written::Unnumbered | Written::Through(_), _) if self.mode == Mode::Strict => {
                Err(Verdict::Reject(Reject::AlreadyWritten))
            }
            (Written::Through(last), Some(number)) if number < last => {
                Err(Verdict::Reject(Reject::SequenceStale { last }))
            }
            _ => Ok(before.then(op)),
        }
    }
}

impl Written {
    /// What is written once `op` was admitted. An unnumbered write does not unlearn the last number.
    const fn then(self, op: Op) -> Written {
        match (self, op) {
            (before, Op::Claim | Op::Read) => before,
            (_, Op::Write(Some(number))) => Written::Through(number),
            (Written::Through(last), Op::Write(None)) => Written::Through(last),
            (_, Op::Write(None)) => Written::Unnumbered,
        }
    }
}

/// A token of another authority or lock is no number to compare (rule F6). Once a fence is bound,
/// naming none is refused too: such a token could be anybody's.
fn foreign(state: &FenceState, pass: Pass<'_>) -> Option<Reject> {
    match (&state.authority, &state.lock) {
        (Some(bound), _) if pass.authority != Some(bound) => Some(Reject::WrongAuthority {
            bound: bound.clone(),
        }),
        (_, Some(bound)) if pass.lock != Some(bound) => Some(Reject::WrongLock {
            bound: bound.clone(),
        }),
        _ => None,
    }
}

fn admit(state: &FenceState, pass: Pass<'_>, written: Written) -> Verdict {
    let binds = state.authority.is_none() && pass.authority.is_some()
        || state.lock.is_none() && pass.lock.is_some();
    let mark = Some(Mark {
        token: pass.token,
        written,
    });
    if state.mark == mark && !binds {
        return Verdict::Admit(None);
    }
    Verdict::Admit(Some(FenceState {
        authority: state.authority.as_ref().or(pass.authority).cloned(),
        lock: state.lock.as_ref().or(pass.lock).cloned(),
        mark,
    }))
}

/// The default of [`Rule::max_jump`], 2^46: what one restore of the authority leaps (see [`restore_leap`])
/// until 2032. It is a constant, because a fence knows no time.
///
/// A lie takes at most a 128th of the range. A resource that was not claimed between two restores, or for
/// the first time after the second, refuses its holders by it: set the bound to as many leaps, or re-arm.
pub const DEFAULT_MAX_JUMP: u64 = 1 << 46;

const _: () = {
    const IN_2027: u64 = 1_798_761_600_000;
    const IN_2032: u64 = 1_956_528_000_000;
    let (Some(now), Some(last)) = (restore_leap(IN_2027), restore_leap(IN_2032)) else {
        panic!("the epoch of restores is past");
    };
    assert!(
        last + last / 32 <= DEFAULT_MAX_JUMP,
        "an authority that was restored once, and has granted since, must be believed"
    );
    assert!(
        2 * last > DEFAULT_MAX_JUMP && 3 * now > DEFAULT_MAX_JUMP,
        "the default must not be wider than one restore needs"
    );
};
