//! The fence's decision: the operations that a resource admits.
//!
//! ```text
//!   FenceRecord      ┐                           ┌ Admit    carry it out, store the next record, in one step
//!   Pass, Op, digest ├──► FenceRecord::decide ──►┼ Repeat   answer with the result recorded the first time
//!   Rule             ┘    (Rule::decide without  └ Reject   change nothing and say why
//!                          digest and result)
//! ```
//!
//! `vectors/fence.json` contains the decision as test vectors, for implementations in other languages.
//!
//! The textbook check ("refuse a *write* below the highest seen") loses acknowledged updates, because a delayed write
//! of the old holder can land between the new holder's read and its write. To prevent this, a holder raises the fence
//! **before its first read**, as HDFS's quorum journal does with `newEpoch`, BookKeeper with the fencing read of ledger
//! recovery, and Kafka with producer epochs. Here that is [`Op::Claim`]; every operation with a higher token also
//! claims.
//!
//! | presented | fence holds a lower token, or none | the same token | a higher token |
//! |---|---|---|---|
//! | claim, read | admit and raise | admit | reject: stale |
//! | write, no sequence number | admit and raise | admit | reject: stale |
//! | write, sequence number | admit and raise | higher: admit · equal: repeat · lower: reject | reject: stale |
//! | strict: second write | – | reject: already written | reject: stale |
//!
//! The fence does no I/O and has no clock. It orders tokens; the authority alone decides whether a lease has expired.

mod comparison;
mod record;
mod report;
#[cfg(test)]
mod tests;
mod verdict;

use core::fmt;

use crate::limits::restore_leap;
use crate::name::{AuthorityId, LockName};
use crate::token::Token;

pub use record::FenceRecord;
pub use report::{Late, Report, Reporter};
pub use verdict::{Reject, Verdict};

/// The number of a write among the writes of one grant, `0 ..= 2^53 - 1`; gaps are allowed.
///
/// Pairs of token and sequence number are ordered lexicographically (rule F5): a late duplicate cannot undo a later
/// write of the same holder, and a retry gets the first answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

impl Sequence {
    /// The last sequence number: exact in JSON and SQL, like [`Token::MAX`].
    pub const MAX: Sequence = Sequence(Token::MAX.get());

    /// Checks a number from outside; `None` above [`Sequence::MAX`].
    #[must_use]
    pub const fn new(number: u64) -> Option<Sequence> {
        if number > Sequence::MAX.0 {
            None
        } else {
            Some(Sequence(number))
        }
    }

    /// Returns the number.
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

/// The state of a fence, stored in the same atomic, durable step as the data that it guards (rules F1 and F4).
///
/// The default is a new fence, which admits any first token. Never use it to replace a lost state (rule F7); re-arm
/// with [`FenceState::floor`] instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceState {
    /// The only authority whose tokens are admitted, once one was named (rule F6).
    pub authority: Option<AuthorityId>,
    /// The only lock whose tokens are admitted, once one was named (rule F6).
    pub lock: Option<LockName>,
    /// The highest token admitted, which never goes down; `None` if the resource is not fenced yet.
    pub mark: Option<Mark>,
}

/// The highest token that a fence has admitted, and the last write under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The highest token.
    pub token: Token,
    /// The last write under that token.
    pub written: Written,
}

/// The last write under the highest token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// No write: the token only claimed or read.
    Nothing,
    /// Writes without sequence numbers only.
    Unnumbered,
    /// Writes up to this sequence number.
    Through(Sequence),
}

impl FenceState {
    /// Creates the state of a fence that refuses every token below `floor`. An operator re-arms a resource with it
    /// after its fence was lost or restored (rule F7).
    ///
    /// The authority must have issued `floor` for this purpose, not to a holder: the state contains no sequence
    /// numbers, so a late duplicate of a write under the floor itself would be admitted as new.
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

    /// Returns the re-armed state (rule F7). It forgets the writes under the former token.
    ///
    /// # Errors
    /// [`FloorTooLow`] if the fence's token is above the floor: it would admit tokens again that it has refused.
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

    /// Returns the highest token admitted, if any.
    #[must_use]
    pub fn highest(&self) -> Option<Token> {
        self.mark.map(|mark| mark.token)
    }

    /// Judges a write without a token (rule F9): it is admitted until the resource is fenced, and rejected ever after.
    /// A read without a token is an observer's and needs no verdict.
    pub fn decide_tokenless_write(&self) -> Verdict {
        match self.highest() {
            None => Verdict::Admit(None),
            Some(highest) => Verdict::Reject(Reject::Tokenless { highest }),
        }
    }
}

/// An operator's command to re-arm a fence that was lost, restored or poisoned (rule F7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rearm<'a> {
    /// The lowest token to admit. The authority must have issued it for this purpose, not to a holder.
    pub floor: Token,
    /// The only authority whose tokens are admitted from now on; `None` binds the fence to the first one named.
    pub authority: Option<&'a AuthorityId>,
    /// Lowers a poisoned fence (rule F10). It must equal the fence's token, which no authority issued, as proof that
    /// the operator has looked.
    pub lower_from: Option<Token>,
}

