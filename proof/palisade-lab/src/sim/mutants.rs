//! The rules, removed one at a time.
//!
//! The product contains nothing of this. If the rule is an order of steps (answer after the sync, claim before the
//! read), the lab's own wiring takes the steps in the wrong order; if the rule is inside a real part, a thin wrapper
//! around that part undoes its effect. [`TABLE`] lists the place, and the one checker that has to find it: so every
//! checker is shown to be able to fail.

use std::fmt;

use super::check::rule;

/// One rule removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// The token is drawn when the request arrives, not with the grant.
    TokenBeforeGrant,
    /// Answers leave before the sync.
    AnswerBeforeSync,
    /// A restore of a backup does not raise the token counter.
    RestoreWithoutLeap,
    /// Every restore raises the token counter by the same distance.
    EqualLeaps,
    /// A failed sync counts as done.
    FailedSyncIgnored,
    /// After a failed sync the process stops, but the answers leave before that.
    FailedSyncAnswered,
    /// Requests are accepted although the log has no room.
    FullDiskIgnored,
    /// No lease gets its time back after a restart or a stall.
    NoGrace,
    /// A pause of less than half a second ends a short lease.
    ShortForgotten,
    /// The authority mistakes its own work for absence.
    WorkIsAway,
    /// A late renewal is acknowledged.
    LateRenewal,
    /// A release names the lock but not the grant.
    ReleaseByName,
    /// A waiter is granted although it left or its wait is over.
    WaiterUnchecked,
    /// A request is granted although its single caller is gone.
    CallersUnchecked,
    /// A grant that reached nobody is kept.
    UnclaimedKept,
    /// A caller that hangs up leaves its queue in memory but not in the log.
    WithdrawalNotLogged,
    /// After a change of leader a request is granted whose caller has not come back.
    OrphanGranted,
    /// After a change of leader a request is passed whose caller may still come back.
    OrphanOvertaken,
    /// After a change of leader, a place stays reserved for ever.
    WindowNeverEnds,
    /// Readers of one phase get tokens of their own.
    ReaderTokens,
    /// A lock's shared phases all have the token of its first one.
    PhaseTokenKept,
    /// A reader is granted although a writer waits.
    ReaderOvertakes,
    /// A writer that becomes a reader keeps its token.
    DowngradeKeepsToken,
    /// A reader is granted although an upgrade waits.
    UpgradeOvertaken,
    /// An upgrade takes the lock from the other readers.
    UpgradeEndsReaders,
    /// One fence for all slots of a semaphore.
    OneFenceForAllSlots,
    /// Of several permits those are granted that are free.
    PermitsInPart,
    /// Holders of slots beyond a lower number of permits lose them.
    ResizeEndsHolders,
    /// A number of permits that an operator set is forgotten in a restart.
    ResizeForgotten,
    /// A small request for permits is granted although a larger one waits.
    SmallOvertakes,
    /// Of several locks those are granted that are free.
    SetInPart,
    /// A set that has to wait takes one of its locks already.
    SetHoldsPart,
    /// The locks of a set are taken one after the other.
    SetOneByOne,
    /// A set loses its place when a request for one of its locks comes.
    SetOvertaken,
    /// A set waits for locks that it does not name.
    SetWaitsForMore,
    /// The release of one lock of a set releases all.
    SetReleasedWhole,
    /// A request goes on waiting when the lease that it is under has ended.
    WaitOutlivesLease,
    /// Giving up one request releases the other grants of its lease.
    AbandonTakesMore,
    /// A lock that was closed is open after a restart.
    ClosingForgotten,
    /// A planned stop ends the connections one after the other, and each that leaves lets the next one in.
    StopOneByOne,
    /// Each restart gives a lease its full time again.
    ExtendedForEver,
    /// A lock is open again as soon as it is released, whatever its grant asked for.
    ReservationIgnored,
    /// A client id supersedes, whichever principal shows it.
    PrincipalIgnored,
    /// The effect is a separate step after its check.
    EffectApart,
    /// Claims and reads do not raise the fence.
    ClaimWithoutRaise,
    /// The fence is not stored with the data.
    FenceApart,
    /// A lower token is admitted.
    LowerAdmitted,
    /// Writes have no numbers.
    NumbersIgnored,
    /// A resource that lost its fence state continues without one.
    LostFenceServed,
    /// A resource restored from a backup continues with the backup's fence.
    RestoredFenceServed,
    /// The authority reads its clock before it receives a round, not after.
    ClockReadFirst,
    /// The holder's deadline counts from the receipt of the answer, not from the sending of the request.
    DeadlineFromReceipt,
    /// The holder's deadline assumes exact clocks.
    DriftIgnored,
    /// The holder stops believing after its release was answered, not before it is sent.
    HeldUntilReleased,
    /// The textbook fence replaces the claim fence.
    TextbookFence,
    /// No fence.
    NoFence,
    /// Nobody re-arms a lost fence.
    NoOperator,
}

