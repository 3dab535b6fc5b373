//! `--on-lost`: the hook that runs after a lost lock, when every process of the job is dead.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal};

use super::child;
use super::signals::Signals;

/// Runs the hook with `sh -c` and waits for it. A failure of the hook is logged and changes nothing.
pub(super) async fn run(
    hook: &OsStr,
    mut environment: Vec<(&'static str, String)>,
    reason: &str,
    signals: &mut Signals,
) {
    environment.push(("PALISADE_LOST_REASON", reason.to_owned()));
    let mut command = child::command(&OsString::from("sh"), &environment);
    command.arg("-c").arg(hook).stdin(Stdio::null());
    let ended = match command.spawn() {
        Ok(child) => wait(child, signals).await,
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        tracing::error!(%error, "--on-lost failed");
    }
}

/// Waits for the hook, and passes terminating signals on to it.
async fn wait(mut child: Child, signals: &mut Signals) -> io::Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    loop {
        if let Some(status) = child.try_wait()? {
            return if status.success() {
                Ok(())
            } else {
                Err(io::Error::other(status.to_string()))
            };
        }
        let signal = signals.next().await;
        if let Some(pid) = pid.filter(|_| signal != Signal::CHILD) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}
