//! The programs in which tests run, some of them at a time.
//!
//! ```text
//!   cargo test --no-run ──► Program ──► Job ──queue──► runners ──lines──► shown, counted
//!        cargo test --doc, clients/check ─┘
//! ```
//!
//! `cargo test` itself runs one program after the other, and most tests wait: for a process, a server or a disk.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read, pipe};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;

use crate::shell::{cargo, read, root, timed};

/// All packages at once: tests of one package start the programs of another.
pub(crate) const TESTS: [&str; 3] = ["test", "--workspace", "--all-features"];

/// How long the output may stay open after a program has ended. A process that holds it then was left behind by a test.
const PATIENCE: Duration = Duration::from_secs(5);

/// The end of a job that took at least so long says how long, and what it computed: what is worth making faster.
const LONG: Duration = Duration::from_secs(10);

/// How many lines of what failed are shown again at the end, where a reader looks first.
const LAST_LINES: usize = 40;

/// A test program that is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    package: String,
    target: String,
    /// Whether it is of the package's `tests` folder.
    pub(crate) is_integration: bool,
    /// The package's, in which its tests expect to run.
    folder: PathBuf,
    file: PathBuf,
}

/// The part of what cargo says of something built that is needed here.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The parts run one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// They run beside each other.
    Tests,
    /// They stop and cut off processes for minutes; little may run beside them.
    Faults,
    /// Nothing may run beside them.
    Alone,
}

impl Program {
    /// Those that `cargo test` runs for these kinds of targets. What is not built yet is built.
    ///
    /// # Errors
    /// The build failed.
    pub(crate) fn all(kinds: &[&str]) -> Result<Vec<Program>, String> {
        let mut build = cargo(&TESTS);
        build
            .args(kinds)
            .args(["--no-run", "--message-format=json-render-diagnostics"]);
        Ok(read(&mut build)?
            .lines()
            .filter_map(Program::of_message)
            .collect())
    }

    /// `None` for a message about anything else.
    fn of_message(message: &str) -> Option<Program> {
        // Other messages have other fields.
        let built: Artifact = serde_json::from_str(message).ok()?;
        let file = built.executable.filter(|_| built.profile.test)?;
        let folder = built.manifest_path.parent()?.to_owned();
        Some(Program {
            package: folder.file_name()?.to_string_lossy().into_owned(),
            target: built.target.name,
            is_integration: built.target.kind == ["test"],
            folder,
            file,
        })
    }

    #[cfg(test)]
    pub(crate) fn sample(package: &str, target: &str) -> Program {
        Program {
            package: package.to_owned(),
            target: target.to_owned(),
            is_integration: target != "lib",
            folder: PathBuf::new(),
            file: PathBuf::new(),
        }
    }

    /// The part of the tests that it belongs to.
    pub(crate) fn part(&self) -> Part {
        match &*self.target {
            "faults" if self.is_integration => Part::Faults,
            "alone" if self.is_integration => Part::Alone,
            _ => Part::Tests,
        }
    }

    /// Where the files of its modules are, from the root. A program of one file is that file, without its ending.
    pub(crate) fn tests(&self) -> PathBuf {
        let folder = self.folder.strip_prefix(root()).unwrap_or(&self.folder);
        if self.is_integration {
            folder.join("tests").join(&self.target)
        } else {
            folder.join("src")
        }
    }

    /// Its run, as cargo starts it.
    pub(crate) fn job(&self, filter: &[String]) -> Job {
        let mut command = Command::new(&self.file);
        command
            .args(filter)
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("CARGO_PKG_NAME", &self.package);
        Job {
            name: format!("{} {}", self.package, self.target),
            command,
        }
    }
}

/// A run of some tests, in a process of its own.
pub(crate) struct Job {
    name: String,
    command: Command,
}

/// How much runs at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) programs: usize,
    /// Tests of each program.
    pub(crate) tests: usize,
}

/// The fault of a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) job: String,
    pub(crate) text: String,
    /// Whether it ended as a test program does of which a test failed, so that its tests say the rest.
    pub(crate) tests_failed: bool,
}

/// How a test program ends of which a test failed.
const TESTS_FAILED: i32 = 101;

impl Job {
    pub(crate) fn new(name: &str, command: Command) -> Job {
        Job {
            name: name.to_owned(),
            command,
        }
    }

    /// The examples in the documentation.
    pub(crate) fn examples(filter: &[String]) -> Job {
        let mut command = cargo(&TESTS);
        command.args(["--no-fail-fast", "--doc", "--"]).args(filter);
        Job::new("examples", command)
    }

