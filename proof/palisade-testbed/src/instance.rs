//! One server: its process, its folder, its ports.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::folder::{ServerFolder, free_port};

/// The time limit for a server's start.
const START: Duration = Duration::from_secs(60);

/// The number of attempts to start: ports are chosen before the server takes them, and another process may
/// take them first.
const TRIES: u32 = 5;

/// A function of the folder.
pub(crate) type Prepare = Box<dyn Fn(&Path) + Send + Sync>;

/// A function of the folder and the ports.
pub(crate) type CommandLine = Box<dyn Fn(&Path, &[u16]) -> Vec<String> + Send + Sync>;

/// The description of how to start a server.
pub(crate) struct Recipe {
    pub(crate) name: &'static str,
    /// The instruction for installing the program, shown if it is missing.
    pub(crate) install: &'static str,
    pub(crate) ports: usize,
    /// Creates the files that must exist before the first start.
    pub(crate) prepare: Prepare,
    /// The program and its arguments.
    pub(crate) command: CommandLine,
    /// Whether the server on this port is ready.
    pub(crate) ready: fn(u16) -> bool,
}

/// A server that is running, or was killed and may be started again. It stops when this value is dropped.
pub struct Instance {
    recipe: Recipe,
    folder: ServerFolder,
    ports: Vec<u16>,
    process: Mutex<Option<Child>>,
}

impl Instance {
    pub(crate) fn start(recipe: Recipe) -> Instance {
        let mut instance = Instance::prepared(recipe);
        for attempt in 1.. {
            instance.ports = (0..instance.recipe.ports).map(|_| free_port()).collect();
            match instance.launch() {
                Ok(()) => break,
                Err(why) => assert!(attempt < TRIES, "{why}"),
            }
        }
        instance
    }

    /// Starts one of several servers that know each other's ports.
    pub(crate) fn start_on(recipe: Recipe, ports: Vec<u16>) -> Instance {
        let mut instance = Instance::prepared(recipe);
        instance.ports = ports;
        instance.start_again();
        instance
    }

    fn prepared(recipe: Recipe) -> Instance {
        let folder = ServerFolder::new(recipe.name);
        (recipe.prepare)(folder.path());
        Instance {
            recipe,
            folder,
            ports: Vec::new(),
            process: Mutex::new(None),
        }
    }

