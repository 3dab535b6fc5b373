//! Versions: what is written bears the lowest one that expresses it (rule R21).
//!
//! A new kind of entry or record gets a new version here, and a line in the function that says what needs it.
//! Nothing else changes: what needs no new kind is written as before, byte for byte, so a node of an older build
//! reads it.

use palisade_core::machine::{Closing, Record};
use palisade_core::{Away, Command, LockMode, Outcome};

/// The highest version of a batch that this build reads.
pub const BATCH_VERSION: u8 = 12;

/// The highest version of a batch that this process reads: [`BATCH_VERSION`]. With the feature `testing`, which no release has,
/// a test can start a node that reads no more than that of an older build.
#[must_use]
#[inline]
pub fn newest_batch() -> u8 {
    #[cfg(feature = "testing")]
    {
        static LIMIT: std::sync::OnceLock<u8> = std::sync::OnceLock::new();
        *LIMIT.get_or_init(|| {
            let limit = std::env::var("PALISADE_TEST_BATCH_VERSION").ok();
            let limit = limit.and_then(|limit| limit.parse().ok());
            limit.map_or(BATCH_VERSION, |limit: u8| {
                limit.clamp(BATCH_FLOOR, BATCH_VERSION)
            })
        })
    }
    #[cfg(not(feature = "testing"))]
    BATCH_VERSION
}

/// The highest version of a snapshot that this process reads, likewise.
pub fn newest_snapshot() -> u8 {
    newest_batch() - APART
}

/// The highest version of a snapshot that this build reads.
pub const SNAPSHOT_VERSION: u8 = 11;

/// The version of batches and snapshots that need nothing newer: that of the first build with clusters. No node of a
/// cluster reads less, so an even lower one would help nobody.
pub const BATCH_FLOOR: u8 = 3;
const SNAPSHOT_FLOOR: u8 = 2;

/// The lowest version of a batch in which a principal with a name asks for something.
pub const WITH_PRINCIPALS: u8 = 5;

/// The lowest version of a batch in which a single request becomes an orphan.
pub const WITH_ORPHANS: u8 = 12;

/// The lowest version of a batch that may contain this command.
#[must_use]
#[inline]
pub fn version_needed(command: &Command) -> u8 {
    match command {
        Command::Acquire(acquire) if !acquire.is_plain() => match acquire.mode {
            LockMode::Update | LockMode::Upgrade => 10,
            _ if !acquire.also.is_empty() => 9,
            LockMode::Shared => 4,
            LockMode::Permits(_) => 6,
            LockMode::Exclusive => 7,
        },
        Command::Resize { .. } => 6,
        Command::Proclaim { .. } => 8,
        Command::Grace(Away::Restored) => 11,
        Command::Orphan(_) | Command::Open { .. } | Command::Grace(Away::Down(_)) => WITH_ORPHANS,
        _ => BATCH_FLOOR,
    }
}

/// The lowest version of a snapshot that may contain this record. It follows from the log before the snapshot: a node that
/// has a snapshot and one that has all batches go by the same version. So a lease that was extended by a grace, which every
/// version of a batch may contain, needs none of its own.
fn record_needs(record: &Record) -> u8 {
    let by = match record.by().is_anonymous() {
        true => SNAPSHOT_FLOOR,
        false => 4,
    };
    by.max(match record {
        Record::Head(head) if head.restored.is_some() => 10,
        Record::Share(share) if share.update => 9,
        Record::Answered(answered) if !answered.also.is_empty() => WITH_SETS,
        Record::Waiter(waiter) if is_of_update(waiter.mode) => 9,
        Record::Grant(grant) if grant.closing.inherited.is_some() => 8,
        Record::Grant(grant) if grant.closing != Closing::NONE => 6,
        Record::Kept(kept) if kept.closed.is_some() => 6,
        Record::Waiter(waiter) if !waiter.delays.is_none() => 6,
        Record::Answered(answered) if matches!(answered.outcome, Outcome::Delayed(_)) => 6,
        Record::Share(share) if share.permits.is_some() => 5,
        Record::Kept(kept) if kept.permits.is_some() => 5,
        Record::Waiter(waiter) if waiter.mode.permits().is_some() => 5,
        Record::Answered(answered) if has_slots(&answered.outcome) => 5,
        Record::Share(_) => 3,
        Record::Waiter(waiter) if waiter.mode == LockMode::Shared => 3,
        Record::Answered(answered) if is_shared(&answered.outcome) => 3,
        _ => SNAPSHOT_FLOOR,
    })
}

/// The lowest version of a snapshot that may contain a set, held or waiting.
const WITH_SETS: u8 = 8;

/// What the records of one set have in common: the token of its grants, or the arrival of its waiting requests.
fn number_in_set(record: &Record) -> Option<(bool, u64)> {
    match record {
        Record::Grant(grant) => Some((true, grant.token.get())),
        Record::Waiter(waiter) => Some((false, waiter.arrival)),
        _ => None,
    }
}

fn is_of_update(mode: LockMode) -> bool {
    matches!(mode, LockMode::Update | LockMode::Upgrade)
}

fn is_shared(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Granted(granted) if granted.shared.is_some())
}

fn has_slots(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Granted(granted) if !granted.slots.is_empty())
}

/// Between the versions of batches and of the snapshots that need the same kinds.
const APART: u8 = BATCH_VERSION - SNAPSHOT_VERSION;

/// The version of a snapshot of these records, behind a log whose newest batch had version `batch`: a snapshot remembers
/// which kinds its log has used, so that a cluster goes on using them whoever is there.
pub fn snapshot_version(batch: u8, records: impl IntoIterator<Item = Record>) -> u8 {
    let mut needed = SNAPSHOT_FLOOR.max(batch - APART);
    let mut last = None;
    for record in records {
        if needed == SNAPSHOT_VERSION {
            break;
        }
        needed = needed.max(record_needs(&record));
        // Of a set there are two records with one number, next to each other.
        let number = number_in_set(&record);
        if number.is_some() && number == last {
            needed = needed.max(WITH_SETS);
        }
        last = number;
    }
    needed
}

/// The newest version of a batch in the log before a snapshot of this version.
pub fn batch_version(snapshot: u8) -> u8 {
    BATCH_FLOOR.max(snapshot + APART)
}