    #[cfg(test)]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs all of them to the end. Each line is shown as it comes, with the name of the job. Returns the jobs that failed,
    /// each with its last lines, and those that left a process behind.
    pub(crate) fn run_all(
        jobs: Vec<Job>,
        load: Load,
        mut show: impl FnMut(&str, &str),
    ) -> Vec<Complaint> {
        let jobs = Mutex::new(jobs.into_iter());
        let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
        let (lines, to_show) = mpsc::channel();
        let run_some = |lines: Sender<(String, String)>| {
            let run = |job: Job| job.run(load.tests, &lines).err();
            std::iter::from_fn(next).filter_map(run).collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            let start = || {
                scope.spawn({
                    let lines = lines.clone();
                    move || run_some(lines)
                })
            };
            let runners: Vec<_> = (0..load.programs).map(|_| start()).collect();
            drop(lines);
            to_show.iter().for_each(|(name, line)| show(&name, &line));
            let panicked = |_| vec![Complaint::of("xtask", "a thread that runs tests panicked")];
            let ended = runners
                .into_iter()
                .map(|runner| runner.join().unwrap_or_else(panicked));
            ended.flatten().collect()
        })
    }

    fn run(self, tests: usize, lines: &Sender<(String, String)>) -> Result<(), Complaint> {
        let Job { name, mut command } = self;
        let failed = |error| Complaint::of(&name, &format!("{name}: {error}"));
        // One pipe for both, so that a complaint stands where it was made.
        let (output, input) = pipe().map_err(failed)?;
        command
            .env("RUST_TEST_THREADS", tests.to_string())
            .stdout(input.try_clone().map_err(failed)?)
            .stderr(input);
        let mut child = command.spawn().map_err(failed)?;
        let mut computed = None;
        // The pipe ends with the last process that writes to it; this one does not.
        drop(command);
        let mut last = VecDeque::new();
        let mut show = |line: String| {
            last.push_back(format!("  {}", line.trim_end()));
            if last.len() > LAST_LINES {
                last.pop_front();
            }
            drop(lines.send((name.clone(), line)));
        };
        let read = lines_of(output);
        // The channel ends when the last process that holds the output ends.
        let (status, took) = timed(|| {
            loop {
                let heard = read.recv_timeout(Duration::from_millis(200));
                if heard.is_err() {
                    // While the process is there: it is also when it has ended and nobody knows yet.
                    computed = computed_by(child.id()).or(computed);
                }
                match heard {
                    Ok(line) => show(line),
                    Err(RecvTimeoutError::Disconnected) => break child.wait(),
                    Err(RecvTimeoutError::Timeout) => match child.try_wait() {
                        Ok(None) => {}
                        ended => break ended.map(Option::unwrap_or_default),
                    },
                }
            }
        });
        let status = status.map_err(failed)?;
        let left_behind = drain(&read, &mut show, PATIENCE);
        if took >= LONG {
            let computed = computed.map_or_else(String::new, |it| {
                format!(", {:.0} s of a processor", it.as_secs_f32())
            });
            show(format!("{:.0} s{computed}", took.as_secs_f32()));
        }
        if !status.success() {
            let last = Vec::from(last).join("\n");
            let text = format!("{name} ended with {status}, its last lines:\n{last}");
            let tests_failed = status.code() == Some(TESTS_FAILED) && !left_behind;
            Err(Complaint {
                tests_failed,
                ..Complaint::of(&name, &text)
            })
        } else if left_behind {
            let text = format!("{name}: a test left a process running that still holds the output");
            Err(Complaint::of(&name, &text))
        } else {
            Ok(())
        }
    }
}

