//! Rejected command lines.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::error::ErrorKind;

use super::failure::{FAILED, Failure, USAGE};
use super::output::{Out, colour_is_wanted};
use super::value::in_words;

/// The words of the command line. Options that say which authority to use may stand before the command, as with other
/// programs; each command has them itself, so they are moved behind it.
pub(super) fn arguments() -> Vec<OsString> {
    connection_last(std::env::args_os())
}

fn connection_last(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words = words.into_iter();
    let (mut all, mut moved): (Vec<_>, Vec<_>) = (words.next().into_iter().collect(), Vec::new());
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let (name, value) = text.split_once('=').unzip();
        if OF_CONNECTION.contains(&name.unwrap_or(&text)) {
            let separate = value.is_none();
            moved.push(word);
            if separate {
                moved.extend(words.next());
            }
        } else {
            let command = !text.starts_with('-') || text == "--";
            all.push(word);
            if command {
                break;
            }
        }
    }
    all.extend(words);
    let end = all.iter().position(|word| word == "--");
    let end = end.unwrap_or(all.len());
    all.splice(end..end, moved);
    all
}

/// The options of every command that talks to an authority.
const OF_CONNECTION: [&str; 5] = [
    "--authority",
    "--ca-file",
    "--client-cert",
    "--client-key",
    "--token-file",
];

/// Prints the error (or the requested help) and returns the exit status.
pub(super) fn refused(error: &clap::Error) -> ExitCode {
    let given: Vec<OsString> = self::arguments().into_iter().skip(1).collect();
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        // A reader that stopped reading is not a failure.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let status = if runs_a_job(&given) { FAILED } else { USAGE };
    let json = wants_json(&given);
    let without_command = match error.kind() {
        ErrorKind::UnknownArgument => true,
        // The words of the command were taken for more locks.
        ErrorKind::MissingRequiredArgument => words(&given).count() > 2,
        _ => false,
    };
    if without_command && lacks_the_dashes(&given) {
        let failure = Failure::usage("the command of `run` comes after `--`");
        Out::new(json).failure(&Failure {
            status,
            ..failure.hint("palisade run LOCK [OPTIONS] -- COMMAND [ARGUMENTS]")
        });
    } else if json {
        Out::new(true).failure(&Failure {
            status,
            ..Failure::usage(in_words(&plain(error)))
        });
    } else {
        let text = error.render().ansi().to_string();
        let plain = !std::io::stderr().is_terminal() || !colour_is_wanted();
        // clap says a range as Rust writes it.
        if text.contains("..=") {
            let text = if plain {
                error.render().to_string()
            } else {
                text
            };
            let _ = write!(std::io::stderr(), "{}", in_words(&text));
        } else {
            let _ = error.print();
        }
    }
    ExitCode::from(status)
}

/// Prints which setting is wrong, and returns the exit status.
pub(super) fn misconfigured(failure: &Failure) -> ExitCode {
    let given: Vec<OsString> = self::arguments().into_iter().skip(1).collect();
    Out::new(wants_json(&given)).failure(failure);
    ExitCode::from(failure.status)
}

/// clap's message without its heading, colours and advice.
pub(super) fn plain(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    first
        .trim_start_matches("error: ")
        .trim()
        .replace("\n  ", " ")
}

/// The arguments before `--`, which belong to palisade.
fn ours(given: &[OsString]) -> impl Iterator<Item = &OsString> {
    given.iter().take_while(|argument| *argument != "--")
}

/// Those of them that are no options.
fn words(given: &[OsString]) -> impl Iterator<Item = &OsString> {
    ours(given).filter(|argument| !argument.as_encoded_bytes().starts_with(b"-"))
}

/// Whether this is `run`: its usage errors must not look like a job that ended with 2.
fn runs_a_job(given: &[OsString]) -> bool {
    let command = words(given).next();
    command.is_some_and(|command| command == "run" || command == "lock")
}

/// `palisade run x echo hi`: a job without the `--` before it.
fn lacks_the_dashes(given: &[OsString]) -> bool {
    runs_a_job(given) && ours(given).count() == given.len()
}

fn wants_json(given: &[OsString]) -> bool {
    ours(given).any(|argument| argument == "--json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn only_run_keeps_2_for_its_job() {
        assert!(runs_a_job(&words("run x --nonsense -- true")));
        assert!(runs_a_job(&words("--json run x")));
        assert!(!runs_a_job(&words("acquire run")) && !runs_a_job(&words("show x -- run")));
    }

    #[test]
    fn options_of_the_connection_may_come_before_the_command() {
        for (given, moved) in [
            ("p --authority U ls", "p ls --authority U"),
            ("p --json --authority=U ls x", "p --json ls x --authority=U"),
            (
                "p --ca-file C --authority U run x -- sh --authority",
                "p run x --ca-file C --authority U -- sh --authority",
            ),
            ("p ls --authority U", "p ls --authority U"),
            ("p --authority", "p --authority"),
            ("p -- ls", "p -- ls"),
        ] {
            assert_eq!(connection_last(words(given)), words(moved), "{given}");
        }
    }

    #[test]
    fn the_jobs_own_flags_are_not_ours() {
        assert!(wants_json(&words("run x --json -- true")));
        assert!(!wants_json(&words("run x -- curl --json")));
    }
}
