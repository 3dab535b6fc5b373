//! The options of a grant on the wire. A new option is a field of `with_options` and an arm of three functions: bodies,
//! messages and their readers follow.

use palisade_core::{GrantOption, GrantOptions, Invalid};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::json::field::{complaint, field, integer};
use crate::json::{LockMode, PermitsBody};
use crate::v1::acquire_option::Option as Message;
use crate::v1::{AcquireOption, Delays};

field!(lock_delay_ms: u64 = integer, "an integer in 0 ..= 60000");
field!(at_least_for_ms: u64 = integer, "an integer in 0 ..= 86400000");

/// Declares a body that has the options of a grant behind its own fields. Serde's `flatten` would do it without a macro,
/// but not with the names of all known fields in a complaint about an unknown one.
macro_rules! with_options {
    ($(#[$about:meta])* pub struct $name:ident { $($fields:tt)* }) => {
        $(#[$about])*
        pub struct $name {
            $($fields)*
            /// After the grant expires or is revoked, nobody is granted the lock for this long, in milliseconds; not
            /// after a release. For resources that cannot be fenced. Only with an exclusive grant.
            #[serde(
                default,
                deserialize_with = "crate::options::lock_delay_ms::optional",
                skip_serializing_if = "Option::is_none"
            )]
            #[schema(minimum = 0, maximum = 60_000)]
            pub lock_delay_ms: Option<u64>,
            /// From the grant on, nobody else is granted the lock for this long, in milliseconds, whenever it is released
            /// and however long its lease lasts. For jobs that must not run twice within a period. Only with an
            /// exclusive grant.
            #[serde(
                default,
                deserialize_with = "crate::options::at_least_for_ms::optional",
                skip_serializing_if = "Option::is_none"
            )]
            #[schema(minimum = 0, maximum = 86_400_000)]
            pub at_least_for_ms: Option<u64>,
        }

        impl $name {
            /// Returns the options in it.
            ///
            /// # Errors
            /// [`Invalid::Option`](palisade_core::Invalid::Option) for the first one above its bound.
            pub fn options(&self) -> Result<palisade_core::GrantOptions, palisade_core::Invalid> {
                crate::options::collect([
                    (palisade_core::GrantOption::LockDelay, self.lock_delay_ms),
                    (palisade_core::GrantOption::AtLeastFor, self.at_least_for_ms),
                ])
            }

            /// Returns it with these options.
            #[must_use]
            pub fn with_options(mut self, options: palisade_core::GrantOptions) -> Self {
                let given = |option| Some(u64::from(options.get(option))).filter(|value| *value > 0);
                self.lock_delay_ms = given(palisade_core::GrantOption::LockDelay);
                self.at_least_for_ms = given(palisade_core::GrantOption::AtLeastFor);
                self
            }
        }
    };
}

pub(crate) use with_options;

with_options! {
    /// The options of a grant alone, for a body that is declared elsewhere.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct OptionsBody {}
}

/// Collects the options of a body.
pub(crate) fn collect<const N: usize>(
    given: [(GrantOption, Option<u64>); N],
) -> Result<GrantOptions, Invalid> {
    given
        .into_iter()
        .try_fold(GrantOptions::NONE, |options, (option, value)| {
            options.with(option, value.unwrap_or(0))
        })
}

/// Returns the options as messages have them.
#[must_use]
pub fn messages(options: GrantOptions) -> Vec<AcquireOption> {
    if options.is_none() {
        return Vec::new();
    }
    let delays = Delays {
        lock_delay_ms: options.get(GrantOption::LockDelay),
        at_least_for_ms: options.get(GrantOption::AtLeastFor),
    };
    let delays = (delays != Delays::default()).then_some(Message::Delays(delays));
    let messages = [delays].into_iter().flatten();
    messages
        .map(|message| AcquireOption {
            option: Some(message),
        })
        .collect()
}

/// Returns `options` with those of a message; as they were for a message that is not about the options of a grant.
///
/// # Errors
/// [`Invalid::Option`] for a value above its bound.
pub fn add(options: GrantOptions, message: &Message) -> Result<GrantOptions, Invalid> {
    match message {
        Message::Delays(delays) => options
            .with(GrantOption::LockDelay, delays.lock_delay_ms.into())?
            .with(GrantOption::AtLeastFor, delays.at_least_for_ms.into()),
        Message::Mode(_) | Message::Permits(_) | Message::Also(_) => Ok(options),
    }
}

/// Returns the name of a message in the `.proto`.
#[must_use]
pub const fn name(message: &Message) -> &'static str {
    match message {
        Message::Mode(_) => "mode",
        Message::Permits(_) => "permits",
        Message::Delays(_) => "delays",
        Message::Also(_) => "also",
    }
}

/// Returns the options in an answer. Options that this build does not know are left out.
///
/// # Errors
/// [`Invalid::Option`] for a value above its bound.
pub fn of_messages(messages: &[AcquireOption]) -> Result<GrantOptions, Invalid> {
    let mut known = messages
        .iter()
        .filter_map(|message| message.option.as_ref());
    known.try_fold(GrantOptions::NONE, add)
}
