//! `cargo xtask test`: what the machine lacks, the build, every test, one summary. Where it does not judge, a test that fails for
//! the lack of a server is not run: the summary says so, and what to type.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::Command;

use crate::bench::instructions::building;
use crate::package;
use crate::prerequisites::{CALLGRIND, Lack, PREREQUISITES, ROOT, ensure, missing, provide};
use crate::programs::{Complaint, Job, Load, Part, Program, TESTS};
use crate::shell::{Background, again, cargo, judges, patient, run, target, timed};

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
        for (program, test) in &tally.names {
            println!("test: failed: {program}: {test}");
        }
        for line in &tally.not_run {
            println!("test: NOT RUN: {line}");
        }
        println!("test: {}", stages.0.join(", "));
        println!(
            "test: {} passed, {} failed, {} not run ({:.0} s)",
            tally.passed,
            tally.failed,
            tally.not_run.len(),
            time.as_secs_f32()
        );
        verdict.is_ok()
    }

    fn work(&self, stages: &mut Stages) -> Result<(Tally, Result<(), String>), String> {
        let kinds: &[&str] = if self.quick { &UNIT_TESTS } else { &[] };
        // The one waits for the network, and the other computes.
        let build = Background::start(cargo(&TESTS).args(kinds).arg("--no-run"))?;
        let mut tally = Tally {
            lacks: stages.add("prerequisites", || self.prerequisites())?,
            ..Tally::default()
        };
        stages.add("rest of the build", || build.finish())?;
        // It computes while tests wait.
        let release = if self.runs_all() {
            Some(Background::start(&mut patient(&building(), 19))?)
        } else {
            None
        };
        let mut complaints = Vec::new();
        for stage in self.stages(&Program::all(kinds)?) {
            complaints.extend(stage.run(stages, &mut tally));
        }
        if let Some(release) = release {
            // The count says why it failed.
            let _ = stages.add("rest of the release build", || release.finish());
        }
        if let Some(stage) = self.last(&mut tally)? {
            complaints.extend(stage.run(stages, &mut tally));
        }
        if tally.passed == 0 && self.filter.is_empty() {
            complaints.push("no test ran".to_owned());
        }
        let verdict = if complaints.is_empty() {
            Ok(())
        } else {
            Err(complaints.join("\n"))
        };
        Ok((tally, verdict))
    }

    /// Provides what the tests need, and returns what could not be had. Unit tests need hardly anything, and nothing is installed
    /// for them.
    fn prerequisites(&self) -> Result<Vec<Lack>, String> {
        if self.quick {
            let lacks = (!judges()).then(|| missing(PREREQUISITES));
            return Ok(lacks.unwrap_or_default());
        }
        let mut lacks = provide(&target())?;
        if self.runs_all() {
            // The packages that clients in other languages take from their registries.
            match run(&mut Command::new("clients/install")) {
                Err(complaint) if judges() => return Err(complaint),
                Err(complaint) => lacks.push(Lack::new("what the clients need", &[], &complaint)),
                Ok(()) => {}
            }
        }
        Ok(lacks)
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
        let mut together = jobs(Part::Tests);
        if !self.quick {
            together.push(Job::examples(&self.filter));
        }
        vec![
            Stage::of("tests", together, 2, 2 * cores),
            Stage::of("faults", jobs(Part::Faults), 1, cores + 1),
            Stage::of("alone", jobs(Part::Alone), 1, 1),
        ]
    }

    /// The clients, and beside them one package after the other, and the instructions: the clients' holders wait for time to pass.
    fn last(&self, tally: &mut Tally) -> Result<Option<Stage>, String> {
        let mut jobs = Vec::new();
        if self.runs_all() && tally.has(CLIENTS) {
            jobs.push(clients());
        }
        if self.runs_all() && tally.has(PACKAGE) {
            jobs.extend(packages()?);
        }
        jobs.extend(self.instructions(tally)?);
        Ok((!jobs.is_empty()).then(|| Stage::of("clients and packages", jobs, 2, 1)))
    }

    fn runs_all(&self) -> bool {
        !self.quick && self.filter.is_empty()
    }

    /// The hot path against its baseline, when all tests run. A count does not depend on what else the machine does.
    fn instructions(&self, tally: &mut Tally) -> Result<Option<Job>, String> {
        if !self.runs_all() {
            return Ok(None);
        }
        match ensure(CALLGRIND) {
            Err(complaint) if judges() => return Err(complaint),
            Err(complaint) => {
                tally.not_run.push(format!("instructions: {complaint}"));
                return Ok(None);
            }
            Ok(()) => {}
        }
        let mut count = again()?;
        count.args(["bench", "instructions"]);
        Ok(Some(Job::new("instructions", patient(&count, 10))))
    }
}

