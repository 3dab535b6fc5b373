//! The process that kills the job when palisade cannot: because palisade was killed, or was stopped past the
//! deadline.
//!
//! The kernel's parent-death signal reaches the command but not its children. So a second `palisade`, in a session
//! of its own, holds the reading end of a pipe; only the first process has the writing end. The pipe carries the
//! job's group and every new deadline. End of file means that the first process is gone.
//!
//! Once the job is dead, it releases the lock in place of the first process, if it is certain that no process of the job
//! is left: see [`KilledParent`]. Otherwise the lease expires.
//!
//! A job that was frozen before its deadline ([`freeze`](super::freeze)) has no deadline until it goes on: then the
//! watchdog kills it only after the first process, with the processes outside its group that it was told of.
//!
//! A second pipe leads back. The watchdog records a kill there before it kills, so the first process never mistakes
//! that kill for the job's own end.

use std::fs::File;
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::{Span, Timestamp};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use super::group::{self, KilledParent};
use super::sys;
use crate::cli::FAILED;

/// The argument that marks the second process. No user types it, and clap does not know it.
const ARGUMENT: &str = "--watchdog-of-palisade-run";

/// A tag and a number: short enough for one atomic write.
const MESSAGE_BYTES: usize = 9;
type Message = [u8; MESSAGE_BYTES];

const GROUP: u8 = b'g';
const DEADLINE: u8 = b'd';
const STAND_DOWN: u8 = b's';
/// A stopped process outside the group, as [`group::as_number`] writes it.
const OUTSIDE: u8 = b'o';
/// The whole job is stopped, and there is no deadline before the next message [`DEADLINE`].
const FROZEN: u8 = b'f';

/// The processes outside its group that a job may have to be frozen: the pipe takes their numbers at once.
pub(super) const MOST_OUTSIDE: usize = 1_000;

/// In a message [`GROUP`]: there is none yet.
const NO_GROUP: u64 = 0;

/// The watchdog releases the lock with this command after the first process was killed. It is sent through the pipe,
/// because it has the lease's secret, and every process of this user can read an environment.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ReleaseCommand {
    /// The environment of `palisade release`: the authority, and the caller's credentials.
    pub(super) environment: Vec<(String, String)>,
    /// Its flags.
    pub(super) flags: Vec<String>,
    /// Each lock with the number and the secret of its grant; none if it cannot be released so.
    pub(super) grants: Vec<(String, String, String)>,
}

impl ReleaseCommand {
    fn put(&self, pipe: &OwnedFd) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        let mut pipe = File::from(pipe.try_clone()?);
        pipe.write_all(&length.to_le_bytes())?;
        pipe.write_all(&text)
    }

    /// Reads nothing behind it.
    fn take(mut pipe: &File) -> io::Result<ReleaseCommand> {
        let mut length = [0; 4];
        pipe.read_exact(&mut length)?;
        let mut text = vec![0; u32::from_le_bytes(length) as usize];
        pipe.read_exact(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Releases each lock. A failure is ignored: the lease expires.
    fn release(&self) {
        for (lock, number, secret) in &self.grants {
            let mut command = Command::new("/proc/self/exe");
            command
                .arg0("palisade")
                .args(["release", "--token", number]);
            command.args(["--lock-token-file", "-"]).args(&self.flags);
            command.args(["--", lock]).env_clear();
            let environment = self.environment.iter().map(|(name, value)| (name, value));
            command.envs(environment).stdin(Stdio::piped());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            if let Ok(mut child) = command.spawn() {
                if let Some(mut input) = child.stdin.take() {
                    let _ = input.write_all(secret.as_bytes());
                }
                let _ = child.wait();
            }
        }
    }
}

/// The first process's handle of the watchdog.
pub(super) struct Watchdog {
    pid: Pid,
    pipe: OwnedFd,
    last_sent: Timestamp,
    /// Where the watchdog records a kill before it kills.
    record: PipeReader,
}

/// The message that names the group to kill. Async-signal-safe.
pub(super) fn group_message(group: Pid) -> Message {
    message(GROUP, group.as_raw_nonzero().get().unsigned_abs().into())
}

fn message(tag: u8, number: u64) -> Message {
    let mut message = [tag; MESSAGE_BYTES];
    message[1..].copy_from_slice(&number.to_le_bytes());
    message
}

impl Watchdog {
    /// Starts the watchdog and waits until it is ready. The pipe contains an existing group from the start, so the
    /// watchdog knows it even if this process is killed now.
    pub(super) fn start(
        deadline: Option<Timestamp>,
        group: Option<Pid>,
        release_command: &ReleaseCommand,
    ) -> io::Result<Watchdog> {
        let (reader, pipe) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let first = group.map_or(message(GROUP, NO_GROUP), group_message);
        rustix::io::write(&pipe, &first)?;
        let (mut record, writer) = io::pipe()?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("palisade")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/");
        command.stdin(reader).stdout(writer).stderr(Stdio::null());
        // From its first moment: it must outlive a signal to the group that this process is in.
        sys::begin_session(&mut command);
        let child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::other("no /proc/self/exe: is /proc mounted?"),
            _ => error,
        })?;
        // The command keeps its copies of both pipe ends until it is dropped.
        drop(command);
        // Not before: it may be more than a pipe takes without a reader.
        release_command.put(&pipe)?;
        await_ready(&mut record)?;
        rustix::io::ioctl_fionbio(&record, true)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("a process id out of range"))?;
        let mut watchdog = Watchdog {
            pid,
            pipe,
            last_sent: Timestamp::ZERO,
            record,
        };
        if let Some(deadline) = deadline {
            watchdog.send_deadline(deadline);
        }
        Ok(watchdog)
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// The pipe's writing end, with which the job announces itself before it starts.
    pub(super) fn pipe(&self) -> io::Result<OwnedFd> {
        self.pipe.try_clone()
    }

    /// Sends the deadline if it has changed.
    pub(super) fn send_deadline(&mut self, deadline: Timestamp) {
        if deadline != self.last_sent {
            self.last_sent = deadline;
            self.send(message(DEADLINE, deadline.as_nanos()));
        }
    }

    /// Tells it that the job is stopped, and which of its processes are not in the group.
    pub(super) fn send_frozen(&self, outside: &[u64]) {
        for number in outside {
            self.send(message(OUTSIDE, *number));
        }
        self.send(message(FROZEN, 0));
    }

    /// Whether the watchdog has killed the job, or is about to. After the job's end was seen, a `false` is final: the
    /// record comes before the kill.
    pub(super) fn has_killed(&self) -> bool {
        matches!((&self.record).read(&mut [0]), Ok(1))
    }

    /// Tells the watchdog that no process of the job is left.
    pub(super) fn stand_down(self) {
        self.send(message(STAND_DOWN, 0));
    }

    fn send(&self, message: Message) {
        // If the watchdog is dead, SIGCHLD tells its parent, which starts another.
        let _ = rustix::io::write(&self.pipe, &message);
    }
}

