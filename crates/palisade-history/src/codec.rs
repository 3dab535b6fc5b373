//! Rows in bytes: postcard, under a format number of the whole file.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The format of the file. A file of another one is begun anew: it holds nothing but the past.
pub(crate) const FORMAT: u64 = 1;

pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    // Writing to memory fails only for types without a known length, and there are none.
    postcard::to_allocvec(value).unwrap_or_default()
}

/// `None`: not of this format.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}