    /// The port for clients, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port()).into()
    }

    /// The server's folder.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// The id of the server's first process.
    ///
    /// # Panics
    /// If the server is not running.
    pub fn pid(&self) -> u32 {
        self.lock()
            .as_ref()
            .expect("the server is not running")
            .id()
    }

    /// Sends SIGKILL to all its processes, and waits until they are gone.
    pub fn kill(&self) {
        if let Some(mut process) = self.lock().take() {
            let children = signal(&process, Signal::KILL);
            let _ = process.wait();
            // A process that still has the server's memory prevents the next one from starting.
            while children.iter().any(|child| is_alive(*child)) {
                std::thread::sleep(Duration::from_millis(1)); // real time: processes have to end
            }
        }
    }

    /// Starts the server again with the same data and ports.
    ///
    /// # Panics
    /// If it is not ready within a minute.
    pub fn start_again(&self) {
        self.kill();
        for attempt in 1.. {
            match self.launch() {
                Ok(()) => return,
                // Sockets or locks of the previous process may still exist.
                Err(why) => assert!(attempt < TRIES, "{why}"),
            }
        }
    }

    /// Sends SIGSTOP to all its processes.
    pub fn pause(&self) {
        if let Some(process) = &*self.lock() {
            signal(process, Signal::STOP);
        }
    }

    /// Sends SIGCONT to all its processes.
    pub fn resume(&self) {
        if let Some(process) = &*self.lock() {
            signal(process, Signal::CONT);
        }
    }

    /// Waits until the server is ready, or returns the reason why it is not.
    fn launch(&self) -> Result<(), String> {
        let command = (self.recipe.command)(self.folder.path(), &self.ports);
        let name = self.recipe.name;
        assert!(
            is_installed(&command[0]),
            "{name} is missing ({}): {}",
            command[0],
            self.recipe.install
        );
        let log = self.folder.path().join("log");
        let child = spawn_from_lasting_thread(command, File::create(&log).expect("a log file"));
        *self.lock() = Some(child.map_err(|error| format!("{name}: {error}"))?);
        let end = Instant::now() + START;
        loop {
            if (self.recipe.ready)(self.port()) && self.is_running() {
                return Ok(());
            }
            if !self.is_running() {
                self.kill();
                return Err(format!(
                    "{name} ended at once; the end of its log:\n{}",
                    tail(&log)
                ));
            }
            assert!(
                Instant::now() < end,
                "{name} is not ready after {START:?}; the end of its log:\n{}",
                tail(&log)
            );
            std::thread::sleep(Duration::from_millis(5)); // real time: another process has to start
        }
    }

    fn is_running(&self) -> bool {
        let mut process = self.lock();
        process
            .as_mut()
            .is_some_and(|process| matches!(process.try_wait(), Ok(None)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to the process group and to its children, which some servers (PostgreSQL) put into their
/// own groups. Returns the children.
fn signal(process: &Child, signal: Signal) -> Vec<Pid> {
    let Some(group) = pid(process.id()) else {
        return Vec::new();
    };
    // A stopped process starts no more children.
    let _ = kill_process_group(group, Signal::STOP);
    while status(process.id()).is_some_and(|(state, _)| !matches!(&*state, "T" | "t" | "Z")) {
        std::thread::yield_now();
    }
    let children = children(process.id());
    for child in &children {
        let _ = kill_process(*child, signal);
    }
    let _ = kill_process_group(group, signal);
    children
}

fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

fn children(parent: u32) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").expect("processes in /proc");
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|process| status(*process).is_some_and(|(_, its)| its == parent))
        .filter_map(pid)
        .collect()
}

fn is_alive(process: Pid) -> bool {
    let process = process.as_raw_nonzero().get().unsigned_abs();
    status(process).is_some_and(|(state, _)| state != "Z")
}

/// The state of a process, as one letter, and its parent.
fn status(process: u32) -> Option<(String, u32)> {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Its name, in parentheses, may itself contain parentheses.
    let mut rest = status.rsplit_once(')')?.1.split_whitespace();
    Some((rest.next()?.to_owned(), rest.next()?.parse().ok()?))
}

pub(crate) fn is_installed(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// A command to start, its log file, and the channel for the child.
type SpawnRequest = (Vec<String>, File, Sender<std::io::Result<Child>>);

/// Starts a process whose parent is a thread that lives as long as this process. The parent-death signal is
/// bound to the parent's thread, and a test's thread ends with its test.
fn spawn_from_lasting_thread(command: Vec<String>, log: File) -> std::io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<Sender<SpawnRequest>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = channel::<SpawnRequest>();
        std::thread::spawn(move || {
            for (command, log, reply) in requests {
                let _ = reply.send(spawn(&command, log));
            }
        });
        Mutex::new(sender)
    });
    let (reply, child) = channel();
    let spawner = spawner.lock().unwrap_or_else(PoisonError::into_inner);
    spawner
        .send((command, log, reply))
        .expect("the spawning thread");
    drop(spawner);
    child.recv().expect("the spawning thread")
}

fn spawn(command: &[String], log: File) -> std::io::Result<Child> {
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .args(command)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
}

/// Whether a server's output contains `expected`, either unprompted or in answer to `question`.
pub fn answers_with(port: u16, question: &[u8], expected: &str) -> bool {
    answer(port, question, expected).contains(expected)
}

/// Reads a server's answer to `question` until it contains `expected` or ends.
pub(crate) fn answer(port: u16, question: &[u8], expected: &str) -> String {
    let (mut received, mut buffer) = (String::new(), [0; 4096]);
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
        return received;
    };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    if stream.write_all(question).is_err() {
        return received;
    }
    while !received.contains(expected) {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(length) => received.push_str(&String::from_utf8_lossy(&buffer[..length])),
        }
    }
    received
}

pub(crate) fn nothing() -> Prepare {
    Box::new(|_| {})
}

pub(crate) fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

pub(crate) fn data(dir: &Path) -> String {
    dir.join("data").display().to_string()
}

/// Runs a preparation command.
pub(crate) fn run(command: &[String]) {
    let output = Command::new(&command[0]).args(&command[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", command[0]));
    assert!(
        output.status.success(),
        "{}: {}{}",
        command.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
