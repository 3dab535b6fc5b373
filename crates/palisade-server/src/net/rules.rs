//! The rules in force: the access file, read again at SIGHUP, the key sets of issuers, read again when they change, and the
//! JWTs that were verified.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use palisade_access::{Access, Bearer, Jwt, MAX_BYTES, Unknown, file};
use ring::digest::{SHA256, digest};

use super::audit::{Audit, AuditEvent};
use super::error::ServeError;
use palisade_pipeline::clock::wall;

pub(super) struct Rules {
    path: PathBuf,
    access: RwLock<Arc<Access>>,
    /// JWTs that were verified, by the SHA-256 of their text.
    verified: Mutex<HashMap<[u8; 32], Arc<Jwt>>>,
}

impl Rules {
    /// # Errors The file has a mistake, or asks for a feature that this server does not have.
    pub(super) fn open(path: &Path, audit: &Audit) -> Result<Rules, ServeError> {
        Ok(Rules {
            access: RwLock::new(Arc::new(read(path, audit.is_on())?)),
            path: path.to_owned(),
            verified: Mutex::default(),
        })
    }

    pub(super) fn current(&self) -> Arc<Access> {
        let access = self.access.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&access)
    }

    /// Reads a bearer token. A JWT that was verified lately is not verified again: signatures take time, and many calls
    /// show the same one. Whether it still counts is asked each time.
    pub(super) fn bearer(&self, access: &Access, text: &str) -> Result<Bearer, Unknown> {
        // Nothing that long is verified, nor worth a hash.
        let worth = text.len() <= MAX_BYTES && access.issuers().next().is_some();
        let mut hash = [0; 32];
        if worth {
            hash.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
            let verified = self.verified.lock();
            let verified = verified.unwrap_or_else(PoisonError::into_inner);
            if let Some(jwt) = verified.get(&hash) {
                return Ok(Bearer::Jwt(Arc::clone(jwt)));
            }
        }
        let bearer = access.bearer(text)?;
        if let Bearer::Jwt(jwt) = &bearer {
            let verified = self.verified.lock();
            let mut verified = verified.unwrap_or_else(PoisonError::into_inner);
            if verified.len() >= VERIFIED {
                let now = wall_seconds();
                verified.retain(|_, jwt| jwt.check_time(now).is_ok());
            }
            if verified.len() >= VERIFIED {
                verified.clear();
            }
            verified.insert(hash, Arc::clone(jwt));
        }
        Ok(bearer)
    }

    /// Reads the key sets again if one of their files is another one than those of `seen`.
    pub(super) fn reload_keys(&self, seen: &mut Vec<file::Stamp>, audit: &Audit) {
        let access = self.current();
        let stamps = file::key_stamps(&self.path, &access);
        if *seen == stamps {
            return;
        }
        *seen = stamps;
        let read = file::with_new_keys(&self.path, &access).transpose();
        let Some(read) = read else { return };
        audit.note(&AuditEvent::Keys {
            file: self.path.display().to_string(),
            taken: read.is_ok(),
            message: read.as_ref().err().map(ToString::to_string),
        });
        match read {
            Ok(access) => {
                *self.access.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
                tracing::info!(file = %self.path.display(), "new keys of issuers are in force");
            }
            Err(error) => tracing::error!(
                "new keys of issuers were refused, and the old ones stay in force: {error}"
            ),
        }
    }

    pub(super) fn reload(&self, audit: &Audit) {
        let read = read(&self.path, audit.is_on());
        audit.note(&AuditEvent::Rules {
            file: self.path.display().to_string(),
            taken: read.is_ok(),
            message: read.as_ref().err().map(ToString::to_string),
        });
        match read {
            Ok(access) => {
                for sentence in file::open_to_everybody(&self.path, &access) {
                    tracing::warn!("{sentence}");
                }
                *self.access.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
                tracing::info!(file = %self.path.display(), "new rules are in force");
            }
            Err(error) => {
                tracing::error!("new rules were refused, and the old ones stay in force: {error}");
            }
        }
    }
}

/// When the next of the file's tokens ends, in seconds since 1970 (0: none will), and how many have ended.
pub(super) fn token_ends(access: &Access) -> (u64, u64) {
    let now = wall_seconds();
    let ends = access.tokens().filter_map(|(_, _, end)| end);
    ends.fold((0, 0), |(next, ended), end| match end {
        end if end <= now => (next, ended + 1),
        end if next == 0 => (end, ended),
        end => (end.min(next), ended),
    })
}

/// Seconds since 1970.
pub(super) fn wall_seconds() -> u64 {
    wall().0 / 1_000
}

/// The number of verified JWTs in the cache.
const VERIFIED: usize = 4_096;

/// How often the files with key sets are compared.
pub(super) const LOOK: Duration = Duration::from_secs(2);

/// Reads an access file, and checks that this server supports everything in it.
pub(super) fn read(path: &Path, has_audit: bool) -> Result<Access, ServeError> {
    let access = file::read(path)?;
    if let Some(prefix) = access.audited().next()
        && !has_audit
    {
        return Err(ServeError::NoAudit {
            file: path.to_owned(),
            prefix: prefix.to_owned(),
        });
    }
    Ok(access)
}
