//! Attacks from outside: each is a program against the release binary, with a measured figure and a limit.
//!
//! ```text
//!   attack ──► palisade serve · store · gateway · run      as processes, with their own ports and folders
//!      │                    │
//!      └── a figure ◄───────┘  memory, descriptors, exit status, repeated tokens, ratios to a control
//!            │
//!            └► held · BROKEN · not run (and why)
//! ```
//!
//! An attack only reports its measurement and the limit. No limit is an absolute time for something that should be
//! fast. Each attack is bounded in time and in amount, and ends what it started.

mod descriptors;
mod directory;
mod failure;
mod fence;
mod gateway;
mod h2;
mod harness;
mod http;
mod job;
mod json;
mod memory;
mod outcome;
mod plain;
mod streams;
mod time;
mod tunnel;
mod upstream;
mod watchers;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use harness::{Harness, elapsed, now};
use outcome::{Attack, Outcome};

/// Every attack, in the order of the rows.
fn all() -> impl Iterator<Item = &'static Attack> {
    let families: [&[Attack]; 10] = [
        directory::ATTACKS,
        memory::ATTACKS,
        time::ATTACKS,
        descriptors::ATTACKS,
        streams::ATTACKS,
        watchers::ATTACKS,
        gateway::ATTACKS,
        fence::ATTACKS,
        job::ATTACKS,
        json::ATTACKS,
    ];
    let mut attacks: Vec<&Attack> = families.into_iter().flatten().collect();
    attacks.sort_by_key(|attack| attack.row);
    attacks.into_iter()
}

/// Attacks the release binary from outside and reports the result of each attack
#[derive(Debug, Args)]
#[command(after_help = EXITS)]
pub struct AttackArgs {
    /// Which attacks to run; all of them by default, one after the other
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// List the attacks and exit
    #[arg(long)]
    list: bool,
    /// Use the smaller amounts of a test
    #[arg(long)]
    short: bool,
    /// Give the servers TLS, and rules by which the attacker may do everything
    #[arg(long)]
    secure: bool,
    /// The program under test [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Print one line of JSON for each attack
    #[arg(long)]
    json: bool,
}

const EXITS: &str = "Exit status: 0 every attack that ran was held off; 1 an attack succeeded; 2 usage; 4 an attack could not \
    be completed. An attack that this machine does not allow is reported as not run and does not count as a success.";

impl AttackArgs {
    /// Runs the attacks. The help lists the exit statuses.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        if let Some(unknown) = self.names.iter().find(|name| !is_known(name)) {
            eprintln!(
                "palisade-lab: there is no attack {unknown:?}; palisade-lab attack --list names them"
            );
            return ExitCode::from(2);
        }
        let chosen = all().filter(|attack| {
            self.names.is_empty() || self.names.iter().any(|name| name == attack.name)
        });
        let chosen: Vec<_> = chosen.collect();
        if self.list {
            for attack in chosen {
                println!(
                    "{:<32} row {:<3} {}; {}",
                    attack.name, attack.row, attack.does, attack.bounds
                );
            }
            return ExitCode::SUCCESS;
        }
        match crate::chaos::program(self.binary.as_ref(), "--binary") {
            Ok(binary) => self.attack(&chosen, &binary),
            Err(why) => {
                eprintln!("palisade-lab: {why}");
                ExitCode::from(4)
            }
        }
    }

    fn attack(&self, chosen: &[&Attack], binary: &std::path::Path) -> ExitCode {
        let mut lines = Vec::new();
        for attack in chosen {
            if !self.json {
                println!("{} …", attack.name);
            }
            let begun = now();
            let outcome = Harness::new(binary, self.short, self.secure)
                .and_then(|harness| (attack.run)(&harness));
            let line = Line::of(attack, outcome, elapsed(begun).as_secs_f64());
            if self.json {
                println!("{}", line.json());
            }
            lines.push(line);
        }
        if !self.json {
            print!("{}", table(&lines));
        }
        let any = |word| lines.iter().any(|line| line.word == word);
        match (any(BROKEN), any(FAILED)) {
            (true, _) => ExitCode::FAILURE,
            (false, true) => ExitCode::from(4),
            (false, false) => ExitCode::SUCCESS,
        }
    }
}

fn is_known(name: &str) -> bool {
    all().any(|attack| attack.name == name)
}

/// A line of the report.
struct Line {
    name: &'static str,
    row: u8,
    word: &'static str,
    figure: String,
    limit: String,
    seconds: f64,
}

const HELD: &str = "held";
const BROKEN: &str = "BROKEN";
const NOT_RUN: &str = "not run";
const FAILED: &str = "failed";

impl Line {
    fn of(attack: &Attack, outcome: Result<Outcome, String>, seconds: f64) -> Line {
        let (word, figure, limit) = match outcome {
            Ok(Outcome::Measured {
                figure,
                limit,
                held,
            }) => (if held { HELD } else { BROKEN }, figure, limit),
            Ok(Outcome::NotRun { because }) => (
                NOT_RUN,
                format!("not run, because {because}"),
                String::new(),
            ),
            Err(why) => (FAILED, why, String::new()),
        };
        Line {
            name: attack.name,
            row: attack.row,
            word,
            figure,
            limit,
            seconds,
        }
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "attack": self.name, "row": self.row, "outcome": self.word, "figure": self.figure,
            "limit": self.limit, "seconds": (self.seconds * 10.0).round() / 10.0,
        })
    }
}

fn table(lines: &[Line]) -> String {
    let mut text = String::from("\n");
    for line in lines {
        let limit = match line.limit.as_str() {
            "" => String::new(),
            limit => format!(" (limit: {limit})"),
        };
        text.push_str(&format!(
            "{:<8} {:>2}  {:<32} {:>5.0} s  {}{limit}\n",
            line.word, line.row, line.name, line.seconds, line.figure
        ));
    }
    let count = |word| lines.iter().filter(|line| line.word == word).count();
    text.push_str(&format!(
        "attack: {} held off, {} succeeded, {} not run, {} could not be completed\n",
        count(HELD),
        count(BROKEN),
        count(NOT_RUN),
        count(FAILED)
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_unique() {
        let mut names: Vec<_> = all().map(|attack| attack.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
