//! The keys of locks, the lease ids of requests, and the revisions of tokens.

use palisade_core::{LockName, Token};

/// The range of a lock's keys. Names are printable, so a NUL reliably ends one.
pub(super) fn range(root: &str, lock: &LockName) -> (Vec<u8>, Vec<u8>) {
    let start = [root.as_bytes(), lock.as_bytes(), b"\0"].concat();
    let end = [root.as_bytes(), lock.as_bytes(), b"\x01"].concat();
    (start, end)
}

/// The lease id of a request: 62 random bits of its id, never zero (zero would let etcd choose).
pub(super) fn lease_id(request: &[u8; 16]) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&request[..8]);
    (i64::from_be_bytes(bytes) & (i64::MAX >> 1)) | 1 << 62
}

pub(super) fn revision(token: Token) -> i64 {
    // A token has 53 bits.
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}
