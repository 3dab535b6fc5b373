//! The settings file.
//!
//! ```toml
//! [serve]
//! listen = "10.0.0.1:7420"
//! data = "/var/lib/palisade"
//! cluster = ["10.0.0.1:7421", "10.0.0.2:7421", "10.0.0.3:7421"]
//! ```
//!
//! One table for each command that serves. A key is the long name of a flag of that command; there is no other list.

use std::ops::Range;
use std::path::Path;

use clap::{Arg, ArgAction, Command};
use toml::de::{DeTable, DeValue};

use super::{SERVERS, Setting, SettingOrigin, is_switch, key, settable};
use crate::cli::failure::Failure;

/// The settings that a file has for one command.
#[derive(Debug)]
pub(crate) struct Section {
    /// The command.
    pub(crate) command: &'static str,
    /// In the order of the file.
    pub(crate) settings: Vec<Setting>,
}

/// Reads a file and checks its keys and the kinds of its values; the values themselves are parsed like those of flags.
pub(crate) fn read(path: &Path, commands: &Command) -> Result<Vec<Section>, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{shown}: {error}")))?;
    parse(&text, path, commands)
}

pub(super) fn parse(text: &str, path: &Path, commands: &Command) -> Result<Vec<Section>, Failure> {
    let file = SettingsFile { path, text };
    let table = DeTable::parse(text)
        .map_err(|error| file.wrong(error.span().unwrap_or_default(), error.message()))?;
    let mut sections = Vec::new();
    for (name, value) in table.get_ref() {
        let Some(command) = SERVERS.into_iter().find(|server| server == name.get_ref()) else {
            let all = SERVERS.map(|server| format!("[{server}]")).join(", ");
            let tip = nearest(name.get_ref(), SERVERS.into_iter()).map_or_else(
                || format!("the sections are {all}"),
                |near| format!("is [{near}] meant?"),
            );
            let why = format!("there is no section [{}]; {tip}", name.get_ref());
            return Err(file.wrong(name.span(), &why));
        };
        let DeValue::Table(table) = value.get_ref() else {
            let why = format!("write [{command}] and the settings below it");
            return Err(file.wrong(name.span(), &why));
        };
        let Some(known) = commands.find_subcommand(command) else {
            continue;
        };
        sections.push(Section {
            command,
            settings: file.section(command, known, table)?,
        });
    }
    Ok(sections)
}

struct SettingsFile<'a> {
    path: &'a Path,
    text: &'a str,
}

impl SettingsFile<'_> {
    /// In the order of the lines.
    fn section(
        &self,
        command: &str,
        known: &Command,
        table: &DeTable<'_>,
    ) -> Result<Vec<Setting>, Failure> {
        let mut settings = Vec::new();
        for (name, value) in table {
            let Some(arg) = settable(known).find(|arg| key(arg) == name.get_ref()) else {
                let keys = settable(known).map(key);
                let tip = nearest(name.get_ref(), keys).map_or_else(
                    || format!("`palisade {command} --help` lists the flags, which are the keys"),
                    |near| format!("is {near:?} meant?"),
                );
                let why = format!("[{command}] has no setting {:?}; {tip}", name.get_ref());
                return Err(self.wrong(name.span(), &why));
            };
            let values = values(arg, value.get_ref())
                .map_err(|why| self.wrong(value.span(), &format!("{}: {why}", name.get_ref())))?;
            settings.push(Setting {
                key: key(arg).to_owned(),
                values,
                is_switch: is_switch(arg),
                origin: SettingOrigin::File {
                    path: self.path.to_owned(),
                    line: self.line(name.span()),
                },
            });
        }
        settings.sort_by_key(|setting| match setting.origin {
            SettingOrigin::File { line, .. } => line,
            _ => 0,
        });
        Ok(settings)
    }

    fn line(&self, span: Range<usize>) -> usize {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        before.matches('\n').count() + 1
    }

    fn wrong(&self, span: Range<usize>, why: &str) -> Failure {
        let (path, line) = (self.path.display(), self.line(span));
        Failure::usage(format!("{path}, line {line}: {why}"))
    }
}

/// The values as the flag takes them.
fn values(arg: &Arg, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    match value {
        DeValue::Boolean(on) if is_switch(arg) => Ok(vec![on.to_string()]),
        _ if is_switch(arg) => Err("write true or false".to_owned()),
        DeValue::Array(all) if matches!(arg.get_action(), ArgAction::Append) => {
            all.iter().map(|value| text(value.get_ref())).collect()
        }
        DeValue::Array(_) => Err("it takes one value".to_owned()),
        one => text(one).map(|one| vec![one]),
    }
}

fn text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().replace('_', "")),
        _ => Err("write a text in quotation marks, or a whole number".to_owned()),
    }
}

/// The name that was probably meant.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let far = |known: &&str| strsim::damerau_levenshtein(word, known);
    known.min_by_key(far).filter(|known| far(known) <= 3)
}
