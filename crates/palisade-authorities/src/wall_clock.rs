//! The time that people read.

use palisade_client::WallTime;

/// The machine's wall clock, for people to read only: no decision depends on it (rule A11).
#[expect(
    clippy::disallowed_methods,
    reason = "these systems do not tell the time of a grant; this one is only printed"
)]
pub(crate) fn wall() -> WallTime {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let millis = since.map_or(0, |since| since.as_millis());
    WallTime(u64::try_from(millis).unwrap_or(u64::MAX))
}
