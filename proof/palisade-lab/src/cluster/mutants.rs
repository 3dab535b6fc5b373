//! The rules of the replicated mode, removed one at a time: each must be found.

use super::rule::Rule;

/// One rule removed. Nothing of this is in the product: the lab takes the steps in the wrong order, or gives a part a
/// disk that lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// Answers leave before a quorum has the batch (R1).
    AnswerBeforeQuorum,
    /// A node says that its log is durable before it is (R2).
    LyingDisk,
    /// A vote is sent before it is on stable storage (R2).
    VoteNotSynced,
    /// A node comes back that lost acknowledged entries (R14).
    HandshakeOff,
    /// A node is let in although its log ends before its acknowledgements (R24).
    TornReturns,
    /// A node that was started again remembers nothing of the others (R14).
    Forgetful,
    /// A snapshot's machine contains uncommitted entries (R20).
    UncommittedFolded,
    /// Answers leave when as many nodes as make a majority have the batch, also those without a vote (R18).
    LearnerCounted,
    /// A recovery from a lost majority does not raise the token counter (R26).
    NoLeap,
    /// A machine that may contain uncommitted entries goes on (R3).
    UncertainKept,
    /// Reads leave without asking a quorum (R4).
    NoConfirm,
    /// A new leader stamps with its own clock (R8).
    OwnClock,
    /// A new leader gives no lease its time again (R10).
    NoGrace,
    /// A leader whose disk is full goes on leading (R23).
    FullLeads,
    /// A leader that can send and not hear goes on sending (R6).
    NoProbe,
    /// A node that learns of its loss of acknowledged entries goes on voting (R24).
    ToldGoesOn,
    /// A change of the members that a leader left half made is completed by nobody (R18).
    HalfChanged,
    /// A node with a connection counts as alive, whether it answers or not (R19).
    ConnectedIsAlive,
    /// The time that a quiet leader records does not reach the log (A14).
    NoStamps,
}

/// All of them that [`run`](super::run) finds, and the checkers one of which has to find each. [`quiet`](super::quiet)
/// finds the last one.
pub const TABLE: &[(Mutant, &[Rule])] = &[
    (
        Mutant::AnswerBeforeQuorum,
        &[
            Rule::StaleRead,
            Rule::Durable,
            Rule::OneToken,
            Rule::TokenOrder,
            Rule::OneAnswer,
        ],
    ),
    // A node that lost durable entries may also find its own log contradicting itself.
    (
        Mutant::LyingDisk,
        &[Rule::SameLog, Rule::Durable, Rule::OneToken, Rule::Sound],
    ),
    // Two leaders of one term may be seen first by the engine's own assertions.
    (
        Mutant::VoteNotSynced,
        &[Rule::SameLog, Rule::Durable, Rule::OneToken, Rule::Sound],
    ),
    (
        Mutant::HandshakeOff,
        &[Rule::SameLog, Rule::Durable, Rule::OneToken],
    ),
    (
        Mutant::TornReturns,
        &[Rule::SameLog, Rule::Durable, Rule::OneToken],
    ),
    (
        Mutant::Forgetful,
        &[Rule::SameLog, Rule::Durable, Rule::OneToken, Rule::Sound],
    ),
    // Its log cannot take back the content of its snapshot.
    (
        Mutant::UncommittedFolded,
        &[Rule::SameLog, Rule::SameState, Rule::Sound],
    ),
    (
        Mutant::LearnerCounted,
        &[
            Rule::Durable,
            Rule::OneToken,
            Rule::OneHolder,
            Rule::TokenOrder,
        ],
    ),
    (Mutant::NoLeap, &[Rule::TokenOrder]),
    (
        Mutant::UncertainKept,
        &[
            Rule::SameState,
            Rule::Durable,
            Rule::OneToken,
            Rule::TokenOrder,
        ],
    ),
    // A leader that asks nobody does not find out, either, that others cannot be served any more.
    (Mutant::NoConfirm, &[Rule::StaleRead, Rule::Serves]),
    // The clocks are hours apart: leases end at once, or not for hours.
    (
        Mutant::OwnClock,
        &[Rule::OneHolder, Rule::FullTime, Rule::Serves],
    ),
    (Mutant::NoGrace, &[Rule::FullTime]),
    (Mutant::FullLeads, &[Rule::Serves]),
    (Mutant::NoProbe, &[Rule::Serves]),
    (
        Mutant::ToldGoesOn,
        &[Rule::SameLog, Rule::Durable, Rule::OneToken],
    ),
    (Mutant::HalfChanged, &[Rule::Serves]),
    (Mutant::ConnectedIsAlive, &[Rule::Serves]),
];
