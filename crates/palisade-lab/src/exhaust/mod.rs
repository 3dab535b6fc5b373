//! Exhaustive search at small scope: every schedule of a few clients, grants, writes, resends and one
//! crash, through the real machine and the real fence rule.
//!
//! ```text
//!              ┌ authority   palisade_core::Machine, one lock; equal states are kept once
//!   State ─────┤ clients     ask · claim · read · write · release, each at any time
//!              ├ network     writes under way; any of them arrives next, or never
//!              └ resource    a set of adds, and palisade_core::fence::Rule in front of it
//!
//!   search: breadth first, so the first losing schedule found is a shortest one
//! ```
//!
//! Nobody here looks at a deadline: a lease may run out at any moment, unknown to its holder, and a
//! client may be paused for ever between any two of its steps. What keeps the data is the fence alone.
//!
//! An add is *lost* when its holder was told that it was written and the set does not have it. The
//! correct configuration must lose none in all its states; each [`Weakness`] must lose one, or the
//! search proves nothing (control arms). The method is explicit-state model checking as in Holzmann's
//! SPIN and in TLC, on the code itself instead of a model of it.

mod authority;
pub mod command;
mod resource;
mod search;
mod state;
mod step;
mod tell;

pub use search::{Found, Wrong, search};

/// How much there is of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Scope {
    /// Contenders, at most 4.
    pub clients: u8,
    /// Wishes for the lock, over all clients, at most 4 each.
    pub grants: u8,
    /// Writes under one grant, at most 2.
    pub writes: u8,
    /// Requests sent once more, over all clients.
    pub resends: u8,
    /// Crashes, of anybody.
    pub crashes: u8,
}

impl Scope {
    /// Two contenders; some seconds, where a third one would take minutes.
    pub const DEFAULT: Scope = Scope {
        clients: 2,
        grants: 2,
        writes: 2,
        resends: 2,
        crashes: 1,
    };
}

/// A rule left out, in the lab's own harness around the product: there is no such switch in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Weakness {
    /// The resource checks nothing.
    NoFence,
    /// The resource refuses writes below the highest token written.
    TextbookFence,
    /// The resource refuses writes at or below the highest token written.
    StrictFence,
    /// Reads are checked, and leave the fence where it is (F2).
    ReadWithoutRaising,
    /// Writes under one token have no sequence numbers (F5).
    NoSequence,
    /// A resource that lost its fence state goes on as if it never had one (F4, F7).
    FenceLost,
    /// A restored authority counts on from its backup (A5).
    NoLeap,
    /// A fence that was lost is armed again at the last holder's token instead of one drawn for it: what
    /// that holder wrote is forgotten, and its late duplicate is as good as new (F7).
    RearmedAtHolder,
}

impl Weakness {
    /// All of them.
    pub const ALL: [Weakness; 8] = [
        Weakness::NoFence,
        Weakness::TextbookFence,
        Weakness::StrictFence,
        Weakness::ReadWithoutRaising,
        Weakness::NoSequence,
        Weakness::FenceLost,
        Weakness::NoLeap,
        Weakness::RearmedAtHolder,
    ];

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
        }
    }

    /// The least scope that shows it: what is not needed would only make the schedule harder to read.
    #[must_use]
    pub const fn scope(self) -> Scope {
        let (writes, resends, crashes) = match self {
            Weakness::NoFence
            | Weakness::TextbookFence
            | Weakness::StrictFence
            | Weakness::ReadWithoutRaising => (1, 0, 0),
            Weakness::NoSequence => (2, 1, 0),
            Weakness::FenceLost | Weakness::NoLeap => (1, 0, 1),
            Weakness::RearmedAtHolder => (2, 1, 1),
        };
        Scope {
            clients: 2,
            grants: 2,
            writes,
            resends,
            crashes,
        }
    }

    /// Whether holders claim before they read: where a claim would do nothing, nobody sends one.
    const fn claims(weakness: Option<Weakness>) -> bool {
        !matches!(
            weakness,
            Some(
                Weakness::NoFence
                    | Weakness::TextbookFence
                    | Weakness::StrictFence
                    | Weakness::ReadWithoutRaising
            )
        )
    }
}
