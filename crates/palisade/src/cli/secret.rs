//! The lease's secret key: from the environment, a file or standard input. Never from a flag, because every
//! user of the machine can read flags in the process list.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use palisade_client::{BearerToken, Fault};
use palisade_core::LeaseKey;

use super::failure::Failure;

/// The environment variable of the key.
pub(crate) const VARIABLE: &str = "PALISADE_LOCK_TOKEN";

/// Reads the key.
pub(super) fn lock_token(file: Option<&Path>) -> Result<LeaseKey, Failure> {
    let (text, from) = match file {
        Some(path) if path.as_os_str() == "-" => (read(io::stdin())?, "standard input".to_owned()),
        Some(path) => (open(path)?, path.display().to_string()),
        None => (variable()?, VARIABLE.to_owned()),
    };
    // Does not repeat the text: it may be another secret.
    LeaseKey::from_hex(text.trim()).map_err(|invalid| Failure::usage(format!("{from}: {invalid}")))
}

fn variable() -> Result<String, Failure> {
    match std::env::var(VARIABLE) {
        Ok(text) => Ok(text),
        Err(std::env::VarError::NotUnicode(_)) => Err(Failure::usage(format!(
            "{VARIABLE}: lock_token must be 32 hexadecimal digits"
        ))),
        Err(std::env::VarError::NotPresent) => {
            let hint = format!(
                "set {VARIABLE} (as `palisade acquire --export` does), or name a file with --lock-token-file"
            );
            Err(
                Failure::usage("the lock_token that `palisade acquire` printed is missing")
                    .hint(hint),
            )
        }
    }
}

/// The caller's bearer token, from a file or the environment; `None` without either.
pub(super) fn token(file: Option<&Path>) -> Result<Option<BearerToken>, Fault> {
    if let Some(path) = file {
        return BearerToken::from_file(path).map(Some);
    }
    let text = match std::env::var(TOKEN) {
        Ok(text) => text,
        Err(std::env::VarError::NotPresent) => return Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => String::new(),
    };
    let token = BearerToken::new(&text);
    token
        .map(Some)
        .map_err(|fault| Fault::invalid(format!("{TOKEN}: {}", fault.reason())))
}

/// The environment variable of the token.
const TOKEN: &str = "PALISADE_TOKEN";

fn open(path: &Path) -> Result<String, Failure> {
    let file = File::open(path);
    let file = file.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    read(file)
}

/// Reads at most a few bytes: a key has 32 digits, and the input may be endless.
fn read(from: impl Read) -> Result<String, Failure> {
    let mut text = String::new();
    let read = from.take(4_096).read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("cannot read the lock_token: {error}")))?;
    Ok(text)
}
