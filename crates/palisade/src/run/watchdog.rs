//! The process that kills the job when palisade cannot: because it was killed itself, or because it was
//! stopped past the deadline.
//!
//! The kernel's parent-death signal reaches the command but not what the command started. So a second
//! `palisade`, in a session of its own, holds the reading end of a pipe whose writing end only the first
//! one has. What comes through the pipe is the job's group and every new deadline; its end means that the
//! first one is gone.
//!
//! A second pipe leads back. What the watchdog kills it records there before, so that the first process,
//! seeing the job's end, never takes that kill for the job's own end.

use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::Timestamp;
use rustix::process::{Pid, Signal};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

/// How the second process knows what it is. No user types it, and clap does not know it.
const ARGUMENT: &str = "--watchdog-of-palisade-run";

/// A tag and a number: short enough for the kernel to write it in one piece.
const MESSAGE_BYTES: usize = 9;
type Message = [u8; MESSAGE_BYTES];

const GROUP: u8 = b'g';
const DEADLINE: u8 = b'd';
const STAND_DOWN: u8 = b's';

/// The watchdog as the first process sees it.
pub(super) struct Watchdog {
    pid: Pid,
    pipe: OwnedFd,
    told: Timestamp,
    /// What the watchdog writes before it kills.
    record: PipeReader,
}

/// Names the group to kill. Async-signal-safe.
pub(super) fn group_message(group: Pid) -> Message {
    message(GROUP, group.as_raw_nonzero().get().unsigned_abs().into())
}

fn message(tag: u8, number: u64) -> Message {
    let mut message = [tag; MESSAGE_BYTES];
    message[1..].copy_from_slice(&number.to_le_bytes());
    message
}

impl Watchdog {
    /// Starts it, and waits until it watches. A group that exists already is in the pipe before: were this
    /// process killed now, it would still be heard of.
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
            told: Timestamp::ZERO,
            record,
        };
        watchdog.deadline(deadline);
        Ok(watchdog)
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// The pipe's writing end, for the job to announce itself before it starts.
    pub(super) fn pipe(&self) -> io::Result<OwnedFd> {
        self.pipe.try_clone()
    }

    /// Tells a deadline that is new.
    pub(super) fn deadline(&mut self, deadline: Timestamp) {
        if deadline != self.told {
            self.told = deadline;
            self.tell(message(DEADLINE, deadline.as_nanos()));
        }
    }

    /// Whether it has killed the job, or is about to. Asked after the job's end was seen, a no is final:
    /// the record is written before the kill.
    pub(super) fn struck(&self) -> bool {
        matches!((&self.record).read(&mut [0]), Ok(1))
    }

    /// Nothing of the job is left.
    pub(super) fn stand_down(self) {
        self.tell(message(STAND_DOWN, 0));
    }

    fn tell(&self, message: Message) {
        // If it is dead, its parent hears of it and starts another.
        let _ = rustix::io::write(&self.pipe, &message);
    }
}

fn await_ready(ready: &mut PipeReader) -> io::Result<()> {
    ready
        .read_exact(&mut [0])
        .map_err(|_| io::Error::other("the watchdog did not start"))
}

/// Is this process the watchdog? Then it watches, and this is its end.
pub(crate) fn intercept() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == ARGUMENT).then(|| match watch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(crate::cli::FAILED),
    })
}

fn watch() -> io::Result<()> {
    // Away from the terminal's signals and from who kills whole groups.
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

/// One byte to the first process: the first says that this one watches, the second that it kills.
fn record() {
    // If nobody listens any more, that is what the other pipe is about to tell.
    let _ = io::stdout()
        .write_all(b".")
        .and_then(|()| io::stdout().flush());
}

async fn guard(mut pipe: Receiver, mut record: impl FnMut()) {
    let mut charge = Charge::default();
    let mut heard = [0; 64 * MESSAGE_BYTES];
    loop {
        // News first: a deadline that has moved on must not kill.
        tokio::select! {
            biased;
            read = pipe.read(&mut heard) => {
                let read = read.unwrap_or(0);
                if read == 0 {
                    return charge.kill();
                }
                if heard[..read].chunks_exact(MESSAGE_BYTES).any(|message| charge.hear(message)) {
                    return;
                }
            }
            () = alarm(charge.deadline) => {
                record();
                charge.kill();
                charge.deadline = None;
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
struct Charge {
    group: Option<Pid>,
    deadline: Option<Timestamp>,
}

impl Charge {
    /// Takes one message in; `true` if it is the last.
    fn hear(&mut self, message: &[u8]) -> bool {
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
            // No such group: there is nothing to kill.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_heard() {
        let mut charge = Charge::default();
        let group = Pid::from_raw(4_242).unwrap();
        assert!(!charge.hear(&group_message(group)));
        assert!(!charge.hear(&message(DEADLINE, 77)));
        assert_eq!(
            charge,
            Charge {
                group: Some(group),
                deadline: Some(Timestamp::from_nanos(77))
            }
        );
        assert!(charge.hear(&message(STAND_DOWN, 0)));
    }

    /// A job whose deadline has passed, and the pipe that tells of it.
    fn doomed() -> (std::process::Child, Pid, io::PipeWriter, Receiver) {
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
    async fn what_it_kills_it_records_before() {
        let (job, group, _first, pipe) = doomed();
        let ended = tokio::spawn(guard(pipe, || panic!("it cannot be recorded"))).await;
        assert!(ended.unwrap_err().is_panic());
        rustix::process::kill_process_group(group, Signal::TERM).unwrap();
        assert_eq!(
            signal_of_end(job),
            Some(Signal::TERM.as_raw()),
            "not killed before"
        );

        // Control: recorded once, it is killed.
        let (job, _, _first, pipe) = doomed();
        let (records, recorded) = std::sync::mpsc::channel();
        let watching = tokio::spawn(guard(pipe, move || records.send(()).unwrap()));
        let killed = tokio::task::spawn_blocking(|| signal_of_end(job)).await;
        assert_eq!(killed.unwrap(), Some(Signal::KILL.as_raw()));
        watching.abort();
        assert_eq!(recorded.try_iter().count(), 1);
    }

    #[test]
    fn a_group_that_cannot_be_is_nobody() {
        let mut charge = Charge::default();
        // Group 0 would be the watchdog's own, and -1 everybody.
        for number in [0, u64::MAX, u64::from(u32::MAX)] {
            charge.hear(&message(GROUP, number));
            assert_eq!(charge.group, None, "{number}");
        }
    }
}
