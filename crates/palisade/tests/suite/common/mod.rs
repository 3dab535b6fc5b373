//! Real servers, real jobs, real signals, and waits with a time limit.

#![allow(dead_code, reason = "every test file uses a part of it")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::Timestamp;
use rustix::process::{Pid, Signal};
use serde_json::Value;

pub(crate) mod cluster;
pub(crate) mod proxy;

/// The time limit of everything that should happen at once; only a failing test waits this long.
pub(crate) const SOON: Duration = Duration::from_secs(20);

const PALISADE: &str = env!("CARGO_BIN_EXE_palisade");

/// The program under test, without the environment of the person who runs the tests.
pub(crate) fn palisade() -> Command {
    program(Command::new(PALISADE))
}

/// The same, in a network namespace.
fn palisade_in(namespace: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, PALISADE]);
    program(command)
}

/// The same, with a CLOCK_BOOTTIME that is so many seconds ahead, in a namespace.
pub(crate) fn palisade_ahead(seconds: u32) -> Command {
    let mut command = Command::new("unshare");
    let ahead = seconds.to_string();
    command.args(["--time", "--boottime", &ahead, PALISADE]);
    program(command)
}

fn program(mut command: Command) -> Command {
    let ours = std::env::vars_os().map(|(name, _)| name);
    for name in ours.filter(|name| name.as_encoded_bytes().starts_with(b"PALISADE_")) {
        command.env_remove(name);
    }
    // `nohup` and a shell's `&` let this process ignore these signals, and with it all that it starts.
    let obeyed = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            // SAFETY: a plain system call, as is allowed between fork and exec; the default disposition has no handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: it does nothing but these calls.
    unsafe { command.pre_exec(obeyed) };
    command.stdin(Stdio::null());
    command
}

/// A lock server on a free port with its own directory.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    pub(crate) dir: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::with(&[])
    }

    /// Starts a server with these flags.
    pub(crate) fn with(settings: &[&str]) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let (child, url) = serve("127.0.0.1:0", &dir.path().join("data"), settings);
        Server { child, url, dir }
    }

    /// Its host and port.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again after [`Server::kill`], on the same port.
    pub(crate) fn restart(&mut self) {
        (self.child, self.url) = serve(self.address(), &self.file("data"), &[]);
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    /// A command that talks to this server, in a directory where it may write.
    pub(crate) fn palisade(&self, arguments: &[&str]) -> Command {
        let mut command = palisade();
        command
            .args(arguments)
            .env("PALISADE_AUTHORITY", &self.url)
            .current_dir(self.dir.path());
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.palisade(arguments).output().unwrap()
    }

    /// Starts `palisade run` in the background.
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        Run::start(&mut self.palisade(&[&["run"], arguments].concat()))
    }

    /// The output of `palisade show`.
    pub(crate) fn show(&self, lock: &str) -> Value {
        json(&self.output(&["show", lock, "--json"]).stdout)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The process ids that a job has written to a file, one per line, once there are this many.
    pub(crate) fn pids(&self, name: &str, count: usize) -> Vec<i32> {
        let path = self.file(name);
        let read = || -> Vec<i32> {
            let text = fs::read_to_string(&path).unwrap_or_default();
            // The last line may be incomplete.
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            whole.lines().map(|line| line.parse().unwrap()).collect()
        };
        until(&format!("{count} processes in {name}"), || {
            read().len() >= count
        });
        read()
    }
}