fn await_ready(ready: &mut PipeReader) -> io::Result<()> {
    ready
        .read_exact(&mut [0])
        .map_err(|_| io::Error::other("the watchdog did not start"))
}

/// Whether a process is a watchdog of this program. That of a `palisade run` inside the job must go on while the job is
/// frozen: it ends its own job at its own deadline.
pub(super) fn is_one(pid: i32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let argument = line.split(|byte| *byte == 0).nth(1);
    argument == Some(ARGUMENT.as_bytes()) && program(&pid.to_string()) == program("self")
}

/// Runs the watchdog if this process was started as one, and returns its exit code.
pub(crate) fn intercept() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == ARGUMENT).then(|| match watch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(FAILED),
    })
}

fn watch() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let parent = KilledParent::of_parent();
    let pipe = File::from(rustix::stdio::stdin().as_fd().try_clone_to_owned()?);
    let mut state = WatchdogState::default();
    let mut first = Message::default();
    (&pipe).read_exact(&mut first)?;
    state.receive(&first);
    // It is cut off if the first process was killed just now; the group still has to be.
    let release_command = ReleaseCommand::take(&pipe).unwrap_or_default();
    runtime.block_on(async {
        let pipe = Receiver::from_owned_fd(pipe.into())?;
        record();
        let left = guard(state, pipe, record).await;
        if let (Some(state), Some(parent)) = (left, parent)
            && !release_command.grants.is_empty()
            && state.until_job_is_gone(parent).await
        {
            release_command.release();
        }
        Ok(())
    })
}

/// Writes one byte to the first process: the first says that the watchdog is ready, the second that it kills.
fn record() {
    // If nobody reads it, the other pipe is about to report end of file.
    let _ = io::stdout()
        .write_all(b".")
        .and_then(|()| io::stdout().flush());
}

/// Runs until the first process no longer needs it. Returns the watchdog's state if that process was killed.
async fn guard(
    mut state: WatchdogState,
    mut pipe: Receiver,
    mut record: impl FnMut(),
) -> Option<WatchdogState> {
    let mut buffer = [0; 64 * MESSAGE_BYTES];
    loop {
        // Messages first: a deadline that has moved on must not kill.
        tokio::select! {
            biased;
            read = pipe.read(&mut buffer) => {
                let read = read.unwrap_or(0);
                if read == 0 {
                    state.kill();
                    return Some(state);
                }
                if buffer[..read].chunks_exact(MESSAGE_BYTES).any(|message| state.receive(message)) {
                    return None;
                }
            }
            () = alarm(state.deadline) => {
                record();
                state.kill();
                state.deadline = None;
            }
        }
    }
}

async fn alarm(at: Option<Timestamp>) {
    match at {
        Some(at) => BootClock.alarm(at).await,
        None => std::future::pending().await,
    }
}

