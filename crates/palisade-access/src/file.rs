//! The access file.
//!
//! ```toml
//! [auth]
//!
//! [[auth.principals]]
//! name = "backup"
//! certificates = ["spiffe://home/backup"]
//! uids = [998]                      # of processes that connect to the Unix socket
//! subjects = ["system:serviceaccount:home:backup"]      # of JWTs
//!
//! [[auth.issuers]]
//! issuer = "https://kubernetes.default.svc.cluster.local"
//! audience = "palisade"
//! keys = "jwks.json"                # a JWK set; from this file's folder, unless it begins with /
//!
//! [[auth.rules]]
//! principal = "backup"
//! prefix = "backup/"
//! verbs = ["hold", "observe"]
//!
//! [[auth.tokens]]
//! id = "5f0c41aa"
//! principal = "backup"
//! sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
//!
//! [[auth.revoked]]
//! id = "17ab90ce"
//!
//! [[auth.quotas]]
//! prefix = "backup/"                # or principal = "backup", or address = "10.0.0.7"; "*" is each of them
//! locks = 1000
//! requests_per_second = 200
//!
//! [[auth.audit]]
//! prefix = "backup/"                # the audit file has each grant of these locks, and its end
//! ```
//!
//! Making and revoking a token only appends to it, so comments and order stay.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::jwt::{Issuer, Keys};
use crate::{Access, Token};

/// Why an access file is not taken, or not changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It contains a mistake.
    #[error("{}: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The mistake.
        source: crate::Error,
    },
}

/// Reads and checks an access file.
///
/// # Errors
/// [`Error`] names the file and the first mistake.
pub fn read(path: &Path) -> Result<Access, Error> {
    let access = parsed(path, &text(path)?)?;
    Ok(with_new_keys(path, &access)?.unwrap_or(access))
}

/// The same rules with the key sets as they are in their files now; `None` if they have not changed.
///
/// # Errors
/// [`Error`] names the file of the first key set that cannot be used.
pub fn with_new_keys(path: &Path, access: &Access) -> Result<Option<Access>, Error> {
    let (mut new, mut changed) = (access.issuers.clone(), false);
    for issuer in new.values_mut() {
        let file = issuer.path(path);
        let mut text = Vec::new();
        let read = fs::File::open(&file);
        read.and_then(|read| read.take(MOST_OF_A_KEY_SET).read_to_end(&mut text))
            .map_err(|source| io_error(&file, source))?;
        let keys = Keys::parse(&text).map_err(|why| content(&file, crate::Error(why)))?;
        changed |= keys != issuer.keys;
        issuer.keys = keys;
    }
    Ok(changed.then(|| Access {
        issuers: new,
        ..access.clone()
    }))
}

/// What tells a file from the one that was there before: inode, length and the time of the last change.
pub type Stamp = Option<(u64, u64, SystemTime)>;

/// The stamps of the files with key sets.
#[must_use]
pub fn key_stamps(path: &Path, access: &Access) -> Vec<Stamp> {
    let stamp = |issuer: &Issuer| {
        let metadata = fs::metadata(issuer.path(path)).ok()?;
        Some((metadata.ino(), metadata.len(), metadata.modified().ok()?))
    };
    access.issuers.values().map(stamp).collect()
}

/// A set of some hundred keys.
const MOST_OF_A_KEY_SET: u64 = 1 << 20;

/// Adds a token of a principal that the file names.
///
/// # Errors
/// [`Error`]; the file stays as it was.
pub fn add_token(path: &Path, token: &Token, principal: &str) -> Result<(), Error> {
    let (id, sha256) = (token.id(), token.secret().stored());
    append(
        path,
        &format!(
            "\n[[auth.tokens]]\nid = \"{id}\"\nprincipal = {principal:?}\nsha256 = \"{sha256}\"\n"
        ),
    )
}

/// Revokes a token.
///
/// # Errors
/// [`Error`], also if there is no such token; the file stays as it was.
pub fn revoke_token(path: &Path, id: &str) -> Result<(), Error> {
    let access = read(path)?;
    if !access.tokens().any(|(known, _)| known == id) {
        let why = format!("there is no token {id:?}, or it was revoked already");
        return Err(content(path, crate::Error(why)));
    }
    append(path, &format!("\n[[auth.revoked]]\nid = {id:?}\n"))
}

/// Writes the longer text beside the file, checks it, and puts it into its place.
fn append(path: &Path, more: &str) -> Result<(), Error> {
    let mut longer = text(path)?;
    if !longer.ends_with('\n') {
        longer.push('\n');
    }
    longer.push_str(more);
    parsed(path, &longer)?;
    let failed = |source| io_error(path, source);
    let mode = fs::metadata(path).map_err(failed)?.permissions();
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let write = || {
        let mut file = fs::File::create(&new)?;
        file.set_permissions(mode.clone())?;
        file.write_all(longer.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(failed)
}

fn text(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| io_error(path, source))
}

fn parsed(path: &Path, text: &str) -> Result<Access, Error> {
    Access::parse(text).map_err(|source| content(path, source))
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.to_owned(),
        source,
    }
}

fn content(path: &Path, source: crate::Error) -> Error {
    Error::Content {
        path: path.to_owned(),
        source,
    }
}
