//! Rules that the lab drops, and the faults that follow.

use super::scope::Scope;

/// A dropped rule. The lab's harness around the product drops it; the product has no such switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Weakness {
    /// The resource checks nothing.
    NoFence,
    /// The resource rejects writes below the highest token written.
    TextbookFence,
    /// The resource rejects writes at or below the highest token written.
    StrictFence,
    /// Reads are checked but do not raise the fence (F2).
    ReadWithoutRaising,
    /// Writes under one token have no sequence numbers (F5).
    NoSequence,
    /// A resource that lost its fence state continues as if it never had one (F4, F7).
    FenceLost,
    /// A restored authority continues counting from its backup (A5).
    NoLeap,
    /// A lost fence is armed again at the last holder's token instead of a newly drawn one: that holder's writes are
    /// forgotten, and its late duplicate counts as new (F7).
    RearmedAtHolder,
    /// Readers of one phase get tokens of their own (S1).
    ReaderTokens,
    /// A writer that becomes a reader keeps its token (S7).
    DowngradeKeepsToken,
    /// An upgrade gives the reader's grant up, and waits behind the queue (S8).
    UpgradeQueues,
    /// An upgrade takes the lock from the other readers instead of waiting for them (S8).
    UpgradeEndsReaders,
    /// A restored authority upgrades the readers of its backup, also those whose leases are over since (S11).
    UpgradeAfterRestore,
    /// All slots of a semaphore have one fence (P3).
    OneFenceForSlots,
    /// The slots of a semaphore have no fences (P3).
    NoFenceForSlots,
    /// Of two locks held at once the resource of the first alone is claimed, and a read raises nothing (M3).
    ClaimsOne,
    /// Of two locks held at once the resource of the second is claimed after that of the first was read (M3).
    ClaimsLate,
}

impl Weakness {
    /// All weaknesses.
    pub const ALL: [Weakness; 17] = [
        Weakness::NoFence,
        Weakness::TextbookFence,
        Weakness::StrictFence,
        Weakness::ReadWithoutRaising,
        Weakness::NoSequence,
        Weakness::FenceLost,
        Weakness::NoLeap,
        Weakness::RearmedAtHolder,
        Weakness::ReaderTokens,
        Weakness::DowngradeKeepsToken,
        Weakness::UpgradeQueues,
        Weakness::UpgradeEndsReaders,
        Weakness::UpgradeAfterRestore,
        Weakness::OneFenceForSlots,
        Weakness::NoFenceForSlots,
        Weakness::ClaimsOne,
        Weakness::ClaimsLate,
    ];

    /// The fault that it causes.
    #[must_use]
    pub const fn wrong(self) -> Wrong {
        match self {
            Weakness::ReaderTokens | Weakness::OneFenceForSlots => Wrong::LiveRefused,
            Weakness::ClaimsLate => Wrong::TornRead,
            Weakness::DowngradeKeepsToken => Wrong::LateWrite,
            Weakness::UpgradeEndsReaders => Wrong::EndedAnother,
            _ => Wrong::Lost,
        }
    }

    /// The weakness in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Weakness::NoFence => "no fence",
            Weakness::TextbookFence => "textbook fence",
            Weakness::StrictFence => "strict fence",
            Weakness::ReadWithoutRaising => "reads check without raising",
            Weakness::NoSequence => "equal tokens without sequence numbers",
            Weakness::FenceLost => "fence state lost",
            Weakness::NoLeap => "restored authority without the leap",
            Weakness::RearmedAtHolder => "fence armed again at the last holder's token",
            Weakness::ReaderTokens => "readers with tokens of their own",
            Weakness::DowngradeKeepsToken => "a writer that becomes a reader with its old token",
            Weakness::UpgradeQueues => "an upgrade that waits behind the queue",
            Weakness::UpgradeEndsReaders => "an upgrade that takes the lock from other readers",
            Weakness::UpgradeAfterRestore => "an upgrade at a restored authority",
            Weakness::OneFenceForSlots => "one fence for all slots",
            Weakness::NoFenceForSlots => "slots without fences",
            Weakness::ClaimsOne => "one of two locks claimed",
            Weakness::ClaimsLate => "the second of two locks claimed after the first was read",
        }
    }

    /// The smallest scope that shows the weakness: anything more would only make the schedule harder to read.
    #[must_use]
    pub const fn scope(self) -> Scope {
        let (writes, resends, crashes) = match self {
            Weakness::NoFence
            | Weakness::TextbookFence
            | Weakness::StrictFence
            | Weakness::ReadWithoutRaising
            | Weakness::ReaderTokens
            | Weakness::DowngradeKeepsToken
            | Weakness::UpgradeQueues
            | Weakness::UpgradeEndsReaders
            | Weakness::OneFenceForSlots
            | Weakness::NoFenceForSlots
            | Weakness::ClaimsOne
            | Weakness::ClaimsLate => (1, 0, 0),
            Weakness::NoSequence => (2, 1, 0),
            Weakness::FenceLost | Weakness::NoLeap | Weakness::UpgradeAfterRestore => (1, 0, 1),
            Weakness::RearmedAtHolder => (2, 1, 1),
        };
        let readers = match self {
            Weakness::ReaderTokens | Weakness::UpgradeEndsReaders => 2,
            Weakness::DowngradeKeepsToken
            | Weakness::UpgradeQueues
            | Weakness::UpgradeAfterRestore => 1,
            _ => 0,
        };
        let updates = match self {
            Weakness::UpgradeQueues
            | Weakness::UpgradeEndsReaders
            | Weakness::UpgradeAfterRestore => 1,
            _ => 0,
        };
        let (slots, locks) = match self {
            Weakness::OneFenceForSlots | Weakness::NoFenceForSlots => (2, 1),
            Weakness::ClaimsOne | Weakness::ClaimsLate => (0, 2),
            _ => (0, 1),
        };
        Scope {
            clients: 2,
            readers,
            updates,
            slots,
            locks,
            grants: 2,
            writes,
            resends,
            crashes,
        }
    }

    /// Whether holders claim before they read: not if a claim would have no effect.
    pub(super) const fn claims(weakness: Option<Weakness>) -> bool {
        !matches!(
            weakness,
            Some(
                Weakness::NoFence
                    | Weakness::TextbookFence
                    | Weakness::StrictFence
                    | Weakness::ReadWithoutRaising
                    | Weakness::NoFenceForSlots
            )
        )
    }
}

/// The faults that a schedule can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wrong {
    /// An acknowledged add is gone.
    Lost,
    /// A token was issued that was not above all earlier ones (A2, A4).
    TokenRepeated,
    /// A retry got another token (A12).
    TokenChanged,
    /// A late release freed somebody else's lock (A9).
    ReleasedAnother,
    /// An upgrade, or its end, ended another live grant (S8).
    EndedAnother,
    /// A live holder was rejected because of another live one (S3).
    LiveRefused,
    /// A writer that has become a reader, and has claimed as one, wrote (S7).
    LateWrite,
    /// A former holder's write was admitted after a later holder had begun to read (M3).
    TornRead,
    /// The newest holder was rejected in favour of an older one.
    NewestRefused,
    /// A request was granted whose caller has not come back since another node took over (R16).
    OrphanGranted,
    /// An invariant of the machine does not hold (`palisade_core::invariants`).
    Invariant,
}
