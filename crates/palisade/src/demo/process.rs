//! The demo's child processes: started from its own executable, stopped and continued by signals, and killed with it.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process,
    set_parent_process_death_signal, waitid,
};

/// A running child. Dropping it kills it and waits until it is gone.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    log: PathBuf,
}

impl Process {
    /// Starts this program again with these arguments. `line` gets every line of its output, and `None` at the end; its
    /// standard error goes to the file `log`.
    pub(super) fn start(
        arguments: &[&str],
        log: &Path,
        mut line: impl FnMut(Option<String>) + Send + 'static,
    ) -> io::Result<Process> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?);
        // Ctrl-C in the terminal is for the demo, which then ends its children itself.
        command.process_group(0);
        kill_with_parent(&mut command);
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        thread::spawn(move || {
            let lines = stdout
                .into_iter()
                .flat_map(|pipe| BufReader::new(pipe).lines());
            lines
                .map_while(Result::ok)
                .for_each(|text| line(Some(text)));
            line(None);
        });
        Ok(Process {
            child,
            stdin,
            log: log.to_owned(),
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets a worker continue from its breakpoint.
    pub(super) fn pass_breakpoint(&mut self) -> io::Result<()> {
        let stdin = self.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        stdin.write_all(b"go\n")
    }

    /// Stops the process with SIGSTOP, and returns when the kernel reports it as stopped.
    pub(super) async fn stop(&self) -> io::Result<()> {
        let pid = self.pid()?;
        kill_process(pid, Signal::STOP)?;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        for _ in 0..STOP_ATTEMPTS {
            if waitid(WaitId::Pid(pid), options)?.is_some_and(|status| status.stopped()) {
                return Ok(());
            }
            tokio::time::sleep(STOP_PAUSE).await;
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "it did not stop on SIGSTOP",
        ))
    }

    /// Continues the process with SIGCONT.
    pub(super) fn resume(&self) -> io::Result<()> {
        Ok(kill_process(self.pid()?, Signal::CONT)?)
    }

    /// The last line of its standard error, for a message.
    pub(super) fn last_log_line(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines()
            .rfind(|line| !line.trim().is_empty())
            .unwrap_or("it wrote no message")
            .to_owned()
    }

    fn pid(&self) -> io::Result<Pid> {
        // The child is not reaped before the drop, so its id cannot be reused.
        Pid::from_raw(self.child.id().cast_signed()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process at once.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the kernel kill the child when the thread that started it ends, so that even a SIGKILL of the demo leaves no
/// process behind. The main thread starts all children.
fn kill_with_parent(command: &mut Command) {
    let us = getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The demo may have died before the request to the kernel.
        if getppid() == Some(us) {
            Ok(())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    };
    // SAFETY: the closure makes two system calls and builds values on the stack; nothing in it allocates or locks.
    unsafe { command.pre_exec(ask) };
}

const STOP_ATTEMPTS: u32 = 2_000;
const STOP_PAUSE: Duration = Duration::from_millis(1);
