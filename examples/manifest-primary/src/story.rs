//! The story: two primaries as processes, and what is in the manifest in the end.

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::{Failure, Manifest, Mode, Place};

/// How it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// What was acknowledged, in that order.
    pub acknowledged: Vec<String>,
    /// What was rejected.
    pub rejected: Vec<String>,
    /// What is in the manifest.
    pub manifest: Vec<String>,
}

impl Ending {
    /// What was acknowledged and is gone.
    #[must_use]
    pub fn lost(&self) -> Vec<&str> {
        let gone = |entry: &&String| !self.manifest.contains(entry);
        let lost = self.acknowledged.iter().filter(gone);
        lost.map(String::as_str).collect()
    }
}

/// Plays it once with processes of this `program`, and tells it line by line.
///
/// # Errors
/// The processes', the authority's and the store's.
pub async fn play(
    program: &Path,
    authority: &str,
    place: &Place,
    mode: Mode,
    mut tell: impl FnMut(String),
) -> Result<Ending, Failure> {
    let start = |entries: &str, freezes_at: &str| {
        let child = Command::new(program)
            .args(["primary", authority, &place.s3, &place.bucket])
            .args([&place.folder, mode.as_str(), entries, freezes_at])
            .env("AWS_ACCESS_KEY_ID", &place.key_id)
            .env("AWS_SECRET_ACCESS_KEY", &place.secret)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        child.map_err(Failure::from).and_then(Primary::of)
    };
    let mut ending = Ending::default();
    let mut old = start("a1,a2", "a2")?;
    for _ in 0..2 {
        tell(format!("old: {}", old.says(&mut ending).await?));
    }
    old.frozen().await?;
    tell("old: its lease is fine, and then its process freezes in front of the next swap.".into());

    let mut new = start("b1,b2", "")?;
    while let Ok(line) = new.says(&mut ending).await {
        tell(format!("new: {line}"));
    }
    new.ended().await?;

    old.thaw()?;
    tell("old: goes on where it was.".into());
    while let Ok(line) = old.says(&mut ending).await {
        tell(format!("old: {line}"));
    }
    old.ended().await?;
    ending.manifest = Manifest::open(place, mode).await?.observe().await?;
    Ok(ending)
}

/// A primary's process; it ends with this value.
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

    /// Its next line, noted.
    async fn says(&mut self, ending: &mut Ending) -> Result<String, Failure> {
        let line = self.lines.next_line().await?.ok_or("no more is said")?;
        match line.split_once(' ') {
            Some(("acknowledged", entry)) => ending.acknowledged.push(entry.to_owned()),
            Some(("rejected", entry)) => ending.rejected.push(entry.to_owned()),
            _ => {}
        }
        Ok(line)
    }

    /// Waits until it is frozen.
    async fn frozen(&self) -> Result<(), Failure> {
        let which = WaitId::Pid(self.pid);
        tokio::task::spawn_blocking(move || waitid(which, WaitIdOptions::STOPPED)).await??;
        Ok(())
    }

    fn thaw(&self) -> Result<(), Failure> {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }

    async fn ended(mut self) -> Result<(), Failure> {
        let status = self.child.wait().await?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("a primary failed: {status}").into()),
        }
    }
}
