//! A process is killed with SIGKILL before every single call to the file system, and again while the next one
//! finishes its work; and processes race.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use palisade_fence::files::{Folder, Root};
use palisade_fence::{Admin as _, Edit, Reject, Write};
use tempfile::TempDir;

use super::child::{self, Job, NEW, command, died};
use super::{t, temporary_dir};

const OLD: &[u8] = b"old;";

/// A folder in which token 1 wrote `old;` to `/data`.
fn prepared() -> TempDir {
    let place = temporary_dir();
    let path = place.path().join("r");
    fs::create_dir(&path).unwrap();
    let folder = Folder::open(&path).unwrap();
    let put = Write::new("/data", Edit::Put(OLD));
    folder.write(t(1), put).unwrap();
    place
}

fn copied(from: &TempDir) -> TempDir {
    let place = temporary_dir();
    let to = place.path().join("r");
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(from.path().join("r")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    place
}

type Bytes = Option<Vec<u8>>;

/// Returns the content of the job's file before and after the job.
fn outcomes(job: Job) -> (Bytes, Bytes) {
    match job {
        Job::PutNew | Job::AppendNew => (None, Some(NEW.to_vec())),
        Job::Append => (Some(OLD.to_vec()), Some([OLD, NEW].concat())),
        Job::Delete => (Some(OLD.to_vec()), None),
        _ => (Some(OLD.to_vec()), Some(NEW.to_vec())),
    }
}

fn highest(place: &TempDir) -> u64 {
    let mut root = Root::new(place.path());
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().unwrap();
    let state = runtime.block_on(root.show("r")).unwrap().unwrap();
    state.highest().unwrap().get()
}

/// Checks that only the fence's state and its lock are left of its files.
fn is_clean(path: &Path) {
    let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let own = names
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".palisade-"));
    let mut own: Vec<String> = own.collect();
    own.sort();
    assert_eq!(own, [".palisade-fence", ".palisade-lock"]);
}

/// The killed holder comes back and sends its write again: it is applied once.
fn repeats(place: &TempDir, job: Job, about: &str) {
    let folder = Folder::open(place.path().join("r")).unwrap();
    let write = child::write(job);
    folder.write(t(2), write).expect(about);
    assert_eq!(
        folder.observe(write.key).unwrap(),
        outcomes(job).1,
        "{about}"
    );
    let number = write.sequence.unwrap();
    let other = Write::new("/data", Edit::Put(b"other")).numbered(number);
    let reused = Reject::SequenceReused { last: number };
    let refused = folder.write(t(2), other).unwrap_err();
    assert_eq!(refused.rejected(), Some(&reused), "{about}");
}

/// The next holder comes: it sees the whole write or none of it, and the killed holder is shut out.
fn next_holder(place: &TempDir, job: Job, about: &str) -> bool {
    let path = place.path().join("r");
    let folder = Folder::open(&path).unwrap();
    let write = child::write(job);
    assert!(folder.claim(t(3)).is_ok(), "{about}");
    let seen = folder.read(t(3), write.key).unwrap().value;
    let (old, new) = outcomes(job);
    assert!(seen == old || seen == new, "{about}: {seen:?}");
    let late = folder.write(t(2), write).unwrap_err();
    assert_eq!(
        late.rejected(),
        Some(&Reject::Stale {
            presented: t(2),
            highest: t(3)
        }),
        "{about}"
    );
    is_clean(&path);
    seen == new
}

