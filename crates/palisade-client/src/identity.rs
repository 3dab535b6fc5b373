//! Client ids that the library generates.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::ClientId;

use crate::fault::Fault;
use crate::service::fresh_request_id;

/// Generates a client id for each acquire of one client.
///
/// An authority grants a lock again to the client id that holds it, so that a restarted process gets its own lock back.
/// Two tasks of one process must still exclude each other, so every acquire gets its own id unless the caller sets one.
#[derive(Debug)]
pub(crate) struct ClientIds {
    prefix: String,
    next: AtomicU64,
}

impl ClientIds {
    /// Creates a prefix from host, process and 128 random bits: readable in a listing, and never repeated.
    pub(crate) fn new() -> Result<ClientIds, Fault> {
        let node = rustix::system::uname();
        let host = printable(node.nodename().to_bytes());
        let random = fresh_request_id()?.to_hex();
        let prefix = format!("{host}-{}-{random}/", std::process::id());
        Ok(ClientIds {
            prefix,
            next: AtomicU64::new(1),
        })
    }

    /// Returns a client id that no other request has.
    pub(crate) fn next(&self) -> Result<ClientId, Fault> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // `format!` would grow its text step by step.
        let mut id = String::with_capacity(self.prefix.len() + DIGITS);
        id.push_str(&self.prefix);
        let _ = write!(id, "{number}");
        Ok(ClientId::new(&id)?)
    }
}

/// Replaces the characters of a host name that a client id does not allow.
fn printable(host: &[u8]) -> String {
    let letters = host.iter().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' => char::from(*byte),
        _ => '_',
    });
    letters.take(HOST_BYTES).collect()
}

/// The digits of the largest `u64`.
const DIGITS: usize = 20;

/// The most bytes used of the host name; the rest of the 255 bytes makes the id unique.
const HOST_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_between_acquires_and_between_clients() {
        let (one, other) = (ClientIds::new().unwrap(), ClientIds::new().unwrap());
        let ids = [
            one.next().unwrap(),
            one.next().unwrap(),
            other.next().unwrap(),
        ];
        assert!(
            ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2],
            "{ids:?}"
        );
    }

    #[test]
    fn an_unusual_or_long_host_name_still_makes_a_client_id() {
        assert_eq!(printable(b"db 1\xff.example"), "db_1_.example");
        assert_eq!(printable(&[b'x'; 300]).len(), HOST_BYTES);
    }
}
