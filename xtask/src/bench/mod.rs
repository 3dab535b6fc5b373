//! `cargo xtask bench`: what is measured, and how it is started.

pub(crate) mod instructions;

use std::process::Command;

use crate::prerequisites::{self, PREREQUISITES};
use crate::shell::{cargo, root, run, target};

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
                prerequisites::ensure(PREREQUISITES).and_then(|()| peers(arguments))
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
    run(built()?.arg(command).args(arguments))
}

/// With the etcd that `PALISADE_ETCD` names, or the newest, which is built once. Where that cannot be had, it is Debian's: the
/// report says which one it was.
fn peers(arguments: &[String]) -> Result<(), String> {
    let mut program = built()?;
    program.arg("peers").args(arguments);
    if std::env::var_os("PALISADE_ETCD").is_none() {
        let folder = target().join("palisade-tools/kube-apiserver");
        let mut build = Command::new(root().join("proof/kubernetes/build"));
        match run(build.arg(&folder).arg("etcd")) {
            Ok(()) => {
                program.env("PALISADE_ETCD", folder.join("etcd"));
            }
            Err(complaint) => println!("bench: etcd is Debian's, because of this: {complaint}"),
        }
    }
    run(&mut program)
}

fn built() -> Result<Command, String> {
    let packages = ["-p", "palisade", "-p", "palisade-peers"];
    run(cargo(&["build", "--release"]).args(packages))?;
    let mut program = Command::new(target().join("release/palisade-peers"));
    program.current_dir(root());
    Ok(program)
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
