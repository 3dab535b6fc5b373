//! A file that no server has open, as an operator looks at it.

use std::path::Path;

use redb::{Database, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _};

use crate::codec::decode;
use crate::ledger::{Error, FACTS, GAPS, OPEN};
use crate::row::Gap;

/// The contents of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistorySummary {
    /// The number of the last event in it.
    pub last: u64,
    /// Grants that lasted when it was written.
    pub lasting: u64,
    /// Grants that ended.
    pub ended: u64,
    /// How many ranges of events it lacks.
    pub gaps: u64,
    /// The latest of them.
    pub latest_gap: Option<Gap>,
}

/// Looks into a file and changes nothing. While a server has it open, it cannot be read; neither can a file that the next
/// start has to repair, because its server was killed.
///
/// # Errors
/// If it cannot be read.
pub fn look(path: &Path) -> Result<HistorySummary, Error> {
    let read = Database::builder().open_read_only(path)?.begin_read()?;
    let facts = read.open_table(FACTS)?;
    let gaps = read.open_table(GAPS)?;
    let latest = gaps.last()?;
    Ok(HistorySummary {
        last: facts.get("last")?.map_or(0, |value| value.value()),
        lasting: read.open_table(OPEN)?.len()?,
        ended: facts.get("ended")?.map_or(0, |value| value.value()),
        gaps: gaps.len()?,
        latest_gap: latest.and_then(|(_, value)| decode::<Gap>(value.value())),
    })
}
