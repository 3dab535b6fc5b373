//! The rules, removed one at a time.
//!
//! Nothing of this is in the product. Where the rule is an order of steps (answer after the sync, claim
//! before the read), the lab's own wiring takes the steps in the wrong order; where the rule is inside
//! a real part, a thin wrapper around that part undoes its effect. [`TABLE`] says which, and which
//! checker has to find it, alone: so every checker is shown to be able to fail.

use std::fmt;

use super::check;

/// One rule removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// The token is drawn when the request arrives, not with the grant.
    TokenBeforeGrant,
    /// Answers leave before the sync.
    AnswerBeforeSync,
    /// A backup is restored without the leap.
    RestoreWithoutLeap,
    /// Every restore leaps by the same distance.
    EqualLeaps,
    /// A failed sync is taken for done.
    FailedSyncIgnored,
    /// After a failed sync the process stops, but the answers leave before that.
    FailedSyncAnswered,
    /// Requests are taken in although the log has no room.
    FullDiskIgnored,
    /// No lease gets its time back after a restart or a stall.
    NoGrace,
    /// A short lease is ended by a pause that is shorter than half a second.
    ShortForgotten,
    /// The authority takes its own work for absence.
    WorkIsAway,
    /// A renewal that came too late is acknowledged.
    LateRenewal,
    /// A release names the lock and not the grant.
    ReleaseByName,
    /// A waiter is granted although it left or its wait is over.
    WaiterUnchecked,
    /// A caller that hangs up leaves its queue in memory and not in the log.
    WithdrawalNotLogged,
    /// The effect follows its check as a step of its own.
    EffectApart,
    /// Claims and reads do not raise the fence.
    ClaimWithoutRaise,
    /// The fence is not stored with the data.
    FenceApart,
    /// A lower token is admitted.
    LowerAdmitted,
    /// Writes have no numbers.
    NumbersIgnored,
    /// A resource whose fence state is lost goes on without one.
    LostFenceServed,
    /// A resource restored from a backup goes on with the backup's fence.
    RestoredFenceServed,
    /// The authority reads its clock before it takes a round in, not after.
    ClockReadFirst,
    /// The holder's deadline counts from the answer's receipt, not from the request's sending.
    DeadlineFromReceipt,
    /// The holder's deadline takes clocks for exact.
    DriftIgnored,
    /// The holder stops believing after the release was answered, not before it is sent.
    HeldUntilReleased,
    /// The textbook's fence in place of the claim fence.
    TextbookFence,
    /// No fence.
    NoFence,
    /// Nobody arms a lost fence anew.
    NoOperator,
}

/// A mutant's line in the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The mutant.
    pub mutant: Mutant,
    /// The rule that is removed, as docs/rules.md numbers it.
    pub rule: &'static str,
    /// The checker that has to find it.
    pub checker: &'static str,
    /// Where and how it is removed.
    pub seam: &'static str,
}

const fn row(mutant: Mutant, rule: &'static str, checker: &'static str, seam: &'static str) -> Row {
    Row {
        mutant,
        rule,
        checker,
        seam,
    }
}

