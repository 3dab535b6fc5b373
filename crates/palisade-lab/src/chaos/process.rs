//! Children: started by a thread that lives as long as the lab, so that they die with it however it ends.

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

/// What to start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    /// The program and its arguments.
    pub(crate) words: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    /// What the command begins with: a program that starts it somewhere else.
    pub(crate) way: Vec<String>,
}

impl Process {
    /// Starts it. Each line that it prints goes to `heard`, and then `None`; its standard error goes to `log`.
    pub(crate) fn start(
        line: &Line,
        log: &Path,
        mut heard: impl FnMut(Option<String>) + Send + 'static,
    ) -> io::Result<Process> {
        let mut words: Vec<&str> = line.way.iter().map(String::as_str).collect();
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

    pub(crate) fn go_on(&self) {
        self.send(Signal::CONT);
    }

    /// Closes its standard input: a worker ends by itself then.
    pub(crate) fn dismiss(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// How it ended, once it has.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub(crate) fn send(&self, signal: Signal) {
        // Not reaped before the drop, so the id cannot have become somebody else's.
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Also a stopped process dies of this at once.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command to start, and where the child goes.
type Order = (Command, Sender<io::Result<Child>>);

/// The signal for a parent's death goes by thread.
fn spawn(command: Command) -> io::Result<Child> {
    static NURSERY: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let nursery = NURSERY.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, reply) in orders {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (reply, child) = channel();
    let order = nursery
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, reply));
    order.map_err(io::Error::other)?;
    child.recv().map_err(io::Error::other)?
}
