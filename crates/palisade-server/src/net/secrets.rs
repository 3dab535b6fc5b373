//! Secrets of a server: files, durable once written and readable by their owner only, and what a cluster shares.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use ring::hmac;

/// 32 bytes that only the nodes of a cluster know, and of which they make their common keys.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterSecret(pub [u8; 32]);

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(…)")
    }
}

impl ClusterSecret {
    /// A key for one purpose: HMAC-SHA-256 of its parts, of which none contains a zero.
    pub(super) fn derive(&self, purpose: &[&str]) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let mut derived = [0; 32];
        derived.copy_from_slice(hmac::sign(&key, purpose.join("\0").as_bytes()).as_ref());
        derived
    }
}

/// Writes a file: durable when it returns. A reader sees the old one or the new one.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".tmp");
    let _ = fs::remove_file(&new);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Fresh bytes from the operating system.
pub(super) fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}
