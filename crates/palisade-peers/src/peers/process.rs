//! What a server costs its machine, from outside: time on the processor, memory, syncs.

use std::fs::read_to_string;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::lane::Error;

/// The fields of `/proc/PID/stat` behind the command's name, which may hold anything.
fn stat(pid: u32) -> Option<Vec<u64>> {
    let text = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let numbers = fields.split_whitespace().skip(1);
    Some(numbers.map(|field| field.parse().unwrap_or(0)).collect())
}

/// A process and those it started.
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

/// Seconds on a processor, in the program and in the kernel for it; children that have ended count.
pub(crate) fn cpu(pid: u32) -> f64 {
    let ticks: u64 = family(pid)
        .into_iter()
        .filter_map(stat)
        .map(|fields| fields.get(10..14).map_or(0, |times| times.iter().sum()))
        .sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Bytes of memory; what several processes share counts once.
pub(crate) fn memory(pid: u32) -> f64 {
    let kib = |pid: u32| -> Option<u64> {
        let text = read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.split_whitespace().next()?.parse().ok()
    };
    family(pid).into_iter().filter_map(kib).sum::<u64>() as f64 * 1024.0
}

/// Counts the syncs a server asks the kernel for, with perf and the kernel's tracepoints: that
/// costs the server next to nothing, and works for programs that are linked statically.
pub(crate) struct Syncs(Child);

const EVENTS: &str = "syscalls:sys_enter_fsync,syscalls:sys_enter_fdatasync,\
    syscalls:sys_enter_msync,syscalls:sys_enter_sync_file_range";

impl Syncs {
    /// Counts from now on.
    ///
    /// # Errors
    /// perf is not installed, or not allowed here.
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
        // It does not say when it has begun.
        tokio::time::sleep(Duration::from_millis(300)).await;
        match perf.try_wait()? {
            None => Ok(Syncs(perf)),
            Some(_) => Err("perf may not count here".into()),
        }
    }

    /// How many there were.
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
    fn this_process_is_its_own_family_and_costs_something() {
        let own = std::process::id();
        assert_eq!(family(own).first(), Some(&own));
        assert!(memory(own) > 0.0);
        let mut sum = 0_u64;
        while cpu(own) < 0.02 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
    }
}