#[test]
fn a_writer_killed_before_any_call_leaves_all_or_nothing() {
    for job in [
        Job::Put,
        Job::PutNew,
        Job::Append,
        Job::AppendNew,
        Job::Delete,
    ] {
        let (mut steps, mut outcomes_seen) = (0, [0, 0]);
        for step in 1.. {
            let place = prepared();
            if !died(&place.path().join("r"), job, step) {
                break;
            }
            steps = step;
            let about = format!("{job:?} killed before step {step}");
            // As an observer sees it before the next operation: no change without the raised fence.
            let folder = Folder::open(place.path().join("r")).unwrap();
            let observed = folder.observe(child::write(job).key).unwrap();
            if observed != outcomes(job).0 {
                assert_eq!(highest(&place), 2, "{about}: changed under the old fence");
            }
            repeats(&copied(&place), job, &about);
            outcomes_seen[usize::from(next_holder(&copied(&place), job, &about))] += 1;
            // The successor is killed too while it finishes the write.
            for step in 1.. {
                let again = copied(&place);
                if !died(&again.path().join("r"), Job::Claim, step) {
                    break;
                }
                let about = format!("{about}, and its successor before step {step}");
                next_holder(&again, job, &about);
            }
        }
        assert!(steps >= 13, "{job:?} has {steps} steps");
        assert!(
            outcomes_seen.iter().all(|seen| *seen > 1),
            "{outcomes_seen:?}"
        );
    }
}

/// The control: the data first and then the record. If the process is killed in between, the repeat writes it
/// twice.
#[test]
fn without_the_fence_a_killed_append_is_there_twice() {
    let path = |place: &TempDir| place.path().to_owned();
    let mut doubled = 0;
    for step in 1.. {
        let place = temporary_dir();
        fs::write(path(&place).join("data"), OLD).unwrap();
        if !died(&path(&place), Job::NaiveAppend, step) {
            break;
        }
        assert!(!died(&path(&place), Job::NaiveAppend, 0));
        let seen = fs::read(path(&place).join("data")).unwrap();
        doubled += u32::from(seen == [OLD, NEW, NEW].concat());
    }
    assert_eq!(doubled, 1);
}

/// The order that a power failure requires, which a killed process does not show: all data is synced before
/// it is named, and every name before the answer.
#[test]
fn syncs_come_before_the_names_and_names_before_the_answer() {
    let stage = ["create", "write", "write the rest", "sync", "sync folder"];
    let decide = [
        "create",
        "write",
        "write the rest",
        "sync",
        "rename",
        "sync folder",
    ];
    let in_place = ["open", "cut", "write", "write the rest", "sync"];
    for (job, carried_out) in [
        (Job::Put, vec!["rename", "sync folder"]),
        (Job::Append, [&in_place[..], &["remove"]].concat()),
        (
            Job::AppendNew,
            [&in_place[..], &["sync folder", "remove"]].concat(),
        ),
        (Job::Delete, vec!["remove", "sync folder", "remove"]),
    ] {
        let place = prepared();
        let steps = Arc::new(Mutex::new(Vec::new()));
        let seen = steps.clone();
        let watch = Arc::new(move |step| seen.lock().unwrap().push(step));
        let folder = Folder::watched(place.path().join("r"), watch).unwrap();
        folder.write(t(2), child::write(job)).unwrap();
        let expected = [&stage[..], &decide, &carried_out, &["answer"]].concat();
        assert_eq!(*steps.lock().unwrap(), expected, "{job:?}");
    }
}

#[test]
fn two_processes_lose_no_acknowledged_addition() {
    let place = tempfile::tempdir().unwrap();
    let racers = [1, 2].map(|number| {
        let mut racer = command(place.path(), Job::Race, number);
        racer.stdout(Stdio::piped()).spawn().unwrap()
    });
    let mut acknowledged = 0;
    for racer in racers {
        let output = racer.wait_with_output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let count = said
            .split("acknowledged=")
            .nth(1)
            .unwrap_or_else(|| panic!("{said}"));
        let number = count.split_whitespace().next().unwrap();
        acknowledged += number.parse::<u64>().unwrap();
    }
    let folder = Folder::open(place.path()).unwrap();
    let counter = folder.observe("/counter").unwrap().unwrap();
    assert_eq!(
        String::from_utf8(counter).unwrap(),
        acknowledged.to_string()
    );
    // How many are rejected instead is up to the scheduler.
    assert!(acknowledged > 0);
}