/// All mutants.
pub const TABLE: [Row; 28] = [
    row(
        Mutant::TokenBeforeGrant,
        "A2",
        check::REFUSAL,
        "wrapper of the orderer: tokens are renamed in order of arrival",
    ),
    row(
        Mutant::AnswerBeforeSync,
        "A3",
        check::DURABILITY,
        "the orderer is told 'committed' before the sync",
    ),
    row(
        Mutant::RestoreWithoutLeap,
        "A5",
        check::TOKEN_ORDER,
        "the restore's own batch is left out",
    ),
    row(
        Mutant::EqualLeaps,
        "A5",
        check::TOKEN_ORDER,
        "the restore's own batch leaps as far as that of the restore before",
    ),
    row(
        Mutant::FailedSyncIgnored,
        "A6",
        check::DURABILITY,
        "the log's error is taken for success",
    ),
    row(
        Mutant::FailedSyncAnswered,
        "A6",
        check::DURABILITY,
        "the orderer is told 'committed' where it should be told 'failed'",
    ),
    row(
        Mutant::FullDiskIgnored,
        "A3",
        check::FULL_DISK,
        "the orderer is told that there is room, whatever the log says",
    ),
    row(
        Mutant::NoGrace,
        "A7",
        check::EARLY_EXPIRY,
        "after a restart Grace is not recorded, and the orderer is told that it slept for all of a stall",
    ),
    row(
        Mutant::ShortForgotten,
        "A7",
        check::EARLY_EXPIRY,
        "the orderer is told that it slept for as long as a short pause took",
    ),
    row(
        Mutant::WorkIsAway,
        "A7",
        check::PRESENCE,
        "the orderer is told that it did no work",
    ),
    row(
        Mutant::LateRenewal,
        "A8",
        check::EXCLUSION,
        "wrapper of the orderer: 'expired' becomes 'renewed'",
    ),
    row(
        Mutant::ReleaseByName,
        "A9",
        check::EXCLUSION,
        "wrapper of the orderer: the grant named is replaced by the present one",
    ),
    row(
        Mutant::WaiterUnchecked,
        "A10",
        check::FIFO,
        "hang-ups do not reach the orderer, and waits reach it without their end",
    ),
    row(
        Mutant::WithdrawalNotLogged,
        "A10",
        check::FIFO,
        "the command Withdraw is taken out of the bytes on their way to the log",
    ),
    row(
        Mutant::EffectApart,
        "F1",
        check::LOST_UPDATE,
        "order of the resource's steps: check, answer others, take effect",
    ),
    row(
        Mutant::ClaimWithoutRaise,
        "F2",
        check::LOST_UPDATE,
        "the fence's next state is dropped for claims and reads",
    ),
    row(
        Mutant::FenceApart,
        "F4",
        check::LOST_UPDATE,
        "the resource's log holds the data and not the fence",
    ),
    row(
        Mutant::LowerAdmitted,
        "F5",
        check::LOST_UPDATE,
        "wrapper of the rule: 'stale' becomes 'admit'",
    ),
    row(
        Mutant::NumbersIgnored,
        "F5",
        check::RESURRECTION,
        "wrapper of the rule: it is not shown the sequence number",
    ),
    row(
        Mutant::LostFenceServed,
        "F7",
        check::LOST_UPDATE,
        "the lost fence becomes a new one, not a refusal",
    ),
    row(
        Mutant::RestoredFenceServed,
        "F7",
        check::RESURRECTION,
        "the restored fence is served as it is",
    ),
    row(
        Mutant::ClockReadFirst,
        "deadline",
        check::BELIEF,
        "the orderer is told what the clock showed before it was woken",
    ),
    row(
        Mutant::DeadlineFromReceipt,
        "deadline",
        check::BELIEF,
        "wrapper of the service: the round trip is added to what the answer is good for",
    ),
    row(
        Mutant::DriftIgnored,
        "deadline",
        check::BELIEF,
        "the real client with a caution of nothing",
    ),
    row(
        Mutant::HeldUntilReleased,
        "not-held",
        check::BELIEF,
        "order of the holder's steps: release, then let go of the guard",
    ),
    row(
        Mutant::TextbookFence,
        "control",
        check::LOST_UPDATE,
        "the real rule in its textbook mode",
    ),
    row(
        Mutant::NoFence,
        "control",
        check::LOST_UPDATE,
        "the real rule, switched off",
    ),
    row(
        Mutant::NoOperator,
        "control",
        check::LIVENESS,
        "a lost fence is never armed anew",
    ),
];

impl Mutant {
    /// Its line in the table.
    #[must_use]
    pub fn row(self) -> &'static Row {
        let found = TABLE.iter().find(|row| row.mutant == self);
        found.unwrap_or(&TABLE[0])
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {self:?}", self.row().rule)
    }
}