/// The error of re-arming a fence below its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloorTooLow {
    /// The requested floor.
    pub floor: Token,
    /// The fence's highest token.
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

/// The token that a holder presents to a fence, with its authority and its lock if they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass<'a> {
    /// The fencing token of the grant.
    pub token: Token,
    /// The authority that issued it.
    pub authority: Option<&'a AuthorityId>,
    /// The lock for which it was issued.
    pub lock: Option<&'a LockName>,
    /// Whether all of this comes from a sequencer with a verified signature (rule Q3). Such a pass has no jump bound.
    pub signed: bool,
    /// Where a late write is reported; a bare token reports nothing.
    pub report: Report<'a>,
}

impl<'a> Pass<'a> {
    /// Creates a pass from a bare token.
    #[must_use]
    pub const fn new(token: Token) -> Pass<'a> {
        Pass {
            token,
            authority: None,
            lock: None,
            signed: false,
            report: Report::NONE,
        }
    }

    /// Marks the pass as coming from a sequencer with a verified signature.
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

    /// Names the lock for which the token was issued.
    #[must_use]
    pub const fn of(self, lock: &'a LockName) -> Pass<'a> {
        Pass {
            lock: Some(lock),
            ..self
        }
    }

    /// Reports to this one if a fence refuses the token as stale.
    #[must_use]
    pub const fn reporting_to(self, reporter: &'a dyn Reporter) -> Pass<'a> {
        let report = Report {
            to: Some(reporter),
            ..self.report
        };
        Pass { report, ..self }
    }

    /// Names the operation for a report: a word or two, without any of its content. The first name stays, so a fence's own
    /// word does not replace the caller's.
    #[must_use]
    pub const fn doing(self, operation: &'a str) -> Pass<'a> {
        let operation = match self.report.operation {
            None => Some(operation),
            first => first,
        };
        let report = Report {
            operation,
            ..self.report
        };
        Pass { report, ..self }
    }

    /// Reports the rejection if it is a late write. Every fence calls this for each rejection.
    pub fn rejected(&self, resource: &str, reject: &Reject) {
        if let (Some(reporter), Reject::Stale { highest, .. }) = (self.report.to, reject) {
            reporter.late(&Late {
                authority: self.authority,
                lock: self.lock,
                token: self.token,
                resource,
                highest: *highest,
                operation: self.report.operation.unwrap_or_default(),
            });
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
    /// Raises the fence, before the first read (rule F2).
    Claim,
    /// Reads in order to write (rule F3): a stale holder is rejected, and a new holder claims first.
    Read,
    /// Changes the resource, with the write's number if the holder numbers its writes.
    Write(Option<Sequence>),
}

impl Op {
    /// Returns the word for it in reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Op::Claim => "claim",
            Op::Read => "read",
            Op::Write(_) => "write",
        }
    }
}

/// The rule by which a fence decides. It never changes during the life of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The kind of check.
    pub mode: Mode,
    /// The largest step from the highest token to a new one (rule F10). The first token steps from zero.
    ///
    /// Without it, one unauthenticated request with a huge token would lock everyone out for ever. `None` means no
    /// bound, for tokens from verified sequencers (Burrows 2006, "The Chubby lock service").
    pub max_jump: Option<u64>,
}

/// The checks that a fence makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The claim fence: every operation checks its token and raises the fence. Use this one.
    Claim,
    /// The claim fence with one write per grant, for records that are published once. A second write under the same
    /// token is [`Reject::AlreadyWritten`], not stale, because it may be the holder's own retry.
    Strict,
    /// For comparison only: refuses writes below the highest written token and checks nothing else. **Loses
    /// acknowledged updates.**
    Textbook,
    /// For comparison only: checks nothing. **Corrupts data.**
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

    /// Returns the same rule without a jump bound, for tokens from verified sequencers (rule F10).
    #[must_use]
    pub const fn unbounded(self) -> Rule {
        Rule {
            max_jump: None,
            ..self
        }
    }

    /// Judges one operation by the state alone. Every state and operation has a verdict. It recognises a repeat by its
    /// number; [`FenceRecord::decide`] also compares the digest.
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

    /// Judges a token above the highest, which only the jump bound can reject.
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

    /// Judges the highest token again: the same holder continues, so only its own earlier writes matter.
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
    /// Returns the last write after `op`. An unnumbered write keeps the last number.
    const fn then(self, op: Op) -> Written {
        match (self, op) {
            (before, Op::Claim | Op::Read) => before,
            (_, Op::Write(Some(number))) => Written::Through(number),
            (Written::Through(last), Op::Write(None)) => Written::Through(last),
            (_, Op::Write(None)) => Written::Unnumbered,
        }
    }
}

/// Rejects a token of another authority or lock, because such tokens are not comparable (rule F6). A bound fence also
/// rejects a pass that names none: its token could come from any authority.
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

/// The default of [`Rule::max_jump`], 2^46. A restore of the authority raises its tokens by less than that until 2032
/// (see [`restore_leap`]). It is a constant, because a fence has no clock.
///
/// A forged token thus uses up at most a 128th of the range. The bound also rejects a genuine holder if the resource
/// was not claimed between two restores, or is claimed for the first time after the second: multiply the bound by the
/// number of restores, or re-arm.
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