/// The pause between two checks for remaining processes of the job. The list of all processes costs some milliseconds.
const SHORTEST_PAUSE: Span = Span::from_millis(5);
const LONGEST_PAUSE: Span = Span::from_millis(1_000);

/// The watchdog's state.
#[derive(Debug, Default, PartialEq, Eq)]
struct WatchdogState {
    group: Option<Pid>,
    deadline: Option<Timestamp>,
    /// While the job is frozen.
    outside: Vec<u64>,
}

impl WatchdogState {
    /// Handles one message; `true` if it is the last.
    fn receive(&mut self, message: &[u8]) -> bool {
        let mut number = [0; 8];
        number.copy_from_slice(&message[1..]);
        let number = u64::from_le_bytes(number);
        match message[0] {
            GROUP => self.group = i32::try_from(number).ok().and_then(Pid::from_raw),
            DEADLINE => {
                self.deadline = Some(Timestamp::from_nanos(number));
                self.outside.clear();
            }
            OUTSIDE => self.outside.push(number),
            FROZEN => self.deadline = None,
            _ => return true,
        }
        false
    }

    /// Waits until it is certain that nothing of the job is alive; `false` if the lease is over before.
    async fn until_job_is_gone(&self, parent: KilledParent) -> bool {
        let mut pause = SHORTEST_PAUSE;
        while self.deadline.is_some_and(|end| BootClock.now() < end) {
            if parent.job_is_gone(self.group) {
                return true;
            }
            BootClock.sleep_until(BootClock.now().after(pause)).await;
            pause = pause.plus(pause).min(LONGEST_PAUSE);
        }
        false
    }

    fn kill(&self) {
        if let Some(group) = self.group {
            // Fails if the group is gone: nothing to kill.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        for number in &self.outside {
            group::kill_numbered(*number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let mut state = WatchdogState::default();
        let group = Pid::from_raw(4_242).unwrap();
        assert!(!state.receive(&group_message(group)));
        assert!(!state.receive(&message(DEADLINE, 77)));
        assert_eq!(
            state,
            WatchdogState {
                group: Some(group),
                deadline: Some(Timestamp::from_nanos(77)),
                outside: Vec::new(),
            }
        );
        for frozen in [message(OUTSIDE, 5), message(FROZEN, 0)] {
            assert!(!state.receive(&frozen));
        }
        assert_eq!((state.deadline, &*state.outside), (None, &[5][..]));
        assert!(!state.receive(&message(DEADLINE, 78)));
        assert_eq!(state.deadline, Some(Timestamp::from_nanos(78)));
        assert!(state.outside.is_empty(), "it goes on");
        assert!(state.receive(&message(STAND_DOWN, 0)));
    }

    /// A job whose deadline has passed, and the pipe that says so.
    fn job_past_its_deadline() -> (std::process::Child, Pid, io::PipeWriter, Receiver) {
        let mut command = Command::new("sleep");
        let job = command.arg("1000").process_group(0).spawn().unwrap();
        let group = Pid::from_raw(i32::try_from(job.id()).unwrap()).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(&group_message(group)).unwrap();
        writer.write_all(&message(DEADLINE, 1)).unwrap();
        let pipe = Receiver::from_owned_fd(reader.into()).unwrap();
        (job, group, writer, pipe)
    }

    fn signal_of_end(mut job: std::process::Child) -> Option<i32> {
        std::os::unix::process::ExitStatusExt::signal(&job.wait().unwrap())
    }

    #[tokio::test]
    async fn a_kill_is_recorded_before_it_happens() {
        let (job, group, _first, pipe) = job_past_its_deadline();
        let ended = tokio::spawn(guard(WatchdogState::default(), pipe, || {
            panic!("it cannot be recorded")
        }))
        .await;
        assert!(ended.unwrap_err().is_panic());
        rustix::process::kill_process_group(group, Signal::TERM).unwrap();
        assert_eq!(
            signal_of_end(job),
            Some(Signal::TERM.as_raw()),
            "not killed before"
        );

        // Control: if it can be recorded, the job is killed.
        let (job, _, _first, pipe) = job_past_its_deadline();
        let (records, recorded) = std::sync::mpsc::channel();
        let watching = tokio::spawn(guard(WatchdogState::default(), pipe, move || {
            records.send(()).unwrap()
        }));
        let killed = tokio::task::spawn_blocking(|| signal_of_end(job)).await;
        assert_eq!(killed.unwrap(), Some(Signal::KILL.as_raw()));
        watching.abort();
        assert_eq!(recorded.try_iter().count(), 1);
    }

    #[test]
    fn an_invalid_group_is_ignored() {
        let mut state = WatchdogState::default();
        // Group 0 would be the watchdog's own, and -1 would be every process.
        for number in [0, u64::MAX, u64::from(u32::MAX)] {
            state.receive(&message(GROUP, number));
            assert_eq!(state.group, None, "{number}");
        }
    }
}
