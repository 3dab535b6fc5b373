//! Exhaustive search at small scope: every schedule of a few clients, grants, writes, resends and one crash, through
//! the real machine and the real fence rule.
//!
//! ```text
//!              ┌ authority   palisade_core::Machine, one lock; equal states are kept once
//!   State ─────┤ clients     ask · claim · read · write · release, each at any time
//!              ├ network     writes in flight; any of them arrives next, or never
//!              └ resources   sets of adds, and palisade_core::fence::Rule in front of each
//!
//!   search: breadth first, so the first losing schedule found is a shortest one
//! ```
//!
//! A lock has one resource, and so has each slot of a semaphore. A client that asks for two locks at once claims both
//! resources, reads both, and writes to both.
//!
//! A reader in mode update that has read may become the writer; it claims again, and writes without another read.
//!
//! No client looks at a deadline: a lease may expire at any moment without its holder knowing, and a client may be
//! paused for ever between any two of its steps. Only the fence keeps the data.
//!
//! An add is *lost* if its holder got an acknowledgement and the set does not contain it. The correct configuration
//! must lose none in all its states; each [`Weakness`] must lose one, or the search proves nothing (control arms). The
//! method is explicit-state model checking as in Holzmann's SPIN and in TLC, on the code itself instead of a model of
//! it.

mod authority;
pub mod command;
mod describe;
mod resource;
mod search;
mod state;
mod step;

pub use search::{Found, Wrong, search};

/// The size of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Scope {
    /// The number of contenders, at most 4.
    pub clients: u8,
    /// How many of them only read, with shared grants; with any, writers may become readers.
    pub readers: u8,
    /// How many of the readers ask for mode update, and may upgrade after they have read.
    pub updates: u8,
    /// The number of slots, at most 2; 0 for a plain lock.
    pub slots: u8,
    /// How many locks a client asks for at once, at most 2.
    pub locks: u8,
    /// The number of wishes for the lock, over all clients, at most 4 each.
    pub grants: u8,
    /// The number of writes under one grant, at most 2.
    pub writes: u8,
    /// The number of repeated requests, over all clients.
    pub resends: u8,
    /// The number of crashes, of any part.
    pub crashes: u8,
}

impl Scope {
    /// Whether a contender only reads: the last ones do.
    const fn is_reader(self, client: u8) -> bool {
        client + self.readers >= self.clients
    }

    /// Whether a reader asks for mode update: the last ones do.
    const fn is_updater(self, client: u8) -> bool {
        client + self.updates >= self.clients
    }

    /// Whether leases of this contender last longer than others, so that they end one after another.
    const fn lasts_longer(self, client: u8) -> bool {
        self.is_reader(client) || self.slots > 0
    }

    /// Two contenders: takes some seconds, where a third one would take minutes.
    pub const DEFAULT: Scope = Scope {
        clients: 2,
        readers: 0,
        updates: 0,
        slots: 0,
        locks: 1,
        grants: 2,
        writes: 2,
        resends: 2,
        crashes: 1,
    };
}

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

    /// What goes wrong with it.
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
    const fn claims(weakness: Option<Weakness>) -> bool {
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