/// The stage of [`clients`], which needs no root.
const CLIENTS: &str = "clients";
/// The stage of [`packages`].
const PACKAGE: &str = "package";

/// The clients in other languages, with their own tests and linters.
fn clients() -> Job {
    let built = |name: &str| target().join("debug").join(name);
    let mut check = Command::new("clients/check");
    check
        .args([built("palisade"), built("examples/holder-driver")])
        .env("PALISADE_ADDER", built("examples/adder"));
    Job::new(CLIENTS, check)
}

/// The Debian package, from installing to purging it, the Kubernetes manifests and a rolling upgrade.
fn packages() -> Result<Vec<Job>, String> {
    let program = target().join("debug/palisade");
    let ours = |name: &str, product: &str| {
        let mut test = again()?;
        test.args(["package", product, "--program"]).arg(&program);
        Ok::<_, String>(Job::new(name, test))
    };
    Ok(vec![
        ours(PACKAGE, "test")?,
        ours("kubernetes", "kubernetes")?,
        Job::new("upgrade", package::upgrade(&program)),
    ])
}

/// Jobs that run in the same way.
struct Stage {
    name: &'static str,
    jobs: Vec<Job>,
    load: Load,
}

impl Stage {
    fn of(name: &'static str, jobs: Vec<Job>, programs: usize, tests: usize) -> Stage {
        Stage {
            name,
            jobs,
            load: Load { programs, tests },
        }
    }

    /// Returns what is wrong with it.
    fn run(self, stages: &mut Stages, tally: &mut Tally) -> Vec<String> {
        let Stage { name, jobs, load } = self;
        let show = |name: &str, line: &str| tally.show(name, line);
        let ran = stages.add(name, || Job::run_all(jobs, load, show));
        tally.settle(ran)
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

/// The time that all processors of the machine have spent since it was started, in hundredths of a second.
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
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// The tests that failed, each after its program.
    pub(crate) names: Vec<(String, String)>,
    /// The output of the failed tests, by program and test.
    said: BTreeMap<(String, String), String>,
    /// The test whose words each program repeats at the moment.
    speaks: BTreeMap<String, String>,
    /// The prerequisites that the machine lacks. Always empty on one that judges.
    lacks: Vec<Lack>,
    /// The parts that were not run, each with the reason and what to type.
    not_run: Vec<String>,
}

impl Tally {
    /// Shows a line of a program's output, and counts the result in it.
    pub(crate) fn show(&mut self, program: &str, line: &str) {
        println!("{program}: {}", line.trim_end());
        // A closed pipe is the reader's choice, not a failure of the tests.
        let _ = std::io::stdout().flush();
        self.count(program, line);
    }

