//! `cargo xtask test`: what the machine lacks, the build, every test, one summary.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::bench::instructions;
use crate::prerequisites::{CALLGRIND, PREREQUISITES, ensure, ensure_environments};
use crate::shell::{cargo, run, spelled, target, timed};

/// How long the output may stay open after cargo has ended. Whoever holds it then was left behind by a test.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Unit tests only.
    quick: bool,
    /// Handed to every test binary: part of a name, or flags such as `--nocapture`.
    filter: Vec<String>,
}

impl Plan {
    /// # Errors
    /// An argument before `--` is unknown.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, String> {
        let split = arguments
            .iter()
            .position(|word| *word == "--")
            .unwrap_or(arguments.len());
        let (ours, theirs) = arguments.split_at(split);
        let quick = match ours {
            [] => false,
            ["--quick"] => true,
            _ => {
                return Err(format!(
                    "test does not know `{}`; a filter comes after `--`",
                    ours.join(" ")
                ));
            }
        };
        Ok(Self {
            quick,
            filter: theirs
                .iter()
                .skip(1)
                .map(|word| (*word).to_owned())
                .collect(),
        })
    }

    /// Runs everything; true when all tests passed.
    pub(crate) fn run(&self) -> bool {
        let (outcome, time) = timed(|| self.work());
        let (tally, verdict) = match outcome {
            Ok((tally, verdict)) => (tally, verdict),
            Err(complaint) => (Tally::default(), Err(complaint)),
        };
        if let Err(complaint) = &verdict {
            println!("test: {complaint}");
        }
        println!(
            "test: {} passed, {} failed ({:.0} s)",
            tally.passed,
            tally.failed,
            time.as_secs_f32()
        );
        verdict.is_ok()
    }

    fn work(&self) -> Result<(Tally, Result<(), String>), String> {
        ensure(PREREQUISITES)?;
        ensure_environments(&target())?;
        // Programs too: tests of one package start those of another.
        let tests = ["test", "--release", "--workspace", "--all-features"];
        let kinds: &[&str] = if self.quick {
            &["--lib", "--bins"]
        } else {
            &[]
        };
        run(cargo(&tests).args(kinds).arg("--no-run"))?;
        let instructions = self.instructions();
        let mut command = cargo(&tests);
        command.arg("--no-fail-fast").args(kinds);
        command.arg("--").args(&self.filter).stdout(Stdio::piped());
        let name = spelled(&command);
        let mut child = command
            .spawn()
            .map_err(|error| format!("{name}: {error}"))?;
        let output = child.stdout.take().ok_or("cargo test has no output")?;
        let lines = lines_of(output);
        // Lines are shown as they come; the channel ends when the last program that holds the output ends.
        let mut tally = Tally::default();
        let status = loop {
            match lines.recv_timeout(Duration::from_millis(200)) {
                Ok(line) => tally.show(&line),
                Err(RecvTimeoutError::Disconnected) => break child.wait(),
                Err(RecvTimeoutError::Timeout) => match child.try_wait() {
                    Ok(None) => {}
                    ended => break ended.map(Option::unwrap_or_default),
                },
            }
        };
        let status = status.map_err(|error| format!("{name}: {error}"))?;
        let left_behind = drain(&lines, &mut tally, PATIENCE);
        let verdict = if !status.success() {
            Err(format!("{name} ended with {status}"))
        } else if left_behind {
            Err("a test left a process running that still holds the output".to_owned())
        } else if tally.passed == 0 && self.filter.is_empty() {
            Err("no test ran".to_owned())
        } else {
            instructions
        };
        Ok((tally, verdict))
    }

    /// The hot path against its baseline, when all tests run.
    fn instructions(&self) -> Result<(), String> {
        if self.quick || !self.filter.is_empty() {
            return Ok(());
        }
        ensure(CALLGRIND)?;
        instructions::measure(false).inspect_err(|complaint| println!("test: {complaint}"))
    }
}

fn lines_of(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(output);
        let mut line = Vec::new();
        while reader
            .read_until(b'\n', &mut line)
            .is_ok_and(|length| length > 0)
        {
            if sender
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                return;
            }
            line.clear();
        }
    });
    receiver
}

/// Shows what is still in the pipe; true when somebody keeps it open.
fn drain(lines: &Receiver<String>, tally: &mut Tally, patience: Duration) -> bool {
    loop {
        match lines.recv_timeout(patience) {
            Ok(line) => tally.show(&line),
            Err(error) => return error == RecvTimeoutError::Timeout,
        }
    }
}

/// The sum over all test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
}

impl Tally {
    fn show(&mut self, line: &str) {
        print!("{line}");
        // A closed pipe is the reader's choice, not a failure of the tests.
        let _ = std::io::stdout().flush();
        self.count(line);
    }

    /// Adds a line such as `test result: ok. 3 passed; 0 failed; …`; other lines say nothing.
    fn count(&mut self, line: &str) {
        let Some(result) = line.trim().strip_prefix("test result: ") else {
            return;
        };
        for part in result.split(['.', ';']) {
            match part.split_whitespace().collect::<Vec<_>>().as_slice() {
                [number, "passed"] => self.passed += number.parse().unwrap_or(0),
                [number, "failed"] => self.failed += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_summed_over_binaries() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests\n",
            "test a ... ok\n",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.42s\n",
            "test result: FAILED. 40 passed; 2 failed; 0 ignored; 0 measured; 1 filtered out; finished in 1.00s\n",
            "a line that says 7 passed; 7 failed\n",
        ] {
            tally.count(line);
        }
        assert_eq!(
            tally,
            Tally {
                passed: 43,
                failed: 2
            }
        );
    }

    #[test]
    fn arguments_after_the_dashes_are_the_filter() {
        let plan = |quick, filter: &[&str]| {
            Ok(Plan {
                quick,
                filter: filter.iter().map(ToString::to_string).collect(),
            })
        };
        assert_eq!(Plan::parse(&[]), plan(false, &[]));
        assert_eq!(Plan::parse(&["--quick"]), plan(true, &[]));
        assert_eq!(
            Plan::parse(&["--quick", "--", "fence", "--nocapture"]),
            plan(true, &["fence", "--nocapture"])
        );
        assert!(Plan::parse(&["fence"]).is_err());
    }

    #[test]
    fn a_pipe_that_closes_ends_the_reading() {
        let lines = lines_of(&b"test result: ok. 1 passed; 0 failed;\nno newline"[..]);
        let mut tally = Tally::default();
        assert!(!drain(&lines, &mut tally, PATIENCE));
        assert_eq!(
            tally,
            Tally {
                passed: 1,
                failed: 0
            }
        );
    }

    #[test]
    fn a_pipe_that_stays_open_is_noticed() {
        let (held, lines) = mpsc::channel();
        assert!(
            held.send("test result: FAILED. 0 passed; 1 failed;\n".to_owned())
                .is_ok()
        );
        let mut tally = Tally::default();
        assert!(drain(&lines, &mut tally, Duration::ZERO));
        assert_eq!(
            tally,
            Tally {
                passed: 0,
                failed: 1
            }
        );
        drop(held);
        assert!(!drain(&lines, &mut tally, Duration::ZERO));
    }
}
