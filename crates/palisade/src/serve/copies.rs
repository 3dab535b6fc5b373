//! `palisade backup` and `palisade restore`.

use std::path::Path;

use palisade_server::durable;
use palisade_wal::OpenError;
use serde_json::json;

/// Copies the authority in `data`, running or not, to the new directory `to`.
///
/// The copy is consistent: a prefix of the log in which everything was acknowledged. It cannot be
/// served from; only `palisade restore` opens it.
pub(crate) fn backup(data: &Path, to: &Path, as_json: bool) -> Result<(), OpenError> {
    let report = palisade_wal::backup(data, to)?;
    let entries = report.last.map_or(0, |last| last.get());
    if as_json {
        println!(
            "{}",
            json!({"backup": to, "authority": report.identity.owner.to_string(), "entries": entries})
        );
    } else {
        println!(
            "backed up {} to {} ({entries} log entries)",
            data.display(),
            to.display()
        );
        println!(
            "open it with: palisade restore {} --data NEW-DIRECTORY",
            to.display()
        );
    }
    Ok(())
}

/// Makes a new authority directory from a backup. Every token issued from then on is higher than any
/// that was issued before.
pub(crate) fn restore(backup: &Path, data: &Path, as_json: bool) -> Result<(), durable::Error> {
    let restored = durable::restore(backup, data)?;
    let next_token = restored.next_token.map(|token| token.get());
    let identity = &restored.identity;
    if as_json {
        println!(
            "{}",
            json!({
                "data": data,
                "authority": &*identity.authority,
                "incarnation": identity.incarnation,
                "next_token": next_token,
                "locks": restored.locks,
            })
        );
        return Ok(());
    }
    println!("restored {} into {}", backup.display(), data.display());
    println!("  authority    {} (as before)", identity.authority);
    println!("  incarnation  {} (new)", identity.incarnation);
    println!(
        "  next token   {}",
        next_token.map_or("none: the range is exhausted".into(), |token| token
            .to_string())
    );
    println!(
        "  {} locks are held as they were at the backup; their leases get their full time again",
        restored.locks
    );
    println!();
    println!(
        "Make sure the old server never runs again, then: palisade serve --data {}",
        data.display()
    );
    Ok(())
}