/// A mutant's row in the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The mutant.
    pub mutant: Mutant,
    /// The removed rule, as numbered in docs/promise/rules.md; R15 and R16 are A10 across a change of leader.
    pub rule: &'static str,
    /// The checker that must find it.
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
pub const TABLE: [Row; 57] = [
    row(
        Mutant::TokenBeforeGrant,
        "A2",
        rule::REFUSAL,
        "answer of the loop: tokens are renamed in order of arrival",
    ),
    row(
        Mutant::AnswerBeforeSync,
        "A3",
        rule::DURABILITY,
        "the loop is told 'written' before the sync",
    ),
    row(
        Mutant::RestoreWithoutLeap,
        "A5",
        rule::TOKEN_ORDER,
        "the restore's own batch is omitted",
    ),
    row(
        Mutant::EqualLeaps,
        "A5",
        rule::TOKEN_ORDER,
        "the restore's own batch leaps as far as that of the previous restore",
    ),
    row(
        Mutant::FailedSyncIgnored,
        "A6",
        rule::DURABILITY,
        "the log's error is treated as success",
    ),
    row(
        Mutant::FailedSyncAnswered,
        "A6",
        rule::DURABILITY,
        "the loop is told 'written' instead of 'failed'",
    ),
    row(
        Mutant::FullDiskIgnored,
        "A3",
        rule::FULL_DISK,
        "the loop is told that there is room, whatever the log says",
    ),
    row(
        Mutant::NoGrace,
        "A7",
        rule::EARLY_EXPIRY,
        "after a restart Grace is not recorded, and a stall is reported to the loop as work",
    ),
    row(
        Mutant::ShortForgotten,
        "A7",
        rule::EARLY_EXPIRY,
        "a short pause is reported to the loop as work",
    ),
    row(
        Mutant::WorkIsAway,
        "A7",
        rule::PRESENCE,
        "the loop's work is not reported to it",
    ),
    row(
        Mutant::LateRenewal,
        "A8",
        rule::EXCLUSION,
        "answer of the loop: 'expired' becomes 'renewed'",
    ),
    row(
        Mutant::ReleaseByName,
        "A9",
        rule::EXCLUSION,
        "input of the loop: the named grant is replaced by the current one",
    ),
    row(
        Mutant::WaiterUnchecked,
        "A10",
        rule::FIFO,
        "hang-ups do not reach the orderer, and waits reach it without their deadline",
    ),
    row(
        Mutant::CallersUnchecked,
        "A10",
        rule::FIFO,
        "the loop does not hear that a single caller is gone",
    ),
    row(
        Mutant::UnclaimedKept,
        "A10",
        rule::UNCLAIMED,
        "the loop does not hear that a grant reached nobody",
    ),
    row(
        Mutant::WithdrawalNotLogged,
        "A10",
        rule::FIFO,
        "the command Withdraw is removed from the bytes for the log",
    ),
    row(
        Mutant::WaitOutlivesLease,
        "A10",
        rule::FIFO,
        "a request that waits under a lease reaches the orderer under a new one",
    ),
    row(
        Mutant::AbandonTakesMore,
        "A12",
        rule::EXCLUSION,
        "releases of the lease's other grants come before the abandonment of a request",
    ),
    row(
        Mutant::OrphanGranted,
        "R16",
        rule::FIFO,
        "the new leader repeats every request that waits",
    ),
    row(
        Mutant::OrphanOvertaken,
        "R16",
        rule::FIFO,
        "the new leader withdraws every request that waits",
    ),
    row(
        Mutant::WindowNeverEnds,
        "R15",
        rule::FIFO,
        "the new leader records its Grace again in every round",
    ),
    row(
        Mutant::ReaderTokens,
        "S1",
        rule::REFUSAL,
        "answer of the loop: a shared grant's token becomes its own number",
    ),
    row(
        Mutant::PhaseTokenKept,
        "S2",
        rule::PHASES,
        "answer of the loop: a phase's token becomes that of the lock's first phase",
    ),
    row(
        Mutant::ReaderOvertakes,
        "S6",
        rule::FIFO,
        "the sessions of waiting writers are hung up when a reader's request arrives",
    ),
    row(
        Mutant::DowngradeKeepsToken,
        "S7",
        rule::PHASES,
        "answer of the loop: the token becomes that of the same lease as writer",
    ),
    row(
        Mutant::UpgradeOvertaken,
        "S8",
        rule::FIFO,
        "the sessions of waiting upgrades are hung up when a reader's request arrives",
    ),
    row(
        Mutant::UpgradeEndsReaders,
        "S8",
        rule::EXCLUSION,
        "releases of the other readers come before an upgrade",
    ),
    row(
        Mutant::ResizeEndsHolders,
        "P1",
        rule::EXCLUSION,
        "releases of the holders of slots beyond the number come before a change of it",
    ),
    row(
        Mutant::ResizeForgotten,
        "P1",
        rule::PERMITS,
        "the machine that a restart finds has the first numbers of permits",
    ),
    row(
        Mutant::OneFenceForAllSlots,
        "P3",
        rule::REFUSAL,
        "the worker uses the key of the first slot, whichever slots it has",
    ),
    row(
        Mutant::PermitsInPart,
        "P4",
        rule::PERMITS,
        "input of the loop: a request for more permits than are free becomes one for those",
    ),
    row(
        Mutant::SmallOvertakes,
        "P6",
        rule::FIFO,
        "the sessions of waiting requests are hung up when one for fewer permits arrives",
    ),
    row(
        Mutant::SetInPart,
        "M1",
        rule::SETS,
        "input of the loop: a set becomes one of those of its locks that are free",
    ),
    row(
        Mutant::SetHoldsPart,
        "M2",
        rule::SETS,
        "a request for one free lock of a set comes before that of a set that has to wait",
    ),
    row(
        Mutant::SetOneByOne,
        "M2",
        rule::LIVENESS,
        "the worker asks for the locks of a set one after the other",
    ),
    row(
        Mutant::SetOvertaken,
        "M2",
        rule::FIFO,
        "the sessions of waiting sets are hung up when a request for one of their locks arrives",
    ),
    row(
        Mutant::SetWaitsForMore,
        "M2",
        rule::FIFO,
        "input of the loop: a set becomes one of all locks",
    ),
    row(
        Mutant::SetReleasedWhole,
        "M3",
        rule::EXCLUSION,
        "releases of the other locks of a set come before that of one",
    ),
    row(
        Mutant::ClosingForgotten,
        "D2",
        rule::DELAYS,
        "the records that a restart begins with say of each closed lock that it opens now",
    ),
    row(
        Mutant::ExtendedForEver,
        "A7",
        rule::LATE_EXPIRY,
        "the records that a restart begins with say of no lease that it was extended",
    ),
    row(
        Mutant::StopOneByOne,
        "R22",
        rule::STOP,
        "the sessions of those who wait are hung up in turn, before the waits are ended",
    ),
    row(
        Mutant::ReservationIgnored,
        "D4",
        rule::DELAYS,
        "input of the loop: requests reach it without their at-least-for",
    ),
    row(
        Mutant::PrincipalIgnored,
        "I5",
        rule::EXCLUSION,
        "strangers who read client ids in a listing have no principals of their own",
    ),
    row(
        Mutant::EffectApart,
        "F1",
        rule::LOST_UPDATE,
        "order of the resource's steps: check, answer others, take effect",
    ),
    row(
        Mutant::ClaimWithoutRaise,
        "F2",
        rule::LOST_UPDATE,
        "the fence's next state is dropped for claims and reads",
    ),
    row(
        Mutant::FenceApart,
        "F4",
        rule::LOST_UPDATE,
        "the resource's log holds the data and not the fence",
    ),
    row(
        Mutant::LowerAdmitted,
        "F5",
        rule::LOST_UPDATE,
        "wrapper of the rule: 'stale' becomes 'admit'",
    ),
    row(
        Mutant::NumbersIgnored,
        "F5",
        rule::RESURRECTION,
        "wrapper of the rule: the sequence number is hidden from it",
    ),
    row(
        Mutant::LostFenceServed,
        "F7",
        rule::LOST_UPDATE,
        "the lost fence becomes a new one, not a refusal",
    ),
    row(
        Mutant::RestoredFenceServed,
        "F7",
        rule::RESURRECTION,
        "the restored fence is used unchanged",
    ),
    row(
        Mutant::ClockReadFirst,
        "deadline",
        rule::BELIEF,
        "the loop is told what the clock showed before it was woken",
    ),
    row(
        Mutant::DeadlineFromReceipt,
        "deadline",
        rule::BELIEF,
        "wrapper of the service: the round trip is added to the answer's validity",
    ),
    row(
        Mutant::DriftIgnored,
        "deadline",
        rule::BELIEF,
        "the real client with a caution of zero",
    ),
    row(
        Mutant::HeldUntilReleased,
        "not-held",
        rule::BELIEF,
        "order of the holder's steps: release, then drop the guard",
    ),
    row(
        Mutant::TextbookFence,
        "control",
        rule::LOST_UPDATE,
        "the real rule in its textbook mode",
    ),
    row(
        Mutant::NoFence,
        "control",
        rule::LOST_UPDATE,
        "the real rule, switched off",
    ),
    row(
        Mutant::NoOperator,
        "control",
        rule::LIVENESS,
        "a lost fence is never re-armed",
    ),
];

impl Mutant {
    /// Its row in the table.
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
