//! `cargo xtask bench`: what is measured, and how it is started.

pub(crate) mod instructions;

use crate::prerequisites::{self, PREREQUISITES};
use crate::shell::{cargo, run, target};

/// A measurement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Palisade beside other systems; the arguments are those of the program.
    Peers(Vec<String>),
    /// A cluster whose members change under load, likewise.
    Members(Vec<String>),
    /// A cluster whose leader is killed, likewise.
    Failover(Vec<String>),
    /// The hot path in instructions, against the committed baseline.
    Instructions {
        /// Write the baseline instead.
        bless: bool,
    },
}

impl Plan {
    /// # Errors
    /// No such measurement.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let theirs = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match arguments {
            ["peers", rest @ ..] => Ok(Self::Peers(theirs(rest))),
            ["members", rest @ ..] => Ok(Self::Members(theirs(rest))),
            ["failover", rest @ ..] => Ok(Self::Failover(theirs(rest))),
            ["instructions"] => Ok(Self::Instructions { bless: false }),
            ["instructions", "--bless"] => Ok(Self::Instructions { bless: true }),
            _ => Err(format!("bench does not know `{}`", arguments.join(" "))),
        }
    }

    /// Measures; true when all went well.
    pub(crate) fn run(&self) -> bool {
        let done = match self {
            Self::Peers(arguments) => {
                prerequisites::ensure(PREREQUISITES).and_then(|()| program("peers", arguments))
            }
            Self::Members(arguments) => program("members", arguments),
            Self::Failover(arguments) => program("failover", arguments),
            Self::Instructions { bless } => prerequisites::ensure(prerequisites::CALLGRIND)
                .and_then(|()| instructions::measure(*bless)),
        };
        if let Err(complaint) = &done {
            println!("bench: {complaint}");
        }
        done.is_ok()
    }
}

fn program(command: &str, arguments: &[String]) -> Result<(), String> {
    let packages = ["-p", "palisade", "-p", "palisade-peers"];
    run(cargo(&["build", "--release"]).args(packages))?;
    let program = target().join("release/palisade-peers");
    run(std::process::Command::new(program)
        .arg(command)
        .args(arguments)
        .current_dir(crate::shell::root()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_named() {
        let peers = Plan::parse(&["peers", "--rounds", "2"]);
        let arguments = vec!["--rounds".to_owned(), "2".to_owned()];
        assert_eq!(peers, Ok(Plan::Peers(arguments)));
        assert_eq!(Plan::parse(&["members"]), Ok(Plan::Members(Vec::new())));
        assert_eq!(Plan::parse(&["failover"]), Ok(Plan::Failover(Vec::new())));
        let bless = Plan::parse(&["instructions", "--bless"]);
        assert_eq!(bless, Ok(Plan::Instructions { bless: true }));
        assert!(Plan::parse(&[]).is_err());
        assert!(Plan::parse(&["instructions", "--fast"]).is_err());
    }
}
