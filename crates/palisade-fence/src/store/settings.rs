//! The settings of a store.

use palisade_core::fence::Rule;
use palisade_wal::Options;

use crate::objects::StoreLimits;
use crate::store::OpenError;

/// The settings of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The rule of its fences. The mode is recorded in the directory and cannot be changed later.
    pub rule: Rule,
    /// The limits on its size; objects may have up to 32 MiB.
    pub limits: StoreLimits,
    /// The size of the queue in KiB. When it is full, callers wait before their operations enter it.
    pub pending_kib: u32,
    /// The settings of its log.
    pub log: Options,
}

impl Settings {
    /// The largest value of [`StoreLimits::object_bytes`]: an object fits into one frame of the log with room to
    /// spare.
    pub const MAX_OBJECT_BYTES: u64 = 32 << 20;

    /// Returns the same settings with another rule.
    #[must_use]
    pub fn with_rule(self, rule: Rule) -> Settings {
        Settings { rule, ..self }
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        let StoreLimits {
            object_bytes,
            total_bytes,
        } = self.limits;
        in_range("object_bytes", object_bytes, 1, Settings::MAX_OBJECT_BYTES)?;
        in_range("total_bytes", total_bytes, object_bytes, u64::MAX >> 1)?;
        in_range("pending_kib", self.pending_kib.into(), 1, MAX_PENDING_KIB)
    }
}

impl Default for Settings {
    /// The claim fence with the default limits, and 64 MiB in the queue.
    fn default() -> Settings {
        Settings {
            rule: Rule::CLAIM,
            limits: StoreLimits::DEFAULT,
            pending_kib: 64 << 10,
            log: Options::default(),
        }
    }
}

fn in_range(name: &'static str, given: u64, min: u64, max: u64) -> Result<(), OpenError> {
    if (min..=max).contains(&given) {
        Ok(())
    } else {
        Err(OpenError::Setting {
            name,
            given,
            min,
            max,
        })
    }
}

/// 16 GiB.
const MAX_PENDING_KIB: u64 = 16 << 20;

const _: () = assert!(Settings::MAX_OBJECT_BYTES * 2 <= palisade_wal::MAX_PAYLOAD as u64);
