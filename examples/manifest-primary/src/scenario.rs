//! The scenario: two primaries as processes, and the final manifest.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::{Failure, Location, Manifest, Mode};

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The acknowledged entries, in that order.
    pub acknowledged: Vec<String>,
    /// The rejected entries.
    pub rejected: Vec<String>,
    /// The entries in the manifest.
    pub manifest: Vec<String>,
}

impl Outcome {
    /// The entries that were acknowledged and are not in the manifest.
    #[must_use]
    pub fn lost(&self) -> Vec<&str> {
        let gone = |entry: &&String| !self.manifest.contains(entry);
        let lost = self.acknowledged.iter().filter(gone);
        lost.map(String::as_str).collect()
    }
}

/// Runs the scenario once with processes of this `program`, and reports it line by line.
///
/// # Errors
/// Errors of the processes, the authority and the store.
pub async fn run(
    program: &Path,
    authority: &str,
    location: &Location,
    mode: Mode,
    mut log: impl FnMut(String),
) -> Result<Outcome, Failure> {
    let start = |entries: &str, freezes_at: &str| {
        let child = Command::new(program)
            .args(["primary", authority, &location.s3, &location.bucket])
            .args([&location.folder, mode.as_str(), entries, freezes_at])
            .env("AWS_ACCESS_KEY_ID", &location.key_id)
            .env("AWS_SECRET_ACCESS_KEY", &location.secret)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        child.map_err(Failure::from).and_then(Primary::of)
    };
    let mut outcome = Outcome::default();
    let mut old = start("a1,a2", "a2")?;
    for _ in 0..2 {
        log(format!("old: {}", old.next_line(&mut outcome).await?));
    }
    old.wait_until_frozen().await?;
    log("old: its lease is valid, and then its process freezes before the next swap.".into());

    let mut new = start("b1,b2", "")?;
    while let Ok(line) = new.next_line(&mut outcome).await {
        log(format!("new: {line}"));
    }
    new.wait_until_ended().await?;

    old.resume()?;
    log("old: continues where it stopped.".into());
    while let Ok(line) = old.next_line(&mut outcome).await {
        log(format!("old: {line}"));
    }
    old.wait_until_ended().await?;
    outcome.manifest = Manifest::open(location, mode).await?.observe().await?;
    Ok(outcome)
}

/// The process of a primary; it ends when this value is dropped.
struct Primary {
    child: Child,
    pid: Pid,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Primary {
    fn of(mut child: Child) -> Result<Primary, Failure> {
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let output = child.stdout.take().ok_or("no output")?;
        Ok(Primary {
            pid: pid.ok_or("the process has ended")?,
            lines: BufReader::new(output).lines(),
            child,
        })
    }

    /// Returns and records its next line.
    async fn next_line(&mut self, outcome: &mut Outcome) -> Result<String, Failure> {
        let line = self
            .lines
            .next_line()
            .await?
            .ok_or("the process wrote no further line")?;
        match line.split_once(' ') {
            Some(("acknowledged", entry)) => outcome.acknowledged.push(entry.to_owned()),
            Some(("rejected", entry)) => outcome.rejected.push(entry.to_owned()),
            _ => {}
        }
        Ok(line)
    }

    /// Waits until the process is frozen.
    async fn wait_until_frozen(&self) -> Result<(), Failure> {
        let which = WaitId::Pid(self.pid);
        tokio::task::spawn_blocking(move || waitid(which, WaitIdOptions::STOPPED)).await??;
        Ok(())
    }

    fn resume(&self) -> Result<(), Failure> {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }

    async fn wait_until_ended(mut self) -> Result<(), Failure> {
        let status = self.child.wait().await?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("a primary failed: {status}").into())
        }
    }
}
