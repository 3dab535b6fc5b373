//! The record of a holder's steps. After a rejection, the holder can undo effects that no fence guards.
//!
//! ```text
//!   note("charge", Fate::Admitted) ─ note("reserve", Fate::Admitted) ─ note("book", Fate::Rejected) ─┐
//!                                                                                                    ▼
//!   to_undo: newest first, each step with its outcome                      book ✗ ─ reserve ✓ ─ charge ✓
//! ```
//!
//! A rejected transaction rolls back its own writes, but not a payment, a mail or a file elsewhere. The holder
//! compensates for those, as in Garcia-Molina and Salem 1987, "Sagas".

use palisade_core::fence::Reject;

use crate::admitted::Admitted;
use crate::error::Error;

/// The outcome of one step under a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The step took effect, and a newer holder sees it.
    Admitted,
    /// The step did not take effect.
    Rejected(Reject),
    /// Another error occurred, and the step may or may not have taken effect. Before you undo anything, repeat it under
    /// the same sequence number, or read the resource.
    Unknown,
}

impl Fate {
    /// Returns the fate that an answer of a [`Fence`](crate::Fence) implies.
    pub fn of<T>(answer: &Result<Admitted<T>, Error>) -> Fate {
        match answer {
            Ok(_) => Fate::Admitted,
            Err(Error::Rejected(reject)) => Fate::Rejected(reject.clone()),
            Err(_) => Fate::Unknown,
        }
    }
}

/// The steps of one holder in the order in which they were tried, each with its fate.
///
/// ```
/// use palisade_core::Token;
/// use palisade_fence::{Account, Edit, Fate, Fence, StoreLimits, Pass, Rule, Write, memory};
///
/// # async fn book() -> Result<(), Box<dyn std::error::Error>> {
/// let seats = memory::Store::new(Rule::CLAIM, StoreLimits::DEFAULT).resource("seat:12A")?;
/// let (mine, newer) = (Pass::new(Token::new(33)?), Pass::new(Token::new(34)?));
/// let mut account = Account::new();
/// let reserved = seats.write(mine, Write::new("/reserved", Edit::Put(b"Alice"))).await;
/// assert!(account.note("reserve", Fate::of(&reserved)));
/// assert!(account.note("charge", Fate::Admitted)); // at the bank, which has no fence
/// seats.claim(newer).await?; // the lease ended meanwhile
/// let booked = seats.write(mine, Write::new("/passenger", Edit::Put(b"Alice"))).await;
/// assert!(!account.note("book", Fate::of(&booked)));
///
/// let mut undone = Vec::new();
/// for (step, fate) in account.to_undo() {
///     if *step == "charge" && *fate == Fate::Admitted {
///         undone.push("money back"); // or await what undoes it
///     }
/// }
/// assert_eq!(undone, ["money back"]);
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(book()).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account<S>(Vec<(S, Fate)>);

impl<S> Default for Account<S> {
    fn default() -> Account<S> {
        Account::new()
    }
}

impl<S> Account<S> {
    /// Creates an account without steps.
    #[must_use]
    pub const fn new() -> Account<S> {
        Account(Vec::new())
    }

    /// Records the outcome of a step; returns whether to continue with the next one.
    #[must_use = "a step that was rejected ends the work"]
    pub fn note(&mut self, step: S, fate: Fate) -> bool {
        self.0.push((step, fate));
        self.is_clean()
    }

    /// Returns whether every step was admitted, so that there is nothing to undo.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.0.iter().all(|(_, fate)| *fate == Fate::Admitted)
    }

    /// Returns every step, oldest first.
    pub fn steps(&self) -> impl Iterator<Item = (&S, &Fate)> {
        self.0.iter().map(|(step, fate)| (step, fate))
    }

    /// Returns the step that was rejected first, and the reason.
    #[must_use]
    pub fn rejected(&self) -> Option<(&S, &Reject)> {
        self.steps().find_map(|(step, fate)| match fate {
            Fate::Rejected(reject) => Some((step, reject)),
            _ => None,
        })
    }

    /// Returns the steps that have to be undone, newest first: all of them, or none if all were admitted. A rejected step
    /// is among them, because it may have had parts that no fence guards. It takes no closure, because the future of one
    /// that borrows would not be `Send`.
    pub fn to_undo(&self) -> impl Iterator<Item = (&S, &Fate)> {
        let steps = if self.is_clean() {
            &[]
        } else {
            self.0.as_slice()
        };
        steps.iter().rev().map(|(step, fate)| (step, fate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_undone_newest_first() {
        let mut account = Account::new();
        assert!(account.note(1, Fate::Admitted));
        assert!(account.note(2, Fate::Admitted));
        assert!(!account.note(3, Fate::Rejected(Reject::Missing)));
        assert_eq!(account.rejected(), Some((&3, &Reject::Missing)));
        let steps: Vec<_> = account.to_undo().map(|(step, _)| *step).collect();
        assert_eq!(steps, [3, 2, 1]);
    }

    #[test]
    fn nothing_is_undone_if_every_step_was_admitted() {
        let mut account = Account::new();
        assert!(account.note("only", Fate::Admitted));
        assert_eq!(account.to_undo().count(), 0);
    }
}
