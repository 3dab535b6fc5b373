//! The checksum that distinguishes a repeated write from another write under the same number.

use http::header::CONTENT_LENGTH;
use http::request::Parts;

/// A checksum of a request's method, address, declared length and body. It detects a caller's mistake, not an
/// attack.
pub(super) fn fingerprint(head: &Parts, body: &[u8]) -> u64 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(head.method.as_str().as_bytes());
    crc.update(b" ");
    crc.update(head.uri.to_string().as_bytes());
    crc.update(b"\n");
    if let Some(length) = head.headers.get(CONTENT_LENGTH) {
        crc.update(length.as_bytes());
    }
    crc.update(b"\n");
    crc.update(body);
    u64::from(crc.finalize()) << 32 | body.len() as u64 & 0xffff_ffff
}
