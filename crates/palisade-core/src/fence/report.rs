//! Telling somebody that a resource refused a late write.

use core::fmt;

use crate::name::{AuthorityId, LockName};
use crate::token::Token;

/// A late write: a fence refused it, because a newer holder had claimed the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late<'a> {
    /// The authority, if the pass names one.
    pub authority: Option<&'a AuthorityId>,
    /// The lock, if the pass names one.
    pub lock: Option<&'a LockName>,
    /// The refused token.
    pub token: Token,
    /// The resource.
    pub resource: &'a str,
    /// The highest token that the resource had seen.
    pub highest: Token,
    /// The refused operation in a word or two, without any of its content; may be empty.
    pub operation: &'a str,
}

/// Hears of late writes, in order to tell the authority; a lease and a client of `palisade_client` do.
///
/// It is called inside the refused operation, so it returns at once and never panics.
pub trait Reporter: fmt::Debug + Send + Sync {
    /// Takes note of a refused late write.
    fn late(&self, write: &Late<'_>);
}

/// What a pass carries for its reporter. No decision depends on it, so all of them are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report<'a> {
    pub(super) to: Option<&'a dyn Reporter>,
    pub(super) operation: Option<&'a str>,
}

impl Report<'_> {
    /// Reports to nobody.
    pub const NONE: Report<'static> = Report {
        to: None,
        operation: None,
    };
}

impl PartialEq for Report<'_> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Report<'_> {}
