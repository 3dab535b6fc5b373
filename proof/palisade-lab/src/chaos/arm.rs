//! The three ways to guard the same set.

use clap::ValueEnum;
use serde::Serialize;

/// How the resource checks tokens, and whether holders claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Arm {
    /// No check: the lock alone is trusted.
    Unfenced,
    /// A write is rejected if its token is below the highest token of any write.
    Textbook,
    /// The holder raises the fence before its first read, and reads with its token.
    Claim,
}

impl Arm {
    /// All arms, from the worst to the best.
    pub(crate) const ALL: [Arm; 3] = [Arm::Unfenced, Arm::Textbook, Arm::Claim];

    /// The arguments of `palisade store`.
    pub(super) fn store_arguments(self) -> &'static [&'static str] {
        match self {
            Arm::Unfenced => &["--danger-unfenced"],
            Arm::Textbook => &["--fence", "textbook"],
            Arm::Claim => &[],
        }
    }

    /// Its name in tables.
    pub(super) fn word(self) -> &'static str {
        match self {
            Arm::Unfenced => "no fence",
            Arm::Textbook => "textbook fence",
            Arm::Claim => "claim fence",
        }
    }
}
