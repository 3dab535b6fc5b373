//! The options of an exclusive grant, as one table. A [`GrantOptions`] goes as one value from the request through the
//! log and the machine to whoever looks at the grant, so a new option is a row here and a field on each face.

use core::fmt;

use crate::invalid::Invalid;
use crate::limits;
use crate::time::Span;

/// An option of an exclusive grant. Its number in this list is its place in [`GrantOptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrantOption {
    /// How long the lock stays closed after the grant expires or is revoked, but not after a release (rule D1).
    LockDelay,
    /// How long after the grant the lock stays closed, however the grant ends (rule D4).
    AtLeastFor,
}

/// The facts of an option that every face needs.
struct Row {
    option: GrantOption,
    code: u8,
    field: &'static str,
    label: &'static str,
    given: &'static str,
    unit: &'static str,
    most: u32,
}

const TABLE: [Row; GrantOption::COUNT] = [
    Row {
        option: GrantOption::LockDelay,
        code: 1,
        field: "lock_delay_ms",
        label: "lock-delay",
        given: "a lock delay of",
        unit: " ms",
        most: limits::LOCK_DELAY_MS,
    },
    Row {
        option: GrantOption::AtLeastFor,
        code: 2,
        field: "at_least_for_ms",
        label: "at-least-for",
        given: "at least for",
        unit: " ms",
        most: limits::AT_LEAST_FOR_MS,
    },
];

const _: () = {
    let mut place = 0;
    while place < TABLE.len() {
        assert!(TABLE[place].option as usize == place);
        assert!(TABLE[place].code > 0);
        place += 1;
    }
};

impl GrantOption {
    const COUNT: usize = GrantOption::AtLeastFor as usize + 1;

    /// Returns all options, in the order of the table.
    pub fn all() -> impl Iterator<Item = GrantOption> {
        TABLE.iter().map(|row| row.option)
    }

    const fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Returns the number that stands for the option in the log and in snapshots. Never 0.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.row().code
    }

    /// Returns the option that a code stands for.
    #[must_use]
    pub fn of_code(code: u8) -> Option<GrantOption> {
        GrantOption::all().find(|option| option.code() == code)
    }

    /// Returns its name in a body, such as `lock_delay_ms`.
    #[must_use]
    pub const fn field(self) -> &'static str {
        self.row().field
    }

    /// Returns its name for people, such as `lock-delay`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        self.row().label
    }

    /// Returns the words in front of a given value, such as `a lock delay of`.
    #[must_use]
    pub const fn given(self) -> &'static str {
        self.row().given
    }

    /// Returns the unit of its values with a space in front, such as ` ms`.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        self.row().unit
    }

    /// Returns the highest value. The lowest is 0, which stands for "not asked for".
    #[must_use]
    pub const fn most(self) -> u32 {
        self.row().most
    }
}

/// The labels of all options, for a message.
pub(crate) struct Labels;

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for option in GrantOption::all() {
            f.write_str(match option as usize {
                0 => "",
                place if place + 1 == GrantOption::COUNT => " and ",
                _ => ", ",
            })?;
            f.write_str(option.label())?;
        }
        Ok(())
    }
}

/// The options that a request for an exclusive grant asks for. No value is above its bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GrantOptions([u32; GrantOption::COUNT]);

impl GrantOptions {
    /// Nothing is asked for.
    pub const NONE: GrantOptions = GrantOptions([0; GrantOption::COUNT]);

    /// Returns these options with another value for one of them; 0 takes it out.
    ///
    /// # Errors
    /// [`Invalid::Option`] if the value is above [`most`](GrantOption::most).
    pub const fn with(mut self, option: GrantOption, value: u64) -> Result<GrantOptions, Invalid> {
        if value > option.most() as u64 {
            return Err(Invalid::Option {
                option,
                given: value,
            });
        }
        self.0[option as usize] = value as u32;
        Ok(self)
    }

    /// Returns the options with which the lock stays closed after the grant: for `lock_delay_ms` after an expiry or a
    /// revocation, and until `at_least_for_ms` after the grant.
    ///
    /// # Errors
    /// As [`with`](GrantOptions::with).
    pub fn closing(lock_delay_ms: u64, at_least_for_ms: u64) -> Result<GrantOptions, Invalid> {
        GrantOptions::NONE
            .with(GrantOption::LockDelay, lock_delay_ms)?
            .with(GrantOption::AtLeastFor, at_least_for_ms)
    }

    /// Returns the value of an option; 0 if it is not asked for.
    #[must_use]
    #[inline]
    pub const fn get(self, option: GrantOption) -> u32 {
        self.0[option as usize]
    }

    /// Returns how long the lock stays closed after an expiry or a revocation.
    #[must_use]
    pub const fn lock_delay(self) -> Span {
        Span::from_millis(self.get(GrantOption::LockDelay) as u64)
    }

    /// Returns how long after the grant the lock stays closed.
    #[must_use]
    pub const fn at_least_for(self) -> Span {
        Span::from_millis(self.get(GrantOption::AtLeastFor) as u64)
    }

    /// Returns whether nothing is asked for.
    #[must_use]
    #[inline]
    pub fn is_none(self) -> bool {
        self == GrantOptions::NONE
    }

    /// Returns the options that are asked for, with their values, in the order of the table.
    pub fn iter(self) -> impl Iterator<Item = (GrantOption, u32)> {
        let all = GrantOption::all().map(move |option| (option, self.get(option)));
        all.filter(|(_, value)| *value > 0)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::string::ToString as _;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn no_two_options_share_a_code_or_a_name() {
        let all = || GrantOption::all();
        let codes: BTreeSet<u8> = all().map(GrantOption::code).collect();
        let fields: BTreeSet<&str> = all().map(GrantOption::field).collect();
        let labels: BTreeSet<&str> = all().map(GrantOption::label).collect();
        assert_eq!(
            [codes.len(), fields.len(), labels.len()],
            [GrantOption::COUNT; 3]
        );
        assert!(all().all(|option| GrantOption::of_code(option.code()) == Some(option)));
        assert_eq!(GrantOption::of_code(0), None);
    }

    /// The control is the bound itself.
    #[test]
    fn a_value_above_its_bound_is_refused_with_the_bound() {
        for option in GrantOption::all() {
            let most = u64::from(option.most());
            let kept = GrantOptions::NONE.with(option, most).unwrap();
            assert_eq!(kept.iter().collect::<Vec<_>>(), [(option, option.most())]);
            assert_eq!(kept.with(option, 0), Ok(GrantOptions::NONE));
            let refused = kept.with(option, most + 1).unwrap_err().to_string();
            let range = alloc::format!("outside 0 ..= {most}");
            assert!(refused.contains(&range), "{refused}");
        }
    }
}
