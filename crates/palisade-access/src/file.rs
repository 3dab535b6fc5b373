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
//! expires = "2030-01-31T12:00:00Z"  # without it, the token counts until it is revoked
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
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::jwt::{Issuer, Keys};
use crate::replace::{self, NotEdited};
use crate::{Access, BearerToken};

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

/// Distinguishes a file from the previous one at the same path: inode, length and the time of the last change.
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

/// Adds a token for a principal in the file; it expires at `expires`, if that is given.
///
/// # Errors
/// [`Error`]; the file stays as it was.
pub fn add_token(
    path: &Path,
    token: &BearerToken,
    principal: &str,
    expires: Option<jiff::Timestamp>,
) -> Result<(), Error> {
    let (id, sha256) = (token.id(), token.secret().stored());
    let expires = expires.map_or(String::new(), |at| format!("expires = \"{at:.0}\"\n"));
    append(
        path,
        &format!(
            "\n[[auth.tokens]]\nid = \"{id}\"\nprincipal = {principal:?}\nsha256 = \"{sha256}\"\n{expires}"
        ),
        |_| Ok(()),
    )
}

/// Revokes a token.
///
/// # Errors
/// [`Error`], also if there is no such token; the file stays as it was.
pub fn revoke_token(path: &Path, id: &str) -> Result<(), Error> {
    append(
        path,
        &format!("\n[[auth.revoked]]\nid = {id:?}\n"),
        |access| {
            if access.tokens().any(|(known, ..)| known == id) {
                Ok(())
            } else {
                let why = format!("there is no token {id:?}, or it was revoked already");
                Err(crate::Error(why))
            }
        },
    )
}

/// Replaces the file by a longer text, if `allowed` accepts the current content and the longer text has no mistake.
fn append(
    path: &Path,
    more: &str,
    allowed: impl Fn(&Access) -> Result<(), crate::Error>,
) -> Result<(), Error> {
    let edited = replace::edit(path, |old| {
        let old = std::str::from_utf8(old)
            .map_err(|_| crate::Error("it is not UTF-8 text".to_owned()))?;
        allowed(&Access::parse(old)?)?;
        let end = if old.ends_with('\n') { "" } else { "\n" };
        let longer = format!("{old}{end}{more}");
        Access::parse(&longer)?;
        Ok(longer.into_bytes())
    });
    edited.map_err(|error| match error {
        NotEdited::Io(source) => io_error(path, source),
        NotEdited::Refused(source) => content(path, source),
    })
}

/// Files that everybody on this machine may change: the access file, a file with keys of issuers, or a directory of theirs. Each
/// is a sentence for the operator.
#[must_use]
pub fn open_to_everybody(path: &Path, access: &Access) -> Vec<String> {
    let files = access.issuers.values().map(|issuer| issuer.path(path));
    let mut open = Vec::new();
    for file in std::iter::once(path.to_owned()).chain(files) {
        let file = fs::canonicalize(&file).unwrap_or(file);
        let folder = file.parent().map(Path::to_owned);
        for path in std::iter::once(file).chain(folder) {
            let Ok(metadata) = fs::metadata(&path) else {
                continue;
            };
            let mode = metadata.mode() & 0o7777;
            // In a sticky directory, only the owner of a file can put another one into its place.
            if mode & 0o002 == 0 || (metadata.is_dir() && mode & 0o1000 != 0) {
                continue;
            }
            let path = path.display();
            let sentence = format!(
                "{path} has mode {mode:04o}: every user of this machine can change the rules of access; type: chmod o-w {path}"
            );
            if !open.contains(&sentence) {
                open.push(sentence);
            }
        }
    }
    open
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
