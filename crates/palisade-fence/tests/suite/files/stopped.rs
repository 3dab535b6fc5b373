//! A holder whose process is stopped while it has the fence's lock (rule F12): its successor's error names the process
//! within its patience, and an operator ends that process.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use palisade_fence::ErrorKind;
use palisade_fence::files::{Folder, Root};

use rustix::process::{Pid, WaitOptions, waitpid};

use super::child::{Job, NEW, command};
use super::t;

/// Step by step: the child stops before each call to the file system in turn, and in the end finishes.
#[test]
fn a_successor_of_a_stopped_holder_is_told_and_an_operator_ends_it() {
    let mut stops = 0;
    for step in 1.. {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("reports");
        fs::create_dir(&path).unwrap();
        let folder = Folder::open(&path).unwrap();
        folder.claim(t(1)).unwrap();
        let mut holder = command(&path, Job::StopInAppend, step);
        let mut holder = holder.stdout(Stdio::null()).spawn().unwrap();
        let Some(stopped) = until_it_stops_or_ends(&holder) else {
            break;
        };
        stops += 1;
        // The patience is the bound: the default is 10 s. The control is the child that does not stop.
        let waiting = Folder::open(&path)
            .unwrap()
            .patience(Duration::from_millis(30));
        let busy = waiting.claim(t(3)).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Retry, "step {step}: {busy}");
        let root = Root::new(place.path());
        let holders = root.blockers("reports").unwrap();
        let [blocker] = &holders[..] else {
            panic!("step {step}: {holders:?}");
        };
        assert_eq!((blocker.process, blocker.stopped), (stopped, true));
        let text = busy.to_string();
        let typed = format!(
            "palisade fence unblock reports --url file://{} --yes",
            place.path().display()
        );
        assert!(
            text.contains(&format!("process {stopped} (")) && text.contains(&typed),
            "{text}"
        );
        // Another process under the same number is left alone, and so is one that has let go.
        let mut other = blocker.clone();
        other.started += 1;
        assert!(!root.unblock("reports", &other).unwrap());
        assert!(root.unblock("reports", blocker).unwrap());
        holder.wait().unwrap();
        assert!(!root.unblock("reports", blocker).unwrap());
        assert_eq!(root.blockers("reports").unwrap(), []);
        folder.claim(t(3)).unwrap();
        let data = folder.observe("/data").unwrap();
        assert!(
            data.is_none() || data.as_deref() == Some(NEW),
            "step {step}: half a write"
        );
    }
    assert!(stops > 5, "the child stopped {stops} times");
}

/// Returns the process if it stopped, and `None` if it ended.
fn until_it_stops_or_ends(child: &Child) -> Option<i32> {
    let process = i32::try_from(child.id()).unwrap();
    let waited = waitpid(Pid::from_raw(process), WaitOptions::UNTRACED).unwrap();
    waited.unwrap().1.stopped().then_some(process)
}
