//! The rules, removed one at a time.
//!
//! Nothing of this is in the product. Where the rule is an order of steps (answer after the sync, claim
//! before the read), the lab's own wiring takes the steps in the wrong order; where the rule is inside
//! a real part, a thin wrapper around that part undoes its effect. The tables of [`Mutant::ALL`] say
//! which.

use std::fmt;

/// One rule removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A2: the token is drawn when the request arrives, not with the grant.
    TokenBeforeGrant,
    /// A3: answers leave before the sync.
    AnswerBeforeSync,
    /// A5: a backup is restored without the leap.
    RestoreWithoutLeap,
    /// A6: a failed sync is taken for done.
    FailedSyncIgnored,
    /// A7: no lease gets its time back after a restart or a stall.
    NoGrace,
    /// A8: a renewal that came too late is acknowledged.
    LateRenewal,
    /// A9: a release names the lock and not the grant.
    ReleaseByName,
    /// A10: a waiter is granted although it left or its wait is over.
    WaiterUnchecked,
    /// F1: the effect follows its check as a step of its own.
    EffectApart,
    /// F2: claims and reads do not raise the fence.
    ClaimWithoutRaise,
    /// F4: the fence is not stored with the data.
    FenceApart,
    /// F5: a lower token is admitted.
    LowerAdmitted,
    /// F5: writes have no numbers.
    NumbersIgnored,
    /// F7: a resource whose fence state is lost goes on without one.
    LostFenceServed,
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
}

impl Mutant {
    /// All of them: the rule, the seam, and what is done there.
    pub const ALL: [(Mutant, &'static str, &'static str); 19] = [
        (Mutant::TokenBeforeGrant, "A2", "wrapper of the machine: tokens are renamed in order of arrival"),
        (Mutant::AnswerBeforeSync, "A3", "order of the authority's round: apply, answer, sync"),
        (Mutant::RestoreWithoutLeap, "A5", "the restore's own batch is left out"),
        (Mutant::FailedSyncIgnored, "A6", "the log's error is taken for success"),
        (Mutant::NoGrace, "A7", "the command Grace is left out, after a restart and after a stall"),
        (Mutant::LateRenewal, "A8", "wrapper of the machine: 'expired' becomes 'renewed'"),
        (Mutant::ReleaseByName, "A9", "wrapper of the machine: the grant named is replaced by the present one"),
        (Mutant::WaiterUnchecked, "A10", "the command Withdraw is left out, and waits reach the machine without their end"),
        (Mutant::EffectApart, "F1", "order of the resource's steps: check, answer others, take effect"),
        (Mutant::ClaimWithoutRaise, "F2", "the fence's next state is dropped for claims and reads"),
        (Mutant::FenceApart, "F4", "the resource's log holds the data and not the fence"),
        (Mutant::LowerAdmitted, "F5", "wrapper of the rule: 'stale' becomes 'admit'"),
        (Mutant::NumbersIgnored, "F5", "wrapper of the rule: it is not shown the sequence number"),
        (Mutant::LostFenceServed, "F7", "the lost fence becomes a new one, not a refusal"),
        (Mutant::DeadlineFromReceipt, "deadline", "wrapper of the service: the round trip is added to what the answer is good for"),
        (Mutant::DriftIgnored, "deadline", "the real client with a caution of nothing"),
        (Mutant::TextbookFence, "control", "the real rule in its textbook mode"),
        (Mutant::NoFence, "control", "the real rule, switched off"),
        (Mutant::HeldUntilReleased, "not-held", "order of the holder's steps: release, then let go of the guard"),
    ];

    /// The rule that is removed, as DESIGN numbers it.
    #[must_use]
    pub fn rule(self) -> &'static str {
        self.row().1
    }

    /// How.
    #[must_use]
    pub fn seam(self) -> &'static str {
        self.row().2
    }

    fn row(self) -> &'static (Mutant, &'static str, &'static str) {
        let found = Mutant::ALL.iter().find(|(mutant, ..)| *mutant == self);
        found.unwrap_or(&Mutant::ALL[0])
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {self:?}", self.rule())
    }
}
