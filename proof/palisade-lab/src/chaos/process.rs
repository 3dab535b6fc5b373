//! Child processes. A thread that lives as long as the lab starts them, so that they die with the lab however it ends.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

/// A running child. Dropping it kills it and waits until it is gone.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
}

/// A command to start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    /// The program and its arguments.
    pub(crate) words: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    /// The words in front of its command, for example a program that starts it elsewhere.
    pub(crate) prefix: Vec<String>,
}

impl Process {
    /// Starts it. `heard` gets each line that it prints, and then `None`; its standard error goes to `log`.
    pub(crate) fn start(
        line: &Line,
        log: &Path,
        mut heard: impl FnMut(Option<String>) + Send + 'static,
    ) -> io::Result<Process> {
        let mut words: Vec<&str> = line.prefix.iter().map(String::as_str).collect();
        words.extend(["setpriv", "--pdeathsig", "KILL"]);
        words.extend(line.words.iter().map(String::as_str));
        let mut command = Command::new(words.remove(0));
        command
            .args(words)
            .envs(line.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(log)?)
            .process_group(0);
        let mut child = spawn(command)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        thread::spawn(move || {
            let lines = stdout
                .into_iter()
                .flat_map(|pipe| BufReader::new(pipe).lines());
            lines
                .map_while(Result::ok)
                .for_each(|text| heard(Some(text)));
            heard(None);
        });
        Ok(Process { child, stdin })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stop(&self) {
        self.send(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.send(Signal::CONT);
    }

    /// Closes its standard input, which ends a worker.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Its exit status, once it has ended.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub(crate) fn send(&self, signal: Signal) {
        // The child is not reaped before the drop, so its id cannot be reused.
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process at once.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command to start, and where to send the child.
type Order = (Command, Sender<io::Result<Child>>);

/// The parent-death signal belongs to the thread that started the child.
fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, reply) in orders {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (reply, child) = channel();
    let order = spawner
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, reply));
    order.map_err(io::Error::other)?;
    child.recv().map_err(io::Error::other)?
}