/// A lock server's process, and its URL once it serves.
fn serve(listen: &str, data: &Path, settings: &[&str]) -> (Child, String) {
    let mut child = palisade()
        .args(["serve", "--json", "--listen", listen, "--data"])
        .arg(data)
        .args(settings)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let started: Value = serde_json::from_str(&line).expect("one line of JSON at the start");
    (child, started["url"].as_str().unwrap().to_owned())
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            send(self.pid(), Signal::CONT);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `palisade run`.
pub(crate) struct Run {
    child: Option<Child>,
}

impl Run {
    /// Takes ownership of any command that does not end on its own.
    pub(crate) fn keep(child: Child) -> Run {
        Run { child: Some(child) }
    }

    pub(crate) fn start(command: &mut Command) -> Run {
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Run::keep(child)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.as_ref().unwrap().id().try_into().unwrap()
    }

    pub(crate) fn send(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// The process that kills the job when palisade cannot.
    pub(crate) fn watchdog(&self) -> i32 {
        let found = || {
            children(self.pid())
                .into_iter()
                .find(|pid| is_watchdog(*pid))
        };
        let mut pid = None;
        until("the watchdog", || {
            pid = found();
            pid.is_some()
        });
        pid.unwrap()
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits for its end, with a time limit.
    pub(crate) fn end(mut self) -> Output {
        until("the end of palisade run", || self.is_over());
        self.child.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            if std::thread::panicking() {
                // A test that fails says what the command had said; what is still in its job dies with it.
                if let Ok(output) = child.wait_with_output() {
                    eprintln!("palisade run had said: {}", text(&output.stderr));
                }
                return;
            }
            let _ = child.wait();
        }
    }
}

pub(crate) fn is_watchdog(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("watchdog"))
}

pub(crate) fn children(parent: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    entries
        .filter(|pid| stat(*pid).is_some_and(|it| it.parent == parent))
        .collect()
}

/// The kernel's record of a process. A group or session from outside this namespace is 0.
pub(crate) struct Stat {
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
}

pub(crate) fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    Some(Stat {
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        session: fields.next()?.parse().ok()?,
    })
}

/// Whether a process can still do anything.
pub(crate) fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|it| !matches!(it.state, 'Z' | 'X'))
}

pub(crate) fn is_stopped(pid: i32) -> bool {
    stat(pid).is_some_and(|it| it.state == 'T')
}

pub(crate) fn parent(pid: i32) -> i32 {
    stat(pid).unwrap().parent
}

pub(crate) fn living(pids: &[i32]) -> Vec<i32> {
    pids.iter().copied().filter(|pid| is_alive(*pid)).collect()
}

pub(crate) fn until_dead(pids: &[i32]) {
    let limit = 3 * SOON;
    until_in(limit, &format!("the end of {pids:?}"), || {
        living(pids).is_empty()
    });
}

pub(crate) fn send(pid: i32, signal: Signal) {
    let _ = rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal);
}

/// Stops a process and waits until it is stopped.
pub(crate) fn stop(pid: i32) {
    send(pid, Signal::STOP);
    until(&format!("{pid} stopped"), || is_stopped(pid));
}

pub(crate) fn now() -> Timestamp {
    BootClock.now()
}

/// Waits for a condition, with a time limit.
pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    until_in(SOON, what, holds);
}

/// [`until`] with another time limit.
pub(crate) fn until_in(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = now().after(limit.into());
    while !holds() {
        assert!(now() < give_up, "timed out waiting for: {what}");
        pause();
    }
}

/// Waits until the leases' clock has reached `at`.
pub(crate) fn until_time(at: Timestamp) {
    let left = Duration::from_millis(at.since(now()).as_millis());
    until_in(SOON + left, &format!("{at:?}"), || now() >= at);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the only pause between two checks of a condition"
)]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(2)); // real time: other processes need it to do what is waited for
}

pub(crate) fn json(bytes: &[u8]) -> Value {
    let text = text(bytes);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn status(output: &Output) -> i32 {
    output
        .status
        .code()
        .unwrap_or_else(|| panic!("{}: {}", output.status, text(&output.stderr)))
}

/// A job of four processes that all ignore SIGTERM: the command, its child, a grandchild, and one that left the
/// group for a session of its own. Each writes its id into `pids`.
pub(crate) const STUBBORN: &str = r#"
    trap '' TERM
    echo $$ >> pids
    setsid sh -c 'echo $$ >> pids; exec sleep 1000' &
    sh -c 'echo $$ >> pids; sh -c "echo \$\$ >> pids; exec sleep 1000" & wait; exec sleep 1000' &
    while :; do sleep 1000; done
"#;

/// How many processes of [`STUBBORN`] write their id.
pub(crate) const STUBBORN_PIDS: usize = 4;

/// Prints the processes of the file `pids` that are alive.
pub(crate) const PRINT_LIVE_PIDS: &str = r#"
    for pid in $(cat pids); do
        grep -q '^State:[[:space:]][^ZX]' /proc/$pid/status 2>/dev/null && echo $pid
    done; true
"#;

pub(crate) fn exists(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0)
}
