//! `cargo xtask test`: what the machine lacks, the build, every test, one summary.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use serde::Deserialize;

use crate::bench::instructions;
use crate::package;
use crate::prerequisites::{CALLGRIND, PREREQUISITES, ensure, ensure_environments};
use crate::shell::{Background, cargo, read, run, spelled, target, timed};

/// How long the output may stay open after cargo has ended. A process that holds it then was left behind by a test.
const PATIENCE: Duration = Duration::from_secs(5);

/// All packages at once: tests of one package start the programs of another.
const TESTS: [&str; 4] = ["test", "--release", "--workspace", "--all-features"];

/// The unit tests, and nothing else.
const UNIT_TESTS: [&str; 2] = ["--lib", "--bins"];

/// The test programs beside which nothing else may run.
const ALONE: &str = "alone";

/// The tests to run.
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
        let mut stages = Stages::default();
        let (outcome, time) = timed(|| self.work(&mut stages));
        let (tally, verdict) = match outcome {
            Ok((tally, verdict)) => (tally, verdict),
            Err(complaint) => (Tally::default(), Err(complaint)),
        };
        if let Err(complaint) = &verdict {
            println!("test: {complaint}");
        }
        for name in &tally.names {
            println!("test: failed: {name}");
        }
        println!("test: {}", stages.0.join(", "));
        println!(
            "test: {} passed, {} failed ({:.0} s)",
            tally.passed,
            tally.failed,
            time.as_secs_f32()
        );
        verdict.is_ok()
    }

    fn work(&self, stages: &mut Stages) -> Result<(Tally, Result<(), String>), String> {
        let parts = self.parts()?;
        let kinds: &[&str] = if self.quick { &UNIT_TESTS } else { &[] };
        // The one waits for the network, and the other computes.
        let build = Background::start(cargo(&TESTS).args(kinds).arg("--no-run"))?;
        stages.add("prerequisites", || {
            ensure(PREREQUISITES)?;
            ensure_environments(&target())
        })?;
        stages.add("rest of the build", || build.finish())?;
        let instructions = stages.add("instructions", || self.instructions());
        let mut complaints = Vec::from_iter(instructions.err());
        let mut tally = Tally::default();
        for part in parts {
            let ran = stages.add(part.name, || part.run(&self.filter, &mut tally));
            complaints.extend(ran.err());
        }
        complaints.extend(stages.add("clients", || self.clients()).err());
        complaints.extend(stages.add("package", || self.package()).err());
        if tally.passed == 0 && self.filter.is_empty() {
            complaints.push("no test ran".to_owned());
        }
        let verdict = match complaints.is_empty() {
            true => Ok(()),
            false => Err(complaints.join("; ")),
        };
        Ok((tally, verdict))
    }

    /// Most tests wait for a process, a server or a disk, so there are more of them at a time than cores. Those that
    /// need the machine come last, one after the other.
    fn parts(&self) -> Result<Vec<Part>, String> {
        let part = |name, targets: &[&str], threads| Part {
            name,
            targets: targets.iter().map(ToString::to_string).collect(),
            threads,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut together = part("tests", &UNIT_TESTS, 2 * cores);
        if self.quick {
            return Ok(vec![together]);
        }
        for program in test_programs()? {
            together.targets.extend(["--test".to_owned(), program]);
        }
        let alone = part(ALONE, &["--test", ALONE], 1);
        Ok(vec![together, part("examples", &["--doc"], cores), alone])
    }

    /// The clients in other languages, with their own tests and linters, when all tests run.
    fn clients(&self) -> Result<(), String> {
        if self.quick || !self.filter.is_empty() {
            return Ok(());
        }
        let built = |name: &str| target().join("release").join(name);
        let mut check = Command::new("clients/check");
        check
            .args([built("palisade"), built("examples/holder-driver")])
            .env("PALISADE_ADDER", built("examples/adder"));
        run(&mut check).inspect_err(|complaint| println!("test: {complaint}"))
    }

    /// The Debian package, from installing to purging it, and the Kubernetes manifests, when all tests run.
    fn package(&self) -> Result<(), String> {
        if self.quick || !self.filter.is_empty() {
            return Ok(());
        }
        let program = target().join("release/palisade");
        package::check(&program)
            .and_then(|()| package::check_kubernetes(&program))
            .inspect_err(|complaint| println!("test: {complaint}"))
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

/// Targets that are tested by one call of cargo.
struct Part {
    name: &'static str,
    targets: Vec<String>,
    /// Tests of a program that run at a time.
    threads: usize,
}

impl Part {
    fn run(&self, filter: &[String], tally: &mut Tally) -> Result<(), String> {
        let mut command = cargo(&TESTS);
        command.arg("--no-fail-fast").args(&self.targets);
        command.arg("--").args(filter).stdout(Stdio::piped());
        command.env("RUST_TEST_THREADS", self.threads.to_string());
        let name = spelled(&command);
        let mut child = command
            .spawn()
            .map_err(|error| format!("{name}: {error}"))?;
        let output = child.stdout.take().ok_or("cargo test has no output")?;
        let lines = lines_of(output);
        // Lines are shown as they come; the channel ends when the last program that holds the output ends.
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
        let left_behind = drain(&lines, tally, PATIENCE);
        if !status.success() {
            Err(format!("{name} ended with {status}"))
        } else if left_behind {
            Err("a test left a process running that still holds the output".to_owned())
        } else {
            Ok(())
        }
    }
}

/// The names of the test programs that may run beside others.
fn test_programs() -> Result<BTreeSet<String>, String> {
    let metadata = ["metadata", "--no-deps", "--format-version", "1"];
    let metadata: Metadata = serde_json::from_str(&read(&mut cargo(&metadata))?)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let targets = metadata
        .packages
        .into_iter()
        .flat_map(|package| package.targets);
    let tests = targets.filter(|target| target.kind == ["test"]);
    Ok(tests
        .map(|target| target.name)
        .filter(|name| name != ALONE)
        .collect())
}

/// The part of `cargo metadata` that is needed here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
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

/// How long each stage took, and how busy the machine was. A stage that leaves processors idle may run beside another one.
#[derive(Debug, Default)]
struct Stages(Vec<String>);

impl Stages {
    fn add<T>(&mut self, name: &str, stage: impl FnOnce() -> T) -> T {
        let before = Ticks::now();
        let (result, time) = timed(stage);
        let mut spoken = format!("{name} {:.0} s", time.as_secs_f32());
        let busy = before.and_then(|before| Ticks::now()?.busy_since(&before));
        if let Some(busy) = busy {
            spoken += &format!(" ({busy} % busy)");
        }
        self.0.push(spoken);
        result
    }
}

/// What all processors of the machine have spent since it was started, in hundredths of a second.
#[derive(Debug)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    /// `None` where the kernel is not Linux.
    fn now() -> Option<Ticks> {
        Ticks::of(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Reads the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5)).
    fn of(stat: &str) -> Option<Ticks> {
        let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
        let numbers = numbers.split_whitespace().take(8).map(str::parse);
        let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
        Some(Ticks {
            idle: numbers.get(3..5)?.iter().sum(),
            all: numbers.iter().sum(),
        })
    }

    /// In percent of what was there.
    fn busy_since(&self, before: &Ticks) -> Option<u64> {
        let idle = self.idle.saturating_sub(before.idle);
        let all = self.all.saturating_sub(before.all);
        (100 * all.saturating_sub(idle)).checked_div(all)
    }
}

/// The sum over all test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    /// Of the tests that failed.
    names: Vec<String>,
}

