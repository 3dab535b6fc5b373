//! Settings of the commands that serve: flags win over the environment, the environment over the settings file.
//!
//! ```text
//!   words of the command line ─► which flags are there?
//!                                      │ no: PALISADE_NAME ─► no: the file ─► no: the default
//!                                      ▼
//!              the words, and a flag for each setting from elsewhere ─► clap
//! ```
//!
//! So the flags are the only list of settings, and a value is parsed and checked in one way wherever it comes from.

pub(crate) mod file;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory as _, FromArgMatches as _};
use tokio::signal::unix::Signal;

use super::Cli;
use super::failure::Failure;

/// The commands that have settings.
pub(crate) const SERVERS: [&str; 4] = ["serve", "store", "gateway", "tfstate"];

/// Names the settings file.
const CONFIG: &str = "config";

/// A setting that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The long name of the flag.
    pub(crate) key: String,
    /// As a flag takes them; none if it is not set.
    pub(crate) values: Vec<String>,
    /// The flag takes no value; the setting is `true` or `false`.
    pub(crate) is_switch: bool,
    pub(crate) origin: SettingOrigin,
}

/// Where a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingOrigin {
    Flag,
    /// The variable.
    Environment(String),
    File {
        path: PathBuf,
        line: usize,
    },
    Default,
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::Flag => f.write_str("flag"),
            SettingOrigin::Environment(name) => f.write_str(name),
            SettingOrigin::File { path, line } => write!(f, "{}, line {line}", path.display()),
            SettingOrigin::Default => f.write_str("default"),
        }
    }
}

/// Why a command line is not taken.
#[derive(Debug)]
pub(crate) enum CommandLineRefused {
    /// By its words alone; or it asks for help.
    Words(clap::Error),
    /// By the environment or the settings file.
    Settings(Failure),
}

/// Reads a variable of the environment.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The environment of this process. A variable without a value counts as none.
pub(crate) fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Parses a command line, with the settings from elsewhere.
pub(super) fn parse(
    words: Vec<OsString>,
    environment: Variables<'_>,
) -> Result<Cli, CommandLineRefused> {
    let command = Cli::command();
    let (matches, _) = settle(&command, words, environment)?;
    Cli::from_arg_matches(&matches).map_err(CommandLineRefused::Words)
}

/// Parses a command line, and says where each setting comes from. There are none for a command that does not serve.
pub(crate) fn settle(
    command: &Command,
    words: Vec<OsString>,
    environment: Variables<'_>,
) -> Result<(ArgMatches, Vec<Setting>), CommandLineRefused> {
    let alone = command.clone().try_get_matches_from(&words);
    let given = match &alone {
        // The missing settings may come from a variable or the file.
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            let lenient = command.clone().ignore_errors(true);
            lenient
                .try_get_matches_from(&words)
                .map_err(CommandLineRefused::Words)?
        }
        Err(_) => return Ok((alone.map_err(CommandLineRefused::Words)?, Vec::new())),
        Ok(matches) => matches.clone(),
    };
    let server = given.subcommand().and_then(|(name, given)| {
        let name = SERVERS.into_iter().find(|server| *server == name)?;
        Some((name, command.find_subcommand(name)?, given))
    });
    let Some((name, server, given)) = server else {
        return Ok((alone.map_err(CommandLineRefused::Words)?, Vec::new()));
    };
    let added = elsewhere(command, name, server, given, environment)
        .map_err(CommandLineRefused::Settings)?;
    let mut words = words;
    words.extend(added.iter().flat_map(words_of));
    let matches = command.clone().try_get_matches_from(words);
    let matches = matches.map_err(|error| blame(error, &added))?;
    let settings = in_force(server, &matches, &added);
    Ok((matches, settings))
}

/// Says at each SIGHUP which settings are others than when this was called: a restart takes them.
pub(crate) fn compare_settings(mut hangup: Signal) -> impl Future<Output = ()> {
    let current = || {
        let words = std::env::args_os().collect();
        settle(&Cli::command(), words, &environment).map(|(_, settings)| settings)
    };
    // Not in the task: when that begins, the file may be another one already.
    let before = current();
    async move {
        let Ok(before) = before else { return };
        while hangup.recv().await.is_some() {
            match current() {
                Err(CommandLineRefused::Words(error)) => {
                    tracing::warn!(why = %super::usage::plain(&error), "the settings stay as they are");
                }
                Err(CommandLineRefused::Settings(failure)) => {
                    tracing::warn!(why = %failure.message, "the settings stay as they are");
                }
                Ok(now) => {
                    let others = now
                        .iter()
                        .zip(&before)
                        .filter(|(now, before)| now.values != before.values);
                    let changed: Vec<&str> = others.map(|(now, _)| &*now.key).collect();
                    if changed.is_empty() {
                        tracing::info!("SIGHUP: no setting has changed")
                    } else {
                        tracing::warn!(
                            changed = %changed.join(", "),
                            "SIGHUP: settings have changed; they are taken at the next start"
                        )
                    }
                }
            }
        }
    }
}

