//! Holders that work in a process of their own, which can be stopped, and the wait until it has got there.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A program that is killed when this value is dropped.
pub(crate) struct Holder(Child);

impl Holder {
    /// Starts a database shell, which runs these statements and waits for more. Nobody reads its output.
    pub(crate) fn runs(shell: &mut Command, sql: &str) -> Holder {
        let mut child = shell
            .stdin(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{shell:?}: {error}: install its Debian package"));
        let stdin = child.stdin.as_mut().unwrap();
        stdin.write_all(sql.as_bytes()).unwrap();
        stdin.flush().unwrap();
        Holder(child)
    }

    pub(crate) fn process(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    /// Stops it, and returns once it stands.
    pub(crate) fn stop(&self) {
        let process = Pid::from_raw(self.process());
        kill_process(process.unwrap(), Signal::STOP).unwrap();
        let waited = waitpid(process, WaitOptions::UNTRACED).unwrap();
        assert!(waited.unwrap().1.stopped(), "the holder has ended");
    }

    pub(crate) fn wait(&mut self) {
        self.0.wait().unwrap();
    }
}

impl From<Child> for Holder {
    fn from(child: Child) -> Holder {
        Holder(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