impl Tally {
    fn show(&mut self, line: &str) {
        print!("{line}");
        // A closed pipe is the reader's choice, not a failure of the tests.
        let _ = std::io::stdout().flush();
        self.count(line);
    }

    /// Adds a line such as `test result: ok. 3 passed; 0 failed; …` or `test a::b ... FAILED`; other lines say nothing.
    fn count(&mut self, line: &str) {
        let failed = line.trim().strip_suffix(" ... FAILED");
        if let Some(name) = failed.and_then(|test| test.strip_prefix("test ")) {
            self.names.push(name.to_owned());
        }
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
            "test b::c ... FAILED\n",
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
                failed: 2,
                names: vec!["b::c".to_owned()],
            }
        );
    }

    #[test]
    fn a_stage_that_waits_for_a_disk_is_not_busy() {
        let ticks = |line: &str| Ticks::of(line).unwrap();
        let before = ticks("cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1\n");
        let after = ticks("cpu  20 2 16 150 30 1 1 0 7 0\n");
        assert_eq!(after.busy_since(&before), Some(20));
        assert_eq!(before.busy_since(&before), None);
        assert!(Ticks::of("intr 1 2 3 4 5 6 7 8\n").is_none());
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
    fn every_test_program_runs_once_and_some_run_alone() {
        let plan = Plan::parse(&[]).unwrap();
        let parts = plan.parts().unwrap();
        let [together, examples, alone] = &parts[..] else {
            panic!("{} parts", parts.len());
        };
        let count = |part: &Part, name| part.targets.iter().filter(|word| *word == name).count();
        for name in ["--lib", "--bins", "suite", "directories", "descriptors"] {
            assert_eq!(count(together, name), 1, "{name}");
        }
        assert_eq!(count(together, ALONE), 0);
        assert_eq!(examples.targets, ["--doc"]);
        assert_eq!(
            (alone.targets.join(" "), alone.threads),
            ("--test alone".to_owned(), 1)
        );
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
                ..Tally::default()
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
                failed: 1,
                ..Tally::default()
            }
        );
        drop(held);
        assert!(!drain(&lines, &mut tally, Duration::ZERO));
    }
}
