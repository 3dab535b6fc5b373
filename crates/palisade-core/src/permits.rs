//! Permits of a semaphore, and its numbered slots (rules P1–P4).

use alloc::string::String;
use core::fmt;

use crate::invalid::Invalid;
use crate::limits;
use crate::name::LockName;

/// The number of permits that a request wants, and the number that the semaphore has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permits {
    wanted: u8,
    of: u8,
}

impl Permits {
    /// Requests `wanted` permits of a semaphore that has `of`.
    ///
    /// # Errors
    /// [`Invalid::Permits`] unless `1 ≤ wanted ≤ of ≤` [`PERMITS`](limits::PERMITS).
    pub const fn new(wanted: u32, of: u32) -> Result<Permits, Invalid> {
        if wanted == 0 || wanted > of || of > limits::PERMITS {
            return Err(Invalid::Permits { wanted, of });
        }
        // Both are at most `limits::PERMITS`.
        Ok(Permits {
            wanted: wanted as u8,
            of: of as u8,
        })
    }

    /// Returns the number of wanted permits.
    #[must_use]
    pub const fn wanted(self) -> u32 {
        self.wanted as u32
    }

    /// Returns the semaphore's number of permits.
    #[must_use]
    pub const fn of(self) -> u32 {
        self.of as u32
    }
}

impl fmt::Display for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.wanted, self.of)
    }
}

/// Slots of a semaphore, numbered from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slots(u64);

impl Slots {
    /// No slot, as in a grant of another kind of lock.
    pub const NONE: Slots = Slots(0);

    /// Creates slots from one bit for each, the lowest for slot 1.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Slots {
        Slots(bits)
    }

    /// Returns one bit for each slot, as [`Slots::from_bits`] takes them.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the slots 1 ..= `of`.
    #[must_use]
    pub const fn all(of: u32) -> Slots {
        match of {
            0 => Slots::NONE,
            1..=63 => Slots((1 << of) - 1),
            _ => Slots(u64::MAX),
        }
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the slots of `self` that are not in `taken`.
    #[must_use]
    pub const fn without(self, taken: Slots) -> Slots {
        Slots(self.0 & !taken.0)
    }

    /// Returns the slots of both.
    #[must_use]
    pub const fn with(self, more: Slots) -> Slots {
        Slots(self.0 | more.0)
    }

    /// Returns the `count` lowest slots; `None` if there are fewer.
    #[must_use]
    pub fn lowest(self, count: u32) -> Option<Slots> {
        let enough = self.count() >= count;
        let mut rest = self.0;
        for _ in 0..count {
            rest &= rest.wrapping_sub(1);
        }
        enough.then_some(Slots(self.0 & !rest))
    }

    /// Returns the slot numbers, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (1..=u64::BITS).filter(move |slot| self.0 & 1 << (slot - 1) != 0)
    }
}

/// Returns the resource id of one slot at a fence: `LOCK~SLOT` (rule P3).
///
/// Claim and use it with the grant's token, at a fence of the same authority. URLs need no escape for `~`, so a fence
/// in front of an HTTP service sees the whole key; a `#` would cut the slot off.
///
/// Two slots never share a key: the slot follows the last `~`, and the rest is the lock. A plain lock named `LOCK~SLOT`
/// has the same id. If both are used at one resource, the live holders of one are refused because of the other, but no
/// late holder is ever admitted.
///
/// # Errors
/// [`Invalid::SemaphoreName`] if the lock's name is too long for a semaphore.
pub fn slot_key(lock: &LockName, slot: u32) -> Result<LockName, Invalid> {
    if lock.len() > limits::SEMAPHORE_NAME_BYTES {
        return Err(Invalid::SemaphoreName { bytes: lock.len() });
    }
    let mut name = String::from(&**lock);
    // Writing to a string does not fail.
    let _ = fmt::Write::write_fmt(&mut name, format_args!("~{slot}"));
    LockName::new(name.as_str())
}
