//! `cargo xtask test`: what the machine lacks, the build, every test, one summary.

use std::io::Write as _;
use std::process::Command;

use crate::bench::instructions;
use crate::package;
use crate::prerequisites::{CALLGRIND, PREREQUISITES, ensure, ensure_environments};
use crate::programs::{Job, Load, Part, Program, TESTS};
use crate::shell::{Background, cargo, run, target, timed};

/// The unit tests of what ships, and nothing else: what proves it takes longer to build than all the rest.
const UNIT_TESTS: [&str; 10] = [
    "--lib",
    "--bins",
    "--exclude",
    "chunk-store",
    "--exclude",
    "palisade-lab",
    "--exclude",
    "palisade-peers",
    "--exclude",
    "palisade-testbed",
];

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
        let kinds: &[&str] = if self.quick { &UNIT_TESTS } else { &[] };
        // The one waits for the network, and the other computes.
        let build = Background::start(cargo(&TESTS).args(kinds).arg("--no-run"))?;
        stages.add("prerequisites", || {
            ensure(PREREQUISITES)?;
            ensure_environments(&target())?;
            self.packages_of_clients()
        })?;
        stages.add("rest of the build", || build.finish())?;
        let instructions = stages.add("instructions", || self.instructions());
        let mut complaints = Vec::from_iter(instructions.err());
        let mut tally = Tally::default();
        for Stage { name, jobs, load } in self.stages(&Program::all(kinds)?) {
            let show = |name: &str, line: &str| tally.show(name, line);
            let ran = stages.add(name, || Job::run_all(jobs, load, show));
            complaints.extend(ran.err());
        }
        complaints.extend(stages.add("package", || self.package()).err());
        if tally.passed == 0 && self.filter.is_empty() {
            complaints.push("no test ran".to_owned());
        }
        let verdict = match complaints.is_empty() {
            true => Ok(()),
            false => Err(complaints.join("\n")),
        };
        Ok((tally, verdict))
    }

    /// Most tests wait for a process, a server or a disk, so there are more of them at a time than cores. Those that
    /// need the machine come last.
    fn stages(&self, programs: &[Program]) -> Vec<Stage> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let jobs = |part| -> Vec<Job> {
            let mut programs: Vec<_> = programs.iter().filter(|of| of.part() == part).collect();
            // Those that take longest come first, so that none of them is left over at the end.
            programs.sort_by_key(|program| !program.is_integration);
            programs
                .iter()
                .map(|program| program.job(&self.filter))
                .collect()
        };
        let stage = |name, jobs, programs, tests| Stage {
            name,
            jobs,
            load: Load { programs, tests },
        };
        let mut together = jobs(Part::Tests);
        if !self.quick {
            together.push(Job::examples(&self.filter));
        }
        let mut stages = vec![
            stage("tests", together, 2, 2 * cores),
            stage("faults", jobs(Part::Faults), 1, 2),
            stage("alone", jobs(Part::Alone), 1, 1),
        ];
        if self.runs_all() {
            stages.push(stage("clients", vec![clients()], 1, 1));
        }
        stages
    }

    /// What the clients in other languages take from their registries, when all tests run.
    fn packages_of_clients(&self) -> Result<(), String> {
        match self.runs_all() {
            true => run(&mut Command::new("clients/install")),
            false => Ok(()),
        }
    }

    fn runs_all(&self) -> bool {
        !self.quick && self.filter.is_empty()
    }

    /// The Debian package, from installing to purging it, the Kubernetes manifests and a rolling upgrade, when all tests
    /// run.
    fn package(&self) -> Result<(), String> {
        if !self.runs_all() {
            return Ok(());
        }
        let program = target().join("debug/palisade");
        package::check(&program)
            .and_then(|()| package::check_kubernetes(&program))
            .and_then(|()| package::check_upgrade(&program))
            .inspect_err(|complaint| println!("test: {complaint}"))
    }

    /// The hot path against its baseline, when all tests run.
    fn instructions(&self) -> Result<(), String> {
        if !self.runs_all() {
            return Ok(());
        }
        ensure(CALLGRIND)?;
        instructions::measure(false).inspect_err(|complaint| println!("test: {complaint}"))
    }
}

/// The clients in other languages, with their own tests and linters. Their rules are about time, so nothing runs beside
/// them.
fn clients() -> Job {
    let built = |name: &str| target().join("debug").join(name);
    let mut check = Command::new("clients/check");
    check
        .args([built("palisade"), built("examples/holder-driver")])
        .env("PALISADE_ADDER", built("examples/adder"));
    Job::new("clients", check)
}

/// Jobs that run in the same way.
struct Stage {
    name: &'static str,
    jobs: Vec<Job>,
    load: Load,
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
    /// Of the tests that failed, each with its program's.
    names: Vec<String>,
}

impl Tally {
    fn show(&mut self, program: &str, line: &str) {
        println!("{program}: {}", line.trim_end());
        // A closed pipe is the reader's choice, not a failure of the tests.
        let _ = std::io::stdout().flush();
        self.count(program, line);
    }

    /// Adds a line such as `test result: ok. 3 passed; 0 failed; …` or `test a::b ... FAILED`; other lines say nothing.
    fn count(&mut self, program: &str, line: &str) {
        let failed = line.trim().strip_suffix(" ... FAILED");
        if let Some(name) = failed.and_then(|test| test.strip_prefix("test ")) {
            self.names.push(format!("{program}: {name}"));
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
            tally.count("wal suite", line);
        }
        assert_eq!(
            tally,
            Tally {
                passed: 43,
                failed: 2,
                names: vec!["wal suite: b::c".to_owned()],
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
    fn every_job_runs_once_and_some_run_alone() {
        let plan = |arguments: &[&str]| Plan::parse(arguments).unwrap();
        let programs = [
            ("wal", "lib"),
            ("wal", "suite"),
            ("lab", "suite"),
            ("lab", "faults"),
            ("palisade", "alone"),
        ];
        let programs = programs.map(|(package, target)| Program::sample(package, target));
        let names = |plan: &Plan| {
            let names = |stage: Stage| {
                stage
                    .jobs
                    .iter()
                    .map(Job::name)
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let stages = plan.stages(&programs).into_iter();
            let named = stages.map(|stage| {
                let Load { programs, tests } = stage.load;
                (stage.name, (programs, tests > 1), names(stage))
            });
            named.collect::<Vec<_>>()
        };
        let expected = |tests: &str| {
            vec![
                ("tests", (2, true), tests.to_owned()),
                ("faults", (1, true), "lab faults".to_owned()),
                ("alone", (1, false), "palisade alone".to_owned()),
            ]
        };
        let tests = "wal suite, lab suite, wal lib";
        assert_eq!(names(&plan(&["--quick"])), expected(tests));
        let tests = format!("{tests}, examples");
        assert_eq!(names(&plan(&["--", "fence"])), expected(&tests));
        let clients = ("clients", (1, false), "clients".to_owned());
        let all = [expected(&tests), vec![clients]].concat();
        assert_eq!(names(&plan(&[])), all);
    }
}