impl Complaint {
    fn of(job: &str, text: &str) -> Self {
        Self {
            job: job.to_owned(),
            text: text.to_owned(),
            tests_failed: false,
        }
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

/// The time of a processor that a process has had, and the children of which it knows the end. `None` where there is no `/proc`.
fn computed_by(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before it may have spaces, and brackets too. Then, in hundredths of a second, utime, stime, cutime and cstime
    // (proc_pid_stat(5)).
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|ticks| ticks.parse::<u64>());
    let ticks: Vec<u64> = ticks.collect::<Result<_, _>>().ok()?;
    Some(Duration::from_millis(10 * ticks.iter().sum::<u64>()))
}

/// Shows what is still in the pipe; true when somebody keeps it open.
fn drain(lines: &Receiver<String>, mut show: impl FnMut(String), patience: Duration) -> bool {
    loop {
        match lines.recv_timeout(patience) {
            Ok(line) => show(line),
            Err(error) => return error == RecvTimeoutError::Timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load {
        programs: 2,
        tests: 1,
    };

    fn shell(name: &str, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job::new(name, command)
    }

    fn run(jobs: Vec<Job>, load: Load) -> (Vec<String>, Result<(), String>) {
        let mut shown = Vec::new();
        let complaints = Job::run_all(jobs, load, |name, line| {
            shown.push(format!("{name}: {}", line.trim_end()))
        });
        shown.sort();
        let texts: Vec<String> = complaints.into_iter().map(|it| it.text).collect();
        let outcome = if texts.is_empty() {
            Ok(())
        } else {
            Err(texts.join("\n"))
        };
        (shown, outcome)
    }

    #[test]
    fn a_test_program_is_found_in_what_cargo_says() {
        let artifact = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"x","manifest_path":"/r/crates/palisade-wal/Cargo.toml",
                "target":{{"kind":["test"],"name":"suite"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let program = Program::of_message(&artifact(true, r#""/t/suite-1""#)).unwrap();
        assert_eq!(
            (&*program.package, &*program.target),
            ("palisade-wal", "suite")
        );
        assert_eq!(program.folder, PathBuf::from("/r/crates/palisade-wal"));
        assert!(program.is_integration && program.part() == Part::Tests);
        let others = [
            artifact(false, r#""/t/palisade""#),
            artifact(true, "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        for other in others {
            assert_eq!(Program::of_message(&other), None, "{other}");
        }
    }

    #[test]
    fn lines_of_several_jobs_are_shown_with_their_names_and_failures_told_again() {
        let jobs = vec![
            shell("one", "echo a; echo $RUST_TEST_THREADS; printf b"),
            shell("two", "echo c >&2; exit 3"),
            shell("three", "echo d"),
        ];
        let (shown, outcome) = run(jobs, LOAD);
        assert_eq!(shown, ["one: 1", "one: a", "one: b", "three: d", "two: c"]);
        let complaint = "two ended with exit status: 3, its last lines:\n  c";
        assert_eq!(outcome.unwrap_err(), complaint);
        let (_, outcome) = run(vec![shell("long", "seq 1 1000; exit 1")], LOAD);
        let complaint = outcome.unwrap_err();
        assert_eq!(complaint.lines().count(), 1 + LAST_LINES);
        assert!(complaint.ends_with("\n  999\n  1000"), "{complaint}");
    }

    /// Two jobs that wait for each other end when both run, and only then.
    #[test]
    fn as_many_jobs_run_at_a_time_as_the_load_says() {
        let met = |name: &str, programs| {
            let folder = std::env::temp_dir().join(format!("xtask-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let meet = |own: &str, other: &str| {
                let wait = format!(
                    "for n in $(seq 250); do [ -e {other} ] && exit; sleep 0.02; done; exit 1"
                );
                let mut job = shell(own, &format!("touch {own}; {wait}"));
                job.command.current_dir(&folder);
                job
            };
            let jobs = vec![meet("a", "b"), meet("b", "a")];
            let outcome = run(jobs, Load { programs, ..LOAD }).1;
            std::fs::remove_dir_all(&folder).unwrap();
            outcome
        };
        assert_eq!(met("both", 2), Ok(()));
        // The control: the first one has ended before the second one begins.
        let complaint = met("one", 1).unwrap_err();
        assert!(complaint.starts_with("a ended with exit status: 1"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_process_computed_counts_its_children_and_no_sleep() {
        let compute = "python3 -c 'import time\nwhile time.process_time() < 0.5: pass'";
        let [busy, idle] = [compute, "true"].map(|first| {
            // It ends with its input.
            let script = format!("{first}; echo; read _");
            let mut shell = Command::new("sh");
            shell.args(["-c", &script]);
            let shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut shell = shell.spawn().unwrap();
            let said = shell.stdout.take().unwrap();
            BufReader::new(said).read_line(&mut String::new()).unwrap();
            let computed = computed_by(shell.id()).unwrap();
            drop(shell.stdin.take());
            shell.wait().unwrap();
            computed
        });
        assert!(busy >= Duration::from_millis(450), "{busy:?}");
        assert!(idle < Duration::from_millis(450), "{idle:?}");
    }

    #[test]
    fn a_process_that_holds_the_output_is_noticed() {
        let (held, lines) = mpsc::channel();
        assert!(held.send("line\n".to_owned()).is_ok());
        assert!(drain(&lines, drop, Duration::ZERO));
        drop(held);
        assert!(!drain(&lines, drop, Duration::ZERO));
    }
}