    /// Adds a line such as `test result: ok. 3 passed; 0 failed; …` or `test a::b ... FAILED`, and what a failed test said.
    fn count(&mut self, program: &str, line: &str) {
        let line = line.trim_end();
        let program = program.to_owned();
        if let Some(name) = line
            .strip_suffix(" ... FAILED")
            .and_then(|test| test.strip_prefix("test "))
        {
            self.names.push((program, name.to_owned()));
        } else if let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|line| line.strip_suffix(" stdout ----"))
        {
            self.speaks.insert(program, name.to_owned());
        } else if line == "failures:" {
            // Only names follow.
            self.speaks.remove(&program);
        } else if let Some(result) = line.strip_prefix("test result: ") {
            for part in result.split(['.', ';']) {
                match part.split_whitespace().collect::<Vec<_>>().as_slice() {
                    [number, "passed"] => self.passed += number.parse().unwrap_or(0),
                    [number, "failed"] => self.failed += number.parse().unwrap_or(0),
                    _ => {}
                }
            }
        } else if let Some(test) = self.speaks.get(&program) {
            let said = self.said.entry((program, test.clone())).or_default();
            *said += line;
            *said += "\n";
        }
    }

    /// Tells the tests that failed for the lack of something from those that failed, and returns what is wrong with a stage.
    fn settle(&mut self, complaints: Vec<Complaint>) -> Vec<String> {
        let mut excused = BTreeSet::new();
        for (program, test) in std::mem::take(&mut self.names) {
            let key = (program, test);
            let said = self.said.get(&key).map_or("", String::as_str);
            match self.lacks.iter().find(|lack| lack.explains(&key.1, said)) {
                Some(Lack { name, advice, .. }) => {
                    self.failed = self.failed.saturating_sub(1);
                    self.not_run
                        .push(format!("{}: {}, without {name}: {advice}", key.0, key.1));
                    excused.insert(key.0);
                }
                None => self.names.push(key),
            }
        }
        let failed = |program: &str| self.names.iter().any(|(of, _)| of == program);
        let serious =
            |it: &Complaint| !(it.tests_failed && excused.contains(&it.job) && !failed(&it.job));
        complaints
            .into_iter()
            .filter(serious)
            .map(|it| it.text)
            .collect()
    }

    /// Whether a stage can run that needs all there is; what it lacks is noted.
    fn has(&mut self, stage: &str) -> bool {
        // Only the package is installed, which needs root.
        let needed = |lack: &&Lack| stage != CLIENTS || lack.name != ROOT;
        let lacks: Vec<&str> = self
            .lacks
            .iter()
            .filter(needed)
            .map(|lack| &*lack.name)
            .collect();
        if lacks.is_empty() {
            return true;
        }
        let advice = self
            .lacks
            .iter()
            .find(needed)
            .map_or("", |lack| &lack.advice);
        self.not_run
            .push(format!("{stage}, without {}: {advice}", lacks.join(", ")));
        false
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
        assert_eq!((tally.passed, tally.failed), (43, 2));
        assert_eq!(tally.names, [("wal suite".to_owned(), "b::c".to_owned())]);
    }

