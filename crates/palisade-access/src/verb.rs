//! The verbs of rules.

use std::fmt;
use std::str::FromStr;

/// An action that a rule allows on the locks of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Acquire, renew, release and abandon.
    Hold,
    /// The same for shared locks only.
    Share,
    /// See who holds and who waits, list, watch and read metrics.
    Observe,
    /// Take a lock from its holder.
    Break,
    /// Change the cluster and a manual clock.
    Admin,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Verb; 5] = [
        Verb::Hold,
        Verb::Share,
        Verb::Observe,
        Verb::Break,
        Verb::Admin,
    ];

    /// Its name in rules and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Verb::Hold => "hold",
            Verb::Share => "share",
            Verb::Observe => "observe",
            Verb::Break => "break",
            Verb::Admin => "admin",
        }
    }

    /// Whether a rule that grants `self` also allows `asked`.
    pub(crate) fn grants(self, asked: Verb) -> bool {
        self == asked || (self == Verb::Hold && asked == Verb::Share)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Verb {
    type Err = String;

    fn from_str(text: &str) -> Result<Verb, String> {
        let known = Verb::ALL.into_iter().find(|verb| verb.name() == text);
        known.ok_or_else(|| {
            let names = Verb::ALL.map(Verb::name);
            format!("{text:?} is no verb; the verbs are {}", names.join(", "))
        })
    }
}
