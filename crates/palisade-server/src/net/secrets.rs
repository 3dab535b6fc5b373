//! A server's secrets: files, durable once written and readable by their owner only, and the secret that a cluster
//! shares.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use palisade_access::replace::{self, Durable};
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
///
/// On a small disk the log may take all room for a segment, find that it is not enough, and give it back: for two seconds
/// a full disk is tried again.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    retry_while_full(|| replace::write(path, content, Durable::Yes))
}

fn retry_while_full(mut write: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for _ in 0..TRIES {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => pause(),
            done => return done,
        }
    }
    write()
}

const TRIES: u32 = 40;

#[expect(
    clippy::disallowed_methods,
    reason = "nobody tells when another process or thread gives room back, and nothing is served yet"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

/// Fresh bytes from the operating system.
pub(super) fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_tried_again_and_other_errors_are_not() {
        let after = |full: u32, kind: io::ErrorKind| {
            let mut tries = 0;
            let done = retry_while_full(|| {
                tries += 1;
                if tries <= full {
                    Err(kind.into())
                } else {
                    Ok(())
                }
            });
            (done.map_err(|error| error.kind()), tries)
        };
        assert_eq!(after(2, io::ErrorKind::StorageFull), (Ok(()), 3));
        let denied = io::ErrorKind::PermissionDenied;
        assert_eq!(after(2, denied), (Err(denied), 1));
    }

    #[test]
    fn secrets_for_two_purposes_differ_and_are_the_same_on_all_nodes() {
        let [one, other] = [ClusterSecret([1; 32]), ClusterSecret([2; 32])];
        assert_eq!(
            one.derive(&["a", "b"]),
            ClusterSecret([1; 32]).derive(&["a", "b"])
        );
        for different in [
            one.derive(&["a"]),
            one.derive(&["ab"]),
            other.derive(&["a", "b"]),
        ] {
            assert_ne!(one.derive(&["a", "b"]), different);
        }
        assert_eq!(format!("{one:?}"), "ClusterSecret(…)");
    }
}
