//! Child processes that run this same program and may be killed.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_fence::files::Folder;
use palisade_fence::{Admitted, Edit, Error, Result, Sequence, Write};
use rustix::process::{Signal, getpid, kill_process};

use super::t;

const FOLDER: &str = "PALISADE_TEST_FOLDER";
const JOB: &str = "PALISADE_TEST_JOB";
const NUMBER: &str = "PALISADE_TEST_NUMBER";

/// The job of a child. `number` is the step before which it dies, or the number of a racer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    Put,
    PutNew,
    Append,
    AppendNew,
    Delete,
    /// Claims for the next holder; that also finishes the work that a crash left.
    Claim,
    /// Appends and then records the number, without the fence.
    NaiveAppend,
    Race,
    /// Appends, and stops before a step instead of dying.
    StopInAppend,
}

const JOBS: [Job; 9] = [
    Job::Put,
    Job::PutNew,
    Job::Append,
    Job::AppendNew,
    Job::Delete,
    Job::Claim,
    Job::NaiveAppend,
    Job::Race,
    Job::StopInAppend,
];

const RACE_ROUNDS: u64 = 150;
pub(crate) const NEW: &[u8] = b"new;";

/// The write of a job: by token 2, number 1.
pub(crate) fn write(job: Job) -> Write<'static> {
    let (key, change) = match job {
        Job::Put => ("/data", Edit::Put(NEW)),
        Job::PutNew => ("/fresh", Edit::Put(NEW)),
        Job::AppendNew => ("/fresh", Edit::Append(NEW)),
        Job::Delete => ("/data", Edit::Delete),
        _ => ("/data", Edit::Append(NEW)),
    };
    Write::new(key, change).numbered(Sequence::new(1).unwrap())
}

/// Returns the command that starts a child on a folder.
pub(crate) fn command(folder: &Path, job: Job, number: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "files::child::is_started_by_other_tests",
            "--nocapture",
        ])
        .env(FOLDER, folder)
        .env(JOB, format!("{job:?}"))
        .env(NUMBER, number.to_string());
    command
}

/// Whether the child died as instructed; if not, it must have finished.
pub(crate) fn died(folder: &Path, job: Job, step: u64) -> bool {
    let Output {
        status,
        stdout,
        stderr,
    } = command(folder, job, step).output().unwrap();
    if status.signal() == Some(Signal::KILL.as_raw()) {
        return true;
    }
    let said = [stdout, stderr].concat();
    assert!(status.success(), "{}", String::from_utf8_lossy(&said));
    false
}

/// The entry point of the children; by itself it does nothing.
#[test]
fn is_started_by_other_tests() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let name = std::env::var(JOB).unwrap();
    let job = JOBS.into_iter().find(|job| format!("{job:?}") == name);
    let number = std::env::var(NUMBER).unwrap().parse().unwrap();
    match job.unwrap() {
        Job::Race => race(&folder, number),
        Job::NaiveAppend => naive_append(&folder, &*dies_before(number)),
        Job::StopInAppend => {
            let folder = Folder::watched(&folder, signals_before(number, Signal::STOP)).unwrap();
            folder.write(t(2), write(Job::Append)).unwrap();
        }
        Job::Claim => {
            let folder = Folder::watched(&folder, dies_before(number)).unwrap();
            folder.claim(t(3)).unwrap();
        }
        job => {
            let folder = Folder::watched(&folder, dies_before(number)).unwrap();
            folder.write(t(2), write(job)).unwrap();
        }
    }
}

fn dies_before(step: u64) -> palisade_fence::files::StepHook {
    signals_before(step, Signal::KILL)
}

/// Sends the signal to its own process, which never gets beyond it.
fn signals_before(step: u64, signal: Signal) -> palisade_fence::files::StepHook {
    let taken = AtomicU64::new(0);
    Arc::new(move |_| {
        if taken.fetch_add(1, Ordering::Relaxed) + 1 == step {
            kill_process(getpid(), signal).unwrap();
            loop {
                std::thread::park();
            }
        }
    })
}

/// Writes the data first, then the record that it was written, which is how most programs start.
fn naive_append(folder: &Path, step: &dyn Fn(&'static str)) {
    if std::fs::exists(folder.join("done-1")).unwrap() {
        return;
    }
    step("append");
    let mut file = std::fs::File::options();
    let mut file = file.append(true).open(folder.join("data")).unwrap();
    file.write_all(NEW).unwrap();
    file.sync_all().unwrap();
    step("note");
    std::fs::write(folder.join("done-1"), "").unwrap();
    step("answer");
}

/// Adds one to the counter, round by round, and prints how many additions were acknowledged.
fn race(path: &Path, number: u64) {
    let folder = Folder::open(path).unwrap();
    let mut acknowledged = 0;
    for round in 0..RACE_ROUNDS {
        let token = t(2 * round + number);
        if is_rejected(once_free(|| folder.claim(token))) {
            continue;
        }
        let read = match once_free(|| folder.read(token, "/counter")) {
            Err(error) if error.rejected().is_some() => continue,
            read => read.unwrap(),
        };
        let before = read.value.map_or(0, |bytes| {
            String::from_utf8(bytes).unwrap().parse::<u64>().unwrap()
        });
        let text = (before + 1).to_string();
        let put = || Write::new("/counter", Edit::Put(text.as_bytes()));
        acknowledged += u64::from(!is_rejected(once_free(|| folder.write(token, put()))));
    }
    println!("acknowledged={acknowledged}");
}

/// The other racer may have the lock so often that this one does not get it in the fence's time: nothing has happened then.
fn once_free<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Error::Busy(_)) => {}
            answer => return answer,
        }
    }
}

fn is_rejected(answer: Result<Admitted<()>>) -> bool {
    match answer {
        Err(error) if error.rejected().is_some() => true,
        answer => {
            answer.unwrap();
            false
        }
    }
}
