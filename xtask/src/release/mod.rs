//! The release.

pub(crate) mod packages;