/// The settings that are not among the words.
fn elsewhere(
    command: &Command,
    name: &str,
    server: &Command,
    given: &ArgMatches,
    environment: Variables<'_>,
) -> Result<Vec<Setting>, Failure> {
    let mut sections = match given.get_one::<PathBuf>(CONFIG) {
        Some(path) => file::read(path, command)?,
        None => Vec::new(),
    };
    let in_file = sections.iter_mut().find(|section| section.command == name);
    let mut in_file =
        in_file.map_or_else(Vec::new, |section| std::mem::take(&mut section.settings));
    let mut settings = Vec::new();
    for arg in settable(server) {
        let from_file = in_file.iter().position(|setting| setting.key == key(arg));
        let from_file = from_file.map(|at| in_file.swap_remove(at));
        if given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine) {
            continue;
        }
        match environment(&variable(key(arg))) {
            Some(value) => settings.push(from_variable(arg, variable(key(arg)), value)?),
            None => match (from_file, usual(key(arg))) {
                // A wrong value only gives a warning when the server starts: `passed_over`.
                (None, Some(name)) if passed_over(environment).is_none() => {
                    let value = environment(name);
                    let value = value.map(|value| from_variable(arg, name.to_owned(), value));
                    settings.extend(value.transpose()?);
                }
                (from_file, _) => settings.extend(from_file),
            },
        }
    }
    Ok(settings)
}

fn from_variable(arg: &Arg, name: String, value: OsString) -> Result<Setting, Failure> {
    let value = value
        .into_string()
        .map_err(|_| Failure::usage(format!("{name} is not UTF-8")))?;
    if is_switch(arg) && !["true", "false"].contains(&&*value) {
        return Err(Failure::usage(format!(
            "{name} is {value:?}; write true or false"
        )));
    }
    Ok(Setting {
        key: key(arg).to_owned(),
        values: vec![value],
        is_switch: is_switch(arg),
        origin: SettingOrigin::Environment(name),
    })
}

/// Every setting of a command, in the order of its help.
fn in_force(server: &Command, matches: &ArgMatches, added: &[Setting]) -> Vec<Setting> {
    let matches = matches.subcommand_matches(server.get_name());
    let all = settable(server).map(|arg| {
        let added = added.iter().find(|setting| setting.key == key(arg));
        added.cloned().unwrap_or_else(|| {
            let id = arg.get_id().as_str();
            let source = matches.and_then(|matches| matches.value_source(id));
            let values = matches.map_or_else(Vec::new, |matches| {
                if is_switch(arg) {
                    vec![matches.get_flag(id).to_string()]
                } else {
                    matches
                        .get_raw(id)
                        .into_iter()
                        .flatten()
                        .map(|value| value.to_string_lossy().into_owned())
                        .collect()
                }
            });
            Setting {
                key: key(arg).to_owned(),
                values,
                is_switch: is_switch(arg),
                origin: match source {
                    Some(ValueSource::CommandLine) => SettingOrigin::Flag,
                    _ => SettingOrigin::Default,
                },
            }
        })
    });
    all.collect()
}

/// The words that say the same on a command line.
fn words_of(setting: &Setting) -> impl Iterator<Item = OsString> {
    let Setting { key, is_switch, .. } = setting;
    let word = move |value: &String| match (is_switch, &**value) {
        (false, value) => Some(format!("--{key}={value}").into()),
        (true, "true") => Some(format!("--{key}").into()),
        (true, _) => None,
    };
    setting.values.iter().filter_map(word)
}

/// Says which setting an error is about, if it is not the words' own.
fn blame(error: clap::Error, added: &[Setting]) -> CommandLineRefused {
    let named = |kind| match error.get(kind) {
        Some(ContextValue::String(name)) => vec![name.clone()],
        Some(ContextValue::Strings(names)) => names.clone(),
        _ => Vec::new(),
    };
    let names: Vec<String> = named(ContextKind::InvalidArg)
        .into_iter()
        .chain(named(ContextKind::PriorArg))
        .collect();
    let flag = |setting: &&Setting| {
        let flag = format!("--{}", setting.key);
        names
            .iter()
            .any(|name| name.split([' ', '=']).next() == Some(&*flag))
    };
    let guilty: Vec<String> = added
        .iter()
        .filter(flag)
        .map(|setting| setting.origin.to_string())
        .collect();
    if guilty.is_empty() {
        return CommandLineRefused::Words(error);
    }
    let why = super::usage::plain(&error);
    CommandLineRefused::Settings(Failure::usage(format!("{}: {why}", guilty.join("; "))))
}

/// The flags that are settings: those of the command itself, but for the one that names the file.
pub(crate) fn settable(server: &Command) -> impl Iterator<Item = &Arg> {
    server.get_arguments().filter(|arg| {
        let action = arg.get_action();
        let is_value = matches!(
            action,
            ArgAction::Set | ArgAction::SetTrue | ArgAction::Append
        );
        is_value && arg.get_long().is_some_and(|long| long != CONFIG) && !arg.is_global_set()
    })
}

/// A variable that other programs read for the same setting; our own, and the file, win over it.
fn usual(key: &str) -> Option<&'static str> {
    (key == "otlp").then_some(COLLECTOR)
}

/// The variable of OpenTelemetry for a collector.
const COLLECTOR: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The reason why that variable names no collector, if it is set and names none. It is often set for all programs of a
/// machine, so a mistake in it is only a warning: traces must not keep a lock server from starting.
pub(super) fn passed_over(environment: Variables<'_>) -> Option<String> {
    let value = environment(COLLECTOR)?;
    let value = value.to_string_lossy();
    let why = value.parse::<crate::otlp::Endpoint>().err()?;
    Some(format!(
        "{COLLECTOR} is {:?}: {why}",
        palisade_client::without_secrets(&value)
    ))
}

/// Whether the collector is the one that this variable names.
pub(super) fn is_usual(collector: &crate::otlp::Endpoint, environment: Variables<'_>) -> bool {
    let named = environment(COLLECTOR).and_then(|value| value.to_str()?.parse().ok());
    named.as_ref() == Some(collector)
}

/// The name of a setting.
pub(crate) fn key(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_default()
}

pub(crate) fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// The variable of a setting: `PALISADE_MIN_TTL` for `min-ttl`.
fn variable(key: &str) -> String {
    format!("PALISADE_{}", key.replace('-', "_").to_uppercase())
}
