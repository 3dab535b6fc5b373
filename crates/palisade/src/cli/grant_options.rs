//! The options of a grant on the command line.

use std::time::Duration;

use clap::Args;
use palisade_client::{GrantOption, GrantOptions, LockRequest};

use super::output::millis;
use super::value::{duration, in_words};

/// Options of exclusive grants. The name of the group is what an argument of another kind of lock conflicts with.
#[derive(Args, Clone, Debug)]
#[group(id = "grant_options", multiple = true)]
pub(crate) struct GrantOptionArgs {
    /// After the lease expires, or an operator takes the lock, nobody is granted it for this long: 0 – 60s. Not after a
    /// release. For resources that cannot be fenced.
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["shared", "permits"], value_parser = lock_delay, allow_hyphen_values = true)]
    pub(crate) lock_delay: Option<Duration>,
    /// Nobody else is granted the lock before this long after the grant, however early it is released: 0 – 24h. For
    /// jobs that must not run twice within a period.
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["shared", "permits"], value_parser = at_least_for, allow_hyphen_values = true)]
    pub(crate) at_least_for: Option<Duration>,
}

impl GrantOptionArgs {
    /// Adds the options to a request.
    pub(crate) fn add(&self, request: LockRequest) -> LockRequest {
        request
            .lock_delay(self.lock_delay.unwrap_or_default())
            .at_least_for(self.at_least_for.unwrap_or_default())
    }

    /// Whether any of them is given, even with its default.
    pub(crate) fn is_given(&self) -> bool {
        self.lock_delay.is_some() || self.at_least_for.is_some()
    }
}

/// The flags of all options, for a hint.
pub(crate) fn flags() -> String {
    let flags = GrantOption::all().map(|option| format!("--{}", option.label()));
    flags.collect::<Vec<_>>().join(" and ")
}

/// The options of a grant for people, each with its name and value.
pub(super) fn shown(options: GrantOptions) -> impl Iterator<Item = (&'static str, String)> {
    options.iter().map(|(option, value)| {
        let value = match option.unit() {
            " ms" => millis(value.into()),
            unit => format!("{value}{unit}"),
        };
        (option.label(), value)
    })
}

fn lock_delay(text: &str) -> Result<Duration, String> {
    time(GrantOption::LockDelay, text)
}

fn at_least_for(text: &str) -> Result<Duration, String> {
    time(GrantOption::AtLeastFor, text)
}

/// An option that is a time, in whole milliseconds.
fn time(option: GrantOption, text: &str) -> Result<Duration, String> {
    let given = duration(text)?;
    // Rounded up, so that nothing above a bound passes.
    let ms = u64::try_from(given.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    let options = GrantOptions::NONE.with(option, ms);
    options
        .map(|_| given)
        .map_err(|invalid| in_words(&invalid.to_string()))
}
