//! The digest that distinguishes a repeated write from another write under the same number.

use crate::name::ObjectPath;
use crate::objects::request::Alter;

/// A checksum of a write's content and length. It detects a caller's mistake, not an attack.
pub(crate) fn digest(path: &ObjectPath, alter: &Alter) -> u64 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(path.as_str().as_bytes());
    // A path has no control characters, so this byte both ends it and names the kind.
    crc.update(&[alter.kind()]);
    let bytes = alter.bytes();
    crc.update(bytes);
    u64::from(crc.finalize()) << 32 | bytes.len() as u64 & 0xffff_ffff
}
