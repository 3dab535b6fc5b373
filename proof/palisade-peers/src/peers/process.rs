//! A server's cost to its machine, measured from outside: processor time, memory, syncs.

use std::fs::read_to_string;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::lane::Error;

/// The fields of `/proc/PID/stat` after the command's name, which may contain anything.
fn stat(pid: u32) -> Option<Vec<u64>> {
    let text = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let numbers = fields.split_whitespace().skip(1);
    Some(numbers.map(|field| field.parse().unwrap_or(0)).collect())
}

/// A process and its descendants.
pub(crate) fn family(pid: u32) -> Vec<u32> {
    let everybody: Vec<(u32, u64)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, *stat(pid)?.first()?))
        })
        .collect();
    let mut family = vec![pid];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        at += 1;
        let children = everybody.iter().filter(|row| row.1 == u64::from(parent));
        family.extend(children.map(|row| row.0));
    }
    family
}

/// Processor time in seconds, in the program and in the kernel; includes children that have ended.
pub(crate) fn cpu(pid: u32) -> f64 {
    let ticks: u64 = family(pid)
        .into_iter()
        .filter_map(stat)
        .map(|fields| fields.get(10..14).map_or(0, |times| times.iter().sum()))
        .sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Bytes of memory; shared memory counts once.
pub(crate) fn memory(pid: u32) -> f64 {
    let kib = |pid: u32| -> Option<u64> {
        let text = read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.split_whitespace().next()?.parse().ok()
    };
    family(pid).into_iter().filter_map(kib).sum::<u64>() as f64 * 1024.0
}

/// Counts a server's sync system calls with perf and the kernel's tracepoints: this costs the server almost nothing and
/// works for statically linked programs.
pub(crate) struct Syncs(Child);

const EVENTS: &str = "syscalls:sys_enter_fsync,syscalls:sys_enter_fdatasync,\
    syscalls:sys_enter_msync,syscalls:sys_enter_sync_file_range";

impl Syncs {
    /// Counts from now on.
    ///
    /// # Errors
    /// perf is not installed, or not allowed.
    pub(crate) async fn count(pid: u32) -> Result<Syncs, Error> {
        let pids: Vec<String> = family(pid).iter().map(u32::to_string).collect();
        let mut perf = Command::new("perf")
            .args(["stat", "--field-separator=,", "--event", EVENTS, "--pid"])
            .arg(pids.join(","))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("perf: {error}"))?;
        // perf does not report when it starts counting.
        tokio::time::sleep(Duration::from_millis(300)).await;
        match perf.try_wait()? {
            None => Ok(Syncs(perf)),
            Some(_) => Err("perf is not allowed to count here".into()),
        }
    }

    /// The number of syncs.
    pub(crate) fn end(self) -> Result<u64, Error> {
        let number = i32::try_from(self.0.id())?;
        kill_process(Pid::from_raw(number).ok_or("no pid")?, Signal::INT)?;
        let output = self.0.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        let counts = text.lines().filter(|line| line.contains("syscalls:"));
        let counts: Vec<u64> = counts
            .filter_map(|line| line.split(',').next()?.parse().ok())
            .collect();
        if counts.is_empty() {
            return Err(format!("perf counted nothing: {}", text.trim()).into());
        }
        Ok(counts.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_its_own_family_and_uses_resources() {
        let own = std::process::id();
        assert_eq!(family(own).first(), Some(&own));
        assert!(memory(own) > 0.0);
        let mut sum = 0_u64;
        while cpu(own) < 0.02 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }
}
