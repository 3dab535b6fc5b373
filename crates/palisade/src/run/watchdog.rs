//! The process that kills the job when palisade cannot: because palisade was killed, or was stopped past the
//! deadline.
//!
//! The kernel's parent-death signal reaches the command but not its children. So a second `palisade`, in a session
//! of its own, holds the reading end of a pipe; only the first process has the writing end. The pipe carries the
//! job's group and every new deadline. End of file means that the first process is gone.
//!
//! A second pipe leads back. The watchdog records a kill there before it kills, so the first process never mistakes
//! that kill for the job's own end.

use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::Timestamp;
use rustix::process::{Pid, Signal};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use crate::cli::FAILED;

/// The argument that marks the second process. No user types it, and clap does not know it.
const ARGUMENT: &str = "--watchdog-of-palisade-run";

/// A tag and a number: short enough for one atomic write.
const MESSAGE_BYTES: usize = 9;
type Message = [u8; MESSAGE_BYTES];

const GROUP: u8 = b'g';
const DEADLINE: u8 = b'd';
const STAND_DOWN: u8 = b's';

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
    pub(super) fn start(deadline: Timestamp, group: Option<Pid>) -> io::Result<Watchdog> {
        let (reader, pipe) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        if let Some(group) = group {
            rustix::io::write(&pipe, &group_message(group))?;
        }
        let (mut record, writer) = io::pipe()?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("palisade")
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/");
        command.stdin(reader).stdout(writer).stderr(Stdio::null());
        let child = command.spawn()?;
        // The command keeps its copies of both pipe ends until it is dropped.
        drop(command);
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
        watchdog.send_deadline(deadline);
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

/// Runs the watchdog if this process was started as one, and returns its exit code.
pub(crate) fn intercept() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == ARGUMENT).then(|| match watch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(FAILED),
    })
}

fn watch() -> io::Result<()> {
    // Away from the terminal's signals and from signals to whole groups.
    rustix::process::setsid()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let pipe = Receiver::from_owned_fd(rustix::stdio::stdin().as_fd().try_clone_to_owned()?)?;
        record();
        guard(pipe, record).await;
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

async fn guard(mut pipe: Receiver, mut record: impl FnMut()) {
    let mut state = WatchdogState::default();
    let mut buffer = [0; 64 * MESSAGE_BYTES];
    loop {
        // Messages first: a deadline that has moved on must not kill.
        tokio::select! {
            biased;
            read = pipe.read(&mut buffer) => {
                let read = read.unwrap_or(0);
                if read == 0 {
                    return state.kill();
                }
                if buffer[..read].chunks_exact(MESSAGE_BYTES).any(|message| state.receive(message)) {
                    return;
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

/// What the watchdog knows.
#[derive(Debug, Default, PartialEq, Eq)]
struct WatchdogState {
    group: Option<Pid>,
    deadline: Option<Timestamp>,
}

impl WatchdogState {
    /// Handles one message; `true` if it is the last.
    fn receive(&mut self, message: &[u8]) -> bool {
        let mut number = [0; 8];
        number.copy_from_slice(&message[1..]);
        let number = u64::from_le_bytes(number);
        match message[0] {
            GROUP => self.group = i32::try_from(number).ok().and_then(Pid::from_raw),
            DEADLINE => self.deadline = Some(Timestamp::from_nanos(number)),
            _ => return true,
        }
        false
    }

    fn kill(&self) {
        if let Some(group) = self.group {
            // Fails if the group is gone: nothing to kill.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
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
                deadline: Some(Timestamp::from_nanos(77))
            }
        );
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
        let ended = tokio::spawn(guard(pipe, || panic!("it cannot be recorded"))).await;
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
        let watching = tokio::spawn(guard(pipe, move || records.send(()).unwrap()));
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
