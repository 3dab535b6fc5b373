//! `palisade config` shows the settings of a server command, and the source of each.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Subcommand, ValueHint};
use serde_json::json;

use super::failure::Failure;
use super::output::Out;
use super::settings::{self, CommandLineRefused, SERVERS, Setting, SettingOrigin, Variables};
use super::{Cli, help, usage};

/// The commands.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum ConfigCommand {
    /// Check a settings file before a server takes it
    #[command(after_long_help = help::CONFIG_CHECK_AFTER)]
    Check(CheckArgs),
    /// Print the settings that a command would have now
    #[command(after_long_help = help::CONFIG_SHOW_AFTER)]
    Show(ConfigShowArgs),
}

/// `palisade config check`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CheckArgs {
    /// The settings file.
    #[arg(long, value_name = "FILE", env = "PALISADE_CONFIG", value_hint = ValueHint::FilePath)]
    config: PathBuf,
}

/// `palisade config show`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConfigShowArgs {
    /// The command that serves.
    #[arg(value_name = "COMMAND", default_value = SERVERS[0], value_parser = SERVERS)]
    server: String,
    /// Say where each setting comes from: a flag, a variable of the environment, a line of the file, or the default.
    #[arg(long)]
    origin: bool,
    /// The settings file.
    #[arg(long, value_name = "FILE", env = "PALISADE_CONFIG", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Flags of that command, after `--`.
    #[arg(last = true, value_name = "FLAG")]
    flags: Vec<OsString>,
}

pub(super) fn carry_out(command: ConfigCommand, out: Out) -> Result<(), Failure> {
    match command {
        ConfigCommand::Check(args) => check(&args.config, out),
        ConfigCommand::Show(args) => show(&args, out),
    }
}

/// The environment is left out: the file is checked on its own.
fn check(file: &Path, out: Out) -> Result<(), Failure> {
    let sections = settings::file::read(file, &Cli::command())?;
    let mut checked = Vec::new();
    for section in &sections {
        let (cli, _) = settle(section.command, Some(file), &[], &|_| None)?;
        let wrong = |failure: Failure| Failure {
            message: format!(
                "{}: [{}]: {}",
                file.display(),
                section.command,
                failure.message
            ),
            ..failure
        };
        cli.command.check().map_err(wrong)?;
        checked.push(section.command);
    }
    if out.json {
        return out.value(&json!({"config": file, "sections": checked}));
    }
    let (file, sections) = (file.display(), checked.join(", "));
    out.text(&if checked.is_empty() {
        format!("{file} has no section, so every setting has its default")
    } else {
        format!("{file} has no mistake; it sets {sections}")
    })
}

fn show(args: &ConfigShowArgs, out: Out) -> Result<(), Failure> {
    let (_, settings) = settle(
        &args.server,
        args.config.as_deref(),
        &args.flags,
        &settings::environment,
    )?;
    if out.json {
        let value = |setting: &Setting| match &setting.values[..] {
            [] => serde_json::Value::Null,
            [one] if setting.is_switch => json!(one == "true"),
            [one] => json!(shown(one)),
            all => json!(all.iter().map(|one| shown(one)).collect::<Vec<_>>()),
        };
        for setting in &settings {
            let Setting { key, origin, .. } = setting;
            let origin = origin.to_string();
            out.value(&json!({"setting": key, "value": value(setting), "origin": origin}))?;
        }
        return Ok(());
    }
    out.text(&format!("[{}]", args.server))?;
    let lines: Vec<(String, &SettingOrigin)> = settings
        .iter()
        .map(|setting| (line(setting), &setting.origin))
        .collect();
    let width = lines.iter().map(|(line, _)| line.chars().count()).max();
    for (line, origin) in lines {
        if args.origin {
            out.text(&format!("{line:0$}  # {origin}", width.unwrap_or(0)))?
        } else {
            out.text(&line)?
        }
    }
    Ok(())
}

/// As a line of a settings file.
fn line(
    Setting {
        key,
        values,
        is_switch,
        ..
    }: &Setting,
) -> String {
    let quoted = |value: &String| serde_json::Value::String(shown(value)).to_string();
    match &values[..] {
        [] => format!("# {key}"),
        [one] if *is_switch => format!("{key} = {one}"),
        [one] => format!("{key} = {}", quoted(one)),
        all => {
            let all: Vec<String> = all.iter().map(quoted).collect();
            format!("{key} = [{}]", all.join(", "))
        }
    }
}

/// A URL may contain a password. Other secrets are in files, which settings only name.
fn shown(value: &str) -> String {
    if value.contains("://") {
        palisade_client::without_secrets(value)
    } else {
        value.to_owned()
    }
}

/// The command with its settings.
fn settle(
    server: &str,
    file: Option<&Path>,
    flags: &[OsString],
    environment: Variables<'_>,
) -> Result<(Cli, Vec<Setting>), Failure> {
    let mut words = vec![OsString::from("palisade"), server.into()];
    words.extend(file.map(|file| {
        let mut word = OsString::from("--config=");
        word.push(OsStr::new(file));
        word
    }));
    words.extend(flags.iter().cloned());
    let settled = settings::settle(&Cli::command(), words, environment);
    let settled = settled.and_then(|(matches, settings)| {
        let cli = Cli::from_arg_matches(&matches).map_err(CommandLineRefused::Words)?;
        Ok((cli, settings))
    });
    settled.map_err(|refused| match refused {
        CommandLineRefused::Words(error) => Failure::usage(usage::plain(&error)),
        CommandLineRefused::Settings(failure) => failure,
    })
}
