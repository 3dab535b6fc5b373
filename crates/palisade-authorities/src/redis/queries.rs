//! Queries that scan all locks.

use palisade_core::{LockName, RequestId};

use super::{ROOT, Redis, fault};
use palisade_client::Fault;
use palisade_client::service::{Cursor, Page};

/// One step of a scan: an unordered page, which may be empty.
pub(super) async fn list(
    redis: &Redis,
    prefix: String,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page, Fault> {
    let cursor: u64 = after
        .map_or(Ok(0), |cursor| cursor.0.parse())
        .map_err(|_| Fault::invalid("the cursor is from a listing of another authority"))?;
    let step = step(redis, &prefix, cursor, limit.max(1)).await?;
    let mut page = Page {
        locks: Vec::with_capacity(step.held.len()),
        next: (step.next != 0).then(|| Cursor(step.next.to_string().into())),
    };
    for (lock, _) in step.held {
        let view = redis.shown(lock).await?;
        // The lock may have been released since the scan.
        page.locks.extend(view.holder.is_some().then_some(view));
    }
    Ok(page)
}

/// Gives a request up. After the first step it is never granted. If this process does not know which lock it
/// asked for, every lock is searched for a grant that the request got earlier.
pub(super) async fn abandon(redis: &Redis, request: RequestId) -> Result<(), Fault> {
    let id = request.to_hex();
    let lock = redis.pending_locks.lock_of(&request);
    let lock = lock.as_ref().map_or("", LockName::as_str);
    let answer = redis.run(&redis.scripts.abandon, lock, &[&id]).await?;
    if answer.how() == "unknown" {
        let mut cursor = 0;
        loop {
            let step = step(redis, "", cursor, AT_ONCE).await?;
            for (lock, _) in step.held.iter().filter(|(_, by)| *by == id) {
                redis.run(&redis.scripts.abandon, lock, &[&id]).await?;
            }
            cursor = step.next;
            if cursor == 0 {
                break;
            }
        }
    }
    redis.pending_locks.forget(&request);
    Ok(())
}

const AT_ONCE: u32 = 1_000;

/// One step of a scan over all locks.
struct ScanStep {
    /// The locks held, each with the request that was granted it.
    held: Vec<(LockName, String)>,
    /// The cursor of the next step; 0 after the last.
    next: u64,
}

async fn step(redis: &Redis, prefix: &str, cursor: u64, count: u32) -> Result<ScanStep, Fault> {
    let locks = format!("{ROOT}lock:");
    let scan = redis::cmd("SCAN")
        .arg(cursor)
        .arg("MATCH")
        .arg(format!("{locks}{}*", escaped(prefix)))
        .arg("COUNT")
        .arg(count)
        .to_owned();
    let mut connection = redis.connection.clone();
    let found = scan.query_async(&mut connection).await;
    let (next, keys): (u64, Vec<String>) = found.map_err(fault::of)?;
    let mut step = ScanStep {
        held: Vec::new(),
        next,
    };
    if keys.is_empty() {
        return Ok(step);
    }
    let read = redis::cmd("MGET").arg(&keys).to_owned();
    let found = read.query_async(&mut connection).await;
    let records: Vec<Option<String>> = found.map_err(fault::of)?;
    for (key, record) in keys.iter().zip(records) {
        if let Some(name) = key.strip_prefix(&locks)
            && let Some(by) = record.as_deref().and_then(holder)
        {
            step.held.push((LockName::new(name)?, by.to_owned()));
        }
    }
    Ok(step)
}

/// The request that holds a lock according to its record; `None` if the lock is free.
fn holder(record: &str) -> Option<&str> {
    let mut words = record.split(' ');
    let held = matches!(words.next(), Some("held" | "wanted"));
    words.next().filter(|_| held)
}

/// The prefix with the special characters of a pattern escaped.
fn escaped(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len());
    for letter in prefix.chars() {
        if "*?[]\\^-".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_taken_literally() {
        assert_eq!(escaped("a*b?[c]\\"), "a\\*b\\?\\[c\\]\\\\");
    }
}
