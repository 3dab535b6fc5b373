//! The processes of the story: started from this program, stopped and continued by signals, and killed with it.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, set_parent_process_death_signal, waitid,
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::recorder::Recorder;
use crate::Failure;
use crate::event::Record;

/// Asks the kernel to kill this process when the one that started it ends, so that none stays behind.
///
/// # Errors
/// Of the system call.
pub fn die_with_parent() -> Result<(), Failure> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// A process; it is killed when this value is dropped.
pub(super) struct Process {
    child: Child,
    pid: Pid,
}

impl Process {
    /// Starts a server, whose output is records.
    pub(super) fn server(
        program: &Path,
        arguments: &[String],
        records: &Arc<Recorder>,
    ) -> Result<Process, Failure> {
        let mut process = Process::start(program, arguments)?;
        let output = process.child.stdout.take().ok_or("no output")?;
        let records = Arc::clone(records);
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(record) = serde_json::from_str::<Record>(&line) {
                    records.add(record);
                }
            }
        });
        Ok(process)
    }

    /// Starts a client.
    pub(super) fn client(program: &Path, arguments: &[String]) -> Result<Process, Failure> {
        Process::start(program, arguments)
    }

    fn start(program: &Path, arguments: &[String]) -> Result<Process, Failure> {
        let child = Command::new(program)
            .arg("--die-with-parent")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(Process {
            child,
            pid: pid.ok_or("the process has ended")?,
        })
    }

    /// Stops it (SIGSTOP), and returns when the kernel says that it is stopped.
    pub(super) async fn stop(&self) -> Result<(), Failure> {
        kill_process(self.pid, Signal::STOP)?;
        self.until_stopped().await
    }

    /// Waits until it is stopped.
    pub(super) async fn until_stopped(&self) -> Result<(), Failure> {
        let which = WaitId::Pid(self.pid);
        let stopped = tokio::task::spawn_blocking(move || waitid(which, WaitIdOptions::STOPPED));
        stopped.await??;
        Ok(())
    }

    /// Continues it (SIGCONT).
    pub(super) fn resume(&self) -> Result<(), Failure> {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }

    /// The output of a client, and how it ended.
    pub(super) async fn output(mut self) -> Result<(String, ExitStatus), Failure> {
        let mut output = String::new();
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_string(&mut output).await?;
        }
        Ok((output.trim_end().to_owned(), self.child.wait().await?))
    }
}