    /// A test program of which these tests failed, each with what it said.
    fn failing(failures: &[(&str, &str)]) -> Job {
        let mut script = String::new();
        for (test, _) in failures {
            script += &format!("echo 'test {test} ... FAILED'\n");
        }
        script += "echo; echo failures:\n";
        for (test, said) in failures {
            script += &format!("echo '---- {test} stdout ----'\necho '{said}' >&2\n");
        }
        script += "echo failures:\n";
        for (test, _) in failures {
            script += &format!("echo '    {test}'\n");
        }
        script += &format!(
            "echo 'test result: FAILED. 1 passed; {} failed;'; exit 101",
            failures.len()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        Job::new("fence suite", command)
    }

    /// The faults, failures and parts not run on a machine without these.
    fn ran(failures: &[(&str, &str)], lacks: Vec<Lack>) -> (usize, u64, Vec<String>) {
        let mut tally = Tally {
            lacks,
            ..Tally::default()
        };
        let load = Load {
            programs: 1,
            tests: 1,
        };
        let complaints = Job::run_all(vec![failing(failures)], load, |name, line| {
            tally.count(name, line)
        });
        let wrong = tally.settle(complaints);
        assert_eq!(tally.names.len() as u64, tally.failed);
        (wrong.len(), tally.failed, tally.not_run)
    }

    fn redis() -> Vec<Lack> {
        vec![Lack::new(
            "Redis",
            &["redis-server"],
            "type: apt-get install redis-server",
        )]
    }

    #[test]
    fn a_test_without_its_server_is_not_run_and_one_that_fails_fails() {
        let missing = (
            "redis::a",
            "redis is missing (/usr/bin/redis-server): install it",
        );
        let broken = ("core::b", "assertion failed: 1 == 2");
        let line = "fence suite: redis::a, without Redis: type: apt-get install redis-server";
        assert_eq!(ran(&[missing], redis()), (0, 0, vec![line.to_owned()]));
        // Controls: another test of the same program fails, this one for another reason, or it said nothing.
        assert_eq!(
            ran(&[missing, broken], redis()),
            (1, 1, vec![line.to_owned()])
        );
        assert_eq!(ran(&[("redis::a", "1 != 2")], redis()), (1, 1, vec![]));
        assert_eq!(ran(&[("redis-server::a", "")], redis()), (1, 1, vec![]));
        // The names that follow are not what the last test said.
        let named = ("redis-server::a", "redis-server is missing");
        assert_eq!(ran(&[named, broken], redis()).1, 1);
        // A machine that judges lacks nothing, or has already failed.
        assert_eq!(ran(&[missing], vec![]), (1, 1, vec![]));
    }

    #[test]
    fn a_program_that_is_killed_is_no_test_that_is_not_run() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "echo 'test a ... FAILED'; echo '---- a stdout ----'; echo redis-server; kill -9 $$",
        ]);
        let mut tally = Tally {
            lacks: redis(),
            ..Tally::default()
        };
        let load = Load {
            programs: 1,
            tests: 1,
        };
        let job = Job::new("fence suite", command);
        let complaints = Job::run_all(vec![job], load, |name, line| tally.count(name, line));
        assert_eq!(tally.settle(complaints).len(), 1);
    }

    #[test]
    fn a_stage_that_needs_all_there_is_says_what_it_lacks() {
        let root = || Lack::new(ROOT, &[], "type: sudo");
        let with = |lacks| Tally {
            lacks,
            ..Tally::default()
        };
        assert!(with(vec![]).has(PACKAGE) && with(vec![root()]).has(CLIENTS));
        for (lacks, stage) in [(vec![root()], PACKAGE), (redis(), CLIENTS)] {
            let mut tally = with(lacks);
            assert!(!tally.has(stage));
            assert!(tally.not_run[0].starts_with(stage), "{:?}", tally.not_run);
        }
    }

    #[test]
    fn packages_and_instructions_are_beside_the_clients() {
        let names = |arguments: &[&str], lacks| {
            let mut tally = Tally {
                lacks,
                ..Tally::default()
            };
            let plan = Plan::parse(arguments).unwrap();
            let last = plan.last(&mut tally).unwrap();
            last.map(|stage| {
                let names: Vec<&str> = stage.jobs.iter().map(Job::name).collect();
                (stage.load.programs, names.join(", "))
            })
        };
        let all = "clients, package, kubernetes, upgrade, instructions";
        assert_eq!(names(&[], vec![]), Some((2, all.to_owned())));
        // Controls: without root, without Redis, and where a part of the tests was asked for.
        let root = vec![Lack::new(ROOT, &[], "type: sudo")];
        let without_root = "clients, instructions";
        assert_eq!(names(&[], root), Some((2, without_root.to_owned())));
        assert_eq!(names(&[], redis()), Some((2, "instructions".to_owned())));
        assert_eq!(names(&["--quick"], vec![]), None);
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
        assert_eq!(names(&plan(&[])), expected(&tests));
    }
}
