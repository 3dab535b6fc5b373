//! The lease's secret key: from the environment, a file or standard input, never from a flag, where
//! every user of the machine could read it in the list of processes.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use palisade_core::LeaseKey;

use super::failure::Failure;

/// What holds it.
pub(crate) const VARIABLE: &str = "PALISADE_LOCK_TOKEN";

/// Reads the key.
pub(super) fn lock_token(file: Option<&Path>) -> Result<LeaseKey, Failure> {
    let (text, from) = match file {
        Some(path) if path.as_os_str() == "-" => (read(io::stdin())?, "standard input".to_owned()),
        Some(path) => (open(path)?, path.display().to_string()),
        None => (variable()?, VARIABLE.to_owned()),
    };
    // The text is not repeated: it may be a secret of another kind.
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

fn open(path: &Path) -> Result<String, Failure> {
    let file = File::open(path);
    let file = file.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    read(file)
}

/// A key has 32 digits; what is endless is not one.
fn read(from: impl Read) -> Result<String, Failure> {
    let mut text = String::new();
    let read = from.take(4_096).read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("cannot read the lock_token: {error}")))?;
    Ok(text)
}
